"""An engine without a model: it says the page, a token for each stream in each step.

What it says follows from prompt and position alone, so it goes on behind any ids that another has generated.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from actors.values.errors import InvalidArgument
from chaos.languages.page import END, Asked, text_of
from chaos.languages.pretending import Pretending
from engine.worker.backends.language.backend import LanguageBackend
from engine.worker.backends.language.engine import LENGTH, STOP, StepEngine, StepOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

CONTEXT = 4096
DIES_AT = 1
"""Tokens after which a prompt that kills kills the engine."""


class _Stream:
    """What is still to be said, in reverse, and why it will have ended then."""

    __slots__ = ("dies", "finish", "left", "prompt", "said")

    def __init__(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> None:
        before = int(sampling.get("generated", 0))
        self.prompt = len(ids) - before
        asked = Asked.of(text_of(ids[: self.prompt]))
        if asked is None:
            raise InvalidArgument("this model understands `say 40 from 3`, and no other prompt")
        most = before + int(sampling["max_tokens"])
        whole = asked.ids(most)
        if whole[:before] != list(ids[self.prompt :]):
            raise InvalidArgument("another engine has said something else so far")
        self.left = [*reversed(whole[before:])]
        self.finish = STOP if whole[-1:] == [END] else LENGTH
        self.dies = asked.dies
        self.said = 0


class Telling(Pretending[_Stream]):
    """See the module. At most `room` streams run at once, and a step takes `pace` seconds.

    `die` is called under a prompt that kills.
    """

    context = CONTEXT
    stops: Iterable[int] = (END,)
    resumes: Sequence[str] = ("seeds", "penalties", "grammars")
    identity = "page"

    def __init__(self, *, pace: float = 0.0, room: int = 256, die: Callable[[], object] = os.abort) -> None:
        super().__init__(room)
        self._die = die
        self._pace = pace

    def prepare(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> _Stream:
        """See `StepEngine`. Raises InvalidArgument also for ids that it would not have generated."""
        return _Stream(ids, sampling)

    def step(self) -> Sequence[StepOutput]:
        """See `StepEngine`."""
        self._admit()
        if self._pace:
            time.sleep(self._pace)
        return [self._goes_on(number, stream) for number, stream in list(self._running.items())]

    def _goes_on(self, number: int, stream: _Stream) -> StepOutput:
        if stream.dies and stream.said == DIES_AT:
            self._die()
        facts = None if stream.said else {"cached": 0}
        token = stream.left.pop()
        stream.said += 1
        if stream.left:
            return StepOutput(number, [token], facts=facts)
        del self._running[number]
        return StepOutput(number, [token], facts=facts, finish=stream.finish)


class TellingBackend(LanguageBackend):
    """Serves `Telling`, with the numbers that the model's parameters say."""

    name = "telling"

    def make_engine(self, model: ModelInfo) -> StepEngine:
        """See `LanguageBackend`."""
        told = model.parameters
        return Telling(pace=float(told.get("pace", "0.01")), room=int(told.get("room", "256")))
