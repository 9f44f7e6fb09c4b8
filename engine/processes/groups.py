"""Control groups of their own for strict workers, where the server's was handed over to it. Blocking.

    <the server's group>/
        tritium-server              the server, where its own group may hold no processes once it is divided
        tritium-workers-<word>/     one server's workers; locked by it for as long as it lives
            <word>                  one worker, with all that it has started

A group is made before its worker starts, and removed when that has ended. What a killed server has left
behind is known by its lock, which no server holds: the start of another ends its processes and removes it.
Nothing is touched until the first strict worker starts, but for such remains.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from engine.processes import group_plan
from engine.processes.group_plan import HOMES, LEAF, NEEDED, Found, GroupLimits

_ENDED_WITHIN: Final = 5.0  # seconds: a killed process may be in the kernel for a while
_LOOKS_EVERY: Final = 0.05
_ROUNDS: Final = 10  # of moving what our own workers have started meanwhile
_LACKED: Final = "memory.swap.max"  # by kernels that don't count what is swapped out
_CONTROLLERS: Final = " ".join(f"+{name}" for name in NEEDED)
_BOOTED: Final = Path("/run/systemd/system")  # it is there where systemd runs the machine


def find(proc: Path = Path("/proc"), booted: Path = _BOOTED) -> Found | None:
    """Return what this process finds of its control group; None if there is none of version 2."""
    try:
        mount = group_plan.mounted(_text(proc / "self/mountinfo"))
        if mount is None:
            return None
        group = group_plan.group_of(_text(proc / "self/cgroup"), mount)
        if group is None:
            return None
        path = Path(group)
        is_root = not (path / "cgroup.type").exists()
        # The machine's uppermost group has hundreds, and may.
        processes = [] if is_root else _processes(path)
        return Found(
            path=group,
            controllers=frozenset(_read(path / "cgroup.controllers").split()),
            enabled=frozenset(_read(path / "cgroup.subtree_control").split()),
            is_root=is_root,
            writable=mount.writable and all(os.access(each, os.W_OK) for each in _written(path)),
            delegated=not booted.is_dir() or os.geteuid() != 0 or _is_delegated(path, Path(mount.point)),
            other=next((pid for pid in processes if not _is_ours(pid, proc)), None),
        )
    except OSError:
        return None  # it was removed while it was looked at


def _written(group: Path) -> list[Path]:
    return [group, group / "cgroup.procs", group / "cgroup.subtree_control"]


def _is_delegated(group: Path, mount: Path) -> bool:
    """Whether systemd has marked a group, or one above it, as handed over."""
    for each in (group, *group.parents):
        for name in ("user.delegate", "trusted.delegate"):
            with contextlib.suppress(OSError):
                if os.getxattr(each, name) == b"1":
                    return True
        if each == mount:
            break
    return False


def _is_ours(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process is this one, or descends from it."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return not _is_hidden(pid)  # it has just gone
        except OSError:
            return False  # it is not for this user to look at
    return pid == os.getpid()


def _is_hidden(pid: int) -> bool:
    """Whether a process that is not in /proc lives: a mount with `hidepid=2` leaves other users' out."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


class Group:
    """One worker's control group. Plain functions, usable from any thread."""

    def __init__(
        self,
        path: Path,
        limits: GroupLimits,
        removed: Callable[[], None],
        remove: Callable[[Path], None],
    ) -> None:
        self._path = path
        self._limits = limits
        self._removed: Callable[[], None] | None = removed
        self._remove = remove

    def add(self, pid: int) -> None:
        """Put a process into it; what that starts from now on is in it too. Raises OSError."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel has killed for memory."""
        return group_plan.oom_kills(self._memory_events())

    def reached(self) -> int:
        """Return its own limit of memory in bytes if that was reached, and 0 otherwise."""
        return self._limits.memory if group_plan.reached_limit(self._memory_events()) else 0

    def _memory_events(self) -> str:
        return _read(self._path / "memory.events")

    def end(self) -> None:
        """Kill what is left in it, and remove it. A second time does nothing."""
        removed, self._removed = self._removed, None
        if removed is not None:
            _kill(self._path)
            _remove_emptied(self._path, self._remove)
            removed()


class Groups:
    """The control groups of one server's strict workers. Plain functions, usable from any thread."""

    def __init__(
        self, look: Callable[[], Found | None] = find, remove: Callable[[Path], None] = os.rmdir
    ) -> None:
        """`look` and `remove` are for tests, whose folders are no control groups."""
        self._look = look
        self._remove = remove
        self._lock = threading.Lock()
        self._divided: Path | None = None  # the group that holds those of the workers, once it is ready
        self._home: Path | None = None
        self._held = -1  # descriptor of the home, locked
        self._living = 0

    def why_none(self) -> str:
        """Return why workers get no groups, "" if they get some. Looks only."""
        with self._lock:
            return "" if self._divided is not None else group_plan.why_none(self._look())

    def make(self, limits: GroupLimits) -> Group:
        """Make a group with these limits. Raises OSError, with a text for operators if there is none."""
        with self._lock:
            divided = self._divide()
            path = None
            try:
                path = self._enter(divided) / secrets.token_hex(8)
                path.mkdir(mode=0o755)
                for name, value in limits.files():
                    if name != _LACKED or (path / name).exists():
                        (path / name).write_text(value)
            except OSError:
                if path is not None:
                    with contextlib.suppress(OSError):
                        self._remove(path)
                self._leave_if_empty()
                raise
            self._living += 1
        return Group(path, limits, self._gone, self._remove)

    def sweep(self) -> None:
        """End and remove what servers have left behind that were killed."""
        found = self._look()
        if found is None or not found.writable:
            return
        for home in sorted(Path(found.path).glob(f"{HOMES}*")):
            with contextlib.suppress(OSError), _locked(home):
                _kill(home)
                for each in _below(home):
                    _remove_emptied(each, self._remove)
                _remove_emptied(home, self._remove)

    def _divide(self) -> Path:
        """Have the server's group hand its controllers on. Raises OSError."""
        if self._divided is None:
            found = self._look()
            if why := group_plan.why_none(found):
                raise OSError(why)
            assert found is not None
            path = Path(found.path)
            if not set(NEEDED) <= found.enabled:
                if not found.is_root:
                    _make_room(path)
                (path / "cgroup.subtree_control").write_text(_CONTROLLERS)
            self._divided = path
        return self._divided

    def _enter(self, divided: Path) -> Path:
        """Return the home of this server's workers. Raises OSError."""
        if self._home is None:
            home = divided / f"{HOMES}{secrets.token_hex(8)}"
            home.mkdir(mode=0o755)
            self._held = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._home = home
            # Only a start of another server, at this very moment, could have it: then it removes it.
            fcntl.flock(self._held, fcntl.LOCK_EX)
        (self._home / "cgroup.subtree_control").write_text(_CONTROLLERS)
        return self._home

    def _gone(self) -> None:
        with self._lock:
            self._living -= 1
            self._leave_if_empty()

    def _leave_if_empty(self) -> None:
        if self._home is not None and not self._living:
            with contextlib.suppress(OSError):
                self._remove(self._home)
            os.close(self._held)
            self._home, self._held = None, -1


class Gate:
    """What a worker waits at until it is in its group (`engine.worker.limits.GATE`). On one thread.

    It starts without one if that can't be had, and says so.
    """

    def __init__(self, groups: Groups, limits: GroupLimits) -> None:
        self._told: list[str] = []
        self._group: Group | None = None
        try:
            self._group = groups.make(limits)
        except OSError as error:
            self._told.append(f"{group_plan.NO_GROUP}: {error}")
        self.descriptor, self._written = os.pipe2(os.O_CLOEXEC)

    def open_for(self, pid: int) -> Group | None:
        """Put the process into the group, and have it go on. Returns the group, if it is in one."""
        if self._group is not None:
            try:
                self._group.add(pid)
            except OSError as error:
                self._told.append(f"{group_plan.NO_GROUP}: {error}")
                self.give_up()
        os.write(self._written, json.dumps(self._told).encode())
        return self._group

    def give_up(self) -> None:
        """Remove the group: no process is in it."""
        if self._group is not None:
            self._group.end()
            self._group = None

    def close(self) -> None:
        """Close both ends. A process that has its own goes on with what was written."""
        os.close(self._written)
        os.close(self.descriptor)


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold a home that no server holds. Raises OSError if one does."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _make_room(group: Path) -> None:
    """Move this process and what it has started out of a group, which can't be divided with any in it.

    Raises OSError. Nothing else is moved: the kernel then refuses the division.
    """
    leaf = group / LEAF
    leaf.mkdir(mode=0o755, exist_ok=True)
    for _ in range(_ROUNDS):
        ours = [pid for pid in _processes(group) if _is_ours(pid)]
        if not ours:
            return
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(str(pid))


def _kill(group: Path) -> None:
    """Kill all that is in a group and below it."""
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:
        # Before Linux 5.14 there is no such file.
        for each in (*_below(group), group):
            for pid in _processes(each):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _remove_emptied(group: Path, remove: Callable[[Path], None]) -> None:
    """Remove a group once its last process has ended; leave it if that takes too long."""
    deadline = time.monotonic() + _ENDED_WITHIN
    with contextlib.suppress(OSError), open(group / "cgroup.events") as events:
        changed = select.poll()
        changed.register(events, select.POLLPRI)
        while group_plan.is_populated(events.read()) and time.monotonic() < deadline:
            changed.poll(_LOOKS_EVERY * 1000)
            events.seek(0)
    with contextlib.suppress(OSError):
        remove(group)


def _below(group: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # the group has just gone
        return [path for path in sorted(group.iterdir()) if path.is_dir()]
    return []


def _processes(group: Path) -> list[int]:
    return [int(line) for line in _read(group / "cgroup.procs").split()]


def _read(file: Path) -> str:
    try:
        return _text(file)
    except OSError:
        return ""


def _text(file: Path) -> str:
    """Return what the kernel tells in a file. The names of mounts and groups may be any bytes."""
    return file.read_text(errors="surrogateescape")
