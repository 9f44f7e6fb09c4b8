"""What process 1 of a container reaps: children that it did not start.

The kernel gives an orphan to process 1. If that does not read how the orphan ended, the orphan's number stays
taken: a zombie. A server that is process 1 gets what models leave behind, and also the processes of
`kubectl exec` and of a shell that became the server.

The server's own children are reaped where they were started, since their exit status is wanted there. So a
child is taken for an orphan only if two looks, one period apart, find it ended, and if it is not the first
process of a family that the server still holds. Any other process of the server's own is waited for at once.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NoReturn

import trio

from actors.seams.threads import in_thread
from engine.processes.family import Member, ended_children, heads

PERIOD: Final = 5.0  # seconds between two looks


class Orphans:
    """The children of this process that have ended and are not reaped. For one thread at a time."""

    def __init__(self) -> None:
        self._seen: frozenset[Member] = frozenset()

    def reap(self) -> int:
        """Reap what the look before this one saw as well, and return how many these were."""
        held = heads()
        ended = frozenset(each for each in ended_children() if each.pid not in held)
        due, self._seen = ended & self._seen, ended - self._seen
        for each in due:
            with contextlib.suppress(ChildProcessError):  # it was reaped where it was started
                os.waitpid(each.pid, os.WNOHANG)
        return len(due)


async def reap_orphans() -> NoReturn:
    """Reap orphans, for ever. A look at no ended child is one system call."""
    orphans = Orphans()
    while True:
        await trio.sleep(PERIOD)
        if _any_has_ended():
            await in_thread(orphans.reap)


def _any_has_ended() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False  # there are no children
