"""One life of a worker, from its launch to its burial: its tasks, and what becomes of its messages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final

import trio

from actors.seams import faults
from actors.seams.slices import in_slices
from actors.serving.asks import Asks
from actors.serving.instances.batches import InFlight
from actors.serving.instances.burial import Burial
from actors.serving.instances.comeback import LoadTurns
from actors.serving.instances.joining import Joining
from actors.serving.instances.launching import Launched, Launcher, model_fields
from actors.serving.instances.output import LineBudget, OutputReader
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.post import Post
from actors.serving.instances.reading import PacketReader
from actors.serving.instances.watching import WorkerWatch
from actors.serving.instances.worker import LiveWorker
from actors.serving.policy.retries import Hang, ProtocolError
from actors.values.events import Event
from actors.wire.batch_frames import Result
from actors.wire.frames import FrameError
from actors.wire.gathering import Cut
from actors.wire.parts import Arrived

TRIM_SECONDS: Final = 15.0

READ_WITHIN: Final = 5.0
"""Seconds that a worker which is to stop waits for others to read what it has left on its GPU."""


class WorkerLife:
    """One life of one worker. Implements `actors.serving.instances.worker.WorkerEvents`."""

    def __init__(
        self, post: Post, launched: Launched, *, prefetch: bool, on_joined: Callable[[], None]
    ) -> None:
        """`on_joined` is called when the worker serves.

        Raises OSError where the system has no memory or descriptor for the connection.
        """
        self._post = post
        self._launched = launched
        self._on_joined = on_joined
        self._worker = LiveWorker(
            Pipe(launched.socket),
            post.state.spec,
            post.instance.spec,
            self,
            prefetch=prefetch,
            held=post.instance.held,
            statistics=post.state.statistics,
        )
        self._output = OutputReader(launched.output, self._report_output)
        self._log_budget = LineBudget(trio.current_time())
        self.watch = WorkerWatch(launched)
        self._joining = Joining(post, self.watch, self._worker)
        self._reader = PacketReader(self._worker)

    async def run(self, launcher: Launcher, *, asks: Asks | None, turns: LoadTurns) -> None:
        """Live, and be buried."""
        post, launched = self._post, self._launched
        buffers = self._worker.buffers
        post.ctx.publish(pid=launched.pid, gpu_tensors=None if buffers is None else buffers.told)
        post.enter("loading")
        post.instance.pid = launched.pid
        post.log(Event.WORKER_STARTED, level="info", **post.who(), pid=launched.pid)
        crashed = False
        try:
            await self._live(launcher, asks, turns)
        except Exception:
            crashed = True
            raise
        finally:
            burial = Burial(
                post,
                launched,
                self._worker,
                watch=self.watch,
                joining=self._joining,
                reader=self._reader,
                output=self._output,
            )
            with trio.CancelScope(shield=True):
                await burial.run(crashed=crashed)

    async def _live(self, launcher: Launcher, asks: Asks | None, turns: LoadTurns) -> None:
        if faults.points is not None:
            faults.points.passing("instance.live")
        post, worker, watch, spec = self._post, self._worker, self.watch, self._post.state.spec
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.for_exit, nursery.cancel_scope)
            nursery.start_soon(worker.pipe.flush)
            nursery.start_soon(worker.sender.run)
            nursery.start_soon(self._output.run)
            nursery.start_soon(self._trim)
            nursery.start_soon(self._obey_stop)
            if spec.execution_timeout:
                nursery.start_soon(watch.for_hang, worker, spec.execution_timeout)
            if spec.load_timeout and post.instance.started_once:
                nursery.start_soon(watch.for_return, self._joining.joined, spec.load_timeout)
            if spec.confinement.watched:
                nursery.start_soon(watch.for_usage, spec.confinement)
            nursery.start_soon(turns.expire, post.instance)
            nursery.start_soon(self._joining.run, self._launched.pid, self._on_joined)
            theirs = self._open_asks(asks, nursery)
            worker.load(
                launcher.backend_path(spec),
                model_fields(spec, post.instance.spec),
                launcher.limits(),
                None if theirs is None else theirs.fileno(),
            )
            if theirs is not None:
                theirs.close()
            try:
                await self._reader.run()
            except FrameError as error:
                watch.condemn(ProtocolError(str(error)))
            await watch.after_hang_up()
            await trio.sleep_forever()  # until the exit has been seen

    def _open_asks(self, asks: Asks | None, nursery: trio.Nursery) -> socket.socket | None:
        """Serve what the worker asks for, and return the worker's end of the connection for that."""
        if asks is None:
            return None
        self._worker.asks, theirs = asks.connect(self._worker, self._post.state.spec, self._post.name)
        nursery.start_soon(self._worker.asks.run, lambda error: self.watch.condemn(ProtocolError(str(error))))
        return theirs

    async def _trim(self) -> None:
        while True:
            await trio.sleep(TRIM_SECONDS)
            await in_slices(self._worker.memory.trimming())

    async def _obey_stop(self) -> None:
        post, worker = self._post, self._worker
        await post.ctx.stopping.wait()
        post.instance.worker = None
        await worker.held.wait_idle()
        if worker.buffers is not None:
            with trio.move_on_after(READ_WITHIN):
                await worker.buffers.wait_unused()
        post.ctx.publish(phase="stopping")
        if self._joining.loaded.is_set() and not post.state.given_up:
            worker.stop()
            await self.watch.exit_in_time()
        await self.watch.terminate()

    # -- WorkerEvents ----------------------------------------------------------------------------------------

    def ready(self) -> None:
        """The model is loaded."""
        self._joining.loaded.set()

    def entered(self, phase: str) -> None:
        """Tell what a load is busy with."""
        if not self._joining.loaded.is_set():
            self._post.enter(phase)
            self._post.log(Event.WORKER_LOADING, level="info", **self._post.who(), phase=phase)

    def unconfined(self, missing: Sequence[str]) -> None:
        """The worker could not impose all limits on itself.

        That is logged once for a version, and shown in the tree.
        """
        post = self._post
        post.ctx.publish(unconfined=list(missing))
        if not post.instance.started_once:
            limits = post.state.spec.confinement
            level = "info" if limits.by_default and not limits.watched else "warning"
            post.log(Event.WORKER_UNCONFINED, level=level, actor=post.ctx.path, missing=list(missing))

    def load_failed(self, message: str, traceback: str) -> None:
        """The model can't be loaded. See `Joining.failed`."""
        self._joining.failed(message, traceback)

    def finished(self, batch: InFlight, result: Result, answers: Sequence[Cut], *, borrowed: bool) -> None:
        """Answer a batch's requests, and note the progress."""
        state, instance = self._post.state, self._post.instance
        state.outcome.completed(batch, result, answers, borrowed=borrowed)
        if batch.alone:
            instance.suspects.outcome_ok()
        if self._joining.joined.is_set():  # a warmup is no progress, and holds no resources
            if state.dispatcher.limiter is not None:
                state.dispatcher.ended(instance)
            self._post.ctx.progressed()
            instance.exhausted = False
        if instance.worker is not None:
            instance.worker.ended(batch, trio.current_time())
            # There is room, even if the batch's own slot is lent to a response.
            self.slot_freed()

    def short(self, batch: InFlight) -> None:
        """Have batches be smaller for a while."""
        state = self._post.state
        rows = sum(request.rows or 1 for request in batch.requests)
        if state.easing.short(rows, trio.current_time()):
            self._post.log(
                Event.BATCHES_EASED, level="warning", **self._post.who(), rows=rows, at_most=state.easing.rows
            )

    def part(self, batch: InFlight, arrived: Arrived) -> None:
        """Pass on one part of a decoupled model's answer."""
        batch.progressed(trio.current_time())
        self._worker.parts += 1
        self._post.state.outcome.partial(batch, arrived)
        if arrived.final and self._joining.joined.is_set():
            self._post.ctx.progressed()
            self._post.instance.exhausted = False

    def hung(self, limit: float) -> None:
        """Kill an engine that has shown no sign of life for `limit` seconds."""
        self.watch.condemn(Hang(limit, suspended=self._launched.suspended, missed="no token and no step"))

    def unsent(self, batch: InFlight, error: Exception) -> None:
        """Answer the requests of a batch that was handed over and could not be sent."""
        self._post.state.dispatcher.unsent(self._post.instance, batch, error)

    def logged(self, level: str, message: str) -> None:
        """The model wrote a log line through its logger."""
        lines, dropped = self._log_budget.admit([message], trio.current_time())
        for line in lines:
            name = "debug" if level == "verbose" else level
            self._post.log(Event.WORKER_OUTPUT, level=name, actor=self._post.ctx.path, line=line)
        if dropped:
            self._report_output([], dropped)

    def slot_freed(self) -> None:
        """Room for another batch."""
        state = self._post.state
        if (
            len(state.queue)
            or self._post.instance.hunting
            or (len(state.rotation) > 1 and self._could_relieve())
        ):
            state.doorbell.ring()

    def _could_relieve(self) -> bool:
        """Whether this worker has a free lane, while in another worker a batch waits behind an execution."""
        rotation, worker = self._post.state.rotation, self._post.instance.worker
        if worker is None or worker.free_lanes <= 0:
            return False
        return any(each.worker is not None and each.worker.free_lanes < 0 for each in rotation)

    def _report_output(self, lines: Sequence[str], dropped: int) -> None:
        log, path = self._post.log, self._post.ctx.path
        for line in lines:
            log(Event.WORKER_OUTPUT, actor=path, line=line)
        if dropped:
            log(Event.WORKER_OUTPUT, level="warning", actor=path, dropped_lines=dropped)
