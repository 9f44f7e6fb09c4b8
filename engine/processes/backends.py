"""Which backends there are, and what the server must know of each before a worker exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from engine.settings.extras import how_to_install, is_missing
from engine.worker.backends.base import Backend

GROUP: Final = "tritium.backends"
PYTHON: Final = "python"

# Our own, for a checkout that is run without being installed.
BUILT_IN: Final[Mapping[str, str]] = {
    "onnxruntime": "engine.worker.backends.onnxruntime:OnnxRuntimeBackend",
    "pytorch": "engine.worker.backends.pytorch:PyTorchBackend",
    "python": "engine.worker.backends.python.backend:PythonBackend",
}


_NEEDS: Final[Mapping[str, tuple[str, str]]] = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "pytorch": ("torch", "torch"),
}
"""What workers of our backends import, and the extra of Tritium that brings it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """A backend's class attributes (see `engine.worker.backends.base.Backend`), without the class."""

    name: str
    pure: bool = True
    concurrent: bool = True
    default_artifact: str = ""
    platforms: tuple[str, ...] = ()
    device_tensors: bool = False
    runs_model_code: bool = True  # whether a model may bring code; what is not known to run none may
    completes: bool = False  # whether it has a `complete_config` of its own
    target: str = ""  # `module:Class`, as in the entry point
    implementation: str = ""  # path of the `model.py` that serves all models of a backend written in Python
    unavailable: str = ""  # why the class can't be imported; empty if it can
    missing: str = ""  # the package that its workers need and that is not installed, and how to install it

    @property
    def runs_python(self) -> bool:
        """Whether its models are Python code of their owners, which may ask for an environment of its own."""
        return self.name == "python" or self.target == BUILT_IN["python"]


def traits_of(backend: Any, *, name: str, target: str = "") -> BackendTraits:
    """Return the traits of a backend class registered as `name`."""
    return BackendTraits(
        name=name,
        pure=bool(backend.pure),
        concurrent=bool(backend.concurrent),
        default_artifact=str(backend.default_artifact),
        device_tensors=bool(getattr(backend, "device_tensors", False)),
        platforms=tuple(backend.platforms),
        runs_model_code=bool(getattr(backend, "runs_model_code", True)),
        completes=_completes(backend),
        target=target,
    )


def _completes(backend: Any) -> bool:
    hook = getattr(getattr(backend, "complete_config", None), "__func__", None)
    # The ignored attribute is a classmethod's.
    return hook is not None and hook is not Backend.complete_config.__func__  # type: ignore[attr-defined]


def discover(directory: Path | None = None) -> Mapping[str, BackendTraits]:
    """Import every registered backend class and return its traits by name.

    An installed entry point takes precedence over our own table. A backend that can't be imported is listed
    with the reason, which is then told to the models that want it. In `directory`, an entry with a `model.py`
    is a backend written in Python (contract, python_backend.md section 12), unless there is one by that name
    already. Raises OSError if the directory can't be listed.
    """
    targets = dict(BUILT_IN)
    targets.update((entry.name, entry.value) for entry in entry_points(group=GROUP))
    found = {name: _inspect(name, target) for name, target in sorted(targets.items())}
    for name, path in _written_in_python(directory) if directory is not None else ():
        if name not in found:
            found[name] = replace(found[PYTHON], name=name, default_artifact="", implementation=str(path))
    return found


def _written_in_python(directory: Path) -> Iterator[tuple[str, Path]]:
    for entry in sorted(directory.resolve().iterdir()):
        path = entry / "model.py"
        if path.is_file():
            yield entry.name, path


def _inspect(name: str, target: str) -> BackendTraits:
    module, _, attribute = target.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        traits = traits_of(found, name=name, target=target)
    except Exception as error:  # noqa: BLE001
        # A third party's module may raise anything; its models are told.
        return BackendTraits(name=name, target=target, unavailable=f"{type(error).__name__}: {error}")
    return replace(traits, missing=_missing(name)) if target == BUILT_IN.get(name) else traits


def _missing(name: str) -> str:
    """Return what keeps a backend of ours from running here, with the cure.

    Its workers have the server's interpreter.
    """
    package, extra = _NEEDS.get(name, ("", ""))
    if not package or not is_missing(package):
        return ""
    return f"the package '{package}' is not installed: {how_to_install(extra)}"
