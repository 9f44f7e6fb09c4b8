"""What the parameters of an OpenVINO model ask for, as values. Imports nothing of OpenVINO's.

Contract: backends.md section 4. A value is lower-cased before it is compared, and shown like that in errors,
as Triton does. Each parameter may also be a setting of the backend (`--backend-config=openvino,KEY=VALUE`).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.worker.backends.base import ModelInfo

    Properties = Mapping[str, "str | int | bool"]

_HINTS = ("latency", "throughput", "cumulative_throughput")
_PRECISIONS = ("f32", "f16", "bf16")
_ON = ("yes", "true", "1", "on")
_OFF = ("no", "false", "0", "off", "")
_COMPOSED = ("AUTO", "MULTI", "HETERO", "BATCH")


class Options:
    """What a model asks of OpenVINO. Raises LoadError for a parameter that asks for what is not there.

    Attributes:
        target: where the model is compiled for: `CPU`, `GPU.1`, `AUTO:GPU,CPU`.
        properties: what is given to the device with the model.
        cpu: what is told to the CPU device beforehand, where it is one of several that may run the model.
        ineffective: what was asked for and means nothing to the target, a text each.
        extension: path of a library of operators, empty for none.
        cache: folder of compiled models, empty for none.
        fixed_batch: whether the model is made for batches of exactly `max_batch_size` rows.
        pads: whether a smaller batch is filled up to that many.
        reshapes: whether the inputs take the configuration's dims.

    """

    def __init__(self, model: ModelInfo) -> None:
        self.target = _text(model, "TARGET_DEVICE").upper() or "CPU"
        self.ineffective: list[str] = []
        self.properties, self.cpu = self._properties(model)
        self.extension = _extension(model)
        self.cache = _cache(model)
        self.fixed_batch = _switch(model, "SKIP_OV_DYNAMIC_BATCHSIZE") and model.max_batch_size > 0
        self.pads = _switch(model, "ENABLE_BATCH_PADDING")
        self.reshapes = _switch(model, "RESHAPE_IO_LAYERS")

    @property
    def devices(self) -> list[str]:
        """The devices that the target names, without those that choose among them: `GPU.1`, `CPU`."""
        named = self.target.replace(":", ",").split(",")
        return [re.sub(r"\(\d+\)\Z", "", each) for each in named if each and each not in _COMPOSED]

    def _properties(self, model: ModelInfo) -> tuple[Properties, Properties]:
        asked: dict[str, str | int | bool] = {}
        hint = _one_of(model, "PERFORMANCE_HINT", _HINTS)
        if hint:
            asked["PERFORMANCE_HINT"] = hint.upper()
        streams = _streams(model)
        if streams:
            asked["NUM_STREAMS"] = streams
        threads = _number(model, "INFERENCE_NUM_THREADS")
        if threads is not None:
            asked["INFERENCE_NUM_THREADS"] = threads
        compiling = _number(model, "COMPILATION_NUM_THREADS")
        if compiling is not None:
            if self.target == "GPU" or self.target.startswith("GPU."):
                asked["COMPILATION_NUM_THREADS"] = compiling
            else:
                self.ineffective.append(
                    "parameter 'COMPILATION_NUM_THREADS' has no effect: only OpenVINO's GPU device has it"
                )
        precision = _one_of(model, "INFERENCE_PRECISION_HINT", _PRECISIONS)
        if _one_of(model, "HINT_BF16", ("yes",)):
            if precision not in ("", "bf16"):
                raise LoadError(
                    f"model '{model.name}': parameter 'HINT_BF16' is YES and 'INFERENCE_PRECISION_HINT' is"
                    f" {precision}; set one of them"
                )
            precision = "bf16"
        if precision:
            asked["INFERENCE_PRECISION_HINT"] = precision
        pinning = _text(model, "ENABLE_CPU_PINNING")
        if pinning:
            asked["ENABLE_CPU_PINNING"] = _switch(model, "ENABLE_CPU_PINNING")
        on_cpu = {**_on_cpu(model, streams or hint), **asked}
        if self.target == "CPU":
            return _without_streams(on_cpu) if model.lanes == 1 and not (streams or hint) else on_cpu, {}
        if self.target.partition(":")[0] not in _COMPOSED:
            return asked, {}
        # What chooses among devices knows the performance hint only. The CPU is told the rest beforehand.
        hint_alone = {key: value for key, value in asked.items() if key == "PERFORMANCE_HINT"}
        return hint_alone, {key: value for key, value in on_cpu.items() if key not in hint_alone}


def _on_cpu(model: ModelInfo, arranged: str) -> dict[str, str | int | bool]:
    """Return what is asked of the CPU unless a parameter says otherwise.

    With `arranged`, OpenVINO or a parameter says how many executions run at once.

    Precision: left alone, OpenVINO computes in bf16 where the CPU has it, and is wrong in the third digit.
    Threads: the worker's share of the cores. They are not pinned, because each worker would pin its threads
    to the same first cores.
    """
    properties: dict[str, str | int | bool] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": model.threads * model.lanes,
        "ENABLE_CPU_PINNING": False,
    }
    if not arranged:
        properties["NUM_STREAMS"] = str(model.lanes)
    return properties


def _without_streams(properties: Properties) -> Properties:
    """Return the properties with which the thread that asks computes, if it is the only one that would."""
    return {**properties, "NUM_STREAMS": "0"} if properties["INFERENCE_NUM_THREADS"] == 1 else properties


def _text(model: ModelInfo, key: str) -> str:
    return model.parameters.get(key, model.settings.get(key, "")).strip()


def _one_of(model: ModelInfo, key: str, known: tuple[str, ...]) -> str:
    """Return a value that is one of `known`, or nothing if the parameter isn't set."""
    value = _text(model, key).lower()
    if value and value not in known:
        raise LoadError(
            f"expected the parameter '{key}' to be {'/'.join(known).upper()}, got {value} (model"
            f" '{model.name}')"
        )
    return value


def _number(model: ModelInfo, key: str) -> int | None:
    value = _text(model, key).lower()
    if not value:
        return None
    if not re.fullmatch(r"\d{1,9}", value):
        raise LoadError(
            f"expected the parameter '{key}' to be a non-negative number, got {value} (model '{model.name}')"
        )
    return int(value)


def _streams(model: ModelInfo) -> str:
    value = _text(model, "NUM_STREAMS").lower()
    if value and value not in ("auto", "numa") and not re.fullmatch(r"[1-9]\d{0,8}", value):
        raise LoadError(
            f"expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got {value}"
            f" (model '{model.name}')"
        )
    return value.upper()


def _switch(model: ModelInfo, key: str) -> bool:
    value = _text(model, key).lower()
    if value not in _ON + _OFF:
        raise LoadError(f"model '{model.name}': parameter '{key}' must be YES or NO, got '{value}'")
    return value in _ON


def _extension(model: ModelInfo) -> str:
    path = _text(model, "CPU_EXTENSION_PATH")
    if path and not (os.path.isabs(path) and os.path.isfile(path)):
        raise LoadError(
            f"model '{model.name}': parameter 'CPU_EXTENSION_PATH' must be the absolute path of a"
            " library that"
            f" exists, got '{path}'"
        )
    return path


def _cache(model: ModelInfo) -> str:
    """Return the folder of compiled models.

    It must not be the model's own, because a folder that changes is loaded again.
    """
    path = _text(model, "CACHE_DIR")
    if not path:
        return ""
    own = os.path.join(os.path.realpath(model.model_directory), "")
    if not os.path.isabs(path) or os.path.join(os.path.realpath(path), "").startswith(own):
        raise LoadError(
            f"model '{model.name}': parameter 'CACHE_DIR' must be an absolute path outside the model's"
            " folder,"
            f" got '{path}'"
        )
    return path
