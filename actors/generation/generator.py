"""The scheduler of a language model: it takes queued requests, and has engine and text worker answer them.

`Generator` is passive and belongs to the version's `ModelState`. The state of a request under way is in its
`Generation`. The engine is a model version of its own inside this one, with instances and a queue. What no
instance has room for waits in a line (`actors.generation.engine_line`), and meanwhile few further requests
are taken: so the requests that slow engines can't serve wait in the version's own queue, which has bounds and
shares.

The actor holds no state: a restarted one finds the generations where they were.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NoReturn

import trio

from actors.generation.conviction import Conviction
from actors.generation.engine import Engine
from actors.generation.engine_line import EngineLine
from actors.generation.families import (
    AdapterUse,
    CacheSize,
    GenerationCounts,
    GenerationSample,
    RequestSizes,
)
from actors.generation.generation import EngineRun, Generation
from actors.generation.moving import Moves
from actors.generation.policy.adapters import AdapterOrders, Adapters
from actors.generation.policy.journal import Choice
from actors.generation.policy.resolving import Limits
from actors.generation.policy.resuming import Resumes
from actors.generation.promising import metering_of
from actors.generation.resumption import Resumption
from actors.generation.slumber import Slumber
from actors.generation.text_line import TextLine
from actors.seams import faults
from actors.serving.model import ModelState
from actors.serving.policy.queueing import RequestQueue
from actors.serving.statistics import FailureReason
from actors.serving.turns import TurnTaker
from actors.supervision.context import ChildContext
from actors.values.errors import Internal, TritiumError, Unavailable, WorkerLost
from actors.values.events import Log
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import LanguageServing

STARTED_AT_ONCE: Final = 32
"""Requests taken from the queue in one turn of the loop."""

ENDED_AT_ONCE: Final = 64
"""Requests whose time is up that are ended in one turn of the loop."""

MOST_OPENING: Final = 128
"""Requests that wait for the text worker at once: more than it has helpers for. Others stay in the queue."""

TELL_EVERY: Final = 1.0
"""How old what the tree shows of a busy generator may become, in seconds."""

_UNBOUNDED: Final = 2**31 - 1


def _nothing() -> None:
    """Nothing wants to know."""


class Generator(TurnTaker):
    """Runs the requests of one version of a language model. Implements `actors.serving.ports.Composite`."""

    def __init__(
        self,
        state: ModelState,
        engine: Engine,
        *,
        epoch: Callable[[], int],
        log: Log | None = None,
        orders: AdapterOrders | None = None,
    ) -> None:
        """`epoch` gives milliseconds since it. `orders` are those for adapters of the model."""
        super().__init__(state)
        if not isinstance(state.spec.scheduling, LanguageServing):
            raise TypeError(f"{state.spec.name} is no language model")
        if not isinstance(state.queue, RequestQueue):
            raise TypeError(f"the requests of language model '{state.spec.name}' follow each other")
        self._queue = state.queue
        self.engine = engine
        self.texts = TextLine(lambda: self.limits.told(), self._on_change, self._on_room)
        self.on_change: Callable[[], None] = _nothing  # what a version is made of has come or gone
        self._scheduling = state.spec.scheduling
        self.adapters = Adapters(self._scheduling.adapters, orders)
        self.counts = GenerationCounts(RequestSizes() if self._scheduling.vllm_metrics else None)
        self._streams = self._scheduling.streams or math.inf
        self._metering = metering_of(state, state.queue, self._streams)
        self._epoch = epoch
        self._clock = trio.lowlevel.current_clock().current_time
        self._generations: dict[InferRequest, Generation] = {}
        self._deadlines: list[tuple[float, int]] = []  # and the numbers of generations, some of them over
        self._due: dict[int, Generation] = {}  # those that have a deadline and are under way
        self._numbers = count(1)
        self._conviction = Conviction(state, log)
        self._resumption = Resumption(self._conviction.convict)
        self.line = EngineLine(
            engine, self._resumption, state.doorbell.ring, queued=self._scheduling.queued_prompt_tokens
        )
        self.moves = Moves(
            engine,
            self._resumption,
            line=self.line,
            call_off=self.call_off,
            ring=state.doorbell.ring,
            patience=state.spec.drain_timeout,
        )
        self.slumber = Slumber(state, engine, self.line, self._resumption)
        self._pins = 0

    def _on_change(self) -> None:
        self.on_change()

    def _on_room(self) -> None:
        if self.texts.opening == MOST_OPENING - 1:
            self.state.doorbell.ring()

    @property
    def limits(self) -> Limits:
        """What the model allows, as engine and tokenizer say now."""
        facts = self.engine.facts
        context = facts.get("context")
        return Limits(
            context if isinstance(context, int) and context > 0 else _UNBOUNDED,
            self._scheduling.max_tokens,
            self.texts.facts.defaults,
            self.adapters.named if isinstance(facts.get("max_adapters"), int) else None,
        )

    # -- actors.serving.ports.Composite ----------------------------------------------------------------------

    def cancel(self, request: InferRequest) -> None:
        """The client has gone. See `actors.serving.ports.Composite`."""
        generation = self._generations.get(request)
        if generation is not None:
            self.counts.cancelled += 1
            generation.cancel()

    def steps_of(self, request: InferRequest) -> Sequence[tuple[ServedModel, InferRequest]]:
        """See `actors.serving.ports.Composite`."""
        generation = self._generations.get(request)
        return (
            [] if generation is None else [(self.engine.model, run.request) for run in generation.open_runs]
        )

    def give_up(self) -> None:
        """See `actors.serving.ports.Composite`."""
        for generation in list(self._generations.values()):
            generation.cancel()

    def keep(self) -> None:
        """See `actors.serving.ports.Composite`."""
        self._pins += 1
        if self._pins == 1:
            self.engine.pin()

    def let_go(self) -> None:
        """See `actors.serving.ports.Composite`."""
        self._pins = max(0, self._pins - 1)
        if not self._pins:
            self.engine.unpin()

    # -- the scheduler's turn --------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """See `TurnTaker.turn`."""
        if faults.points is not None:
            faults.points.passing("generation.turn")
        self.answer_door()
        self._resumption.look_into_deaths()
        look_at = self.slumber.turn(now)
        self._submit_resumed()
        look_at = min(look_at, self.moves.turn(now))
        self._end_late(now)
        state, queue = self.state, self._queue
        if self.end_overdue(queue, now) <= now:
            return -math.inf
        started = 0
        while (
            len(queue)
            and (not len(self._resumption) or self.line.refuses)
            and self.line.has_place(self.texts.opening)
            and len(self._generations) < self._streams
            and self.texts.opening < MOST_OPENING
            and started < STARTED_AT_ONCE
        ):
            for request in queue.take(1):
                self._start(request, now)
            started += 1
        if started:
            state.intake.line.call_next()
        if started == STARTED_AT_ONCE and len(queue):
            state.doorbell.ring()  # lets other tasks have the loop in between
        due = self._deadlines[0][0] if self._deadlines else math.inf
        return min(queue.next_expiry(), due, look_at)

    def _start(self, request: InferRequest, now: float) -> None:
        meter = None if self._metering is None else self._metering.opened(request)
        if self._conviction.refused(request):
            if meter is not None:
                meter.end(0, 0, now)
            return
        try:
            generation = Generation(self, request)
        except TritiumError as error:
            if meter is not None:
                meter.end(0, 0, now)
            self.state.outcome.fail(request, error, FailureReason.OTHER)
            return
        except Exception:
            self.state.outcome.fail(
                request, Internal(f"{request.prefix}could not be begun"), FailureReason.OTHER
            )
            raise
        generation.meter = meter
        self._generations[request] = generation
        if len(self._generations) == 1:
            self.state.doorbell.ring()  # the actor tells of it, even if a caller takes this turn
        self._look_at(generation, request.deadline)
        try:
            generation.begin()
        except Exception:
            generation.refused(Internal(f"{request.prefix}could not be begun"))
            raise

    def _look_at(self, generation: Generation, at: float) -> None:
        """Look at that time whether it is too late for a generation."""
        if at < math.inf:
            if not generation.number:
                generation.number = next(self._numbers)
                self._due[generation.number] = generation
            heapq.heappush(self._deadlines, (at, generation.number))

    def _late(self, generation: Generation, now: float) -> None:
        if generation.request.deadline <= now:
            self.counts.late += 1
            generation.out_of_time()
        elif generation.resume_by <= now:
            generation.give_up(
                Unavailable(
                    f"{generation.request.prefix}its engine is gone, and no other took over within"
                    f" {self._scheduling.resume_within:g} s (tritium.resume_within)"
                )
            )

    def _end_late(self, now: float) -> None:
        for _ in range(ENDED_AT_ONCE):  # the turn after this one is due at once if there are more
            if not self._deadlines or self._deadlines[0][0] > now:
                break
            _, number = heapq.heappop(self._deadlines)
            generation = self._due.get(number)
            if generation is not None:
                self._late(generation, now)
        if len(self._deadlines) > 2 * len(self._due) + STARTED_AT_ONCE:
            self._deadlines = [each for each in self._deadlines if each[1] in self._due]
            heapq.heapify(self._deadlines)

    # -- for generations: see `Generating` -------------------------------------------------------------------

    def now(self) -> float:
        """See `Generating`."""
        return self._clock()

    def epoch(self) -> int:
        """See `Generating`."""
        return self._epoch() // 1000

    def submit(self, run: EngineRun) -> None:
        """See `Generating`."""
        self.line.submit(run)

    def _submit_resumed(self) -> None:
        """Give engines what another has to take over, ahead of new work."""
        if self.line.resuming:
            self.line.turn()
        for _ in range(STARTED_AT_ONCE):
            run = None if self.line.resuming else self._resumption.next()
            if run is None:
                break
            self.line.take_up(run)
        else:
            self.state.doorbell.ring()  # lets other tasks have the loop in between
        self.line.turn()

    def call_off(self, run: EngineRun) -> None:
        """See `Generating`."""
        self.line.call_off(run)

    def lost(self, run: EngineRun, error: WorkerLost | None) -> None:
        """See `Generating`."""
        if error is None:
            self._resumption.moved(run)
        else:
            self._resumption.lost(run, error)
        self.state.doorbell.ring()

    def got_on(self) -> None:
        """See `Generating`."""
        if self._resumption.was_on_trial or self.moves.under_way:
            self.state.doorbell.ring()

    @property
    def resumes(self) -> Resumes | None:
        """See `Generating`."""
        return Resumes.of(self.engine.facts.get("resumes")) if self._scheduling.resume else None

    @property
    def identity(self) -> str:
        """See `Generating`."""
        return str(self.engine.facts.get("identity", ""))

    @property
    def stops(self) -> Sequence[int]:
        """See `Generating`. Those that the text worker knows, and the engine's own."""
        own = self.engine.facts.get("stops")
        return [*self.texts.facts.eos, *(own if isinstance(own, list) else ())]

    def resumes_soon(self, generation: Generation, choice: Choice, *, dead: bool) -> None:
        """See `Generating`."""
        by = self._clock() + self._scheduling.resume_within
        if by < generation.resume_by:
            generation.resume_by = by
            self._look_at(generation, by)
        self.counts.resumed(choice, dead=dead)

    def over(self, generation: Generation) -> None:
        """See `Generating`."""
        self._due.pop(generation.number, None)
        if self._generations.pop(generation.request, None) is not None:
            self.counts.ended(generation, self._clock())
            if generation.meter is not None:
                generation.meter.end(*generation.used, self._clock())
        if len(self._queue) or len(self.line) or len(self._resumption) or not self._generations:
            self.state.doorbell.ring()

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Generations whose first token has come."""
        return sum(generation.first_at >= 0.0 for generation in self._generations.values())

    @property
    def is_busy(self) -> bool:
        """Whether there is any request."""
        return bool(self._generations or len(self._queue))

    @property
    def waiting(self) -> int:
        """Requests that have no token yet, those in the queue included."""
        return len(self._queue) + len(self._generations) - self.running

    def sample(self) -> GenerationSample:
        """Return what is told of the version in numbers."""
        return GenerationSample(
            counts=self.counts,
            running=self.running,
            waiting=self.waiting,
            texts_restored=self.texts.restored,
            vllm=self.counts.sizes is not None and self.engine.facts.get("log_stats") is not False,
            adapters=self._adapter_use(),
            cache=_cache_size(self.engine.facts),
            in_line=len(self.line),
            engines=self.line.loads,
            routes=self.line.routes,
            sleep_states=self.slumber.told if self.slumber.level else (),
        )

    def _adapter_use(self) -> AdapterUse | None:
        adapters, most = self.limits.adapters, self.engine.facts.get("max_adapters")
        if adapters is None:
            return None
        named: dict[bool, dict[str, None]] = {True: {}, False: {}}
        for each in self._generations.values():
            if each.ask.adapter:
                named[each.first_at >= 0.0][each.ask.adapter] = None
        return AdapterUse(most if isinstance(most, int) else 1, [*named[True]], [*named[False]])


def _cache_size(facts: Mapping[str, Any]) -> CacheSize | None:
    told = facts.get("cache")
    if not isinstance(told, dict):
        return None
    size, blocks = told.get("block_size"), told.get("blocks")
    return CacheSize(size, blocks) if isinstance(size, int) and isinstance(blocks, int) else None


async def run(ctx: ChildContext, state: ModelState, generator: Generator) -> None:
    """Schedule until asked to stop: the scheduler actor of a language model."""
    ctx.started()
    ctx.publish(scheduler="generation")
    state.doorbell.take_turn = generator.turn_at_once
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generator.line.submit_coming)
            await _take_turns(ctx, generator, state)
    finally:
        state.doorbell.take_turn = None


async def _take_turns(ctx: ChildContext, generator: Generator, state: ModelState) -> NoReturn:
    tell_at = -math.inf
    while True:
        now = trio.current_time()
        wake_at = generator.turn(now)
        if now >= tell_at or not generator.is_busy:
            ctx.publish(
                running=generator.running,
                waiting=generator.waiting,
                in_line=len(generator.line),
                sleep=generator.slumber.state.value if generator.slumber.level else None,
                engines={each.name: each.told for each in generator.line.loads},
            )
            tell_at = now + TELL_EVERY
        with trio.move_on_at(min(wake_at, tell_at) if generator.is_busy else wake_at):
            await state.doorbell.wait()
