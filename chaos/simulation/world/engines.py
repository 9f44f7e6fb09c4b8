"""The engine of a language model in a simulated worker: `chaos.languages.telling`, on the virtual clock.

It goes on as `engine.worker.backends.language.backend` does: a step for all streams, then what it made of
each in one part. What a full window holds up leaves in one part later.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import trio

from actors.seams.bell import Bell
from actors.serving.policy.retries import Signal
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, InvalidArgument
from actors.values.generation.sleeping import SLEEP, WAKE
from actors.values.tensors import pack_bytes
from actors.wire import frames
from actors.wire.batch_frames import Answer, Part, Placed
from chaos.languages.telling import Telling
from chaos.simulation.world.workers import SimulatedWorker

PACE: Final = (0.005, 0.01, 0.03)
"""Seconds of a step: one of these, drawn for each worker."""


class Window:
    """What a request of a decoupled model has on its way."""

    def __init__(self) -> None:
        self.parts = 0
        self.nbytes = 0
        self.cancelled = False
        self.changed = Bell()

    @property
    def full(self) -> bool:
        """Whether no more may be sent until the server has read some."""
        return self.parts >= frames.WINDOW_PARTS or self.nbytes >= frames.WINDOW_BYTES


class _Stream:
    """One request, and what was not sent of it."""

    def __init__(self, batch: int, window: Window) -> None:
        self.batch = batch
        self.window = window
        self.held: list[int] = []
        self.facts: Mapping[str, Any] | None = None
        self.finish = ""


class SimulatedEngine:
    """See the module."""

    def __init__(
        self,
        worker: SimulatedWorker,
        pace: float,
        send: Callable[[bytes], Awaitable[None]],
        over: Callable[[int], None],
    ) -> None:
        """`over` is told of each batch that is over, by its number."""
        self._worker = worker
        self._pace = pace
        self._send = send
        self._over = over
        self._engine = Telling(die=lambda: worker.die(Signal(signal.SIGABRT)))
        self._streams: dict[int, _Stream] = {}
        self._asleep = False
        self._came = Bell()

    def facts(self) -> Mapping[str, Any]:
        """Return what the server is told of the engine, as a language backend tells it."""
        engine = self._engine
        return {
            "context": engine.context,
            "stops": sorted(engine.stops),
            "resumes": list(engine.resumes),
            "identity": engine.identity,
        }

    def obey(self, sampling: Mapping[str, Any]) -> Answer | None:
        """Fall asleep, or wake, if that is what is asked for; return the answer to that.

        As a language backend does: twice is as good as once, and what has streams does not fall asleep.
        """
        if SLEEP not in sampling and WAKE not in sampling:
            return None
        falls = SLEEP in sampling
        if falls and self._streams:
            return Answer(code=ErrorCode.UNAVAILABLE, message="the engine has streams")
        if falls and not self._asleep:
            self._engine.sleep(sampling[SLEEP])
        elif self._asleep and not falls:
            self._engine.wake()
        self._asleep = falls
        return Answer([])

    def begin(self, batch: int, window: Window, ids: Sequence[int], sampling: Mapping[str, Any]) -> None:
        """Begin a stream. Raises InvalidArgument."""
        self._engine.add(batch, self._engine.prepare(ids, sampling))
        self._streams[batch] = _Stream(batch, window)
        self._came.ring()

    async def run(self) -> None:
        """Step for ever."""
        heard = 0
        while True:
            if not self._streams:
                heard = await self._came.wait(heard)
            await self._worker.pause(self._pace)
            for stream in [each for each in self._streams.values() if each.window.cancelled]:
                self._engine.abort([stream.batch])
                await self._ended(stream, Part(stream.batch, 0, None, b"", 0, final=True))
            for output in self._engine.step() if self._engine.busy else ():
                stream = self._streams[output.stream]
                stream.held += output.ids
                stream.facts = output.facts or stream.facts
                stream.finish = output.finish
            await trio.lowlevel.checkpoint()  # a prompt may have killed the worker
            for stream in list(self._streams.values()):
                await self._give(stream)

    async def _give(self, stream: _Stream) -> None:
        if stream.window.full or not (stream.held or stream.finish):
            return
        data = np.array(stream.held, dtype="<i4").tobytes()
        outputs = [Placed("token_ids", DataType.INT32, (len(stream.held),), 0, len(data))]
        if stream.facts is not None:
            told = pack_bytes((json.dumps(stream.facts).encode(),))
            data += b"\0" * (-len(data) % 8)
            outputs.append(Placed("facts", DataType.BYTES, (1,), len(data), len(told)))
            data += told
        stream.held, stream.facts = [], None
        stream.window.parts += 1
        stream.window.nbytes += len(data)
        answer = Answer(outputs, {"finish": stream.finish} if stream.finish else None)
        part = Part(stream.batch, 0, answer, data, len(data), final=bool(stream.finish))
        if stream.finish:
            await self._ended(stream, part)
        else:
            await self._send_all(part)

    async def _ended(self, stream: _Stream, part: Part) -> None:
        del self._streams[stream.batch]
        self._over(stream.batch)
        await self._send_all(part)

    async def _send_all(self, part: Part) -> None:
        for packet in part.packets():
            await self._send(packet)


def refused(error: InvalidArgument) -> Answer:
    """Return the answer to a request that the engine does not take."""
    return Answer(code=ErrorCode.INVALID_ARG, message=error.message)
