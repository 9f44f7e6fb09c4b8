"""How much of anything a request may have. A request beyond these numbers is an attack, or a mistake.

Triton has no such caps. Each is far above what models and clients use. They keep the server's work for one
request in proportion to its tensors. `docs/differences.md` lists them.
"""

from __future__ import annotations

from typing import Final

from actors.values.errors import InvalidArgument
from actors.values.tensors import MAX_DIMS

MAX_PARAMETERS: Final = 1024
# Bytes or characters of a name: of an input, an output, a parameter, a datatype.
MAX_NAME: Final = 4096
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
