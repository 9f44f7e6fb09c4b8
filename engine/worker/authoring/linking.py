"""Running a model's file where it lies, from a `model.py` that only points at it."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from engine.worker.authoring.recognition import model_class

if TYPE_CHECKING:
    from collections.abc import MutableSequence


def linked(path: str, package: str) -> Any:
    """Import the file at `path` as a module of `package`, and return its model's class.

    It can import the modules beside the file, by name and relatively, before what is installed. `__file__` is
    the file's own, so that what it reads from its folder is found. Raises ImportError that says what the
    file's code raises, and where.
    """
    _find_modules_in(os.path.dirname(path), sys.modules[package].__path__)
    stem = os.path.basename(path)[: -len(".py")]
    name = f"{package}.linked_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        return model_class(module, called=stem)
    except Exception as error:
        # A reason tells only of frames in the repository, and this file is not there.
        raise ImportError(f"{_place(error, path)}: {type(error).__name__}: {error}") from error


def model_directory(folder: str) -> str:
    """Return the model's directory for a file in `folder`.

    In a repository that is the folder above, if the file's folder is a version's.
    """
    return os.path.dirname(folder) if os.path.basename(folder).isdigit() else folder


def _place(error: Exception, path: str) -> str:
    """Return the innermost line of the file, or of those beside it, that `error` came through.

    A virtual environment may lie beside the file as well: what is installed in it is not the author's.
    """
    beside = os.path.join(os.path.dirname(path), "")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(beside) and "-packages" + os.sep not in frame.filename[len(beside) :]
    ]
    return f"{frames[-1].filename}({frames[-1].lineno})" if frames else path


def _find_modules_in(directory: str, package_path: MutableSequence[str]) -> None:
    """Find modules in `directory` before what is installed, and before what lies beside the linking file."""
    if directory not in sys.path:
        later = ("site-packages", "dist-packages", *package_path)
        at = (at for at, path in enumerate(sys.path) if path.endswith(later))
        sys.path.insert(next(at, len(sys.path)), directory)
    package_path.insert(0, directory)
