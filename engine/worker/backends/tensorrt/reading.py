"""Opens a plan: finds its file and its runtime, and turns the engine's own description into `Port`s.

Nothing of TensorRT is touched before the CUDA driver has said that there is a device: without one, its
runtime ends the process in place of raising an error.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import TYPE_CHECKING, Any

from engine.worker.backends.base import LoadError
from engine.worker.backends.tensorrt.parameters import artifact
from engine.worker.backends.tensorrt.plans import (
    HEADER_BYTES,
    OLD_MAGIC,
    Family,
    family_of,
    runtime_for,
    version_of,
)
from engine.worker.backends.tensorrt.ports import Port
from engine.worker.devices import cuda

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.worker.backends.base import ModelInfo
    from engine.worker.backends.tensorrt.parameters import Options
    from engine.worker.devices.cuda import Driver

DEFAULT_ARTIFACT = "model.plan"
_WORTH_TELLING = ("ERROR", "INTERNAL_ERROR")
_KEPT = 8  # errors of one call


class Opened:
    """An engine, and what it lives in. `said` gives and forgets the errors of the calling thread's calls."""

    __slots__ = ("driver", "engine", "module", "ports", "runtime", "said")

    def __init__(
        self, module: Any, runtime: Any, engine: Any, driver: Driver, said: Callable[[], str]
    ) -> None:
        self.module = module
        self.runtime = runtime
        self.engine = engine
        self.driver = driver
        self.said = said
        self.ports = [
            _port(module, engine, engine.get_tensor_name(at)) for at in range(engine.num_io_tensors)
        ]


def driver_of(model: ModelInfo) -> Driver:
    """Return the CUDA driver, which has the instance's device. Raises LoadError."""
    try:
        driver = cuda.driver()
        count = driver.device_count()
    except cuda.CudaError as error:
        raise LoadError(f"unable to load model '{model.name}', TensorRT needs a GPU: {error}") from error
    if model.device_id >= count:
        raise LoadError(
            f"unable to load model '{model.name}', instance '{model.instance_name}' is for GPU"
            f" {model.device_id}, and the CUDA driver has {count}, counted from 0"
        )
    return driver


def open_engine(model: ModelInfo, driver: Driver, options: Options) -> Opened:
    """Read the plan for the instance's device, and make its engine, within that device's context.

    Raises LoadError.
    """
    path = plan_of(model, driver)
    who = f"unable to load model '{model.name}'"
    with open(path, "rb") as file:
        header = file.read(HEADER_BYTES)
    if header.startswith(OLD_MAGIC):
        raise LoadError(
            f"{who}, '{path}' is a plan of a TensorRT before 8.6: build it again with a current one"
        )
    family = family_of(header)
    if family is None:
        raise LoadError(
            f"{who}, '{path}' is no TensorRT plan: it is damaged, cut short, or another kind of file;"
            " build it again, or copy it again and compare its checksum with the original's"
        )
    module = runtime_for(family, who)
    errors = threading.local()
    runtime = module.Runtime(_logger(module, model, errors))

    def said() -> str:
        texts, errors.texts = getattr(errors, "texts", []), []
        return "; ".join(texts) or "it says nothing of why"

    _load_plugins(module, model, options)
    if options.version_compatible:
        runtime.engine_host_code_allowed = True
    if options.dla_core is not None:
        if not 0 <= options.dla_core < runtime.num_DLA_cores:
            raise LoadError(
                f"{who}, its group names DLA core {options.dla_core}, and GPU {model.device_id} has"
                f" {runtime.num_DLA_cores}"
            )
        runtime.DLA_core = options.dla_core
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        engine = runtime.deserialize_cuda_engine(plan)
        found = _diagnosed(module, runtime, plan) if engine is None else ""
    if engine is None:
        hint = _hint(model, driver, family, module, header, options)
        raise LoadError(f"{who}, unable to create TensorRT engine: {said()}{found}{hint}")
    return Opened(module, runtime, engine, driver, said)


def plan_of(model: ModelInfo, driver: Driver) -> str:
    """Return the path of the plan for the instance's device. Raises LoadError if there is no such file."""
    name = artifact(model, driver.compute_capability(model.device_id), DEFAULT_ARTIFACT)
    path = os.path.normpath(os.path.join(model.version_directory, name))
    inside = os.path.abspath(path).startswith(os.path.abspath(model.version_directory) + os.sep)
    if not inside or not os.path.isfile(path):
        raise LoadError(f"unable to find '{path}' for model instance '{model.instance_name}'")
    return path


def _diagnosed(module: Any, runtime: Any, plan: Any) -> str:
    """Return what TensorRT-RTX finds wrong with a plan, by name; the other runtime has no such call."""
    look = getattr(runtime, "get_engine_validity", None)
    if look is None:
        return ""
    _, bits = look(plan)
    known = module.EngineInvalidityDiagnostics.__members__
    names = [name for name, bit in known.items() if int(bits) & int(bit)]
    return f"; it diagnoses {', '.join(names)}" if names else ""


def _hint(
    model: ModelInfo, driver: Driver, family: Family, module: Any, header: bytes, options: Options
) -> str:
    built, here = version_of(header), str(module.__version__)
    text = (
        f" ({family.title} {built} has built the plan, and {here} would run it on GPU {model.device_id}, of"
        f" compute capability {driver.compute_capability(model.device_id)}"
    )
    same = here.split(".")[:3] == built.split(".")[:3]
    if same:
        return f"{text}; a plan is for the GPU that it was built on, unless it was built for others as well)"
    if family.extra == "tensorrt" and not options.version_compatible:
        text += (
            "; build it again with this version, or version-compatible, and give the server"
            " --backend-config=tensorrt,version-compatible=true"
        )
    else:
        text += "; build it again with this version"
    return f"{text})"


def _logger(module: Any, model: ModelInfo, errors: threading.local) -> Any:
    """Return TensorRT's logger, which remembers errors by the thread that they come from."""

    class Logger(module.ILogger):  # type: ignore[misc]  # its class is known here only
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            level = str(severity).rpartition(".")[2]
            if level in _WORTH_TELLING:
                texts = getattr(errors, "texts", None)
                if texts is None:
                    texts = errors.texts = []
                if len(texts) < _KEPT:
                    texts.append(message)
            elif level == "WARNING":
                model.log("warning", f"TensorRT: {message}")
            elif level == "INFO":  # what is below it are thousands of lines
                model.log("verbose", f"TensorRT: {message}")

    return Logger()


def _load_plugins(module: Any, model: ModelInfo, options: Options) -> None:
    """Load TensorRT's own plugins, if this package has them, and the libraries that a setting names."""
    own = getattr(module, "init_libnvinfer_plugins", None)
    if own is not None:
        own(None, "")
    for path in options.plugins:
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise LoadError(
                f"unable to load model '{model.name}', setting 'plugins' names '{path}': {error}"
            ) from error


def _port(module: Any, engine: Any, name: str) -> Port:
    is_input = engine.get_tensor_mode(name) == module.TensorIOMode.INPUT
    shape = list(engine.get_tensor_shape(name))
    is_shape = bool(engine.is_shape_inference_io(name))
    on_host = engine.get_tensor_location(name) == module.TensorLocation.HOST
    profiles = range(engine.num_optimization_profiles) if is_input else ()
    bounds, values = [], []
    for profile in profiles:
        low, best, high = engine.get_tensor_profile_shape(name, profile)
        bounds.append((list(low), list(best), list(high)))
        if is_shape and on_host:
            # The package's own names of these two arguments are the wrong way round.
            given = engine.get_tensor_profile_values(profile, name)
            if given:
                values.append((list(given[0]), list(given[1]), list(given[2])))
    return Port(
        name,
        shape,
        str(engine.get_tensor_dtype(name)).rpartition(".")[2],
        is_input=is_input,
        is_shape=is_shape,
        on_host=on_host,
        # The lean runtime has no class for formats; it shows them by name all the same.
        linear=str(engine.get_tensor_format(name)).rpartition(".")[2] == "LINEAR",
        components=max(1, engine.get_tensor_components_per_element(name)),
        vectorised=engine.get_tensor_vectorized_dim(name),
        bounds=bounds,
        values=values,
    )
