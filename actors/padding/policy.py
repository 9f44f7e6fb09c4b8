"""How padding is written in a configuration, and how much of it a batch is. Pure.

    tritium.pad_to       INPUT_IDS:1=64,128,256; MASK:1=64,128,256    an input's dimension and its buckets
    tritium.pad_value    INPUT_IDS=50256                              what an input is padded with, if not 0
    tritium.pad_outputs  LOGITS:1=INPUT_IDS:1                         an output's dimension that is cut back

A `*` in place of the last bucket lets longer requests run in their own size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from actors.values.datatypes import DataType
from actors.values.padding import Buckets, CutBack, Fill, Padded
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec
from actors.values.tensors import element_count

LARGEST_BUCKET: Final = 2**31 - 1
_DIMENSION: Final = re.compile(r"(.+):([0-9]{1,2})")
_NUMBER: Final = re.compile(r"[0-9]{1,10}")

BucketsOf = Mapping[str, Mapping[int, Buckets]]
"""Buckets by input and dimension."""

CutsOf = Mapping[str, tuple[CutBack, ...]]
"""What is cut of each output."""


def read_buckets(text: str) -> BucketsOf:
    """Return what `tritium.pad_to` says. Raises ValueError, whose text says what is to be written."""
    found: dict[str, dict[int, Buckets]] = {}
    for left, right in _entries(text, "INPUT_IDS:1=64,128,256"):
        name, axis = _dimension(left, "INPUT_IDS:1=64,128,256")
        if axis in found.setdefault(name, {}):
            raise ValueError(f"give '{left}' once")
        found[name][axis] = _buckets(left, right)
    return found


def _buckets(left: str, text: str) -> Buckets:
    words = [word.strip() for word in text.split(",")]
    longer = words[-1] == "*"
    if longer:
        words.pop()
    sizes = [int(word) if _NUMBER.fullmatch(word) else 0 for word in words]
    if not sizes or min(sizes) < 1 or max(sizes) > LARGEST_BUCKET or sizes != sorted(set(sizes)):
        raise ValueError(
            f"give '{left}' sizes from 1 to {LARGEST_BUCKET} that grow, such as '{left}=64,128,256'; a '*'"
            " behind"
            " them lets longer requests run in their own size"
        )
    return Buckets(tuple(sizes), longer)


def read_values(text: str) -> Mapping[str, Fill]:
    """Return what `tritium.pad_value` says, by input. Raises ValueError."""
    found: dict[str, Fill] = {}
    for name, word in _entries(text, "INPUT_IDS=50256"):
        if name in found:
            raise ValueError(f"give '{name}' once")
        found[name] = _value(name, word)
    return found


def _value(name: str, word: str) -> Fill:
    if word in ("true", "false"):
        return int(word == "true")
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"give '{name}' a number, such as '{name}=0', or true or false") from None


def read_cuts(text: str) -> CutsOf:
    """Return what `tritium.pad_outputs` says, by output. Raises ValueError."""
    example = "LOGITS:1=INPUT_IDS:1"
    found: dict[str, tuple[CutBack, ...]] = {}
    for left, right in _entries(text, example):
        name, axis = _dimension(left, example)
        if any(cut.axis == axis for cut in found.get(name, ())):
            raise ValueError(f"give '{left}' once")
        found[name] = (*found.get(name, ()), CutBack(axis, *_dimension(right, example)))
    return found


def _entries(text: str, example: str) -> Iterator[tuple[str, str]]:
    for entry in text.split(";"):
        left, equals, right = (part.strip() for part in entry.rpartition("="))
        if not left or not equals or not right:
            raise ValueError(f"write '{example}', with ';' between several")
        yield left, right


def _dimension(text: str, example: str) -> tuple[str, int]:
    match = _DIMENSION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is to name a tensor and its dimension, as in '{example}'")
    return match[1], int(match[2])


def fits(value: Fill, datatype: DataType) -> bool:
    """Whether a tensor of `datatype` can hold `value` as an element."""
    dtype = datatype.numpy
    if datatype is DataType.BOOL:
        return value in (0, 1)
    if dtype.kind in "iu" and datatype is not DataType.BF16:
        bits = 8 * datatype.size
        low = -(2 ** (bits - 1)) if dtype.kind == "i" else 0
        return isinstance(value, int) and low <= value < low + 2**bits
    largest = {2: 65504.0, 4: 3.4028234663852886e38}.get(datatype.size, math.inf)
    if datatype is DataType.BF16:
        largest = 3.3895313892515355e38
    return not math.isfinite(value) or abs(value) <= largest


@dataclass(slots=True)
class PaddingCounts:
    """What models that pad have been given, in bytes: the clients' own, and what was added."""

    own: int = 0
    added: int = 0


class PaddingTally:
    """Counts what is added to the batches of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        self.counts = PaddingCounts()
        self._padded: Mapping[str, Padded] = {
            declared.name: declared.padded for declared in spec.inputs if declared.padded is not None
        }

    def count(self, requests: Iterable[InferRequest]) -> None:
        """Count the padded inputs of a batch. An empty string that is added has 4 bytes, as it is packed."""
        for request in requests:
            if request.padding:
                continue
            for tensor in request.inputs:
                padded = self._padded.get(tensor.name)
                if padded is not None:
                    added = element_count(padded.shape(tensor.shape)) - element_count(tensor.shape)
                    self.counts.own += tensor.nbytes
                    self.counts.added += added * (tensor.datatype.size or 4)
