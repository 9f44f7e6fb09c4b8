"""The file of `--log-file`, which others may rotate: lines go to the file that its name leads to.

Before each piece of lines the thread that writes them looks whether the name leads to another file by now, or
to none. So logrotate needs no signal, and what was moved away is left after the lines that it has. Where a
new file can't be opened, the old one goes on, and says so once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO


class LogFile:
    """A stream of text, as `LogSink` writes to. All methods block, and raise OSError."""

    encoding = "utf-8"

    def __init__(self, path: str, kept: Callable[[str], str]) -> None:
        """Open the file, and make it if it is not there. Raises OSError.

        `kept` makes the line that says why the old file goes on.
        """
        self._path = path
        self._tell_kept = kept
        self._why_kept = ""
        self._file = _appended(path)

    def write(self, text: str) -> int:
        """Append `text` to the file that has the name now."""
        self._follow()
        return self._file.write(text)

    def flush(self) -> None:
        """Hand all of it to the kernel."""
        self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _follow(self) -> None:
        here = os.fstat(self._file.fileno())
        if not stat.S_ISREG(here.st_mode):  # a pipe or a terminal is not rotated
            return
        try:
            there = _found(self._path)
            if there is not None and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
            if there is not None and not stat.S_ISREG(there.st_mode):
                self._keep("the name leads to something that is no regular file")
                return
            opened = _appended(self._path)
        except OSError as error:
            self._keep(error.strerror or str(error))
            return
        with suppress(OSError):  # a full disk under the old file
            self._file.close()
        self._file, self._why_kept = opened, ""

    def _keep(self, why: str) -> None:
        if why != self._why_kept:
            self._why_kept = why
            self._file.write(self._tell_kept(why) + "\n")


def _appended(path: str) -> TextIO:
    return open(path, "a", encoding=LogFile.encoding)  # closed by the `LogFile`


def _found(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
