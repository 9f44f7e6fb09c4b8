"""How requests come into one model version: valid, not quarantined, past the stages, into the queue. Passive.

Everything is plain synchronous code, except `submit`, which waits while the queue is full.
"""

from __future__ import annotations

from typing import Final

import trio

from actors.seams.slices import in_slices, in_threads
from actors.serving.doorbell import Doorbell
from actors.serving.outcome import Outcome
from actors.serving.policy.blame import QUARANTINE_SECONDS, Blame, hashing
from actors.serving.policy.coming_back import AnswerPace
from actors.serving.policy.waiting_line import Sequencing, WaitingLine
from actors.serving.ports import Stage
from actors.serving.standing import Standing, Status
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.serving.validation import Validator
from actors.serving.waiting import WaitingCallers
from actors.values.errors import Cancelled, Poisoned, TritiumError, Unavailable
from actors.values.regions import Held, Staying
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec

STOPPING: Final = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def staying(spec: ModelSpec, gpu: int) -> Staying:
    """Return which tensors may be left in clients' regions, as instances alone need their bytes.

    `gpu` is the one that all instances are on now; -1: none.

    A cache compares inputs and keeps outputs. The steps of an ensemble have tensors of their own. Sequences
    and decoupled models answer with more than the client gets.
    """
    return Staying(spec.plain, gpu, spec.device_inputs)


class Intake:
    """Takes requests in for one model version."""

    def __init__(
        self,
        spec: ModelSpec,
        standing: Standing,
        *,
        queue: WaitingLine,
        line: WaitingCallers,
        sequences: Sequencing | None,
        blame: Blame,
        outcome: Outcome,
        doorbell: Doorbell,
        statistics: ModelStatistics,
    ) -> None:
        self.stages: tuple[Stage, ...] = ()
        self.line = line
        self._name, self._version = spec.name, spec.version
        self._standing = standing
        self._queue = queue
        self._sequences = sequences
        self._blame = blame
        self._outcome = outcome
        self._in_flight = outcome.in_flight
        self._doorbell = doorbell
        self._statistics = statistics
        self._validate = Validator(spec)
        self._stay = staying(spec, spec.gpu)
        self._pace = AnswerPace()

    async def submit(self, request: InferRequest, *, pinned: bool = False) -> None:
        """Validate and queue `request`. See `submit_nowait`."""
        if request.regions is not None and self._must_read(request):
            await request.regions.read(stay=self._stay)
            if request.cancelled:
                raise Cancelled("")
        if self._validate.must_walk(request):
            await in_slices(self._validate.walk_strings(request))
            if request.cancelled:
                raise Cancelled("")
        if not self._blame.clean and self._blame.must_hash(request, trio.current_time()):
            await self._hash(request)
        try:
            self.submit_nowait(request, pinned=pinned)
        except trio.WouldBlock:
            await self.line.wait(request)
            # An equal request may have been answered meanwhile.
            if not (any(stage.intercept(request) for stage in self.stages) or self._held(request)):
                self._enqueue(request, trio.current_time())

    def submit_nowait(
        self, request: InferRequest, *, pinned: bool = False, in_company: bool = False, now: float = -1.0
    ) -> None:
        """Validate and queue `request`, if there is room. See `actors.values.requests.ServedModel`.

        `pinned`: the version serves it, retired or not; see `ModelState.pin`.

        `in_company`: other requests may follow in this turn of the loop, so a batch should not begin with
            this request alone.

        `now`: the time, from a caller that has just asked for it.
        """
        if self._standing.status is not Status.READY:
            self._check_accepting(request, pinned=pinned)
        validate = self._validate
        if (request.regions is not None and self._must_read(request)) or (
            validate.has_strings and validate.must_walk(request)
        ):
            raise trio.WouldBlock
        if not validate.is_usual(request):
            validate(request)
        if request.synthetic:
            # It runs in a batch of its own: its failure must not become a client's.
            request.batch_key = object()
        if not self._blame.clean:
            self._check_blame(request)
        if self.stages:
            for stage in self.stages:
                if stage.intercept(request):
                    return
            for stage in self.stages:
                stage.admit(request)
        line = self.line
        if (line.places and not line.may_pass(request)) or not self._queue.admits(request):
            raise trio.WouldBlock
        if not (self.stages and self._held(request)):
            since = now if now >= 0.0 else trio.current_time()
            self._enqueue(request, since, in_company=in_company)

    async def _hash(self, request: InferRequest) -> None:
        """Find out whether `request` is quarantined or accused, on a thread: its inputs are long."""
        held = Held(request.inputs)
        try:
            request.fingerprint = await in_slices(in_threads(hashing(request)))
        finally:
            held.end()
        if request.cancelled:
            raise Cancelled("")

    def _must_read(self, request: InferRequest) -> bool:
        """Whether inputs of `request` must be read from clients' shared memory before it is queued."""
        assert request.regions is not None, "only a request with regions is asked about"
        if not self._stay.system:
            request.output_regions = None
        return request.regions.must_read(stay=self._stay)

    def respecify(self, spec: ModelSpec, gpu: int) -> None:
        """The version's instances are others now, all of them on GPU `gpu`; -1: they are not."""
        self._stay = staying(spec, gpu)

    def _check_accepting(self, request: InferRequest, *, pinned: bool) -> None:
        """Raise Unavailable, unless a version that is not READY takes `request` all the same."""
        if self._standing.status is Status.UNLOADING:
            if pinned:
                return
            if self._sequences is not None and not self._standing.ended.is_set():
                # A request that goes on with a sequence is accepted (contract, section 6.1).
                self._sequences.stop(STOPPING)
                return
            raise Unavailable(request.prefix + STOPPING)
        raise Unavailable(
            f"Request for unknown model: '{self._name}' version {self._version} is not at ready state"
        )

    def _check_blame(self, request: InferRequest) -> None:
        """Raise Poisoned for a request that is quarantined, and have an accused one run alone.

        Raises WouldBlock for one that has to be hashed for it, and is too long for the loop.
        """
        now = trio.current_time()
        if self._blame.must_hash(request, now):
            raise trio.WouldBlock
        if self._blame.quarantine.match(request, now):
            self._statistics.quarantined += 1
            raise Poisoned(
                f"{request.prefix}this request is quarantined: it killed workers of model '{self._name}' "
                f"before; the same inputs are refused for {QUARANTINE_SECONDS:.0f} s after that"
            )
        self._blame.recognise(request, now)
        self._blame.look()

    def _held(self, request: InferRequest) -> bool:
        """Whether a stage holds an accepted `request` for now; it is then queued later."""
        for stage in self.stages:
            stage.accepted(request)
        return any(stage.holds(request) for stage in self.stages)

    def _enqueue(self, request: InferRequest, since: float, *, in_company: bool = False) -> None:
        """Queue `request`, whose queue timeout runs from `since`."""
        try:
            self._queue.push(request, since)
        except Unavailable as full:
            full.retry_after = full.retry_after or self._room_after()
            raise
        self._in_flight[request] = None
        if request.span is not None:
            self._outcome.trace(request.span, request, since)
        if self.stages:
            for stage in self.stages:
                stage.queued(request)
        if len(self._in_flight) == 1 and self._doorbell.take_turn is not None and not in_company:
            # No other request is in flight to share a batch with: waking the scheduler would only cost time.
            self._doorbell.take_turn()
        elif not self._doorbell.rung:
            self._doorbell.ring()

    def queue_again(self, request: InferRequest, since: float) -> None:
        """Queue a request that was accepted at `since` and has waited in a stage for nothing.

        Its queue timeout runs from `since`.
        """
        if self.refused(request):
            return
        try:
            self._enqueue(request, since, in_company=True)
        except Unavailable as full:
            self._outcome.fail(request, full, FailureReason.OTHER)

    def refused(self, request: InferRequest) -> bool:
        """Whether `request` was quarantined since it was accepted; if so, it is answered.

        False for one that would have to be hashed for it, and is too long for the loop.
        """
        now, blame = trio.current_time(), self._blame
        if blame.clean or blame.must_hash(request, now) or not blame.quarantine.match(request, now):
            return False
        self._statistics.quarantined += 1
        why = f"{request.prefix}this request is quarantined: it killed workers of model '{self._name}' before"
        self._outcome.fail(request, Poisoned(why), FailureReason.BACKEND)
        return True

    def _room_after(self) -> float:
        """Return the seconds in which the queued requests may have been answered; 0 where that is unknown."""
        return self._pace.after(
            len(self._queue),
            answered=self._statistics.success_count,
            usual=lambda: (
                self._statistics.lane_rate * sum(each.spec.lanes for each in self._standing.rotation)
            ),
            now=trio.current_time(),
        )

    def withdraw(self, request: InferRequest) -> bool:
        """Answer `request`, whose client has left, if it has not been dispatched. False if it has."""
        suspects = (instance.suspects for instance in self._standing.instances)
        ended = self._queue.abandon(request, trio.current_time())
        if not ended and (
            any(stage.withdraw(request) for stage in self.stages)
            or any(each.remove(request) for each in suspects)
        ):
            ended = [request]
        for member in ended:
            self._outcome.fail(member, Cancelled(""), FailureReason.CANCELED)
        if ended:
            # An instance may be standing in line for this request alone, and a slot may be free.
            self._doorbell.ring()
        return bool(ended)

    def fail_queued(self, error: TritiumError) -> None:
        """Answer every waiting request with `error`."""
        for stage in self.stages:
            for request in stage.abandon():
                self._outcome.fail(request, error, FailureReason.OTHER)
        for request in self._queue.drain():
            self._outcome.fail(request, error, FailureReason.OTHER)
        self.line.refuse_all(error)
