"""The filter of system calls at each level of the sandbox, as a program for the kernel. Pure.

`guard` and `basic` refuse some calls and leave the rest. `strict` leaves some and refuses the rest: with
ENOSYS what the table does not know, as a kernel without the call would, and with EPERM what it knows.

Reference: `Documentation/userspace-api/seccomp_filter.rst` of the kernel. A filter sees a call's number and
its plain arguments, never what a pointer points to. For calls that are allowed whatever their arguments, the
kernel notes that when the filter is installed, and does not run it.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

from engine.worker.syscalls import numbers, numbers_of_32_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# -- what each level refuses, and what the strict one allows

_MOUNTS = (
    "mount umount umount2 pivot_root open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick"
    " mount_setattr open_by_handle_at setns"
)
# A browser makes namespaces and a root of its own for its pages. `guard` lets it: what it may do in there is
# still refused by the rest.
_NAMESPACES = "unshare chroot"
_KERNEL = "kexec_load kexec_file_load init_module finit_module delete_module bpf iopl ioperm"
_MACHINE = (
    "reboot swapon swapoff acct quotactl quotactl_fd stime settimeofday clock_settime clock_settime64"
    " clock_adjtime clock_adjtime64 adjtimex sethostname setdomainname"
)
_GUARD = f"{_MOUNTS} {_KERNEL} {_MACHINE}".split()

_OTHER_PROCESSES = (
    "ptrace process_vm_readv process_vm_writev pidfd_getfd process_madvise process_mrelease kcmp"
    " perf_event_open userfaultfd"
)
# A second way to make system calls, past every filter.
_RINGS = "io_uring_setup io_uring_enter io_uring_register"
_KEYS = "add_key request_key keyctl syslog"
_BASIC = f"{_NAMESPACES} {_OTHER_PROCESSES} {_RINGS} {_KEYS}".split()

_FILES = (
    "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close"
    " close_range dup dup2 dup3 lseek stat fstat lstat newfstatat statx statfs fstatfs access faccessat"
    " faccessat2 readlink readlinkat getdents getdents64 getcwd chdir fchdir mkdir mkdirat mknod mknodat"
    " rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat truncate ftruncate"
    " fallocate fsync fdatasync sync_file_range fadvise64 readahead flock umask sendfile splice tee vmsplice"
    " copy_file_range getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr getxattrat listxattrat"
)
_MEMORY = (
    "mmap mprotect mremap munmap madvise mlock mlock2 munlock mlockall munlockall mincore msync brk mbind"
    " set_mempolicy set_mempolicy_home_node get_mempolicy membarrier pkey_mprotect pkey_alloc pkey_free"
    " memfd_create mseal map_shadow_stack"
)
_WAITING = (
    "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2"
    " eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime signalfd signalfd4 pipe pipe2 futex"
    " futex_waitv futex_wake futex_wait futex_requeue pause"
)
_CONNECTED = (
    "recvfrom sendto recvmsg sendmsg recvmmsg sendmmsg shutdown getsockopt setsockopt getsockname getpeername"
)
_PROCESSES = (
    "fork vfork execve wait4 waitid exit exit_group kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo"
    " pidfd_open pidfd_send_signal rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigpending"
    " rt_sigtimedwait sigaltstack restart_syscall set_tid_address set_robust_list get_robust_list rseq"
    " arch_prctl setrlimit getrlimit getrusage capget"
)
_IDENTITY = (
    "getpid getppid gettid getuid geteuid getgid getegid getgroups getresuid getresgid getpgrp getpgid getsid"
    " setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid uname sysinfo getrandom"
    " getcpu"
)
_TIME = (
    "time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep getitimer setitimer alarm times"
    " timer_create timer_settime timer_gettime timer_getoverrun timer_delete"
)
_SCHEDULING = (
    "sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max"
    " sched_get_priority_min sched_rr_get_interval sched_getattr getpriority ioprio_get"
)
_STRICTLY_ALLOWED = (
    f"{_FILES} {_MEMORY} {_WAITING} {_CONNECTED} {_PROCESSES} {_IDENTITY} {_TIME} {_SCHEDULING}".split()
)

# A CPU limit of a second, set on the server by `prlimit`, kills it. So these take only 0 and the worker's own
# process id. Thread pools pin their own threads by thread id, which no filter can tell from a process id.
_LIMITS = ("prlimit64",)
_SCHEDULES = ("sched_setscheduler", "sched_setparam", "sched_setattr", "migrate_pages", "move_pages")
# Thread pools pin their own threads by thread id, which no filter can tell from a process id. GNU OpenMP ends
# the process if that fails, whatever the error. So all but 0 and the own process id are told that it is done,
# and nothing is done.
_PINNING = "sched_setaffinity"
_DONE = 0
_ONE_PROCESS = {"setpriority": 0, "ioprio_set": 1}  # PRIO_PROCESS, IOPRIO_WHO_PROCESS: not all of a user's

# What is done to a file by its path or by a descriptor opened for reading, so that Landlock has no say in it.
_FILE_OWNERS = [
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
]

# These have the kernel signal whichever process a descriptor is said to belong to: F_SETOWN, F_SETSIG,
# F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
_FILE_SIGNALS = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}
_TERMINALS = (0x5412, 0x541C)  # TIOCSTI types into a terminal, and TIOCLINUX pastes

_AF_UNIX = 1
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5  # of pairs; a datagram socket could be sent anywhere from
_KIND_OF_SOCKET = 0xF
_CLONE_THREAD = 0x00010000
_NEW_NAMESPACES = 0x7E020000
_AS_A_SIBLING = 0x00008000  # CLONE_PARENT: a child of the server, which is not found by descent
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGKILL = 9
_ASK_PERSONALITY = 0xFFFFFFFF

# -- the program: BPF as in linux/filter.h: code, jump if true, jump if false, constant

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_OF_32_BITS = 0x40000003  # on x86-64
_X32 = 0x40000000
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD = 0x20  # a word of `struct seccomp_data` at the constant
_MASK = 0x54
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # on little-endian machines
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # with an errno
_KILL = 0x80000000
LONGEST_PROGRAM = 4096
INSTRUCTION_BYTES = _INSTRUCTION.size


class Instruction(NamedTuple):
    """One of the program's."""

    code: int
    if_true: int
    if_false: int
    constant: int


def program(
    level: str,
    *,
    childless: bool,
    own_user: bool = False,
    machine: str | None = None,
    own: int | None = None,
) -> bytes:
    """Return the filter for a level as the kernel takes it, `struct sock_filter[]`.

    `childless` refuses new processes, at any level. `own_user` says that the process has a user id that no
    other process has. Then the kernel itself refuses what is not for its own files and processes. `own` is
    the id of the process that enters it, this one if it is not given. Raises OSError if the machine is one
    whose system calls we have no numbers of.
    """
    machine = machine or os.uname().machine
    number_of = numbers(machine)
    refused = dict(_refusals(level, childless=childless))
    inspected = dict(
        _inspections(level, os.getpid() if own is None else own, childless=childless, own_user=own_user)
    )
    made = [Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT)]
    if level == "guard" and machine == "x86_64":
        body = [Instruction(_LOAD, 0, 0, _NUMBER_AT), *_some(refused, inspected, numbers_of_32_bits())]
        body.append(Instruction(_RETURN, 0, 0, _ALLOW))
        made += [Instruction(_EQUAL, 0, len(body), _OF_32_BITS), *body]
    made += [
        Instruction(_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        Instruction(_RETURN, 0, 0, _KILL),  # the numbers of another architecture mean something else
        Instruction(_LOAD, 0, 0, _NUMBER_AT),
        *_when(_AT_LEAST, _X32, errno.ENOSYS),
        *_some(refused, inspected, number_of),
    ]
    if level != "strict":
        made.append(Instruction(_RETURN, 0, 0, _ALLOW))
    else:
        allowed = [*_STRICTLY_ALLOWED, *((*_FILE_OWNERS, *_scheduling()) if own_user else ())]
        for first, last in _ranges(number_of[name] for name in allowed if name in number_of):
            made += _within(first, last, _ALLOW)
        for first, last in _ranges(number_of.values()):
            made += _within(first, last, _REFUSE | errno.EPERM)
        made.append(Instruction(_RETURN, 0, 0, _REFUSE | errno.ENOSYS))
    assert len(made) < LONGEST_PROGRAM
    return b"".join(_INSTRUCTION.pack(*each) for each in made)


def _some(
    refused: Mapping[str, int], inspected: Mapping[str, list[Instruction]], number_of: Mapping[str, int]
) -> Iterable[Instruction]:
    """Yield what decides on the calls that are refused or inspected."""
    for name, refusal in refused.items():
        if name in number_of:
            yield from _when(_EQUAL, number_of[name], refusal)
    for name, tests in inspected.items():
        if name in number_of:
            body = [*tests, Instruction(_RETURN, 0, 0, _ALLOW)]
            yield Instruction(_EQUAL, 0, len(body), number_of[name])
            yield from body


def _refusals(level: str, *, childless: bool) -> Iterable[tuple[str, int]]:
    """Yield the calls that are refused whatever their arguments, with the error that they give."""
    if childless:
        yield "fork", errno.EAGAIN
        yield "vfork", errno.EAGAIN
    # Its arguments lie behind a pointer, where no filter can see them. C libraries fall back on `clone`.
    yield "clone3", errno.ENOSYS
    if level in ("guard", "basic"):
        for name in (*_GUARD, *(_BASIC if level == "basic" else ())):
            yield name, errno.EPERM
    if level == "strict":
        yield "socket", errno.EACCES


def _inspections(
    level: str, own: int, *, childless: bool, own_user: bool
) -> Iterable[tuple[str, list[Instruction]]]:
    """Yield the calls that depend on their arguments, each with the tests that it must pass."""
    clone = [_argument(0)]
    if level != "off":
        spaces = 0 if level == "guard" else _NEW_NAMESPACES
        clone += _when(_ANY_BIT, spaces | _AS_A_SIBLING, errno.EPERM)
    if childless:
        clone += _unless(_ANY_BIT, _CLONE_THREAD, errno.EAGAIN)
    yield "clone", clone
    if level == "off":
        return
    yield "ioctl", _none_of(1, (*_TERMINALS, *(_FILE_SIGNALS["ioctl"] if level != "guard" else ())))
    if level == "guard":
        yield "prlimit64", [*_no_pointer(2), _argument(0), *_unless_own(own)]
        return
    yield "fcntl", _none_of(1, _FILE_SIGNALS["fcntl"])
    if level == "basic":
        yield "socket", [_argument(0), *_unless(_EQUAL, _AF_UNIX, errno.EACCES)]
    else:
        yield from _strict_inspections()
    if level == "basic" or not own_user:
        for name in (*_LIMITS, *_SCHEDULES):
            yield name, [_argument(0), *_unless_own(own)]
        if level == "strict":
            yield _PINNING, [_argument(0), *_unless_own(own, _DONE)]
        for name, process in _ONE_PROCESS.items():
            whose = [_argument(0), *_unless(_EQUAL, process, errno.EPERM), _argument(1), *_unless_own(own)]
            yield name, whose


def _strict_inspections() -> Iterable[tuple[str, list[Instruction]]]:
    pair = [_argument(0), *_unless(_EQUAL, _AF_UNIX, errno.EACCES)]
    pair += [_argument(1), Instruction(_MASK, 0, 0, _KIND_OF_SOCKET)]
    pair += [Instruction(_EQUAL, 2, 0, _SOCK_STREAM), *_unless(_EQUAL, _SOCK_SEQPACKET, errno.EACCES)]
    yield "socketpair", pair
    # It dies with the server, and its orphans are its own: neither can be taken back.
    process: list[Instruction] = []
    for command, value in ((_PR_SET_PDEATHSIG, _SIGKILL), (_PR_SET_CHILD_SUBREAPER, 1)):
        told = [_argument(1), *_unless(_EQUAL, value, errno.EPERM), Instruction(_RETURN, 0, 0, _ALLOW)]
        process += [_argument(0), Instruction(_EQUAL, 0, len(told), command), *told]
    yield "prctl", process
    yield "personality", [_argument(0), *_unless(_EQUAL, _ASK_PERSONALITY, errno.EPERM)]


def _scheduling() -> tuple[str, ...]:
    return (*_LIMITS, *_SCHEDULES, _PINNING, *_ONE_PROCESS)


def _ranges(values: Iterable[int]) -> list[tuple[int, int]]:
    """Return the values as ranges, both ends included, in order."""
    found: list[tuple[int, int]] = []
    for value in sorted(values):
        if found and found[-1][1] == value - 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return found


def _within(first: int, last: int, verdict: int) -> list[Instruction]:
    return [
        Instruction(_AT_LEAST, 0, 2, first),
        Instruction(_AT_LEAST, 1, 0, last + 1),
        Instruction(_RETURN, 0, 0, verdict),
    ]


def _argument(index: int) -> Instruction:
    """Load the lower half of an argument: all that the kernel reads of an `int`."""
    return Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT_AT + 8 * index)


def _no_pointer(index: int) -> list[Instruction]:
    """Allow the call if this argument, an address, is none: it asks only."""
    at = _FIRST_ARGUMENT_AT + 8 * index
    return [
        Instruction(_LOAD, 0, 0, at),
        Instruction(_EQUAL, 0, 3, 0),
        Instruction(_LOAD, 0, 0, at + 4),
        Instruction(_EQUAL, 0, 1, 0),
        Instruction(_RETURN, 0, 0, _ALLOW),
    ]


def _none_of(index: int, values: Iterable[int]) -> list[Instruction]:
    tests = [_argument(index)]
    for value in values:
        tests += _when(_EQUAL, value, errno.EPERM)
    return tests


def _unless_own(own: int, error: int = errno.EPERM) -> list[Instruction]:
    return [
        Instruction(_EQUAL, 2, 0, 0),
        Instruction(_EQUAL, 1, 0, own),
        Instruction(_RETURN, 0, 0, _REFUSE | error),
    ]


def _when(test: int, constant: int, refusal: int) -> list[Instruction]:
    return [Instruction(test, 0, 1, constant), Instruction(_RETURN, 0, 0, _REFUSE | refusal)]


def _unless(test: int, constant: int, refusal: int) -> list[Instruction]:
    return [Instruction(test, 1, 0, constant), Instruction(_RETURN, 0, 0, _REFUSE | refusal)]
