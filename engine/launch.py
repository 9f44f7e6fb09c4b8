"""Starts workers: child processes by default, threads of the server where a model asks for that.

Processes are spawned on one thread that lives as long as the server. A worker asks the kernel to be killed when its parent
dies, and the kernel takes the *thread* that spawned it for the parent: from a pooled thread, workers would die when the
pool lets it go.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

import outcome
import trio

from actors.instance import Launched, threads_for
from actors.scheduling.retries import DeathReason, Exit, Oom, Signal
from actors.specs import InstanceSpec, ModelSpec
from engine.config.backends import BackendTraits
from engine.worker.serve import Serving, Stopped

T = TypeVar("T")

WORKER: Final = Path(__file__).parent / "worker" / "__main__.py"

INHERITED: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
        "TZ",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
    }
    | {"PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "XDG_CACHE_HOME"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
"""Environment variables that workers get from the server. Secrets of the server are not among them."""

INHERITED_PREFIXES: Final = (
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "ORT_",
    "TORCH",
    "PYTORCH_",
    "HF_",
    "ROCR_",
)

SECRET_SUFFIXES: Final = ("_KEY", "_PASSWORD", "_SECRET", "_TOKEN")
"""What a variable with such a prefix is called where it is a secret after all, such as `HF_TOKEN`."""

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_OPEN_FILES: Final = 4096
_CGROUP_EVENTS: Final = Path("/sys/fs/cgroup/memory.events")


class Spawner:
    """One thread that runs what must not run on a pooled one. A daemon: it ends with the server, and not before."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="spawner", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    async def run(self, function: Callable[[], T]) -> T:
        """Return what `function` returns or raises on the spawner's thread. Not cancellable once begun."""
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def job() -> None:
            result = outcome.capture(function)
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        self._jobs.put(job)
        return cast("T", await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED))


class WorkerLauncher:
    """Implements `actors.instance.Launcher` over processes and threads."""

    def __init__(self, backends: Mapping[str, BackendTraits], *, environ: Mapping[str, str]) -> None:
        self._backends = backends
        self._environ = scrubbed(environ)
        self._spawner = Spawner()
        self._oom_kills = OomKills()

    def backend_path(self, spec: ModelSpec) -> str:
        """Return the backend class as `module:Class`."""
        return self._backends[spec.backend].target

    def limits(self) -> dict[str, int]:
        """Return what a worker must impose on itself."""
        return {"open_files": _OPEN_FILES}

    async def launch(self, spec: ModelSpec, instance: InstanceSpec) -> Launched:
        """Start a worker. See `actors.instance.Launcher`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if spec.isolation == "thread":
                return ThreadWorker(ours, theirs, name=instance.name, cores=instance.cores)
            environ = {**self._environ, **_thread_environ(spec, instance, self._environ)}
            with theirs:
                return await self._spawner.run(
                    functools.partial(_spawn, ours, theirs, environ, self._oom_kills, instance.cores)
                )
        except BaseException:
            ours.close()
            raise


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker may see of the server's environment."""
    return {
        name: value
        for name, value in environ.items()
        if name in INHERITED or (name.startswith(INHERITED_PREFIXES) and not name.endswith(SECRET_SUFFIXES))
    } | {"PYTHONUNBUFFERED": "1"}


def _thread_environ(spec: ModelSpec, instance: InstanceSpec, environ: Mapping[str, str]) -> dict[str, str]:
    threads = threads_for(spec, instance)
    return {name: str(threads * instance.lanes) for name in _THREAD_VARIABLES if name not in environ}


def _spawn(
    ours: socket.socket,
    theirs: socket.socket,
    environ: Mapping[str, str],
    oom_kills: OomKills,
    cores: Sequence[int],
) -> ProcessWorker:
    """Spawner's thread: start the process, its output going to one pipe."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        with _bound_to(cores):
            process = _popen(theirs, write_end, environ)
        return ProcessWorker(process, ours, read_end, oom_kills)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)


@contextlib.contextmanager
def _bound_to(cores: Sequence[int]) -> Iterator[None]:
    """Bind the calling thread to `cores`, if there are any: what it starts meanwhile inherits that.

    A thread's memory comes from the NUMA node of the core that touches it first, so that this decides about memory too.
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


def _popen(theirs: socket.socket, output: int, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(theirs.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(theirs.fileno(),),
        env=dict(environ),
        start_new_session=True,  # a terminal's Ctrl-C is for the server, which then drains
    )


class ProcessWorker:
    """A worker in a process of its own. Implements `actors.instance.Launched`."""

    def __init__(
        self, process: subprocess.Popen[bytes], sock: socket.socket, output: int, oom_kills: OomKills
    ) -> None:
        self._process = process
        self._oom_kills = oom_kills
        self._pidfd = os.pidfd_open(process.pid)
        self.socket = sock
        self.output: int | None = output

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
            return False  # it has just exited, or /proc is not for us to see
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}

    async def wait(self) -> DeathReason:
        """Wait for the exit, reap, and tell how it ended."""
        if self._process.returncode is None:
            await trio.lowlevel.wait_readable(self._pidfd)
            self._process.wait()
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
        code = self._process.returncode
        if code >= 0:
            return Exit(code)
        if -code == signal.SIGKILL and self._oom_kills.one_more():
            return Oom()
        return Signal(-code)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL; works on a stopped process too."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: Literal[signal.Signals.SIGTERM, signal.Signals.SIGKILL]) -> None:
        if self._process.returncode is None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return  # exited, not yet reaped


class OomKills:
    """How many processes of our control group the kernel has killed for memory, each told of once."""

    def __init__(self) -> None:
        self._told = self._count()

    def one_more(self) -> bool:
        """Whether the kernel has killed one that was not told of yet; the next SIGKILL is another one's."""
        if self._count() <= self._told:
            return False
        self._told += 1
        return True

    def _count(self) -> int:
        try:
            fields = dict(line.split() for line in _CGROUP_EVENTS.read_text().splitlines())
            return int(fields.get("oom_kill", 0))
        except (OSError, ValueError):
            return 0  # no such control group: an OOM kill looks like any other SIGKILL


class ThreadWorker:
    """A worker on a thread of the server. Implements `actors.instance.Launched`; a hung one can only be abandoned."""

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
        try:
            with self._theirs, _bound_to(self._cores):
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
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

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
