"""A model repository for one file that is served, or tested, where it lies."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

_STUB: Final = '''\
"""Stands for a file elsewhere."""

import tritium

TritonPythonModel = tritium.linked({path!r}, __package__)
'''


class NotAModelFile(Exception):
    """The path names no file that could be a model's. The message says what would have worked."""


def model_name(file: Path) -> str:
    """Return what the model in `file` is called: as the file, or if that is `model.py` as its folder.

    In a repository, `<model>/<version>/model.py`, that is the model's folder.
    """
    name = file.stem
    if name == "model":
        folder = file.absolute().parent
        name = folder.parent.name if folder.name.isdigit() else folder.name
    return re.sub(r"[^\w.-]", "_", name) or "model"


def check_file(file: Path) -> Path:
    """Return `file`, absolute, if it is a Python file. Raises NotAModelFile."""
    if file.is_dir():
        raise NotAModelFile(
            f"{file} is a directory: name the model's file, or serve repositories with `tritium serve --model-repository={file}`"
        )
    if not file.is_file():
        raise NotAModelFile(f"{file}: there is no such file")
    if file.suffix != ".py":
        raise NotAModelFile(f"{file} is no Python file: its name must end with '.py'")
    return file.resolve()


def write_repository(file: Path, into: Path, config: Path | None = None) -> Path:
    """Make a repository in `into` with one model that runs `file` where it lies.

    Returns the model's directory.

    Its version is that of the file's folder in a repository, else 1. `config`, a config.pbtxt, is copied;
    without one the configuration is completed from the model. Raises NotAModelFile.
    """
    path = check_file(file)
    directory = into / model_name(file)
    folder = file.absolute().parent.name
    version = directory / (str(int(folder) or 1) if folder.isdigit() else "1")
    version.mkdir(parents=True)
    (version / "model.py").write_text(_STUB.format(path=str(path)))
    if config is not None:
        if not config.is_file():
            raise NotAModelFile(f"{config}: there is no such file")
        shutil.copyfile(config, directory / "config.pbtxt")
    return directory


def config_beside(file: Path) -> Path | None:
    """Return the config.pbtxt that belongs to `file`.

    It lies beside the file, or in a repository beside the file's version directory.
    """
    folder = file.absolute().parent
    for place in (folder, *([folder.parent] if folder.name.isdigit() else [])):
        if (place / "config.pbtxt").is_file():
            return place / "config.pbtxt"
    return None
