"""A soak: leaks are found and named, and what does not leak is not accused."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.checker.soak import slope, soak_goals
from chaos.record.records import Sample

EVERY = 5.0  # seconds


def samples(level: Callable[[float], float] = lambda at: 60.0, *, hours: float = 2.0) -> list[Sample]:
    """Samples of a server whose resident memory is `level` of the time in seconds, in MiB."""
    ready = Sample(
        t=0.0, rss=0, workers_rss=400 << 20, descriptors=60, threads=9, children=14, phase="standard"
    )
    times = [place * EVERY for place in range(int(hours * 3600 / EVERY))]
    return [replace(ready, t=at, rss=int(level(at) * 2**20)) for at in times]


def grown(level: Callable[[float], float], **given: float) -> float | None:
    return slope(samples(level, **given), lambda sample: sample.rss / 2**20)


rng = random.Random(1)


@pytest.mark.parametrize(
    ("level", "per_hour"),
    [
        (lambda at: 9.0, 0.0),
        (lambda at: 100 + 5 * at / 3600, 5.0),
        (lambda at: 100 - 10 * at / 3600, -10.0),
        (lambda at: 100.0 + 4 * (at // 600), 24.0),
        (lambda at: 100 + (at % 300) / 30, 0.0),
        (lambda at: 100 - 40 * math.exp(-at / 200), 0.0),
        (lambda at: rng.gauss(100, 3) + (500 if rng.random() < 0.1 else 0), 0.0),
    ],
    ids=["constant", "line", "shrinks", "steps", "collected", "warm-up", "wild values"],
)
def test_the_slope_is_that_of_what_lasts(level: Callable[[float], float], per_hour: float) -> None:
    assert grown(level) == pytest.approx(per_hour, rel=0.1, abs=0.9)


def test_of_too_few_samples_nothing_is_said() -> None:
    assert grown(lambda at: at, hours=0.01) is grown(lambda at: at, hours=0.0) is None


def test_a_soak_without_leaks_reaches_all_its_goals() -> None:
    assert [goal.passed for goal in soak_goals(samples())] == [True] * 5


@pytest.mark.parametrize(
    ("field", "per_hour", "goal"),
    [
        ("rss", 4 << 20, "server memory growth"),
        ("workers_rss", 40 << 20, "workers' memory growth"),
        ("descriptors", 12, "descriptors growth"),
        ("threads", 6, "threads growth"),
        ("children", 6, "children growth"),
    ],
)
def test_a_soak_names_what_leaks(field: str, per_hour: int, goal: str) -> None:
    leaking = [
        replace(each, **{field: getattr(each, field) + int(per_hour * each.t / 3600)}) for each in samples()
    ]
    assert [each.name for each in soak_goals(leaking) if each.passed is False] == [goal]
