"""Which things in a model's folder are not opened."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from engine.worker.backends.base import ModelInfo


def check_kind(model: ModelInfo, path: str) -> None:
    """Raise LoadError unless a path leads to a file or a folder.

    A pipe would hold its reader up for ever, and a device has no end.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise LoadError(
            f"unable to load model '{model.name}', '{path}' can't be opened: {error.strerror}"
        ) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise LoadError(
            f"unable to load model '{model.name}', '{path}' is a pipe, a socket or a device, and no file"
        )
