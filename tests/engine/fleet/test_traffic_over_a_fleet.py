"""Traffic plans over a simulated fleet: equal on all replicas, and rolled back on all of them."""

import pytest
import trio

from engine.fleet.picture import is_stuck
from engine.fleet.policy.books import Books, Spared, UnknownBooks, read_books
from engine.fleet.policy.sharing import spared_by_all
from engine.fleet.policy.values import Ledger, Release, Seen, Served, Wish
from tests.engine.fleet.simulated_fleet import MODEL, SimulatedFleet, in_virtual_time

BOTH = Release((1, 2))
PLAN = {"weights": {"1": 90, "2": 10}, "rollback": {"max_error_rate": 0.05}}


def test_a_plan_is_put_in_force_everywhere_and_rolled_back_everywhere():
    async def story():
        fleet = SimulatedFleet(3, serving=BOTH)
        fleet.wish = Wish(model=MODEL, release=BOTH, traffic=PLAN)
        async with trio.open_nursery() as nursery:
            await fleet.run(nursery)
            plans = [server.plans for server in fleet.servers.values()]
            await fleet.until(lambda: all(each.get(MODEL) == PLAN for each in plans))
            fleet.named("r1").rolled_back[2] = "error rate 0.2 over 0.05"
            back = {**PLAN, "weights": {"1": 90, "2": 0}}
            await fleet.until(lambda: all(each[MODEL] == back for each in plans))
            (lane,) = fleet.controllers["one"].picture.lanes
            assert lane.spared == {2: "error rate 0.2 over 0.05, on r1"}
            fleet.kill()
            await fleet.run(nursery, "two")  # the next controller keeps to it
            await trio.sleep(30)
            assert all(each[MODEL] == back for each in plans)
            fleet.wish = Wish(model=MODEL, release=BOTH, traffic={"weights": {"1": 50, "2": 50}})
            await fleet.until(lambda: all(each[MODEL]["weights"]["2"] == 50 for each in plans))
            fleet.wish = Wish(model=MODEL, release=BOTH, traffic={})
            await fleet.until(lambda: all(each[MODEL] is None for each in plans))
            nursery.cancel_scope.cancel()

    in_virtual_time(story)


def test_a_replica_that_starts_again_gets_the_plan_again():
    async def story():
        fleet = SimulatedFleet(2, serving=BOTH)
        fleet.wish = Wish(model=MODEL, release=BOTH, traffic=PLAN)
        async with trio.open_nursery() as nursery:
            await fleet.run(nursery)
            server = fleet.named("r0")
            await fleet.until(lambda: server.plans.get(MODEL) == PLAN)
            server.die()
            server.is_up = True
            await fleet.until(lambda: server.plans.get(MODEL) == PLAN)
            nursery.cancel_scope.cancel()

    in_virtual_time(story)


def test_a_plan_that_no_replica_takes_is_told_and_waits_for_another_file():
    async def story():
        fleet = SimulatedFleet(2, serving=BOTH)
        fleet.wish = Wish(model=MODEL, release=BOTH, traffic=PLAN | {"mirror": {"version": 9}})
        async with trio.open_nursery() as nursery:
            await fleet.run(nursery)
            controller = fleet.controllers["one"]
            await fleet.until(lambda: is_stuck(controller.picture.lanes, controller.picture))
            (lane,) = controller.picture.lanes
            assert lane.waits == "r1 does not take the traffic plan: invalid traffic plan"
            nursery.cancel_scope.cancel()

    in_virtual_time(story)


def seen(name, recent, plan=PLAN):
    versions = [
        {"version": str(version), "recent": {"answers": answers, "errors": errors}}
        for version, (answers, errors) in recent.items()
    ]
    return Seen(name=name, models={MODEL: Served(traffic={"plan": plan, "versions": versions})})


@pytest.mark.parametrize(
    ("per_replica", "spared"),
    [
        ([(6, 1)] * 4, {2: "4 of 24 answers of 4 replicas were errors"}),  # on none of them enough to say so
        ([(6, 0)] * 4, {}),
        ([(6, 1)] * 3, {}),
    ],
)
def test_versions_are_judged_by_the_sum_of_all_replicas(per_replica, spared):
    replicas = [seen(f"r{n}", {1: (100, 0), 2: recent}) for n, recent in enumerate(per_replica)]
    assert spared_by_all(MODEL, PLAN, None, replicas).versions == spared


def test_the_last_version_with_a_weight_stays_whatever_is_said_of_it():
    replicas = [seen("r0", {1: (100, 0), 2: (100, 50)}, {"weights": {"1": 0, "2": 1}})]
    replicas[0].models[MODEL].traffic["versions"][1]["rolled_back"] = {"reason": "slow"}
    plan = {"weights": {"1": 0, "2": 1}}
    assert spared_by_all(MODEL, plan, None, replicas).versions == {}


def test_books_come_back_as_they_were_written():
    release = Release((1, 2), '{"max_batch_size":8}')
    books = Books(
        owner="one",
        ledgers={
            "m": Ledger(
                good=release, rolling=Release((3,)), passed=frozenset(("a", "b")), refused={BOTH: "why"}
            )
        },
        spared={"m": Spared(plan="{}", versions={2: "slow"})},
        drained={"a": "boot"},
    )
    assert read_books(books.document()) == books
    assert read_books(None) == Books()
    damaged: list[object] = [[], {}, {"format": 2}, {"format": 1, "owner": "", "models": 3}]
    for wrong in damaged:
        with pytest.raises(UnknownBooks):
            read_books(wrong)
