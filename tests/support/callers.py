"""Callers and a gate without an auth file, for tests of what asks them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from actors.values.callers import ANONYMOUS, Action, Caller, HeadGate, Peer
from actors.values.errors import PermissionDenied, TooManyRequests, Unauthenticated


class KnownCaller(Caller):
    """May do what `allowed` has: (action, model), with model "" for what concerns none.

    Nothing in a repository of `closed`. `asked` has what was asked about a repository.
    """

    __slots__ = ("allowed", "asked", "bytes", "closed", "most", "running")

    def __init__(
        self, name: str, allowed: Collection[tuple[Action, str]] = (), *, most: float = float("inf")
    ) -> None:
        self.name = name
        self.counted = True
        self.allowed = allowed
        self.most = most
        self.closed: Collection[str] = ()
        self.asked: list[tuple[Action, str, str]] = []
        self.bytes: list[int] = []
        self.running = 0

    def require(self, action: Action, model: str = "", namespace: str | None = None) -> None:
        if namespace is not None:
            self.asked.append((action, model, namespace))
        if namespace in self.closed or not any(
            action is allowed and model in {"", on} for allowed, on in self.allowed
        ):
            raise self._denial(action, model)

    def _denial(self, action: Action, model: str) -> PermissionDenied | Unauthenticated:
        text = f"{self.name} may not {action.value} {model}".strip()
        return Unauthenticated(text) if self.name == ANONYMOUS else PermissionDenied(text)

    def admit(self, action: Action, model: str = "", *, size: int = 0) -> None:
        self.require(action, model)
        self.bytes.append(size)

    def may(self, action: Action, model: str, namespace: str | None = None) -> bool:
        del namespace
        return (action, model) in self.allowed

    def may_all(self, action: Action) -> bool:
        return (action, "*") in self.allowed

    def received(self, size: int) -> None:
        self.bytes.append(size)

    def begin(self) -> None:
        if self.running >= self.most:
            raise TooManyRequests(f"{self.name} has {self.running} under way", retry_after=3)
        self.running += 1

    def end(self) -> None:
        self.running -= 1


class ListedGate(HeadGate):
    """Knows callers by their `Authorization`; all others are refused. `peers` are those that it has seen."""

    def __init__(self, callers: Mapping[bytes, KnownCaller]) -> None:
        self.callers = dict(callers)
        self.peers: list[Peer] = []

    def identify(self, authorization: bytes, peer: Peer) -> Caller:
        self.peers.append(peer)
        try:
            return self.callers[authorization]
        except KeyError:
            raise Unauthenticated("show a good key", invalid=bool(authorization)) from None
