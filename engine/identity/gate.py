"""The gate: who a client is, by what it shows, and what the rules in force let it do.

What is found out about a client is kept where the next request finds it at once: with its connection. A
change of the auth file makes another *book*, and what was kept with an older one does not count any more.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from actors.values.callers import ANONYMOUS, Action, Caller, HeadGate, Peer
from actors.values.errors import PermissionDenied, TritiumError, Unauthenticated
from engine.identity.addresses import AddressedCaller, Addresses
from engine.identity.document import AuthFile
from engine.identity.keys import NO_DIGEST, bearer, matches
from engine.identity.limits import Limits, Usage, strictest
from engine.identity.refusals import Refusals
from engine.identity.rules import BySubject, Decision, Identity, Rulebook
from engine.identity.tokens import Proven, Tokens

MOST_VERDICTS: Final = 4096
"""Tokens whose verdicts are kept, and kinds of refusals."""

MOST_DECISIONS: Final = 512
"""Decisions that are kept of each caller."""

LONGEST_MODEL: Final = 255
"""Characters of a model's name. No directory has a longer one, so nothing is allowed on such a model.

Names come from clients, are looked for in patterns, and are kept with the decisions.
"""

MOST_USAGES: Final = 100_000
"""Identities whose use is counted. Beyond them the oldest are forgotten.

One name with other groups is another identity: other limits may hold for it.
"""

Namespaces = Callable[[str], str]
"""From a model's name to the repository in which it lies; empty where that is not known."""

FOUND_LATER: Final = frozenset((Action.MODEL_REPOSITORY, Action.UPLOAD))
"""What concerns models that are not loaded too, whose repository is found only after the head was let in.

It is asked about once more then (`actors.values.interfaces.Repository`).
"""

_HEALTH: Final = Action.HEALTH  # bound, because to look up a member of an Enum takes as long as a call


class Book:
    """One auth file in force, and the callers that it knows."""

    def __init__(self, file: AuthFile, tokens: Tokens) -> None:
        self.file = file
        self.rules = Rulebook(file.rules)
        self.tokens = tokens
        self._limits = BySubject(file.limits)
        self.by_address = any(limit.by_address for limit in file.limits)
        self._callers: OrderedDict[Identity, KnownCaller] = OrderedDict()
        self._proven: OrderedDict[bytes, Proven] = OrderedDict()

    def limits_of(self, identity: Identity) -> Limits:
        """Return what `identity` may use, wherever it is."""
        return strictest([each.limits for each in self._limits.about(identity) if not each.by_address])

    def limits_by_address(self, identity: Identity) -> Limits:
        """Return what `identity` may use at one address."""
        if not self.by_address:
            return Limits()
        return strictest([each.limits for each in self._limits.about(identity) if each.by_address])

    def caller(self, identity: Identity, gate: Gate) -> KnownCaller:
        """Return the one caller of this book that is `identity`."""
        caller = self._callers.get(identity)
        if caller is None:
            if len(self._callers) >= MOST_USAGES:
                self._callers.popitem(last=False)
            caller = self._callers[identity] = KnownCaller(identity, self, gate)
        return caller

    def prove(self, token: str, now: float) -> Proven:
        """Return what a JWT proves. Good ones are kept by their digest until they expire."""
        digest = hashlib.blake2b(token.encode("latin-1", "replace"), digest_size=32).digest()
        proven = self._proven.get(digest)
        if proven is None or now >= proven.until:
            self._proven.pop(digest, None)
            proven = self._proven[digest] = self.tokens.prove(token, now)
            if len(self._proven) > MOST_VERDICTS:
                self._proven.popitem(last=False)
        return proven


@dataclass(slots=True)
class _Note:
    """What a connection's last request has shown, and whose it was.

    Each request of a connection shows other bytes, which are mostly the same text. They are noted, so that
    the messages of that request need no comparison.
    """

    book: Book
    authorization: bytes
    names: tuple[str, ...]
    caller: Caller
    until: float  # of the epoch; inf for ever


class Gate(HeadGate):
    """Names callers by the auth file in force.

    `now` is a steady clock in seconds, `wall_clock` that of the epoch. `on_refusal` is told of each request
    that is refused: the caller's name, empty for bad credentials, and the error. `addresses` is what clients
    at each address have used.
    """

    __slots__ = ("_book", "_namespaces", "_usages", "_wall_clock", "addresses", "now", "refused")

    def __init__(
        self,
        book: Book,
        *,
        now: Callable[[], float],
        wall_clock: Callable[[], float],
        namespaces: Namespaces = lambda _: "",
        on_refusal: Callable[[str, TritiumError], None] = lambda _name, _error: None,
        addresses: Addresses | None = None,
    ) -> None:
        self.now = now
        self.refused = Refusals(on_refusal)
        self.addresses = Addresses(Limits(), now) if addresses is None else addresses
        self._book = book
        self._wall_clock = wall_clock
        self._namespaces = namespaces
        self._usages: OrderedDict[Identity, Usage] = OrderedDict()

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """How many requests were refused, by identity and code."""
        return self.refused.counts

    @property
    def book(self) -> Book:
        """The auth file in force."""
        return self._book

    def adopt(self, book: Book) -> None:
        """Go by another auth file from now on, for open connections and streams as well.

        An identity gets its other limits with its next request.
        """
        self._book = book

    def identify(self, authorization: bytes, peer: Peer) -> Caller:
        """Return who shows this (`actors.values.callers.HeadGate`)."""
        note = peer.note
        if (
            type(note) is _Note
            and note.book is self._book
            and note.names is peer.names
            and (
                note.authorization is authorization or hmac.compare_digest(note.authorization, authorization)
            )
            and (note.until == math.inf or self._wall_clock() < note.until)
        ):
            note.authorization = authorization
            return note.caller
        try:
            identity, until = self._established(authorization, peer)
        except Unauthenticated as error:
            self.refused("", error)
            # Guessing has the limits of asking. Good credentials are counted when something is asked.
            self.addresses.charge(peer.address)
            raise
        caller = self._at_its_address(self._book.caller(identity, self), identity, peer)
        peer.note = _Note(self._book, authorization, peer.names, caller, until)
        return caller

    def _at_its_address(self, caller: KnownCaller, identity: Identity, peer: Peer) -> Caller:
        """Return `caller` as one that is held to the limits of its address, if there are any."""
        if not peer.address or not (self._book.by_address or self.addresses.limited):
            return caller
        accounts = self.addresses.accounts(peer.address, identity, caller.limits_by_address)
        return AddressedCaller(caller, self.addresses, accounts, self.refused) if accounts else caller

    def _established(self, authorization: bytes, peer: Peer) -> tuple[Identity, float]:
        """Return who shows this, and until when that is so. Raises Unauthenticated."""
        file = self._book.file
        if not authorization:
            for name in peer.names:
                certificate = file.certificates.get(name)
                if certificate is not None:
                    return certificate.identity, math.inf
            return file.anonymous, math.inf
        token = bearer(authorization)
        if token.count(".") > 1:
            proven = self._book.prove(token, self._wall_clock())
            return proven.identity, proven.until
        id_, _, secret = token.partition(".")
        key = file.keys.get(id_)
        good = matches(secret, NO_DIGEST if key is None else key.digest)
        if key is None or not good:
            raise Unauthenticated("the API key is not good: ask the operator for another one", invalid=True)
        if key.revoked:
            raise Unauthenticated(
                f"the API key '{id_}' was revoked: ask the operator for another one", invalid=True
            )
        if self._wall_clock() >= key.expires:
            raise Unauthenticated(
                f"the API key '{id_}' has expired: ask the operator for another one", invalid=True
            )
        return key.identity, key.expires

    def admitted(self) -> Mapping[str, int]:
        """Return how many requests identities have made, by name."""
        found: Counter[str] = Counter()
        for identity, usage in self._usages.items():
            found[identity.name] += usage.admitted
        return found

    def named(self, name: str) -> Caller:
        """Return the caller that stands for a confined model, `model:NAME`."""
        return self._book.caller(Identity(name=name), self)

    def namespace_of(self, model: str) -> str:
        """Return the repository of `model`, if any rule asks."""
        return self._namespaces(model) if self._book.rules.by_namespace else ""

    def usage_of(self, identity: Identity, limits: Limits) -> Usage:
        """Return what `identity` has used, whatever the auth file was then."""
        usage = self._usages.get(identity)
        if usage is None:
            if len(self._usages) >= MOST_USAGES:
                self._usages.popitem(last=False)
            usage = self._usages[identity] = Usage(limits)
        usage.bound_by(limits)
        return usage


class KnownCaller(Caller):
    """An identity under one book. What the rules say about each action and model is kept."""

    __slots__ = (
        "_allowed",
        "_anywhere",
        "_gate",
        "_permissions",
        "_usage",
        "_verdicts",
        "limits_by_address",
    )

    def __init__(self, identity: Identity, book: Book, gate: Gate) -> None:
        self.name = identity.name
        self._gate = gate
        self._permissions = book.rules.of(identity)
        limits = book.limits_of(identity)
        self._usage = gate.usage_of(identity, limits)
        self.counted = limits.concurrent < math.inf
        self.limits_by_address = book.limits_by_address(identity)
        self._verdicts: dict[tuple[Action, str, str | None], Decision] = {}
        # What is allowed, by action and model: the short way of almost all requests. It stays empty where
        # rules name repositories, since a model may come to lie in another one.
        self._allowed: set[tuple[Action, str]] = set()
        self._anywhere = not book.rules.by_namespace

    def decide(self, action: Action, model: str, namespace: str | None = "") -> Decision:
        """Return whether the rules allow `action` on `model`, and which one decides (`Permissions`)."""
        if len(model) > LONGEST_MODEL:
            return Decision(allowed=False)
        key = (action, model, namespace)
        decision = self._verdicts.get(key)
        if decision is None:
            if len(self._verdicts) >= MOST_DECISIONS:
                self._verdicts.clear()
            decision = self._verdicts[key] = self._permissions.decide(action, model, namespace)
        return decision

    def may(self, action: Action, model: str, namespace: str | None = None) -> bool:
        """Whether `action` is allowed on `model` (`actors.values.callers.Caller`)."""
        if namespace is None:
            namespace = self._gate.namespace_of(model) or (None if action in FOUND_LATER else "")
        return self.decide(action, model, namespace).allowed

    def may_all(self, action: Action) -> bool:
        """Whether `action` is allowed on every model (`actors.values.callers.Caller`)."""
        return self._permissions.allows_all(action)

    def require(self, action: Action, model: str = "", namespace: str | None = None) -> None:
        """Raise if `action` is not allowed on `model` (`actors.values.callers.Caller`)."""
        if (action, model) in self._allowed:
            return
        if not self.may(action, model, namespace):
            # Not by a local name: the traceback would hold this frame, and this frame the error.
            raise self._denied(action, model)
        if self._anywhere:
            if len(self._allowed) >= MOST_DECISIONS:
                self._allowed.clear()
            self._allowed.add((action, model))

    def _denied(self, action: Action, model: str) -> TritiumError:
        error = self._denial(action, model)
        self._gate.refused(self.name, error)
        return error

    def _denial(self, action: Action, model: str) -> TritiumError:
        on = f" on model '{model[:128]}'" if model else ""
        if self.name == ANONYMOUS:
            return Unauthenticated(
                f"'{action.value}'{on} takes credentials: send 'Authorization: Bearer <key>', "
                "or a client certificate"
            )
        return PermissionDenied(
            f"'{self.name}' may not use '{action.value}'{on}: no rule of the server allows it"
        )

    def admit(self, action: Action, model: str = "", *, size: int = 0) -> None:
        """Let a request pass, or raise (`actors.values.callers.Caller`). Health checks take nothing."""
        if (action, model) not in self._allowed:
            self.require(action, model)
        if action is _HEALTH:
            return
        usage = self._usage
        if usage.free:
            usage.admitted += 1
            return
        try:
            usage.take(size, self._gate.now, self.name)
        except TritiumError as error:
            self._gate.refused(self.name, error)
            raise

    def received(self, size: int) -> None:
        """Account for bytes that came (`actors.values.callers.Caller`)."""
        self._usage.owe(size)

    def begin(self) -> None:
        """Count an inference as under way (`actors.values.callers.Caller`)."""
        usage = self._usage
        try:
            usage.begin(self.name)
        except TritiumError as error:
            self._gate.refused(self.name, error)
            raise

    def end(self) -> None:
        """Count it no longer (`actors.values.callers.Caller`)."""
        self._usage.end()
