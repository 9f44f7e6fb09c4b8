"""A quantile sketch keeps its promise about ranks and stays small, for any order of the values."""

import math
import random
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.quantiles import SlidingQuantiles, TargetedQuantiles

TARGETS = {0.5: 0.05, 0.9: 0.01, 0.95: 0.001, 0.99: 0.001, 0.999: 0.001}


def rank_error(values, quantile, answer):
    """How far the answer's ranks lie from the one asked for, as a fraction of the count."""
    ordered = sorted(values)
    low, high = bisect_left(ordered, answer) / len(ordered), bisect_right(ordered, answer) / len(ordered)
    return max(0.0, low - quantile, quantile - high)


def merged(values, targets, chunk):
    sketch = TargetedQuantiles(targets)
    for start in range(0, len(values), chunk):
        sketch.merge(sorted(values[start : start + chunk]))
    return sketch


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=400),
    st.integers(1, 50),
    st.dictionaries(st.floats(0.01, 0.999), st.floats(0.001, 0.2), min_size=1, max_size=4),
)
def test_every_answer_is_within_its_error(values, chunk, targets):
    sketch = merged(values, targets, chunk)
    assert sketch.count == len(values)
    for quantile, error in targets.items():
        # One rank more: a rank is a whole number, and few values have coarse ones.
        assert rank_error(values, quantile, sketch.query(quantile)) <= error + 1 / len(values) + 1e-9


def test_a_sketch_keeps_few_of_many_values():
    sketch = merged(list(range(5000)), {0.5: 0.05}, 500)
    assert (sketch.count, sketch.size < 500) == (5000, True)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["random", "ascending", "descending", "repeated"])
def test_many_values_keep_the_sketch_small_and_exact_enough(order):
    source = random.Random(7)
    values = [source.expovariate(1) for _ in range(20_000)]
    if order == "ascending":
        values.sort()
    elif order == "descending":
        values.sort(reverse=True)
    elif order == "repeated":
        values = [float(int(value * 3)) for value in values]
    sketch = merged(values, TARGETS, 500)
    assert sketch.size < 1000
    for quantile, error in TARGETS.items():
        assert rank_error(values, quantile, sketch.query(quantile)) <= error + 1e-9


def test_a_sketch_without_values_answers_nan():
    assert math.isnan(TargetedQuantiles({0.5: 0.1}).query(0.5))


@pytest.mark.parametrize("target", [(0, 0.1), (1, 0.1), (0.5, 0), (0.5, 1)])
def test_quantiles_and_errors_lie_strictly_between_zero_and_one(target):
    with pytest.raises(ValueError, match="between 0 and 1"):
        TargetedQuantiles(dict([target]))


def test_a_sliding_window_answers_from_what_is_recent():
    window = SlidingQuantiles({0.5: 0.01}, window_ms=1000)
    window.turn(0)
    for _ in range(100):
        window.observe(1.0)
    for now in range(100, 1100, 100):
        window.turn(now)
        window.observe(9.0)
    window.turn(1200)
    assert window.quantiles() == {0.5: 9.0}


def test_a_sliding_window_forgets_everything_after_a_long_silence():
    window = SlidingQuantiles({0.5: 0.01}, window_ms=1000)
    window.turn(0)
    window.observe(1.0)
    window.turn(1_000_000)
    assert math.isnan(window.quantiles()[0.5])


def test_count_and_sum_are_of_everything_ever_observed():
    window = SlidingQuantiles({0.5: 0.01}, window_ms=10)
    for now in range(2000):
        window.turn(now)
        window.observe(2.0)
    assert (window.total_count, window.total) == (2000, 4000.0)


def test_a_clock_that_is_set_back_loses_nothing():
    window = SlidingQuantiles({0.5: 0.01}, window_ms=1000)
    window.turn(1_000_000)
    window.observe(3.0)
    window.turn(5)
    window.turn(150)
    assert window.quantiles() == {0.5: 3.0}


def test_values_are_merged_before_they_are_many():
    window = SlidingQuantiles({0.5: 0.01})
    for value in range(20_000):
        window.observe(float(value % 10))
    assert window.quantiles()[0.5] == pytest.approx(4.5, abs=0.6)
