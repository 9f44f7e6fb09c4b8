"""Do two versions answer alike? What is kept of an answer until the other is here, and the comparison. Pure.

An answer's memory may be an arena slot that is given back as soon as the client has its bytes. So the data to
compare is taken when the answer comes, and it is bounded: outputs of up to `KEPT_BYTES` together are kept
whole, of larger ones a sample is kept. Which elements are sampled follows from the sizes alone, so that both
answers yield the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from actors.values.datatypes import DataType
from actors.values.tensors import Tensor

if TYPE_CHECKING:
    from actors.values.tensors import Array, Buffer

KEPT_BYTES: Final = 1024 * 1024
# Of an answer that is larger; about a millisecond of cache misses.
SAMPLED_ELEMENTS: Final = 16 * 1024
# From the beginning of an output whose elements vary in length.
SAMPLED_BYTES: Final = 64 * 1024
# Characters of a value.
_SHOWN: Final = 64

_FLOATS: Final = frozenset((DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16))


class Kept:
    """The kept part of one output: every `step`th element, or the first bytes if elements vary in length."""

    __slots__ = ("data", "datatype", "name", "nbytes", "shape", "step")

    def __init__(self, tensor: Tensor, data: Buffer, step: int) -> None:
        self.name = tensor.name
        self.datatype = tensor.datatype
        self.shape = tuple(tensor.shape)
        self.nbytes = len(tensor.data)
        self.data = data
        self.step = step


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which two answers differ. `what` is error, output, datatype, shape or value.

    A value has the `index` of its element. `count` says how many of the compared elements of that output
    differ, if they were counted.
    """

    what: str
    client: Any  # in the answer that the client got
    mirror: Any
    output: str = ""
    index: tuple[int, ...] | None = None
    count: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON values."""
        document: dict[str, object] = {"what": self.what}
        if self.output:
            document["output"] = self.output
        if self.index is not None:
            document["index"] = list(self.index)
        if self.count:
            document["elements"] = self.count
        return document | {"client": self.client, "mirror": self.mirror}


def keep(outputs: Sequence[Tensor], *, borrowed: bool) -> tuple[Kept, ...]:
    """Take the data to compare from `outputs`. If `borrowed`, copy it, because it will be overwritten."""
    total = sum(len(tensor.data) for tensor in outputs)
    if total <= KEPT_BYTES:
        return tuple(Kept(tensor, bytes(tensor.data) if borrowed else tensor.data, 1) for tensor in outputs)
    elements = sum(len(tensor.data) // (tensor.datatype.size or 1) for tensor in outputs)
    return tuple(_sample(tensor, math.ceil(elements / SAMPLED_ELEMENTS)) for tensor in outputs)


def _sample(tensor: Tensor, step: int) -> Kept:
    size = tensor.datatype.size
    if not size or len(tensor.data) % size:
        return Kept(tensor, bytes(tensor.data[:SAMPLED_BYTES]), 1)
    elements = np.frombuffer(tensor.data, dtype=tensor.datatype.numpy)
    return Kept(tensor, elements[::step].tobytes(), step)


def kept_bytes(answer: Sequence[Kept]) -> int:
    """Return how many bytes of an answer will be compared."""
    return sum(len(output.data) for output in answer)


def compare(client: Sequence[Kept], mirror: Sequence[Kept], tolerance: float) -> Difference | None:
    """Return the first difference between two answers in the client's order of outputs; None for none.

    Floating-point elements may differ by `tolerance`, plus `tolerance` times the client's value; NaN is like
    NaN. All others are compared exactly. The order of outputs does not matter.
    """
    others = {output.name: output for output in mirror}
    for mine in client:
        theirs = others.pop(mine.name, None)
        if theirs is None:
            return Difference("output", "there", "missing", mine.name)
        found = _compare_output(mine, theirs, tolerance)
        if found is not None:
            return found
    for name in others:
        return Difference("output", "missing", "there", name)
    return None


def _compare_output(mine: Kept, theirs: Kept, tolerance: float) -> Difference | None:
    if mine.datatype is not theirs.datatype:
        return Difference("datatype", str(mine.datatype), str(theirs.datatype), mine.name)
    if mine.shape != theirs.shape:
        return Difference("shape", list(mine.shape), list(theirs.shape), mine.name)
    if mine.nbytes == theirs.nbytes and mine.data == theirs.data:
        return None
    size = mine.datatype.size
    if not size:
        return _compare_packed(mine, theirs)
    # Both have one shape, so one of the two contradicts itself.
    if mine.nbytes != theirs.nbytes or len(mine.data) % size:
        return _sizes_differ(mine, theirs)
    a, b = _elements(mine), _elements(theirs)
    differing = ~_close(a, b, tolerance) if mine.datatype in _FLOATS else a != b
    count = int(np.count_nonzero(differing))
    if not count:
        return None
    at = int(np.argmax(differing))
    return Difference(
        "value",
        _plain(a[at]),
        _plain(b[at]),
        mine.name,
        _index(at * mine.step, mine.shape),
        count,
    )


def _elements(output: Kept) -> Array:
    elements: Array = np.frombuffer(output.data, dtype=output.datatype.numpy)
    if output.datatype is DataType.BF16:  # the upper half of an FP32's bits
        elements = (elements.astype("<u4") << 16).view("<f4")
    return elements


def _close(client: Array, mirror: Array, tolerance: float) -> Array:
    client, mirror = client.astype(np.float64), mirror.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(client - mirror) <= tolerance + tolerance * np.abs(client)
    # An infinite tolerance times infinity forgives anything, and infinities are alike only if they are the
    # same.
    near &= np.isfinite(client) & np.isfinite(mirror)
    alike: Array = near | (client == mirror) | (np.isnan(client) & np.isnan(mirror))
    return alike


def _compare_packed(mine: Kept, theirs: Kept) -> Difference:
    """Return the first element that differs in the kept parts of two unequal outputs, else their sizes."""
    one, other = memoryview(mine.data), memoryview(theirs.data)
    at = index = 0
    end = min(len(one), len(other))
    while at + 4 <= end:
        a, b = _element(one, at), _element(other, at)
        if a != b:
            client, mirror = (_shown(each.decode("utf-8", "replace")) for each in (a, b))
            return Difference("value", client, mirror, mine.name, _index(index, mine.shape))
        at += 4 + len(a)
        index += 1
    return _sizes_differ(mine, theirs)


def _sizes_differ(mine: Kept, theirs: Kept) -> Difference:
    return Difference("value", f"{mine.nbytes} bytes", f"{theirs.nbytes} bytes", mine.name)


def _element(packed: memoryview, at: int) -> bytes:
    start = at + 4
    return bytes(packed[start : start + int.from_bytes(packed[at:start], "little")])


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if at >= math.prod(shape):
        return (at,)
    return tuple(int(each) for each in np.unravel_index(at, shape)) if shape else ()


def _plain(element: Any) -> bool | float | str:
    """Return an element as a Python value, a short float with the few digits that identify it."""
    return _shown(float(str(element)) if isinstance(element, np.floating) else element.item())


def _shown(value: bool | float | str) -> bool | float | str:
    """Return a value as JSON can hold it."""
    if isinstance(value, str):
        return value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…"
    return value if math.isfinite(value) else str(value)
