"""Restricts what this process and its children can do, whatever code they run. Linux, by ctypes.

There are three mechanisms of the kernel, none of which needs a privilege. `no_new_privs` keeps set-user-id
programs from giving any. A seccomp filter, a small program that the kernel runs at every system call, refuses
some calls by their number and their plain arguments. Landlock refuses files by their path, TCP ports, and
signals to processes outside.

References: `Documentation/userspace-api/landlock.rst`, `no_new_privs.rst` and `seccomp_filter.rst` of the
kernel, and the numbers of system calls in its `arch/x86/entry/syscalls/syscall_64.tbl` and
`include/uapi/asm-generic/unistd.h` (arm64).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)

# -- entering --------------------------------------------------------------------------------------------

_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_CAPABILITY_SETS = struct.Struct("=6I")
_ALL_CAPABILITIES = tuple(range(64))
_TO_LOOK_INTO_OTHERS = (19, 21, 38)
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON.

Each opens /proc/<pid>/environ and the like, whatever Landlock says.
"""


def enter(level: str, *, childless: bool, read: Sequence[str], write: Sequence[str]) -> list[str]:
    """Enter the sandbox `level`: "off", "basic" or "strict". Call it while there is one thread only.

    `childless` refuses new processes, at any level. A strict sandbox may read and run what lies under `read`,
    and do anything under `write`. Returns what could not be applied, in words for an operator; never raises
    for that.
    """
    strict = level == "strict"
    dropped = {"off": (), "basic": _TO_LOOK_INTO_OTHERS, "strict": _ALL_CAPABILITIES}[level]
    _drop_capability_bounds(dropped)
    missing = _attempt("no new privileges", _refuse_new_privileges)
    if level != "off":
        missing += _enter_landlock(read, write, files=strict)
        missing += _attempt("dropping capabilities", lambda: _drop_capabilities(dropped))
    return missing + _attempt(_FILTER[level], lambda: _install(program(level, childless=childless)))


_FILTER = {
    "off": "the refusal of new processes",
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


# -- the filter of system calls --------------------------------------------------------------------------

# By machine: the kernel's number for it, and its numbers of system calls. None: it has no such call.
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "clone3": (435, 435),
    "seccomp": (317, 277),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    # What a process may do to itself, and by a process id to any other of the same user.
    "prlimit64": (302, 261),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    # Other processes, and what runs below them.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "iopl": (172, None),
    "ioperm": (173, None),
    # A second way to make system calls, past every filter.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # What is mounted where, and other namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # The whole machine.
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
_FIRST_REFUSED = "ptrace"  # it and those below it are refused at every level but "off"
_STRICTLY_REFUSED = ("setpgid", "setsid")

# A CPU limit of a second, set on the server by `prlimit`, kills it. So these take only 0 and the worker's own
# process id.
_OF_ITSELF = (
    "prlimit64",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
    "migrate_pages",
    "move_pages",
)
# Thread pools pin their own threads by thread id, which no filter can tell from a process id.
_STRICTLY_OF_ITSELF = ("sched_setaffinity",)
_ONE_PROCESS = {"setpriority": 0, "ioprio_set": 1}  # PRIO_PROCESS, IOPRIO_WHO_PROCESS: not all of a user's
# These have the kernel signal whichever process a descriptor is said to belong to: F_SETOWN, F_SETSIG,
# F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
_OWNERSHIP = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}

_AF_UNIX = 1
_CLONE_THREAD = 0x00010000
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000

# BPF as in linux/filter.h: code, jump if true, jump if false, constant.
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD = 0x20  # a word of `struct seccomp_data` at the constant
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # on little-endian machines
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # with an errno
_KILL = 0x80000000
_SET_MODE_FILTER = 1
_FILTER_ALL_THREADS = 1
_LONGEST_PROGRAM = 4096


def program(level: str, *, childless: bool, machine: str | None = None, own: int | None = None) -> bytes:
    """Return the filter for a level as the kernel takes it, `struct sock_filter[]`.

    `own` is the id of the process that enters it, this one if it is not given.
    Raises OSError if the machine is one whose system calls we have no numbers of.
    """
    machine = machine or os.uname().machine
    own = os.getpid() if own is None else own
    if machine not in _ARCHITECTURE:
        raise OSError(errno.ENOSYS, f"there is no filter for {machine}")
    made = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _KILL),  # the numbers of another architecture mean something else
        (_LOAD, 0, 0, _NUMBER_AT),
        *_when(_AT_LEAST, _X32, errno.ENOSYS),
    ]
    for name, refusal in _refusals(level, childless=childless):
        number = _NUMBERS[name][machine == "aarch64"]
        if number is not None:
            made += _when(_EQUAL, number, refusal)
    for name, tests in _inspections(level, own, childless=childless):
        number = _NUMBERS[name][machine == "aarch64"]
        assert number is not None
        body = [*tests, (_RETURN, 0, 0, _ALLOW)]
        made += [(_EQUAL, 0, len(body), number), *body]
    made.append((_RETURN, 0, 0, _ALLOW))
    assert len(made) < _LONGEST_PROGRAM
    return b"".join(_INSTRUCTION.pack(*each) for each in made)


def _refusals(level: str, *, childless: bool) -> list[tuple[str, int]]:
    """Return the calls that are refused whatever their arguments, with the error that they give."""
    refused: list[tuple[str, int]] = []
    if childless:
        refused += [("fork", errno.EAGAIN), ("vfork", errno.EAGAIN)]
    # Its arguments lie behind a pointer, where no filter can see them. C libraries fall back on `clone`.
    refused.append(("clone3", errno.ENOSYS))
    if level != "off":
        names = list(_NUMBERS)
        refused += [(name, errno.EPERM) for name in names[names.index(_FIRST_REFUSED) :]]
    if level == "strict":
        refused += [(name, errno.EPERM) for name in _STRICTLY_REFUSED]
        refused.append(("socket", errno.EACCES))
    return refused


def _inspections(
    level: str, own: int, *, childless: bool
) -> list[tuple[str, list[tuple[int, int, int, int]]]]:
    """Return the calls that depend on their arguments, each with the tests that it must pass."""
    clone = [_argument(0)]
    if level != "off":
        clone += _when(_ANY_BIT, _NEW_NAMESPACES, errno.EPERM)
    if childless:
        clone += _unless(_ANY_BIT, _CLONE_THREAD, errno.EAGAIN)
    inspected = [("clone", clone)]
    if level == "basic":
        inspected.append(("socket", [_argument(0), *_unless(_EQUAL, _AF_UNIX, errno.EACCES)]))
    if level == "off":
        return inspected
    alone = _OF_ITSELF if level == "basic" else (*_OF_ITSELF, *_STRICTLY_OF_ITSELF)
    inspected += [(name, [_argument(0), *_unless_own(own)]) for name in alone]
    for name, process in _ONE_PROCESS.items():
        whose = [_argument(0), *_unless(_EQUAL, process, errno.EPERM), _argument(1), *_unless_own(own)]
        inspected.append((name, whose))
    for name, commands in _OWNERSHIP.items():
        tests = [_argument(1)]
        for command in commands:
            tests += _when(_EQUAL, command, errno.EPERM)
        inspected.append((name, tests))
    return inspected


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the lower half of an argument: all that the kernel reads of an `int`."""
    return (_LOAD, 0, 0, _FIRST_ARGUMENT_AT + 8 * index)


def _unless_own(own: int) -> list[tuple[int, int, int, int]]:
    return [(_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, own), (_RETURN, 0, 0, _REFUSE | errno.EPERM)]


def _when(test: int, constant: int, refusal: int) -> list[tuple[int, int, int, int]]:
    return [(test, 0, 1, constant), (_RETURN, 0, 0, _REFUSE | refusal)]


def _unless(test: int, constant: int, refusal: int) -> list[tuple[int, int, int, int]]:
    return [(test, 1, 0, constant), (_RETURN, 0, 0, _REFUSE | refusal)]


def _install(instructions: bytes) -> None:
    number = _NUMBERS["seccomp"][os.uname().machine == "aarch64"]
    kept = ctypes.create_string_buffer(instructions)
    # A `struct sock_fprog`.
    argument = struct.pack("HP", len(instructions) // _INSTRUCTION.size, ctypes.addressof(kept))
    _check(_LIBC.syscall(number, _SET_MODE_FILTER, _FILTER_ALL_THREADS, argument))


# -- files -----------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

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


def _enter_landlock(read: Iterable[str], write: Iterable[str], *, files: bool) -> list[str]:
    version = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    missing = []
    if version < _SCOPES_SINCE:
        missing.append(
            "the refusal of signals to other processes: this kernel's Landlock can't, Linux 6.12 can"
        )
    if version < 1 and files:
        missing.append("the refusal of files: this kernel has no Landlock, Linux 5.13 and later may")
    if version < (1 if files else _REFER_SINCE):
        return [
            *missing,
            "the refusal of other processes' memory in /proc: this kernel's Landlock can't, Linux 5.19 can",
        ]
    try:
        _restrict(version, list(read), list(write), files=files)
    except OSError as error:
        missing.append(f"the refusal of files and signals: {error.strerror or error}")
    return missing


def _restrict(version: int, read: Sequence[str], write: Sequence[str], *, files: bool) -> None:
    # A process in any domain can't look into processes outside of it, so there is one even if it refuses
    # nothing else.
    everything = (1 << _RIGHTS.get(version, _RIGHTS_SINCE_5)) - 1
    rights = everything if files else 0 if version >= _TCP_SINCE else _REFER
    fields = [rights]
    if version >= _TCP_SINCE:
        fields.append(_TCP)
    if version >= _SCOPES_SINCE:
        fields.append(_SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _check(_LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        if files:
            _allow(ruleset, [*_SYSTEM, *_SETTINGS, *read], _EXECUTE | _READ_FILE | _READ_DIR)
            _allow(ruleset, _devices(), rights & (_READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEVICE))
            _allow(ruleset, write, rights)
        elif rights:
            _allow(ruleset, ["/"], rights)
        _check(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _devices() -> list[str]:
    try:
        names = os.listdir("/dev")
    except OSError:
        names = []
    return [*_DEVICES, *(f"/dev/{name}" for name in names if name.startswith(_ACCELERATORS))]


def _allow(ruleset: int, paths: Iterable[str], rights: int) -> None:
    for path in dict.fromkeys(paths):
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # what is missing, or may not be read, needs no right
        try:
            allowed = rights if os.path.isdir(path) else rights & _OF_A_FILE
            rule = struct.pack("=Qi", allowed, descriptor)
            _check(_LIBC.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
        finally:
            os.close(descriptor)
