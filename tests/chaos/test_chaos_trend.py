"""Slopes with confidence: leaks are found, and what does not leak is not accused."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.checker.soak import soak_goals, trends
from chaos.checker.trend import FEWEST, trend
from chaos.record.records import Sample

HOURS = 2.0
EVERY = 5.0  # seconds


def times(hours: float = HOURS) -> list[float]:
    return [place * EVERY for place in range(int(hours * 3600 / EVERY))]


def noise(rng: random.Random, *, memory: float, scale: float) -> Iterator[float]:
    """Each value keeps a part of the one before: an autoregressive process of first order."""
    value = 0.0
    while True:
        value = memory * value + rng.gauss(0, scale * math.sqrt(1 - memory**2))
        yield value


def noisy(seed: int, slope: float, *, memory: float = 0.0, scale: float = 3.0) -> list[float]:
    rest = noise(random.Random(seed), memory=memory, scale=scale)
    return [100 + slope * at / 3600 + next(rest) for at in times()]


def sample(t: float, **given: int) -> Sample:
    return replace(
        Sample(
            t=t, rss=80 << 20, workers_rss=400 << 20, descriptors=60, threads=9, children=14, phase="standard"
        ),
        **given,
    )


def test_what_never_changes_does_not_grow() -> None:
    found = trend(times(), [9.0] * len(times()))
    assert (found.slope, found.low, found.high, found.saying) == (0, 0, 0, "does not grow")


def test_a_line_without_noise_has_its_own_slope() -> None:
    found = trend(times(), [100 + 5 * at / 3600 for at in times()])
    assert found.slope == pytest.approx(5)
    assert found.low == pytest.approx(5)
    assert found.saying == "grows"


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_a_leak_in_noise_is_found(seed: int) -> None:
    found = trend(times(), noisy(seed, 10.0), tolerated=1.0)
    assert found.saying == "grows"
    assert found.low <= found.slope <= found.high


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.0, 0.9, 0.98, 0.995])
def test_the_interval_encloses_the_slope_about_as_often_as_it_says_however_samples_depend_on_each_other(
    memory: float,
) -> None:
    tries = 100
    found = [trend(times(), noisy(seed, 3.0, memory=memory)) for seed in range(tries)]
    enclosed = sum(each.low <= 3.0 <= each.high for each in found)
    assert enclosed >= 0.9 * tries


def test_one_wild_value_in_ten_changes_nothing() -> None:
    rng = random.Random(1)
    values = [value + (500 if rng.random() < 0.1 else 0) for value in noisy(1, 0.0)]
    found = trend(times(), values, tolerated=1.0)
    assert abs(found.slope) < 1.0
    assert found.saying == "does not grow"


def test_a_warm_up_is_no_growth() -> None:
    values = [each - 40 * math.exp(-at / 200) for at, each in zip(times(), noisy(2, 0.0), strict=True)]
    assert trend(times(), values, tolerated=1.0).saying == "does not grow"
    assert trend(times(), values, tolerated=1.0, warm_up=0.0).high > 1.0


def test_what_falls_back_each_time_a_collector_runs_does_not_grow() -> None:
    values = [100 + (at % 300) / 30 for at in times()]
    assert trend(times(), values, tolerated=2.0).saying == "does not grow"


def test_steps_upwards_are_growth() -> None:
    values = [100.0 + 4 * (at // 600) for at in times()]
    found = trend(times(), values, tolerated=1.0)
    assert found.saying == "grows"
    assert found.slope == pytest.approx(24, rel=0.1)


def test_what_shrinks_does_not_grow() -> None:
    assert trend(times(), noisy(3, -10.0)).saying == "does not grow"


def test_of_too_few_samples_nothing_is_said() -> None:
    found = trend([0.0, 60.0, 120.0], [1.0, 2.0, 3.0])
    assert found.blocks < FEWEST
    assert found.saying == "cannot tell"
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_one_sample_is_no_error() -> None:
    assert trend([5.0], [1.0]).saying == "cannot tell"


def test_within_the_noise_of_a_short_run_nothing_is_said() -> None:
    rng = random.Random(5)
    at = times(0.1)
    assert trend(at, [rng.gauss(100, 20) for _ in at], tolerated=0.1).saying == "cannot tell"


@pytest.mark.parametrize(
    ("at", "values", "warm_up"), [([], [], 0.2), ([1.0], [], 0.2), ([1.0], [1.0], 1.0), ([1.0], [1.0], -0.1)]
)
def test_what_can_have_no_slope_is_refused(
    at: Sequence[float], values: Sequence[float], warm_up: float
) -> None:
    with pytest.raises(ValueError, match=r"at least|warm-up"):
        trend(at, values, warm_up=warm_up)


def test_a_soak_without_leaks_reaches_all_its_goals() -> None:
    goals = soak_goals([sample(at) for at in times()])
    assert [goal.passed for goal in goals] == [True] * 5


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
    def leaking(at: float) -> Sample:
        fresh = sample(at)
        return replace(fresh, **{field: getattr(fresh, field) + int(per_hour * at / 3600)})

    goals = soak_goals([leaking(at) for at in times()])
    assert [each.name for each in goals if each.passed is False] == [goal]
    assert "grows" in next(each for each in goals if each.name == goal).evidence[0].story


def test_samples_that_are_not_by_time_are_refused() -> None:
    with pytest.raises(ValueError, match="order of time"):
        trends([sample(2.0), sample(1.0)])
