"""From names to versions, in the contract's words."""

from typing import Any

import pytest

from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.values.errors import ErrorCode, InvalidArgument, NotFound, Unavailable
from actors.values.interfaces import DUPLICATE_REASON
from actors.values.specs import ModelKey
from actors.values.versions import parse_version
from tests.support.doubles import ServedDouble
from tests.support.model_doubles import make_spec


@pytest.fixture
async def router():
    return Router()


def make(router, name, version, **changes):
    return ModelState(
        make_spec(name=name, version=version, **changes),
        statistics=ModelStatistics(),
        on_status=router.roster.changed,
        wall_clock=lambda: 0,
    )


def add(router, name, version, *, ready=True, **changes):
    """Have one more version serve, or load."""
    state = make(router, name, version, **changes)
    key = state.spec.key
    router.roster.load_begun(key, state)
    if ready:
        state.standing.become(Status.READY)
        router.roster.serve(key, {**router.roster.serving(key), version: state})
    return state


def refusal(call, *arguments):
    with pytest.raises((NotFound, Unavailable, InvalidArgument)) as caught:
        call(*arguments)
    return caught.value.code, caught.value.message


async def test_the_highest_ready_version_answers(router):
    one, three = add(router, "m", 1), add(router, "m", 3)
    add(router, "m", 7, ready=False)
    assert router.resolve("m") is three
    assert router.resolve("m", "1") is one
    assert list(router.versions("m")) == [1, 3]
    three.standing.become(Status.UNAVAILABLE, "gone")
    assert router.resolve("m") is one
    three.standing.become(Status.READY)
    assert router.resolve("m") is three


async def test_whatever_may_change_which_version_answers_is_counted(router):
    """What was resolved still holds while the roster counts no change: ensembles rely on that."""
    key = ModelKey("m")
    seen = [router.roster.changes]

    def changed():
        seen.append(router.roster.changes)
        return seen[-1] > seen[-2]

    one = add(router, "m", 1)
    assert changed()
    three = add(router, "m", 3)
    assert changed()
    router.resolve("m")
    router.resolve("m", "1")
    assert not changed()
    three.standing.become(Status.UNAVAILABLE, "gone")
    assert changed()
    router.roster.set_fronting(key, lambda ready: ready[1])
    assert changed()
    router.roster.set_dormant(key, {2: one})
    assert changed()
    router.roster.serve(key, {})
    assert changed()


async def test_a_version_that_loads_beside_the_one_that_serves_answers_once_it_is_swapped_in(router):
    old = add(router, "m", 1)
    new = make(router, "m", 1)
    router.roster.load_begun(ModelKey("m"), new)
    new.standing.become(Status.READY)
    assert router.resolve("m") is router.resolve("m", "1") is old
    assert router.roster.serve(ModelKey("m"), {1: new}) == [old]
    assert router.resolve("m") is router.resolve("m", "1") is new
    assert router.roster.background(ModelKey("m")) == [old]
    old.standing.become(Status.UNLOADING)
    router.roster.retired(ModelKey("m"), old)
    assert [(entry.version, entry.state) for entry in router.roster.index()] == [(1, "READY")]


async def test_a_version_that_has_loaded_is_ready_in_the_index_once_it_answers(router):
    new = make(router, "m", 1)
    router.roster.load_begun(ModelKey("m"), new)
    new.standing.become(Status.READY)
    assert [entry.state for entry in router.roster.index()] == ["LOADING"]
    assert router.roster.index(ready_only=True) == []
    router.roster.serve(ModelKey("m"), {1: new})
    assert [entry.state for entry in router.roster.index(ready_only=True)] == ["READY"]
    router.roster.serve(ModelKey("m"), {})  # it goes on with what it has
    assert [entry.state for entry in router.roster.index()] == ["READY"]


async def test_who_fronts_a_model_answers_requests_that_name_no_version(router):
    one, two = add(router, "m", 1), add(router, "m", 2)
    seen, front = [], ServedDouble()

    def fronting(ready):
        seen.append(sorted(ready))
        return front if len(ready) == 2 else None

    router.roster.set_fronting(ModelKey("m"), fronting)
    assert router.resolve("m") is front
    assert router.resolve("m", "2") is two
    two.standing.become(Status.UNAVAILABLE, "gone")
    assert router.resolve("m") is one
    assert seen == [[1, 2], [1]]
    router.roster.set_fronting(ModelKey("m"), None)
    two.standing.become(Status.READY)
    assert router.resolve("m") is two


async def test_stand_ins_answer_while_nothing_is_loaded(router):
    one, two = ServedDouble(), ServedDouble()
    router.roster.set_dormant(ModelKey("m"), {1: one, 2: two})
    assert router.resolve("m") is two
    assert router.resolve("m", "1") is one
    assert list(router.versions("m")) == [1, 2]
    assert [(entry.version, entry.state, entry.reason) for entry in router.roster.index()] == [
        (1, "UNAVAILABLE", "unloaded"),
        (2, "UNAVAILABLE", "unloaded"),
    ]
    state = add(router, "m", 2)
    assert router.resolve("m") is state
    router.roster.serve(ModelKey("m"), {})
    assert router.resolve("m", "2") is two
    router.roster.set_dormant(ModelKey("m"), None)
    assert refusal(router.resolve, "m")[0] is ErrorCode.NOT_FOUND


async def test_models_of_one_name_are_told_apart_by_their_namespace():
    router = Router(namespacing=True)
    one = add(router, "m", 1, namespace="/a")
    assert router.resolve("m") is one
    add(router, "m", 1, namespace="/b")
    ambiguous = (
        ErrorCode.INVALID_ARG,
        "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity.",
    )
    assert refusal(router.resolve, "m") == refusal(router.resolve, "m", "1") == ambiguous
    assert refusal(router.resolve, "x") == (
        ErrorCode.INVALID_ARG,
        "Request for unknown model: 'x' is not found",
    )
    assert [(entry.name, entry.namespace) for entry in router.roster.index()] == [("m", "/a"), ("m", "/b")]


async def test_what_ended_can_be_forgotten(router):
    state = add(router, "m", 1)
    router.roster.serve(ModelKey("m"), {})
    state.standing.become(Status.UNLOADING)
    router.roster.retired(ModelKey("m"), state)
    assert [(entry.state, entry.reason) for entry in router.roster.index()] == [("UNAVAILABLE", "unloaded")]
    router.roster.forget(ModelKey("m"))
    assert router.roster.index() == []
    assert refusal(router.resolve, "m")[0] is ErrorCode.NOT_FOUND
    assert list(router.roster.keys()) == []


async def test_observers_hear_of_every_change(router):
    heard: list[Any] = []
    router.roster.on_change(heard.append)
    add(router, "m", 1).standing.become(Status.UNAVAILABLE, "gone")
    assert set(heard) == {ModelKey("m")}
    assert len(heard) >= 3


async def test_unknown_models_and_versions_are_refused_in_the_contracts_words(router):
    add(router, "m", 1)
    add(router, "m", 2, ready=False)
    add(router, "sleepy", 1, ready=False)
    router.roster.mark_broken(ModelKey("broken"), (1, 4), "Invalid argument: no")
    for asked, code, why in (
        (("x",), ErrorCode.NOT_FOUND, "'x' is not found"),
        (("x", "1"), ErrorCode.NOT_FOUND, "'x' is not found"),
        (("m", "9"), ErrorCode.NOT_FOUND, "'m' version 9 is not found"),
        (("m", "2"), ErrorCode.UNAVAILABLE, "'m' version 2 is not at ready state"),
        (("sleepy",), ErrorCode.NOT_FOUND, "'sleepy' has no available versions"),
        (("broken",), ErrorCode.NOT_FOUND, "'broken' has no available versions"),
        (("broken", "4"), ErrorCode.UNAVAILABLE, "'broken' version 4 is not at ready state"),
        (("broken", "5"), ErrorCode.NOT_FOUND, "'broken' version 5 is not found"),
    ):
        assert refusal(router.resolve, *asked) == (code, f"Request for unknown model: {why}")
    assert refusal(router.versions, "x")[0] is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "",
        "1.5",
        "9223372036854775808",
        "-9223372036854775809",
        "1" * 5000,
        " 1",
        "1\n",
        "1_0",
        "\u0661",
        "1a",
    ],
)
def test_a_version_that_is_no_number_is_refused(text):
    code, message = refusal(parse_version, text)
    assert code is ErrorCode.INVALID_ARG
    assert message == (
        f"failed to get model version from specified version string '{text}' (details: stoll), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("text", ["0", "-1", "-9223372036854775808"])
def test_a_version_below_one_is_refused(text):
    assert refusal(parse_version, text) == (
        ErrorCode.INVALID_ARG,
        f"invalid model version specified '{text}' , version should be an integral value > 0",
    )


async def test_a_version_that_is_none_is_refused_before_the_model_is_looked_up(router):
    text = "invalid model version specified '0' , version should be an integral value > 0"
    for ask in (router.resolve, router.statistics):
        assert refusal(ask, "nobody", "0") == (ErrorCode.INVALID_ARG, text)


async def test_a_version_of_no_model_in_particular_is_no_condition_of_statistics(router):
    add(router, "a", 1)
    add(router, "b", 2)
    assert [(each["name"], each["version"]) for each in router.statistics("", "1")] == [
        ("a", "1"),
        ("b", "2"),
    ]
    assert refusal(router.statistics, "", "x")[0] is ErrorCode.INVALID_ARG


async def test_the_index_lists_everything_with_its_state_and_reason(router):
    add(router, "m", 2)
    add(router, "m", 1, ready=False)
    failed = add(router, "failed", 1, ready=False)
    router.roster.load_ended(ModelKey("failed"), failed, "Internal: no")
    router.roster.mark_broken(ModelKey("broken"), (1, 4), "Invalid argument: no")
    router.roster.mark_broken(ModelKey("empty"), (), DUPLICATE_REASON)
    entries = [(entry.name, entry.version, entry.state, entry.reason) for entry in router.roster.index()]
    assert entries == [
        ("broken", 1, "UNAVAILABLE", "Invalid argument: no"),
        ("broken", 4, "UNAVAILABLE", "Invalid argument: no"),
        ("empty", 0, "UNAVAILABLE", DUPLICATE_REASON),
        ("failed", 1, "UNAVAILABLE", "Internal: no"),
        ("m", 1, "LOADING", ""),
        ("m", 2, "READY", ""),
    ]
    assert [(entry.name, entry.version) for entry in router.roster.index(ready_only=True)] == [
        ("empty", 0),  # duplicates are listed all the same
        ("m", 2),
    ]


async def test_statistics_are_those_of_what_is_ready(router):
    add(router, "a", 1)
    add(router, "b", 1)
    add(router, "b", 2)
    add(router, "c", 1, ready=False)

    def listed(*arguments):
        return [(entry["name"], entry["version"]) for entry in router.statistics(*arguments)]

    assert listed() == [("a", "1"), ("b", "1"), ("b", "2")]
    assert listed("b") == [("b", "1"), ("b", "2")]
    assert listed("b", "2") == [("b", "2")]
    assert refusal(router.statistics, "c") == (
        ErrorCode.INVALID_ARG,
        "requested model 'c' is not available",
    )
    assert refusal(router.statistics, "b", "3") == (
        ErrorCode.INVALID_ARG,
        "requested model version is not available for model 'b'",
    )
