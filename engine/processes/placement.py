"""On which cores the workers of instances run, by the operator's host policies.

An instance has the policy that its group names, or that of its kind and device: `cpu`, `gpu_<id>`, `model`
(contract, model_config.md section 4.9).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from actors.serving.policy.gpus.placing import seat as seated
from actors.serving.policy.gpus.visible import needs_names
from actors.values.hardware.gpus import Gpu
from actors.values.specs import InstanceSpec, ModelSpec
from engine.settings.forms import SettingsError
from engine.settings.instances import HostPolicy, parse_cores

NODES: Final = Path("/sys/devices/system/node")


def resolve(
    policies: Mapping[str, HostPolicy], available: Collection[int], nodes: Path = NODES
) -> dict[str, tuple[int, ...]]:
    """Return the cores of each policy. `available` are those that this process may use.

    Raises SettingsError for a node that this machine does not have, and if a policy asks for cores that are
    not available.
    """
    resolved: dict[str, tuple[int, ...]] = {}
    for name, policy in policies.items():
        cores = policy.cores
        if policy.numa_node is not None:
            on_node = _cores_of_node(name, policy.numa_node, nodes)
            cores = cores or tuple(core for core in on_node if core in available) or on_node
        missing = [core for core in cores if core not in available]
        if missing:
            raise SettingsError(
                f"host policy '{name}' asks for the cores {', '.join(map(str, missing))}, which this server may not use",
                hint=f"it may use {', '.join(map(str, sorted(available)))}",
            )
        resolved[name] = cores
    return resolved


def _cores_of_node(policy: str, node: int, nodes: Path) -> tuple[int, ...]:
    try:
        return parse_cores((nodes / f"node{node}" / "cpulist").read_text())
    except (OSError, ValueError):
        raise SettingsError(
            f"host policy '{policy}' asks for the NUMA node {node}, which this machine does not have, or which has no cores",
            hint="leave numa-node out, or name the cores by cpu-cores",
        ) from None


def policy_name(instance: InstanceSpec) -> str:
    """Return the name of an instance's host policy."""
    if instance.host_policy:
        return instance.host_policy
    return f"gpu_{instance.device_id}" if instance.kind == "GPU" else instance.kind.lower()


def place(spec: ModelSpec, policies: Mapping[str, tuple[int, ...]]) -> ModelSpec:
    """Return the specification with each instance on the cores of its host policy.

    An instance whose model names cores of its own (`tritium.cores`) keeps those.
    """
    if not policies:
        return spec
    instances = tuple(
        replace(each, cores=each.cores or policies.get(policy_name(each), ())) for each in spec.instances
    )
    return replace(spec, instances=instances)


def seat(spec: ModelSpec, gpus: Sequence[Gpu]) -> ModelSpec:
    """Return the specification with the instances on their GPUs, of those that the server has."""
    return replace(spec, instances=seated(spec.instances, gpus, alone=needs_names(gpus)))


def undefined_policies(specs: Sequence[ModelSpec], policies: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return a warning for each host policy that is named but not defined."""
    named = {each.host_policy: None for spec in specs for each in spec.instances if each.host_policy}
    return [
        f"host policy '{name}' has no effect: --host-policy={name},cpu-cores=... would define it"
        for name in named
        if name not in policies
    ]


# -- what hardware there is, seen without a framework

DEVICES: Final = Path("/dev")
_GPU_NODE = re.compile(r"nvidia\d+")


def gpu_nodes(devices: Path = DEVICES) -> int:
    """Return for how many NVIDIA GPUs the driver has made device nodes."""
    try:
        return sum(1 for node in devices.iterdir() if _GPU_NODE.fullmatch(node.name))
    except OSError:
        return 0
