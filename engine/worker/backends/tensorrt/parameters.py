"""What a TensorRT model's configuration asks for, as values. Imports nothing of TensorRT's.

Contract: backends.md section 7, model_config.md sections 4.9 and 4.10. Parameters are the model's own.
Settings are the backend's (`--backend-config=tensorrt,KEY=VALUE`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.backends.base import LoadError
from engine.worker.devices.streams import DEFAULT, HIGHEST, LOWEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.worker.backends.base import ModelInfo

_STRATEGY = "execution_context_allocation_strategy"
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")
_MULTI_DEVICE = ("enable_multi_device", "multi_device_gpus", "multi_device_per_rank_engines")
_PRIORITIES = {
    "PRIORITY_MAX": HIGHEST,
    "PRIORITY_MIN": LOWEST,
    "PRIORITY_DEFAULT": DEFAULT,
    1: HIGHEST,
    2: LOWEST,
}
_ON, _OFF = ("true", "on", "1"), ("false", "off", "0")


class Options:
    """What a model asks of TensorRT. Raises LoadError for a value that asks for what is not there.

    Attributes:
        strategy: the name of a member of `ExecutionContextAllocationStrategy`.
        profiles: indices of the optimisation profiles that the instance uses; the first is its preferred one.
        plugins: paths of libraries of plugins.
        version_compatible: whether a plan may bring the runtime of the version that built it.
        dla_core: the DLA core that the engine runs on, None for the GPU itself.
        graphs: whether executions are captured as CUDA graphs, of the sizes in `graph_specs` if it has any.
        spins: whether a thread that waits for the GPU keeps its core busy.
        copies_apart: whether outputs are copied on a stream of their own.
        priority: of the streams.

    """

    def __init__(self, model: ModelInfo) -> None:
        self.strategy = model.parameters.get(_STRATEGY, _STRATEGIES[0])
        if self.strategy not in _STRATEGIES:
            raise LoadError(
                f"Invalid value for '{_STRATEGY}': '{self.strategy}' for model instance"
                f" '{model.instance_name}'. Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'."
            )
        for key in _MULTI_DEVICE:
            if model.parameters.get(key, "false").lower() not in _OFF:
                raise LoadError(
                    f"unable to load model '{model.name}', parameter '{key}' is not supported: an engine runs"
                    " on one GPU here"
                )
        policy = model.settings.get("execution-policy", _POLICIES[0])
        if policy not in _POLICIES:
            raise LoadError(
                f"unable to load model '{model.name}', setting 'execution-policy' is '{policy}' and must be"
                f" one of {', '.join(_POLICIES)}"
            )
        _boolean(model.settings, "coalesce-request-input")
        self.version_compatible = _boolean(model.settings, "version-compatible")
        self.plugins = [path for path in model.settings.get("plugins", "").split(";") if path]
        group = _group(model)
        self.profiles = [int(each) for each in group.get("profile", ())] or [0]
        cores = [int(each.get("device_id", 0)) for each in group.get("secondary_devices", ())]
        if len(cores) > 1:
            raise LoadError(
                f"unable to load model '{model.name}', instance '{model.instance_name}' names"
                f" {len(cores)} secondary devices, and an engine runs on one DLA core"
            )
        self.dla_core = cores[0] if cores else None
        optimization: Mapping[str, Any] = model.config.get("optimization", {})
        cuda: Mapping[str, Any] = optimization.get("cuda", {})
        self.graphs = bool(cuda.get("graphs", False))
        self.graph_specs: list[Mapping[str, Any]] = list(cuda.get("graph_spec", ()))
        self.spins = bool(cuda.get("busy_wait_events", False))
        self.copies_apart = bool(cuda.get("output_copy_stream", False))
        self.priority = _PRIORITIES.get(optimization.get("priority", 0), DEFAULT)


def _group(model: ModelInfo) -> Mapping[str, Any]:
    """Return the instance group of this instance, whose name is the group's and a number."""
    groups: list[Mapping[str, Any]] = list(model.config.get("instance_group", ()))
    name = model.instance_name.rpartition("_")[0]
    return next((group for group in groups if group.get("name") == name), {})


def _boolean(settings: Mapping[str, str], key: str) -> bool:
    text = settings.get(key, "false")
    if text.lower() in _ON:
        return True
    if text.lower() in _OFF:
        return False
    raise LoadError(f"setting '{key}' of backend 'tensorrt': failed to convert '{text}' to boolean")


def artifact(model: ModelInfo, capability: str, default: str) -> str:
    """Return the name of the plan for a GPU of that compute capability."""
    by_capability: Mapping[str, str] = model.config.get("cc_model_filenames", {})
    return by_capability.get(capability) or model.artifact or default
