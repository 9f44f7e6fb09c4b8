"""What the operator says about instances: how much there is of each resource, and the cores that workers use.

A host policy (contract, repository.md section 10) is a name with settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from engine.settings.forms import INT_MAX, SettingsError, misshapen, out_of_bound
from engine.settings.option import Given

_MOST_CORES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """What `--host-policy` says under one name. Cores go before those of the node."""

    numa_node: int | None = None
    cores: tuple[int, ...] = ()


def read_resources(given: Given, flag: str) -> Mapping[tuple[str, int | None], int]:
    """Return the counts of `--rate-limit-resource` by name and device. Raises SettingsError.

    A device of None stands for every device.
    """
    counts: dict[tuple[str, int | None], int] = {}
    for word in given.all(flag):
        form = re.fullmatch(r"([^:]+):([0-9]{1,10})(?::([0-9]{1,10}))?", word)
        if form is None:
            raise misshapen(flag, "<resource_name>:<count>:<device>' or '<resource_name>:<count>", word)
        count, device = int(form[2]), None if form[3] is None else int(form[3])
        if max(count, device or 0) > INT_MAX:
            raise out_of_bound(word, f"--{flag} takes counts and devices up to {INT_MAX}")
        counts[form[1], device] = count
    if counts and given.word("rate-limit").lower() == "off":
        given.warn_of(flag, "only --rate-limit=execution_count limits executions")
    return counts


def read_gpu_limits(given: Given, flag: str) -> Mapping[int, float]:
    """Return the shares of `--model-load-gpu-limit` by GPU. Raises SettingsError."""
    limits: dict[int, float] = {}
    for word in given.all(flag):
        form = re.fullmatch(r"([0-9]{1,10}):(0?\.[0-9]+|[01](?:\.0*)?)", word)
        if form is None:
            raise misshapen(flag, "<device id>:<fraction>", word)
        limits[int(form[1])] = float(form[2])
    return limits


def read_host_policies(given: Given, flag: str) -> Mapping[str, HostPolicy]:
    """Return the policies of `--host-policy` by name. Raises SettingsError.

    If a setting is given twice, the last value counts.
    """
    policies: dict[str, HostPolicy] = {}
    for word in given.all(flag):
        form = re.fullmatch(r"([^,=]+),([^,=]+)=(.+)", word)
        if form is None:
            raise misshapen(flag, "<policy name>,<setting>=<value>", word)
        name, setting, what = form.groups()
        policy = policies.get(name, HostPolicy())
        if setting == "cpu-cores":
            policies[name] = replace(policy, cores=_cores(what))
        elif setting == "numa-node":
            policies[name] = replace(policy, numa_node=_node(what))
        else:
            raise SettingsError(
                f"Unsupported host policy setting '{setting}' is specified, supported settings are 'numa-node', 'cpu-cores'",
                hint=f"--{flag} was given '{word}'",
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
