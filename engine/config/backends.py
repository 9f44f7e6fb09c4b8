"""Which backends there are, and what the server must know of each before a worker exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from engine.backends.base import Backend

GROUP: Final = "tritium.backends"

# Our own, for a checkout that is run without being installed.
BUILT_IN: Final[Mapping[str, str]] = {
    "onnxruntime": "engine.backends.onnxruntime:OnnxRuntimeBackend",
    "pytorch": "engine.backends.pytorch:PyTorchBackend",
    "python": "engine.backends.python.backend:PythonBackend",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """A backend's class attributes (see `engine.backends.base.Backend`), without the class."""

    name: str
    pure: bool = True
    concurrent: bool = True
    default_artifact: str = ""
    platforms: tuple[str, ...] = ()
    completes: bool = False  # whether it has a `complete_config` of its own
    target: str = ""  # `module:Class`, as in the entry point
    unavailable: str = ""  # why the class can't be imported; empty where it can


def traits_of(backend: Any, *, name: str, target: str = "") -> BackendTraits:
    """Return the traits of a backend class registered as `name`."""
    return BackendTraits(
        name=name,
        pure=bool(backend.pure),
        concurrent=bool(backend.concurrent),
        default_artifact=str(backend.default_artifact),
        platforms=tuple(backend.platforms),
        completes=_completes(backend),
        target=target,
    )


def _completes(backend: Any) -> bool:
    hook = getattr(getattr(backend, "complete_config", None), "__func__", None)
    return hook is not None and hook is not Backend.complete_config.__func__  # type: ignore[attr-defined]  # of a classmethod


def discover() -> Mapping[str, BackendTraits]:
    """Import every registered backend class and return its traits by name.

    An installed entry point goes before our own table. One that can't be imported is listed with the reason, which
    the models that want it are then told.
    """
    targets = dict(BUILT_IN)
    targets.update((entry.name, entry.value) for entry in entry_points(group=GROUP))
    return {name: _inspect(name, target) for name, target in sorted(targets.items())}


def _inspect(name: str, target: str) -> BackendTraits:
    module, _, attribute = target.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return traits_of(found, name=name, target=target)
    except Exception as error:  # noqa: BLE001  # a third party's module may raise anything; its models are told
        return BackendTraits(name=name, target=target, unavailable=f"{type(error).__name__}: {error}")
