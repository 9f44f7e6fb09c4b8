"""What has to be true of every model at any time: it is checked while a simulation runs.

Answers alone don't show it. Work that no instance took while one was free is late, and not lost. A suspect
that had company may have been innocent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import trio

from actors.ensembles.steps import Step
from actors.serving.model import ModelState
from actors.serving.standing import Status

LOOKS_EVERY: Final = 0.01
GRACE: Final = 0.1
"""Seconds for which due work may wait, because its scheduler may be restarting."""


class Invariants:
    """Looks at all versions, and complains once of each thing that is wrong with one."""

    def __init__(self, states: Collection[ModelState], complain: Callable[[str], None]) -> None:
        """`states` may grow."""
        self._states = states
        self._complain = complain
        self._since: dict[tuple[ModelState, str], float] = {}  # when it was first seen, in a row of looks
        self._told: set[tuple[ModelState, str]] = set()

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            await trio.sleep(LOOKS_EVERY)
            now = trio.current_time()
            seen = {(state, what): patience for state in self._states for what, patience in wrong(state, now)}
            self._since = {each: self._since.get(each, now) for each in seen}
            for each, patience in seen.items():
                if now - self._since[each] >= patience and each not in self._told:
                    self._told.add(each)
                    state, what = each
                    self._complain(f"'{state.spec.name}' version {state.spec.version}: {what}")


def wrong(state: ModelState, now: float, grace: float = GRACE) -> Iterator[tuple[str, float]]:
    """Yield what is wrong with a version, and for how many seconds that may be so.

    The time is `grace` if a scheduler has to see to it.
    """
    for instance in state.instances:
        outstanding = () if instance.worker is None else instance.worker.outstanding.values()
        if len(outstanding) > 1 and any(batch.alone for batch in outstanding):
            yield f"suspects have company in instance '{instance.spec.name}'", 0.0
    for request in state.in_flight:
        if isinstance(request.reply, Step) and request.reply.parent.cancelled and not request.cancelled:
            yield "a step is not called off, and its ensemble's client has left", 0.0
    if state.sequences is not None or not len(state.queue):
        return
    if state.queue.next_expiry() < now - grace:
        yield "a request waits whose time was up", grace
    if (
        state.dispatcher.limiter is None
        and state.status is Status.READY
        and _waits_too_long(state, now - grace)
    ):
        for instance in state.rotation:
            worker = instance.worker
            if worker is not None and worker.idle and worker.has_room and not instance.hunting:
                yield f"requests wait beside instance '{instance.spec.name}', which has nothing to do", grace


def _waits_too_long(state: ModelState, now: float) -> bool:
    """Whether a request waits longer than a batch may wait to fill."""
    delay = getattr(state.spec.scheduling, "max_queue_delay", 0.0)
    return state.queue.oldest_enqueued < now - delay
