"""The sleep of a language model's engines: their processes stay, and their memory is given back. Passive.

Residency says when (`actors.serving.ports.Sleeper`). An engine is told by a request that is an order, on the
way that all requests take, and only when it has nothing else. What comes while all sleep waits in the line of
runs, and in front of that in the version's queue. So it has their bounds, shares and deadlines, and prompts
are made ready meanwhile.

An engine that dies asleep is started again like any other, and comes up awake. It is put to sleep again,
unless work waits: then it takes that, and the others are woken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Final

import trio

from actors.generation.engine import Engine
from actors.generation.engine_line import EngineLine
from actors.generation.resumption import Resumption
from actors.seams.bell import Bell
from actors.serving.instances.worker import LiveWorker
from actors.serving.model import ModelState
from actors.values.datatypes import DataType
from actors.values.errors import TritiumError, Unavailable
from actors.values.generation.sleeping import SLEEP, SLEEP_CHANGES, SLEEP_STATES, WAKE, SleepState
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.specs import LanguageServing
from actors.values.tensors import Tensor, pack_bytes

AGAIN_AFTER: Final = 1.0
"""Seconds after which an engine is told again that could not be told, or did not obey."""

ORDER_ID: Final = "tritium-sleep"


def _nothing() -> None:
    """Nothing wants to know."""


class SleepOrder(ReplyPort):
    """Has one engine fall asleep or wake, and takes its answer."""

    def __init__(self, slumber: Slumber, worker: LiveWorker) -> None:
        self._slumber = slumber
        self.worker = worker

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """See `actors.values.requests.ReplyPort`. Never raises."""
        error = part if isinstance(part, TritiumError) else None
        if isinstance(part, InferResponse):
            part.release()
        if final:
            self._slumber.answered(self.worker, error)


class Slumber:
    """See the module. Belongs to a `Generator`. Implements `actors.serving.ports.Sleeper`."""

    def __init__(self, state: ModelState, engine: Engine, line: EngineLine, resumption: Resumption) -> None:
        """`state` is the language model's version."""
        scheduling = state.spec.scheduling
        self.level = scheduling.sleep if isinstance(scheduling, LanguageServing) else 0
        self.state = SleepState.AWAKE
        self.wanted_since: float | None = None
        self.awake_since = trio.lowlevel.current_clock().current_time()
        self.wake_seconds = 0.0
        self.on_change: Callable[[], None] = _nothing
        self.trouble = ""  # why an engine did not fall asleep the last time
        self._version = state
        self._engine = engine
        self._line = line
        self._resumption = resumption
        self._clock = trio.lowlevel.current_clock().current_time
        self._asked = 1  # the level that was asked for last
        self._until = math.inf
        self._tell_at = -math.inf  # when an engine may be told again
        self._waking_since: float | None = None
        self._callers = 0  # who waits for it to wake, beside runs
        self._refusal = ""  # why it can't wake, as was said last
        self._changed = Bell()

    # -- actors.serving.ports.Sleeper ------------------------------------------------------------------------

    def fall_asleep(self, level: int, until: float) -> None:
        """See `actors.serving.ports.Sleeper`."""
        if self.state is SleepState.AWAKE:
            self._asked, self._until, self.trouble = level, until, ""
            self._line.rest(wanted=True)
            self._become(SleepState.FALLING)

    def wake(self) -> None:
        """See `actors.serving.ports.Sleeper`."""
        if self.state in (SleepState.FALLING, SleepState.ASLEEP):
            self._rouse()

    def refuse(self, why: str) -> None:
        """See `actors.serving.ports.Sleeper`."""
        told = self._refusal = f"model '{self._version.spec.key}' {why}"
        self._changed.ring()
        self._version.intake.fail_queued(Unavailable(told))
        self._line.turn_away(told)
        self._version.doorbell.ring()

    # -- for the generator -----------------------------------------------------------------------------------

    async def wait_awake(self) -> None:
        """Have it woken, and return when it is awake. Raises Unavailable where it can't wake now."""
        self._callers += 1
        self._refusal = ""
        try:
            self._version.doorbell.ring()
            while self.state is not SleepState.AWAKE:
                await self._changed.next_ring()
                if self._refusal:
                    raise Unavailable(self._refusal)
        finally:
            self._callers -= 1
            self._version.doorbell.ring()

    @property
    def told(self) -> list[tuple[str, str]]:
        """What metrics call the sleep of each engine that lives, by its name."""
        return [
            (name, SLEEP_STATES[self._asked if worker.sleep_state is SleepState.ASLEEP else 0])
            for name, worker in self._engine.workers.items()
        ]

    def turn(self, now: float) -> float:
        """Go on with what is under way; return when to look again if nothing rings before."""
        if self.state is SleepState.AWAKE:
            return math.inf
        self._note_wanted(now)
        if self.state is SleepState.FALLING:
            look_at = self._fall(now)
        elif self.state is SleepState.ASLEEP:
            look_at = self._sleep_on(now)
        else:
            look_at = math.inf
        if self.state is SleepState.WAKING:
            look_at = self._go_on_waking(now)
        return look_at

    def _note_wanted(self, now: float) -> None:
        wanted = bool(len(self._line) or len(self._resumption) or self._callers)
        if wanted is not (self.wanted_since is not None):
            self.wanted_since = now if wanted else None
            self.on_change()

    def _fall(self, now: float) -> float:
        if now >= self._until:
            self.trouble = "it still had work when its time was up"
            self._rouse()
            return math.inf
        if not self._is_quiet():
            return self._until
        look_at = self._tell(SleepState.AWAKE, SleepState.FALLING, now)
        if all(worker.sleep_state is SleepState.ASLEEP for worker in self._engine.workers.values()):
            self._become(SleepState.ASLEEP)
            self._line.look()  # what the engines had in their caches is forgotten
        return min(self._until, look_at)

    def _is_quiet(self) -> bool:
        """Whether no engine has anything to do, or is about to be given something."""
        if self._engine.has_requests or self._line.is_giving or len(self._resumption):
            return False
        awake = (each for each in self._engine.workers.values() if each.sleep_state is SleepState.AWAKE)
        return all(worker.idle for worker in awake)

    def _sleep_on(self, now: float) -> float:
        """See to engines that came up while the others slept."""
        workers = self._engine.workers.values()
        if all(worker.sleep_state is not SleepState.AWAKE for worker in workers):
            return math.inf
        if self.wanted_since is not None:
            self._rouse()
            return math.inf
        if not self._is_quiet():
            return math.inf
        return self._tell(SleepState.AWAKE, SleepState.FALLING, now)

    def _go_on_waking(self, now: float) -> float:
        look_at = self._tell(SleepState.ASLEEP, SleepState.WAKING, now)
        if all(worker.sleep_state is SleepState.AWAKE for worker in self._engine.workers.values()):
            if self._waking_since is not None:
                self.wake_seconds = now - self._waking_since
            self.awake_since, self.wanted_since = now, None
            self._become(SleepState.AWAKE)
            return math.inf
        return look_at

    def _rouse(self) -> None:
        self._waking_since = self._clock() if self.state is SleepState.ASLEEP else None
        self._tell_at = -math.inf
        self._line.rest(wanted=False)
        self._become(SleepState.WAKING)

    def _become(self, state: SleepState) -> None:
        if state not in SLEEP_CHANGES[self.state]:
            raise ValueError(f"a version can't go from {self.state.value} to {state.value}")
        self.state = state
        self._version.doorbell.ring()
        self._changed.ring()
        self.on_change()

    # -- engines ---------------------------------------------------------------------------------------------

    def _tell(self, standing: SleepState, becoming: SleepState, now: float) -> float:
        """Tell all engines that stand there; return when to try again if one could not be told."""
        for worker in self._engine.workers.values():
            if worker.sleep_state is not standing:
                continue
            if now < self._tell_at or not worker.has_room:
                return max(self._tell_at, now + AGAIN_AFTER)
            order: dict[str, object] = {WAKE: True} if becoming is SleepState.WAKING else {SLEEP: self._asked}
            worker.sleep_state = becoming
            try:
                worker.dispatch([self._request(SleepOrder(self, worker), order, now)], now=now)
            except (OSError, MemoryError):  # there may be memory or descriptors later
                worker.sleep_state = standing
                self._tell_at = now + AGAIN_AFTER
                return self._tell_at
        return math.inf

    def _request(self, reply: SleepOrder, order: dict[str, object], now: float) -> InferRequest:
        spec = self._version.spec
        request = InferRequest(
            model_name=spec.name,
            requested_version=spec.version,
            id=ORDER_ID,
            inputs=[
                Tensor("input_ids", DataType.INT32, (0,), b""),
                Tensor("sampling", DataType.BYTES, (1,), pack_bytes((json.dumps(order).encode(),))),
            ],
            reply=reply,
            accepted_at=now,
        )
        request.synthetic = True
        return request

    def answered(self, worker: LiveWorker, error: TritiumError | None) -> None:
        """An engine has obeyed its order, or could not. One that has died counts no more."""
        if worker.sleep_state is SleepState.FALLING:
            worker.sleep_state = SleepState.ASLEEP if error is None else SleepState.AWAKE
        elif worker.sleep_state is SleepState.WAKING:
            worker.sleep_state = SleepState.AWAKE if error is None else SleepState.ASLEEP
        if error is not None and worker in self._engine.workers.values():
            self.trouble = error.message
            self._tell_at = self._clock() + AGAIN_AFTER
            if self.state is SleepState.FALLING:
                self._rouse()
        self._version.doorbell.ring()
