"""Which engine of a model a prompt goes to, or that it waits. Pure.

Each engine has an account of what it was given: its runs, the blocks of its cache that they hold, and the
tokens of prompts that have brought no token yet (*queued*).

**Admission.** A run is given to an engine while

* the queued tokens stay within a bound. What is more would only wait in the engine, where nothing can be
  put in front of it any more. An engine without queued tokens takes a prompt of any length.
* the cache has room for its prompt and for what it and the others are expected to say still. Blocks that runs
  share count once. A run is expected to say as much as answers usually do, and no more than it may; one that
  has said that much, a block more. To keep room for all that they may say would leave most of the cache
  empty, since few answers use their `max_tokens`. To keep none would have the engine run out of blocks with
  every answer, and compute prompts twice. Where the guess was too low, the account is over, and no other run
  comes until there is room again. So one wrong guess never follows another.

An engine that has nothing takes any run: one that will not fit is the engine's to refuse.

**Order.** Of the first runs in line the one goes next that has the fewest tokens to compute, if an engine has
room for it. A run that was passed `MOST_PASSED` times is passed no more, and the next room is its own. Runs
that another engine had before go first, one after the other.

**Choice.** Of the engines with room, one that has no more than its part of the runs (`BOUND` times the mean,
or a `FEW`), if there is one. Of these the one that has the least to compute before the first token: the
queued tokens, the prompt without the blocks that the engine knows, and those blocks that it would have to
forget. Where this is about the same, a session stays at the engine where it was last; else the engine with
the fewest runs is next.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from actors.generation.policy.prefixes import KnownPrefixes, leading

BOUND: Final = 1.25
"""How many runs an engine may have, in means of all, while another one has room."""

FEW: Final = 4
"""Runs that are few for any engine: so many it may have, whatever the mean is."""

MOST_PASSED: Final = 8
"""How often other runs may go before one that waits."""

STEPS_QUEUED: Final = 4
"""Steps for which an engine may have queued tokens, unless the operator says how many tokens."""

MOST_SESSIONS: Final = 16_384
"""Sessions whose engines are known: some 3 MB."""

USUAL: Final = 128.0
"""Tokens that an answer is expected to have, before any has ended."""

_LEARNT: Final = 1 / 32
"""How much one answer counts for what is usual."""

_QUEUED: Final = 8192
"""Tokens that may be queued where an engine does not say how many it computes in a step."""


class LivingEngine(NamedTuple):
    """An engine that lives."""

    name: str
    facts: Mapping[str, Any]


class EngineSize(NamedTuple):
    """What an engine says of itself. 0: it does not say."""

    block_size: int = 0  # tokens
    blocks: int = 0
    step_tokens: int = 0  # tokens that one step computes at most
    shares: bool = True  # texts share the blocks of their beginnings

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> EngineSize:
        """Return what an engine's facts say (`actors.generation.engine`)."""
        told = facts.get("cache")
        cache = told if isinstance(told, dict) else {}
        return cls(
            _count(cache.get("block_size")),
            _count(cache.get("blocks")),
            _count(facts.get("step_tokens")),
            cache.get("shared") is not False,
        )


def _count(told: object) -> int:
    return told if isinstance(told, int) and told > 0 else 0


class Speaking(Protocol):
    """What is generated (`actors.generation.policy.journal.Choice`)."""

    @property
    def steps(self) -> int:
        """Tokens that the present engine has given."""


class Route(Enum):
    """Why an engine was chosen."""

    ONLY = "only"  # no other one lives
    PREFIX = "prefix"  # it knows more of the prompt's beginning than others
    SESSION = "session"  # another one is as good, and the session was here last
    LOAD = "load"  # it has less to do, or others have no room


class Seat:
    """A run that waits for an engine, or has one."""

    __slots__ = (
        "account",
        "affinity",
        "begun",
        "hashes",
        "identity",
        "left",
        "matched",
        "most",
        "number",
        "passed",
        "prompt",
        "resumed",
        "said",
        "stale",
        "worst",
    )

    def __init__(
        self,
        said: Speaking,
        *,
        prompt: int,
        most: int,
        hashes: Sequence[int] = (),
        affinity: str = "",
        resumed: bool = False,
        identity: str = "",
    ) -> None:
        """`prompt` are its tokens, and `most` those that it may say; -1: it holds no part of a cache.

        `hashes` are those of the prompt's whole blocks, as far as they may be shared. `identity` is that of
        the model that has begun it; empty: any may.
        """
        self.said = said
        self.prompt = prompt
        self.most = most
        self.hashes = hashes
        self.affinity = affinity
        self.resumed = resumed  # another engine had it before
        self.identity = identity
        self.passed = 0  # how often others went before it
        # Since it has an engine:
        self.account: Account | None = None
        self.number = 0
        self.matched = 0  # blocks that the engine was thought to have
        self.stale = 0  # the text that used the last of these before
        self.left = 0  # tokens of it that are queued
        self.begun = False  # its first token has come
        self.worst = 0  # blocks that it will never need more than


class Account:
    """What one engine was given, and is thought to know. Made by `Placement`."""

    def __init__(self, key: Hashable, engine: LivingEngine, queued: int) -> None:
        """`queued` is the operator's bound; 0: it follows from the engine's steps."""
        self.key = key
        self.name = engine.name
        self.identity = str(engine.facts.get("identity", ""))
        self.size = size = EngineSize.of(engine.facts)
        self.most_queued = queued or STEPS_QUEUED * size.step_tokens or _QUEUED
        self.known = KnownPrefixes(size.blocks)
        self.seats: dict[Seat, None] = {}
        self.queued = 0
        self.last = 0  # the number of the text that it was given last
        self._worst = 0
        self._claimed = -1  # blocks, as they were counted for one decision; -1: they were not
        self._computing: dict[Seat, None] = {}  # no token of these has come, the oldest first
        self._users: dict[int, int] = {}  # by block: how many of its runs have it

    def blocks_of(self, tokens: int) -> int:
        """Return how many blocks so many tokens take."""
        size = self.size.block_size
        return -(-tokens // size) if size else 0

    @property
    def held(self) -> int:
        """Blocks that its runs hold now."""
        own = (
            self.blocks_of(each.prompt + each.said.steps) - len(each.hashes)
            for each in self.seats
            if each.most >= 0
        )
        return len(self._users) + sum(own)

    def claimed(self, usual: float) -> int:
        """Return how many blocks its runs hold, and are expected to need still."""
        return len(self._users) + self._own(self.seats, usual)

    def _own(self, seats: Iterable[Seat], usual: float) -> int:
        """Return the blocks that runs are expected to need, each for itself alone."""
        size, least, blocks = self.size.block_size, int(usual), 0
        if not size:
            return 0
        for seat in seats:  # of which there are hundreds, so nothing here is a call
            most = seat.most
            if most < 0:
                continue
            says = seat.said.steps + size
            if says < least:
                says = least
            if says > most:
                says = most
            blocks += -(-(seat.prompt + says) // size) - len(seat.hashes)
        return blocks

    def fits(self, seat: Seat, usual: float) -> bool:
        """Whether its cache has room for one more."""
        blocks = self.size.blocks
        if not self.seats or not blocks or self._worst + self._worst_of(seat) <= blocks:
            return True
        if self._claimed < 0:
            self._claimed = self.claimed(usual)
        fresh = len(seat.hashes) - leading(seat.hashes, self._users)
        return self._claimed + fresh + self._own((seat,), usual) <= blocks

    def look(self) -> None:
        """Another decision is made: answers have gone on since the last one."""
        self._claimed = -1

    def _worst_of(self, seat: Seat) -> int:
        return 0 if seat.most < 0 else self.blocks_of(seat.prompt + seat.most)

    def left_of(self, seat: Seat) -> int:
        """Return the tokens of a prompt that it would have to compute: its last one always is."""
        return max(1, seat.prompt - self.known.matched(seat.hashes) * self.size.block_size)

    def displaced(self, left: int) -> int:
        """Return how many tokens it would forget for so many new ones."""
        blocks = self.blocks_of(left)
        return min(blocks, max(0, len(self.known) + blocks - self.known.most)) * self.size.block_size

    def admits(self, left: int) -> bool:
        """Whether so many tokens may be queued."""
        return not self.queued or self.queued + left <= self.most_queued

    def take(self, seat: Seat, number: int) -> None:
        """It is given a run, the text of this number."""
        seat.account, seat.number = self, number
        seat.matched = self.known.matched(seat.hashes)
        seat.left = max(1, seat.prompt - seat.matched * self.size.block_size)
        seat.stale = self.known.used_in(seat.hashes[seat.matched - 1]) if seat.matched else 0
        if self._computing and next(iter(self._computing)).number <= seat.stale:
            seat.stale = 0  # what that one computes may not be there yet
        self._claimed = -1
        self._computing[seat] = None
        seat.worst = self._worst_of(seat)
        self.known.note(seat.hashes, number)
        self.seats[seat] = None
        self.queued += seat.left
        self.last = number
        self._worst += seat.worst
        users = self._users
        for block in seat.hashes:
            users[block] = users.get(block, 0) + 1

    def began(self, seat: Seat, cached: int) -> None:
        """The first token of a run has come: the engine had `cached` tokens of its prompt; -1: not told."""
        if seat.begun:
            return
        seat.begun = True
        del self._computing[seat]
        self.queued -= seat.left
        if seat.stale and 0 <= cached < (seat.matched - 1) * self.size.block_size:
            self.known.outdate(seat.stale)

    def leave(self, seat: Seat) -> None:
        """A run has ended."""
        self._claimed = -1
        if not seat.begun:
            del self._computing[seat]
            self.queued -= seat.left
            self.known.drop(seat.hashes[seat.matched :], seat.number)
        del self.seats[seat]
        self._worst -= seat.worst
        users = self._users
        for block in seat.hashes:
            if users[block] == 1:
                del users[block]
            else:
                users[block] -= 1
        seat.account = None


class Chosen(NamedTuple):
    """The run that is next, and where it goes."""

    place: int  # in the line
    account: Account
    route: Route


class Placement:
    """The accounts of a model's engines; see the module."""

    def __init__(self, queued: int = 0) -> None:
        """`queued`: tokens of prompts that an engine may have queued; 0: those of some of its steps."""
        self.accounts: dict[Hashable, Account] = {}
        self.usual = USUAL
        self._most_queued = queued
        self._numbers = 0
        self._sessions: OrderedDict[int, Hashable] = OrderedDict()  # where each was last

    def living(self, engines: Mapping[Hashable, LivingEngine]) -> bool:
        """These engines live. Return whether any has come or gone.

        What is known of one that has gone is forgotten.
        """
        if engines.keys() == self.accounts.keys():
            return False
        self.accounts = {
            key: self.accounts.get(key) or Account(key, engine, self._most_queued)
            for key, engine in engines.items()
        }
        return True

    def next(self, waiting: Sequence[Seat]) -> Chosen | None:
        """Return which of the first runs in line is next; None while there is no room.

        Those that wait longer than it have been passed once more.
        """
        if not waiting or not self.accounts:
            return None
        for each in self.accounts.values():
            each.look()
        first = waiting[0]
        order: Sequence[int] = range(len(waiting))
        if first.resumed or first.passed >= MOST_PASSED:
            order = range(1)
        elif len(waiting) > 1:
            least = [min(each.left_of(seat) for each in self.accounts.values()) for seat in waiting]
            order = sorted(order, key=least.__getitem__)
        for index in order:
            chosen = self.choose(waiting[index])
            if chosen is not None:
                for passed in waiting[:index]:
                    passed.passed += 1
                return Chosen(index, *chosen)
        return None

    def has_room(self, seat: Seat) -> bool:
        """Whether an engine has room for a run now."""
        for each in self.accounts.values():
            each.look()
        return self.choose(seat) is not None

    def choose(self, seat: Seat, *, anywhere: bool = False) -> tuple[Account, Route] | None:
        """Return the engine for a run; None if none has room.

        `anywhere`: it was given to one that died before it heard of it, and goes to any that lives.
        """
        accounts = list(self.accounts.values())
        if seat.identity:  # where none has loaded these files, it is told so by the one that it comes to
            accounts = [each for each in accounts if each.identity == seat.identity] or accounts
        if len(accounts) == 1:
            (only,) = accounts
            return (only, Route.ONLY) if anywhere or self._has_room(only, seat) else None
        having = [each for each in accounts if anywhere or self._has_room(each, seat)]
        if not having:
            return None
        runs = sum(len(each.seats) for each in accounts)
        most = max(FEW, math.ceil(BOUND * (runs + 1) / len(accounts)))
        within = [each for each in having if len(each.seats) < most] or having
        return self._best(seat, within)

    def _has_room(self, account: Account, seat: Seat) -> bool:
        return account.admits(account.left_of(seat)) and account.fits(seat, self.usual)

    def _best(self, seat: Seat, accounts: Sequence[Account]) -> tuple[Account, Route]:
        left = {each: each.left_of(seat) for each in accounts}
        score = {each: left[each] + each.queued + each.displaced(left[each]) for each in accounts}
        margin = min(score.values()) + max(accounts[0].size.block_size, seat.prompt // 8)
        near = [each for each in accounts if score[each] <= margin]
        if seat.affinity and len(near) > 1:
            last = self._sessions.get(hash(seat.affinity))
            for each in near:
                if each.key == last:
                    return each, Route.SESSION
        best = min(near, key=lambda each: (len(each.seats), score[each], each.last))
        others = [each.left_of(seat) for each in self.accounts.values() if each is not best]
        return best, Route.PREFIX if left[best] < min(others) else Route.LOAD

    def take(self, seat: Seat, account: Account) -> None:
        """A run goes to an engine."""
        self._numbers += 1
        account.take(seat, self._numbers)
        if seat.affinity:
            session = hash(seat.affinity)
            self._sessions[session] = account.key
            self._sessions.move_to_end(session)
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)

    def began(self, seat: Seat, cached: int) -> None:
        """The first token of a run has come: its engine had `cached` tokens of the prompt; -1: not told."""
        if seat.account is not None:
            seat.account.began(seat, cached)

    def ended(self, seat: Seat, hashes: Sequence[int] | None = None) -> None:
        """A run has left its engine, which has its text, of these `hashes`; None: it was broken off."""
        account = seat.account
        if account is None:
            return
        account.leave(seat)
        if hashes is not None:
            self._numbers += 1
            account.known.note(hashes, self._numbers)
            if seat.most >= 0:
                self.usual += (seat.said.steps - self.usual) * _LEARNT
