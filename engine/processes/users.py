"""User ids of their own for workers in a strict sandbox, where the server runs as root (docs/worker_life.md).

A worker then owns no file and no process but its own, so that the kernel itself refuses what is another
user's: signals, limits, pinning, `chmod`. No two processes of a server have the same id at a time. All have
one group, by which an operator can give them files.
"""

from __future__ import annotations

import os
import pwd
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from engine.models.links import descriptors_in

FIRST: Final = 61184
LAST: Final = 65519
"""The ids that systemd keeps for users which exist only while a service runs.

Containers that map 65,536 ids have them too.
"""
GROUP: Final = FIRST

_NEEDED: Final = {5: "CAP_KILL", 6: "CAP_SETGID", 7: "CAP_SETUID", 19: "CAP_SYS_PTRACE"}
"""To take another id, to end a process that has it, and to see what it has started."""

_MOST_FILES: Final = 4096  # of a model that are looked at

_taken: set[int] = set()
_lock: Final = threading.Lock()


class File(NamedTuple):
    """Who may do what with a file or directory, as `stat` tells it, and what a worker needs of it.

    Rights are 4 to read or list, and 1 to run or enter.
    """

    path: str
    mode: int
    owner: int
    group: int
    needed: int

    def missing(self) -> str:
        """Return the letters of the rights that a worker's group, or any user, needs and has not."""
        granted = self.mode >> (3 if self.group == GROUP else 0)
        return "".join(letter for right, letter in ((4, "r"), (1, "x")) if self.needed & right & ~granted)


def why_none(user: int, status: str, uid_map: str, gid_map: str) -> str | None:
    """Return why a server of this user can't give ids away: None if it can, "" if it is not root.

    `status`, `uid_map` and `gid_map` are those files of its /proc/self.
    """
    if user != 0:
        return ""
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line[:7] == "CapEff:"), 0)
    missing = [name for number, name in _NEEDED.items() if not effective >> number & 1]
    if missing:
        return f"the server runs as root without {', '.join(missing)}"
    if not _has(uid_map, FIRST, LAST):
        return f"the server's user namespace has no ids {FIRST} to {LAST}"
    if not _has(gid_map, GROUP, GROUP):
        return f"the server's user namespace has no group id {GROUP}"
    return None


def _has(id_map: str, first: int, last: int) -> bool:
    """Whether one line of a user namespace's map has all of these ids."""
    ranges = [tuple(map(int, line.split())) for line in id_map.splitlines()]
    return any(start <= first and start + count > last for start, _, count in ranges)


def unable() -> str | None:
    """Return why this process can't give ids away, as `why_none` says it."""
    try:
        status = Path("/proc/self/status").read_text()
        uid_map = Path("/proc/self/uid_map").read_text()
        gid_map = Path("/proc/self/gid_map").read_text()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return why_none(os.geteuid(), status, uid_map, gid_map)


@contextmanager
def lent(wanted: bool) -> Iterator[int | None]:
    """Lend an id for as long as the block runs, if one is wanted. Raises OSError if all are in use."""
    user = take() if wanted else None
    try:
        yield user
    finally:
        if user is not None:
            give_back(user)


def take() -> int:
    """Return an id that no account, no process and no other worker has. Raises OSError if there is none.

    It reads /proc; call it on a thread.
    """
    running = set(_users_of_processes())
    with _lock:
        for user in range(FIRST, LAST + 1):
            if user not in _taken and user not in running and not _is_an_account(user):
                _taken.add(user)
                return user
    raise OSError(f"all user ids from {FIRST} to {LAST} are in use")


def give_back(user: int) -> None:
    """All processes that had the id have ended."""
    with _lock:
        _taken.discard(user)


def share(directory: Path) -> None:
    """Let workers with ids of their own read a private directory of the server's, if it gives such ids.

    On a file system without owners, such as CIFS, it is left as it is: `barred` tells of it where that
    matters.
    """
    if unable() is None:
        with suppress(OSError):
            os.chown(directory, -1, GROUP)
            directory.chmod(0o750)


def let_through(directory: Path) -> None:
    """Let workers with ids of their own pass a private directory on their way, if the server gives such ids.

    They may not list it. A directory that another group may use is left as it is, and so is what `share`
    leaves.
    """
    mode = directory.stat().st_mode
    if unable() is None and not mode & (stat.S_IRWXG | stat.S_IXOTH):
        with suppress(OSError):
            os.chown(directory, -1, GROUP)
            directory.chmod(stat.S_IMODE(mode) | stat.S_IXGRP)


def barred(
    paths: Iterable[str | Path],
    programs: Iterable[str | Path] = (),
    *,
    searched: Iterable[str | Path] = (),
) -> str:
    """Return what keeps workers with own ids from files or `programs`, and the remedy; "" if nothing does.

    It looks at the whole of a directory; of those that are `searched` for modules, at the directory and what
    has a module's name. Call it on a thread.
    """
    for path in dict.fromkeys(map(str, paths)):
        if said := _first_barrier(path, (*_way_to(path, 4), *_below(path))):
            return said
    for path in dict.fromkeys(map(str, searched)):
        if said := _first_barrier(path, (*_way_to(path, 4), *_importable(path))):
            return said
    for program in map(str, programs):
        if said := _first_barrier(program, (*_way_to(program, 5), *_way_to(os.path.realpath(program), 5))):
            return said
    return ""


def _first_barrier(wanted: str, files: Iterable[File]) -> str:
    for file in files:
        if letters := file.missing():
            return (
                f"'{file.path}' (mode {stat.S_IMODE(file.mode):04o}, owner {file.owner}) keeps another user"
                f" from '{wanted}': chmod o+{letters} '{file.path}', or chgrp {GROUP} and chmod g+{letters}"
            )
    return ""


def _way_to(path: str, needed: int) -> Iterator[File]:
    """Yield the directories on the way to a file, and the file itself."""
    whole = Path(os.path.abspath(path))
    is_held = bool(descriptors_in([whole]))
    for parent in reversed(whole.parents):
        # A process inherits an open directory, and needs no way to it.
        if not is_held or descriptors_in([parent]):
            yield from _look(str(parent), 1)
    yield from _look(str(whole), needed)


def _below(path: str) -> Iterator[File]:
    """Yield what is in a directory, as far as `_MOST_FILES` go."""
    left = _MOST_FILES
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            if not left:
                return
            left -= 1
            yield from _look(os.path.join(directory, name), 4)


def _importable(folder: str) -> Iterator[File]:
    """Yield what a module, a package or a shared library may be, of a folder that is searched for them."""
    # A zip, or nothing, is no folder.
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            stem, _, ending = entry.name.partition(".")
            if not stem.isidentifier() or stem == "__pycache__":
                continue
            if ending == "py" or ".so" in entry.name or (ending in ("", "libs") and entry.is_dir()):
                yield from _look(entry.path, 4)


def _look(path: str, needed: int) -> Iterator[File]:
    # A link to nowhere, or what has just gone, is the model's own trouble.
    with suppress(OSError):
        status = os.stat(path)
        needed |= 1 if stat.S_ISDIR(status.st_mode) else 0
        yield File(path, status.st_mode, status.st_uid, status.st_gid, needed)


def _users_of_processes() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and (user := user_of(int(name))) is not None:
            yield user


def user_of(process: int) -> int | None:
    """Return the real user id of a process, None if it has gone.

    The owner of its directory in /proc is another where the process has hidden itself (`PR_SET_DUMPABLE`).
    """
    try:
        status = Path(f"/proc/{process}/status").read_text(errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:")), None)


def _is_an_account(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True
