"""The auth file in the server: read at the start, followed while it runs, and told in metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Final, Protocol

import trio

from actors.calls.admission import Permit
from actors.calls.reach import confines_calls
from actors.serving.routing.roster import Roster
from actors.values.auditing import Auditor, Requester
from actors.values.callers import Action
from actors.values.errors import TritiumError
from actors.values.events import Event, Log
from actors.values.families import Block, Families, Family, Slice, SplitFamily, once
from actors.values.specs import ModelSpec
from engine.identity.addresses import Addresses
from engine.identity.changes import changes
from engine.identity.document import AuthFileError
from engine.identity.gate import Book, Gate
from engine.identity.limits import Limits
from engine.identity.loading import load_book
from engine.identity.rules import MODEL
from engine.server.machine import Machine
from engine.server.reloading import Followed, NotReloaded, stamp_of
from engine.server.running import ServerFailed
from engine.settings.listening import ConnectionSettings


def opened_gate(
    path: str,
    machine: Machine,
    roster: Callable[[], Roster],
    log: Log,
    *,
    namespacing: bool,
    addresses: Addresses,
) -> FollowedAuthFile | None:
    """Return the gate of the auth file at `path`, as what is read again when it changes; None without a path.

    `roster` returns what knows in which repository a model lies. It is asked once the server runs.
    `namespacing` says whether repositories are told apart, `addresses` what clients at each address may use.
    Raises ServerFailed.
    """
    if not path:
        return None

    def namespace_of(model: str) -> str:
        keys = roster().keys(model)
        return keys[0].namespace if len(keys) == 1 else ""

    stamp = stamp_of([path])
    try:
        book, files = _load(path, namespacing)
        if len(files) > 1:  # which only the first look told; a stamp is older than what is used
            stamp = stamp_of(files)
            book, files = _load(path, namespacing)
    except AuthFileError as error:
        raise ServerFailed(f"--auth-file: {error}") from error
    gate = Gate(
        book,
        now=trio.current_time,
        wall_clock=lambda: machine.wall_clock() / 1000,
        namespaces=namespace_of,
        on_refusal=telling(log),
        addresses=addresses,
    )
    followed = FollowedAuthFile(path, gate, namespacing=namespacing)
    followed.files, followed.stamp = files, stamp
    return followed


def telling(log: Log) -> Callable[[str, TritiumError], None]:
    """Return what logs that a request was refused."""

    def refused(name: str, error: TritiumError) -> None:
        # Seen at the first verbose level: a flood of refusals must not fill the log.
        log(Event.ACCESS_REFUSED, level="debug", identity=name, code=error.code.name, reason=error.message)

    return refused


def address_limits(settings: ConnectionSettings) -> Addresses:
    """Return what clients at each address may use, as the flags say it."""
    limits = Limits(
        requests=settings.requests_per_address,
        bytes=settings.bytes_per_address,
        concurrent=settings.concurrent_per_address,
    )
    return Addresses(limits, trio.current_time)


def permit_of(gate: Gate, auditor: Auditor | None = None) -> Permit:
    """Return what judges by the same rules what confined models ask for, as `model:NAME`.

    What it denies is told to `auditor`. A model is confined in a sandbox that keeps it from reaching the
    server in other ways: basic or strict.
    """

    def permit(spec: ModelSpec, action: Action, model: str, namespace: str | None = None) -> None:
        if not confines_calls(spec.confinement.sandbox):
            return
        caller = gate.named(MODEL + spec.name)
        try:
            caller.require(action, model, namespace)
        except TritiumError as error:
            if auditor is not None:
                auditor.denied(action.value, model, Requester(caller.name), error)
            raise

    return permit


class FollowedAuthFile(Followed[tuple[Book, list[str], Mapping[str, object]]]):
    """An auth file and the key sets that it names. One that makes no sense leaves the rules as they are."""

    name = "auth-file"

    def __init__(self, path: str, gate: Gate, *, namespacing: bool) -> None:
        self.gate = gate
        self._path = path
        self._namespacing = namespacing

    def read(self) -> tuple[Book, list[str], Mapping[str, object]]:
        """Read the files, and find out what is different (`Followed`)."""
        try:
            book, files = _load(self._path, self._namespacing)
        except AuthFileError as error:
            raise NotReloaded(f"the rules stay as they are: {error}") from error
        return book, files, changes(self.gate.book.file, book.file)

    def adopt(self, found: tuple[Book, list[str], Mapping[str, object]]) -> Mapping[str, object]:
        """Go by what was read (`Followed`)."""
        book, self.files, self.changed = found
        self.gate.adopt(book)
        return {"keys": len(book.file.keys), "rules": len(book.file.rules)}


def _load(path: str, namespacing: bool) -> tuple[Book, list[str]]:
    """Return what the auth file says, and the files that were read. Raises AuthFileError.

    A server that does not tell repositories apart could not obey a rule by namespace.
    """
    book, files = load_book(path)
    rule = book.rules.first_by_namespace
    if rule is not None and not namespacing:
        raise AuthFileError(
            f"{path}: {rule} names namespaces, and without --model-namespacing=true this server does not tell"
            " repositories apart: give that flag, or name models"
        )
    return book, files


class Counting(Protocol):
    """The part of a gate that metrics tell of."""

    @property
    def addresses(self) -> Sized:
        """The addresses whose use is counted."""

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """How many requests were refused, by identity and code."""

    def admitted(self) -> Mapping[str, int]:
        """Return how many requests were let in, by identity."""


_MOST_NAMES: Final = 1000
_OTHERS: Final = "other"


def _requests(gate: Counting) -> Iterator[Slice]:
    """Yield a series for each identity, those that asked most; the rest are one."""
    admitted = sorted(gate.admitted().items(), key=lambda item: -item[1])
    for name, count in admitted[:_MOST_NAMES]:
        yield Slice(count, {"identity": name})
    if len(admitted) > _MOST_NAMES:
        yield Slice(sum(count for _, count in admitted[_MOST_NAMES:]), {"identity": _OTHERS})


def _refusals(gate: Counting) -> Iterator[Slice]:
    for (name, code), count in gate.refusals.items():
        yield Slice(count, {"identity": name, "code": code})


FAMILIES: Final[Families[Counting]] = (
    SplitFamily(
        "tritium_identity_requests_total",
        "counter",
        "Requests and messages that were let in, by identity. Health checks are left out.",
        _requests,
    ),
    SplitFamily(
        "tritium_identity_refusals_total",
        "counter",
        "Requests that were refused, by identity (empty: no good credentials) and code",
        _refusals,
    ),
    Family(
        "tritium_identity_addresses",
        "gauge",
        "Addresses whose use is counted, where requests are limited by address",
        lambda gate: len(gate.addresses),
    ),
)


def identity_blocks(gate: Counting) -> Iterator[Block]:
    """Yield what is told of identities."""
    return once(FAMILIES, gate)
