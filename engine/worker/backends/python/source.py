"""Where a Python model's source lies, and how it is imported (contract, python_backend.md section 1)."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import types
from concurrent import futures
from typing import TYPE_CHECKING, Any

from engine.worker.authoring.linking import model_directory
from engine.worker.authoring.offering import offer
from engine.worker.authoring.recognition import model_class
from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from engine.worker.backends.base import ModelInfo

DEFAULT_ARTIFACT = "model.py"
STUB = "triton_python_backend_stub"

# Where frames are no news to a model's author: our own, and what hands a coroutine's exception over.
_ENGINE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
_NOT_THE_MODELS = (
    os.path.join(_ENGINE, ""),
    os.path.join(os.path.dirname(_ENGINE), "actors", ""),
    os.path.join(os.path.dirname(futures.__file__), ""),
)


class Source:
    """One model's file. `path` is absolute.

    `model_directory` and `version_directory` are what the model is told. If the model's file only points at
    another (`tritium.linked`), they are that one's from `load` on.
    """

    __slots__ = (
        "_added",
        "_directory",
        "_package",
        "_searched",
        "_stem",
        "model_directory",
        "path",
        "version_directory",
    )

    def __init__(self, model: ModelInfo) -> None:
        """Find the file of `model`. Raises LoadError if it, or what it must run on, is not there."""
        filename = model.artifact or DEFAULT_ARTIFACT
        if not filename.endswith(".py"):
            raise LoadError(f"Model name must end with '.py'. Model name is \"{filename}\".")
        # A backend's file is named by its whole path.
        self.path = os.path.join(model.version_directory, filename)
        if not os.path.isfile(self.path):
            raise LoadError(f"Python model file not found in '{self.path}'")
        self._directory = os.path.dirname(self.path)
        self.version_directory = model.version_directory
        self.model_directory = model.model_directory
        self._package = str(model.version)
        self._stem = os.path.basename(self.path)[: -len(".py")]
        self._searched = dict.fromkeys((model.version_directory, model.model_directory, self._directory))
        self._added: list[str] = []

    def load(self) -> Any:
        """Import `<version>.<stem>`, afresh, and return the class `TritonPythonModel`, or what stands for it.

        Raises what the model's code raises. The model's folders go on `sys.path` after the standard library
        and before what is installed, until `forget`.
        """
        # A model's directory is read, never written to. Also, bytecode is matched by second and size: if two
        # versions of a file were written within a second, the first would be run for ever.
        sys.dont_write_bytecode = True
        self._add_paths()
        self._forget_modules()
        package = types.ModuleType(self._package)
        package.__path__ = [self._directory]
        sys.modules[self._package] = package
        offer()
        found = model_class(importlib.import_module(f"{self._package}.{self._stem}"))
        folder = package.__path__[0]
        if folder != self._directory:
            self.version_directory, self.model_directory = folder, model_directory(folder)
        return found

    def forget(self) -> None:
        """Take the model's modules and folders back."""
        for path in self._added:
            if path in sys.path:
                sys.path.remove(path)
        self._added = []
        self._forget_modules()

    def _add_paths(self) -> None:
        at = next(
            (i for i, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))),
            len(sys.path),
        )
        self._added = [path for path in self._searched if path not in sys.path]
        sys.path[at:at] = self._added

    def _forget_modules(self) -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] == self._package:
                del sys.modules[name]


def describe(error: BaseException, *, within: str = "") -> str:
    """Return `Type: message` and the frames that `error` came through, innermost first.

    See the contract, section 4.3. Tritium's own frames are left out. If `within` names a directory, so are
    all other frames whose file is outside it.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_MODELS)
    ]
    if within:
        frames = [frame for frame in frames if frame.filename.startswith(os.path.join(within, ""))]
    lines = [f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(frames)]
    text = f"{type(error).__name__}: {_message(error)}"
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as why:  # noqa: BLE001  # the model's own `__str__`
        return f"<its text can't be had: {type(why).__name__}>"
