"""Two things from TorchScript's pickles: the module's class, and the inputs it was traced with.

Nothing is unpickled. The few operations that torch writes are followed over plain values, and any other ends
the attempt.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any, Final

from actors.values.datatypes import DataType
from engine.config.inspection.ports import Unreadable

_MOST_STEPS: Final = 20_000

_STORAGES: Final = {
    "torch ByteStorage": DataType.UINT8,
    "torch CharStorage": DataType.INT8,
    "torch ShortStorage": DataType.INT16,
    "torch IntStorage": DataType.INT32,
    "torch LongStorage": DataType.INT64,
    "torch HalfStorage": DataType.FP16,
    "torch FloatStorage": DataType.FP32,
    "torch DoubleStorage": DataType.FP64,
    "torch BoolStorage": DataType.BOOL,
    "torch BFloat16Storage": DataType.BF16,
}


@dataclass(frozen=True, slots=True)
class Example:
    """A tensor that a model was traced with; `datatype` None if no configuration can name it."""

    datatype: DataType | None
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Global:
    name: str  # "module name"


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a persistent id stands for."""

    storage: Any


def main_class(head: bytes) -> tuple[str, str]:
    """Return (module, class) of the object that a `data.pkl` begins with. Raises Unreadable."""
    try:
        for step, (operation, argument, _) in enumerate(pickletools.genops(head)):
            if operation.name == "GLOBAL":
                module, _, name = str(argument).rpartition(" ")
                return module, name
            if step > 8:
                break
    except Exception as error:  # pickletools raises ValueError and more on damage, and on a cut end
        raise Unreadable("its data.pkl is damaged") from error
    raise Unreadable("its data.pkl begins with no module")


def traced_inputs(content: bytes) -> tuple[Example | None, ...]:
    """Return the example inputs of forward; empty if they can't be made out.

    An input that is no tensor is None.
    """
    try:
        traced = _follow(content)
        return tuple(value if isinstance(value, Example) else None for value in traced["forward"])
    except Exception:  # noqa: BLE001  # they only make a suggestion better
        return ()


def _follow(content: bytes) -> Any:  # noqa: C901  a case for each opcode
    """Return the value that a pickle stands for. Raises for anything unknown.

    The pickle may hold dicts, lists, tuples, text, numbers and tensors.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for step, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if step > _MOST_STEPS:
            raise ValueError("too long")
        match operation.name:
            case "PROTO":
                continue
            case "STOP":
                return stack.pop()
            case "GLOBAL":
                stack.append(_Global(argument))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(operation.name))
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "MARK":
                marks.append(len(stack))
            case "TUPLE" | "APPENDS" | "SETITEMS":
                at = marks.pop()
                _gather(operation.name, stack, at)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                _gather("TUPLE", stack, len(stack) - int(operation.name[-1]))
            case "APPEND":
                _gather("APPENDS", stack, len(stack) - 1)
            case "SETITEM":
                _gather("SETITEMS", stack, len(stack) - 2)
            case "BINPERSID":
                stack.append(_Stored(stack.pop()[1]))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(_call(stack.pop(), arguments))
            case name:
                raise ValueError(name)
    raise ValueError("no end")


def _gather(operation: str, stack: list[Any], at: int) -> None:
    values = stack[at:]
    del stack[at:]
    if operation == "TUPLE":
        stack.append(tuple(values))
    elif operation == "APPENDS":
        stack[-1].extend(values)
    else:
        stack[-1].update(zip(values[::2], values[1::2], strict=True))


def _call(function: Any, arguments: tuple[Any, ...]) -> Any:
    match function:
        case _Global("torch.jit._pickle restore_type_tag"):
            return arguments[0]
        case _Global("torch._utils _rebuild_tensor_v2"):
            storage, _, sizes, *_ = arguments
            return Example(_STORAGES.get(storage.storage.name), tuple(int(size) for size in sizes))
        case _Global():
            return None  # an OrderedDict of hooks
    raise ValueError("no function")
