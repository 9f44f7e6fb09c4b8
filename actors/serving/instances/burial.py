"""The end of a worker: its last results are taken, what it held is settled, and everything is closed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import trio

from actors.seams.slices import in_slices
from actors.seams.threads import in_thread
from actors.serving.deaths import settle
from actors.serving.instances.batches import InFlight
from actors.serving.instances.joining import Joining
from actors.serving.instances.launching import Launched
from actors.serving.instances.output import OutputReader
from actors.serving.instances.post import Post
from actors.serving.instances.reading import PacketReader
from actors.serving.instances.watching import WorkerWatch
from actors.serving.instances.worker import LiveWorker
from actors.serving.policy.blame import (
    HASHED_AT_ONCE,
    QUARANTINE_SECONDS,
    Fingerprint,
    fingerprint_of,
)
from actors.serving.policy.retries import DeathReason, Hang, ProtocolError, after_death
from actors.serving.records import named
from actors.values.events import Event
from actors.values.regions import Held
from actors.values.requests import InferRequest
from actors.values.specs import Retry
from actors.wire.frames import FrameError


class Burial:
    """Buries one worker."""

    def __init__(
        self,
        post: Post,
        launched: Launched,
        worker: LiveWorker,
        *,
        watch: WorkerWatch,
        joining: Joining,
        reader: PacketReader,
        output: OutputReader,
    ) -> None:
        self._post = post
        self._launched = launched
        self._worker = worker
        self._watch = watch
        self._joining = joining
        self._reader = reader
        self._output = output

    async def run(self, *, crashed: bool) -> None:
        """Reap the worker, take its last results, settle what it held, and close everything.

        `crashed`: its owner has crashed, perhaps while it handled a result.
        """
        post, launched, worker, watch = self._post, self._launched, self._worker, self._watch
        instance = post.instance
        instance.worker = None
        post.state.standing.workers.pop(worker, None)
        if post.state.sequences is not None:
            post.state.sequences.about_to_leave(instance.key)
        await watch.reap()
        lost = crashed or isinstance(watch.verdict, ProtocolError)  # a packet of the worker's
        # A decoupled model's answers would go on with a part missing.
        if not (lost and post.state.spec.decoupled):
            try:
                await self._reader.drain()
            except FrameError as error:
                watch.verdict = watch.verdict or ProtocolError(str(error))
        if not self._joining.joined.is_set():
            # These are warmup batches: no client waits for them, and none is run again.
            worker.disown()
        self._output.drain()
        reason = watch.cause
        stopping = post.ctx.stopping.is_set()
        if self._joining.error is None and not instance.started_once and not stopping:
            self._joining.error = (
                f"the worker of instance '{post.name}' died of {reason} while it loaded the model"
            )
        executing = self._executing(crashed=crashed or isinstance(reason, ProtocolError))
        marks = await _fingerprints(executing, reason) if post.state.spec.suspects else {}
        held, halves, convicted = self._settle(executing, reason, marks)
        # Otherwise its slot, with two descriptors, would stay mapped until this actor is garbage-collected.
        watch.culprit = None
        if not launched.abandoned:  # an abandoned thread might still read the slots
            await in_slices(worker.memory.emptying())
        worker.close()
        self._output.close()
        instance.pid = None
        post.ctx.publish(pid=None, phase="dead")
        post.state.statistics.abandoned_threads += launched.abandoned
        stopping = post.ctx.stopping.is_set()
        post.log(
            Event.WORKER_EXITED,
            level="info" if stopping else "warning",
            **post.who(),
            pid=launched.pid,
            reason=worker.farewell if stopping else reason.label,
            detail=str(reason),
            **held,
        )
        if convicted:
            post.log(
                Event.REQUEST_QUARANTINED,
                level="warning",
                **post.who(),
                requests=convicted,
                reason=reason.label,
                seconds=QUARANTINE_SECONDS,
            )
        if halves:
            post.log(Event.BATCH_BISECTED, level="info", **post.who(), halves=halves)

    def _executing(self, *, crashed: bool) -> list[InFlight]:
        """Return the batches that the model may have had in its hands.

        Where the worker's result may have been unreadable, or was lost here, the model may have run each
        batch that has a lane.
        """
        worker = self._worker
        ids = worker.executing()
        if crashed:
            ids |= {batch.id for batch in worker.held.having_lanes()}
        return [
            batch for held in (worker.outstanding, worker.open) for batch in held.values() if batch.id in ids
        ]

    def _settle(
        self, executing: Sequence[InFlight], reason: DeathReason, marks: Mapping[InferRequest, Fingerprint]
    ) -> tuple[dict[str, Sequence[str]], list[Sequence[str]], Sequence[str]]:
        """Decide about everything the worker held.

        Deaths while a suspect is hunted are not the instance's fault.

        Return what is logged of it: the requests that it held, the parts that a batch was split into, and the
        requests that are refused from now on.
        """
        post, worker, culprit = self._post, self._worker, self._watch.culprit
        state, instance = post.state, post.instance
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
        self._tell_observers(begun, str(reason))
        hunting = bool(instance.suspects.running)
        worker.disown()
        instance.last_reason = str(reason)
        if not post.ctx.stopping.is_set():
            state.statistics.deaths[reason.label] += 1
        aftermath = after_death(
            reason,
            [[request for request in batch.requests if not request.padding] for batch in executing],
            [request for request in waiting if not request.padding],
            retry=Retry.NEVER if state.spec.decoupled else state.spec.retry,
            alone=any(batch.alone for batch in executing),
            instance=post.name,
            culprit=executing.index(culprit) if culprit in executing else None,
            known=state.blame.known(marks, trio.current_time()),
            suspects=state.spec.suspects,
        )
        # A worker that was stopped from outside could not have made progress: that is not its fault either.
        if hunting or aftermath.suspects or (isinstance(reason, Hang) and reason.suspended):
            post.ctx.progressed()
        convicted = named(settle(state, instance, aftermath, marks))
        if self._joining.error is not None:
            why = f"{self._joining.code.rendered}: {self._joining.error}"
            state.standing.load_failed(why, instance)
        held = {
            "executing": named(request for batch in executing for request in batch.requests),
            "waiting": named(waiting),
            "refused": named(request for request, _ in aftermath.refuse),
        }
        bisected = state.sequences is None and len(aftermath.suspects) > 1
        halves = [named(group) for group in aftermath.suspects] if bisected else []
        return {name: names for name, names in held.items() if names}, halves, convicted

    def _tell_observers(self, begun: Collection[int], reason: str) -> None:
        """Tell who observes batches what became of those that the worker held; `begun` are ids."""
        worker = self._worker
        for observer in self._post.state.observers.told:
            for batch in (*worker.outstanding.values(), *worker.open.values()):
                if batch.id in begun:
                    observer.died(batch, reason)
                else:
                    observer.taken_back(batch)


async def _fingerprints(
    executing: Sequence[InFlight], reason: DeathReason
) -> Mapping[InferRequest, Fingerprint]:
    """Return the fingerprints of the inputs that executed.

    Large inputs are hashed on a thread, so that the event loop goes on meanwhile. Those in clients' regions
    are read there, so the regions are held: another file could get the number of one that is closed.
    """
    if not reason.blames_request:
        return {}
    requests = [
        request
        for batch in executing
        for request in batch.requests
        if not (request.padding or request.answered or request.synthetic)
    ]

    def make() -> dict[InferRequest, Fingerprint]:
        return {request: fingerprint_of(request) for request in requests}

    if sum(request.nbytes for request in requests) <= HASHED_AT_ONCE:
        return make()
    held = Held(tensor for request in requests for tensor in request.inputs)
    try:
        return await in_thread(make)
    finally:
        held.end()
