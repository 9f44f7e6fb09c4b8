"""A worker that runs: a process of its own, or a thread of the server if its model asks for that."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import trio

from actors.seams.threads import in_thread
from actors.serving.policy.confinement import Usage
from actors.serving.policy.retries import DeathReason, Exit, Oom, Signal
from engine.processes import users
from engine.processes.family import Family
from engine.processes.group_plan import oom_kills
from engine.processes.groups import Group, find


@contextlib.contextmanager
def bound_to(cores: Sequence[int]) -> Iterator[None]:
    """Bind the calling thread to `cores`, if there are any: what it starts meanwhile inherits that.

    A thread's memory comes from the NUMA node of the core that touches it first, so this decides about memory
    too.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class ProcessWorker:
    """A worker in a process of its own.

    Implements `actors.serving.instances.launching.Launched` and `engine.processes.spares.Spare`.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        output: int,
        oom_kills: OomKills,
        family: Family,
        burials: trio.CapacityLimiter,
        user: int | None = None,
        group: Group | None = None,
    ) -> None:
        self._user = user
        self._group = group
        self._kills_in_group = 0
        self._reached = 0  # bytes: the limit of memory at which the kernel has killed it
        self._burials = burials
        self._process = process
        self._oom_kills = oom_kills
        self._family = family
        self._pidfd = os.pidfd_open(process.pid)
        self.socket = sock
        self.output: int | None = output
        self.on_reaped: Callable[[], None] | None = None  # called once

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def abandoned(self) -> bool:
        """Never: SIGKILL works."""
        return False

    @property
    def suspended(self) -> bool:
        """Whether SIGSTOP or its like has stopped it, by the state in /proc/<pid>/stat."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False  # it has just exited, or this process may not read its /proc
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}

    @property
    def fit(self) -> bool:
        """Whether it has neither exited nor been stopped."""
        return not self.exited and not self.suspended

    @property
    def exited(self) -> bool:
        """Whether it has ended, reaped or not."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @property
    def dying(self) -> bool:
        """Whether it is ending.

        The kernel takes a process's memory first, and a busy machine takes long over the rest.
        """
        try:
            return Path(f"/proc/{self.pid}/statm").read_text().startswith("0 ")
        except OSError:
            return self.exited

    async def wait(self) -> DeathReason:
        """Wait for the exit, end what it leaves behind, reap, and tell how it ended."""
        if self._process.returncode is None:
            await trio.lowlevel.wait_readable(self._pidfd)
            await in_thread(self._bury, limiter=self._burials)
        if self._process.returncode is None:
            self._process.wait()
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
            if self._user is not None:
                users.give_back(self._user)
            if self.on_reaped is not None:
                self.on_reaped()
        code = self._process.returncode
        if code >= 0:
            return Exit(code)
        if -code == signal.SIGKILL and (self._kills_in_group or self._oom_kills.one_more()):
            return Oom(self._reached, self._reached)
        return Signal(-code)

    def _bury(self) -> None:
        self._family.end()
        if self._group is not None:
            self._kills_in_group, self._reached = self._group.oom_kills(), self._group.reached()
            self._oom_kills.told(self._kills_in_group)
            self._group.end()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, to all that it has started as well; works on stopped processes too."""
        if self._process.returncode is None:
            self._family.kill()
        self._signal(signal.SIGKILL)

    def glance(self) -> Usage | None:
        """Measure what it and its descendants take, if there are few."""
        return self._family.glance()

    def usage(self, *, exact: bool = False) -> Usage:
        """Measure what it and its descendants take."""
        return self._family.usage(exact=exact)

    def _signal(self, number: Literal[signal.Signals.SIGTERM, signal.Signals.SIGKILL]) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # exited, not yet reaped
                signal.pidfd_send_signal(self._pidfd, number)


class OomKills:
    """How many processes of our control group the kernel has killed for memory, each told of once."""

    def __init__(self) -> None:
        found = find()
        self._events = Path(found.path) / "memory.events" if found is not None else None
        self._told = self._count()

    def one_more(self) -> bool:
        """Whether the kernel has killed one that was not told of yet; the next SIGKILL is another one's."""
        if self._count() <= self._told:
            return False
        self._told += 1
        return True

    def told(self, kills: int) -> None:
        """So many are known from a group within ours, which the count of ours has in it."""
        self._told = min(self._told + kills, self._count())

    def _count(self) -> int:
        try:
            return oom_kills(self._events.read_text()) if self._events is not None else 0
        except OSError:
            # Without such a control group, an OOM kill looks like any other SIGKILL.
            return 0


class ThreadWorker:
    """A worker on a thread of the server. Implements `actors.serving.instances.launching.Launched`.

    A hung one can only be abandoned.
    """

    def __init__(
        self, ours: socket.socket, theirs: socket.socket, *, name: str, cores: Sequence[int] = ()
    ) -> None:
        self.socket = ours
        self.output: int | None = None
        self._theirs = theirs
        self._cores = cores
        self._ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._run, name=f"worker-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return os.getpid()

    def _run(self) -> None:
        from engine.worker.serve import Serving, Stopped  # a server without such workers never needs it

        try:
            with self._theirs, bound_to(self._cores):
                Serving(self._theirs, on_disconnect=lambda: None).run()
        except Stopped:
            pass
        finally:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._ended.set)

    async def wait(self) -> DeathReason:
        """Wait until it has ended, or has been given up."""
        await self._ended.wait()
        return Exit(0)

    def terminate(self) -> None:
        """Disconnect it: it ends once the model returns."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Give it up. If it hangs, its thread stays behind until the model returns."""
        self.terminate()
        self._ended.set()

    @property
    def abandoned(self) -> bool:
        """Whether its thread is still running though it has been given up."""
        return self._ended.is_set() and self._thread.is_alive()

    @property
    def suspended(self) -> bool:
        """Never: the server would be stopped as well."""
        return False

    @property
    def exited(self) -> bool:
        """Whether it has ended, or has been given up."""
        return self._ended.is_set()

    @property
    def dying(self) -> bool:
        """Never: a thread ends at once, or not at all."""
        return False

    def glance(self) -> Usage:
        """Nothing of its own: what the model takes is the server's."""
        return Usage(0, 0)

    def usage(self, *, exact: bool = False) -> Usage:
        """Nothing of its own: what the model takes is the server's."""
        return Usage(0, 0)
