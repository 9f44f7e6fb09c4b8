"""The number of a model's version, as clients write it."""

from __future__ import annotations

import re
from typing import Final

from actors.values.errors import InvalidArgument

_VERSION_LIMIT: Final = 2**63
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,4000}")
_SEVERAL: Final = re.compile(r"[1-9][0-9]{0,17}(,[1-9][0-9]{0,17}){0,99}")

LOADED_VERSIONS: Final = "tritium.versions"
"""The parameter of a load that names the versions to serve, whatever the version policy says."""


def parse_version(text: str) -> int:
    """Return a version number: decimal ASCII digits and perhaps a sign.

    Raises InvalidArgument with the contract's texts.
    """
    if _NUMBER.fullmatch(text) is None:
        raise _unparsable(text, "stoll")
    number = int(text)
    if not -_VERSION_LIMIT <= number < _VERSION_LIMIT:
        raise _unparsable(text, "stoll")
    if number <= 0:
        raise InvalidArgument(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number


def _unparsable(text: str, detail: str) -> InvalidArgument:
    return InvalidArgument(
        f"failed to get model version from specified version string '{text}' (details: {detail}), "
        "version should be an integral value > 0"
    )


def read_versions(value: object) -> tuple[int, ...]:
    """Return the versions that a load's parameter names, `3` or `2,3`, sorted. Raises InvalidArgument."""
    if isinstance(value, str) and _SEVERAL.fullmatch(value):
        return tuple(sorted({int(each) for each in value.split(",")}))
    shown = repr(value)[:80]
    raise InvalidArgument(
        f"load parameter '{LOADED_VERSIONS}' is {shown}:"
        " it is text with the versions to serve, such as '3' or '2,3'"
    )
