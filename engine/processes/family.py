"""A worker and whatever it has started: what they take, and how all of them are ended. Linux, by /proc.

There are three ways to know a process as a worker's, and none is complete by itself:

- it descends from the worker. This is complete while the worker lives and is the reaper of its orphans
  (`engine.worker.limits`). It is of no use once the worker has died, because its descendants are then
  children of another process;
- it is in the worker's session. The session's number stays taken as long as any process is in it. `setsid`
  leaves it;
- its environment began with the worker's mark (`engine.processes.mark`). A program that is started with another
  environment has none.
- it has the worker's user id, where that has one of its own. This is complete.

So if a worker dies by itself, a process escapes if it has left the session *and* cleared its environment,
unless it was seen before. A strict sandbox refuses the first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.serving.policy.confinement import Usage
from engine.processes.mark import MARK
from engine.processes.users import user_of

_MOST_SEEN: Final = 4096  # processes that one look takes in
_MOST_AT_ONCE: Final = 64  # processes of one look that are killed on the event loop
# Threads whose children are read so fast that it may happen on an event loop.
_FEW_THREADS: Final = 32
# Reading the children of so many threads takes some 10 ms, which a kill may take.
_MANY_THREADS: Final = 1000
# Rounds of killing what the processes that were just killed had started meanwhile.
_ROUNDS: Final = 20
_REAPED_WITHIN: Final = 1.0  # seconds
_ENDED: Final = "ZX"  # states of /proc/<pid>/stat
# The first process of each family that this process holds, by the family's identity.
_heads: Final[dict[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a family; `started` tells it from a later one with the same number."""

    pid: int
    started: int  # in clock ticks since boot


class Family:
    """The processes of one worker, whose number is `pid`. Plain functions, usable from any thread."""

    def __init__(self, pid: int, mark: str, user: int | None = None) -> None:
        """`user` is the user id that only this worker and its processes have, if it has one."""
        self._user = user
        self._pid = pid
        _heads[id(self)] = pid
        weakref.finalize(self, _heads.pop, id(self), None).atexit = False
        self._mark = f"{MARK}={mark}".encode()
        self._known: frozenset[Member] = frozenset()

    def glance(self) -> Usage | None:
        """Measure as `usage` does, if that takes well under a millisecond; None if it would take longer."""
        pids, threads = [], 0
        for pid in _descent(self._pid, _MOST_SEEN):
            threads += _threads(pid)
            if threads > _FEW_THREADS:
                return None
            pids.append(pid)
        return self._measured(pids, _memory)

    def usage(self, *, exact: bool = False) -> Usage:
        """Measure the worker and its descendants; nothing if they have gone.

        `exact` divides what they share, after a fork above all. The kernel then walks all their pages.
        """
        return self._measured(list(_descent(self._pid, _MOST_SEEN)), _share if exact else _memory)

    def _measured(self, pids: Sequence[int], memory: Callable[[int], int]) -> Usage:
        known = frozenset(_members(pid for pid in pids if pid != self._pid))
        # A dead worker's children are children of another process now. They must not be forgotten.
        if _lives(self._pid):
            self._known = known
        return Usage(sum(map(memory, pids)), len(pids))

    def kill(self) -> None:
        """Kill the worker's group and those next to it.

        Call it before the worker is reaped; `end` kills the rest. Until the worker is reaped no other process
        can have its number, neither as a group nor as a session. The kernel lets no member of a group fork
        while it kills the group.
        """
        near = list(_members(self._near()))
        self._kill_group()
        _kill(near)

    def _near(self) -> Iterator[int]:
        threads = 0
        for pid in _descent(self._pid, _MOST_AT_ONCE):
            yield pid
            threads += _threads(pid)
            if threads > _MANY_THREADS:
                return

    def end(self) -> None:
        """Kill all that a worker which has ended has left behind.

        Call it before the worker is reaped, and not on an event loop. Reads the environment of every process.
        Returns once this process has reaped the children that fell to it.
        """
        killed: set[Member] = set()
        for _ in range(_ROUNDS):
            self._kill_group()
            fresh = {member for member in self._left_behind() if member not in killed}
            if not _kill(fresh):
                break
            killed |= fresh
        self._reap(killed)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def _left_behind(self) -> Iterator[Member]:
        # `_kill` notices which of them have ended meanwhile.
        yield from self._known
        everyone = _members(int(name) for name in os.listdir("/proc") if name.isdecimal())
        for member in everyone:
            if member.pid != self._pid and self._is_ours(member.pid):
                yield member

    def _is_ours(self, pid: int) -> bool:
        if _session(pid) == self._pid or self._marked(pid):
            return True
        return self._user is not None and user_of(pid) == self._user

    def _marked(self, pid: int) -> bool:
        return self._mark in _read(f"/proc/{pid}/environ").split(b"\0")

    def _reap(self, killed: Collection[Member]) -> None:
        """Reap what has become a child of this process.

        All orphans become its children if it is the first process in a container.
        """
        deadline = time.monotonic() + _REAPED_WITHIN
        while time.monotonic() < deadline:
            children = (each for each in _members(_children(os.getpid())) if each.pid != self._pid)
            ours = [each.pid for each in children if each in killed or _session(each.pid) == self._pid]
            ours = [pid for pid in ours if _still_ends(pid)]
            if not ours:
                return
            time.sleep(0.002)


def heads() -> frozenset[int]:
    """Return the numbers of the first processes of the families that this process holds."""
    return frozenset(tuple(_heads.values()))


def ended_children() -> Iterator[Member]:
    """Yield the children of this process that have ended and were not reaped."""
    for pid in _children(os.getpid()):
        fields = _stat(pid)
        if fields and fields[0] in _ENDED:
            yield Member(pid, _started(fields))


def _still_ends(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _descent(pid: int, most: int) -> Iterator[int]:
    """Yield a process and its descendants, parents before their children, and no more than `most`."""
    queue = [pid]
    for at in range(most):
        if at >= len(queue):
            return
        yield queue[at]
        queue += _children(queue[at])


def _threads(pid: int) -> int:
    """Return how many threads a process has, by the links of their directory: without listing them."""
    try:
        return max(1, os.stat(f"/proc/{pid}/task").st_nlink - 2)
    except OSError:
        return 0  # it has just gone


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _members(pids: Iterable[int]) -> Iterator[Member]:
    """Yield those of the processes that are still there."""
    for pid in pids:
        if fields := _stat(pid):
            yield Member(pid, _started(fields))


def _kill(members: Iterable[Member]) -> int:
    """Kill those that have not ended, and return how many there were.

    Each is looked at again right before: another process may have got its number while others were looked
    for.
    """
    killed = 0
    for member in members:
        fields = _stat(member.pid)
        if fields and fields[0] not in _ENDED and _started(fields) == member.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member.pid, signal.SIGKILL)
                killed += 1
    return killed


def _lives(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in _ENDED


def _started(fields: list[str]) -> int:
    return int(fields[19])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third, the state, on: a name may hold anything."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].decode().split()


def _memory(pid: int) -> int:
    """Return the bytes that only the end of the process would give back.

    No file can be read again in their place.
    """
    return sum(_kibibytes(_read(f"/proc/{pid}/status"), ("RssAnon", "RssShmem", "VmSwap")).values())


def _share(pid: int) -> int:
    """Return the same with each page divided by the number of processes that share it."""
    shares = _kibibytes(_read(f"/proc/{pid}/smaps_rollup"), ("Pss_Anon", "Pss_Shmem", "SwapPss"))
    return sum(shares.values()) if shares else _memory(pid)


def _kibibytes(text: bytes, wanted: tuple[str, ...]) -> Mapping[str, int]:
    lines = (line.split() for line in text.decode(errors="replace").splitlines())
    fields = {words[0].rstrip(":"): words[1] for words in lines if len(words) == 3 and words[2] == "kB"}
    return {name: int(fields[name]) * 1024 for name in wanted if name in fields}


def _read(path: str) -> bytes:
    """Return a file of /proc, or nothing if it has gone or may not be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
