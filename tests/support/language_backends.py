"""An engine without a model: it says a prompt backwards, or ids round and round, at a pace."""

from __future__ import annotations

import json
import os
import time
from itertools import cycle
from typing import TYPE_CHECKING, Any

from actors.values.errors import InvalidArgument
from chaos.languages.pretending import Pretending
from engine.worker.backends.language.backend import LanguageBackend
from engine.worker.backends.language.engine import LENGTH, STOP, StepEngine, StepOutput
from engine.worker.backends.language.model_folder import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

KILLER = 66  # a prompt that begins with this id kills the engine at its third token
POISON = 67  # this one at its first
SLEEPER = 68  # and with this one, the step for its first token takes for ever


class Backwards(Pretending[Any]):
    """Gives the ids of a prompt in reverse, one a step, then id `eos`.

    If that is ignored, it says the ids from `eos + 1` on, round and round. With an adapter, it gives the
    prompt's ids in their own order, as often as the adapter's `adapter_config.json` says by `times`. One that
    says `refuse` can't be loaded.
    """

    def __init__(
        self,
        context: int,
        pace: float,
        eos: int,
        room: int,
        facts: Mapping[str, Any] | None = None,
        steps: str = "",
        stall: str = "",
        weights: int = 0,
        cache: int = 0,
    ) -> None:
        """`steps` is a file that gets a byte for each step.

        While there is a file `stall`, a step takes for ever. `weights` and `cache` are MiB that it holds.
        """
        super().__init__(room)
        self._sizes = weights, cache
        self._memory = [_of_mib(size) for size in self._sizes]
        self._stall = stall
        self.context = context
        self._pace = pace
        self._eos = eos
        self.stops = (eos,)
        self._facts = facts or {}
        self._steps = steps
        self._rounds = range(eos + 1, eos + 91)
        self._adapters: dict[tuple[str, str], int] = {}  # how often, by path and identity

    resumes: Sequence[str] = ("penalties",)  # it has none

    def sleep(self, level: int) -> None:
        super().sleep(level)
        for place in range(2 - level, 2):
            self._memory[place] = b""

    def wake(self) -> None:
        super().wake()
        weights, cache = self._sizes
        self._memory = [self._memory[0] or _of_mib(weights), _of_mib(cache)]

    def prepare(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Any:
        if sampling.get("grammar"):
            raise InvalidArgument("this engine enforces no grammar")
        return ids, sampling

    def add(self, stream: int, prepared: Any) -> None:
        ids, sampling = prepared
        if sampling.get("embed"):
            super().add(stream, [ids, sampling, None, 0])
            return
        prompt = ids[: len(ids) - sampling.get("generated", 0)]
        adapter = sampling.get("adapter")
        order = list(prompt) * self._times(adapter) if adapter else [*reversed(prompt)]
        said = cycle(self._rounds) if sampling.get("ignore_eos") else iter([*order, self._eos])
        for _ in ids[len(prompt) :]:
            next(said)
        super().add(stream, [prompt, sampling, said, 0])

    def load_adapter(self, adapter: Mapping[str, str]) -> None:
        if "max_adapters" not in self._facts:
            raise InvalidArgument("LoRA feature is not enabled.")
        self._times(adapter)

    def _times(self, adapter: Mapping[str, str]) -> int:
        key = adapter["path"], adapter["id"]
        if key not in self._adapters:
            path, identity = key
            if identity and identity_of([path]) != identity:
                raise InvalidArgument("its files are not those that were loaded")
            told = {}
            if identity:
                with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
                    told = json.load(file)
            if "refuse" in told:
                raise InvalidArgument(str(told["refuse"]))
            self._adapters[key] = told.get("times", 1)
        return self._adapters[key]

    def step(self) -> Sequence[StepOutput]:
        self._admit()
        time.sleep(self._pace)
        if self._steps:
            with open(self._steps, "ab") as file:
                file.write(b".")
        while self._stall and os.path.exists(self._stall):
            time.sleep(0.01)
        outputs = []
        for stream, state in list(self._running.items()):
            ids, sampling, said, told = state
            if said is None:
                outputs.append(StepOutput(stream, embedding=[float(len(ids)), 1.0]))
                del self._running[stream]
                continue
            token = next(said)
            state[3] = told = told + 1
            if ids and ids[0] == KILLER and told == 3:
                os.abort()
            if ids and ids[0] == POISON:
                os.abort()
            while ids and ids[0] == SLEEPER:
                time.sleep(1.0)
            finish = STOP if token == self._eos else LENGTH if told >= sampling["max_tokens"] else ""
            chances = None if sampling.get("logprobs") is None else [[[token, -0.5, 1], [token + 1, -1.0, 2]]]
            if token == self._eos:
                outputs.append(StepOutput(stream, finish=finish))
            else:
                facts = {"cached": 1} if told == 1 else None
                outputs.append(StepOutput(stream, [token], chances, facts, finish))
            if finish:
                del self._running[stream]
        return outputs

    def facts(self) -> Mapping[str, Any]:
        return self._facts


def _of_mib(size: int) -> bytes:
    """Return memory that is resident: each page has been written."""
    return b"\1" * (size << 20)


class BackwardsBackend(LanguageBackend):
    """Takes its numbers from the model's parameters. It does not load while there is a file `gate`."""

    name = "backwards"
    adapters = True

    def make_engine(self, model: ModelInfo) -> StepEngine:
        told = model.parameters
        if "gate" in told:
            model.phase("waiting at the gate")
        while os.path.exists(told.get("gate", "")):
            time.sleep(0.01)
        return Backwards(
            int(told.get("context", "1000")),
            float(told.get("pace", "0")),
            int(told.get("eos", "0")),
            int(told.get("room", "64")),
            json.loads(told.get("facts", "{}")),
            told.get("steps", ""),
            told.get("stall", ""),
            int(told.get("weights", "0")),
            int(told.get("cache", "0")),
        )
