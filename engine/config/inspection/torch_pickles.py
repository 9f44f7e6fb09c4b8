"""Two things from TorchScript's pickles: the module's class, and the inputs it was traced with.

Nothing is unpickled. The few operations that torch writes are followed over plain values, and any other ends
the attempt.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.values.datatypes import DataType
from engine.config.inspection.wire import Unloadable, Unreadable, opened

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
    from pickletools import genops  # only such a model pays for it

    try:
        for step, (operation, argument, _) in enumerate(genops(head)):
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
    from pickletools import genops  # only such a model pays for it

    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for step, (operation, argument, _) in enumerate(genops(content)):
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


# -- zip archives from untrusted sources: what they list and what their small members hold, within bounds

# What torch writes. With other methods Python unpacks all that it has read at once: a few hundred bytes
# become gigabytes.
_BOUNDED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The list of members is read whole, and each takes some hundred bytes of ours. A model of ten thousand
# weights needs one MiB.
_LARGEST_READ: Final = 8 * 1024 * 1024

_FLATBUFFER: Final = b"PTMF"  # in bytes 4 to 8 of TorchScript as mobile devices want it


class Archive:
    """An open archive. Use `opened_archive`."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = tuple(archive.namelist())

    def read(self, name: str, *, most: int) -> bytes:
        """Return a member of at most `most` bytes. Raises Unreadable."""
        content = self.head(name, most + 1)
        if len(content) > most:
            raise Unreadable(f"its member '{name}' is larger than {most} bytes")
        return content

    def head(self, name: str, most: int) -> bytes:
        """Return the first `most` bytes of a member, or as many as there are. Raises Unreadable."""
        try:
            method = self._archive.getinfo(name).compress_type
            if method not in _BOUNDED:
                raise Unreadable(
                    f"its member '{name}' is compressed by method {method}, which torch never uses"
                )
            with self._archive.open(name) as member:
                return member.read(most)
        except Unreadable:
            raise
        except Exception as error:  # zipfile and its decompressors raise what they like on damage
            raise Unreadable(f"its member '{name}' can't be read: {error}") from error


@contextmanager
def opened_archive(path: Path) -> Iterator[Archive]:
    """Open the zip archive `path`. Raises Unreadable."""
    with opened(path) as descriptor, _Capped(io.FileIO(descriptor, closefd=False)) as file:
        try:
            archive = zipfile.ZipFile(file)
        except Unreadable:
            raise
        except Exception as error:  # as above
            mobile = os.pread(descriptor, 8, 0)[4:] == _FLATBUFFER
            raise (Unreadable if mobile else Unloadable)(f"it is no zip archive: {error}") from error
        with archive:
            yield Archive(archive)


class _Capped(io.BufferedReader):
    """A file of which no single read is large, whatever the numbers in it say."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = _LARGEST_READ + 1
        if size > _LARGEST_READ + 1:
            raise Unreadable(f"it lists its members in {size} bytes, more than {_LARGEST_READ}")
        return super().read(size)
