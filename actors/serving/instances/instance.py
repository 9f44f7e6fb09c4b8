"""The instance actor: owns one worker, from launch to burial.

The actor launches the worker, has it load and warm up the model, and joins the model's instances. Then it
handles the worker's messages until the worker dies or the server wants it to stop. It reports a death by
raising `WorkerDied`, after every request that the worker held has been settled. Starting again is the
supervisor's business.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio

from actors.seams import faults
from actors.seams.bell import Bell
from actors.seams.slices import in_slices
from actors.seams.threads import in_thread
from actors.serving.asks import Asks
from actors.serving.deaths import settle
from actors.serving.instances.batches import InFlight
from actors.serving.instances.comeback import Comeback
from actors.serving.instances.load_errors import without_importing
from actors.serving.instances.load_turns import LoadTurns
from actors.serving.instances.output import LineBudget, OutputReader
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.worker import LiveWorker, Slow
from actors.serving.model import ModelState
from actors.serving.policy.confinement import Usage, judge, next_look
from actors.serving.policy.retries import (
    DeathReason,
    Fingerprint,
    Hang,
    Oom,
    ProtocolError,
    Signal,
    StartFailed,
    after_death,
    fingerprint_of,
)
from actors.serving.records import named
from actors.serving.standing import InstanceState
from actors.supervision.context import ChildContext
from actors.values.errors import ErrorCode, TritiumError
from actors.values.events import Event, Log
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.specs import InstanceSpec, ModelSpec, Retry, WarmupSample
from actors.wire.frames import FrameError, Result
from actors.wire.gathering import Cut
from actors.wire.parts import Arrived

# Time for a worker that closed its socket to exit. Clients wait meanwhile.
EOF_TO_EXIT_SECONDS: Final = 0.05
STOP_SECONDS: Final = 5.0  # from STOP to SIGTERM: time for `finalize`
TERMINATE_SECONDS: Final = 2.0  # from SIGTERM to SIGKILL
TRIM_SECONDS: Final = 15.0
HASHED_AT_ONCE: Final = 4 * 1024 * 1024  # bytes of inputs on the event loop: some 5 ms
PACKETS_IN_A_ROW: Final = 64  # from one worker, before other tasks get their turn


class WorkerDied(Exception):
    """A worker ended without being asked to. `reason` is one of `actors.serving.policy.retries`."""

    def __init__(self, instance: str, reason: DeathReason) -> None:
        super().__init__(f"the worker of instance '{instance}' died of {reason}")
        self.reason = reason


class Launched(Protocol):
    """A worker that has been started, as a process or as a thread."""

    @property
    def socket(self) -> socket.socket:
        """The server's end of the connection."""

    @property
    def pid(self) -> int:
        """The id of the process that runs it; for a thread, the server's own."""

    @property
    def output(self) -> int | None:
        """Descriptor of a pipe with everything it prints, if that is captured."""

    async def wait(self) -> DeathReason:
        """Wait until it has ended, reap it, and return how it ended."""

    @property
    def abandoned(self) -> bool:
        """Whether it was given up and still runs: a hung thread can't be ended."""

    @property
    def suspended(self) -> bool:
        """Whether a signal has stopped it, so that it is not working however long it takes."""

    @property
    def exited(self) -> bool:
        """Whether it has ended. `wait` may still be busy with processes that it has left behind."""

    @property
    def dying(self) -> bool:
        """Whether it is ending, whatever the reason: it can't be kept running, nor end in another way."""

    def glance(self) -> Usage | None:
        """Measure as `usage` does, on the event loop; None where that would take too long."""

    def usage(self, *, exact: bool = False) -> Usage:
        """Measure the usage of the worker, together with all processes that it has started.

        `exact` may take long, see `Usage`.
        """

    def terminate(self) -> None:
        """Ask it to end, by SIGTERM."""

    def kill(self) -> None:
        """End it and all processes that it has started, by SIGKILL; a thread can only be abandoned."""


class Launcher(Protocol):
    """Starts workers; `engine` knows how."""

    async def launch(self, spec: ModelSpec, instance: InstanceSpec) -> Launched:
        """Start a worker for one instance. Raises OSError where the system refuses."""

    def backend_path(self, spec: ModelSpec) -> str:
        """Return the backend class as `module:Class`."""

    def limits(self) -> dict[str, int]:
        """Return the limits that a worker must impose on itself: how many `open_files` it may have."""


async def run(
    ctx: ChildContext,
    state: ModelState,
    instance: InstanceState,
    *,
    launcher: Launcher,
    log: Log,
    asks: Asks | None = None,
    comeback: Comeback | None = None,
    turns: LoadTurns | None = None,
) -> None:
    """Live one life of an instance.

    Raises WorkerDied, unless asked to stop. Without `asks`, its model can't ask for anything.

    With a `comeback` and with `turns`, the instance waits for its turn in each.
    """
    actor = InstanceActor(
        ctx, state, instance, launcher=launcher, log=log, asks=asks, comeback=comeback, turns=turns
    )
    try:
        await actor.run()
    finally:
        actor.let_others_start()


class InstanceActor:
    """One life of one instance; see the module. Implements `actors.serving.instances.worker.WorkerEvents`."""

    def __init__(
        self,
        ctx: ChildContext,
        state: ModelState,
        instance: InstanceState,
        *,
        launcher: Launcher,
        log: Log,
        asks: Asks | None = None,
        comeback: Comeback | None = None,
        turns: LoadTurns | None = None,
    ) -> None:
        self._ctx = ctx
        self._asks = asks
        self._comeback = comeback or Comeback()
        self._turns = turns or LoadTurns(0)
        self._state = state
        self._instance = instance
        self._launcher = launcher
        self._log = log
        self._name = instance.spec.name
        self._log_budget = LineBudget(trio.current_time())
        self._loaded = trio.Event()
        self._joined = trio.Event()  # the scheduler has it; before that it runs only warmup
        self._load_error: str | None = None
        self._load_code = ErrorCode.INTERNAL
        self._started_at = trio.current_time()  # the worker's launch
        self._idle = Bell()
        self._exited = trio.Event()
        self._reason: DeathReason | None = None  # how the process ended
        self._verdict: DeathReason | None = None  # why this actor killed it, if it did
        self._hung_up = False  # killed because it stayed alive without its connection
        self._culprit: InFlight | None = None
        self._unfinished: Slow | None = None  # the rest of a slow packet, while it is handled
        self._crashed = False  # this actor crashed, perhaps while it handled a result

    async def run(self) -> None:
        """Launch, load, warm up, serve, bury."""
        self._ctx.publish(kind=self._instance.spec.kind, lanes=self._instance.spec.lanes)
        self._enter("starting")
        # This actor runs; the model's readiness is told by the model's state.
        self._ctx.started()
        await self._comeback.wait_turn(self._instance, self._ctx.stopping)
        await self._turns.take(self._instance, self._ctx.stopping)
        if self._ctx.stopping.is_set():
            return
        try:
            launched = await self._launcher.launch(self._state.spec, self._instance.spec)
        except OSError as error:
            self._never_lived(f"no worker could be started: {error}")
        else:
            await self._live_and_be_buried(launched)
        self.let_others_start()
        if self._instance.settled.is_set() and not self._instance.started_once:
            self._ctx.publish(phase="failed to load")
            # It is given up; the catalog decides whether to try again.
            await self._ctx.stopping.wait()
        if not self._ctx.stopping.is_set():
            raise WorkerDied(self._name, self._verdict or self._reason or ProtocolError("ended"))

    def let_others_start(self) -> None:
        """Let the instances start that wait for this one."""
        self._comeback.over(self._instance)
        self._turns.over(self._instance)

    def _enter(self, phase: str) -> None:
        """Tell the tree what this instance is busy with, and the version too where it is loading."""
        self._ctx.publish(phase=phase)
        self._state.standing.phase = phase

    def _never_lived(self, why: str) -> None:
        self._verdict = StartFailed(why)
        self._instance.last_reason = str(self._verdict)
        if self._instance.exhausted:
            self._state.instance_exhausted(self._instance)
        self._state.standing.load_failed(f"{ErrorCode.INTERNAL.rendered}: {why}", self._instance)

    # -- one life --------------------------------------------------------------------------------------------

    async def _live_and_be_buried(self, launched: Launched) -> None:
        limiter = self._state.dispatcher.limiter
        # A batch that waits for a resource must not wait in the worker, which executes every batch that it
        # holds.
        limited = limiter is not None and limiter.limits(self._instance)
        try:
            pipe = Pipe(launched.socket)
            worker = LiveWorker(
                pipe,
                self._state.spec,
                self._instance.spec,
                self,
                prefetch=prefetches(self._state.spec) and not limited,
            )
            output = OutputReader(launched.output, self._report_output)
        except OSError as error:
            launched.kill()
            launched.socket.close()
            if launched.output is not None:
                os.close(launched.output)
            with trio.CancelScope(shield=True):
                await launched.wait()
            self._never_lived(f"no memory or descriptor for a worker: {error}")
            return
        self._ctx.publish(pid=launched.pid)
        self._enter("loading")
        self._instance.pid = launched.pid
        self._started_at = trio.current_time()
        self._log(Event.WORKER_STARTED, level="info", **self._who(), pid=launched.pid)
        try:
            await self._live(launched, worker, output)
        except Exception:
            self._crashed = True
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self._bury(launched, worker, output)

    async def _live(self, launched: Launched, worker: LiveWorker, output: OutputReader) -> None:
        if faults.points is not None:
            faults.points.passing("instance.live")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_exit, launched, nursery.cancel_scope)
            nursery.start_soon(worker.pipe.flush)
            nursery.start_soon(worker.filler.run)
            nursery.start_soon(output.run)
            nursery.start_soon(self._trim, worker)
            nursery.start_soon(self._obey_stop, launched, worker)
            if self._state.spec.execution_timeout:
                nursery.start_soon(self._watch_hang, launched, worker)
            if self._state.spec.load_timeout and self._instance.started_once:
                nursery.start_soon(self._watch_return, launched)
            if self._state.spec.confinement.watched:
                nursery.start_soon(self._watch_usage, launched)
            nursery.start_soon(self._turns.expire, self._instance)
            nursery.start_soon(self._join, launched, worker)
            theirs = self._open_asks(launched, worker, nursery)
            worker.load(
                self._launcher.backend_path(self._state.spec),
                model_fields(self._state.spec, self._instance.spec),
                self._launcher.limits(),
                None if theirs is None else theirs.fileno(),
            )
            if theirs is not None:
                theirs.close()
            await self._receive(launched, worker)

    def _open_asks(
        self, launched: Launched, worker: LiveWorker, nursery: trio.Nursery
    ) -> socket.socket | None:
        """Serve what the worker asks for, and return the worker's end of the connection for that."""
        if self._asks is None:
            return None
        worker.asks, theirs = self._asks.connect(worker, self._state.spec, self._name)
        nursery.start_soon(worker.asks.run, lambda error: self._condemn(launched, ProtocolError(str(error))))
        return theirs

    async def _receive(self, launched: Launched, worker: LiveWorker) -> None:
        """Handle packets until the process has exited; the task that notices the exit cancels this one."""
        pipe = worker.pipe
        in_a_row = 0
        try:
            while True:
                packet = pipe.receive_nowait()
                in_a_row += 1
                if packet is None:
                    await pipe.wait_readable()
                    in_a_row = 0
                elif packet:
                    slow = worker.on_packet(packet)
                    if slow is not None:
                        await self._finish_packet(slow)
                        # `slow` holds the whole result, and the next packet may be long in coming.
                        slow = None
                    # Most likely it has no more packets, so don't try to receive.
                    if worker.idle:
                        await pipe.wait_readable()
                        in_a_row = 0
                else:
                    break
                if in_a_row > PACKETS_IN_A_ROW:
                    await trio.lowlevel.checkpoint()
                    in_a_row = 0
        except FrameError as error:
            self._condemn(launched, ProtocolError(str(error)))
        with trio.move_on_after(EOF_TO_EXIT_SECONDS):
            await self._exited.wait()
        if not launched.exited:
            self._hung_up = not launched.dying
            launched.kill()
        await trio.sleep_forever()  # until the exit has been seen

    async def _finish_packet(self, slow: Slow) -> None:
        """Finish the handling of a packet. If this is cancelled, `_bury` does it."""
        self._unfinished = slow
        try:
            await in_slices(slow())
        except Exception:
            self._unfinished = None
            raise
        self._unfinished = None

    def _condemn(self, launched: Launched, verdict: DeathReason) -> None:
        self._verdict = self._verdict or verdict
        launched.kill()

    async def _watch_exit(self, launched: Launched, life: trio.CancelScope) -> None:
        if faults.points is not None:
            faults.points.passing("instance.exit")
        self._reason = await launched.wait()
        # On a busy machine the worker may have been about to exit, and have ended by that. Then our signal
        # came too late.
        if self._hung_up and (launched.abandoned or self._reason == Signal(signal.SIGKILL)):
            self._verdict = self._verdict or ProtocolError("closed its connection and stayed alive")
        self._exited.set()
        life.cancel()

    async def _watch_hang(self, launched: Launched, worker: LiveWorker) -> None:
        """Kill the worker when a batch has been executing for longer than the limit."""
        limit = self._state.spec.execution_timeout
        while True:
            now = trio.current_time()
            self._culprit = worker.overdue(now - limit)
            if self._culprit is not None:
                self._condemn(launched, Hang(limit, suspended=launched.suspended))
                return
            await trio.sleep_until(min(worker.oldest_began_at(), now) + limit)

    async def _watch_return(self, launched: Launched) -> None:
        """Kill a worker that takes longer to come back than a load may.

        The caller that asked for a version's first load ends that load.
        """
        limit = self._state.spec.load_timeout
        with trio.move_on_after(limit):
            await self._joined.wait()
        if not self._joined.is_set():
            self._condemn(launched, StartFailed(f"not ready within {limit:g} s (tritium.load_timeout)"))

    async def _watch_usage(self, launched: Launched) -> None:
        """Kill the worker when it takes more memory, or starts more processes, than its model may."""
        limits = self._state.spec.confinement
        while True:
            usage = launched.glance()
            if usage is None:
                usage = await in_thread(launched.usage)
            excess = judge(usage, limits)
            if isinstance(excess, Oom) and usage.processes > 1:
                usage = await in_thread(partial(launched.usage, exact=True))
                excess = judge(usage, limits)
            if excess is not None:
                self._condemn(launched, excess)
                return
            await trio.sleep(next_look(usage, limits))

    async def _trim(self, worker: LiveWorker) -> None:
        while True:
            await trio.sleep(TRIM_SECONDS)
            await in_slices(worker.trimming())

    async def _obey_stop(self, launched: Launched, worker: LiveWorker) -> None:
        await self._ctx.stopping.wait()
        self._instance.worker = None
        await self._wait_idle(worker)
        self._ctx.publish(phase="stopping")
        if self._loaded.is_set() and not self._state.given_up:
            worker.stop()
            with trio.move_on_after(STOP_SECONDS):
                await self._exited.wait()
        launched.terminate()
        with trio.move_on_after(TERMINATE_SECONDS):
            await self._exited.wait()
        launched.kill()

    async def _wait_idle(self, worker: LiveWorker) -> None:
        """Wait until a worker that is given no batches holds none."""
        while not worker.idle:
            await self._idle.next_ring()

    # -- joining ---------------------------------------------------------------------------------------------

    async def _join(self, launched: Launched, worker: LiveWorker) -> None:
        if faults.points is not None:
            faults.points.passing("instance.joins")
        await self._loaded.wait()
        passive = self._instance.spec.passive
        if not passive:
            self._enter("warming up")
        for sample in () if passive else self._state.spec.warmup:
            for _ in range(sample.count):
                if not await self._warm(worker, sample):
                    with trio.move_on_after(STOP_SECONDS):
                        await self._exited.wait()
                    launched.kill()
                    return
        if not self._ctx.stopping.is_set():
            self._enter("passive" if passive else "serving")
            self._joined.set()
            worker.serving_since = trio.current_time()
            seconds = round(worker.serving_since - self._started_at, 3)
            self._log(Event.WORKER_READY, level="info", **self._who(), pid=launched.pid, seconds=seconds)
            self._state.instance_ready(self._instance, worker)
            self.let_others_start()

    async def _warm(self, worker: LiveWorker, sample: WarmupSample) -> bool:
        finished = trio.Event()
        port = _WarmupPort(len(sample.requests), finished)
        requests = [
            InferRequest(
                model_name=self._state.spec.name,
                inputs=inputs,
                requested_outputs=self._state.spec.output_names,
                reply=port,
                accepted_at=trio.current_time(),
            )
            for inputs in sample.requests
        ]
        worker.dispatch(requests, now=trio.current_time())
        await finished.wait()
        await self._wait_idle(worker)  # a decoupled model's execution may end after its answers
        if port.errors:
            self._load_code = ErrorCode.INVALID_ARG
            failed = "".join(f"{error.message}; " for error in port.errors)
            self.load_failed(f"failed to run warmup sample '{sample.name}': {failed}", "")
            self._verdict = StartFailed(self._load_error or "")
            worker.stop()
            return False
        return True

    # -- WorkerEvents ----------------------------------------------------------------------------------------

    def ready(self) -> None:
        """The model is loaded."""
        self._loaded.set()

    def unconfined(self, missing: Sequence[str]) -> None:
        """The worker could not impose all limits on itself.

        That is logged once for a version, and shown in the tree.
        """
        self._ctx.publish(unconfined=list(missing))
        if not self._instance.started_once:
            self._log(Event.WORKER_UNCONFINED, level="warning", actor=self._ctx.path, missing=list(missing))

    def load_failed(self, message: str, traceback: str) -> None:
        """The model can't be loaded.

        That is final for a version that never served; for one that did, it is a death like others.
        """
        if self._load_error is not None:
            return
        self._load_error = without_importing(message)
        # The code that asked for the first load tells why it failed.
        self._verdict = StartFailed(self._load_error if self._instance.started_once else "")
        if traceback:
            said = without_importing(traceback)
            self._log(Event.WORKER_OUTPUT, level="error", actor=self._ctx.path, line=said)
        if self._load_error != message:
            self._log(Event.WORKER_OUTPUT, level="debug", actor=self._ctx.path, line=traceback or message)

    def finished(self, batch: InFlight, result: Result, answers: Sequence[Cut], *, borrowed: bool) -> None:
        """Answer a batch's requests, and note the progress."""
        state, instance = self._state, self._instance
        state.outcome.completed(batch, result, answers, borrowed=borrowed)
        if batch.alone:
            instance.suspects.outcome_ok()
        if self._joined.is_set():  # a warmup is no progress, and holds no resources
            state.dispatcher.ended(instance)
            self._ctx.progressed()
            instance.exhausted = False
        if instance.worker is not None:
            instance.worker.advance(trio.current_time(), ended=batch)
            # There is room, even if the batch's own slot is lent to a response.
            self.slot_freed()
        else:
            self._idle.ring()

    def part(self, batch: InFlight, arrived: Arrived) -> None:
        """Pass on one part of a decoupled model's answer."""
        batch.progressed(trio.current_time())
        self._state.outcome.partial(batch, arrived)
        if not arrived.final:
            return
        if self._joined.is_set():
            self._ctx.progressed()
            self._instance.exhausted = False
        if self._instance.worker is None:
            self._idle.ring()

    def logged(self, level: str, message: str) -> None:
        """The model wrote a log line through its logger."""
        lines, dropped = self._log_budget.admit([message], trio.current_time())
        for line in lines:
            name = "debug" if level == "verbose" else level
            self._log(Event.WORKER_OUTPUT, level=name, actor=self._ctx.path, line=line)
        if dropped:
            self._report_output([], dropped)

    def slot_freed(self) -> None:
        """Room for another batch."""
        if len(self._state.queue) or self._instance.hunting or self._could_relieve():
            self._state.doorbell.ring()

    def _could_relieve(self) -> bool:
        """Whether this worker has a free lane, while in another worker a batch waits behind an execution."""
        rotation, worker = self._state.rotation, self._instance.worker
        if len(rotation) == 1 or worker is None or worker.free_lanes <= 0:
            return False
        return any(each.worker is not None and each.worker.free_lanes < 0 for each in rotation)

    def _report_output(self, lines: Sequence[str], dropped: int) -> None:
        for line in lines:
            self._log(Event.WORKER_OUTPUT, actor=self._ctx.path, line=line)
        if dropped:
            self._log(Event.WORKER_OUTPUT, level="warning", actor=self._ctx.path, dropped_lines=dropped)

    # -- the end ---------------------------------------------------------------------------------------------

    async def _bury(self, launched: Launched, worker: LiveWorker, output: OutputReader) -> None:
        """Reap the worker, take its last results, settle what it held, and close everything."""
        instance = self._instance
        instance.worker = None
        if self._state.sequences is not None:
            self._state.sequences.about_to_leave(instance.key)
        if not self._exited.is_set():
            launched.terminate()
            with trio.move_on_after(0 if self._verdict else TERMINATE_SECONDS):
                self._reason = await launched.wait()
                self._exited.set()
        if not self._exited.is_set():
            launched.kill()
            self._reason = await launched.wait()
        lost = self._crashed or isinstance(self._verdict, ProtocolError)  # a packet of the worker's
        # A decoupled model's answers would go on with a part missing.
        if not (lost and self._state.spec.decoupled):
            await self._drain_results(worker)
        if not self._joined.is_set():
            # These are warmup batches: no client waits for them, and none is run again.
            worker.disown()
        output.drain()
        reason = self._verdict or self._reason or ProtocolError("ended")
        if self._load_error is None and not instance.started_once and not self._ctx.stopping.is_set():
            self._load_error = (
                f"the worker of instance '{self._name}' died of {reason} while it loaded the model"
            )
        marks = await self._fingerprints(worker, reason)
        held, halves = self._settle(worker, reason, marks)
        # Otherwise its slot, with two descriptors, would stay mapped until this actor is garbage-collected.
        self._culprit = None
        if not launched.abandoned:  # an abandoned thread might still read the slots
            await in_slices(worker.emptying())
        worker.close()
        output.close()
        instance.pid = None
        self._ctx.publish(pid=None, phase="dead")
        self._state.statistics.abandoned_threads += launched.abandoned
        clean = self._ctx.stopping.is_set()
        self._log(
            Event.WORKER_EXITED,
            level="info" if clean else "warning",
            **self._who(),
            pid=launched.pid,
            reason=worker.farewell if clean else reason.label,
            detail=str(reason),
            **held,
        )
        if halves:
            self._log(Event.BATCH_BISECTED, level="info", **self._who(), halves=halves)

    async def _drain_results(self, worker: LiveWorker) -> None:
        try:
            if self._unfinished is not None:
                await self._finish_packet(self._unfinished)
            while packet := worker.pipe.receive_nowait():
                slow = worker.on_packet(packet)
                if slow is not None:
                    await self._finish_packet(slow)
        except FrameError as error:
            self._verdict = self._verdict or ProtocolError(str(error))

    def _who(self) -> dict[str, object]:
        """Return the keys that identify the worker in each log line about it."""
        spec = self._state.spec
        return {
            "actor": self._ctx.path,
            "model": spec.name,
            "version": spec.version,
            "instance": self._name,
        }

    def _executing(self, worker: LiveWorker, reason: DeathReason) -> list[InFlight]:
        """Return the batches that the model may have had in its hands."""
        executing_ids = worker.executing()
        if self._crashed or isinstance(reason, ProtocolError):
            # The worker's result may have been unreadable, or lost here. Then the model may have run these
            # batches.
            executing_ids |= {batch.id for batch in worker.executing_now()}
        return [
            batch
            for held in (worker.outstanding, worker.open)
            for batch in held.values()
            if batch.id in executing_ids
        ]

    async def _fingerprints(
        self, worker: LiveWorker, reason: DeathReason
    ) -> Mapping[InferRequest, Fingerprint]:
        """Return the fingerprints of the inputs that executed.

        Large inputs are hashed on a thread, so that the event loop goes on meanwhile.
        """
        if not reason.blames_request:
            return {}
        requests = [
            request
            for batch in self._executing(worker, reason)
            for request in batch.requests
            if not (request.padding or request.answered or request.synthetic)
        ]

        def make() -> dict[InferRequest, Fingerprint]:
            return {request: fingerprint_of(request) for request in requests}

        if sum(request.nbytes for request in requests) <= HASHED_AT_ONCE:
            return make()
        return await in_thread(make)

    def _settle(
        self, worker: LiveWorker, reason: DeathReason, marks: Mapping[InferRequest, Fingerprint]
    ) -> tuple[dict[str, Sequence[str]], list[Sequence[str]]]:
        """Decide about everything the worker held.

        Deaths while a suspect is hunted are not the instance's fault.

        Return what is logged of it: the requests that it held, and the parts that a batch was split into.
        """
        state, instance = self._state, self._instance
        executing = self._executing(worker, reason)
        begun = {batch.id for batch in executing}
        waiting = [
            request
            for batch in worker.outstanding.values()
            if batch.id not in begun
            for request in batch.requests
        ]
        for request in waiting:
            # It was counted when sent, but the model never saw it.
            request.attempts -= 1
        hunting = bool(instance.suspects.running)
        worker.disown()
        instance.last_reason = str(reason)
        if not self._ctx.stopping.is_set():
            state.statistics.deaths[reason.label] += 1
        aftermath = after_death(
            reason,
            [[request for request in batch.requests if not request.padding] for batch in executing],
            [request for request in waiting if not request.padding],
            retry=Retry.NEVER if state.spec.decoupled else state.spec.retry,
            alone=any(batch.alone for batch in executing),
            instance=self._name,
            culprit=executing.index(self._culprit) if self._culprit in executing else None,
            known=state.blame.known(marks, trio.current_time()),
        )
        # A worker that was stopped from outside could not have made progress: that is not its fault either.
        if hunting or aftermath.suspects or (isinstance(reason, Hang) and reason.suspended):
            self._ctx.progressed()
        settle(state, instance, aftermath, marks)
        if self._load_error is not None:
            state.standing.load_failed(f"{self._load_code.rendered}: {self._load_error}", instance)
        held = {
            "executing": named(request for batch in executing for request in batch.requests),
            "waiting": named(waiting),
            "refused": named(request for request, _ in aftermath.refuse),
        }
        bisected = state.sequences is None and len(aftermath.suspects) > 1
        halves = [named(group) for group in aftermath.suspects] if bisected else []
        return {name: names for name, names in held.items() if names}, halves


class _WarmupPort(ReplyPort):
    """Collects the answers of a warmup sample."""

    def __init__(self, expected: int, finished: trio.Event) -> None:
        self._expected = expected
        self._finished = finished
        self.errors: list[TritiumError] = []

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Count one answer. See `actors.values.requests.ReplyPort`."""
        if isinstance(part, InferResponse):
            part.release()
        else:
            self.errors.append(part)
        self._expected -= final
        if not self._expected:
            self._finished.set()


def prefetches(spec: ModelSpec) -> bool:
    """Whether a batch may wait in a worker behind the one that executes.

    Contract: scheduling.md section 3.1.

    Not where queued requests may expire, be refused or be overtaken: such requests stay in the queue
    until an instance is idle.
    """
    policy = getattr(spec.scheduling, "default_queue_policy", None)
    return not getattr(spec.scheduling, "priority_levels", 0) and not (
        policy is not None
        and (policy.default_timeout or policy.allow_timeout_override or policy.max_queue_size)
    )


def threads_for(spec: ModelSpec, instance: InstanceSpec) -> int:
    """Return how many CPU threads one execution may use: as configured, or its share of the cores.

    Instances that a host policy binds to the same cores share those.
    """
    cores = instance.cores
    sharing = (each for each in spec.instances if not each.passive and (not cores or each.cores == cores))
    executing = max(1, sum(each.lanes for each in sharing))
    return spec.threads or max(1, (len(cores) or os.cpu_count() or 1) // executing)


def model_fields(spec: ModelSpec, instance: InstanceSpec) -> dict[str, object]:
    """Return the fields of `engine.worker.backends.base.ModelInfo`, as JSON values."""
    return {
        "name": spec.name,
        "version": spec.version,
        "model_directory": str(spec.model_directory),
        "version_directory": str(spec.version_directory),
        "artifact": spec.artifact,
        "max_batch_size": spec.max_batch_size,
        "inputs": [_tensor_fields(each.name, each, optional=each.optional) for each in spec.backend_inputs],
        "outputs": [_tensor_fields(each.name, each, optional=False) for each in spec.backend_outputs],
        "parameters": dict(spec.parameters),
        "settings": dict(spec.settings),
        "config": json.loads(spec.config_json),
        "instance_name": instance.name,
        "kind": instance.kind,
        "device_id": instance.device_id,
        "lanes": instance.lanes,
        "threads": threads_for(spec, instance),
        "decoupled": spec.decoupled,
    }


def _tensor_fields(name: str, spec: Any, *, optional: bool) -> dict[str, object]:
    return {
        "name": name,
        "datatype": spec.datatype.protocol_name,
        "dims": list(spec.dims),
        "reshape": None if spec.reshape is None else list(spec.reshape),
        "optional": optional,
    }
