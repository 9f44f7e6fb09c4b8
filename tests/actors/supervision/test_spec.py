"""Child specs and flags: what is refused when they are built, and the backoff curve."""

import math
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.supervision.spec import (
    Backoff,
    ChildSpec,
    Intensity,
    Kind,
    OnExhausted,
    Restart,
    Shutdown,
    check_children,
)


async def start(ctx):
    ctx.started()


def test_a_child_is_a_permanent_worker_unless_told_otherwise():
    spec = ChildSpec("a", start)
    assert (spec.restart, spec.kind) == (Restart.PERMANENT, Kind.WORKER)


def test_a_spec_is_frozen():
    with pytest.raises(FrozenInstanceError):
        ChildSpec("a", start).name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "grace"),
    [
        ({}, 5.0),
        ({"kind": Kind.SUPERVISOR}, math.inf),
        ({"shutdown": 2}, 2),
        ({"shutdown": 0.5, "kind": Kind.SUPERVISOR}, 0.5),
        ({"shutdown": Shutdown.BRUTAL_KILL}, 0.0),
        ({"shutdown": Shutdown.INFINITY}, math.inf),
    ],
)
def test_a_shutdown_budget_becomes_seconds_of_grace(options, grace):
    assert ChildSpec("a", start, **options).grace == grace


NO_PATH = "no tree path; write it as 'resnet' or 'resnet/3'"
NO_SECONDS = r"BRUTAL_KILL.*INFINITY"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        *((name, {}, NO_PATH) for name in ("", "/a", "a/", "a//b")),
        *(("a", {"shutdown": seconds}, NO_SECONDS) for seconds in (0, -1.0, math.inf, math.nan)),
        ("a", {"on_exhausted": OnExhausted.RETRY_AT_CAP}, "pass intensity as well"),
        ("a", {"intensity": Intensity(1, 1.0), "restart": Restart.TEMPORARY}, "restart budget means nothing"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_with_advice(name, options, words):
    with pytest.raises(ValueError, match=words):
        ChildSpec(name, start, **options)


def test_a_name_may_hold_several_segments():
    assert ChildSpec("resnet/3", start).name == "resnet/3"


def test_a_start_that_was_called_already_is_refused():
    with pytest.raises(TypeError, match="pass the function itself, uncalled"):
        ChildSpec("a", None)  # type: ignore[arg-type]


def test_children_with_names_of_their_own_are_fine():
    check_children(())
    check_children((ChildSpec("a", start), ChildSpec("b", start)))


def test_two_children_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two children are named 'a'"):
        check_children((ChildSpec("a", start), ChildSpec("a", start)))


@pytest.mark.parametrize(
    ("restarts", "period"), [(-1, 1.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)]
)
def test_an_intensity_without_a_window_is_refused(restarts, period):
    with pytest.raises(ValueError, match="Intensity"):
        Intensity(restarts, period)


@pytest.mark.parametrize(
    "options",
    [
        {"initial": -0.1},
        {"initial": 2.0, "cap": 1.0},
        {"cap": math.inf},
        {"factor": 0.5},
        {"factor": math.inf},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_a_backoff_that_could_not_grow_to_its_cap_is_refused(options):
    with pytest.raises(ValueError, match="Backoff"):
        Backoff(**options)


def test_delays_double_from_the_second_restart_up_to_the_cap():
    backoff = Backoff(initial=0.1, factor=2.0, cap=0.5)
    assert [backoff.delay(n, 0.0) for n in range(1, 7)] == [0.0, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_first_restart_waits_too_if_configured():
    backoff = Backoff(initial=1.0, factor=3.0, cap=9.0, first_immediate=False)
    assert [backoff.delay(n, 0.0) for n in range(1, 5)] == [1.0, 3.0, 9.0, 9.0]


def test_jitter_takes_away_up_to_its_share():
    backoff = Backoff(initial=1.0, jitter=0.5)
    assert backoff.delay(2, 0.5) == 0.75
    assert backoff.delay_at_cap(0.5) == 22.5


def test_a_constant_backoff_stays_constant():
    assert Backoff(initial=1.0, factor=1.0).delay(50, 0.0) == 1.0


def test_no_backoff_never_waits():
    assert {Backoff(initial=0.0, cap=0.0).delay(n, 0.9) for n in (1, 2, 5000)} == {0.0}


def test_attempts_count_from_one():
    with pytest.raises(ValueError, match="count from 1"):
        Backoff().delay(0, 0.0)


@given(
    attempt=st.integers(1, 10_000),
    sample=st.floats(0, 1, exclude_max=True),
    factor=st.floats(1, 10),
    jitter=st.floats(0, 1),
)
def test_no_delay_is_negative_or_exceeds_the_cap(attempt, sample, factor, jitter):
    backoff = Backoff(initial=0.1, factor=factor, cap=30.0, jitter=jitter)
    assert 0 <= backoff.delay(attempt, sample) <= 30.0


@given(attempt=st.integers(1, 200), factor=st.floats(1, 10))
def test_without_jitter_delays_never_shrink(attempt, factor):
    backoff = Backoff(factor=factor, jitter=0.0)
    assert backoff.delay(attempt, 0.0) <= backoff.delay(attempt + 1, 0.0)
