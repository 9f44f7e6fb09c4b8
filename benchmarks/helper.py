"""A process of a benchmark that takes orders, one a line, and answers with lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self

from benchmarks.subjects import CHECKOUT


class Helper:
    """Runs a module of this checkout as a process. It is killed at the end of the block."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._child = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def order(self, order: str) -> None:
        """Give an order, and do not wait for what comes of it."""
        assert self._child.stdin is not None
        self._child.stdin.write(order + "\n")
        self._child.stdin.flush()

    def read(self) -> Any:
        """Return the next thing that it says. Raises OSError if it has ended."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise OSError(f"{self._child.args!r} ended with {self._child.wait()}")
        return json.loads(line)

    def tell(self, order: str) -> Any:
        """Give an order, and return what came of it. Raises as `read`."""
        self.order(order)
        return self.read()

    def kill(self) -> None:
        """Kill the process: the kernel closes all of its connections at once."""
        with self._child:  # which closes its pipes, and waits
            self._child.kill()
