"""Headers that become parameters, beside the parameters that a request brings itself.

A proxy in front of the server puts into headers what it knows of the client, such as `x-user`. So a request's own parameter
never takes the place of a forwarded header, in whichever case it spells the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.messages.requests import Parameter


def with_forwarded(
    parameters: Mapping[str, Parameter] | None, forwarded: Mapping[str, str]
) -> Mapping[str, Parameter]:
    """Return `parameters` and `forwarded` together. Names of headers know no case, so equal ones but for it are one name."""
    if not parameters:
        return forwarded
    taken = {name.lower() for name in forwarded}
    own = {name: value for name, value in parameters.items() if name.lower() not in taken}
    return {**own, **forwarded}
