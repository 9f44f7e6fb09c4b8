"""What a configuration asks of TensorFlow, as values. Imports nothing of TensorFlow's.

Contract: backends.md section 5. Numbers and switches are read as Triton's helpers read them, except that a
number with anything behind it is refused.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError
from engine.worker.devices.cuda import CudaError, driver
from engine.worker.devices.limits import is_limited, limit_as_share, refuse_beside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

SAVED_MODEL = "tensorflow_savedmodel"
GRAPH_DEF = "tensorflow_graphdef"
DEFAULT_FILES: Mapping[str, str] = {SAVED_MODEL: "model.savedmodel", GRAPH_DEF: "model.graphdef"}

_INTRA, _INTER, _OWN_THREADS = "TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS", "TF_USE_PER_SESSION_THREADS"
_TAG, _SIGNATURE, _INIT_OPS = "TF_GRAPH_TAG", "TF_SIGNATURE_DEF", "TF_INIT_OPS_FILE"
_SHARED = "MAX_SESSION_SHARE_COUNT"
_DEFAULT_TAG, _DEFAULT_SIGNATURE = "serve", "serving_default"
_SOFT, _MEMORY, _VERSION = "allow-soft-placement", "gpu-memory-fraction", "version"
_ON, _OFF = ("true", "on", "1"), ("false", "off", "0")
_MIXED, _GPU_IO, _TENSORRT = "auto_mixed_precision", "gpu_io", "tensorrt"
_LEVELS: Mapping[int, str] = {-1: "OFF", 0: "DEFAULT", 1: "ON_1"}
_XLA_ON_CPU = "--tf_xla_cpu_global_jit"
CALLERS_THREAD = -1  # operations run on the thread that asks for them
_TURN_TO_ONNX = "convert the model with tf2onnx, and serve it by 'onnxruntime', or leave the accelerator out"


class TensorFlowOptions:
    """What a model asks of TensorFlow. Raises LoadError for what can't be had.

    Attributes:
        graph_def: whether the model is a GraphDef, and no SavedModel.
        intra, inter: numbers of threads, within an operation and for operations. 0 leaves it to TensorFlow.
        own_threads: whether each session has threads of its own.
        tag: of the graph in a SavedModel.
        signature: by which a SavedModel is called; `any_signature` if another may take its place.
        init_ops_file: path of the operations to run once, in JSON; empty for none.
        share: how many instances have one session.
        soft_placement: whether an operation may run on another device than the one that it is meant for.
        memory_fraction: of a GPU, taken at once; 0 takes what is needed, as it is needed.
        jit: the level of XLA, by its name in TensorFlow.
        mixed_precision: whether what can be computed in FP16 is.
        ineffective: what was asked for and means nothing here, a text each.

    """

    def __init__(self, model: ModelInfo) -> None:
        self.ineffective: list[str] = []
        self.graph_def = _platform(model) == GRAPH_DEF
        share = model.threads * model.lanes
        self.intra = _threads(model, _INTRA, share)
        # Handing each operation to a thread takes 20 µs of CPU an execution, for nothing where there is one.
        self.inter = _threads(model, _INTER, share if model.threads > 1 else CALLERS_THREAD)
        self.own_threads = _switch(_OWN_THREADS, model.parameters.get(_OWN_THREADS, "false"))
        self.tag = model.parameters.get(_TAG, _DEFAULT_TAG)
        self.any_signature = _SIGNATURE not in model.parameters
        self.signature = model.parameters.get(_SIGNATURE, _DEFAULT_SIGNATURE)
        self.init_ops_file = _init_ops_file(model)
        self.share = _sharing(model)
        self.soft_placement = _switch(_SOFT, model.settings.get(_SOFT, "true"))
        self.memory_fraction = _fraction(model)
        self.jit = _LEVELS.get(_level(model), "ON_2")
        self._note_xla(model)
        _check_version(model)
        self.mixed_precision = self._accelerates(model)
        if self.graph_def:
            self._note_if_set(model, (_TAG, _SIGNATURE), "a GraphDef has neither")
        else:
            self._note_if_set(model, (_INIT_OPS,), "a SavedModel names its own operation to begin with")

    def _note_xla(self, model: ModelInfo) -> None:
        on = self.jit.startswith("ON") and model.kind == "CPU"
        if on and _XLA_ON_CPU not in os.environ.get("TF_XLA_FLAGS", ""):
            self.ineffective.append(
                "'optimization.graph.level' has no effect on CPUs, unless the environment variable"
                f" TF_XLA_FLAGS has {_XLA_ON_CPU}"
            )

    def _note_if_set(self, model: ModelInfo, keys: Sequence[str], why: str) -> None:
        self.ineffective += [
            f"parameter '{key}' has no effect: {why}" for key in keys if key in model.parameters
        ]

    def _accelerates(self, model: ModelInfo) -> bool:
        """Return whether mixed precision is asked for. Raises LoadError for what is not here."""
        asked = (model.config.get("optimization") or {}).get("execution_accelerators") or {}
        if asked.get("cpu_execution_accelerator"):
            raise LoadError("CPU Execution Accelerator is not supported in TensorFlow backend")
        names = [each.get("name", "") for each in asked.get("gpu_execution_accelerator", ())]
        if not names:
            return False
        if model.kind == "CPU":
            self.ineffective.append(
                f"GPU Execution Accelerator is ignored for instance '{model.instance_name}', which is on CPU"
            )
            return False
        for name in names:
            if name not in (_MIXED, _GPU_IO, _TENSORRT):
                raise LoadError(f"unknown Execution Accelerator '{name}' is requested")
        if _MIXED in names and _TENSORRT in names:
            raise LoadError("Auto mixed precision can not be set with TFTRT optimization")
        if _TENSORRT in names:
            raise LoadError(
                f"unable to load model '{model.name}', execution accelerator 'tensorrt': TensorFlow has no"
                f" TensorRT since 2.18; {_TURN_TO_ONNX}"
            )
        if _GPU_IO in names:
            self.ineffective.append("accelerator 'gpu_io' has no effect: tensors go through the host")
        return _MIXED in names


def _platform(model: ModelInfo) -> str:
    platform = str(model.config.get("platform", ""))
    if platform not in DEFAULT_FILES:
        raise LoadError(f"platform {platform} not supported for TensorFlow model '{model.name}'")
    return platform


def _number(key: str, text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d{1,9}", text):
        raise LoadError(f"failed to convert '{text}' to integral number (parameter '{key}')")
    return int(text)


def _switch(key: str, text: str) -> bool:
    value = text.lower()
    if value not in _ON + _OFF:
        raise LoadError(f"failed to convert '{text}' to boolean (parameter '{key}')")
    return value in _ON


def _threads(model: ModelInfo, key: str, default: int) -> int:
    text = model.parameters.get(key)
    if text is None:
        return default
    number = _number(key, text)
    if number < 0:
        raise LoadError(f"parameter '{key}' must be non-negative number for TensorFlow model '{model.name}'")
    return number


def _sharing(model: ModelInfo) -> int:
    number = _number(_SHARED, model.parameters.get(_SHARED, "1"))
    if number < 1:
        raise LoadError(f"parameter '{_SHARED}' must be positive number for TensorFlow model '{model.name}'")
    return number


def _fraction(model: ModelInfo) -> float:
    text = model.settings.get(_MEMORY, "0")
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise LoadError(f"--backend-config=tensorflow,{_MEMORY}=X takes a number from 0 to 1, not '{text}'")
    if fraction and _keeps_limit(model):
        refuse_beside(model, _MEMORY, "--backend-config=tensorflow")
    return fraction


def _keeps_limit(model: ModelInfo) -> bool:
    return is_limited(model) and model.kind != "CPU"


def memory_limit(model: ModelInfo) -> float:
    """Return the share of its GPU's memory that an instance may take (`tritium.gpu_memory`); 0 for all of it.

    Raises LoadError.
    """
    if not _keeps_limit(model):
        return 0.0
    if model.gpu_share:
        return model.gpu_share
    try:
        return limit_as_share(model, driver().total_memory(model.device_id))
    except CudaError as error:
        raise LoadError(f"unable to load model '{model.name}', {error}") from error


def _check_version(model: ModelInfo) -> None:
    text = model.settings.get(_VERSION, "2")
    if text != "2":
        raise LoadError(
            f"--backend-config=tensorflow,{_VERSION}={text} names a TensorFlow that is not here: there is 2,"
            " which runs models of version 1 too"
        )


def _level(model: ModelInfo) -> int:
    graph = (model.config.get("optimization") or {}).get("graph") or {}
    return max(int(graph.get("level", 0)), -1)


def _init_ops_file(model: ModelInfo) -> str:
    """Return the path of the file: in the version's folder, else in the model's. Raises LoadError."""
    name = model.parameters.get(_INIT_OPS, "")
    if not name:
        return ""
    for folder in (model.version_directory, model.model_directory):
        path = os.path.normpath(os.path.join(folder, name))
        if path.startswith(os.path.join(os.path.normpath(folder), "")) and os.path.isfile(path):
            return path
    raise LoadError(
        f"unable to load model '{model.name}', parameter '{_INIT_OPS}' names '{name}', which is neither in"
        f" '{model.version_directory}' nor in '{model.model_directory}'"
    )
