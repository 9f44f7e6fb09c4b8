"""A terminal in which a test runs a command, as a user sees it: a pair of ptys, and what was drawn."""

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.support.operators import ended

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalOf:
    """The terminal of one process. `seen` is all that it was sent."""

    def __init__(self, process: subprocess.Popen[bytes], number: int) -> None:
        self.process = process
        self._number = number
        self.seen = b""

    @property
    def text(self) -> str:
        """What it was sent, without escapes."""
        return _ESCAPES.sub("", self.seen.decode(errors="replace")).replace("\r", "")

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._number, keys)

    def wait_for(self, words: str, *, behind: int = 0, seconds: float = 60) -> None:
        """Read until `words` were shown, behind a place in `text`."""
        deadline = time.monotonic() + seconds
        while words not in self.text[behind:]:
            assert time.monotonic() < deadline, f"no {words!r} in {self.text[-3000:]}"
            assert self._read() or words in self.text[behind:], self.text[-3000:]

    def wait_ended(self, *, seconds: float = 60) -> int:
        """Read until the process has ended; return its status."""
        deadline = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < deadline, f"it goes on: {self.text[-3000:]}"
        return self.process.wait(30)

    def _read(self) -> bool:
        """Take what comes soon; False once no process has the terminal open any more."""
        if not select.select([self._number], [], [], 0.2)[0]:
            return self.process.poll() is None
        try:
            block = os.read(self._number, 65536)
        except OSError:
            return False
        self.seen += block
        return bool(block)


@contextmanager
def on_terminal(
    command: Sequence[str], *, environ: Mapping[str, str], width: int = 80, height: int = 24
) -> Iterator[TerminalOf]:
    """Run `command` in a terminal of that size, and kill it at the end."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm", **environ}
    )
    os.close(theirs)
    try:
        yield TerminalOf(process, ours)
    finally:
        ended(process)
        os.close(ours)
