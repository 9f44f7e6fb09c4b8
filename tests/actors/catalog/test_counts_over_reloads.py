"""Counts that metrics tell go on over a reload, and begin anew after an unload (contract, section 1)."""

import pytest
import trio.lowlevel

from actors.catalog.earlier import earlier_than, in_all
from actors.serving.durations import Durations
from actors.serving.families import CONTAINMENT, COUNTS, DEATHS, DURATIONS
from actors.serving.statistics import FailureReason, Histogram, LatencySummaries, ModelStatistics
from actors.values.errors import Unavailable
from actors.values.families import UNLABELLED
from tests.support.catalog_doubles import model
from tests.support.model_doubles import make_request


def counted(**options):
    """Statistics in which every counter has another value."""
    statistics = ModelStatistics(**options)
    for number, name in enumerate(counters(statistics), 1):
        setattr(statistics, name, 1000 * number)
    for number, reason in enumerate(FailureReason, 1):
        statistics.failures[reason] = number
    statistics.deaths.update({"oom": 2, "hang": 1})
    statistics.recycled.update({"requests": 3})
    return statistics


def counters(statistics):
    """The names of its counters: plain numbers that families tell."""
    moments = {"last_inference_ms", "last_hit_ms", "pending"}
    names = (name for name in dir(statistics) if not name.startswith("_"))
    return [
        name
        for name in names
        if name not in moments and type(getattr(statistics, name)) is int and is_set(statistics, name)
    ]


def is_set(statistics, name):
    """Whether it is no property. Compiled, a class has neither `__dict__` nor `property`."""
    try:
        setattr(statistics, name, getattr(statistics, name))
    except AttributeError:
        return False
    return True


def told(statistics):
    """What families tell of it: {(family, labels, suffix): value}."""
    found = {}
    for family in (*COUNTS, *DURATIONS, *CONTAINMENT, *DEATHS):
        for series in family.block([(UNLABELLED, statistics)]).series:
            found[family.name, series.labels.text] = series.value
    return found


def test_every_counter_is_added_up():
    old, new = counted(), counted()
    alone = told(old)
    new.earlier = earlier_than(old)
    assert told(in_all(new)) == {series: 2 * value for series, value in alone.items()}
    for name in counters(old):
        assert getattr(in_all(new), name) == 2 * getattr(old, name), name


def test_without_versions_before_it_a_version_is_told_as_it_is():
    statistics = counted()
    assert in_all(statistics) is statistics


def test_histograms_are_added_up_where_their_bounds_are_the_same():
    def with_bounds(*bounds):
        statistics = ModelStatistics(first_response=Histogram(bounds), durations=Durations((0.001, 1.0)))
        statistics.succeeded(1, 0, 0, 0, 0, 2_000_000)
        statistics.computed(1, 0, 0, 2_000_000)
        return statistics

    new, same, other = with_bounds(1.0), with_bounds(1.0), with_bounds(1.0, 5.0)
    new.earlier = (same, other)
    whole = in_all(new)
    assert whole.first_response is not None
    assert whole.durations is not None
    assert (whole.first_response.counts, whole.first_response.total) == ([0, 2], 4.0)
    assert whole.durations.request == [0, 3, 0]
    assert whole.durations.output == [0, 3, 0]
    assert whole.durations.infer == [3, 0, 0]


def test_quantiles_and_what_waits_are_the_newest_versions():
    new = ModelStatistics(summaries=LatencySummaries({0.5: 0.1}))
    new.pending = 3
    new.earlier = (counted(),)
    whole = in_all(new)
    assert (whole.summaries, whole.pending) == (new.summaries, 3)


@pytest.mark.parametrize("reloads", [1, 5, 100])
def test_versions_that_have_ended_become_one_sum(reloads):
    last = ModelStatistics()
    for _ in range(reloads):
        last.success_count += 1
        last.ended = True
        following = ModelStatistics()
        following.earlier = earlier_than(last)
        last = following
    assert len(last.earlier) == 1
    assert in_all(last).success_count == reloads


def test_a_version_that_still_answers_is_counted_as_long_as_it_does():
    old, new = ModelStatistics(), ModelStatistics()
    new.earlier = earlier_than(old)
    old.success_count += 7
    assert in_all(new).success_count == 7


# -- in the catalog


async def answered(world, state):
    request = make_request()
    await state.submit(request)
    state.queue.take(1)
    state.outcome.fail(request, Unavailable("no"), reason=FailureReason.OTHER)


def failures(world):
    return in_all(world.router.resolve("m").statistics).failures[FailureReason.OTHER]


async def test_a_reload_goes_on_with_the_counts_and_an_unload_ends_them(loaded, autojump_clock):
    world, old = await loaded(model("m", content="a"))
    await answered(world, old)
    waiting = make_request()
    await old.submit(waiting)
    world.source.models["m"] = model("m", content="b")
    await world.catalog.load("m", {})
    new = world.router.resolve("m")
    assert new is not old
    assert failures(world) == 1
    old.queue.take(1)
    old.outcome.fail(waiting, Unavailable("no"), reason=FailureReason.OTHER)
    assert failures(world) == 2
    await answered(world, new)
    assert failures(world) == 3
    await old.standing.ended.wait()
    assert old.statistics.ended
    assert failures(world) == 3
    assert new.statistics.failures[FailureReason.OTHER] == 1
    await world.catalog.unload("m")
    await new.standing.ended.wait()
    await world.catalog.load("m", {})
    assert failures(world) == 0


async def test_other_tags_are_other_series(loaded, autojump_clock):
    world, old = await loaded(model("m", content="a", metric_tags={"team": "a"}))
    await answered(world, old)
    world.source.models["m"] = model("m", content="b", metric_tags={"team": "b"})
    await world.catalog.load("m", {})
    assert failures(world) == 0
    await trio.lowlevel.checkpoint()
