"""Plans: their source, their description, and the guard that takes a bad version's share away."""

from contextlib import asynccontextmanager
from itertools import cycle

import pytest
import trio

from actors.serving.standing import Status
from actors.serving.statistics import FailureReason
from actors.supervision.spec import ChildSpec, Intensity
from actors.supervision.supervisor import Supervisor
from actors.traffic.policy.traffic_plan import read_plan
from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument, NotFound, Unavailable
from actors.values.specs import InputSpec, ModelKey, OutputSpec
from tests.support.traffic_doubles import KEY, Versions, answer, drawing
from tests.support.trees import serving

CANARY = {"weights": {"1": 90, "2": 10}}
GUARDED = {
    "weights": {"1": 50, "2": 50},
    "rollback": {"max_error_rate": 0.2, "max_latency": 1, "min_requests": 10},
}


@pytest.fixture
async def versions():
    """Two versions that meet every other request each, where their weights are equal."""
    alternating = cycle((0.25, 0.75))
    return Versions(1, 2, random=lambda: next(alternating))


def by_version(versions):
    return {each["version"]: each for each in versions.control.describe("model")["versions"]}


def shares(versions):
    return {number: each["share"] for number, each in by_version(versions).items() if each["share"]}


@asynccontextmanager
async def guarding(versions, plan=None, **options):
    """Run the guard under a supervisor, with a plan in force.

    If the block acts every quarter of a second, the guard looks once between two acts.
    """
    if plan is not None:
        versions.control.adopt(KEY, read_plan(plan))
    async with serving(Supervisor([ChildSpec("guard", versions.control.guard)], **options)) as tree:
        await trio.sleep(0.1)
        yield tree


# -- where plans come from


async def test_a_plan_is_described_and_not_changed_where_the_repository_alone_decides():
    versions = Versions(1, 2, random=lambda: 0.5, changeable=False)
    described = versions.control.describe("model")
    with pytest.raises(Unavailable, match="--model-control-mode=explicit"):
        versions.control.change("model", CANARY)
    assert versions.control.describe("model") == described


async def test_a_model_without_a_plan_is_described_by_what_it_does(versions):
    assert versions.control.describe("model") == {
        "model": "model",
        "origin": "none",
        "plan": None,
        "versions": [
            {
                "version": number,
                "state": "READY",
                "weight": None,
                "share": share,
                "requests": 0,
                "share_of_requests": 0.0,
                "answers": 0,
                "errors": 0,
                "mean_latency_seconds": 0.0,
            }
            for number, share in ((1, 0.0), (2, 1.0))
        ],
        "mirror": None,
        "warnings": [],
    }


async def test_a_configurations_plan_is_in_force_from_the_load_on(versions, autojump_clock):
    versions.control.adopt(KEY, read_plan(CANARY))
    await trio.sleep(3)
    described = versions.control.describe("model")
    assert described["origin"] == "configuration"
    assert described["plan"]["weights"] == {"1": 90, "2": 10}
    assert described["for_seconds"] == 3.0
    assert shares(versions) == {1: 0.9, 2: 0.1}
    assert versions.log.of("traffic_changed") == [
        {"model": "model", "origin": "configuration", "plan": CANARY}
    ]


async def test_an_operators_plan_replaces_the_whole_of_the_last_one(versions):
    versions.control.adopt(KEY, read_plan({**CANARY, "sticky": {"header": "x-user"}}))
    described = versions.control.change("model", {"weights": {"1": 1, "2": 3}})
    assert described["origin"] == "runtime"
    assert described["plan"] == {"weights": {"1": 1, "2": 3}}
    assert shares(versions) == {1: 0.25, 2: 0.75}


async def test_an_operators_plan_outlives_reloads_that_say_nothing_new_about_traffic(versions):
    versions.control.adopt(KEY, read_plan(CANARY))
    versions.control.change("model", {"weights": {"1": 1}})
    versions.add(2)
    versions.control.adopt(KEY, read_plan(CANARY))
    assert shares(versions) == {1: 1.0}
    versions.control.adopt(KEY, read_plan({"weights": {"2": 1}}))
    assert shares(versions) == {2: 1.0}
    assert versions.control.describe("model")["origin"] == "configuration"


async def test_a_load_whose_configuration_has_lost_its_plan_ends_the_split(versions):
    versions.control.adopt(KEY, read_plan(CANARY))
    versions.control.adopt(KEY, None)
    assert versions.router.resolve("model") is versions[2]
    assert versions.control.describe("model")["origin"] == "none"


async def test_an_operator_may_begin_and_end_a_split_of_a_model_that_was_configured_without_one(versions):
    versions.control.adopt(KEY, None)
    versions.control.change("model", CANARY)
    versions.control.adopt(KEY, None)  # reloaded, and still nothing new
    assert shares(versions) == {1: 0.9, 2: 0.1}
    described = versions.control.change("model", {})
    assert (described["origin"], described["plan"]) == ("runtime", None)
    assert versions.router.resolve("model") is versions[2]


async def test_ending_no_split_is_no_change(versions):
    versions.control.change("model", {})
    assert versions.log == []


async def test_a_model_that_was_unloaded_and_comes_back_has_its_plan(versions):
    versions.control.adopt(KEY, read_plan(CANARY))
    for number in (1, 2):
        versions[number].standing.become(Status.UNLOADING)
    for state in versions.router.roster.serve(KEY, {}):
        versions.router.roster.retired(KEY, state)
    versions.router.roster.forget(KEY)
    assert list(versions.router.roster.keys("model")) == []
    for number in (1, 2):
        versions.add(number)
    versions.control.adopt(KEY, read_plan(CANARY))
    assert shares(versions) == {1: 0.9, 2: 0.1}


async def test_a_model_that_has_left_for_good_is_forgotten(versions):
    versions.control.adopt(KEY, read_plan(CANARY))
    versions.control.forget(KEY)
    versions.control.forget(KEY)
    assert list(versions.control.samples()) == []
    assert versions.router.resolve("model") is versions[2]


# -- what is refused


async def test_an_unknown_model_has_no_traffic(versions):
    for call in (versions.control.describe, lambda name: versions.control.change(name, CANARY)):
        with pytest.raises(NotFound, match="Request for unknown model: 'nobody' is not found"):
            call("nobody")


async def test_a_name_that_stands_for_several_models_has_no_traffic(versions):
    versions.router.roster.mark_broken(ModelKey("model", "elsewhere"), (), "no")
    with pytest.raises(InvalidArgument, match="there are 2 models 'model', in different namespaces"):
        versions.control.describe("model")


async def test_a_plan_that_makes_no_sense_is_refused_and_the_last_one_stays(versions):
    versions.control.adopt(KEY, read_plan(CANARY))
    with pytest.raises(InvalidArgument, match="weights"):
        versions.control.change("model", {"weights": {"1": -1}})
    assert shares(versions) == {1: 0.9, 2: 0.1}


@pytest.mark.parametrize("plan", [CANARY, {"weights": {"1": 1}, "mirror": {"version": 2}}])
async def test_versions_with_different_inputs_can_not_share_requests(plan):
    versions = Versions(1, random=drawing(0.0))
    versions.add(2, inputs=(InputSpec(name="INPUT", datatype=DataType.INT8, dims=(2,)),))
    with pytest.raises(InvalidArgument) as caught:
        versions.control.change("model", plan)
    assert caught.value.message == (
        "versions 1 and 2 of model 'model' can't share requests: "
        "input 'INPUT' is FP32[2] in version 1 and INT8[2] in 2"
    )


async def test_a_plan_for_versions_that_are_still_to_come_is_taken_with_a_warning(versions):
    versions[2].standing.become(Status.UNAVAILABLE, "dead")
    described = versions.control.change("model", {"weights": {"2": 1, "7": 1}})
    assert described["warnings"] == [
        "version 2 has a weight and is UNAVAILABLE",
        "version 7 has a weight and does not exist",
        "no version with a weight can serve, so version 1 answers",
    ]
    assert by_version(versions)[7]["state"] == ""


async def test_a_plan_for_versions_that_are_all_still_to_come_changes_nothing_yet(versions):
    versions.control.change("model", {"weights": {"7": 1}})
    assert shares(versions) == {2: 1.0}
    versions.add(7)
    assert shares(versions) == {7: 1.0}


async def test_a_models_namespace_is_told_where_it_has_one(versions):
    key = ModelKey("other", "elsewhere")
    versions.router.roster.mark_broken(key, (3,), "no")
    versions.control.adopt(key, read_plan({"weights": {"3": 1}}))
    described = versions.control.describe("other")
    assert described["namespace"] == "elsewhere"
    assert [each["state"] for each in described["versions"]] == ["UNAVAILABLE"]


async def test_answers_of_another_form_are_warned_of(versions):
    versions.add(2, outputs=(OutputSpec(name="OUTPUT", datatype=DataType.FP64, dims=(2,)),))
    described = versions.control.change("model", CANARY)
    assert described["warnings"] == [
        "answers differ in form: output 'OUTPUT' is FP32[2] in version 1 and FP64[2] in 2"
    ]


async def test_a_mirror_that_is_not_ready_is_warned_of(versions):
    versions[2].standing.become(Status.UNAVAILABLE, "dead")
    described = versions.control.change("model", {"weights": {"1": 1}, "mirror": {"version": 2}})
    assert described["warnings"] == ["nothing is mirrored, for version 2 is not ready"]


async def test_a_plan_may_be_made_while_nothing_of_the_model_serves(versions):
    for number in (1, 2):
        versions[number].standing.become(Status.UNAVAILABLE, "dead")
    described = versions.control.change("model", CANARY)
    assert len(described["warnings"]) == 2
    assert shares(versions) == {}
    assert [dict(each.shares) for each in versions.control.samples()] == [{}]
    versions[1].standing.become(Status.READY)
    assert shares(versions) == {1: 1.0}


# -- what is counted


async def test_what_versions_did_is_told_since_the_plan_came_into_force(versions, autojump_clock):
    versions.control.change("model", {"weights": {"1": 1, "2": 1}})
    for _ in range(10):
        await versions.send()
    await trio.sleep(0.5)
    versions.answer(1)
    versions.answer(2, error="no")
    assert by_version(versions)[1] | {"state": ""} == {
        "version": 1,
        "state": "",
        "weight": 1,
        "share": 0.5,
        "requests": 5,
        "share_of_requests": 0.5,
        "answers": 5,
        "errors": 0,
        "mean_latency_seconds": 0.5,
    }
    assert (by_version(versions)[2]["answers"], by_version(versions)[2]["errors"]) == (5, 5)
    versions.control.change("model", {"weights": {"1": 1, "2": 1}})
    assert by_version(versions)[1]["requests"] == by_version(versions)[1]["answers"] == 0
    (sample,) = versions.control.samples()
    assert dict(sample.requests) == {1: 5, 2: 5}  # what is scraped goes on


# -- rollback


async def load(versions, *, seconds=3.0, each=0.25, error=None, answers=True, number=2):
    """Send ten requests at a time, and have version `number` answer with `error` where one is given."""
    for _ in range(round(seconds / each)):
        for _ in range(10):
            await versions.send()
        versions.answer(1 if number == 2 else 2)
        if answers:
            versions.answer(number, error=error)
        await trio.sleep(each)


async def test_a_version_that_fails_loses_its_share_within_a_second(versions, autojump_clock):
    async with guarding(versions, GUARDED):
        await load(versions)
        assert shares(versions) == {1: 0.5, 2: 0.5}
        await load(versions, seconds=0.75, error="no")
        assert shares(versions) == {1: 0.5, 2: 0.5}  # 15 of 75 answers, and then
        await load(versions, seconds=0.25, error="no")
        assert shares(versions) == {1: 1.0}
        rolled_back = by_version(versions)[2]["rolled_back"]
        assert rolled_back["reason"] == "error rate 0.25 over 0.2: 20 of 80 answers within 5 s"
        (event,) = versions.log.of("traffic_rolled_back")
        assert event["version"] == 2
        assert event["shares"] == {"1": 1.0}
        await trio.sleep(100)
        assert by_version(versions)[2]["rolled_back"]["for_seconds"] > 100
        assert shares(versions) == {1: 1.0}
        assert by_version(versions)[1]["recent"]["answers"] == 0
        assert [dict(each.rollbacks) for each in versions.control.samples()] == [{2: 1}]


async def test_a_version_that_fails_from_the_first_request_on_is_gone_at_the_second_look(
    versions, autojump_clock
):
    async with guarding(versions, GUARDED):
        await load(versions, seconds=1.0, error="no")
        assert shares(versions) == {1: 1.0}


async def test_a_version_that_hangs_loses_its_share_too(versions, autojump_clock):
    async with guarding(versions, GUARDED):
        await load(versions, seconds=2.0, answers=False)
        assert shares(versions) == {1: 1.0}
        assert by_version(versions)[2]["rolled_back"]["reason"].startswith("mean latency")


async def test_cancellations_and_refusals_of_the_queue_are_no_errors_of_the_version(versions, autojump_clock):
    async with guarding(versions, GUARDED):
        for _ in range(8):
            for reason in (FailureReason.CANCELED, FailureReason.REJECTED, FailureReason.OTHER):
                for _ in range(20):
                    versions[2].statistics.failed(reason, 1)
            await trio.sleep(0.25)
        assert shares(versions) == {1: 0.5, 2: 0.5}


async def test_the_version_that_is_left_keeps_its_share_whatever_it_does(versions, autojump_clock):
    async with guarding(versions, GUARDED):
        await load(versions, seconds=1.0, error="no")
        for _ in range(10):
            for _ in range(10):
                await versions.send()
            versions.answer(1, error="no")
            await trio.sleep(0.25)
        assert shares(versions) == {1: 1.0}


async def test_a_new_plan_gives_a_version_its_share_again(versions, autojump_clock):
    async with guarding(versions, GUARDED):
        await load(versions, seconds=1.0, error="no")
        versions.add(2)
        versions.control.adopt(KEY, read_plan(GUARDED))
        assert shares(versions) == {1: 1.0}  # reloaded, and nothing new said
        versions.control.change("model", GUARDED)
        assert shares(versions) == {1: 0.5, 2: 0.5}
        assert "rolled_back" not in by_version(versions)[2]
        await load(versions)
        assert shares(versions) == {1: 0.5, 2: 0.5}


async def test_another_generation_of_a_version_begins_with_a_clean_record(versions, autojump_clock):
    plan = {**GUARDED, "rollback": {"max_error_rate": 0.2, "min_requests": 40}}
    async with guarding(versions, plan):
        await load(versions, seconds=1.0, error="no")  # not enough to say something
        old = versions[2]
        versions.add(2)
        answer(old, error="no")
        await load(versions, seconds=1.0)
        assert shares(versions) == {1: 0.5, 2: 0.5}


async def test_a_version_rolled_back_answers_where_nothing_else_is_left(versions, autojump_clock):
    async with guarding(versions, GUARDED):
        await load(versions, seconds=1.0, error="no")
        versions[1].standing.become(Status.UNAVAILABLE, "dead")
        assert shares(versions) == {2: 1.0}
        versions[1].standing.become(Status.READY)
        assert shares(versions) == {1: 1.0}


async def test_a_guard_that_dies_forgets_nothing(versions, autojump_clock):
    async with guarding(versions, GUARDED, intensity=Intensity(100, 60.0)) as tree:
        await load(versions, seconds=1.0)
        for _ in range(4):
            await load(versions, seconds=0.25, error="no")
            tree.root.kill("guard")
        await load(versions, seconds=0.75, error="no")
        assert "child_restarted" in tree.names()
        assert shares(versions) == {1: 1.0}


async def test_the_guard_sleeps_while_there_is_nothing_to_guard(versions, autojump_clock):
    async with guarding(versions):
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
        versions.control.adopt(KEY, read_plan(GUARDED))
        await trio.sleep(10)
        versions.control.change("model", CANARY)
        await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
