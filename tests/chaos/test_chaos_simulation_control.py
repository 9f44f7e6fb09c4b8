"""The simulation's operators and observers: the draw, the judge's knowledge of orders, bugs to find."""

import math

import pytest

from actors.catalog.loading import OUTDATED
from chaos.simulation.faults import Blow, Window
from chaos.simulation.judging.control import Control, Standing
from chaos.simulation.judging.exposition import counters
from chaos.simulation.operators import Ordered
from chaos.simulation.outcomes import ANSWERED, LOST
from chaos.simulation.plan import Fault, Look, Order, Request, Scenario
from chaos.simulation.simulate import simulate
from chaos.simulation.world.workers import Journal

SERVES, UNLOADED, FAILED = Standing.SERVES, Standing.UNLOADED, Standing.FAILED


def order(what, began, ended, *, model="echo", code=ANSWERED, message="", **more):
    asked = Order(at=0.0, what=what, model=model, wire="core", **more)
    return Ordered(asked, began=began, ended=ended, code=code, message=message)


def load(began, ended, **more):
    return order("load", began, ended, **more)


def unload(began, ended, **more):
    return order("unload", began, ended, **more)


def control(*orders, startup=("echo", "once", "pipeline"), journal=None, windows=(), blows=()):
    return Control(startup, orders, journal=journal or Journal(), windows=windows, blows=blows)


# -- what orders leave


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([], {SERVES}),
        ([unload(1, 2)], {UNLOADED}),
        ([unload(1, 2), load(3, 4)], {SERVES}),
        ([load(1, 4), unload(3, 5)], {SERVES, UNLOADED}),  # they met: either may have been first
        ([load(1, 3, code="INVALID_ARG", message=OUTDATED), unload(3, 5)], {UNLOADED}),
        ([load(1, 2, code="INVALID_ARG", message="it is broken")], {SERVES}),
        (
            [unload(1, 2), load(3, 4, code="INVALID_ARG", message="it is broken")],
            {UNLOADED, FAILED},
        ),
        ([unload(1, math.inf, code=LOST), load(3, 4)], {SERVES, UNLOADED}),  # it may come to pass at any time
        ([load(1, 9), unload(2, 3), load(4, 5)], {SERVES}),
    ],
)
def test_what_may_be_true_after_orders_is_what_some_order_of_theirs_comes_to(orders, expected):
    assert control(*orders).standings("echo") == expected


def test_what_is_not_loaded_at_first_is_unloaded_but_for_the_parts_of_ensembles():
    known = control(startup=["pipeline"])
    assert {name: known.first(name) for name in ("pipeline", "once", "wide")} == {
        "pipeline": SERVES,
        "once": SERVES,
        "wide": UNLOADED,
    }


def test_an_ensemble_is_perhaps_gone_with_its_parts():
    assert control(unload(1, 2, model="once")).standings("pipeline") == {SERVES, UNLOADED}
    assert control(unload(1, 2, model="pipeline")).standings("once") == {SERVES}
    assert control(unload(1, 2, model="pipeline", dependents=True)).standings("once") == {SERVES, UNLOADED}


def test_a_request_may_find_its_model_gone_from_the_unload_until_a_load_that_came_after_it():
    known = control(unload(1, 2), load(3, 4))
    assert [known.may_be_gone("echo", at) for at in (0.5, 1.5, 3.5, 4.5)] == [False, True, True, False]


def test_a_request_must_be_refused_between_an_unload_and_whatever_may_have_loaded_it():
    known = control(unload(1, 2), load(5, 6, code=LOST))
    assert known.must_be_gone("echo", 3, 4)
    assert not known.must_be_gone("echo", 1.5, 4)  # the unload was under way
    assert not known.must_be_gone("echo", 3, 5.5)
    assert not control(load(0.5, 1.5), unload(1, 2)).must_be_gone("echo", 3, 4)  # that load met the unload


# -- what orders may be answered


def complaints(*orders, **known):
    return list(control(*orders, **known).complaints())


@pytest.mark.parametrize(
    "superseded", [f"version 1 is at UNAVAILABLE state: {OUTDATED};", f"{OUTDATED};"], ids=["late", "early"]
)
def test_a_load_is_superseded_by_an_unload_that_it_met_and_by_no_other(superseded):
    told = f"load failed for model 'echo': {superseded}\n"
    loading = load(1, 2, code="INVALID_ARG", message=told)
    assert complaints(loading, unload(2, 3)) == []
    assert len(complaints(loading, unload(2.5, 3))) == 1


def test_a_load_fails_where_every_attempt_was_made_to():
    told = "load failed for model 'echo': version 1 is at UNAVAILABLE state: Internal: no such weights;\n"
    loading = load(1, 2, code="INVALID_ARG", message=told)
    assert len(complaints(loading, journal=Journal(load_failures={"echo": [1.5]}))) == 1
    assert complaints(loading, journal=Journal(load_failures={"echo": [1.5, 1.6]})) == []


def test_an_order_is_cut_short_by_a_crash_of_its_own_lane_alone():
    cut = unload(1, 2, code="INTERNAL", message="what was asked of model 'echo' came to no end")
    assert complaints(cut, blows=[Blow(1.5, "repository/lanes/echo")]) == []
    assert len(complaints(cut, blows=[Blow(1.5, "repository/lanes/wide")])) == 1
    assert len(complaints(cut, blows=[Blow(2.5, "repository/lanes/echo")])) == 1


def test_a_model_can_not_be_read_while_its_directory_is_gone():
    told = (
        "failed to load 'echo', failed to poll from model repository: Internal: there is no directory 'echo'"
    )
    unread = load(1, 2, code="INTERNAL", message=told)
    assert complaints(unread, windows=[Window("unreadable", "echo", 0.5, 1.5)]) == []
    assert len(complaints(unread, windows=[Window("unreadable", "wide", 0.5, 1.5)])) == 1


# -- metrics

TEXT = """\
# HELP answers Good ones
# TYPE answers counter
answers{model="a \\"b\\"",version="1"} 3
# HELP seconds How long
# TYPE seconds histogram
seconds_bucket{le="0.5"} 1
seconds_bucket{le="+Inf"} 2
seconds_sum 1.5
seconds_count 2
# HELP heat Now
# TYPE heat gauge
heat -1e3
"""


def test_what_must_not_decrease_is_read():
    found = counters(TEXT)
    assert found["answers_total", (("model", 'a "b"'), ("version", "1"))] == 3
    assert {name for name, _ in found} == {
        "answers_total",
        "seconds_bucket",
        "seconds_sum",
        "seconds_count",
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("heat -1e3\n", "heat -1e3"),
        ("heat -1e3", "heat many"),
        ("heat -1e3", "cold 3"),
        ("heat -1e3", "heat 1\nheat 2"),
        ('version="1"} 3', 'version="1} 3'),
        ('version="1"} 3', 'version="1"} -3'),
        ('version="1"', 'model="b"'),
        ("# TYPE heat gauge\n", ""),
        ("# TYPE heat gauge", "# TYPE answers gauge"),
        ('{le="0.5"} 1', '{le="0.5"} 4'),
        ("seconds_count 2", "seconds_count 3"),
    ],
)
def test_metrics_that_are_malformed_are_refused(before, after):
    with pytest.raises(ValueError):  # noqa: PT011  (the library's own words)
        counters(TEXT.replace(before, after))


# -- whole simulations


def under_control(*orders, requests=40, faults=(), looks=(), recycle=None):
    return Scenario(
        seed=1,
        models=["echo"],
        requests=[
            Request(id=f"r{n}", at=n / 20, model="echo", values=(n,), wire="http") for n in range(requests)
        ],
        sequences=[],
        faults=faults,
        startup=["echo"],
        orders=orders,
        looks=looks,
        recycle=recycle or {},
    )


def ask(what, at):
    return Order(at=at, what=what, model="echo", wire="grpc")


@pytest.mark.slow
def test_requests_are_answered_up_to_an_unload_and_after_a_load_and_refused_in_between(tmp_path):
    verdict = simulate(under_control(ask("unload", 0.51), ask("load", 1.01)), tmp_path)
    assert verdict.complaints == []
    assert [each.code for each in verdict.orders[:2]] == ["OK", "OK"]
    codes = {each.request.id: each.code for each in verdict.outcomes}
    assert [codes[f"r{n}"] for n in (0, 10, 11, 20, 39)] == ["OK", "OK", "NOT_FOUND", "NOT_FOUND", "OK"]


@pytest.mark.slow
def test_a_counter_goes_on_with_a_model_that_is_reloaded(tmp_path):
    looks = [Look(at=n / 10, what="metrics", wire="http") for n in range(20)]
    touch = Fault(at=0.5, what="touch", model="echo", seed=7)
    verdict = simulate(under_control(ask("load", 0.51), looks=looks, faults=[touch]), tmp_path)
    assert verdict.complaints == []


@pytest.mark.slow
def test_workers_are_recycled_under_load_and_all_requests_are_answered(tmp_path):
    verdict = simulate(under_control(requests=100, recycle={"echo": '{"requests": 5}'}), tmp_path)
    assert verdict.complaints == []
    assert verdict.recycled["requests"] >= 3
    assert {each.code for each in verdict.outcomes} == {"OK"}


@pytest.mark.slow
@pytest.mark.parametrize(("value", "parts"), [(23, 70), (6, 0), (7, 1)])
def test_a_stream_of_a_decoupled_model_ends_once_whether_or_not_it_has_parts(tmp_path, value, parts):
    asked = Request(id="r", at=0.0, model="stream", values=(value,), wire="stream")
    verdict = simulate(
        Scenario(seed=1, models=["stream"], requests=[asked], sequences=[], faults=[]), tmp_path
    )
    assert verdict.complaints == []
    [outcome] = [each for each in verdict.outcomes if each.request.id == "r"]
    assert (outcome.code, outcome.finals, len(outcome.values)) == ("OK", 1, parts)
