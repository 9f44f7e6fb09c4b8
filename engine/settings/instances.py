"""What the operator says about instances: how much there is of each resource, and the cores that workers use.

A host policy (contract, repository.md section 10) is a name with settings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.settings.words import SettingsError

_MOST_CORES: Final = 4096
_COUNT_LIMIT: Final = 2**31 - 1  # Triton reads these into C ints


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """What `--host-policy` says under one name. Cores go before those of the node."""

    numa_node: int | None = None
    cores: tuple[int, ...] = ()


def read_resources(values: Sequence[str]) -> dict[tuple[str, int | None], int]:
    """Return the counts of `--rate-limit-resource` by name and device. Raises SettingsError.

    A device of None stands for every device.
    """
    counts: dict[tuple[str, int | None], int] = {}
    for value in values:
        form = re.fullmatch(r"([^:]+):([0-9]{1,10})(?::([0-9]{1,10}))?", value)
        if form is None:
            raise SettingsError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'."
                f" Got {value}"
            )
        count, device = int(form[2]), None if form[3] is None else int(form[3])
        if max(count, device or 0) > _COUNT_LIMIT:
            raise SettingsError(
                f"Provided option value is out of bound. Got {value}",
                hint=f"--rate-limit-resource takes counts and devices up to {_COUNT_LIMIT}",
            )
        counts[form[1], device] = count
    return counts


def read_host_policies(values: Sequence[str]) -> dict[str, HostPolicy]:
    """Return the policies of `--host-policy` by name. Raises SettingsError.

    If a setting is given twice, the last value counts.
    """
    policies: dict[str, HostPolicy] = {}
    for value in values:
        form = re.fullmatch(r"([^,=]+),([^,=]+)=(.+)", value)
        if form is None:
            raise SettingsError(
                f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {value}"
            )
        name, setting, what = form.groups()
        policy = policies.get(name, HostPolicy())
        if setting == "cpu-cores":
            policies[name] = replace(policy, cores=_cores(what))
        elif setting == "numa-node":
            policies[name] = replace(policy, numa_node=_node(what))
        else:
            raise SettingsError(
                f"Unsupported host policy setting '{setting}' is specified, supported settings are 'numa-node', 'cpu-cores'",
                hint=f"--host-policy was given '{value}'",
            )
    return policies


def _node(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise SettingsError(
            f"Invalid option value. Got {text}",
            hint="--host-policy's numa-node takes a node's number, such as 0",
        )
    return int(text)


def _cores(text: str) -> tuple[int, ...]:
    try:
        return parse_cores(text)
    except ValueError:
        raise SettingsError(
            "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'."
            f" Got {text}",
            hint=f"several ranges and cores may be given, such as 0-3,8, below {_MOST_CORES}",
        ) from None


def parse_cores(text: str) -> tuple[int, ...]:
    """Return the cores of a list such as `0-3,8`, ascending. Raises ValueError for what is none."""
    cores: set[int] = set()
    for part in text.split(","):
        form = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if form is None:
            raise ValueError(f"{part!r} is no core, and no range of cores")
        first, last = int(form[1]), int(form[2] or form[1])
        if not first <= last < _MOST_CORES:
            raise ValueError(f"{part!r} is no ascending range below {_MOST_CORES}")
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))
