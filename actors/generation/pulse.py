"""The actor that notices engines of a language model which hang, and has them ended: one for each version.

An engine that dies so is like one that dies of itself: it is started again, and its answers go on elsewhere.
`actors.generation.policy.progress` decides. Nothing is done here for a request or a token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn

import trio

from actors.generation.policy.progress import Progress, Seen, look_every
from actors.seams import faults
from actors.serving.instances.worker import LiveWorker
from actors.serving.model import ModelState
from actors.serving.probing import PROBE_ID
from actors.supervision.context import ChildContext
from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument, TritiumError
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.tensors import Tensor, pack_bytes

_LEFT_ALONE: Final = frozenset((SleepState.ASLEEP, SleepState.WAKING))
"""One that wakes may read its weights anew, for which a load has no time limit either."""

_TOKEN: Final[Mapping[str, object]] = {"max_tokens": 1, "temperature": 0.0}
_EMBEDDING: Final[Mapping[str, object]] = {"embed": True, "dimensions": None}


class Pulse:
    """Watches the engines of one version. It holds nothing that a restart may not lose."""

    def __init__(self, engine: ModelState, *, within: float, probe_every: float = 0.0) -> None:
        """An engine hangs that is silent for `within` seconds.

        One that is idle for `probe_every` seconds is asked for a token; 0: it is not.
        """
        self._engine = engine
        self._within = within
        self._probe_every = probe_every
        self._watched: dict[LiveWorker, Progress] = {}
        self._probe = _TOKEN  # an engine that generates nothing is asked for an embedding

    async def run(self, ctx: ChildContext) -> NoReturn:
        """Look at all engines now and then, for ever. The start function of a permanent child."""
        ctx.started()
        while True:
            await trio.sleep(look_every(self._within))
            self._look(trio.current_time())

    def _look(self, now: float) -> None:
        if faults.points is not None:
            faults.points.passing("generation.pulse")
        known, self._watched = self._watched, {}
        for worker in self._engine.standing.workers:
            if worker.sleep_state in _LEFT_ALONE:
                worker.silent_for = 0.0
                continue
            progress = known.get(worker) or Progress(self._within, now, probe_every=self._probe_every)
            self._watched[worker] = progress
            progress.look(_seen(worker), now)
            worker.silent_for = progress.bound / 2 if progress.suspected else 0.0
            if progress.hangs:
                worker.hangs(progress.bound)
            elif worker.sleep_state is SleepState.AWAKE and worker.has_room and progress.probe_due(now):
                with suppress(OSError):  # no memory or descriptor now: the next probe may have them
                    worker.dispatch([self._request(now)], now=now)

    def _request(self, now: float) -> InferRequest:
        spec = self._engine.spec
        request = InferRequest(
            model_name=spec.name,
            requested_version=spec.version,
            id=PROBE_ID,
            inputs=(
                Tensor("input_ids", DataType.INT32, (1,), bytes(4)),
                Tensor("sampling", DataType.BYTES, (1,), pack_bytes((json.dumps(self._probe).encode(),))),
            ),
            requested_outputs=spec.output_names,
            reply=_Probed(self),
            accepted_at=now,
        )
        request.synthetic = True
        return request

    def refused(self) -> None:
        """An engine generates nothing, so it is asked for something else the next time."""
        self._probe = _EMBEDDING if self._probe is _TOKEN else _TOKEN


class _Probed(ReplyPort):
    """Takes the answer to a probe. What it says is of no interest, as long as it comes."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """See `actors.values.requests.ReplyPort`."""
        del final
        if isinstance(part, InferResponse):
            part.release()
        elif isinstance(part, InvalidArgument):
            self._pulse.refused()


def _seen(worker: LiveWorker) -> Seen:
    busy = not worker.idle
    batches = worker.held.all() if busy else ()
    unbegun = [batch for batch in batches if batch.started_at == math.inf]
    return Seen(
        busy=busy,
        signs=worker.parts + worker.steps,
        prompts=sum(batch.requests[0].inputs[0].shape[0] for batch in unbegun if batch.requests),
        taking_in_since=worker.stuck_since,
    )
