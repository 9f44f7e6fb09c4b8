"""Which backends there are, and what the server must know of each before a worker exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from engine.settings.extras import how_to_install, is_missing
from engine.worker.backends.base import Backend
from engine.worker.native.table import usual_library

GROUP: Final = "tritium.backends"
PYTHON: Final = "python"

C_LIBRARY: Final = "engine.worker.native.backend:NativeBackend"
"""What runs backends that are libraries written for Triton's C API."""

_NEEDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "fil": ("fil", ("treelite",)),
    "onnxruntime": ("onnx", ("onnxruntime",)),
    "openvino": ("openvino", ("openvino",)),
    "pytorch": ("torch", ("torch",)),
    "tensorflow": ("tensorflow", ("tensorflow",)),
    "tensorrt": ("tensorrt", ("tensorrt", "tensorrt_lean", "tensorrt_dispatch", "tensorrt_rtx")),
    "transformers": ("llm", ("transformers",)),
}
"""What workers of our backends import, and the extra of Tritium that brings it. Any one of several does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """A backend's class attributes (see `engine.worker.backends.base.Backend`), without the class."""

    name: str
    pure: bool = True
    concurrent: bool = True
    default_artifact: str = ""
    platforms: tuple[str, ...] = ()
    device_tensors: bool = False
    limits_gpu_memory: bool = False  # whether it keeps `tritium.gpu_memory` by its framework's means
    runs_model_code: bool = True  # whether a model may bring code; what is not known to run none may
    language: bool = False  # whether it is an engine of language models
    adapters: bool = False  # whether such an engine can serve LoRA adapters
    environments: bool = False  # whether its models may name an environment of their own
    completes: bool = False  # whether it has a `complete_config` of its own
    completes_the_complete: bool = True  # whether that is asked where inputs and outputs are configured
    target: str = ""  # `module:Class`, as in the entry point
    runtimes: tuple[str, ...] = ()  # what `runtime` may name, beside the library that it stands for
    # Path of what serves all models of the backend: a `model.py`, or a library.
    implementation: str = ""
    library: bool = False  # whether that is a library written for Triton's C API
    folder: str = ""  # the backend's folder in `--backend-directory`; empty if it has none there
    unavailable: str = ""  # why the class can't be imported; empty if it can
    missing: str = ""  # the package that its workers need and that is not installed, and how to install it

    @property
    def runs_python(self) -> bool:
        """Whether its models are Python code of their owners, which may ask for an environment of its own."""
        return self.name == PYTHON or self.target == BUILT_IN[PYTHON].target

    @property
    def has_environments(self) -> bool:
        """Whether a model may run on another interpreter than the server's."""
        return self.runs_python or self.environments


_OURS: Final = (
    BackendTraits(
        name="fil",
        target="engine.worker.backends.fil.backend:ForestBackend",
        runs_model_code=False,
        completes=True,
    ),
    BackendTraits(
        name="onnxruntime",
        target="engine.worker.backends.onnxruntime:OnnxRuntimeBackend",
        default_artifact="model.onnx",
        platforms=("onnxruntime_onnx",),
        limits_gpu_memory=True,
        runs_model_code=False,
    ),
    BackendTraits(
        name="openvino",
        target="engine.worker.backends.openvino.backend:OpenVinoBackend",
        default_artifact="model.xml",
        runs_model_code=False,
        completes=True,
        completes_the_complete=False,
    ),
    BackendTraits(
        name=PYTHON,
        target="engine.worker.backends.python.backend:PythonBackend",
        pure=False,
        concurrent=False,
        default_artifact="model.py",
        device_tensors=True,
        completes=True,
    ),
    BackendTraits(
        name="pytorch",
        target="engine.worker.backends.pytorch:PyTorchBackend",
        default_artifact="model.pt",
        platforms=("pytorch_libtorch", "torch_aoti"),
        device_tensors=True,
        limits_gpu_memory=True,
        environments=True,
        runtimes=("model.py",),
    ),
    BackendTraits(
        name="tensorflow",
        target="engine.worker.backends.tensorflow.backend:TensorFlowBackend",
        platforms=("tensorflow_savedmodel", "tensorflow_graphdef"),
        limits_gpu_memory=True,
        environments=True,
        completes=True,
    ),
    BackendTraits(
        name="tensorrt",
        target="engine.worker.backends.tensorrt.backend:TensorRtBackend",
        default_artifact="model.plan",
        platforms=("tensorrt_plan",),
        device_tensors=True,
        environments=True,
        completes=True,
    ),
    BackendTraits(
        name="transformers",
        target="engine.worker.backends.language.of_transformers:TransformersBackend",
        concurrent=False,
        limits_gpu_memory=True,
        runs_model_code=False,
        language=True,
        environments=True,
    ),
    BackendTraits(
        name="vllm",
        target="engine.worker.backends.language.of_vllm:VllmBackend",
        concurrent=False,
        limits_gpu_memory=True,
        language=True,
        adapters=True,
        environments=True,
    ),
)

BUILT_IN: Final[Mapping[str, BackendTraits]] = {traits.name: traits for traits in _OURS}
"""Our own by name, as their classes say, for a server that imports none of them."""


def traits_of(backend: Any, *, name: str, target: str = "") -> BackendTraits:
    """Return the traits of a backend class registered as `name`."""
    return BackendTraits(
        name=name,
        pure=bool(backend.pure),
        concurrent=bool(backend.concurrent),
        default_artifact=str(backend.default_artifact),
        device_tensors=bool(getattr(backend, "device_tensors", False)),
        limits_gpu_memory=bool(getattr(backend, "limits_gpu_memory", False)),
        platforms=tuple(backend.platforms),
        runtimes=tuple(getattr(backend, "runtimes", ())),
        runs_model_code=bool(getattr(backend, "runs_model_code", True)),
        language=bool(getattr(backend, "language", False)),
        adapters=bool(getattr(backend, "adapters", False)),
        environments=bool(getattr(backend, "environments", False)),
        completes=_completes(backend),
        completes_the_complete=bool(getattr(backend, "completes_the_complete", True)),
        target=target,
    )


def _completes(backend: Any) -> bool:
    hook = getattr(getattr(backend, "complete_config", None), "__func__", None)
    # The ignored attribute is a classmethod's.
    return hook is not None and hook is not Backend.complete_config.__func__  # type: ignore[attr-defined]


def discover(directory: Path | None = None) -> Mapping[str, BackendTraits]:
    """Return the traits of every registered backend by name, importing the classes that aren't our own.

    An installed entry point takes precedence over our own table. A backend that can't be imported is listed
    with the reason, which is then told to the models that want it. In `directory`, an entry with a `model.py`
    is a backend written in Python (contract, python_backend.md section 12), and one with a library is that,
    unless there is one by that name already, which is then told of its folder. Raises OSError if the
    directory can't be listed.
    """
    targets = {name: ours.target for name, ours in BUILT_IN.items()}
    targets.update((entry.name, entry.value) for entry in entry_points(group=GROUP))
    found = {name: _registered(name, target) for name, target in sorted(targets.items())}
    for folder in sorted(directory.resolve().iterdir()) if directory is not None else ():
        name = folder.name
        if name in found:
            found[name] = replace(found[name], folder=str(folder))
        elif (folder / usual_library(name)).is_file():
            found[name] = replace(library_traits(name, folder / usual_library(name)), folder=str(folder))
        elif (folder / "model.py").is_file():
            found[name] = python_traits(name, folder / "model.py", found[PYTHON])
        elif any(folder.glob("*.so")):
            # Which of them it is, a model says by `runtime`.
            found[name] = replace(library_traits(name, folder / usual_library(name)), folder=str(folder))
    return found


def library_traits(name: str, path: Path) -> BackendTraits:
    """Return the traits of a backend that is the library at `path`."""
    return replace(_inspect(name, C_LIBRARY), implementation=str(path), library=True)


def python_traits(name: str, path: Path, python: BackendTraits) -> BackendTraits:
    """Return the traits of a backend whose class for all models is in the file `path`."""
    return replace(python, name=name, default_artifact="", implementation=str(path), folder=str(path.parent))


def _registered(name: str, target: str) -> BackendTraits:
    ours = BUILT_IN.get(name)
    if ours is not None and ours.target == target:
        return replace(ours, missing=_missing(name))
    return _inspect(name, target)


def _inspect(name: str, target: str) -> BackendTraits:
    module, _, attribute = target.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return traits_of(found, name=name, target=target)
    except Exception as error:  # noqa: BLE001
        # A third party's module may raise anything; its models are told.
        return BackendTraits(name=name, target=target, unavailable=f"{type(error).__name__}: {error}")


def _missing(name: str) -> str:
    """Return what keeps a backend of ours from running here, with the cure.

    Its workers have the server's interpreter.
    """
    extra, packages = _NEEDS.get(name, ("", ()))
    if not packages or not all(map(is_missing, packages)):
        return ""
    others = f" (or {', '.join(packages[1:])})" if packages[1:] else ""
    return f"the package '{packages[0]}'{others} is not installed: {how_to_install(extra)}"
