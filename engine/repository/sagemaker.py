"""Where a model lies that SageMaker has put below one folder, by the URL that a load names.

Contract: deployment.md section 5.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.seams.threads import in_thread
from actors.values.errors import InvalidArgument

MODELS: Final = "/opt/ml/models"

_NOWHERE: Final = ("/dev/", "/proc/", "/sys/")
_BELOW: Final = re.compile(r"(/[0-9A-Za-z._]+)/(model)/?([0-9A-Za-z._]+)?")
_ENSEMBLE: Final = re.compile(rb'platform:\s*"ensemble"')
_READ: Final = 1024 * 1024  # bytes of a configuration
_LOOKED_AT: Final = 1000  # folders


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """The folder that is to be a model's repository, and the model's own folder in there, if there is one."""

    repository: str
    folder: str


def place_of(path: str, *, configured: bool, folders: Mapping[str, bool]) -> ModelPlace:
    """Return where the model at `path` lies.

    `configured` says whether there is a configuration at `path` itself. `folders` maps the folders there to
    whether each is an ensemble. Of several ensembles, or several folders without one, the last by name is it.
    """
    if configured:
        repository, folder = posixpath.split(path)
        return ModelPlace(repository, folder)
    ensembles = [folder for folder, ensemble in folders.items() if ensemble]
    return ModelPlace(path, max(ensembles or folders, default=""))


class ModelFinder:
    """Finds models below one folder, `/opt/ml/models` on the platform.

    A relative folder counts from the working directory at the server's start.
    """

    def __init__(self, root: str = MODELS) -> None:
        # POSIX keeps two slashes at the front, which the paths of loads do not have.
        self._root = f"/{posixpath.abspath(root).lstrip('/')}".rstrip("/")  # empty for `/` itself

    async def find(self, url: str) -> ModelPlace | None:
        """Return where the model of a load lies; None for a URL of the system's own.

        Raises InvalidArgument for a URL of another form.
        """
        path = self.path_of(url)
        return None if path is None else await in_thread(_look, path, abandon_on_cancel=True)

    def path_of(self, url: str) -> str | None:
        """Return the normal form of a URL; None for one of the system's own. Raises InvalidArgument."""
        path = posixpath.normpath(posixpath.join("/", url))
        if f"{path}/".startswith(_NOWHERE):
            return None
        below = path.removeprefix(self._root) if path.startswith(f"{self._root}/") else ""
        if "\0" in path or not _BELOW.fullmatch(below):
            raise InvalidArgument(
                f"Invalid \"url\" '{url}': expected a path of the form {self._root}/<hash>/model[/<subdir>]"
            )
        return path


def _look(path: str) -> ModelPlace:
    folders: dict[str, bool] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir() and len(folders) < _LOOKED_AT:
                    folders[entry.name] = _is_ensemble(Path(entry.path))
        configured = os.path.exists(os.path.join(path, "config.pbtxt"))
    except OSError as error:
        raise InvalidArgument(f"failed to register '{path}', repository not found") from error
    return place_of(path, configured=configured, folders=folders)


def _is_ensemble(folder: Path) -> bool:
    try:
        with (folder / "config.pbtxt").open("rb") as file:
            return _ENSEMBLE.search(file.read(_READ)) is not None
    except OSError:
        return False
