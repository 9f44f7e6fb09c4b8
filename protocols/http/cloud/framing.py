"""How platforms mark bodies with binary tensors: the length of the JSON text stands in the Content-Type.

The v2 API has a header of its own for that, Inference-Header-Content-Length, which platforms do not pass on.
Bodies are never compressed.

Contract: http.md sections 12 and 13.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from actors.values.errors import InvalidArgument
from protocols.http.fields import Header

_LENGTH: Final = b"inference-header-content-length"
_TYPE: Final = b"content-type"
_DROPPED: Final = frozenset((_LENGTH, b"content-encoding", b"accept-encoding"))
_INT_MAX: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"\s*([+-]?)0*([0-9]+)")


class Framing:
    """The marks of one platform's bodies."""

    def __init__(self, vendor: str) -> None:
        """`vendor` stands in the media type, such as `sagemaker-triton`."""
        self.prefix = f"application/vnd.{vendor}.binary+json;json-header-size="

    def request(self, headers: Sequence[Header]) -> list[Header]:
        """Return the headers of an inference as the v2 API reads them.

        Raises InvalidArgument for a media type that says no length.
        """
        kept = [header for header in headers if header[0] not in _DROPPED]
        size = self._size(dict(headers).get(_TYPE, b"").decode("latin-1"))
        return kept if size is None else [*kept, (_LENGTH, b"%d" % size)]

    def response(self, headers: Sequence[Header]) -> list[Header]:
        """Return the headers of an answer as the platform reads them."""
        sizes = [value for name, value in headers if name == _LENGTH]
        if not sizes:
            return list(headers)
        kept = [header for header in headers if header[0] not in (_LENGTH, _TYPE)]
        return [(_TYPE, self.prefix.encode() + sizes[0]), *kept]

    def _size(self, media_type: str) -> int | None:
        at = media_type.find(self.prefix)
        if at < 0:
            return None
        if at:
            raise InvalidArgument(
                f"expect MIME type for binary data starts with '{self.prefix}', got: {media_type}"
            )
        # Like C++'s stoi, which overlooks what stands behind the digits.
        word = media_type[len(self.prefix) :]
        number = _NUMBER.match(word)
        if number is None:
            raise InvalidArgument(f"Unable to parse inference header size, got: {word}")
        size = int(number[2]) if len(number[2]) <= 10 else _INT_MAX + 2
        size = -size if number[1] == "-" else size
        if not -_INT_MAX - 1 <= size <= _INT_MAX:
            raise InvalidArgument(
                f"Unable to parse inference header size, value is out of range, got: {word}"
            )
        return size
