"""The number of a model's version, as clients write it."""

from __future__ import annotations

import re
from typing import Final

from actors.values.errors import InvalidArgument

_VERSION_LIMIT: Final = 2**63
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,4000}")


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
