"""Headers that become parameters, beside a request's own parameters.

A proxy in front of the server puts into headers what it knows of the client, such as `x-user`. So a request's
own parameter never takes the place of a forwarded header, in whichever case it spells the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from actors.values.errors import InvalidArgument
from actors.values.requests import Parameter

_RESERVED_HEADERS: Final = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)


def with_forwarded(
    parameters: Mapping[str, Parameter] | None, forwarded: Mapping[str, str]
) -> Mapping[str, Parameter]:
    """Return `parameters` and `forwarded` together.

    Names of headers know no case, so names that differ only in case are one name.
    """
    if not parameters:
        return forwarded
    taken = {name.lower() for name in forwarded}
    own = {name: value for name, value in parameters.items() if name.lower() not in taken}
    return {**own, **forwarded}


def forward_headers(
    headers: Sequence[tuple[bytes, bytes]], pattern: re.Pattern[str], *, credentials: bool = True
) -> dict[str, str] | None:
    """Return the headers that `pattern` matches anywhere in their names, as parameters; None where none does.

    Without `credentials`, `Authorization` is left out: what this server judges by is no business of models.
    Raises InvalidArgument for a match with a name that Triton reserves.
    """
    forwarded: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        if pattern.search(name) is None or (not credentials and name.lower() == "authorization"):
            continue
        if name in _RESERVED_HEADERS or name.startswith("triton_"):
            raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        forwarded[name] = raw_value.decode("latin-1")
    return forwarded or None
