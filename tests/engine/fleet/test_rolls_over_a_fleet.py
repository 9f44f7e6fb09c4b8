"""How changes go over a simulated fleet, whose replicas and controllers die at any step."""

from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fleet.picture import Standing, is_stuck, needed_for
from engine.fleet.policy.placing import place, why_fewer
from engine.fleet.policy.values import NONE, Release, Seen, Wish
from engine.fleet.ports import Member
from tests.engine.fleet.simulated_fleet import (
    BAD,
    BETTER,
    BROKEN,
    ENDLESS,
    FAULTY,
    GOOD,
    ILL,
    MODEL,
    SimulatedFleet,
    SimulatedServer,
    in_virtual_time,
)
from tests.support.examples import examples


def told(story):
    """Let a test be a story in virtual time, with a nursery that ends with it."""

    async def tell():
        async with trio.open_nursery() as nursery:
            await story(nursery)
            nursery.cancel_scope.cancel()

    def test():
        in_virtual_time(tell)

    test.__name__ = story.__name__
    return test


@told
async def test_a_good_change_goes_from_one_replica_to_the_next(nursery):
    fleet = SimulatedFleet(4, serving=GOOD)
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    fleet.wish = Wish(model=MODEL, release=BETTER)
    for number in range(4):
        await fleet.until(lambda number=number: len(fleet.on({BETTER})) == number + 1)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    assert fleet.decisions()[-5:] == [
        *(f"version 2 passed on r{number}" for number in range(4)),
        "version 2 good on 4 replicas",
    ]


@told
async def test_a_model_that_is_new_is_tried_on_one_replica_first(nursery):
    fleet = SimulatedFleet(3, wanted=BROKEN)
    await fleet.run(nursery)
    await fleet.until(lambda: any("refused" in line for line in fleet.decisions()))
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    assert sum(bool(server.changes) for server in fleet.servers.values()) == 1
    assert fleet.all_serve(NONE)
    assert not any(server.spoilt for server in fleet.servers.values())


@told
async def test_rules_count_from_when_the_file_has_them(nursery):
    fleet = SimulatedFleet(2, serving=GOOD)
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    fleet.rules = replace(fleet.rules, settle=60)
    fleet.wish = Wish(model=MODEL, release=BETTER)
    await fleet.until(lambda: fleet.on({BETTER}))
    await trio.sleep(50)
    assert len(fleet.on({BETTER})) == 1
    fleet.rules = replace(fleet.rules, settle=3)
    began = trio.current_time()
    await fleet.until(lambda: fleet.all_serve(BETTER))
    assert trio.current_time() - began <= 10


REASONS = {
    BROKEN: "no such file",
    ILL: "no answer",
    FAULTY: "answers were errors",
    ENDLESS: "not loaded after 20 s",
}


@told
async def test_what_fails_touches_one_replica_which_gets_back_what_it_had(nursery):
    for bad, reason in REASONS.items():
        fleet = SimulatedFleet(4, serving=GOOD)
        await fleet.run(nursery)
        await fleet.until(lambda fleet=fleet: fleet.controllers["one"].picture.settled)
        for server in fleet.servers.values():
            server.changes.clear()
        fleet.wish = Wish(model=MODEL, release=bad)
        await fleet.until(lambda fleet=fleet: any("refused" in line for line in fleet.decisions()))
        began = trio.current_time()
        await fleet.until(lambda fleet=fleet: fleet.controllers["one"].picture.settled)
        assert trio.current_time() - began <= 5
        assert reason in next(line for line in fleet.decisions() if "refused" in line)
        assert sum(bool(server.changes) for server in fleet.servers.values()) == 1
        assert fleet.all_serve(GOOD)
        fleet.kill()


@told
async def test_what_was_refused_is_not_tried_again_and_what_comes_next_is(nursery):
    fleet = SimulatedFleet(2, serving=GOOD, wanted=ILL)
    await fleet.run(nursery)
    await fleet.until(lambda: any("refused" in line for line in fleet.decisions()))
    await trio.sleep(50)
    assert fleet.decisions().count("roll version 4 out") == 1
    fleet.wish = Wish(model=MODEL, release=BETTER)
    await fleet.until(lambda: fleet.all_serve(BETTER) and fleet.controllers["one"].picture.settled)
    fleet.wish = Wish(model=MODEL, release=ILL)  # mended meanwhile, for all that is known
    await fleet.until(lambda: fleet.decisions().count("roll version 4 out") == 2)


@told
async def test_a_model_that_no_file_names_any_more_is_forgotten(nursery):
    fleet = SimulatedFleet(2, wanted=BROKEN)
    await fleet.run(nursery)
    await fleet.until(lambda: any(lane.refused for lane in fleet.controllers["one"].picture.lanes))
    fleet.wish = None
    await fleet.until(lambda: not fleet.controllers["one"].picture.lanes)


@told
async def test_a_replica_that_is_lost_with_a_new_release_ends_the_roll(nursery):
    fleet = SimulatedFleet(3, serving=GOOD)
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    fleet.wish = Wish(model=MODEL, release=BETTER)
    await fleet.until(lambda: fleet.on({BETTER}))
    fleet.named(fleet.on({BETTER})[0]).die()
    await fleet.until(lambda: any("went away" in line for line in fleet.decisions()))


@told
async def test_a_model_that_is_wanted_no_more_is_unloaded_everywhere(nursery):
    fleet = SimulatedFleet(3, serving=GOOD)
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    fleet.wish = None
    await fleet.until(lambda: fleet.all_serve(NONE))


@told
async def test_a_replica_that_starts_again_gets_its_models_at_once(nursery):
    fleet = SimulatedFleet(3, serving=GOOD)
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    server = fleet.named("r1")
    server.die()
    server.is_up = True
    began = trio.current_time()
    await fleet.until(lambda: fleet.all_serve(GOOD))
    assert trio.current_time() - began <= 4
    await fleet.until(lambda: server.register.document == fleet.named("r0").register.document)


@told
async def test_a_drained_replica_is_emptied_only_after_others_serve_its_models(nursery):
    fleet = SimulatedFleet(3, wanted=GOOD)
    fleet.wish = Wish(model=MODEL, release=GOOD, replicas=1)
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    (holder,) = fleet.on({GOOD})
    server, controller = fleet.named(holder), fleet.controllers["one"]
    server.waiting = 3
    controller.drain(holder)
    await fleet.until(lambda: server.withdrawn)
    assert len(fleet.on({GOOD})) == 2  # requests that still come are answered
    await trio.sleep(5)
    assert controller.picture.drained == {holder: False}
    server.waiting = 0
    await fleet.until(lambda: controller.picture.drained == {holder: True})
    controller.drain(holder, back=True)
    await fleet.until(lambda: not server.withdrawn)


@told
async def test_a_slip_in_labels_takes_a_model_from_no_replica(nursery):
    fleet = SimulatedFleet(3, serving=GOOD)
    await fleet.run(nursery)
    controller = fleet.controllers["one"]
    await fleet.until(lambda: controller.picture.settled)
    fleet.wish = Wish(model=MODEL, release=GOOD, labels={"gpu": "h100"})
    await fleet.until(lambda: is_stuck(controller.picture.lanes, controller.picture))
    await trio.sleep(10)
    (lane,) = controller.picture.lanes
    assert lane.waits == "no replica may serve it"
    assert lane.short == "none of 3 replicas has its labels gpu=h100; there are no labels at all"
    assert fleet.all_serve(GOOD)
    assert not controller.picture.settled
    fleet.wish = Wish(model=MODEL, release=BETTER, labels={"gpu": "h100"})
    await fleet.until(lambda: "roll version 2 out" in fleet.decisions())
    await trio.sleep(10)
    assert is_stuck(controller.picture.lanes, controller.picture)
    assert fleet.all_serve(GOOD)
    fleet.named("r1").member = replace(fleet.named("r1").member, labels={"gpu": "h100"})
    await fleet.until(lambda: controller.picture.settled)
    assert fleet.on({BETTER}) == ["r1"]


@told
async def test_a_drain_says_for_what_the_replica_serves_on(nursery):
    fleet = SimulatedFleet(2, serving=GOOD)
    one = fleet.named("r0")
    one.member = replace(one.member, labels={"gpu": "h100"})
    fleet.wish = Wish(model=MODEL, release=GOOD, labels={"gpu": "h100"})
    await fleet.run(nursery)
    controller = fleet.controllers["one"]
    await fleet.until(lambda: controller.picture.settled)
    controller.drain("r0")
    await fleet.until(lambda: controller.picture.drained == {"r0": False})
    await trio.sleep(10)
    seen = {name: look.seen for name, look in controller.picture.looks.items()}
    said = "resnet: no other replica may serve it: none of 1 replicas has its labels gpu=h100;"
    assert needed_for("r0", controller.picture.lanes, seen).startswith(said)
    assert is_stuck(controller.picture.lanes, controller.picture)
    assert not one.withdrawn
    two = fleet.named("r1")
    two.member = Member(name="r1", url="http://r1:8000", labels={"gpu": "h100"})
    await fleet.until(lambda: one.withdrawn)
    assert (
        needed_for("r0", controller.picture.lanes, seen | {"r1": None})
        == "resnet: r1 does not serve version 1 yet"
    )


def wish(**what):
    return Wish(model=MODEL, release=GOOD, **what)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (wish(), ""),
        (wish(replicas=2), ""),
        (wish(replicas=4), "there are 3 of the 4 replicas that it should have"),
        (wish(labels={"gpu": "h100"}), ""),
        (wish(labels={"gpu": "h100"}, replicas=3), "2 of 3 replicas have its labels gpu=h100"),
        (
            wish(labels={"gpu": "b200"}),
            "none of 3 replicas has its labels gpu=b200; there are gpu=h100, zone=a",
        ),
        (wish(memory=2**34), "1 of 3 replicas have room for its 16 GiB beside other models"),
    ],
)
def test_why_a_model_has_too_few_replicas(wish, said):
    gpu = {"gpu": "h100"}
    seen = {
        "r0": Seen(name="r0", labels={**gpu, "zone": "a"}, room=2**33),
        "r1": Seen(name="r1", labels=gpu, room=2**33),
        "r2": Seen(name="r2"),
    }
    assert why_fewer(wish, place([wish], seen)[MODEL], seen) == said
    assert why_fewer(wish, (), {}) == ""


@told
async def test_a_change_waits_while_half_of_the_replicas_are_gone(nursery):
    fleet = SimulatedFleet(4, serving=GOOD)
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    for name in ("r0", "r1"):
        fleet.named(name).is_up = False
    await trio.sleep(3)
    fleet.wish = Wish(model=MODEL, release=BETTER)
    await trio.sleep(60)
    assert not fleet.on({BETTER})
    assert "sees 2 of 4 replicas" in fleet.controllers["one"].picture.why


@told
async def test_of_two_controllers_one_works_and_the_other_goes_on_when_it_dies(nursery):
    fleet = SimulatedFleet(3, serving=GOOD)
    await fleet.run(nursery, "one")
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    await fleet.run(nursery, "two")
    await trio.sleep(30)
    assert fleet.controllers["one"].picture.standing is Standing.WORKS
    assert fleet.controllers["two"].picture.why == "controller one is at work"
    fleet.wish = Wish(model=MODEL, release=BETTER)
    await fleet.until(lambda: len(fleet.on({BETTER})) == 1)
    fleet.kill("one")
    began = trio.current_time()
    await fleet.until(lambda: fleet.all_serve(BETTER))
    assert fleet.controllers["two"].picture.standing is Standing.WORKS
    assert trio.current_time() - began < 10 + 3 * (3 + 2 + 3)
    assert fleet.decisions().count("roll version 2 out") == 1


@told
async def test_an_older_controller_that_was_cut_off_changes_nothing_when_it_is_back(nursery):
    fleet = SimulatedFleet(4, serving=GOOD)
    await fleet.run(nursery, "one")
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    fleet.cut |= {("one", name) for name in fleet.servers}
    await fleet.run(nursery, "two")
    await fleet.until(lambda: fleet.controllers["two"].picture.standing is Standing.WORKS)
    epoch = fleet.controllers["two"].picture.epoch
    fleet.wish = Wish(model=MODEL, release=BETTER)
    fleet.cut.clear()
    await fleet.until(lambda: fleet.all_serve(BETTER))
    assert fleet.controllers["one"].picture.standing is Standing.STANDS_BY
    changes = [change for server in fleet.servers.values() for change in server.changes]
    assert changes
    assert all(of == epoch for _, of, _ in changes)


names = st.sampled_from(["one", "two"])
events = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.one_of(
            st.tuples(st.just("kill"), names),
            st.tuples(st.just("down"), st.integers(0, 3), st.integers(1, 8)),
            st.tuples(st.just("cut"), names, st.integers(0, 3)),
            st.tuples(st.just("heal")),
            st.tuples(st.just("hide"), st.integers(0, 3)),
            st.tuples(st.just("wish"), st.sampled_from([GOOD, BETTER, BROKEN, ILL, FAULTY])),
        ),
    ),
    max_size=10,
)


@settings(max_examples=examples(1500), deadline=None)
@given(count=st.integers(1, 4), events=events)
def test_whatever_dies_bad_releases_touch_one_replica_at_a_time_and_the_fleet_settles(count, events):
    in_virtual_time(_survive, count, events)


async def _survive(count, events):
    fleet = SimulatedFleet(count, serving=GOOD)

    async def watch():
        """Bad releases are on one replica at most, and epochs of changes never fall while a server lives."""
        while True:
            await trio.sleep(0.1)
            assert len(fleet.on(BAD)) <= 1, fleet.decisions()
            for server in fleet.servers.values():
                epochs = [(boot, epoch) for boot, epoch, _ in server.changes]
                assert epochs == sorted(epochs)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for name in ("one", "two"):
            await fleet.run(nursery, name)
        for seconds, event in events:
            await trio.sleep(seconds)
            await _befall(fleet, event, nursery)
        fleet.cut.clear()
        fleet.hidden.clear()
        for server in fleet.servers.values():
            server.is_up = True
        await fleet.until(lambda: _settled(fleet), 1000)
        nursery.cancel_scope.cancel()


def _settled(fleet):
    """A controller says that all is as it should be, and so it is."""
    for controller in fleet.controllers.values():
        for lane in controller.picture.lanes if controller.picture.settled else ():
            good = lane.good not in BAD and lane.good == (
                lane.good if fleet.wish.release in lane.refused else fleet.wish.release
            )
            if good and fleet.all_serve(lane.good):
                return True
    return False


async def _befall(fleet, event, nursery):
    match event:
        case ("kill", name):
            fleet.kill(name)
            await fleet.run(nursery, name)
        case ("down", number, away):
            server = fleet.named(f"r{number % len(fleet.servers)}")
            server.die()
            nursery.start_soon(_come_back, server, server.boot, away)
        case ("cut", name, number):
            fleet.cut.add((name, f"r{number % len(fleet.servers)}"))
        case ("heal",):
            fleet.cut.clear()
            fleet.hidden.clear()
        case ("hide", number):
            fleet.hidden = {f"r{number % len(fleet.servers)}"}
        case ("wish", release):
            fleet.wish = Wish(model=MODEL, release=release)


async def _come_back(server, boot, seconds):
    await trio.sleep(seconds)
    if server.boot == boot:
        server.is_up = True


def test_a_release_says_what_it_is():
    assert [str(each) for each in (NONE, GOOD, Release((1, 2), "{}"))] == [
        "no version",
        "version 1",
        "versions 1, 2 with a configuration of its own",
    ]


@told
async def test_a_server_that_is_met_under_two_names_counts_once(nursery):
    fleet = SimulatedFleet(2, serving=GOOD)
    twin = Member(name="twin", url="http://elsewhere:8000")
    fleet.servers["twin"] = SimulatedServer("r0", twin, models={MODEL: GOOD})
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.troubles)
    picture = fleet.controllers["one"].picture
    assert picture.troubles == {"twin": "it is the same server as r0; list it once"}
    assert [*picture.looks] == ["r0", "r1"]
    assert not picture.settled


@told
async def test_a_fleet_is_settled_once_its_replicas_are_told_that_they_have_their_models(nursery):
    fleet = SimulatedFleet(2)
    for server in fleet.servers.values():
        server.withdrawn = True
    await fleet.run(nursery)
    await fleet.until(lambda: fleet.controllers["one"].picture.settled)
    assert not any(server.withdrawn for server in fleet.servers.values())
