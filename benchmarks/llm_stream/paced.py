"""An engine without a model: each step takes its time, and gives every stream its tokens.

The backend takes its numbers from the model's parameters. The engine can be run without a server, too, which
is what a server is measured beside (`benchmarks.llm_stream.alone`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from chaos.languages.pretending import Pretending
from engine.worker.backends.language.backend import LanguageBackend
from engine.worker.backends.language.engine import LENGTH, StepEngine, StepOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

CONTEXT = 1 << 20
FIRST_ID = 16
"""Ids from here on, and so many of them, are said round and round."""

SAID = 64


class Paced(Pretending[list[int]]):
    """Gives every stream `tokens` ids in each step of `pace` seconds, until it has had all it asked for.

    Of a stream it keeps how many ids were given, and how many are wanted.
    """

    def __init__(self, *, pace: float, tokens: int = 1, room: int = 1024) -> None:
        super().__init__(room)
        self.context = CONTEXT
        self._pace = pace
        self._tokens = tokens

    def prepare(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> list[int]:
        """See `StepEngine`. All that matters is how many tokens are asked for."""
        del ids
        return [0, int(sampling["max_tokens"])]

    def step(self) -> Sequence[StepOutput]:
        """See `StepEngine`."""
        self._admit()
        time.sleep(self._pace)
        outputs = []
        for stream, state in list(self._running.items()):
            given, wanted = state
            count = min(self._tokens, wanted - given)
            state[0] = given + count
            ids = [FIRST_ID + (stream + at) % SAID for at in range(given, given + count)]
            finish = LENGTH if given + count >= wanted else ""
            outputs.append(StepOutput(stream, ids, finish=finish))
            if finish:
                del self._running[stream]
        return outputs


class PacedBackend(LanguageBackend):
    """Serves `Paced`."""

    name = "paced"

    def make_engine(self, model: ModelInfo) -> StepEngine:
        """See `LanguageBackend`."""
        told = model.parameters
        return Paced(pace=float(told["pace"]), tokens=int(told["tokens"]), room=int(told["room"]))
