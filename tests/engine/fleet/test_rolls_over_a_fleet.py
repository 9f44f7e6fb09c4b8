"""How changes go over a simulated fleet, whose replicas and controllers die at any step."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fleet.policy.rolling import Roll
from engine.fleet.policy.values import NONE, Ledger, Load, Rules, Seen, Served, Unload, Wait, Wish, Write
from tests.support.examples import examples

RULES = Rules(settle=3, min_requests=4, max_error_rate=0.2, load_timeout=20, return_timeout=15)
MODEL = "resnet"
GOOD, BETTER, BROKEN, ILL, FAULTY, ENDLESS = (1,), (2,), (3,), (4,), (5,), (6,)
BAD = {BROKEN, ILL, FAULTY, ENDLESS}
LOADING = 2


@dataclass
class Replica:
    """A server: what it serves, loads for some time, and keeps when it dies."""

    name: str
    ready: tuple = NONE
    boot: int = 0
    down: int = 0
    loading: tuple = NONE
    left: int = 0
    answers: int = 0
    errors: int = 0
    ever: set = field(default_factory=set)

    def live(self):
        """One second."""
        if self.down:
            self.down -= 1
            return
        if self.loading and self.loading != ENDLESS:
            self.left -= 1
            if not self.left:
                if self.loading != BROKEN:
                    self.become(self.loading)
                self.loading = NONE
        if self.ready:
            self.answers += 2
            self.errors += self.ready == FAULTY

    def become(self, versions):
        self.ready, self.answers, self.errors = versions, 0, 0
        self.ever.add(versions)

    def die(self, seconds):
        """It comes back without any model, as a server in explicit mode does."""
        self.down, self.boot = seconds, self.boot + 1
        self.ready = self.loading = NONE


class Controller:
    """A controller: all that it knows dies with it."""

    def __init__(self):
        self.roll = Roll(MODEL, RULES)
        self.failed = {}

    def turn(self, fleet):
        there = [each for each in fleet.replicas if not each.down]
        seen = {each.name: self.see(each) for each in there}
        step = self.roll.step(fleet.wish, fleet.ledger, sorted(seen), seen, fleet.now)
        fleet.carry_out(step, self)
        return step

    def see(self, replica):
        return Seen(
            name=replica.name,
            boot=str(replica.boot),
            models={
                MODEL: Served(
                    ready=replica.ready,
                    busy=bool(replica.loading),
                    failed=self.failed.get(replica.name, ""),
                    ill="no answer" if replica.ready == ILL else "",
                    answers=replica.answers,
                    errors=replica.errors,
                )
            },
        )


class Fleet:
    """Replicas, what is wanted of them, and the ledger that outlives controllers."""

    def __init__(self, count, *, serving=NONE, wanted=GOOD):
        self.replicas = [Replica(f"r{number}", ready=serving) for number in range(count)]
        self.ledger = Ledger(good=serving)
        self.wish = Wish(model=MODEL, versions=wanted)
        self.controller = Controller()
        self.now = 0.0
        self.said = []

    def carry_out(self, step, controller):
        match step:
            case Write():
                self.ledger = step.ledger
                self.said.append(step.why)
            case Load():
                replica = self.named(step.replica)
                assert not replica.down
                controller.failed.pop(step.replica, None)
                replica.loading, replica.left = step.versions, LOADING
            case Unload():
                self.named(step.replica).ready = NONE
            case Wait():
                pass

    def named(self, name):
        return next(each for each in self.replicas if each.name == name)

    def second(self):
        """One second of the fleet's life, with as many steps as a controller takes without waiting."""
        before = {each.name: each.loading for each in self.replicas}
        for each in self.replicas:
            each.live()
            if before[each.name] == BROKEN and not each.loading and not each.down:
                self.controller.failed[each.name] = "no such file"
        self.now += 1
        for _ in range(20):
            if isinstance(self.controller.turn(self), Wait):
                return
        raise AssertionError("a controller that never waits")

    def until_settled(self, seconds=500):
        for _ in range(seconds):
            self.second()
            if self.settled():
                return
        raise AssertionError(f"not settled: {self.ledger}, {self.replicas}, {self.said}")

    def settled(self):
        wanted = self.wish.versions
        wanted = self.ledger.good if wanted in self.ledger.refused else wanted
        return all(each.ready == wanted and not each.down for each in self.replicas) and (
            self.ledger.good == wanted
        )

    def under_trial(self):
        """Replicas that serve what has not passed there."""
        good = {self.ledger.good, NONE}
        return [
            each.name
            for each in self.replicas
            if each.ready not in good and each.name not in self.ledger.passed
        ]


def test_a_good_change_goes_from_one_replica_to_the_next():
    fleet = Fleet(4, serving=GOOD, wanted=BETTER)
    while not fleet.settled():
        fleet.second()
        assert len(fleet.under_trial()) <= 1
    assert [line for line in fleet.said if "passed" in line] == [
        f"versions 2 passed on r{number}" for number in range(4)
    ]
    assert fleet.said[-1] == "versions 2 are good on 4 replicas"


def test_a_model_that_is_new_is_tried_on_one_replica_first():
    fleet = Fleet(3, wanted=BROKEN)
    fleet.until_settled()
    assert fleet.ledger.good == NONE
    assert all(not each.ever for each in fleet.replicas)


def test_what_fails_touches_one_replica_which_gets_back_what_it_had():
    reasons = {
        BROKEN: "no such file",
        ILL: "no answer",
        FAULTY: "of 4 answers were errors",
        ENDLESS: "not loaded after 20 s",
    }
    for bad, reason in reasons.items():
        fleet = Fleet(4, serving=GOOD, wanted=bad)
        if bad == ENDLESS:
            # A server that loads for ever takes the next load all the same.
            fleet.until_settled(60)
        fleet.until_settled()
        assert reason in fleet.ledger.refused[bad]
        assert sum(bad in each.ever for each in fleet.replicas) <= 1
        assert all(each.ready == GOOD for each in fleet.replicas)


def test_what_was_refused_is_not_tried_again_and_what_comes_next_is():
    fleet = Fleet(2, serving=GOOD, wanted=ILL)
    fleet.until_settled()
    for _ in range(50):
        fleet.second()
    assert fleet.said.count("roll versions 4 out") == 1
    fleet.wish = Wish(model=MODEL, versions=BETTER)
    fleet.until_settled()
    assert fleet.ledger.good == BETTER


def test_a_replica_that_is_lost_with_new_versions_ends_the_roll():
    fleet = Fleet(3, serving=GOOD, wanted=BETTER)
    while not fleet.controller.roll.trying:
        fleet.second()
    fleet.named(fleet.controller.roll.trying).down = 10_000
    for _ in range(40):
        fleet.second()
    assert "went away" in fleet.ledger.refused[BETTER]


def test_a_model_that_is_wanted_no_more_is_unloaded_everywhere():
    fleet = Fleet(3, serving=GOOD)
    fleet.wish = None
    for _ in range(5):
        fleet.second()
    assert all(each.ready == NONE for each in fleet.replicas)


events = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.one_of(
            st.just(("controller",)),
            st.tuples(st.just("replica"), st.integers(0, 3), st.integers(1, 8)),
            st.tuples(st.just("wish"), st.sampled_from([GOOD, BETTER, BROKEN, ILL, FAULTY])),
        ),
    ),
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(count=st.integers(1, 4), events=events)
def test_whatever_dies_bad_versions_touch_one_replica_at_a_time_and_the_fleet_settles(count, events):
    fleet = Fleet(count, serving=GOOD, wanted=GOOD)
    for seconds, event in events:
        for _ in range(seconds):
            fleet.second()
            on_bad = [each.name for each in fleet.replicas if each.ready in BAD]
            assert len(on_bad) <= 1
            assert len(fleet.under_trial()) <= 1
            assert fleet.ledger.good not in BAD
        match event:
            case ("controller",):
                fleet.controller = Controller()
            case ("replica", number, away):
                fleet.replicas[number % count].die(away)
            case ("wish", versions):
                fleet.wish = Wish(model=MODEL, versions=versions)
    fleet.until_settled()
    assert fleet.ledger.good not in BAD
