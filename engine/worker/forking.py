"""What must not go on as it was in a process that this one forks.

These are connections, locks that other threads hold, and threads. A model may fork, by `multiprocessing`
above all. Code that keeps something that a child must not use registers it by `when_forked`. A fork by other
means than Python's own (`os.fork`) is not noticed.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that a child process must have another of."""

    def forked(self) -> None:
        """This is a process that has just been forked, with the one thread that did it.

        It is called before anything else runs here.
        """


_known: weakref.WeakSet[Forkable] = weakref.WeakSet()


def when_forked(what: Forkable) -> None:
    """Have `forked` called in each process that is forked while there is still a reference to `what`."""
    _known.add(what)


def _in_child() -> None:
    for each in list(_known):
        each.forked()


os.register_at_fork(after_in_child=_in_child)
