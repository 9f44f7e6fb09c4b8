"""Starts workers: child processes by default, threads of the server if a model asks for that.

Processes are spawned on one thread that lives as long as the server. A worker asks the kernel to be killed
when its parent dies, and the kernel takes the *thread* that spawned it for the parent. Workers spawned from a
pooled thread would die when the pool lets that thread go.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

import outcome
import trio

from actors.serving.instances.launching import Launched, threads_for
from actors.values.confinement import Sandbox
from actors.values.events import Log
from actors.values.specs import InstanceSpec, ModelSpec
from engine.models.links import descriptors_in
from engine.processes import users
from engine.processes.backends import BackendTraits
from engine.processes.confining import command, confining_environ, identity, own_user
from engine.processes.family import Family
from engine.processes.gpus import sharing
from engine.processes.group_plan import NO_GROUP, GroupLimits, limits_of
from engine.processes.groups import Gate, Groups
from engine.processes.inheritance import ALWAYS, scrubbed
from engine.processes.mark import MARK
from engine.processes.runtime import interpreter, variables
from engine.processes.spares import Environment, Spares
from engine.processes.workers import OomKills, ProcessWorker, ThreadWorker, bound_to
from engine.worker.backends.language.model_folder import LORA_FOLDERS
from engine.worker.limits import GATE

T = TypeVar("T")

WORKER: Final = Path(__file__).parents[1] / "worker" / "__main__.py"

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_OPEN_FILES: Final = 4096
BURIALS_AT_ONCE: Final = 8
"""Dead workers whose processes are looked for on threads of their own.

So no instance waits behind files that are read for others.
"""


class Spawner:
    """One thread for what must not run on a pooled one.

    It is a daemon: it ends with the server, not before.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="spawner", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def soon(self, function: Callable[[], None]) -> None:
        """Run `function` on the spawner's thread, before what is asked of it later. It must not raise."""
        self._jobs.put(function)

    async def run(self, function: Callable[[], T]) -> T:
        """Return what `function` returns or raises on the spawner's thread. Not cancellable once begun."""
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def job() -> None:
            token.run_sync_soon(trio.lowlevel.reschedule, task, outcome.capture(function))

        self._jobs.put(job)
        return cast("T", await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED))


class WorkerLauncher:
    """Implements `actors.serving.instances.launching.Launcher` over processes and threads.

    A process runs on the interpreter of its model's `ModelSpec.runtime`, with the variables that belong to
    it. That is the server's own interpreter, unless `engine.environments` found another for the model when
    its configuration was read. A waiting spare is taken if there is one (see `engine.processes.spares`). There are none
    unless a task runs `spares`.
    """

    def __init__(
        self,
        backends: Mapping[str, BackendTraits],
        *,
        environ: Mapping[str, str],
        spare_workers: int = 0,
        log: Log | None = None,
    ) -> None:
        """Set up a launcher.

        `environ` is what workers inherit (`engine.processes.inheritance`). At most `spare_workers` processes wait for a
        model.
        """
        self.spares = Spares(self._start_spare, limit=spare_workers, log=log)
        self._backends = backends
        self._inherited = {**environ, **ALWAYS}
        self._minimal = scrubbed(environ)
        self._spawner = Spawner()
        self._oom_kills = OomKills()
        self._groups = Groups()
        self._spawner.soon(self._groups.sweep)
        self._burials = trio.CapacityLimiter(BURIALS_AT_ONCE)

    def backend_path(self, spec: ModelSpec) -> str:
        """Return the backend class as `module:Class`."""
        return spec.target or self._backends[spec.backend].target

    def limits(self) -> dict[str, int]:
        """Return what a worker must impose on itself."""
        return {"open_files": _OPEN_FILES}

    async def launch(self, spec: ModelSpec, instance: InstanceSpec) -> Launched:
        """Start a worker. See `actors.serving.instances.launching.Launcher`."""
        _check_cores(instance.cores)
        if spec.isolation == "thread":
            _check_view(instance)
            return self._start_thread(instance)
        environment = self.environment(spec, instance)
        if spec.confinement.sandbox is Sandbox.STRICT:
            # It looks at files.
            decided = functools.partial(self._of_strict, spec, dict(environment.variables))
            granted, group, missing = await self._spawner.run(decided)
            environment = self.environment(spec, instance, own_user=granted, group=group, unapplied=missing)
        worker = cast("ProcessWorker | None", self.spares.take(environment))
        spare = worker is not None
        if worker is None:
            worker = await self._start(environment)
        self.spares.launched(environment, spare=spare)
        worker.on_reaped = functools.partial(self.spares.ended, environment)
        return worker

    def _of_strict(
        self, spec: ModelSpec, environ: Mapping[str, str]
    ) -> tuple[bool, GroupLimits | None, list[str]]:
        granted, missing = own_user(spec.confinement, _files(spec), spec.runtime, environ)
        if why := self._groups.why_none():
            return granted, None, [*missing, f"{NO_GROUP}: {why}"]
        return granted, limits_of(spec.confinement), missing

    def environment(
        self,
        spec: ModelSpec,
        instance: InstanceSpec,
        *,
        own_user: bool = False,
        group: GroupLimits | None = None,
        unapplied: Sequence[str] = (),
    ) -> Environment:
        """Return what a worker process of this instance is started with.

        See `engine.processes.confining` for `own_user` and `unapplied`.
        """
        strict = spec.confinement.sandbox is Sandbox.STRICT
        inherited = self._minimal if strict else self._inherited
        environ = variables({**inherited, **_thread_environ(spec, instance, inherited)}, spec.runtime)
        confining = confining_environ(
            spec.confinement,
            _files(spec),
            kind=instance.kind,
            runtime=spec.runtime,
            own_user=own_user,
            unapplied=unapplied,
        )
        environ = {**environ, **confining, **self._on_gpu(spec, instance, inherited)}
        return Environment(
            interpreter=interpreter(spec.runtime),
            variables=tuple(sorted(environ.items())),
            cores=instance.cores,
            backend=self.backend_path(spec),
            digest=spec.runtime.digest,
            own_user=own_user,
            group=group,
            held=descriptors_in(_files(spec)),
        )

    def _on_gpu(
        self, spec: ModelSpec, instance: InstanceSpec, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        traits = self._backends.get(spec.backend)
        keeps_limit = traits is not None and traits.limits_gpu_memory
        return sharing.variables(spec, instance, inherited, keeps_limit=keeps_limit)

    @staticmethod
    def _start_thread(instance: InstanceSpec) -> ThreadWorker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            return ThreadWorker(ours, theirs, name=instance.name, cores=instance.cores)
        except BaseException:
            ours.close()
            raise

    async def _start(self, environment: Environment, *arguments: str) -> ProcessWorker:
        """Start a process whose first arguments are the socket and our process id. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                return await self._spawner.run(
                    functools.partial(self._spawn, ours, theirs, environment, arguments)
                )
        except BaseException:
            ours.close()
            raise

    def _spawn(
        self,
        ours: socket.socket,
        theirs: socket.socket,
        environment: Environment,
        arguments: Sequence[str],
    ) -> ProcessWorker:
        """Spawner's thread: start the process, its output going to one pipe."""
        mark = secrets.token_hex(16)
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as always:
            output, written = os.pipe2(os.O_CLOEXEC)
            failed.callback(os.close, output)
            always.callback(os.close, written)
            user = None
            if environment.own_user:
                user = users.take()
                failed.callback(users.give_back, user)
            gate = Gate(self._groups, environment.group) if environment.group is not None else None
            if gate is not None:
                failed.callback(gate.give_up)
                always.callback(gate.close)
            with bound_to(environment.cores):
                process = _popen(theirs, written, environment, mark, arguments, user, gate)
            group = gate.open_for(process.pid) if gate is not None else None
            family = Family(process.pid, mark, user)
            worker = ProcessWorker(process, ours, output, self._oom_kills, family, self._burials, user, group)
            failed.pop_all()
            return worker

    async def _start_spare(self, environment: Environment) -> ProcessWorker:
        return await self._start(environment, environment.backend)


def _files(spec: ModelSpec) -> tuple[Path, ...]:
    """Return the model's own files and folders of adapters, which it may read in any sandbox."""
    own = spec.model_directory, spec.version_directory, (spec.version_directory / spec.artifact).parent
    adapters = (Path(each) for each in spec.settings.get(LORA_FOLDERS, "").split(":") if each)
    return tuple(dict.fromkeys((*own, *spec.linked, *adapters)))


def _thread_environ(spec: ModelSpec, instance: InstanceSpec, environ: Mapping[str, str]) -> dict[str, str]:
    threads = threads_for(spec, instance)
    return {name: str(threads * instance.lanes) for name in _THREAD_VARIABLES if name not in environ}


def _check_view(instance: InstanceSpec) -> None:
    if instance.visible:
        raise OSError(
            f"it is to see the GPU {instance.visible} only, which takes a process of its own: use isolation"
            " 'process'"
        )


def _check_cores(cores: Sequence[int]) -> None:
    available = os.sched_getaffinity(0)
    missing = [str(core) for core in cores if core not in available]
    if missing:
        may = ", ".join(map(str, sorted(available)))
        raise OSError(
            f"it is bound to the cores {', '.join(missing)}, which this server may not use; it may use {may}"
        )


def _popen(
    theirs: socket.socket,
    output: int,
    environment: Environment,
    mark: str,
    arguments: Sequence[str],
    user: int | None,
    gate: Gate | None,
) -> subprocess.Popen[bytes]:
    own = (str(theirs.fileno()), str(os.getpid()), *arguments)
    told = {**dict(environment.variables), MARK: mark}
    passed = [theirs.fileno(), *environment.held]
    if gate is not None:
        told[GATE] = str(gate.descriptor)
        passed.append(gate.descriptor)
    line, environ = command(WORKER, own, told, environment.interpreter)
    return subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=passed,
        env=environ,
        start_new_session=True,  # a terminal's Ctrl-C is for the server, which then drains
        **identity(user),
    )
