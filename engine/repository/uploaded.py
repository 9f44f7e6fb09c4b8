"""A model directory made of the files in a load request (contract, repository.md section 5.2)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path

from actors.values.errors import InvalidArgument


def normalised(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files by normalised path.

    Raises InvalidArgument for a path that leads out, or through a file.
    """
    found: dict[str, bytes] = {}
    for given, content in files.items():
        # Triton puts the model's directory in front of the given path, so leading slashes there mean nothing.
        path = posixpath.normpath(given.lstrip("/"))
        if not given or path.startswith("../") or path in (".", "..") or "\0" in path:
            raise InvalidArgument(
                f"Invalid file parameter 'file:{given}' with normalized path '{path}' must stay within model directory."
            )
        found[path] = content
    for path in found:
        if any(str(parent) in found for parent in list(Path(path).parents)[:-1]):
            raise InvalidArgument(
                f"Invalid file parameter 'file:{path}', directory has been created as a file"
            )
    return found


def write(parent: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write normalised `files` into a fresh directory of `parent` called `name`.

    Returns it; raises OSError.
    """
    directory = parent / name
    directory.mkdir()
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return directory
