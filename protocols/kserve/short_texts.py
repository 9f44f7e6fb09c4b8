"""JSON texts that are short enough to be read in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from protocols.kserve.documents import parse

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

# Bytes of a text that is parsed in one piece. Parsing it takes less
# than five milliseconds even where it is an attack.
_SHORT: Final = 32 * 1024
# The same for a text that has a fault, or something that the fast
# parser does not know. Both take much longer.
_SHORT_AND_UNUSUAL: Final = 4 * 1024


class TooLong(Exception):  # not an error: the caller takes another way
    """A text must be read in slices, by a `LongText`."""


def read_short(text: Buffer) -> Any:
    """Return the value of a short JSON text, as `documents.parse` does.

    Raises TooLong, and what `parse` raises.
    """
    if len(text) <= _SHORT_AND_UNUSUAL:
        return parse(text)
    if len(text) > _SHORT:
        raise TooLong
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise TooLong from None
