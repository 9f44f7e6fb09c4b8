"""Scenarios made by hand, one for each bug that a seed has found: scenarios that are drawn change whenever something is added to them."""

import pytest

from chaos.simulation.scenario import Fault, Request, Scenario
from chaos.simulation.simulate import simulate

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


@pytest.mark.parametrize("point", ["lane.operation", "deployment.apply"])
def test_a_change_that_its_lane_crashed_over_comes_to_pass_all_the_same(tmp_path, point):
    version = Fault(at=1.0, what="version", model="echo")
    verdict = run(tmp_path, ["echo"], version, Fault(at=0.9, what="crash", detail=point), requests=20)
    assert verdict.crashed == [point]
    assert verdict.outcomes[-1].version == 2


def test_a_stream_of_which_a_part_was_lost_does_not_end_well(tmp_path):
    crash = Fault(at=1.251, what="crash", detail="instance.packet")
    # With this seed all five parts are there at once, the third of them is lost, and the last one is still read.
    verdict = run(tmp_path, ["stream"], crash, requests=8, value=5, seed=5)
    assert verdict.crashed == ["instance.packet"]
    assert by_code(verdict)["UNAVAILABLE"] == 1


def test_an_instance_that_crashes_before_its_worker_was_told_anything_leaves_no_descriptor(tmp_path):
    crash = Fault(at=0.5, what="crash", detail="instance.live")
    death = Fault(at=1.0, what="signal", model="echo", detail="9")
    assert run(tmp_path, ["echo"], crash, death).crashed == ["instance.live"]


def test_a_connection_that_could_not_be_adopted_is_closed(tmp_path):
    asked = Request(id="g", at=1.0, model="echo", values=(1,), wire="grpc")
    crash = Fault(at=0.5, what="crash", detail="grpc.accept")
    verdict = simulate(
        Scenario(seed=1, models=["echo"], requests=[asked], sequences=[], faults=[crash]), tmp_path
    )
    assert verdict.complaints == []
    assert verdict.outcomes[0].code == "LOST"
