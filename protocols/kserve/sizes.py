"""How long the JSON text of a body is, and may be (contract, http.md sections 6.3 and 6.8)."""

from __future__ import annotations

import re
from typing import Final

from actors.values.errors import InvalidArgument

RAISE_LIMIT: Final = "Use --http-max-input-size to increase the limit."
_SIGNED: Final = re.compile(rb"\s*[+-]?[0-9]+\s*")


def check_json_size(size: int, limit: int) -> None:
    """Raise InvalidArgument for a JSON text of more than `limit` bytes."""
    if size > limit:
        raise InvalidArgument(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. {RAISE_LIMIT}"
        )


def parse_json_size(value: bytes, body_size: int) -> int:
    """Return the Inference-Header-Content-Length header as a number within the body."""
    size = int(value) if value.isdigit() and len(value) < 11 else _signed(value)
    if not 0 <= size <= body_size:
        raise InvalidArgument(
            f"inference header size should be in range (0, {body_size}), got: {value.decode('latin-1')}"
        )
    return size


def _signed(value: bytes) -> int:
    shown = value.decode("latin-1")
    if _SIGNED.fullmatch(value) is None:
        raise InvalidArgument(f"Unable to parse Inference-Header-Content-Length, got: {shown}")
    size = int(value) if len(value) < 100 else 2**31
    if not -(2**31) <= size < 2**31:
        raise InvalidArgument(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {shown}"
        )
    return size
