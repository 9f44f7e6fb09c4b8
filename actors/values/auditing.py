"""Changes and denials that an audit log tells of, and the port by which frontends tell it.

A frontend has an `Auditor`, or None: without one nothing is recorded, and that costs one truth test. A change
is carried out by `recorded`: it begins only once the log says that it was asked for and has room for its
outcome.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from actors.values.callers import Caller, Peer
from actors.values.errors import PermissionDenied, TritiumError, Unauthenticated, Unavailable
from actors.values.tensors import Buffer

T = TypeVar("T")

DENIALS = (Unauthenticated, PermissionDenied)
"""The errors that say that a client may not do something.

TooManyRequests says how much, and is none of them.
"""


class AuditUnwritable(Unavailable):
    """The audit log can't be written, so what must be in it is not done."""


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks, and from where. Both are empty where they are unknown.

    `identity` is a name of the auth file's, or `model:NAME`. `address` is numeric and has no port.
    """

    identity: str = ""
    address: str = ""

    @classmethod
    def of(cls, caller: Caller | None, peer: Peer) -> Requester:
        """Return the origin of a request of `caller` on the connection of `peer`."""
        return cls("" if caller is None else caller.name, peer.address)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManagedChange:
    """Something that management asks for.

    `facts` are told as they are, and may be cut. Of `files`, such as those that come with a load, the names,
    the sizes and the digests are told, and never the content.
    """

    action: str
    model: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, Buffer | str] = field(default_factory=dict)


class Asked(ABC):
    """A change that the log has been told of. It has exactly one outcome."""

    __slots__ = ()

    @abstractmethod
    def ended(self, failure: BaseException | None) -> None:
        """Learn the outcome: None where the change was carried out. Neither waits nor raises."""

    @abstractmethod
    async def written(self) -> None:
        """Wait until the outcome is in the log, or could not be written yet. Raises nothing."""


class Auditor(ABC):
    """The audit log, as one listener or another source of changes knows it."""

    __slots__ = ()

    @abstractmethod
    async def ask(self, change: ManagedChange, origin: Requester) -> Asked:
        """Record that `origin` asks for `change`, and keep room for the outcome. Raises AuditUnwritable."""

    @abstractmethod
    def denied(self, action: str, model: str, origin: Requester, error: TritiumError) -> None:
        """Record that `origin` may not do `action`.

        Neither waits nor raises; repeated denials are counted.
        """


async def recorded(
    auditor: Auditor | None, change: ManagedChange, origin: Requester, carry_out: Callable[[], Awaitable[T]]
) -> T:
    """Have `carry_out` make `change`, and return what it returns, with a record before and one after it.

    Raises AuditUnwritable where the first can't be written, and then nothing is carried out.
    """
    if auditor is None:
        return await carry_out()
    asked = await auditor.ask(change, origin)
    try:
        result = await carry_out()
    except TritiumError as error:
        asked.ended(error)
        await asked.written()
        raise
    except BaseException as failure:
        # The caller has left, or this is a bug: no client waits for the record.
        asked.ended(failure)
        raise
    asked.ended(None)
    await asked.written()
    return result
