"""A file that follows the fleet, and a command that is run when it has changed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from engine.fleet.document.editing import write_whole
from engine.observability.text import printable

_LONGEST: Final = 60.0  # seconds for the command
_AGAIN: Final = 10.0  # seconds
_GRACE: Final = 5.0  # seconds between its end and its end by force
_SHOWN: Final = 2000  # bytes of what it wrote last


class Kept:
    """The file at `path`, and the command that has its reader read it again; empty if there is none.

    `say` gets a line for an operator. A command that failed is run again after `again` seconds.
    """

    def __init__(
        self, path: Path, command: str, say: Callable[[str], None], *, again: float = _AGAIN
    ) -> None:
        self.path = path
        self._command = command
        self._say = say
        self._again = again
        self._is_due = False
        self._not_before = 0.0
        self._trouble = ""

    async def take(self, text: str) -> bool:
        """Have the file hold `text`, and the command run if it did not; return whether all is done.

        What fails is said, and done at a later call.
        """
        try:
            if text != self._there():
                write_whole(self.path, text)
                self._is_due, self._not_before = True, 0.0
                self._say(f"{self.path} is written")
        except OSError as error:
            self.trouble(f"{self.path} can't be written: {error.strerror or error}")
            return False
        self._trouble = ""
        if self._command and self._is_due and trio.current_time() >= self._not_before:
            failed = await self._run()
            self._is_due = bool(failed)
            self._not_before = trio.current_time() + self._again
            shown = printable(self._command)
            self._say(f"'{shown}' {failed}; it is run again" if failed else f"'{shown}' is done")
        return not (self._command and self._is_due)

    def trouble(self, reason: str) -> None:
        """Say why the file stays as it is, once."""
        if reason != self._trouble:
            self._say(reason)
        self._trouble = reason

    def _there(self) -> str | None:
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None
        except UnicodeError:
            return ""

    async def _run(self) -> str:
        """Return how the command failed, or nothing."""
        # Not a pipe: what the command leaves running would hold it open.
        with tempfile.TemporaryFile() as written:
            with trio.move_on_after(_LONGEST) as scope:
                done = await trio.run_process(
                    ["/bin/sh", "-c", self._command],
                    stdout=written,
                    stderr=written,
                    check=False,
                    start_new_session=True,
                    deliver_cancel=_end,
                )
            if scope.cancelled_caught:
                return f"has not ended after {_LONGEST:g} s, and was killed"
            if not done.returncode:
                return ""
            written.seek(max(0, written.seek(0, 2) - _SHOWN))
            lines = written.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
            return f"ended with status {done.returncode}: {printable(last.strip())}"


async def _end(process: trio.Process) -> None:
    """End the shell and what it runs, some seconds later by force, until trio sees that it has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await trio.sleep(_GRACE)
