"""How a PyTorch model gets from its file into memory: settings, kinds of artifact, order of arguments."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

from actors.values.datatypes import DataType
from engine.worker.backends.base import LoadError
from engine.worker.backends.torch_accelerating import accelerator_of, runtime, was_compiled
from engine.worker.backends.torch_names import argument_paths, output_paths, package_inputs, script_inputs
from engine.worker.joining import made_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from engine.worker.backends.base import ModelInfo, TensorInfo
    from engine.worker.backends.torch_names import Path

DEFAULT_ARTIFACTS = ("model.pt", "model.pt2")
_ON, _OFF = ("true", "on", "1"), ("false", "off", "0")
_AMP = {"bf16": "bfloat16", "fp16": "float16"}
# What an AOTInductor package calls a CPU feature, and what /proc/cpuinfo does.
_CPU_FLAGS = {
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AMX": "amx_tile",
    "ASIMD": "asimd",
}


class Program:
    """A loaded model: call it with the configured inputs in order, and find its outputs at `paths`.

    An input of None was not sent.
    """

    __slots__ = ("call", "paths")

    def __init__(self, call: Callable[[Sequence[Any]], Any], paths: Sequence[int | Path]) -> None:
        self.call = call
        self.paths = paths


def flag(model: ModelInfo, key: str, *, default: bool = False) -> bool:
    """Return the boolean parameter `key`, in one of the reference implementation's spellings.

    Raises LoadError for others.
    """
    text = model.parameters.get(key)
    if text is None:
        return default
    if text.lower() not in (*_ON, *_OFF):
        raise LoadError(f"model '{model.name}': parameter '{key}' must be true or false, got '{text}'")
    return text.lower() in _ON


def _count(model: ModelInfo, *keys: str) -> int:
    """Return the first of the parameters `keys` that is set, 0 if none is."""
    for key in keys:
        text = model.parameters.get(key)
        if text is not None:
            if not text.isdigit():
                raise LoadError(f"model '{model.name}': parameter '{key}' must be a number, got '{text}'")
            return int(text)
    return 0


def amp_dtype(torch: Any, model: ModelInfo) -> Any:
    """Return the dtype that autocast shall use (parameter `tritium.amp`), or None."""
    text = model.parameters.get("tritium.amp")
    if text is None:
        return None
    if text not in _AMP:
        raise LoadError(f"model '{model.name}': parameter 'tritium.amp' must be bf16 or fp16, got '{text}'")
    return getattr(torch, _AMP[text])


def device_of(torch: Any, model: ModelInfo) -> Any:
    """Return the device that inputs go to.

    Raises LoadError if the instance wants a GPU and torch has none.
    """
    if model.kind != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LoadError(
            f"unable to load model '{model.name}', instance '{model.instance_name}' has kind KIND_GPU but the installed"
            " torch finds no CUDA device; use KIND_CPU"
        )
    count = torch.cuda.device_count()
    if model.device_id >= count:
        raise LoadError(
            f"unable to load model '{model.name}', instance '{model.instance_name}' is for GPU {model.device_id} but the"
            f" installed torch sees {count}"
        )
    return torch.device("cuda", model.device_id)


def check_device(torch: Any, device: Any, failure: Exception, log: Callable[[str, str], None]) -> None:
    """Raise SystemExit if `failure` has left a CUDA device unusable for this process.

    Waits for the device.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception as error:
        log("error", f"{device} is lost to this process: {failure}")
        raise SystemExit(1) from error


def set_process_options(torch: Any, model: ModelInfo) -> None:
    """Apply what torch keeps for the whole process, which is one worker."""
    if "TORCH_COMPILE_OPTIONAL_PARAMETERS" in model.parameters and model.config.get("runtime") != "model.py":
        raise LoadError(
            f"model '{model.name}': TORCH_COMPILE_OPTIONAL_PARAMETERS is for modules in Python:"
            ' write runtime: "model.py"'
        )
    torch.set_num_threads(_count(model, "INTRA_OP_THREAD_COUNT", "NUM_THREADS") or max(1, model.threads))
    interop = _count(model, "INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS")
    if interop:
        try:
            torch.set_num_interop_threads(interop)
        except RuntimeError as error:  # set before: the first model of a process wins
            model.log(
                "warning", f"INTER_OP_THREAD_COUNT is left at {torch.get_num_interop_threads()}: {error}"
            )
    if flag(model, "DISABLE_CUDNN"):
        torch.backends.cudnn.enabled = False
    if "ENABLE_JIT_EXECUTOR" in model.parameters:
        # There is no public name.
        torch._C._jit_set_profiling_executor(flag(model, "ENABLE_JIT_EXECUTOR"))  # noqa: SLF001
    if "ENABLE_JIT_PROFILING" in model.parameters:
        # There is no public name.
        torch._C._jit_set_profiling_mode(flag(model, "ENABLE_JIT_PROFILING"))  # noqa: SLF001
    if "ENABLE_TENSOR_FUSER" in model.parameters:
        # There is no public name.
        torch._C._jit_set_texpr_fuser_enabled(flag(model, "ENABLE_TENSOR_FUSER"))  # noqa: SLF001
    if flag(model, "ENABLE_WEIGHT_SHARING"):
        model.log(
            "info",
            "ENABLE_WEIGHT_SHARING: the executions within one worker share their weights, workers do not",
        )


def load_program(torch: Any, model: ModelInfo, device: Any) -> Program:
    """Load the model's artifact, of whichever kind it is. Raises LoadError, or what torch raises."""
    path = _artifact(model)
    members = zipfile.ZipFile(path).namelist() if zipfile.is_zipfile(path) else []
    if members and was_compiled(path, members):
        runtime(model)
    kinds = {member.split("/", 2)[1] for member in members if "/" in member}
    if "code" in kinds or not members:
        return _load_script(torch, path, model, device)
    for tensor in [*model.inputs, *model.outputs]:
        if tensor.datatype is DataType.BYTES:
            raise LoadError(
                f"unable to load model '{model.name}', tensor '{tensor.name}' is TYPE_STRING, which only TorchScript"
                " models can take and give"
            )
    if any("/data/aotinductor/" in member for member in members):
        return _load_package(torch, path, members, model)
    return _load_export(torch, path, model, device)


def _artifact(model: ModelInfo) -> str:
    """Return the path of the model file: the configured one, or the default name of the two that exists."""
    names = DEFAULT_ARTIFACTS if model.artifact in ("", DEFAULT_ARTIFACTS[0]) else (model.artifact,)
    paths = [os.path.join(model.version_directory, name) for name in names]
    for path in paths:
        if os.path.isfile(path):
            return path
    raise LoadError(f"unable to find '{paths[0]}' for model '{model.name}'")


def _load_script(torch: Any, path: str, model: ModelInfo, device: Any) -> Program:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        module = torch.jit.load(path, map_location=None if model.kind == "MODEL" else device).eval()
    schema = module.forward.schema
    accelerator = accelerator_of(model)
    arguments = schema.arguments[1:]  # without self
    inputs = [*model.inputs, *made_tensors(model)]
    names = [tensor.name for tensor in inputs]
    types = {argument.name: str(argument.type) for argument in arguments}
    paths = output_paths([tensor.name for tensor in model.outputs])
    if list(types.values()) == ["Dict[str, Tensor]"]:
        if accelerator is not None:
            raise LoadError(
                f"unable to load model '{model.name}', execution accelerator 'tensorrt' takes no model whose"
                " argument is a dict"
            )
        return Program(
            lambda tensors: module({name: t for name, t in zip(names, tensors) if t is not None}), paths
        )
    keywords = [arguments[index].name for index in script_inputs(names, list(types), model.name)]
    needed = [
        a.name for a in arguments if not a.has_default_value() and not str(a.type).startswith("Optional")
    ]
    if not set(needed) <= set(keywords):
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects {len(names)} inputs, model provides"
            f" {len(arguments)}"
        )
    for tensor, keyword in zip(inputs, keywords):
        _check_script_type(model, "input", tensor, types[keyword])
    if len(schema.returns) == 1:
        _check_script_returns(model, schema.returns[0].type, paths)
    if accelerator is not None:
        order = [keywords.index(name) for name in types if name in keywords]
        if [keywords[at] for at in order] != list(types)[: len(order)]:
            raise LoadError(
                f"unable to load model '{model.name}', execution accelerator 'tensorrt' needs all arguments"
                f" before the last one that is configured: {', '.join(types)}"
            )
        compiled = accelerator.of_script(torch, module, [inputs[at] for at in order])
        return Program(lambda tensors: compiled(*[tensors[at] for at in order]), paths)
    return Program(
        lambda tensors: module(**{key: t for key, t in zip(keywords, tensors) if t is not None}), paths
    )


def _check_script_type(model: ModelInfo, side: str, tensor: TensorInfo, found: str) -> None:
    """Compare an argument's type with the configuration. Raises LoadError."""
    plain = found[len("Optional[") : -1] if found.startswith("Optional[") else found
    if tensor.datatype is not DataType.BYTES:
        expected = "Tensor"
    elif tensor.ragged or len(tensor.backend_dims) + bool(model.max_batch_size) == 1:
        expected = "List[str]"
    else:
        raise LoadError(
            f"unable to load model '{model.name}', {side} '{tensor.name}' must be 1-dimensional, batch dimension included:"
            " TorchScript has lists of str and no tensors of them"
        )
    if plain != expected:
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects datatype {tensor.datatype.config_name} for"
            f" {side} '{tensor.name}', model provides {found}"
        )


def _check_script_returns(model: ModelInfo, returned: Any, paths: Sequence[int | Path]) -> None:
    """Compare the number of outputs with the declared return type, if that is a tensor or a flat tuple."""
    kind = returned.kind()
    if kind == "TensorType":
        types = ["Tensor"]
    elif kind == "TupleType" and {element.kind() for element in returned.elements()} <= {
        "TensorType",
        "ListType",
    }:
        types = [str(element) for element in returned.elements()]
    else:
        return
    for tensor, path in zip(model.outputs, paths):
        if isinstance(path, int) and path >= len(types):
            raise LoadError(
                f"unable to load model '{model.name}', output '{tensor.name}' stands for result {path}, model provides"
                f" {len(types)}"
            )
        if isinstance(path, int) and types[path] in ("Tensor", "List[str]"):
            _check_script_type(model, "output", tensor, types[path])


def _load_export(torch: Any, path: str, model: ModelInfo, device: Any) -> Program:
    program = torch.export.load(path)
    if device.type == "cuda":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, str(device))
    spec = torch.utils._pytree.treespec_dumps(program.call_spec.in_spec)  # noqa: SLF001  # no public name
    accelerator = accelerator_of(model)

    def make(inputs: Sequence[TensorInfo], tree: Any) -> Any:
        return (
            program.module() if accelerator is None else accelerator.of_program(torch, program, inputs, tree)
        )

    return _package_program(torch, make, spec, model)


def _load_package(torch: Any, path: str, members: Sequence[str], model: ModelInfo) -> Program:
    if accelerator_of(model) is not None:
        raise LoadError(
            f"unable to load model '{model.name}', execution accelerator 'tensorrt' can't compile an"
            " AOTInductor package, which is compiled already: serve the program that it was made of"
        )
    if "tritium.amp" in model.parameters:
        raise LoadError(
            f"model '{model.name}': 'tritium.amp' can't change an AOTInductor package, whose precision is compiled in"
        )
    with zipfile.ZipFile(path) as archive:
        for member in members:
            if member.endswith("_metadata.json"):
                _check_machine(json.loads(archive.read(member)), model)
    # By default, packages trust the shapes they are given, and read past the end of a tensor that is too
    # small.
    os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
    index = model.device_id if model.kind == "GPU" else -1
    # It is documented under this name.
    package = torch._inductor.aoti_load_package(path, device_index=index)  # noqa: SLF001
    return _package_program(torch, lambda inputs, tree: package, package.loader.get_call_spec()[0], model)


def _check_machine(metadata: Mapping[str, str], model: ModelInfo) -> None:
    """Refuse a package that was compiled for another machine: it would die of an illegal instruction."""
    device = "cuda" if model.kind == "GPU" else "cpu"
    compiled_for = metadata.get("AOTI_DEVICE_KEY", device)
    if compiled_for != device:
        raise LoadError(
            f"unable to load model '{model.name}', the package is compiled for {compiled_for}, the instance runs on {device}"
        )
    machine = metadata.get("AOTI_MACHINE", os.uname().machine)
    missing = [] if machine == os.uname().machine else [machine]
    flags = _cpu_flags()
    features = metadata.get("AOTI_CPU_ISA", "").split()
    missing += [name for name in features if _CPU_FLAGS.get(name, "") not in flags]
    if missing:
        raise LoadError(
            f"unable to load model '{model.name}', the package is compiled for a CPU with {' '.join(missing)}, which this"
            " machine does not have"
        )


def _cpu_flags() -> set[str]:
    """Return the first CPU's features, with an empty one that stands for those that can't be looked up."""
    with open("/proc/cpuinfo") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return {"", *value.split()}
    return {"", *_CPU_FLAGS.values()}


def _package_program(
    torch: Any, make: Callable[[Sequence[TensorInfo], Any], Any], spec: str, model: ModelInfo
) -> Program:
    """Return the program of a callable whose arguments are described by a serialised tree.

    The tree is that of `treespec_dumps`. `make` returns the callable, for the configured inputs in the order
    of the tree's leaves.
    """
    pytree = torch.utils._pytree  # noqa: SLF001  # no public name
    tree = pytree.treespec_loads(spec)
    inputs = [*model.inputs, *made_tensors(model)]
    places = package_inputs([tensor.name for tensor in inputs], argument_paths(spec), model.name)
    paths = output_paths([tensor.name for tensor in model.outputs])
    order = [places.index(leaf) for leaf in range(len(places))]
    call = make([inputs[at] for at in order], tree)

    def run(tensors: Sequence[Any]) -> Any:
        arguments, keywords = pytree.tree_unflatten([tensors[at] for at in order], tree)
        return call(*arguments, **keywords)

    return Program(run, paths)
