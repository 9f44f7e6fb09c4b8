"""Which environment a version of a model asks for, if any.

Contract: python_backend.md section 12, and Tritium's own.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Final

from engine.environments import requirements
from engine.environments.layout import EnvironmentFailed
from engine.models.links import Links

PATH_PARAMETER: Final = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
ENVIRONMENT_PREFIX: Final = "pb_exec_env_"
"""How the name of a packed environment begins that lies in a backend's folder."""
_RUNTIME: Final = "model.py"  # of all such backends


class Kind(Enum):
    """What an environment is made from."""

    DIRECTORY = "directory"  # nothing: it is one
    ARCHIVE = "archive"
    REQUIREMENTS = "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One environment. `digest` is of what it is made from, hexadecimal; a directory has none."""

    kind: Kind
    source: Path
    digest: str = ""

    @property
    def name(self) -> str:
        """What it is called in the cache of environments."""
        return f"{self.kind.value}-{self.digest[:32]}"


def declared(
    parameters: Mapping[str, str],
    version_directory: Path,
    model_directory: Path,
    links: Links = Links.INSIDE,
    *,
    install: bool = True,
    backend: Path | None = None,
) -> Environment | None:
    """Return what a version asks for; None if it runs on the server's own interpreter.

    `EXECUTION_ENV_PATH` among its parameters takes precedence over an archive in the folder of its `backend`,
    and that over a `requirements.txt`, which counts if `install` is true: the model's own before the
    backend's. It reads and digests files, gigabytes of them perhaps, so do not call it on the event
    loop. Raises EnvironmentFailed.
    """
    given = parameters.get(PATH_PARAMETER, "")
    if given:
        return _packed(given.replace(MODEL_DIRECTORY, str(model_directory)))
    if (archive := archive_of(backend)) is not None:
        return _packed(str(archive))
    path = requirements.find(version_directory, model_directory) if install else None
    root = model_directory.parent
    if path is None and install and backend is not None and (backend / requirements.FILE_NAME).is_file():
        path, root = backend / requirements.FILE_NAME, backend
    if path is None:
        return None
    digest = requirements.digest(path, root=root, links=links)
    return Environment(kind=Kind.REQUIREMENTS, source=path.absolute(), digest=digest)


def archive_of(backend: Path | None) -> Path | None:
    """Return the packed environment in the folder of a backend that is written in Python, if there is one."""
    path = backend / f"{ENVIRONMENT_PREFIX}{_RUNTIME}.tar.gz" if backend is not None else None
    return path if path is not None and path.is_file() else None


def _packed(given: str) -> Environment:
    path = Path(given).absolute()
    if path.is_dir():
        return Environment(kind=Kind.DIRECTORY, source=path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise EnvironmentFailed(f"'{path}' is neither an archive nor a directory")
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return Environment(kind=Kind.ARCHIVE, source=path, digest=_archive_digest(path, identity))
    except OSError as error:
        raise EnvironmentFailed(
            f"Failed to get the canonical path for {given}.",
            hint=f"{error.strerror or error}; {PATH_PARAMETER} names an archive of conda-pack, or an unpacked one, by its"
            f" absolute path or by one that begins with {MODEL_DIRECTORY}",
        ) from error


@lru_cache(maxsize=256)
def _archive_digest(path: Path, identity: tuple[int, ...]) -> str:
    """Digest an archive once for each time that it is written, which changes its `identity`."""
    del identity
    return requirements.file_digest(path)
