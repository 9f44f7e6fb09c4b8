"""What engines of language models are busy with, as their workers tell it: one set of names for every engine.

A worker tells its numbers at most twice a second, and when it has nothing more to do. They are shown until
the worker ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from actors.calls.subjects import CallingWorker, Subjects
from actors.values.families import Block, Families, Family, Labels, blocks
from actors.values.specs import ModelKey
from actors.wire.frames import FrameError

SUBJECT: Final = "engine.gauges"


class EngineNumbers(NamedTuple):
    """The fields of `engine.worker.backends.language.engine.Gauges`."""

    running: int
    waiting: int
    cache_used: float
    prefix_hits: int
    prefix_queries: int
    preemptions: int
    steps: int


FAMILIES: Final[Families[EngineNumbers]] = (
    Family(
        "tritium_llm_engine_requests_running",
        "gauge",
        "Streams that the engine steps",
        lambda told: told.running,
    ),
    Family(
        "tritium_llm_engine_requests_waiting",
        "gauge",
        "Streams that wait in the engine",
        lambda told: told.waiting,
    ),
    Family(
        "tritium_llm_cache_usage_ratio",
        "gauge",
        "Part of the engine's cache that streams hold, from 0 to 1",
        lambda told: told.cache_used,
    ),
    Family(
        "tritium_llm_prefix_cache_queries_total",
        "counter",
        "Tokens of prompts that were looked for in the engine's cache",
        lambda told: told.prefix_queries,
    ),
    Family(
        "tritium_llm_prefix_cache_hits_total",
        "counter",
        "Tokens of prompts that were found in the engine's cache",
        lambda told: told.prefix_hits,
    ),
    Family(
        "tritium_llm_preemptions_total",
        "counter",
        "Streams that lost their part of the engine's cache to others",
        lambda told: told.preemptions,
    ),
    Family(
        "tritium_llm_engine_steps_total",
        "counter",
        "Steps that the engine has made",
        lambda told: told.steps,
    ),
)
"""For each instance of a language model; `instance` is its name."""


class EngineGauges:
    """What each engine's worker told last. `answer` has workers reach it."""

    def __init__(self) -> None:
        self._told: dict[CallingWorker, EngineNumbers] = {}

    def answer(self, subjects: Subjects) -> None:
        """Hear what workers tell, and when they end."""
        subjects.hear(SUBJECT, self._hear)
        subjects.on_end(self._forget)

    def _hear(self, body: Mapping[str, object], caller: CallingWorker) -> None:
        told = self._told[caller] = read_numbers(body)
        if caller.worker is not None:
            caller.worker.steps = told.steps

    def _forget(self, caller: CallingWorker) -> None:
        self._told.pop(caller, None)

    def blocks(self) -> Iterator[Block]:
        """Yield every family that an engine has told of."""
        if not self._told:
            return
        named = [(_labels(caller), told) for caller, told in self._told.items()]
        named.sort(key=lambda pair: tuple(pair[0].values()))
        yield from blocks(FAMILIES, [(Labels(each), told) for each, told in named])

    def cache_used(self, model: ModelKey, version: int) -> float | None:
        """Return the part of their caches that the engines of a version use; None if none has told of it."""
        told = [
            each.cache_used
            for caller, each in self._told.items()
            if (caller.spec.key, caller.spec.version) == (model, version)
        ]
        return sum(told) / len(told) if told else None


def _labels(caller: CallingWorker) -> Mapping[str, str]:
    return {
        "model": caller.spec.name,
        "version": str(caller.spec.version),
        "instance": caller.instance,
    }


def read_numbers(body: Mapping[str, object]) -> EngineNumbers:
    """Read what a worker tells. Raises FrameError for what no worker of ours says."""
    read: dict[str, int | float] = {}
    for name in EngineNumbers._fields:
        value = body.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole or (name == "cache_used" and isinstance(value, float))):
            raise FrameError(f"an engine's {name} that is no number")
        assert isinstance(value, (int, float))
        if not 0 <= value < 2**63 or not math.isfinite(value):
            raise FrameError(f"an engine's {name} of {value}")
        read[name] = value
    return EngineNumbers(**read)  # type: ignore[arg-type]  # checked by name
