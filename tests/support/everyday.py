"""A Python model that does what models do besides arithmetic: `model.py` of a repository, run in its worker.

Its input is a JSON object: the deeds that it is asked for, and what they need. Its output tells by name what
came of each: "done", words of its own, or the error. Nothing of this tries to get out of a sandbox.
"""

import concurrent.futures
import ctypes
import faulthandler
import fcntl
import json
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import platform
import pty
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from typing import Any

import numpy as np

try:
    import triton_python_backend_utils as pb_utils
except ImportError:  # a test reads the names of the deeds, and so does a process of `multiprocessing`
    pb_utils = None

LIBC = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
NUMBERS = {"pidfd_getfd": (438, 438), "perf_event_open": (298, 241), "process_vm_readv": (310, 270)}
NUMBERS |= {"io_uring_setup": (425, 425), "inotify_init1": (294, 26), "keyctl": (250, 219)}
NULL = ctypes.c_void_p(0)
WAITING = [sys.executable, "-c", "print(flush=True); input()"]


def call(name, *arguments):
    """Make a system call by its number, or a function of the C library's."""
    if name in NUMBERS:
        result = LIBC.syscall(NUMBERS[name][ARM], *arguments)
    else:
        result = getattr(LIBC, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Child:
    """A process of the model's own, which waits until it is let go."""

    def __enter__(self):
        self.process = subprocess.Popen(WAITING, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"\n"
        return self.process.pid

    def __exit__(self, *_):
        self.process.communicate(b"\n")


# -- its own processes


def traced():
    """Stop a child and let it go, as a debugger does."""
    with Child() as pid:
        call("ptrace", 16, pid, NULL, NULL)
        os.waitpid(pid, 0)
        call("ptrace", 17, pid, NULL, NULL)


def sampled():
    """Read a child's memory and files, as a profiler does."""
    with Child() as pid:
        with open(f"/proc/{pid}/maps") as maps:
            address = int(maps.readline().split("-")[0], 16)
        here = ctypes.create_string_buffer(4)
        local = struct.pack("PN", ctypes.addressof(here), 4)
        one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
        call("process_vm_readv", pid, local, one, struct.pack("PN", address, 4), one, none)
        with open(f"/proc/{pid}/mem", "rb") as memory, open(f"/proc/{pid}/environ", "rb") as environ:
            memory.seek(address)
            assert memory.read(4) == here.raw == b"\x7fELF"
            assert environ.read()
        os.readlink(f"/proc/{pid}/fd/0")


def taken_over():
    with Child() as pid:
        os.close(call("pidfd_getfd", os.pidfd_open(pid), 0, 0))


def signalled():
    process = subprocess.Popen(WAITING, stdin=subprocess.PIPE, start_new_session=True)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM


def aborted():
    told = subprocess.run([sys.executable, "-c", "import os; os.abort()"], check=False)
    return str(told.returncode)


def ran_as_another():
    """Have a program run as a user with fewer rights, as root may."""
    told = subprocess.run(["id", "-u"], capture_output=True, text=True, check=True, user=65534)
    return told.stdout.strip()


def left_an_orphan():
    """Start a daemon: it is not this process that has to wait for it."""
    daemon = "import os; os.fork() and os._exit(0); os.read(0, 1); print(os.getppid())"
    with subprocess.Popen(
        [sys.executable, "-c", daemon], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.wait()
        parent = process.communicate("x")[0].strip()
    return "a child of this process" if parent == str(os.getpid()) else "done"


def in_a_terminal():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["sh", "-c", "test -t 0 && echo seen"])
    said = os.read(terminal, 100)
    os.waitpid(pid, 0)
    assert said == b"seen\r\n"


def doubled(value):
    return 2 * value


def counted(name, queue, lock):
    """Add one to a number in shared memory: the main function of a process."""
    shared = multiprocessing.shared_memory.SharedMemory(name=name)
    assert shared.buf is not None
    with lock:
        shared.buf[0] += 1
    shared.close()
    queue.put(os.getpid())


def in_processes(method):
    """Use what `multiprocessing` has, with processes started in one way."""
    context = multiprocessing.get_context(method)
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
    queue, lock = context.Queue(), context.Lock()
    processes = [context.Process(target=counted, args=(shared.name, queue, lock)) for _ in range(2)]
    for process in processes:
        process.start()
    pids = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert pids == {process.pid for process in processes}
    assert shared.buf is not None
    assert shared.buf[0] == 2
    shared.close()
    shared.unlink()
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(doubled, 21).result() == 42


def managed():
    with multiprocessing.Manager() as manager:
        assert list(manager.list([1, 2])) == [1, 2]


# -- limits and scheduling of its own


def raised_its_own_limits():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resource.prlimit(0, resource.RLIMIT_NOFILE, (soft, hard))
    resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (soft, hard))


def read_limits():
    with Child() as pid:
        resource.prlimit(pid, resource.RLIMIT_NOFILE)
    own = "import os, resource; resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)"
    subprocess.run([sys.executable, "-c", own], check=True)


def scheduled():
    with Child() as pid:
        for process in (0, pid):
            os.sched_setaffinity(process, os.sched_getaffinity(process))
            os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))
            os.sched_setscheduler(process, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, 5)
    os.nice(0)


# -- memory and generated code


def ran_generated_code():
    """Write a function, make it executable and call it, as compilers at run time do."""
    code = b"\x40\x05\x80\x52\xc0\x03\x5f\xd6" if ARM else b"\xb8\x2a\x00\x00\x00\xc3"
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    pages.write(code)
    view = ctypes.c_char.from_buffer(pages)
    call("mprotect", ctypes.c_void_p(ctypes.addressof(view)), mmap.PAGESIZE, 5)
    found = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(view))()
    call("mprotect", ctypes.c_void_p(ctypes.addressof(view)), mmap.PAGESIZE, 3)
    assert found == 42


def ran_code_of_32_bits():
    """Make a system call as programs of 32 bits do."""
    if ARM:
        return "done"
    child = os.fork()
    if child == 0:
        pages = mmap.mmap(-1, mmap.PAGESIZE, prot=7)
        pages.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
        asked = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
        os._exit(asked() != os.getpid())
    status = os.waitpid(child, 0)[1]
    return f"ended with {status}" if status else "done"


def called_back():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    LIBC.qsort(numbers, 3, ctypes.sizeof(ctypes.c_int), kind(lambda a, b: a[0] - b[0]))
    assert list(numbers) == [1, 2, 3]


def advised():
    pages = mmap.mmap(-1, 1 << 22)
    pages.madvise(mmap.MADV_HUGEPAGE)
    pages.madvise(mmap.MADV_DONTNEED)
    descriptor = os.memfd_create("of a model")
    os.ftruncate(descriptor, 4096)
    mmap.mmap(descriptor, 4096).close()
    os.close(descriptor)


def dumped_traces():
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        faulthandler.dump_traceback_later(60, file=file)
        faulthandler.cancel_dump_traceback_later()
        assert file.tell()


def measured_itself():
    # A software event, the CPU clock, of this process in user space.
    attributes = struct.pack("=IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 | 1 << 5 | 1 << 6).ljust(112, b"\0")
    os.close(call("perf_event_open", attributes, 0, -1, -1, 0))


# -- the network, files, the kernel


def talked():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()
    for family, kind in (
        (socket.AF_INET, 2),
        (socket.AF_INET6, 1),
        (socket.AF_NETLINK, 3),
        (socket.AF_UNIX, 2),
    ):
        socket.socket(family, kind).close()
    name = f"\0everyday-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen()
        client.connect(name)
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [0])
    os.close(socket.recv_fds(theirs, 1, 1)[1][0])
    socket.if_nameindex()


def kept_files():
    """Do to files what file systems offer."""
    with tempfile.TemporaryDirectory() as folder:
        here, there = os.path.join(folder, "here"), os.path.join(folder, "there")
        for each in (here, there):
            os.mkdir(each)
        path = os.path.join(here, "file")
        with open(path, "w+b") as file:
            file.write(b"x" * 100)
            fcntl.flock(file, fcntl.LOCK_EX)
            os.posix_fallocate(file.fileno(), 0, 8192)
        os.chmod(path, 0o640)
        os.chown(path, os.getuid(), -1)
        os.utime(path)
        os.link(path, os.path.join(there, "linked"))
        os.symlink(path, os.path.join(there, "symlink"))
        os.rename(path, os.path.join(there, "file"))
        os.mkfifo(os.path.join(there, "fifo"))
        os.rename(here, os.path.join(there, "folder"))


def linked_a_file_without_a_name():
    """Make a file that has a name only once it is whole."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "below"))
        for place in ("file", "below/file"):
            descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR)
            os.write(descriptor, b"whole")
            whole = f"/proc/self/fd/{descriptor}".encode()
            call("linkat", -100, whole, -100, os.path.join(folder, place).encode(), 0x400)
            os.close(descriptor)


def watched_a_folder():
    os.close(call("inotify_init1", 0))


def shared_by_system_v():
    shared = call("shmget", 0, 4096, 0o1600)
    call("shmctl", shared, 0, NULL)
    queue = call("msgget", 0, 0o1600)
    call("msgctl", queue, 0, NULL)


def kept_a_key():
    call("keyctl", 0, -3, 0)


def opened_a_ring():
    os.close(call("io_uring_setup", 1, bytes(120)))


def in_a_child(deed):
    """Do it in a child, since it can't be undone."""
    child = os.fork()
    if child == 0:
        try:
            deed()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


def made_namespaces():
    """Have users, processes, a network and a root of its own, as a browser has for its pages."""

    def enter():
        call("unshare", 0x10000000 | 0x20000000 | 0x40000000)
        os.chroot("/proc/self/fdinfo")

    in_a_child(enter)


def changed_its_root():
    in_a_child(lambda: os.chroot("/tmp"))


def ran_many_threads():
    threads = [threading.Thread(target=int) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def mounted():
    call("mount", b"none", b"/nowhere", b"tmpfs", 0, NULL)


def limited_a_child():
    with Child() as pid:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def gained_rights(program):
    told = subprocess.run([program, "-u"], capture_output=True, text=True, check=True)
    return told.stdout.strip()


# -- PyTorch: these import it in the worker, as a model's own code would


def rank(number, store, results):
    """Add what all ranks have: the main function of each."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    value = torch.full((1000,), number + 1.0)
    distributed.all_reduce(value)
    distributed.barrier()
    distributed.destroy_process_group()
    results.put((number, value.numpy().tolist()[0]))


def distributed_over_loopback(method):
    """Run two ranks that add up over the loopback device."""
    from torch import multiprocessing as processes

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        results = processes.get_context(method).Queue()
        arguments = (os.path.join(folder, "store"), results)
        processes.start_processes(rank, arguments, nprocs=2, start_method=method)
        assert sorted(results.get(timeout=60) for _ in range(2)) == [(0, 3.0), (1, 3.0)]


class Squares:
    """A data set, which workers of a loader read."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        import torch

        return torch.full((4,), float(index * index))


def loaded_by_workers(strategy):
    """Take tensors from processes, in shared memory that is passed on in one of PyTorch's two ways."""
    from torch import multiprocessing as processes
    from torch.utils.data import DataLoader

    processes.set_sharing_strategy(strategy)
    data: Any = Squares()
    loader: Any = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert sorted(float(batch.sum()) for batch in loader) == [4.0, 52.0, 164.0, 340.0]


DEEDS = {
    "traces a child": traced,
    "reads a child's memory": sampled,
    "takes a child's descriptor": taken_over,
    "ends a process group": signalled,
    "has a child abort": aborted,
    "runs a program as another user": ran_as_another,
    "leaves a daemon to others": left_an_orphan,
    "runs a shell in a terminal": in_a_terminal,
    "forks processes": lambda: in_processes("fork"),
    "spawns processes": lambda: in_processes("spawn"),
    "uses a fork server": lambda: in_processes("forkserver"),
    "uses a manager": managed,
    "raises its own limits": raised_its_own_limits,
    "reads limits": read_limits,
    "schedules its processes": scheduled,
    "runs generated code": ran_generated_code,
    "runs code of 32 bits": ran_code_of_32_bits,
    "is called back from C": called_back,
    "asks for huge pages": advised,
    "dumps traces": dumped_traces,
    "counts its own events": measured_itself,
    "talks over sockets": talked,
    "keeps files": kept_files,
    "links a file without a name": linked_a_file_without_a_name,
    "watches a folder": watched_a_folder,
    "shares by System V": shared_by_system_v,
    "keeps a key": kept_a_key,
    "opens a ring": opened_a_ring,
    "makes namespaces": made_namespaces,
    "changes its root": changed_its_root,
    "runs many threads": ran_many_threads,
}
CHANGED = {
    "mounts": mounted,
    "limits a child": limited_a_child,
    "gains rights by a program": gained_rights,
}
TORCH = {
    "adds up over ranks": distributed_over_loopback,
    "loads by workers": loaded_by_workers,
}
ALL: dict[str, Any] = {**DEEDS, **CHANGED, **TORCH}


def outcome(name, arguments):
    """Do one thing."""
    try:
        told = ALL[name](*arguments)
    except Exception as error:  # noqa: BLE001  # the test is told
        return f"{type(error).__name__}: {error}"
    return told if isinstance(told, str) else "done"


class TritonPythonModel:
    """Does what the request names."""

    def execute(self, requests):
        """Answer one request at a time."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        (text,) = pb_utils.get_input_tensor_by_name(request, "ASKED").as_numpy().ravel()
        told = {name: outcome(name, arguments) for name, arguments in json.loads(text).items()}
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status if ":" in line)
        told[""] = f"{lines['NoNewPrivs'].strip()} {lines['Seccomp'].strip()}"
        answer = np.array([json.dumps(told).encode()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", answer)])
