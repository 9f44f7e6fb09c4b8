"""Reads a model file, fits its shapes to the configuration, and compiles it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from engine.worker.backends.agreement import spell
from engine.worker.backends.base import LoadError
from engine.worker.backends.files import check_kind
from engine.worker.backends.openvino.parameters import Options
from engine.worker.backends.openvino.ports import find, name_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.worker.backends.base import ModelInfo

DEFAULT_ARTIFACT = "model.xml"
# Files that OpenVINO reads, by the names that Triton's users give them.
_OTHERS = ("model.onnx", "model.pdmodel", "model.tflite", "model.saved_model", "model.savedmodel", "model.pb")
_DAMAGED = (
    "it is damaged, cut short, or no model that OpenVINO reads: export it again, or copy it again and compare"
    " its checksum with the original's"
)


def read(openvino: Any, model: ModelInfo, options: Options) -> tuple[Any, Any]:
    """Return an `openvino.Core` and the model of the artifact, as the file has it.

    Raises LoadError for a file that is missing, damaged or of a format that OpenVINO does not know.
    """
    path = _artifact(model)
    core = openvino.Core()
    try:
        if options.extension:
            core.add_extension(options.extension)
        if options.cache:
            core.set_property({"CACHE_DIR": options.cache})
        return core, core.read_model(path)
    except Exception as error:  # OpenVINO raises RuntimeError, and what its frontends raise
        text = describe(error)
        hint = f" ({_DAMAGED})" if "Unable to read the model" in text else ""
        raise LoadError(f"unable to load model '{model.name}', openvino error: {text}{hint}") from error


def _artifact(model: ModelInfo) -> str:
    """Return the path of the model: a file, or the folder of a SavedModel."""
    path = os.path.join(model.version_directory, model.artifact or DEFAULT_ARTIFACT)
    if os.path.lexists(path):
        check_kind(model, path)
        weights = f"{path[: -len('.xml')]}.bin"
        if path.endswith(".xml") and os.path.lexists(weights):
            check_kind(model, weights)
        return path
    there = [name for name in _OTHERS if os.path.exists(os.path.join(model.version_directory, name))]
    hint = f"; there is '{there[0]}', which 'default_model_filename' may name" if there else ""
    raise LoadError(f"unable to find '{path}' for model '{model.name}'{hint}")


class Maker:
    """Makes infer requests of one model.

    `again` says whether each has a compiled model to itself, and a new one is made after a failure.
    """

    def __init__(self, compile_model: Callable[[], Any], *, again: bool) -> None:
        self.again = again
        self._compile = compile_model
        self._compiled: Any = None if again else compile_model()

    def __call__(self) -> Any:
        """Return a new infer request."""
        compiled = self._compile() if self.again else self._compiled
        return compiled.create_infer_request()


def compiler(core: Any, graph: Any, model: ModelInfo, options: Options) -> Maker:
    """Compile the model. Raises LoadError, also for a device that is not there."""
    _check_devices(core, model, options)
    if options.cpu:
        core.set_property("CPU", dict(options.cpu))

    def compile_model() -> Any:
        try:
            return core.compile_model(graph, options.target, dict(options.properties))
        except Exception as error:
            raise LoadError(
                f"unable to load model '{model.name}', openvino error: {describe(error)}"
            ) from error

    return Maker(compile_model, again=_depends_on_elements(graph))


def _depends_on_elements(graph: Any) -> bool:
    """Whether some shapes within a model follow from its inputs' elements, not from their shapes."""
    if not graph.is_dynamic():
        return False
    fixed = graph.clone()
    try:
        fixed.reshape({at: _any_size(shape_of(port)) for at, port in enumerate(graph.inputs)})
    except Exception:  # noqa: BLE001  # such sizes don't go together; others may
        return True
    return bool(fixed.is_dynamic())


def _any_size(shape: Sequence[int] | None) -> list[int]:
    return [2 if size < 0 else size for size in shape or ()]


def _check_devices(core: Any, model: ModelInfo, options: Options) -> None:
    present = core.available_devices
    kinds = {each.partition(".")[0] for each in present}
    for device in options.devices:
        # `GPU` stands for the first one, which is called `GPU.0` where there are several.
        if device not in present and device not in kinds and device.removesuffix(".0") not in present:
            raise LoadError(
                f"unable to load model '{model.name}', parameter 'TARGET_DEVICE' is {options.target}, and"
                f" OpenVINO finds no {device} here: it has {', '.join(present) or 'nothing'}. Install that"
                " device's driver, or use CPU"
            )


def fit(graph: Any, model: ModelInfo, options: Options) -> None:
    """Give the model's inputs the batch dimension, and the dims of the configuration if that is wished.

    Raises LoadError if the graph can't be made for such shapes.
    """
    wanted = {}
    for at, port in enumerate(graph.inputs):
        shape = shape_of(port)
        new = _wanted(port, shape, model, options)
        if new != shape:
            wanted[at] = new
    if not wanted:
        return
    try:
        graph.reshape(wanted)
    except Exception as error:
        spelt = ", ".join(f"'{name_of(graph.inputs[at])}' {spell(new)}" for at, new in wanted.items())
        hint = (
            ""
            if options.fixed_batch or not model.max_batch_size
            else "; parameter 'SKIP_OV_DYNAMIC_BATCHSIZE' makes the model for batches of max_batch_size alone"
        )
        raise LoadError(
            f"unable to load model '{model.name}', it can't be reshaped to {spelt}: {describe(error)}{hint}"
        ) from error


def _wanted(
    port: Any, shape: Sequence[int] | None, model: ModelInfo, options: Options
) -> Sequence[int] | None:
    """Return the shape that an input should have."""
    lead = [model.max_batch_size if options.fixed_batch else -1] if model.max_batch_size else []
    if options.reshapes:
        tensor = next((each for each in model.inputs if find(each.name, [port]) is not None), None)
        if tensor is not None:
            if min(tensor.backend_dims, default=1) < -1 or 0 in tensor.backend_dims:
                raise LoadError(
                    "openvino backend does not support dimensions values other than `-1` or positive integers"
                )
            return lead + tensor.backend_dims
    return [*lead, *shape[1:]] if lead and shape else shape


def describe(error: Exception) -> str:
    """Return an OpenVINO error without the places in its source from which it was thrown."""
    lines = (line.strip() for line in str(error).splitlines())
    said = [line for line in lines if line and not line.startswith("Exception from ")]
    return "; ".join(said) or str(error).strip() or type(error).__name__
