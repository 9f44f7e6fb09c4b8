"""What to say of a directory that was given as a model repository and holds no models.

The text names what the directory is, and what to do instead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from shlex import quote
from typing import Final

from engine.settings.settings import Settings
from engine.settings.uris import is_remote

_VERSION: Final = re.compile(r"[1-9][0-9]*")
_LOOKED_AT: Final = 1000  # entries of a directory
_LIKELY: Final = 20  # files of a directory that may be models
_SHOWN: Final = 5  # entries of a directory in a message


def is_model(directory: Path) -> bool:
    """Whether this is the directory of one model, and not of many.

    A model has a configuration, or version directories with files in them. In a repository whose models have
    numbers for names, those directories have configurations or versions of their own.
    """
    try:
        if (directory / "config.pbtxt").exists():
            return True
        versions = [path for path in directory.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()]
        return any(_holds_a_version(path) for path in versions)
    except OSError:
        return False


def _holds_a_version(directory: Path) -> bool:
    entries = list(directory.iterdir())
    names = {entry.name for entry in entries}
    nested = any(_VERSION.fullmatch(entry.name) and entry.is_dir() for entry in entries)
    return bool(entries) and not nested and "config.pbtxt" not in names


def single_model(repository: Path) -> str:
    """Return what to say of a repository that is the directory of one model; nothing if it is a repository.

    A directory with a stray config.pbtxt and models beside it is a repository.
    """
    if not is_model(repository) or any(map(is_model, _folders(repository))):
        return ""
    whole = repository.resolve()
    held = ", ".join(f"'{name}'" for name in sorted(_names(repository))[:_SHOWN])
    return (
        f"'{repository}' is the directory of one model, '{whole.name}', and not a repository of models: it"
        f" holds {held}. Give the directory that it is in, '{whole.parent}', or move all of it into a folder"
        f" with the model's name, such as '{repository}/my_model'"
    )


def _names(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.startswith((".", "SUCCESS."))]
    except OSError:
        return []


def no_directory(repository: Path) -> str:
    """Return what would have worked in place of a path that is no directory."""
    if not repository.exists():
        return f"there is no directory '{repository.absolute()}'"
    from engine.repository.bare.finding import home_of  # only a mistake pays for it

    home = home_of(repository)
    return (
        f"it is a file of a model in the repository '{home.parent}'" if home is not None else bare(repository)
    )


def bare(path: Path) -> str:
    """Return what a file is that `tritium init` makes a repository of; nothing if it is none."""
    from engine.repository.bare.finding import bare_files  # only a mistake pays for it

    found = bare_files([path])
    return f"it is {found}, of which `tritium init {quote(str(path))}` makes a repository" if found else ""


def no_models(repository: Path) -> str:
    """Return what to say of a repository without any folder in it; nothing if there is one."""
    if not repository.is_dir() or _folders(repository):
        return ""
    return (
        f"the model repository '{repository}' has no models: each is a folder in it, with its versions in"
        " numbered folders, such"
        f" as {repository}/resnet/1/model.onnx"
    ) + _proposal(repository, _files(repository))


def bare_models(repository: Path) -> str:
    """Return what to say of a directory with folders and files of models that are in no version folder yet.

    Nothing if there are none: a directory whose folders all look like models is a repository.
    """
    folders = _folders(repository)
    bare = [path for folder in folders[:_LIKELY] if not is_model(folder) for path in _files(folder)]
    if not folders:
        return ""
    said = _proposal(repository, [*_files(repository), *bare])
    return f"'{repository}' has models that are in no version folder{said}" if said else ""


def _proposal(repository: Path, files: list[Path]) -> str:
    from engine.repository.bare.finding import bare_files  # only a mistake pays for it

    found = bare_files(files)
    if not found:
        return ""
    command = f"tritium init {quote(str(repository))}"
    return f"; it holds a model's file ({found}): `{command}` makes a repository of such files"


def _files(directory: Path) -> list[Path]:
    found: list[Path] = []
    try:
        for entry in directory.iterdir():
            if not entry.name.startswith(".") and entry.is_file():
                found.append(entry)
            if len(found) >= _LIKELY:
                break
    except OSError:
        return []
    return sorted(found)


def _folders(repository: Path) -> list[Path]:
    found: list[Path] = []
    try:
        for entry in repository.iterdir():
            if not entry.name.startswith(".") and entry.is_dir():
                found.append(entry)
            if len(found) >= _LOOKED_AT:
                break
    except OSError:
        return []
    return found


def advice_on_repositories(settings: Settings) -> list[str]:
    """Return warnings about repositories that are likely to be a mistake."""
    if settings.control_mode == "explicit" and not settings.load_models:
        # The server begins empty; models are put into it later.
        return []
    local = [Path(path) for path in settings.model_repositories if not is_remote(path)]
    # The server ends because of one model: see `check_repositories`.
    ends = settings.control_mode == "none" and settings.exit_on_error
    alone = [] if ends else [said for path in local if (said := single_model(path))]
    return alone + [said for path in local if (said := no_models(path))]
