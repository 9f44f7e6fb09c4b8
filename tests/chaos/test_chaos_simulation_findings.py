"""Scenarios made by hand, one for each bug that a seed has found.

Drawn scenarios change whenever something is added to them.
"""

import pytest

from chaos.simulation.plan import Fault, Order, Request, Scenario
from chaos.simulation.simulate import simulate
from tests.support.tiers import mostly_long

pytestmark = pytest.mark.slow


def run(tmp_path, models, *faults, requests=12, value=4, seed=1):
    """One request every quarter of a second to the first of the models."""
    verdict = simulate(
        Scenario(
            seed=seed,
            models=models,
            requests=[
                Request(id=f"r{n}", at=n / 4, model=models[0], values=(value,), wire="core")
                for n in range(requests)
            ],
            sequences=[],
            faults=faults,
        ),
        tmp_path,
    )
    assert verdict.complaints == []
    return verdict


def by_code(verdict):
    return {
        code: sum(each.code == code for each in verdict.outcomes)
        for code in {each.code for each in verdict.outcomes}
    }


@pytest.mark.long
def test_what_answered_with_nonsense_has_been_run_and_is_not_run_again_where_that_is_forbidden(tmp_path):
    verdict = run(tmp_path, ["once"], Fault(at=1.1, what="misdeed", model="once", detail="garbage_after"))
    assert by_code(verdict)["UNAVAILABLE"] == 1


def test_a_request_that_makes_its_worker_answer_with_nonsense_again_and_again_is_found_out(tmp_path):
    poison = Request(id="p", at=0.0, model="echo", values=(9,), wire="core", poison="garbage_after")
    verdict = simulate(
        Scenario(seed=1, models=["echo"], requests=[poison], sequences=[], faults=[]), tmp_path
    )
    assert verdict.complaints == []
    assert verdict.outcomes[0].code == "POISONED"


@pytest.mark.parametrize("point", mostly_long(["lane.operation", "deployment.apply"], "lane.operation"))
def test_a_change_that_its_lane_crashed_over_comes_to_pass_all_the_same(tmp_path, point):
    version = Fault(at=1.0, what="version", model="echo")
    verdict = run(tmp_path, ["echo"], version, Fault(at=0.9, what="crash", detail=point), requests=20)
    assert verdict.crashed == [point]
    assert verdict.outcomes[-1].version == 2


@pytest.mark.long
def test_a_stream_of_which_a_part_was_lost_does_not_end_well(tmp_path):
    crash = Fault(at=1.251, what="crash", detail="instance.packet")
    # With this seed all five parts are there at once, the third of them is lost, and the last one is still
    # read.
    verdict = run(tmp_path, ["stream"], crash, requests=8, value=5, seed=5)
    assert verdict.crashed == ["instance.packet"]
    assert by_code(verdict)["UNAVAILABLE"] == 1


@pytest.mark.long
def test_an_instance_that_crashes_before_its_worker_was_told_anything_leaves_no_descriptor(tmp_path):
    crash = Fault(at=0.5, what="crash", detail="instance.live")
    death = Fault(at=1.0, what="signal", model="echo", detail="9")
    assert run(tmp_path, ["echo"], crash, death).crashed == ["instance.live"]


@pytest.mark.long
def test_a_connection_that_could_not_be_adopted_is_closed(tmp_path):
    asked = Request(id="g", at=1.0, model="echo", values=(1,), wire="grpc")
    crash = Fault(at=0.5, what="crash", detail="grpc.accept")
    verdict = simulate(
        Scenario(seed=1, models=["echo"], requests=[asked], sequences=[], faults=[crash]), tmp_path
    )
    assert verdict.complaints == []
    assert verdict.outcomes[0].code == "LOST"


@pytest.mark.long
def test_instances_that_took_the_place_of_others_come_back_with_their_supervisor(tmp_path):
    """The supervisor came back with its first instances, which had been replaced.

    After two recyclings no instance was left to serve.
    """
    requests = [Request(id=f"r{n}", at=n / 8, model="echo", values=(4,), wire="core") for n in range(64)]
    faults = [
        Fault(at=5.0, what="crash", detail="supervisor.restart"),
        Fault(at=5.1, what="signal", model="echo", detail="9"),
    ]
    verdict = simulate(
        Scenario(
            seed=1,
            models=["echo"],
            requests=requests,
            sequences=[],
            faults=faults,
            recycle={"echo": '{"requests": 6}'},
        ),
        tmp_path,
    )
    assert verdict.complaints == []
    assert verdict.crashed == ["supervisor.restart"]
    assert verdict.recycled["requests"] >= 2


@pytest.mark.parametrize(
    "moment", mostly_long([1.0, 1.3, 1.6, 1.9], 1.3)
)  # in some of these a replaced instance is busy
def test_an_instance_that_was_replaced_ends_though_whoever_was_to_end_it_crashed(tmp_path, moment):
    requests = [Request(id=f"r{n}", at=n / 20, model="batching", values=(4,), wire="core") for n in range(60)]
    faults = [Fault(at=0.0, what="misdeed", model="batching", detail="slow") for _ in range(20)]
    crash = Fault(at=moment, what="crash", detail="batcher.turn")  # the recycler is started anew after it
    verdict = simulate(
        Scenario(
            seed=1,
            models=["batching"],
            requests=requests,
            sequences=[],
            faults=[*faults, crash],
            recycle={"batching": '{"requests": 4}'},
        ),
        tmp_path,
    )
    assert verdict.complaints == []
    assert verdict.recycled["requests"] >= 2


@pytest.mark.long
def test_a_version_whose_retirement_crashed_is_unloaded_all_the_same(tmp_path):
    """It stayed UNLOADING, with its workers, until the catalog had another life."""
    verdict = simulate(
        Scenario(
            seed=1,
            models=["echo"],
            requests=[
                Request(id=f"r{n}", at=n / 4, model="echo", values=(4,), wire="core") for n in range(8)
            ],
            sequences=[],
            faults=[Fault(at=0.9, what="crash", detail="deployment.retirement")],
            startup=["echo"],
            orders=[Order(at=1.0, what="unload", model="echo", wire="http")],
        ),
        tmp_path,
    )
    assert verdict.complaints == []
    assert verdict.crashed == ["deployment.retirement"]
