"""Hashes of beginnings, and what is known of an engine's cache."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.generation.policy import prefixes
from actors.generation.policy.prefixes import KnownPrefixes, chained, leading, seed_of
from tests.support.examples import examples

texts = st.lists(st.integers(0, 1), max_size=24).map(lambda ids: array("i", ids))


@given(first=texts, second=texts, size=st.integers(1, 5))
def test_equal_hashes_mean_equal_beginnings(first, second, size):
    one, two = (chained(ids, size, seed_of("", "")) for ids in (first, second))
    assert len(one) == len(first) // size
    for count in range(1, min(len(one), len(two)) + 1):
        assert (one[count - 1] == two[count - 1]) == (first[: count * size] == second[: count * size])


def test_another_adapter_or_salt_shares_nothing():
    ids = array("i", range(8))
    seeds = [seed_of(*each) for each in (("", ""), ("a", ""), ("", "a"), ("b", ""))]
    assert len({chained(ids, 4, seed)[0] for seed in seeds}) == 4


def test_a_text_without_blocks_has_no_hashes():
    ids = array("i", range(8))
    assert chained(ids, 0, 1) == chained(ids, 9, 1) == []
    assert len(chained(ids, 2, 1, most=3)) == 3


@given(ids=texts, more=texts, size=st.integers(1, 5))
def test_a_text_is_hashed_on_from_where_it_was(ids, more, size):
    whole = chained(ids + more, size, 1)
    own = chained(ids, size, 1)
    rest = (ids + more)[len(own) * size :]
    assert whole == own + chained(rest, size, own[-1] if own else 1)


class Caches(RuleBasedStateMachine):
    """Texts come to an engine whose cache has room for a few blocks, and are forgotten in their order."""

    def __init__(self):
        super().__init__()
        self.known = KnownPrefixes(6)
        self.number = 0
        self.noted: list[tuple[list[int], int, int]] = []  # hashes, how many were known, and its number

    @rule(ids=texts)
    def notes(self, ids):
        self.number += 1
        hashes = chained(ids, 2, 1)
        self.noted.append((hashes, self.known.matched(hashes), self.number))
        self.known.note(hashes, self.number)

    @rule(which=st.integers(0, 9))
    def drops(self, which):
        if self.noted:
            hashes, matched, number = self.noted[-1 - which % len(self.noted)]
            self.known.drop(hashes[matched:], number)

    @rule(which=st.integers(0, 9))
    def outdates(self, which):
        self.known.outdate(self.number - which)

    @invariant()
    def it_is_bounded_and_no_block_is_known_without_those_in_front(self):
        assert len(self.known) <= 6
        for hashes, _, _ in self.noted:
            known = [self.known.matched(hashes[: count + 1]) == count + 1 for count in range(len(hashes))]
            assert known == sorted(known, reverse=True)
            assert self.known.matched(hashes) == sum(known)


TestCaches = Caches.TestCase
TestCaches.settings = settings(max_examples=examples(100), deadline=None)


@given(count=st.integers(0, 40), known=st.integers(0, 40))
def test_the_known_ones_are_counted_from_the_front(count, known):
    assert leading(range(count), set(range(known))) == min(count, known)


def test_what_was_used_least_recently_is_forgotten_first():
    known = KnownPrefixes(4)
    old, new = chained(array("i", range(3)), 1, 1), chained(array("i", range(7, 10)), 1, 1)
    known.note(old, 1)
    known.note(new, 2)
    assert (known.matched(old), known.matched(new)) == (1, 3)
    assert known.used_in(old[0]) == 1
    known.outdate(1)
    assert (known.matched(old), len(known)) == (0, 3)


def test_where_an_engine_does_not_say_how_large_it_is_some_blocks_are_known(monkeypatch):
    monkeypatch.setattr(prefixes, "MOST_KNOWN", 3)
    for blocks in (0, 5):
        known = KnownPrefixes(blocks)
        known.note(range(9), 1)
        assert len(known) == 3
