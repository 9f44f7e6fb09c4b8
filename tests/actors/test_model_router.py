"""From names to versions, in the contract's words."""

import pytest

from actors.messages.errors import ErrorCode, InvalidArgument, NotFound, Unavailable
from actors.model import ModelState, Status
from actors.router import Router, parse_version
from actors.statistics import ModelStatistics
from tests.support.model_doubles import make_spec


@pytest.fixture
async def router():
    return Router()


def add(router, name, version, *, ready=True):
    state = ModelState(
        make_spec(name=name, version=version),
        statistics=ModelStatistics(),
        on_status=router.changed,
        wall_clock=lambda: 0,
    )
    router.add(state)
    if ready:
        state.become(Status.READY)
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
    three.become(Status.UNAVAILABLE, "gone")
    assert router.resolve("m") is one
    three.become(Status.READY)
    assert router.resolve("m") is three


async def test_a_version_taken_in_again_replaces_the_one_before(router):
    add(router, "m", 1)
    again = add(router, "m", 1, ready=False)
    assert router.find("m", 1) is again
    assert refusal(router.resolve, "m")[0] is ErrorCode.NOT_FOUND
    again.become(Status.READY)
    assert router.resolve("m") is again


async def test_unknown_models_and_versions_are_refused_in_the_contracts_words(router):
    add(router, "m", 1)
    add(router, "m", 2, ready=False)
    add(router, "sleepy", 1, ready=False)
    router.add_broken("broken", (1, 4), "Invalid argument: no")
    unknown = "Request for unknown model: "
    assert refusal(router.resolve, "x") == (ErrorCode.NOT_FOUND, f"{unknown}'x' is not found")
    assert refusal(router.resolve, "x", "1") == (ErrorCode.NOT_FOUND, f"{unknown}'x' is not found")
    assert refusal(router.resolve, "m", "9") == (ErrorCode.NOT_FOUND, f"{unknown}'m' version 9 is not found")
    assert refusal(router.resolve, "m", "2") == (
        ErrorCode.UNAVAILABLE,
        f"{unknown}'m' version 2 is not at ready state",
    )
    assert refusal(router.resolve, "sleepy") == (
        ErrorCode.NOT_FOUND,
        f"{unknown}'sleepy' has no available versions",
    )
    assert refusal(router.resolve, "broken") == (
        ErrorCode.NOT_FOUND,
        f"{unknown}'broken' has no available versions",
    )
    assert refusal(router.resolve, "broken", "4") == (
        ErrorCode.UNAVAILABLE,
        f"{unknown}'broken' version 4 is not at ready state",
    )
    assert refusal(router.resolve, "broken", "5") == (
        ErrorCode.NOT_FOUND,
        f"{unknown}'broken' version 5 is not found",
    )
    assert list(router.versions("x")) == []


@pytest.mark.parametrize("text", ["x", "", "1.5", "9223372036854775808", "-9223372036854775809", "1" * 5000])
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


async def test_the_index_lists_everything_with_its_state_and_reason(router):
    add(router, "m", 2)
    add(router, "m", 1, ready=False)
    add(router, "failed", 1, ready=False).become(Status.UNAVAILABLE, "Internal: no")
    router.add_broken("broken", (1, 4), "Invalid argument: no")
    router.add_broken("empty", (), "no version")
    entries = [(entry.name, entry.version, entry.state, entry.reason) for entry in router.index()]
    assert entries == [
        ("broken", 1, "UNAVAILABLE", "Invalid argument: no"),
        ("broken", 4, "UNAVAILABLE", "Invalid argument: no"),
        ("empty", 0, "UNAVAILABLE", "no version"),
        ("failed", 1, "UNAVAILABLE", "Internal: no"),
        ("m", 1, "LOADING", ""),
        ("m", 2, "READY", ""),
    ]
    assert [(entry.name, entry.version) for entry in router.index(ready_only=True)] == [("m", 2)]


async def test_all_is_ready_where_nothing_is_broken_and_nothing_failed(router):
    assert router.all_ready()
    state = add(router, "m", 1)
    assert router.all_ready()
    state.become(Status.UNLOADING)
    state.become(Status.UNAVAILABLE, "unloaded")
    assert router.all_ready()
    router.add_broken("broken", (), "no")
    assert not router.all_ready()
    add(router, "broken", 1)  # mended
    assert router.all_ready()
    add(router, "late", 1, ready=False)
    assert not router.all_ready()


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
