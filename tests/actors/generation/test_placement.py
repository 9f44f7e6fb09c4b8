"""Which engine a prompt goes to, and when it waits."""

import math
from array import array
from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.generation.policy import placement as policy
from actors.generation.policy.placement import (
    BOUND,
    FEW,
    MOST_PASSED,
    Account,
    EngineSize,
    LivingEngine,
    Placement,
    Route,
    Seat,
)
from actors.generation.policy.prefixes import chained, leading
from tests.support.examples import examples

BLOCK = 4


class Said:
    """What is generated."""

    def __init__(self, steps=0):
        self.steps = steps


def facts(blocks=0, step_tokens=0, size=BLOCK, shared=True):
    return {
        "cache": {"block_size": size, "blocks": blocks, "shared": shared},
        "step_tokens": step_tokens,
    }


def placing(engines="a", *, queued=0, **told):
    placement = Placement(queued)
    placement.living({each: LivingEngine(each, facts(**told)) for each in engines})
    return placement


def seat(ids, *, most=16, said=None, **options):
    ids = array("i", ids)
    return Seat(said or Said(), prompt=len(ids), most=most, hashes=chained(ids, BLOCK, 1), **options)


def place(placement, wanted):
    """Place a seat, if that is possible; return the engine's key and the reason."""
    chosen = placement.next([wanted])
    if chosen is None:
        return None
    placement.take(wanted, chosen.account)
    return chosen.account.key, chosen.route


def test_an_engine_says_how_large_it_is_or_not():
    assert EngineSize.of(facts(9, 512)) == EngineSize(4, 9, 512)
    assert EngineSize.of({"cache": {"block_size": None, "blocks": -1, "shared": False}}) == EngineSize(
        shares=False
    )
    assert EngineSize.of({}) == EngineSize()


@pytest.mark.parametrize(
    ("queued", "told", "bound"),
    [(7, {"step_tokens": 512}, 7), (0, {"step_tokens": 512}, 2048), (0, {}, 8192)],
)
def test_the_bound_on_queued_tokens_follows_from_the_steps(queued, told, bound):
    assert placing(queued=queued, **told).accounts["a"].most_queued == bound


def test_queued_tokens_are_bounded_and_a_long_prompt_comes_alone():
    placement = placing(queued=10)
    long, short = seat(range(40)), seat(range(100, 102))
    assert place(placement, long) == ("a", Route.ONLY)
    assert place(placement, short) is None
    placement.began(long, 0)
    placement.began(long, 0)  # said twice
    assert placement.accounts["a"].queued == 0
    assert place(placement, short) == ("a", Route.ONLY)
    placement.ended(short)
    placement.ended(short)
    assert placement.accounts["a"].queued == 0


def test_room_is_for_the_prompt_and_for_what_answers_usually_say():
    placement = placing(blocks=10)
    placement.usual = 8.0
    first, second = (seat(range(at, at + 8), most=100) for at in (0, 50))
    assert place(placement, first)
    assert placement.accounts["a"].held == 2
    assert place(placement, second)  # two blocks of a prompt and two of what is usual, each
    third = seat(range(90, 94), most=100)
    assert place(placement, third) is None
    assert place(placement, seat(range(90, 94), most=4)) is not None  # it may not say more
    first.said.steps = 20  # more than is usual: one block more than it has
    assert placement.accounts["a"].claimed(8.0) == 8 + 4 + 2
    assert place(placement, seat(range(95, 99), most=0)) is None


def test_an_engine_that_does_not_say_how_large_its_blocks_are_has_none():
    placement = placing(blocks=10, size=0)
    assert place(placement, seat(range(3)))
    account = placement.accounts["a"]
    assert (account.claimed(8.0), account.held) == (0, 0)


def test_one_decision_counts_claims_once():
    placement = placing(blocks=4)
    placement.usual = 8.0
    assert place(placement, seat(range(8), most=100))
    full = [seat(range(90 + 9 * at, 98 + 9 * at), most=100) for at in range(2)]
    assert placement.next(full) is None


def test_what_runs_share_counts_once():
    placement = placing(blocks=12)
    placement.usual = 4.0
    for _ in range(3):
        assert place(placement, seat(range(32), most=4))
    account = placement.accounts["a"]
    assert (account.held, account.claimed(4.0)) == (8, 11)
    assert place(placement, seat(range(50, 82), most=4)) is None
    assert place(placement, seat(range(32), most=4))
    assert place(placement, seat(range(32), most=4)) is None
    first, *_ = account.seats
    placement.ended(first, first.hashes)
    assert (account.held, account.claimed(4.0)) == (8, 11)
    placement.began(first, 0)  # too late to say anything
    assert account.queued == 3


def test_a_run_that_will_never_fit_comes_to_an_empty_engine():
    placement = placing(blocks=2)
    large = seat(range(400))
    assert place(placement, large)
    assert place(placement, seat(range(4))) is None
    placement.ended(large, large.hashes)
    assert place(placement, seat(range(4)))


def test_embeddings_hold_no_part_of_the_cache():
    placement = placing(blocks=2)
    assert place(placement, seat(range(4), most=0))
    text = Seat(Said(), prompt=50, most=-1)
    assert place(placement, text)
    account = placement.accounts["a"]
    assert (account.held, account.claimed(placement.usual), account.queued) == (1, 1, 54)
    usual = placement.usual
    placement.ended(text, [])
    assert (placement.usual, account.queued) == (usual, 4)


def test_the_shortest_goes_first_and_none_is_passed_for_ever():
    placement = placing(queued=30)
    running = seat(range(500, 510))
    assert place(placement, running)
    long = seat(range(100))
    line = [long]
    for at in range(MOST_PASSED):
        short = seat([at] * 3)
        line = [long, seat(range(200, 260)), short]
        chosen = placement.next(line)
        assert chosen is not None
        assert line[chosen.place] is short
        placement.take(short, chosen.account)
        placement.began(short, 0)
    assert placement.next(line) is None
    placement.began(running, 0)
    chosen = placement.next(line)
    assert chosen is not None
    assert chosen.place == 0


def test_what_is_cached_makes_a_prompt_short():
    placement = placing()
    known = seat(range(40))
    place(placement, known)
    placement.began(known, 0)
    chosen = placement.next([seat(range(90, 100)), seat(range(41))])
    assert chosen is not None
    assert chosen.place == 1


def test_resumed_runs_go_in_their_order():
    placement = placing()
    chosen = placement.next([seat(range(40), resumed=True), seat(range(2))])
    assert chosen is not None
    assert chosen.place == 0


def test_what_has_begun_goes_on_where_the_same_files_are_loaded():
    placement = placing("")
    engines: dict[Hashable, LivingEngine] = {each: LivingEngine(each, {"identity": each}) for each in "abc"}
    placement.living(engines)
    assert [place(placement, seat(range(4), identity="b")) for _ in range(9)] == [("b", Route.ONLY)] * 9
    assert place(placement, seat(range(4), identity="gone")) is not None


def test_nothing_goes_anywhere_while_no_engine_lives():
    placement = placing("")
    assert placement.next([seat(range(4))]) is None
    assert placement.next([]) is None


def test_a_prompt_goes_where_its_beginning_is():
    placement = placing("ab")
    first, second = seat(range(40)), seat(range(100, 140))
    engines = [place(placement, each) for each in (first, second)]
    assert {engine for engine, _ in engines} == {"a", "b"}
    for each, (engine, route) in zip((first, second), engines, strict=True):
        assert route is Route.LOAD
        placement.began(each, 0)
        placement.ended(each, each.hashes)
        again = seat(range(40) if each is first else range(100, 140))
        assert place(placement, again) == (engine, Route.PREFIX)
        placement.began(again, 36)
        placement.ended(again, again.hashes)


def test_an_answer_is_known_too():
    placement = placing("ab")
    first = seat(range(8), said=Said(8))
    engine, _ = place(placement, first)
    placement.began(first, 0)
    placement.ended(first, chained(array("i", range(16)), BLOCK, 1))
    assert placement.usual == pytest.approx(128 - 120 / 32)
    again = seat(range(20))
    assert place(placement, again) == (engine, Route.PREFIX)
    assert again.left == 4


def test_what_was_broken_off_is_not_known():
    placement = placing("ab")
    first = seat(range(40))
    engine, _ = place(placement, first)
    placement.ended(first)
    assert len(placement.accounts[engine].known) == 0


def test_an_engine_that_had_less_has_forgotten_what_is_as_old():
    placement = placing("a", blocks=100)
    texts = [range(at, at + 16) for at in (0, 100, 200)]
    for each in texts:
        first = seat(each)
        place(placement, first)
        placement.began(first, 0)
        placement.ended(first, first.hashes)
    known = placement.accounts["a"].known
    again = seat(texts[1])
    place(placement, again)
    placement.began(again, 12)  # of the last block, one id is computed whatever is known
    assert known.matched(seat(texts[0]).hashes) == 4
    placement.ended(again, again.hashes)
    again = seat(texts[2])
    place(placement, again)
    placement.began(again, 0)
    assert [known.matched(seat(each).hashes) for each in texts] == [0, 4, 4]


def test_what_is_being_computed_says_nothing_of_what_was_forgotten():
    placement = placing("a")
    first, second = seat(range(16)), seat(range(16))
    place(placement, first)
    place(placement, second)  # the engine has not computed the first one by then
    placement.began(second, 0)
    assert placement.accounts["a"].known.matched(first.hashes) == 4


def test_no_engine_has_more_than_its_part_while_another_has_room():
    placement = placing("ab")
    placed = []
    for at in range(FEW + 1):
        one = seat([*range(400), at])
        placed.append(place(placement, one))
        placement.began(one, 0)
    assert [key for key, _ in placed] == ["a"] * FEW + ["b"]
    assert placed[-1] == ("b", Route.LOAD)
    for at in range(100):
        one = seat([*range(300), at])
        place(placement, one)
        placement.began(one, 0)
        runs = [len(each.seats) for each in placement.accounts.values()]
        assert max(runs) <= max(FEW, math.ceil(BOUND * sum(runs) / 2))


def test_an_engine_with_room_takes_more_than_its_part_where_others_have_none():
    placement = placing("ab", blocks=8)
    placement.usual = 1.0
    for at in (0, 50):
        place(placement, seat(range(at, at + 28), most=1))
    small = [seat([at], most=0) for at in range(200, 204)]
    full = seat(range(300, 304), most=1)
    assert [place(placement, each) is not None for each in small] == [False] * 4
    assert place(placement, full) is None
    placement.ended(next(iter(placement.accounts["a"].seats)))
    assert [place(placement, each) for each in small] == [("a", Route.LOAD)] * 4


def test_blocks_that_would_be_forgotten_count():
    placement = placing("ab", blocks=8)
    for at in (0, 100):
        done = seat(range(at, at + 16), most=0)
        place(placement, done)
        placement.began(done, 0)
        placement.ended(done, done.hashes)
    a, b = placement.accounts["a"], placement.accounts["b"]
    assert (len(a.known), len(b.known)) == (4, 4)
    a.known.note(range(4), 99)
    assert (a.displaced(12), b.displaced(12)) == (12, 0)
    assert place(placement, seat(range(200, 232), most=0)) == ("b", Route.LOAD)


def test_a_session_decides_among_equals():
    placement = placing("xyz")
    for name in "abcdef":
        first, second = (seat(range(at, at + 4), affinity=name) for at in (0, 50))
        engine, _ = place(placement, first)
        placement.began(first, 0)
        assert place(placement, second) == (engine, Route.SESSION)
        placement.began(second, 0)
        for each in (first, second):
            placement.ended(each, [])
    placement = placing("xy")
    known = seat(range(400))
    engine, _ = place(placement, known)
    placement.began(known, 0)
    placement.ended(known, known.hashes)
    other = next(each for each in "xy" if each != engine)
    placement.take(seat(range(4), affinity="s"), placement.accounts[other])
    assert placement.choose(seat(range(404), affinity="s")) == (placement.accounts[engine], Route.PREFIX)


def test_the_sessions_that_are_known_are_bounded(monkeypatch):
    monkeypatch.setattr(policy, "MOST_SESSIONS", 2)
    placement = placing("ab")
    for name in ("s", "t", "u"):
        place(placement, seat([], affinity=name))
    assert [place(placement, seat([], affinity=each))[1] for each in ("u", "t", "s")] == [
        Route.SESSION, Route.SESSION, Route.LOAD,
    ]  # fmt: skip


def test_what_died_unheard_goes_anywhere():
    placement = placing("ab", queued=1)
    held = [seat(range(at, at + 9)) for at in (0, 50)]
    for each in held:
        place(placement, each)
    account: Account = held[0].account
    assert placement.living({"c": LivingEngine("c", {}), account.key: LivingEngine("", {})})
    assert not placement.living({"c": LivingEngine("c", {}), account.key: LivingEngine("", {})})
    assert account in placement.accounts.values()
    assert place(placement, seat(range(9)))[0] == "c"
    assert place(placement, seat(range(9))) is None
    assert placement.choose(seat(range(9)), anywhere=True) is not None
    placement.living({})
    for each in held:
        placement.ended(each)
    assert (account.queued, account.seats, account.held) == (0, {}, 0)


class Placing(RuleBasedStateMachine):
    """Runs and engines come and go in any order."""

    blocks = st.sampled_from([0, 3, 8, 40])
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40)

    def __init__(self):
        super().__init__()
        self.placement = Placement(24)
        self.engines: dict[Hashable, LivingEngine] = {}
        self.made = 0
        self.line: list[Seat] = []
        self.seated: list[Seat] = []
        self.gone: list[Account] = []

    @rule(blocks=blocks)
    def joins(self, blocks):
        self.made += 1
        self.engines[self.made] = LivingEngine(str(self.made), facts(blocks))
        self.placement.living(self.engines)

    @precondition(lambda self: self.engines)
    @rule(which=st.integers(0, 9))
    def dies(self, which):
        key = list(self.engines)[which % len(self.engines)]
        del self.engines[key]
        self.gone.append(self.placement.accounts[key])
        self.placement.living(self.engines)

    @rule(prompt=prompts, most=st.integers(-1, 30), session=st.sampled_from(["", "s"]))
    def comes(self, prompt, most, session):
        ids = array("i", prompt)
        hashes = [] if most < 0 else chained(ids, BLOCK, 1)
        self.line.append(Seat(Said(), prompt=len(ids), most=most, hashes=hashes, affinity=session))

    @rule()
    def turns(self):
        while (chosen := self.placement.next(self.line)) is not None:
            wanted = self.line.pop(chosen.place)
            self._may_go(wanted, chosen.account)
            self.placement.take(wanted, chosen.account)
            self.seated.append(wanted)
        assert not self.line or not self._empty()  # an engine without anything takes any run

    def _empty(self):
        return [each for each in self.placement.accounts.values() if not each.seats]

    def _may_go(self, wanted, account):
        left, usual = account.left_of(wanted), self.placement.usual
        assert not account.queued or account.queued + left <= 24
        assert account.fits(wanted, usual)
        if account.seats and account.size.blocks:
            shared = leading(wanted.hashes, {each for own in account.seats for each in own.hashes})
            assert account.held + len(wanted.hashes) - shared <= account.size.blocks or wanted.most < 0
        accounts = self.placement.accounts.values()
        runs = sum(len(each.seats) for each in accounts)
        if len(account.seats) >= max(FEW, math.ceil(BOUND * (runs + 1) / len(accounts))):
            assert not [
                each
                for each in accounts
                if len(each.seats) < max(FEW, math.ceil(BOUND * (runs + 1) / len(accounts)))
                and each.admits(each.left_of(wanted))
                and each.fits(wanted, usual)
            ]

    @precondition(lambda self: self.seated)
    @rule(which=st.integers(0, 30), cached=st.integers(0, 40), steps=st.integers(1, 9))
    def says(self, which, cached, steps):
        each = self.seated[which % len(self.seated)]
        self.placement.began(each, cached)
        each.said.steps = min(max(0, each.most), each.said.steps + steps)

    @precondition(lambda self: self.seated)
    @rule(which=st.integers(0, 30), whole=st.booleans())
    def ends(self, which, whole):
        each = self.seated.pop(which % len(self.seated))
        self.placement.ended(each, each.hashes if whole else None)

    @invariant()
    def accounts_are_what_their_runs_make_them(self):
        for each in (*self.placement.accounts.values(), *self.gone):
            own = [seated for seated in self.seated if seated.account is each]
            assert list(each.seats) == sorted(own, key=lambda seated: seated.number)
            assert each.queued == sum(seated.left for seated in own if not seated.begun)
            shared = {block for seated in own for block in seated.hashes}
            assert each.held == len(shared) + sum(
                -(-(seated.prompt + seated.said.steps) // BLOCK) - len(seated.hashes)
                for seated in own
                if seated.most >= 0
            )
            assert each.held <= each.claimed(self.placement.usual)
            assert len(each.known) <= each.known.most

    @invariant()
    def none_is_passed_too_often(self):
        assert all(each.passed <= MOST_PASSED for each in self.line)

    def teardown(self):
        for seated in self.seated:
            self.placement.ended(seated)
        for each in (*self.placement.accounts.values(), *self.gone):
            assert (each.queued, each.held, each.claimed(1.0), each.seats) == (0, 0, 0, {})


TestPlacing = Placing.TestCase
TestPlacing.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


def test_whether_there_is_room_is_told_without_taking_it():
    placement = placing(blocks=4)
    (account,) = placement.accounts.values()
    seats = [seat(range(8), most=8) for _ in range(2)]
    assert placement.has_room(seats[0])
    assert placement.has_room(seats[0])
    placement.take(seats[0], account)
    assert not placement.has_room(seats[1])
    placement.ended(seats[0])
    assert placement.has_room(seats[1])
