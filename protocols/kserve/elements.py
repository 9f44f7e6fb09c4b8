"""Tensor elements between JSON arrays and the protocol's binary layout.

Going in, types are as strict as Triton's: an integer tensor takes integers, BOOL takes booleans, a float
tensor takes any number, and `true` is no number. Nesting means nothing; only the count does. Integers are
narrowed without a range check. Going out, arrays are flat and FP32 is widened to double (contract, http.md
sections 7 and 8).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, TritiumError
from actors.values.tensors import Buffer, element_count, unpack_bytes
from protocols.kserve.documents import MAX_DEPTH, dump, encode_text, not_a
from protocols.kserve.long_texts import LongArray

if TYPE_CHECKING:
    from actors.values.strings import Places
    from actors.values.tensors import Array

INT64_MAX: Final = 2**63 - 1

_NUMBERS: Final = frozenset((int, float))
# The types that a tensor's elements may have in JSON, Triton's name for them, and an element's `struct` code.
_RULES: Final[dict[DataType, tuple[frozenset[type], str, str]]] = {
    DataType.BOOL: (frozenset((bool,)), "boolean", ""),
    DataType.INT8: (frozenset((int,)), "signed-integer", "b"),
    DataType.INT16: (frozenset((int,)), "signed-integer", "h"),
    DataType.INT32: (frozenset((int,)), "signed-integer", "i"),
    DataType.INT64: (frozenset((int,)), "signed-integer", "q"),
    DataType.UINT8: (frozenset((int,)), "unsigned-integer", "B"),
    DataType.UINT16: (frozenset((int,)), "unsigned-integer", "H"),
    DataType.UINT32: (frozenset((int,)), "unsigned-integer", "I"),
    DataType.UINT64: (frozenset((int,)), "unsigned-integer", "Q"),
    DataType.FP32: (_NUMBERS, "number", "f"),
    DataType.FP64: (_NUMBERS, "number", "d"),
    DataType.BYTES: (frozenset((str,)), "string", ""),
}


def pack(data: list[Any] | LongArray, name: str, datatype: DataType, count: int, limit: int) -> Buffer:
    """Return the `count` elements of the JSON array `data` in binary layout, for input `name`.

    A `LongArray` must have been given to the `Packing` of the same input. Raises the errors of contract
    http.md section 7: InvalidArgument for datatypes that JSON can't carry, nesting too deep and data over
    `limit` bytes, Internal for wrong types and counts.
    """
    rule = _RULES.get(datatype)
    if rule is None:
        raise InvalidArgument(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    if datatype is not DataType.BYTES:
        nbytes = count * datatype.size
        if nbytes > INT64_MAX:
            raise InvalidArgument(
                f"byte size overflow for input '{name}': element count ({count}) * data type size ({datatype.size}) "
                f"exceeds maximum allowed size ({INT64_MAX})"
            )
        _check_size(name, nbytes, limit)
    if isinstance(data, LongArray):
        assert isinstance(data.taker, Packing), "whoever reads it gives it to a Packing"
        return data.taker.finish(count)
    elements, kinds = _flatten(data, datatype)
    if len(elements) != count or not kinds <= rule[0]:
        raise _misfit(elements, kinds, datatype, count)
    packed = _packed(elements, datatype)
    if datatype is DataType.BYTES:
        _check_size(name, len(packed), limit)
    return packed


def _packed(elements: list[Any], datatype: DataType) -> Buffer:
    """Return elements of the right types in binary layout.

    Raises Internal for values that no integer holds.
    """
    if datatype is DataType.BYTES:
        return _pack_strings(elements)
    if datatype is DataType.BOOL:
        return bytes(elements)
    _, kind, code = _RULES[datatype]
    try:
        return struct.pack(f"<{len(elements)}{code}", *elements)
    except (struct.error, OverflowError):  # out of the narrow type's range
        return _narrow(elements, datatype, kind)


def can_pack(datatype: DataType) -> bool:
    """Whether JSON can carry elements of `datatype`."""
    return datatype in _RULES


class Packing:
    """Takes the elements of a long array into binary layout, piece by piece: a `long_texts.Taker`.

    It makes the same of them as `pack` makes of a short array. `count` is how many there must be, None for
    any number. More than `limit` bytes are not kept. `text_size` bounds what the text can hold, in bytes.
    """

    def __init__(self, name: str, datatype: DataType, count: int | None, limit: int, text_size: int) -> None:
        self.datatype = datatype
        self.count = count
        self.seen = 0
        self.packs_strings = datatype is DataType.BYTES
        self._name = name
        self._limit = limit
        self._size = 0
        # Room for all that may come, made once. Memory that is not
        # written to costs nothing; growing costs copies.
        if datatype is DataType.BYTES:
            room = min(text_size * 4 // 3, limit)
        else:
            room = (text_size if count is None else min(count, text_size)) * datatype.size
        self._packed: memoryview = np.empty(room + 8, np.uint8).data
        # The first error, and how many elements come before it. `finish` raises
        # it, because errors elsewhere in the request come first.
        self._wrong: TritiumError | None = None
        self._sound = INT64_MAX

    def take(self, elements: list[Any], kinds: set[type]) -> None:
        """See `long_texts.Taker`."""
        before = self.seen
        self.seen += len(elements)
        if self._wrong is not None or not elements:
            return
        allowed = _RULES[self.datatype][0]
        if not kinds <= allowed:
            kinds = set(map(type, elements))
        if not kinds <= allowed or (self.count is not None and self.seen > self.count):
            left = len(elements) if self.count is None else self.count - before
            self._sound = before + _first_bad(elements, kinds - allowed)
            self._give_up(_misfit(elements, kinds, self.datatype, left))
            return
        try:
            self._add(_packed(elements, self.datatype))
        except Internal as error:
            self._give_up(Internal(error.message))

    def take_string(self, pieces: Iterator[bytes]) -> Generator[None, None, None]:
        """See `long_texts.Taker`."""
        if self._wrong is not None or self.datatype is not DataType.BYTES or self.seen == self.count:
            self.take([""], {str})
            yield
            return
        self.seen += 1
        place = self._size
        self._add(bytes(4))
        for piece in pieces:
            if not self._add(piece):
                return
            yield
        self._packed[place : place + 4] = (self._size - place - 4).to_bytes(4, "little")

    def take_packed(self, packed: Buffer, count: int) -> bool:
        """See `long_texts.Taker`."""
        surplus = self.count is not None and self.seen + count > self.count
        if surplus or self._wrong is not None:
            return False
        self.seen += count
        self._add(packed)
        return True

    def too_deep(self) -> InvalidArgument:
        """See `long_texts.Taker`."""
        return _too_deep(self.datatype)

    def finish(self, count: int) -> Buffer:
        """Return the elements, of which there must be `count`. Raises as `pack` does."""
        if self._wrong is not None and (self.datatype is DataType.BYTES or self._sound < count):
            raise self._wrong
        if self.seen != count:
            raise _miscount(self.datatype, surplus=self.seen > count)
        if self._wrong is not None:
            raise self._wrong
        return self._packed[: self._size]

    def _add(self, packed: Buffer) -> bool:
        end = self._size + len(packed)
        if end > self._limit:
            self._give_up(_too_big(self._name, end, self._limit))
            return False
        self._packed[self._size : end] = packed
        self._size = end
        return True

    def _give_up(self, error: TritiumError) -> None:
        self._wrong = error
        self._packed = memoryview(b"")


def _check_size(name: str, nbytes: int, limit: int) -> None:
    if nbytes > limit:
        raise _too_big(name, nbytes, limit)


def _too_big(name: str, nbytes: int, limit: int) -> InvalidArgument:
    return InvalidArgument(
        f"JSON input '{name}' has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of "
        f"{limit} bytes. Use --http-max-input-size to increase the limit."
    )


def _flatten(data: list[Any], datatype: DataType) -> tuple[list[Any], set[type]]:
    """Return the scalars of `data` in order, and the set of their types."""
    level = data
    for _ in range(1, MAX_DEPTH):
        kinds = set(map(type, level))
        if list not in kinds:
            return level, kinds
        if len(kinds) > 1:
            level = _flatten_ragged(data, datatype)
            return level, set(map(type, level))
        level = list(chain.from_iterable(level))
    raise _too_deep(datatype)


def _flatten_ragged(data: list[Any], datatype: DataType) -> list[Any]:
    flat: list[Any] = []
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                if len(stack) + 1 >= MAX_DEPTH:
                    raise _too_deep(datatype)
                stack.append(iter(element))
                break
            flat.append(element)
        else:
            stack.pop()
    return flat


def _too_deep(datatype: DataType) -> InvalidArgument:
    prefix = "" if datatype is DataType.BYTES else "Unable to parse 'data': "
    return InvalidArgument(f"{prefix}JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


def _misfit(elements: list[Any], kinds: set[type], datatype: DataType, count: int) -> Internal:
    """Return the error for the first thing wrong, reading from the left."""
    allowed, kind, _ = _RULES[datatype]
    first_bad = _first_bad(elements, kinds - allowed)
    if datatype is DataType.BYTES:
        if first_bad < len(elements):
            return Internal(f"Unable to parse JSON bytes array: {not_a(kind)}")
    elif first_bad < min(count, len(elements)):
        return Internal(f"Unable to parse 'data': {_not_a(kind)}")
    return _miscount(datatype, surplus=len(elements) > count)


def _first_bad(elements: list[Any], bad: set[type]) -> int:
    """Return where the first element of a `bad` type is; behind the last where there is none."""
    return next((place for place, element in enumerate(elements) if type(element) in bad), len(elements))


def _miscount(datatype: DataType, *, surplus: bool) -> Internal:
    if not surplus:
        return Internal("Failed to parse 'data' field: shape does not match true shape")
    shape = "shape" if datatype is DataType.BYTES else "Shape"
    return Internal(f"Unable to parse 'data': {shape} does not match true shape of 'data' field")


def _not_a(kind: str) -> str:
    return "attempt to access JSON non-number as double" if kind == "number" else not_a(kind)


def _narrow(elements: list[Any], datatype: DataType, kind: str) -> Buffer:
    """Return numbers, some of which are out of the datatype's range. Those become wrapped, or infinite."""
    if kind == "number":
        with np.errstate(over="ignore"):
            return np.array(elements, dtype=np.float64).astype(datatype.numpy).view(np.uint8).data
    widest = np.uint64 if kind == "unsigned-integer" else np.int64
    try:
        return np.array(elements, dtype=widest).astype(datatype.numpy).view(np.uint8).data
    except OverflowError:
        raise Internal(f"Unable to parse 'data': {not_a(kind)}") from None


def _pack_strings(elements: list[str]) -> bytes:
    try:
        encoded = list(map(str.encode, elements))
    except UnicodeEncodeError:
        encoded = list(map(encode_text, elements))
    if len(encoded) == 1:
        return len(encoded[0]).to_bytes(4, "little") + encoded[0]
    lengths = struct.pack(f"<{len(encoded)}I", *map(len, encoded))
    return b"".join(chain.from_iterable(zip(_fours(lengths), encoded, strict=True)))


def _fours(lengths: bytes) -> list[bytes]:
    return [four for (four,) in struct.iter_unpack("4s", lengths)]


NO_JSON: Final = "sending {} data via JSON is not supported. Please use the binary data format for output"
WRONG_SHAPE: Final = "output tensor shape does not match size of output for"


def render(name: str, datatype: DataType, shape: Sequence[int], data: Buffer) -> bytes:
    """Return the elements of an output tensor as the text of a flat JSON array.

    Raises InvalidArgument for datatypes that JSON can't carry and Internal where data and shape disagree.
    """
    if datatype is DataType.BYTES:
        try:
            return render_texts(unpack_bytes(data, name, element_count(shape)))
        except InvalidArgument:
            raise Internal(f"{WRONG_SHAPE} '{name}'") from None
    if datatype is DataType.FP16 or datatype is DataType.BF16:
        raise InvalidArgument(NO_JSON.format(datatype))
    if element_count(shape) * datatype.size != len(data):
        raise Internal(f"Failed to write 'data' field: {WRONG_SHAPE} '{name}'")
    return render_numbers(np.frombuffer(data, dtype=datatype.numpy), datatype)


def render_numbers(elements: Array, datatype: DataType) -> bytes:
    """Return numbers or booleans as the text of a JSON array."""
    if datatype is DataType.FP32:
        elements = elements.astype(np.float64)
    elif not elements.flags.aligned:
        elements = elements.copy()
    written = dump(elements)
    if b"null" in written:  # `orjson` writes numbers that are not finite so
        return json.dumps(elements.tolist(), separators=(",", ":")).encode()
    return written


def render_texts(elements: Sequence[bytes]) -> bytes:
    """Return strings as the text of a JSON array. Bytes that are not UTF-8 stay as they are."""
    try:
        return dump([element.decode() for element in elements])
    except UnicodeDecodeError:
        strings = [element.decode("utf-8", "surrogateescape") for element in elements]
        written = json.dumps(strings, ensure_ascii=False, separators=(",", ":"))
        return written.encode("utf-8", "surrogateescape")


# In place of an element's length stand these, until all others are escaped: the marks `","`.
_MARK, _COMMA_MARK = 1, 2
_UNMARKED: Final = bytes.maketrans(b"\1\2", b'",')
_ESCAPED: Final = ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))


def render_packed(packed: Buffer, headers: Places) -> bytes | None:
    """Return packed strings, whose lengths stand at `headers`, as `render_texts` does, but without brackets.

    There is at least one, and none of more than 64 KiB. None where they hold rarer control characters.
    """
    letters = np.frombuffer(packed, np.uint8).copy()
    letters[headers] = _MARK
    letters[headers + 1] = _COMMA_MARK
    letters[headers + 2] = _MARK
    controls = np.count_nonzero(letters < 0x20) - 4 * len(headers)
    text = letters.tobytes()
    if controls and controls != sum(map(text.count, (b"\n", b"\r", b"\t"))):
        return None
    for plain, escaped in _ESCAPED:
        if plain in text:
            text = text.replace(plain, escaped)
    return text.translate(_UNMARKED, b"\0")[2:] + b'"'
