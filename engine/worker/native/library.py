"""A library written for Triton: its functions, and the order in which they are called (see c_abi.md)."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError
from engine.worker.native.symbols import NotALibrary, read_symbols
from engine.worker.native.table import ENTRY_POINTS, EXECUTE, functions, shortcomings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.worker.backends.base import ModelInfo
    from engine.worker.native.shim import Shim

OWN_SETTINGS = "tritium."
"""How settings begin that are between the server and its worker, and none of the library's."""

SHIM = f"{OWN_SETTINGS}shim"
"""The setting that says where the shim is."""

_KINDS = {"CPU": 1, "GPU": 2, "MODEL": 3}
_PREFIX = "TRITONBACKEND_"


def check(path: str) -> frozenset[str]:
    """Return the functions that the library at `path` imports.

    Raises LoadError for a file that is none, lacks its one required function, or needs functions that do not
    exist here.
    """
    try:
        symbols = read_symbols(path)
    except NotALibrary as error:
        raise LoadError(f"'{path}' is no library of a backend: {error}") from None
    except OSError as error:
        raise LoadError(f"'{path}' can't be read: {error.strerror or error}") from None
    if EXECUTE not in symbols.exported:
        raise LoadError(f"'{path}' is no library of a backend: it has no function '{EXECUTE}'")
    missing, _ = shortcomings(symbols.imported, functions())
    if missing:
        raise LoadError(f"'{path}' needs functions that this server does not know: {', '.join(missing)}")
    return symbols.imported


class Library:
    """The library at `path`, loaded. Raises LoadError if the dynamic linker refuses it."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._loaded = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise LoadError(f"the library can't be loaded: {error}") from None
        self._functions: dict[str, int] = {}
        for name in ENTRY_POINTS:
            with contextlib.suppress(AttributeError):
                address = ctypes.cast(getattr(self._loaded, name), ctypes.c_void_p).value
                self._functions[name[len(_PREFIX) :]] = address or 0

    def function(self, name: str) -> int:
        """Return the address of an entry point, named without its prefix; 0 if the library has none."""
        return self._functions.get(name, 0)


class Loaded:
    """One model in a library: the backend, the model and its instances, as the shim's objects.

    Functions are called in the order that the contract says. Raises LoadError with a library's own words.
    """

    def __init__(self, shim: Shim, library: Library, model: ModelInfo, *, completes: bool) -> None:
        self.shim = shim
        self._library = library
        self._model_info = model
        self._initialised: list[tuple[str, int]] = []  # what must be finalised, in order
        config = {"cmdline": settings_of(model, library.path, completes=completes)}
        backend_name = str(model.config.get("backend", ""))
        self.backend = shim.backend(backend_name, os.path.dirname(library.path), json.dumps(config))
        self._call("Initialize", self.backend)
        self._initialised.append(("Finalize", self.backend))
        if library.function("GetBackendAttribute"):
            failure = shim.ask_attributes(library.function("GetBackendAttribute"), self.backend)
            if failure is not None:
                raise LoadError(failure.message)
        batches = model.max_batch_size > 0
        self.model = shim.model(
            self.backend,
            name=model.name,
            version=model.version,
            directory=model.model_directory,
            config=json.dumps(model.config),
            completes=completes,
            batches=batches,
            decoupled=model.decoupled,
            inputs=[(each.name, each.datatype.number) for each in model.inputs],
            outputs=[
                (each.name, each.datatype.number, row_bytes(each.backend_dims, each.datatype.size))
                for each in model.outputs
            ],
        )
        self._call("ModelInitialize", self.model)
        self._initialised.append(("ModelFinalize", self.model))

    def instance(self, name: str) -> int:
        """Make an instance, on the thread that is to execute its batches."""
        info = self._model_info
        made = self.shim.instance(
            self.model, name, _KINDS.get(info.kind, 1), info.device_id, json.dumps({"cpu": {}})
        )
        self._call("ModelInstanceInitialize", made)
        return made

    @property
    def execute(self) -> int:
        """The function that executes batches."""
        return self._library.function("ModelInstanceExecute")

    @property
    def has_check(self) -> bool:
        """Whether instances can be asked whether they are ready."""
        return bool(self._library.function("ModelInstanceReady"))

    def ready(self, instance: int) -> bool:
        """Ask an instance whether it is ready."""
        return self.shim.call(self._library.function("ModelInstanceReady"), instance) is None

    def end_instance(self, instance: int) -> None:
        """Finalise an instance, on its thread; no batch of it is under way."""
        self._end("ModelInstanceFinalize", instance)

    def end(self) -> None:
        """Finalise the model and the backend, in this order: no instance is left."""
        while self._initialised:
            self._end(*self._initialised.pop())

    def _end(self, name: str, argument: int) -> None:
        try:
            self._call(name, argument)
        except LoadError as error:
            self._model_info.log("error", f"{_PREFIX}{name} failed: {error}")

    def _call(self, name: str, argument: int) -> None:
        function = self._library.function(name)
        failure = self.shim.call(function, argument) if function else None
        if failure is not None:
            raise LoadError(failure.message)


def row_bytes(dims: list[int], size: int) -> int:
    """Return the bytes of one row of a tensor; -1 if they are not known before it is made."""
    nbytes = size
    for dim in dims:
        if dim < 0:
            return -1
        nbytes *= dim
    return nbytes if size else -1


def settings_of(model: ModelInfo, path: str, *, completes: bool) -> Mapping[str, str]:
    """Return what a library sees of the command line: strings by key."""
    given = {key: value for key, value in model.settings.items() if not key.startswith(OWN_SETTINGS)}
    return {
        "auto-complete-config": "true" if completes else "false",
        "backend-directory": os.path.dirname(os.path.dirname(path)),
        "default-max-batch-size": "4",
        "min-compute-capability": "6.000000",
        **given,
    }
