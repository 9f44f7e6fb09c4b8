"""Inputs and outputs of PyTorch's files, read from their archives without torch.

Nothing of theirs is run. A torch.export archive holds its graph's signature as JSON, with datatypes, sizes
and symbols: all that a configuration needs. So does an AOTInductor package if the exported program was packed
with it; otherwise it holds compiled code. TorchScript holds a program without shapes. Of the last two, enough
is found to say what the model takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.values.datatypes import DataType
from engine.config.inspection.torch_pickles import Archive, Example, main_class, opened_archive, traced_inputs
from engine.config.inspection.wire import Port, Ports, Unloadable, Unreadable

_LARGEST_DOCUMENT: Final = 32 * 1024 * 1024  # of a graph as JSON, or of generated code
_LARGEST_CODE: Final = 16 * 1024 * 1024
_LARGEST_PICKLE: Final = 1024 * 1024
_MOST_ARGUMENTS: Final = 10_000

_PROGRAM: Final = re.compile(r"[^/]+/models/([^/]+)\.json\Z")
_OLD_PROGRAM: Final = re.compile(r"(?:[^/]+/)?serialized_exported_program\.json\Z")
_WEIGHTS: Final = re.compile(r"[^/]+/data\.pkl\Z")
_CODE: Final = re.compile(r"[^/]+/code/(.+)\.py\Z")

# torch.export's ScalarType (its serde schema)
_SCALAR_TYPES: Final = {
    1: ("uint8", DataType.UINT8),
    2: ("int8", DataType.INT8),
    3: ("int16", DataType.INT16),
    4: ("int32", DataType.INT32),
    5: ("int64", DataType.INT64),
    6: ("float16", DataType.FP16),
    7: ("float32", DataType.FP32),
    8: ("float64", DataType.FP64),
    9: ("complex32", None),
    10: ("complex64", None),
    11: ("complex128", None),
    12: ("bool", DataType.BOOL),
    13: ("bfloat16", DataType.BF16),
    28: ("uint16", DataType.UINT16),
    34: ("uint32", DataType.UINT32),
    35: ("uint64", DataType.UINT64),
}
# What the checks in generated code call them.
_CODE_TYPES: Final = {
    "Byte": DataType.UINT8,
    "Char": DataType.INT8,
    "Short": DataType.INT16,
    "Int": DataType.INT32,
    "Long": DataType.INT64,
    "Half": DataType.FP16,
    "Float": DataType.FP32,
    "Double": DataType.FP64,
    "Bool": DataType.BOOL,
    "BFloat16": DataType.BF16,
    "UInt16": DataType.UINT16,
    "UInt32": DataType.UINT32,
    "UInt64": DataType.UINT64,
}
# Containers whose leaves the backend finds in the order in which torch counts them.
_CONTAINERS: Final = frozenset(
    (
        "builtins.tuple",
        "builtins.list",
        "builtins.dict",
        "collections.OrderedDict",
        "collections.namedtuple",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """What a file tells if that is not enough for a configuration.

    Ports are as complete as they can be. A `datatype` or `shape` of None is not known, and a known shape is
    an example's.
    """

    kind: str  # what the file is
    signature: str  # its arguments and results, in words
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def read_torch(path: Path) -> Ports | Sketch:
    """Return what the model in `path` takes and gives: certain, or a sketch. Raises Unreadable."""
    with opened_archive(path) as archive:
        programs = sorted(name for name in archive.names if _PROGRAM.match(name) or _OLD_PROGRAM.match(name))
        chosen = [name for name in programs if name.endswith("/models/model.json")] or programs
        if any(_CODE.match(name) for name in archive.names):
            return _script(archive)
        if len(chosen) == 1:
            return _program(archive, chosen[0])
        if chosen:
            raise Unreadable(f"it holds several programs: {', '.join(chosen[:8])}")
        if any("/data/aotinductor/" in name for name in archive.names):
            return _package(archive)
        if any(_WEIGHTS.match(name) for name in archive.names):
            raise Unloadable("it holds no program, only what torch.save was given, such as a state_dict")
    raise Unreadable("it is neither TorchScript, nor a torch.export program, nor an AOTInductor package")


# -- torch.export


def _program(archive: Archive, name: str) -> Ports:
    content = archive.read(name, most=_LARGEST_DOCUMENT)
    try:
        return _signature(json.loads(content))
    except Unreadable:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Unreadable(f"its member '{name}' is no exported program as torch writes them") from error


def _signature(document: Any) -> Ports:
    module = document["graph_module"]
    tensors = module["graph"]["tensor_values"]
    call = next(entry["signature"] for entry in module["module_call_graph"] if entry["fqn"] == "")
    specs = module["signature"]
    if any("constant_input" in spec for spec in specs["input_specs"]):
        raise Unreadable("an argument of its forward is a constant, and only tensors can be sent")
    given = [spec["user_input"]["arg"] for spec in specs["input_specs"] if "user_input" in spec]
    returned = [spec["user_output"]["arg"] for spec in specs["output_specs"] if "user_output" in spec]
    if max(len(given), len(returned)) > _MOST_ARGUMENTS:
        raise Unreadable(f"it has more than {_MOST_ARGUMENTS} arguments or results")
    _check_arguments(json.loads(call["in_spec"]), len(given))
    _check_results(json.loads(call["out_spec"]), len(returned))
    inputs = [_port(f"INPUT__{at}", argument, tensors) for at, argument in enumerate(given)]
    outputs = [
        _port(f"OUTPUT__{at}", argument, tensors)
        for at, argument in enumerate(returned)
        if "as_tensor" in argument  # numbers and None have their place in the count, and no name
    ]
    if not outputs:
        raise Unreadable("it returns no tensor")
    for at, port in enumerate(inputs):
        if port.shape == ():
            raise Unreadable(
                f"argument {at} of its forward is a scalar, and what is sent has a dimension at least"
            )
    return Ports(inputs=tuple(inputs), outputs=tuple(outputs))


def _check_arguments(spec: Any, count: int) -> None:
    if sum(_leaves(spec[1], "takes")) != count:
        raise Unreadable("its arguments can't be told apart")


def _check_results(spec: Any, count: int) -> None:
    if sum(_leaves(spec[1], "returns")) != count:
        raise Unreadable("its results can't be told apart")


def _leaves(spec: Any, verb: str) -> Iterator[int]:
    """Yield 1 for each leaf of a tree spec. Raises Unreadable for a container whose order is not known."""
    if spec["type"] is None:
        yield 1
    elif spec["type"] in _CONTAINERS:
        for child in spec["children_spec"]:
            yield from _leaves(child, verb)
    else:
        raise Unreadable(f"it {verb} a {spec['type']}, whose parts have no order that is known here")


def _port(name: str, argument: Any, tensors: Any) -> Port:
    if "as_tensor" not in argument:
        kind = ", ".join(str(key).removeprefix("as_") for key in argument)
        raise Unreadable(f"'{name}' is of type {kind}, and only tensors can be sent")
    meta = tensors[argument["as_tensor"]["name"]]
    shape: list[int] = []
    symbols: list[str] = []
    for size in meta["sizes"]:
        fixed = size.get("as_int")
        shape.append(-1 if fixed is None else int(fixed))
        symbols.append(str(size["as_expr"]["expr_str"]) if fixed is None else "")
    spelling, datatype = _SCALAR_TYPES.get(meta["dtype"], (f"scalar type {meta['dtype']}", None))
    return Port(name=name, datatype=datatype, shape=tuple(shape), spelling=spelling, symbols=tuple(symbols))


# -- AOTInductor packages without their program

_CHECKED_TYPE: Final = re.compile(
    r'"input_handles\[(\d{1,4})\]: unmatched dtype.{0,200}?\(at::k(\w{1,20})\)', re.DOTALL
)
_CHECKED_DIM: Final = re.compile(
    r'"input_handles\[(\d{1,4})\]: (?:unmatched dim value at (\d{1,2}), "\s{0,40}<< "expected: (\d{1,18}),'
    r"|dim value is too (?:small|large) at (\d{1,2}),)"
)


def _package(archive: Archive) -> Sketch:
    sources = [name for name in archive.names if "/data/aotinductor/" in name and name.endswith(".cpp")]
    for name in sources:
        text = archive.read(name, most=_LARGEST_DOCUMENT).decode(errors="replace")
        in_spec, out_spec = _literal(text, ' in_spec_ = R"('), _literal(text, ' out_spec_ = R"(')
        if in_spec and out_spec:
            return _package_sketch(in_spec, out_spec, text)
    return Sketch(
        kind="an AOTInductor package",
        signature="which says nothing about its arguments",
        inputs=(Port(name="INPUT__0", datatype=None, shape=None),),
        outputs=(Port(name="OUTPUT__0", datatype=None, shape=None),),
    )


def _literal(code: str, opening: str) -> str:
    """Return the raw string that follows `opening`, or nothing."""
    at = code.find(opening)
    return "" if at < 0 else code[at + len(opening) : code.find(')"', at)]


def _package_sketch(in_spec: str, out_spec: str, code: str) -> Sketch:
    try:
        positional, keyword = json.loads(in_spec)[1]["children_spec"]
        names = [f"argument {at}" for at in range(len(positional["children_spec"]))]
        names += [f"'{key}'" for key in json.loads(keyword["context"])]
        results = sum(_leaves(json.loads(out_spec)[1], "returns"))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Unreadable("its generated code is of no form that is known here") from error
    if max(len(names), results) > _MOST_ARGUMENTS:
        raise Unreadable(f"it has more than {_MOST_ARGUMENTS} arguments or results")
    types = {int(at): _CODE_TYPES.get(kind) for at, kind in _CHECKED_TYPE.findall(code)}
    shapes: dict[int, dict[int, int]] = {}
    for at, fixed, size, variable in _CHECKED_DIM.findall(code):
        shapes.setdefault(int(at), {}).setdefault(int(fixed or variable), int(size) if size else -1)
    inputs = tuple(
        Port(name=f"INPUT__{at}", datatype=types.get(at), shape=_from_checks(shapes.get(at, {})))
        for at in range(len(names))
    )
    outputs = tuple(Port(name=f"OUTPUT__{at}", datatype=None, shape=None) for at in range(results))
    return Sketch(
        kind="an AOTInductor package",
        signature=f"which takes {', '.join(names) or 'nothing'} and returns {results} tensor{'s' * (results != 1)}",
        inputs=inputs,
        outputs=outputs,
    )


def _from_checks(sizes: dict[int, int]) -> tuple[int, ...] | None:
    return tuple(sizes.get(at, -1) for at in range(max(sizes) + 1)) if sizes else None


# -- TorchScript


def _script(archive: Archive) -> Sketch | Ports:
    name = next((name for name in archive.names if name.count("/") == 1 and name.endswith("/data.pkl")), None)
    if name is None:
        raise Unreadable("it holds TorchScript code and no module")
    module, class_name = main_class(archive.head(name, 4096))
    code = f"{name.partition('/')[0]}/code/{module.replace('.', '/')}.py"
    if code not in archive.names:
        raise Unreadable(f"its module is of class {module}.{class_name}, whose code is not in it")
    text = archive.read(code, most=_LARGEST_CODE).decode(errors="replace")
    arguments, returned = _forward(text, class_name)
    traced = f"{name.partition('/')[0]}/traced_inputs.pkl"
    examples = traced_inputs(archive.read(traced, most=_LARGEST_PICKLE)) if traced in archive.names else ()
    if len(examples) != len(arguments):
        examples = (None,) * len(arguments)
    inputs = tuple(
        _script_port(argument, kind, example)
        for (argument, kind), example in zip(arguments, examples, strict=True)
    )
    outputs = tuple(
        _script_port(f"OUTPUT__{at}", kind, None) for at, kind in enumerate(_result_types(returned))
    )
    if inputs and all(kind == "List[str]" for _, kind in arguments) and returned == "List[str]":
        return Ports(inputs=inputs, outputs=outputs)
    taken = ", ".join(f"'{argument}' ({kind})" for argument, kind in arguments) or "nothing"
    return Sketch(
        kind="a TorchScript file",
        signature=f"whose forward takes {taken} and returns {returned}",
        inputs=inputs,
        outputs=outputs,
    )


def _script_port(name: str, kind: str, example: Example | None) -> Port:
    if kind.removeprefix("Optional[").startswith("List[str]"):
        return Port(name=name, datatype=DataType.BYTES, shape=(-1,), spelling=kind, symbols=("",))
    if example is None:
        return Port(name=name, datatype=None, shape=None, spelling=kind)
    return Port(name=name, datatype=example.datatype, shape=example.shape, spelling=kind)


def _result_types(returned: str) -> list[str]:
    if returned.startswith("Tuple[") and returned.endswith("]"):
        return [part for part in _split(returned[len("Tuple[") : -1]) if part]
    return [returned]


def _forward(text: str, class_name: str) -> tuple[list[tuple[str, str]], str]:
    """Return the (name, type) of forward's arguments and its return type.

    They come from a class's code as TorchScript prints it.
    """
    start = re.search(rf"^class {re.escape(class_name)}\(", text, re.MULTILINE)
    if start is None:
        raise Unreadable(f"it holds no class {class_name}")
    following = re.compile(r"^class ", re.MULTILINE).search(text, start.end())
    body = text[start.start() : following.start() if following else len(text)]
    head = re.search(r"^  def forward\(", body, re.MULTILINE)
    if head is None:
        raise Unreadable(f"class {class_name} has no forward")
    close = _closing(body, head.end())
    result = re.compile(r"\) -> ([^\n]{1,2000}):\n?").match(body, close)
    if result is None:
        raise Unreadable(f"forward of class {class_name} is of no form that is known here")
    parts = _split(body[head.end() : close])[1:]  # without self
    if len(parts) > _MOST_ARGUMENTS:
        raise Unreadable(f"it has more than {_MOST_ARGUMENTS} arguments")
    arguments = []
    for part in filter(None, parts):
        name, _, kind = part.partition(":")
        arguments.append((name.strip(), kind.partition("=")[0].strip()))
    return arguments, result[1].strip()


def _closing(text: str, start: int) -> int:
    """Return where the parenthesis that was opened before `start` is closed."""
    depth = 1
    for match in re.compile(r"[\[\]()]").finditer(text, start, start + _LARGEST_PICKLE):
        depth += 1 if match[0] in "[(" else -1
        if depth == 0:
            return match.start()
    raise Unreadable("its code ends within the arguments of forward")


def _split(text: str) -> list[str]:
    """Return the parts between commas, except commas inside brackets."""
    parts = [""]
    depth = 0
    for piece in re.split(r"([\[\](),])", text):
        depth += (piece in ("[", "(")) - (piece in ("]", ")"))
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]
