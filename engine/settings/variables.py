"""Which variables of the environment are settings, which are Kubernetes' own, and which nothing here knows.

For each Service of a namespace, Kubernetes gives every container variables that begin with the Service's name
in capitals. So a Service named `tritium`, or `tritium-` and anything, makes variables that look like
settings: `TRITIUM_SERVICE_HOST`, `TRITIUM_PORT=tcp://10.0.0.7:8000`, and for `tritium-metrics` even
`TRITIUM_METRICS_PORT=tcp://10.0.0.8:8002`, the name of a flag's variable. The last one is told from a setting
by its value: a port is a number.

Reference: "Discovering services, environment variables" in Kubernetes' documentation of Services.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "TRITIUM_"

_OF_A_SERVICE: Final = re.compile(
    r"TRITIUM_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_[A-Z0-9_]+|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_PORT_OF_A_SERVICE: Final = re.compile(r"TRITIUM_(?:[A-Z0-9_]+_)?PORT")
_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://.*", re.IGNORECASE)


def is_kubernetes(name: str, value: str) -> bool:
    """Whether a variable that begins with `TRITIUM_` is one that Kubernetes made for a Service."""
    if _OF_A_SERVICE.fullmatch(name):
        return True
    return bool(_PORT_OF_A_SERVICE.fullmatch(name) and _ADDRESS.fullmatch(value))


def settings_among(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be settings: those that begin with `TRITIUM_` and are not Kubernetes'."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX) and not is_kubernetes(name, value)
    }


def unknown_variable(name: str, known: Mapping[str, object]) -> str:
    """Return the warning about a variable that is no setting, with the nearest name if one is near."""
    nearest = get_close_matches(name, known, n=1)
    hint = f": did you mean {nearest[0]}?" if nearest else ""
    return f"the environment variable {name} is no setting of Tritium and has no effect{hint}"
