"""Restricts what this process and its children can do, whatever code they run. Linux, by ctypes.

There are three mechanisms of the kernel, none of which needs a privilege. `no_new_privs` keeps set-user-id
programs from giving any. A seccomp filter (`engine.worker.filtering`) refuses system calls by their number
and their plain arguments. Landlock refuses files by their path, TCP ports, and signals to processes outside.

References: `Documentation/userspace-api/landlock.rst` and `no_new_privs.rst` of the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import TYPE_CHECKING

from engine.worker.filtering import INSTRUCTION_BYTES, program
from engine.worker.syscalls import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)

# -- entering --------------------------------------------------------------------------------------------

_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_CAPABILITY_SETS = struct.Struct("=6I")
_ALL_CAPABILITIES = tuple(range(64))
_OVER_OTHERS = (16, 17, 19, 21, 22, 38, 39)
"""CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_BOOT, CAP_PERFMON and CAP_BPF.

CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON open /proc/<pid>/environ and the like, whatever Landlock says.
The others change the kernel.
"""
_DROPPED = {"off": (), "guard": _OVER_OTHERS, "basic": _OVER_OTHERS, "strict": _ALL_CAPABILITIES}


def enter(
    level: str,
    *,
    childless: bool = False,
    own_user: bool = False,
    read: Sequence[str] = (),
    write: Sequence[str] = (),
    given: Sequence[str] = (),
) -> list[str]:
    """Enter the sandbox `level`: "off", "guard", "basic" or "strict". Call it while there is one thread only.

    `childless` refuses new processes, at any level. `own_user`: this process has a user id of its own. A
    strict sandbox may read and run what lies under `read`, and do anything under `write`; those of the paths
    that are `given` by an operator's leave are refused if a link is in them. Returns what could not be
    applied, in words for an operator; never raises for that.
    """
    dropped = _DROPPED[level]
    _drop_capability_bounds(dropped)
    missing = _attempt("no new privileges", _refuse_new_privileges)
    if level != "off":
        missing += _enter_landlock(level, read, write, given)
        missing += _attempt("dropping capabilities", lambda: _drop_capabilities(dropped))

    def install() -> None:
        _install(program(level, childless=childless, own_user=own_user), fast=level == "guard")

    return missing + _attempt(_FILTER[level], install)


_FILTER = {
    "off": "the refusal of new processes",
    "guard": "the filter of system calls",
    "basic": "the filter of system calls, and with it the network's absence",
    "strict": "the filter of system calls, and with it the network's absence",
}


def own_paths(root: str) -> list[str]:
    """Return where this interpreter, what it may import, and the libraries under them lie."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    paths = [root, sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *libraries]
    paths.append(os.path.realpath(sys.executable))
    return [path for path in paths if path.startswith("/")]


def _attempt(what: str, do: Callable[[], None]) -> list[str]:
    try:
        do()
    except OSError as error:
        return [f"{what}: {error.strerror or error}"]
    return []


def _refuse_new_privileges() -> None:
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _drop_capability_bounds(dropped: Iterable[int]) -> None:
    """Keep programs that are run from here from gaining these capabilities.

    Without the right to do so there is nothing to gain.
    """
    for capability in dropped:
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _drop_capabilities(dropped: Iterable[int]) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0))
    sets = ctypes.create_string_buffer(_CAPABILITY_SETS.size)
    _check(_LIBC.capget(header, sets))
    kept = ~sum(1 << capability for capability in dropped)
    # Effective, permitted, inheritable; then the upper halves of each.
    words = _CAPABILITY_SETS.unpack_from(sets)
    halves = (kept & 0xFFFFFFFF, kept >> 32 & 0xFFFFFFFF)
    _CAPABILITY_SETS.pack_into(sets, 0, *(word & halves[at // 3] for at, word in enumerate(words)))
    _check(_LIBC.capset(header, sets))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


_SET_MODE_FILTER = 1
_FILTER_ALL_THREADS = 1
_FILTER_FAST = 4


def _install(instructions: bytes, *, fast: bool) -> None:
    """Enter a filter.

    Before Linux 5.16 a process in one computes slower, since its speculation is curbed; `fast` forgoes that.
    """
    number = numbers(os.uname().machine)["seccomp"]
    kept = ctypes.create_string_buffer(instructions)
    # A `struct sock_fprog`.
    argument = struct.pack("HP", len(instructions) // INSTRUCTION_BYTES, ctypes.addressof(kept))
    if fast and _LIBC.syscall(number, _SET_MODE_FILTER, _FILTER_ALL_THREADS | _FILTER_FAST, argument) == 0:
        return
    # Linux 4.17 is the first that knows how to forgo it.
    _check(_LIBC.syscall(number, _SET_MODE_FILTER, _FILTER_ALL_THREADS, argument))


# -- files -----------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_AT_FDCWD, _RESOLVE_NO_SYMLINKS = -100, 0x04

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
# How many of the rights to files each version of Landlock knows of.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_RIGHTS_SINCE_5 = 16
_REFER_SINCE, _TCP_SINCE, _SCOPES_SINCE = 2, 4, 6
_TCP = 0b11  # to bind and to connect
_SCOPES = 0b11  # abstract sockets and signals

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/sys", "/proc")
_SETTINGS = (
    *(
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/etc/passwd",
        "/etc/group",
        "/etc/nsswitch.conf",
        "/etc/mime.types",
    ),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/fonts", "/etc/alternatives", "/etc/OpenCL"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ACCELERATORS = ("nvidia", "dri", "kfd", "dxg", "accel")  # how their names under /dev begin


def landlock_version() -> int:
    """Return the version of the kernel's Landlock, and -1 if it has none."""
    return int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION))


def unavailable(level: str, version: int) -> list[str]:
    """Return what a Landlock of this version can't refuse of what the level asks for, with the remedy."""
    files = level == "strict"
    missing = []
    if version < _SCOPES_SINCE and level != "guard":
        missing.append(
            "the refusal of signals to other processes: this kernel's Landlock can't, Linux 6.12 can"
        )
    if version < 1 and files:
        missing.append("the refusal of files: this kernel has no Landlock, Linux 5.13 and later may")
    if version < (1 if files else _REFER_SINCE):
        missing.append(
            "the refusal of other processes' memory in /proc: this kernel's Landlock can't, Linux 5.19 can"
        )
    return missing


def _enter_landlock(level: str, read: Sequence[str], write: Sequence[str], given: Sequence[str]) -> list[str]:
    version = landlock_version()
    missing = unavailable(level, version)
    if version < (1 if level == "strict" else _REFER_SINCE):
        return missing
    try:
        missing += _restrict(version, level, read, write, given)
    except OSError as error:
        missing.append(f"the refusal of files and signals: {error.strerror or error}")
    return missing


def _restrict(
    version: int, level: str, read: Sequence[str], write: Sequence[str], given: Sequence[str]
) -> list[str]:
    # A process in any domain can't look into processes outside of it, so there is one even if it refuses
    # nothing else.
    files, missing = level == "strict", []
    everything = (1 << _RIGHTS.get(version, _RIGHTS_SINCE_5)) - 1
    rights = everything if files else 0 if version >= _TCP_SINCE and level != "guard" else _REFER
    fields = [rights]
    if version >= _TCP_SINCE:
        fields.append(_TCP if level != "guard" else 0)
    if version >= _SCOPES_SINCE:
        fields.append(_SCOPES if level != "guard" else 0)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _check(_LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        if files:
            _allow(ruleset, [*_SYSTEM, *_SETTINGS, *read], _EXECUTE | _READ_FILE | _READ_DIR, given)
            _allow(ruleset, _devices(), rights & (_READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEVICE))
            _allow(ruleset, write, rights, given)
            missing = [f"'{path}': a link is in it" for path in given if _linked(path)]
        elif rights:
            _allow(ruleset, ["/"], rights)
        _check(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return missing


def _devices() -> list[str]:
    try:
        names = os.listdir("/dev")
    except OSError:
        names = []
    return [*_DEVICES, *(f"/dev/{name}" for name in names if name.startswith(_ACCELERATORS))]


def _linked(path: str) -> bool:
    try:
        os.close(_open_unlinked(path))
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _open_unlinked(path: str) -> int:
    """Open a path in which no part is a link. Raises OSError, with ELOOP if one is."""
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    number = numbers(os.uname().machine)["openat2"]
    return _check(_LIBC.syscall(number, _AT_FDCWD, os.fsencode(path), how, ctypes.c_size_t(len(how))))


def _allow(ruleset: int, paths: Iterable[str], rights: int, given: Sequence[str] = ()) -> None:
    for path in dict.fromkeys(paths):
        try:
            descriptor = _open_unlinked(path) if path in given else os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # what is missing, or may not be read, needs no right
        try:
            allowed = rights if os.path.isdir(path) else rights & _OF_A_FILE
            rule = struct.pack("=Qi", allowed, descriptor)
            _check(_LIBC.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
        finally:
            os.close(descriptor)
