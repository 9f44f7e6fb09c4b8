"""How much of anything a request may have.

Triton has bounds for the JSON text of a body (contract, http.md sections 6.3 and 6.8), and none of the
others: a request beyond those is an attack, or a mistake. Each is far above what models and clients use. They
keep the server's work for one request in proportion to its tensors. `docs/differences/requests.md` lists
them.
"""

from __future__ import annotations

import re
from typing import Final

from actors.values.errors import InvalidArgument
from actors.values.tensors import MAX_DIMS

MAX_PARAMETERS: Final = 1024
# Bytes or characters of a name: of an input, an output, a parameter, a datatype.
MAX_NAME: Final = 4096
REPOSITORY_BODY: Final = 1024 * 1024
"""Bytes of a request that brings neither tensors nor files, such as a load with a configuration."""

REGISTER_BODY: Final = 256 * 1024
"""Bytes of a request to the register of a fleet's controller."""

# Inputs or outputs that a request may name beyond those that its
# model declares, so that the usual error names them.
_SPARE: Final = 64


def check_dims(name: str, dims: int) -> None:
    """Raise InvalidArgument where input `name` has a shape of more than `MAX_DIMS` dimensions."""
    if dims > MAX_DIMS:
        raise InvalidArgument(
            f"input '{shown(name)}' has {dims} dimensions, and a shape may have {MAX_DIMS} at most"
        )


def check_parameters(count: int) -> None:
    """Raise InvalidArgument for more than `MAX_PARAMETERS` parameters of one request, input or output."""
    if count > MAX_PARAMETERS:
        raise InvalidArgument(f"the request has {count} parameters, and may have {MAX_PARAMETERS} at most")


def check_name(name: str, kind: str) -> None:
    """Raise InvalidArgument for a name of more than `MAX_NAME` characters.

    `kind` says what it is the name of.
    """
    if len(name) > MAX_NAME:
        raise InvalidArgument(
            f"the name of {kind} has {len(name)} characters, and may have {MAX_NAME} at most: '{shown(name)}'"
        )


def check_count(count: int, declared: int, kind: str, model: str) -> None:
    """Raise InvalidArgument where a request names many more inputs or outputs (`kind`) than its model has.

    A few too many pass, because a later error names them.
    """
    if count > declared + _SPARE:
        raise InvalidArgument(
            f"the request names {count} {kind}s, and model '{model}' has {declared}: name each {kind} once"
        )


def shown(name: str) -> str:
    """Return `name` as a message shows it: the first 80 characters of a long one."""
    return name if len(name) <= 80 else f"{name[:80]}..."


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
