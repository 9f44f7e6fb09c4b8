"""Conversations over several engines, with the policies alone: what is computed, and who has what."""

import random
from array import array
from collections import OrderedDict
from collections.abc import Hashable

import pytest

from actors.generation.policy.placement import LivingEngine, Placement, Seat
from actors.generation.policy.prefixes import chained

BLOCK = 32


class Said:
    """Nothing is told of it before it ends."""

    steps = 0


class Cache:
    """The cache of one engine: it forgets what was used least recently, of a text the last blocks first."""

    def __init__(self, blocks):
        self.blocks = blocks
        self.has = OrderedDict()

    def found(self, hashes):
        return next((at for at, block in enumerate(hashes) if block not in self.has), len(hashes))

    def keeps(self, hashes):
        for block in reversed(hashes):
            self.has[block] = None
            self.has.move_to_end(block)
        while len(self.has) > self.blocks:
            self.has.popitem(last=False)


class Chats:
    """Sessions take their turns in rounds, some of them at a time."""

    def __init__(self, engines, blocks, *, sessions, turns, seed, at_once=4, system=96, user=96, answer=32):
        self.chance = random.Random(seed)
        self.caches = {name: Cache(blocks) for name in range(engines)}
        facts = {"cache": {"block_size": BLOCK, "blocks": blocks}, "step_tokens": 512}
        living: dict[Hashable, LivingEngine] = {name: LivingEngine(str(name), facts) for name in self.caches}
        self.placement = Placement()
        self.placement.living(living)
        self.at_once = at_once
        self.turns = turns
        self.user, self.answer = user, answer
        systems = [self._ids(system) for _ in range(4)]
        self.texts = [systems[at % 4][:] for at in range(sessions)]
        self.prompts = self.saved = self.most_runs = 0

    def _ids(self, count):
        return array("i", [self.chance.randrange(30_000) for _ in range(count)])

    def run(self, choose, *, affinity=False):
        """Have all turns, with engines that `choose` names; return the tokens that caches have saved."""
        for _ in range(self.turns):
            under_way: list[tuple[int, Seat]] = []
            for at in self.chance.sample(range(len(self.texts)), len(self.texts)):
                if len(under_way) == self.at_once:
                    self._ends(*under_way.pop(self.chance.randrange(self.at_once)))
                under_way.append((at, self._begins(at, choose, affinity)))
            for each in under_way:
                self._ends(*each)
        return self.saved

    def _begins(self, at, choose, affinity):
        text = self.texts[at]
        text.extend(self._ids(self.user))
        hashes = chained(text, BLOCK, 1)
        seat = Seat(
            Said(), prompt=len(text), most=self.answer, hashes=hashes, affinity=str(at) if affinity else ""
        )
        account = choose(self, seat)
        self.placement.take(seat, account)
        cache = self.caches[account.key]
        cached = cache.found(hashes) * BLOCK
        self.prompts += len(text)
        self.saved += cached
        cache.keeps(hashes)
        self.placement.began(seat, cached)
        self.most_runs = max(self.most_runs, len(account.seats))
        return seat

    def _ends(self, at, seat):
        self.texts[at].extend(self._ids(self.answer))
        hashes = chained(self.texts[at], BLOCK, 1)
        self.caches[seat.account.key].keeps(hashes)
        self.placement.ended(seat, hashes)


def chosen(chats, seat):
    return chats.placement.next([seat]).account


def at_random(chats, seat):
    return chats.chance.choice(list(chats.placement.accounts.values()))


def saved(choose, engines, blocks, *, affinity=False, **load):
    """Return the part of all prompts that caches have saved."""
    chats = [Chats(engines, blocks, seed=seed, **load) for seed in range(2)]
    found = sum(each.run(choose, affinity=affinity) for each in chats)
    return found / sum(each.prompts for each in chats)


@pytest.mark.parametrize("affinity", [False, True])
@pytest.mark.parametrize(("engines", "blocks", "sessions"), [(2, 300, 24), (2, 300, 32), (4, 200, 40)])
def test_much_more_is_saved_than_by_chance(engines, blocks, sessions, affinity):
    """All caches together have room for most conversations, and one alone has not."""
    by_chance = saved(at_random, engines, blocks, sessions=sessions, turns=6)
    assert saved(chosen, engines, blocks, sessions=sessions, turns=6, affinity=affinity) > 1.5 * by_chance


def test_where_all_fits_everywhere_only_what_is_new_is_computed():
    told = saved(chosen, 2, 4000, sessions=24, turns=6)
    assert told > 0.8
    assert told > 1.2 * saved(at_random, 2, 4000, sessions=24, turns=6)


def test_no_engine_is_left_out_though_all_share_a_beginning():
    """One system prompt is most of every prompt, and one engine had it first."""
    chats = Chats(4, 4000, seed=1, sessions=64, turns=3, at_once=32, system=960, user=32)
    chats.run(chosen)
    assert chats.most_runs <= 10
    known = [len(each.known) for each in chats.placement.accounts.values()]
    assert min(known) > max(known) / 3
