"""A Python model that tries to get out of its sandbox: `model.py` of a repository, run in its worker.

Its input is a JSON object: process ids and paths of what it attacks. Its output tells by name what came of
each attempt: the name of an errno, "done", or words of its own. Each runs in a process of its own, harmless
where it is not refused: what it asks for is impossible, or only a question.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import subprocess
import traceback

import numpy as np

try:
    import triton_python_backend_utils as pb_utils
except ImportError:  # a test reads the names of the attempts
    pb_utils = None

LIBC = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
NUMBERS = {
    "io_uring_setup": (425, 425),
    "clone": (56, 220),
    "clone3": (435, 435),
    "setns": (308, 268),
    "pivot_root": (155, 41),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "process_vm_readv": (310, 270),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mq_open": (240, 180),
    "execveat": (322, 281),
    "swapon": (167, 224),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "ioprio_set": (251, 30),
    "fanotify_init": (300, 262),
    "move_pages": (279, 239),
    "landlock_create_ruleset": (444, 444),
    "syslog": (103, 116),
    "request_key": (249, 218),
    "process_vm_writev": (311, 271),
    "name_to_handle_at": (303, 264),
    "move_mount": (429, 429),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "quotactl": (179, 60),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "listmount": (458, 458),
    "adjtimex": (159, 171),
    "inotify_init1": (294, 26),
    "modify_ldt": (154, None),
    "ioperm": (173, None),
}
NULL = ctypes.c_void_p(0)


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call(name, *arguments):
    """Make a system call by its number, or a function of the C library's."""
    if name in NUMBERS:
        return checked(LIBC.syscall(NUMBERS[name][ARM], *arguments))
    return checked(getattr(LIBC, name)(*arguments))


def peek(path, mode="rb"):
    with open(path, mode) as file:
        if "r" in mode and "+" not in mode:
            file.read(1)


def cloned(flags):
    if call("clone", flags | signal.SIGCHLD, NULL, NULL, NULL, NULL) == 0:
        os._exit(0)


def cloned_by_pointer():
    arguments = struct.pack("=11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    if call("clone3", arguments, len(arguments)) == 0:
        os._exit(0)


def at_memory(pid, name="process_vm_readv"):
    here = ctypes.create_string_buffer(8)
    local = struct.pack("PN", ctypes.addressof(here), 8)
    there = struct.pack("PN", 4096, 8)  # no address of anything: EFAULT where it may look
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    call(name, pid, local, one, there, one, none)


def queued(pid):
    """Ask whether a signal with a value could be queued."""
    call("rt_sigqueueinfo", pid, 0, struct.pack("=3i4x2i", 0, 0, -1, os.getpid(), os.getuid()) + bytes(104))


def of_32_bits():
    """Ask for the process id as a program of 32 bits does: numbers of system calls mean others there."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    ask = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    child = os.fork()
    if child == 0:
        os._exit(0 if ask() == os.getpid() else 1)
    status = os.waitpid(child, 0)[1]
    if status:  # killed by the filter, or by a kernel without such calls
        raise PermissionError(errno.EPERM, f"it ended with {status}")


def made_device(path):
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(0, 0))
    os.remove(path)


def inherited():
    """Look for open files of the server's: what is beside the worker's own are sockets and pipes."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # the listing's own
    own = ("socket:", "pipe:", "anon_inode:", "/dev/null", "/memfd:", f"/proc/{os.getpid()}/")
    return ", ".join(link for link in links if not link.startswith(own)) or "nothing gained"


def signalled_by_handle(pid):
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, 0)


def file_of(pid):
    call("pidfd_getfd", os.pidfd_open(pid), 0, 0)


def connected(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)


def sent(address):
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(b"", address)


def confined(status):
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    held = (lines["NoNewPrivs"].strip(), lines["Seccomp"].strip()) == ("1", "2")
    return "confined" if held else "free"


def executed_from_memory():
    descriptor = os.memfd_create("program", 0)
    with open(os.path.realpath("/bin/cat"), "rb") as file:
        os.write(descriptor, file.read())
    path = f"/proc/self/fd/{descriptor}"
    told = subprocess.run([path, "/proc/self/status"], capture_output=True, text=True, pass_fds=[descriptor])
    return confined(told.stdout)


def preloaded(library):
    environ = {**os.environ, "LD_PRELOAD": library}
    told = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, env=environ)
    return confined(told.stdout)


def run_as_root(program):
    """Run a set-user-id program: a copy of `id` that belongs to root."""
    told = subprocess.run([program, "-u"], capture_output=True, text=True, check=False)
    if told.returncode < 0 or not told.stdout:
        raise PermissionError(errno.EACCES, "it does not run")
    return "root" if told.stdout.strip() == "0" != str(os.getuid()) else "nothing gained"


def written_through(link, target):
    os.symlink(target, link)
    try:
        peek(link, "r+b")
    finally:
        os.remove(link)


def linked(target, name):
    os.link(target, name)
    os.remove(name)


def execveat(path):
    descriptor = os.open(path, os.O_RDONLY)
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    call("execveat", descriptor, b"", arguments, NULL, 0x1000)


def terminal(command):
    fcntl.ioctl(0, command, b"x")


def typed(descriptor):
    fcntl.ioctl(descriptor, 0x5412, b"x")


def owned_by(pid):
    ours, _ = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETOWN, pid)


def pinned(pid):
    """Pin another process to no core at all: the kernel refuses that, unless it is not even asked."""
    os.sched_setaffinity(pid, [])
    return "nothing gained"


def ordered_to(pid):
    ours, _ = socket.socketpair()
    fcntl.ioctl(ours, 0x8902, struct.pack("i", pid))


# Each attempt by name: the least level that refuses it, and the deed. `it` is the request's object.
ATTEMPTS = {
    # Privileges.
    "set-user-id program": ("guard", lambda it: run_as_root(it["setuid"])),
    "personality": ("strict", lambda it: call("personality", 0x40000)),
    # Mounts and namespaces.
    "mount": ("guard", lambda it: call("mount", b"none", b"/nowhere", b"nonesuch", 0, NULL)),
    "umount": ("guard", lambda it: call("umount2", b"/nowhere", 0)),
    "fsopen": ("guard", lambda it: call("fsopen", b"nonesuch", 0)),
    "open_tree": ("guard", lambda it: call("open_tree", -100, b"/", 1)),
    "mount_setattr": ("guard", lambda it: call("mount_setattr", -100, b"/nowhere", 0, NULL, 0)),
    "fspick": ("guard", lambda it: call("fspick", -100, b"/nowhere", 0)),
    "fsmount": ("guard", lambda it: call("fsmount", -1, 0, 0)),
    "move_mount": ("guard", lambda it: call("move_mount", -1, b"", -1, b"", 0)),
    "listmount": ("strict", lambda it: call("listmount", NULL, NULL, 0, 0)),
    "pivot_root": ("guard", lambda it: call("pivot_root", b"/", b"/")),
    "chroot": ("basic", lambda it: os.chroot("/")),
    "unshare of users": ("basic", lambda it: call("unshare", 0x10000000)),
    "unshare of mounts": ("guard", lambda it: call("unshare", 0x20000)),
    "unshare of the network": ("basic", lambda it: call("unshare", 0x40000000)),
    "unshare of process ids": ("basic", lambda it: call("unshare", 0x20000000)),
    "clone into new users": ("basic", lambda it: cloned(0x10000000)),
    "clone3 into new users": ("guard", lambda it: cloned_by_pointer()),
    "clone as the server's child": ("guard", lambda it: cloned(0x8000)),
    "setns": ("guard", lambda it: call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)),
    "open_by_handle_at": ("guard", lambda it: call("open_by_handle_at", -100, b"\0" * 64, 0)),
    "name_to_handle_at": ("strict", lambda it: call("name_to_handle_at", -100, b"/", NULL, NULL, 0)),
    # The kernel and the machine.
    "init_module": ("guard", lambda it: call("init_module", NULL, 0, b"")),
    "finit_module": ("guard", lambda it: call("finit_module", -1, b"", 0)),
    "delete_module": ("guard", lambda it: call("delete_module", b"nonesuch", 0x800)),
    "bpf": ("guard", lambda it: call("bpf", 0xFFFF, NULL, 0)),
    "kexec_load": ("guard", lambda it: call("kexec_load", 0, 1000, NULL, 0)),
    "reboot": ("guard", lambda it: call("reboot", 0, 0, 0, NULL)),
    "swapon": ("guard", lambda it: call("swapon", b"/nowhere", 0)),
    "acct": ("guard", lambda it: call("acct", b"/nowhere")),
    "settimeofday": ("guard", lambda it: call("settimeofday", NULL, NULL)),
    "adjtimex": ("guard", lambda it: call("adjtimex", NULL)),
    "quotactl": ("guard", lambda it: call("quotactl", 0, b"/nowhere", 0, NULL)),
    "sethostname": ("guard", lambda it: call("sethostname", NULL, ctypes.c_size_t(1 << 20))),
    "syslog": ("basic", lambda it: call("syslog", 10, NULL, 0)),
    "perf_event_open": ("basic", lambda it: call("perf_event_open", NULL, 0, -1, -1, 0)),
    "userfaultfd": ("basic", lambda it: call("userfaultfd", 0x8000)),
    "io_uring_setup": ("basic", lambda it: call("io_uring_setup", 0, b"\0" * 120)),
    "keyctl": ("basic", lambda it: call("keyctl", 0, -3, 0)),
    "add_key": ("basic", lambda it: call("add_key", b"user", b"x", b"x", 1, -3)),
    "request_key": ("basic", lambda it: call("request_key", b"user", b"x", NULL, 0)),
    "overcommit_memory": ("strict", lambda it: peek("/proc/sys/vm/overcommit_memory", "r+b")),
    "PR_SET_MM": ("strict", lambda it: call("prctl", 35, 0, 0, 0, 0)),
    "core_pattern": ("strict", lambda it: peek("/proc/sys/kernel/core_pattern", "r+b")),
    "control groups": ("strict", lambda it: peek(it["cgroup"], "ab")),
    "inotify": ("strict", lambda it: os.close(call("inotify_init1", 0))),
    "fanotify": ("strict", lambda it: call("fanotify_init", 0, 0)),
    # Other processes: the server's, and a sibling's.
    **{
        f"{what} of the {who}": (level, lambda it, deed=deed, who=who: deed(it[who]))  # type: ignore[misc]
        for who in ("server", "sibling")
        for what, level, deed in (
            ("ptrace", "guard", lambda pid: call("ptrace", 0x4206, pid, 0, 0)),
            ("process_vm_readv", "guard", lambda pid: at_memory(pid)),
            ("process_vm_writev", "guard", lambda pid: at_memory(pid, "process_vm_writev")),
            ("/proc/<pid>/mem", "guard", lambda pid: peek(f"/proc/{pid}/mem", "r+b")),
            ("/proc/<pid>/environ", "guard", lambda pid: peek(f"/proc/{pid}/environ")),
            ("/proc/<pid>/maps", "guard", lambda pid: peek(f"/proc/{pid}/maps")),
            ("/proc/<pid>/fd", "guard", lambda pid: os.readlink(f"/proc/{pid}/fd/0")),
            ("/proc/<pid>/root", "guard", lambda pid: os.listdir(f"/proc/{pid}/root/")),
            ("descriptor by pidfd_getfd", "guard", file_of),
            ("kcmp", "guard", lambda pid: call("kcmp", os.getpid(), pid, 0, 0, 0)),
            ("prlimit", "guard", lambda pid: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))),
            ("kill", "basic", lambda pid: os.kill(pid, 0)),
            ("tgkill", "basic", lambda pid: call("tgkill", pid, pid, 0)),
            ("rt_sigqueueinfo", "basic", queued),
            ("pidfd_send_signal", "basic", signalled_by_handle),
            ("setpriority", "basic", lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19)),
            ("ioprio_set", "basic", lambda pid: call("ioprio_set", 1, pid, 0)),
            ("sched_setscheduler", "basic", lambda pid: os.sched_setscheduler(pid, 0, os.sched_param(0))),
            ("move_pages", "basic", lambda pid: call("move_pages", pid, 0, NULL, NULL, NULL, 0)),
            ("signal by F_SETOWN", "basic", owned_by),
            ("signal by SIOCSPGRP", "basic", ordered_to),
            ("pinning", "strict", pinned),
        )
    },
    "process_madvise": ("basic", lambda it: call("process_madvise", -1, NULL, 0, 0, 0)),
    "leaving the session": ("strict", lambda it: os.setsid()),
    "outliving the server": ("strict", lambda it: call("prctl", 1, 0, 0, 0, 0)),
    "leaving orphans to others": ("strict", lambda it: call("prctl", 36, 0, 0, 0, 0)),
    "oom_score_adj": ("strict", lambda it: peek("/proc/self/oom_score_adj", "r+b")),
    # The network and what else connects processes.
    **{
        f"socket of {name}": (level, lambda it, of=(family, kind): socket.socket(*of).close())  # type: ignore[misc]
        for name, level, family, kind in (
            ("AF_INET", "basic", 2, 1),
            ("AF_INET6", "basic", 10, 1),
            ("AF_INET, raw", "basic", 2, 3),
            ("AF_NETLINK", "basic", 16, 3),
            ("AF_PACKET", "basic", 17, 3),
            ("AF_VSOCK", "basic", 40, 1),
            ("AF_ALG", "basic", 38, 5),
            ("AF_UNIX", "strict", 1, 1),
        )
    },
    "abstract socket of another process": ("basic", lambda it: connected("\0" + it["abstract"])),
    "datagram to an abstract socket": ("basic", lambda it: sent("\0" + it["datagrams"])),
    "socket in a file": ("strict", lambda it: connected(it["socket"])),
    "pair of datagram sockets": (
        "strict",
        lambda it: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    ),
    "shmget": ("strict", lambda it: call("shmget", 0, 4096, 0o0)),
    "msgget": ("strict", lambda it: call("msgget", 0x7E57AB1E, 0)),
    "semget": ("strict", lambda it: call("semget", 0x7E57AB1E, 1, 0)),
    "mq_open": ("strict", lambda it: call("mq_open", b"nonesuch", 0, 0, NULL)),
    # Terminals.
    "TIOCSTI": ("guard", lambda it: terminal(0x5412)),
    "TIOCLINUX": ("guard", lambda it: terminal(0x541C)),
    # Programs, and what they begin with.
    "open files of the server": ("guard", lambda it: inherited()),
    "program without a file": ("guard", lambda it: executed_from_memory()),
    "LD_PRELOAD for a child": ("guard", lambda it: preloaded(it["library"])),
    "execveat": ("strict", lambda it: execveat("/bin/true")),
    # Other numbers of system calls.
    **(
        {}
        if ARM
        else {
            "system call of 32 bits": ("basic", lambda it: of_32_bits()),
            "system call of x32": ("guard", lambda it: checked(LIBC.syscall(0x40000000 | 39))),
            "modify_ldt": ("strict", lambda it: call("modify_ldt", 0, NULL, 0)),
            "ioperm": ("guard", lambda it: call("ioperm", 0, ctypes.c_ulong(1 << 20), 0)),
        }
    ),
    # Files.
    "device file": ("strict", lambda it: made_device(it["scratch"] + "/disk")),
    "file of the server's user": ("strict", lambda it: peek(it["secret"])),
    "link to it in the scratch": (
        "strict",
        lambda it: written_through(it["scratch"] + "/link", it["secret"]),
    ),
    "hard link to it": ("strict", lambda it: linked(it["secret"], it["scratch"] + "/hard")),
    "other model's folder": ("strict", lambda it: os.listdir(it["other"])),
    "own model.py": ("strict", lambda it: peek(it["own"] + "/1/model.py", "r+b")),
    "own compiled file": ("strict", lambda it: os.mkdir(it["own"] + "/1/__pycache__/x")),
    "chmod": ("strict", lambda it: os.chmod(it["own"] + "/1/model.py", 0o644)),
    "fchmod": ("strict", lambda it: os.fchmod(os.open(it["own"] + "/1/model.py", os.O_RDONLY), 0o644)),
    "chown": ("strict", lambda it: os.chown(it["own"] + "/1/model.py", os.getuid(), -1)),
    "utime": ("strict", lambda it: os.utime(it["own"] + "/1/model.py")),
    "setxattr": ("strict", lambda it: os.setxattr(it["own"] + "/1/model.py", "user.x", b"x")),
}


def outcome(name, it):
    """Try one, in this process."""
    try:
        told = ATTEMPTS[name][1](it)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return told if isinstance(told, str) else "done"


def tried(name, it):
    """Try one in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, outcome(name, it).encode())
        except BaseException:  # noqa: BLE001  # the test is told
            os.write(writer, traceback.format_exc().encode()[-2000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


class TritonPythonModel:
    """Tries what the request names."""

    def execute(self, requests):
        """Answer one request at a time."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        (text,) = pb_utils.get_input_tensor_by_name(request, "ASKED").as_numpy().ravel()
        it = json.loads(text)
        if "load" in it:
            told = managed(it)
        else:
            told = {name: tried(name, it) for name in ATTEMPTS}
            told[""] = f"{os.getuid()} {os.getgid()} {os.getgroups()}"
        answer = np.array([json.dumps(told).encode()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", answer)])


def managed(it):
    """Load and unload models as a model may ask for."""
    told = {}
    for name, arguments in it["load"].items():
        files = {path: content.encode() for path, content in arguments.pop("files", {}).items()}
        try:
            if arguments.pop("unload", False):
                pb_utils.unload_model(**arguments)
            else:
                pb_utils.load_model(**arguments, **({"files": files} if files else {}))
        except pb_utils.TritonModelException as error:
            told[name] = str(error)
        else:
            told[name] = "done"
    return told
