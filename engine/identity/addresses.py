"""How much clients at one address may ask for, and a gate that knows nothing else.

An address is a client's own, or the one that a trusted proxy tells of it; of IPv6 its first 64 bits count.
Clients of a Unix socket have none, and are not limited.

A client can have many addresses, so what is kept of them is bounded. Those go first whose use is over: whose
buckets are full again, with nothing under way. Nothing is noted at a request for that. Those with something
under way never go: they are as many as there are inferences, and these end where they began.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.callers import ANONYMOUS, Action, Caller, HeadGate, Peer
from actors.values.errors import TooManyRequests, TritiumError
from actors.values.marks import client_at
from engine.identity.limits import Limits, Usage
from engine.identity.refusals import Refusals
from engine.identity.rules import Identity

MOST_ADDRESSES: Final = 100_000
"""Addresses whose use is counted, each once for all identities and once for each that has limits there.

Where most of them have inferences under way, there may be some more.
"""

_TRIES: Final = 8  # that are looked at to make room for one


@dataclass(frozen=True, slots=True)
class Account:
    """What one address, or one identity there, may use. `name` is what it is called in refusals."""

    key: str
    name: str
    limits: Limits


class Addresses:
    """What clients at each address have used lately. `limits` hold for all of one address together."""

    def __init__(self, limits: Limits, now: Callable[[], float], *, most: int = MOST_ADDRESSES) -> None:
        self.limits = limits
        self.limited = not limits.none
        self.now = now
        self._most = most
        self._usages: OrderedDict[str, Usage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._usages)

    def accounts(self, address: str, identity: Identity, its_own: Limits) -> Sequence[Account]:
        """Return what a request of `identity` from `address` is counted in; empty for nothing.

        `its_own` are the limits that hold for this identity at one address.
        """
        at = client_at(address)
        found = [Account(at, at, self.limits)] if self.limited else []
        if not its_own.none:
            key = "\0".join((at, identity.name, *sorted(identity.groups)))
            found.append(Account(key, f"{identity.name} at {at}", its_own))
        return found

    def usage(self, account: Account) -> Usage:
        """Return what the account has used."""
        usage = self._usages.get(account.key)
        if usage is None:
            if len(self._usages) >= self._most:
                self._make_room()
            usage = self._usages[account.key] = Usage(account.limits)
        elif usage.limits is not account.limits:
            usage.bound_by(account.limits)
        return usage

    def charge(self, address: str) -> None:
        """Take a request of `address` that is refused. Raises TooManyRequests where none is left."""
        if self.limited and address:
            at = client_at(address)
            self.usage(Account(at, at, self.limits)).take(0, self.now, at)

    def _make_room(self) -> None:
        """Forget what is at rest of a few or, where nothing is, the one that was counted for longest."""
        now = self.now()
        longest: str | None = None
        for _ in range(_TRIES):
            key, usage = next(iter(self._usages.items()))
            if usage.at_rest(now):
                del self._usages[key]
                if len(self._usages) < self._most:
                    return
            else:
                self._usages.move_to_end(key)
                if longest is None and not usage.running:
                    longest = key
        if longest is not None:
            del self._usages[longest]


class AddressedCaller(Caller):
    """A caller at one address: it may do what `caller` may, and no more than the address may.

    A use is looked up each time, and not kept here: it may have been forgotten while the client rested.
    """

    __slots__ = ("_accounts", "_addresses", "_caller", "_own", "_refused")

    def __init__(
        self,
        caller: Caller,
        addresses: Addresses,
        accounts: Sequence[Account],
        refused: Callable[[str, TritiumError], None],
    ) -> None:
        self.name = caller.name
        self._own = caller.counted
        self.counted = caller.counted or any(each.limits.concurrent < math.inf for each in accounts)
        self._caller = caller
        self._addresses = addresses
        self._accounts = accounts
        self._refused = refused

    def require(self, action: Action, model: str = "", namespace: str | None = None) -> None:
        """Raise if `action` is not allowed on `model` (`actors.values.callers.Caller`)."""
        try:
            self._caller.require(action, model, namespace)
        except TritiumError:
            for account in self._accounts:
                self._addresses.usage(account).owe_request()
            raise

    def may(self, action: Action, model: str, namespace: str | None = None) -> bool:
        """Whether `action` is allowed on `model` (`actors.values.callers.Caller`)."""
        return self._caller.may(action, model, namespace)

    def may_all(self, action: Action) -> bool:
        """Whether `action` is allowed on every model (`actors.values.callers.Caller`)."""
        return self._caller.may_all(action)

    def admit(self, action: Action, model: str = "", *, size: int = 0) -> None:
        """Let a request pass, or raise (`actors.values.callers.Caller`). Health checks take nothing."""
        taken: list[Usage] = []
        try:
            if action is not Action.HEALTH:
                for account in self._accounts:
                    taken.append(self._take(account, size))  # noqa: PERF401  # the next one may raise
            self._caller.admit(action, model, size=size)
        except TooManyRequests:  # a denial costs what a request does
            for usage in taken:
                usage.give_back(size)
            raise

    def _take(self, account: Account, size: int) -> Usage:
        usage = self._addresses.usage(account)
        try:
            usage.take(size, self._addresses.now, account.name)
        except TritiumError as error:
            self._refused(self.name, error)
            raise
        return usage

    def received(self, size: int) -> None:
        """Account for bytes that came (`actors.values.callers.Caller`)."""
        for account in self._accounts:
            self._addresses.usage(account).owe(size)
        self._caller.received(size)

    def begin(self) -> None:
        """Count an inference as under way (`actors.values.callers.Caller`)."""
        begun: list[Usage] = []
        try:
            for account in self._accounts:
                begun.append(self._begin(account))  # noqa: PERF401  # the next one may raise
            if self._own:
                self._caller.begin()
        except TritiumError:
            for usage in begun:
                usage.end()
            raise

    def _begin(self, account: Account) -> Usage:
        usage = self._addresses.usage(account)
        try:
            usage.begin(account.name)
        except TritiumError as error:
            self._refused(self.name, error)
            raise
        return usage

    def end(self) -> None:
        """Count it no longer (`actors.values.callers.Caller`)."""
        for account in self._accounts:
            self._addresses.usage(account).end()
        if self._own:
            self._caller.end()


class Anyone(Caller):
    """All clients of a server without rules."""

    __slots__ = ("admitted",)

    def __init__(self) -> None:
        self.name = ANONYMOUS
        self.counted = False
        self.admitted = 0  # requests, ever

    def require(self, action: Action, model: str = "", namespace: str | None = None) -> None:
        """Allow everything (`actors.values.callers.Caller`)."""

    def may(self, action: Action, model: str, namespace: str | None = None) -> bool:
        """Allow everything (`actors.values.callers.Caller`)."""
        return True

    def may_all(self, action: Action) -> bool:
        """Allow everything (`actors.values.callers.Caller`)."""
        return True

    def admit(self, action: Action, model: str = "", *, size: int = 0) -> None:
        """Count a request (`actors.values.callers.Caller`)."""
        if action is not Action.HEALTH:
            self.admitted += 1

    def received(self, size: int) -> None:
        """Limit nothing (`actors.values.callers.Caller`)."""

    def begin(self) -> None:
        """Limit nothing (`actors.values.callers.Caller`)."""

    def end(self) -> None:
        """Limit nothing (`actors.values.callers.Caller`)."""


class AddressGate(HeadGate):
    """Lets every client do everything, and no more of it than its address may. It looks at no credentials."""

    __slots__ = ("_anyone", "_identity", "addresses", "refused")

    def __init__(
        self,
        addresses: Addresses,
        on_refusal: Callable[[str, TritiumError], None] = lambda _name, _error: None,
    ) -> None:
        """`on_refusal` is told of each request that is refused: `anonymous`, and the error."""
        self.addresses = addresses
        self.refused = Refusals(on_refusal)
        self._anyone = Anyone()
        self._identity = Identity(name=ANONYMOUS)

    def identify(self, authorization: bytes, peer: Peer) -> Caller:
        """Return the caller at the address of `peer` (`actors.values.callers.HeadGate`)."""
        note = peer.note
        if type(note) is AddressedCaller:
            return note
        if not peer.address:
            return self._anyone
        accounts = self.addresses.accounts(peer.address, self._identity, Limits())
        peer.note = caller = AddressedCaller(self._anyone, self.addresses, accounts, self.refused)
        return caller

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """How many requests were refused, by identity and code."""
        return self.refused.counts

    def admitted(self) -> Mapping[str, int]:
        """Return how many requests were let in, by name."""
        return {self._anyone.name: self._anyone.admitted}
