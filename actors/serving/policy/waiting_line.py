"""What serving asks of the requests that wait for one model version. Pure.

Two implementations: `actors.serving.policy.queueing.RequestQueue`, from which requests leave in order, and
the `SequenceQueue` of `actors.sequences`, in which each request follows another of its sequence. There,
serving also tells a `Sequencing` about instances and answers.

Where a line is full, callers wait for room; see `actors.serving.policy.room`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from actors.serving.policy.fairness import TenantShare
from actors.serving.policy.room import RoomOrder
from actors.values.errors import TritiumError
from actors.values.native import mypyc_attr
from actors.values.requests import InferRequest
from actors.values.tensors import Tensor

ENDED_AT_ONCE: Final = 256
"""Requests whose time is up that are ended in one turn of the loop: telling a client takes some 20 µs."""


@mypyc_attr(allow_interpreted_subclasses=True)
class WaitingLine(ABC):
    """The requests that wait for one model version. Every request given in comes out exactly once."""

    room_order: RoomOrder
    """The order of the callers that wait for room."""

    @abstractmethod
    def __len__(self) -> int:
        """How many requests wait."""

    @abstractmethod
    def __contains__(self, request: InferRequest) -> bool:
        """Whether `request` waits here."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How many input bytes wait."""

    @property
    @abstractmethod
    def oldest_enqueued(self) -> float:
        """When the request that has waited longest was enqueued; infinite if none waits."""

    @abstractmethod
    def admits(self, request: InferRequest) -> bool:
        """Whether `request` may be pushed now; if not, its caller waits until something has left."""

    @abstractmethod
    def push(self, request: InferRequest, now: float) -> None:
        """Enqueue a validated request at `now`. Raises TritiumError for one that the line refuses."""

    @abstractmethod
    def push_front(self, requests: Sequence[InferRequest]) -> None:
        """Put back requests that an instance did not finish. No bounds apply: they were admitted before."""

    @abstractmethod
    def abandon(self, request: InferRequest, now: float) -> list[InferRequest]:
        """Take out `request`, whose client has left, and all that can't run without it. Return them.

        Nothing is returned if it does not wait here (any more).
        """

    @abstractmethod
    def expire(self, now: float, *, at_most: int = ENDED_AT_ONCE) -> list[tuple[InferRequest, TritiumError]]:
        """Take out what is due at `now`, and return each request with the error for its client.

        It looks at no more than `at_most`; if there are more, `next_expiry` is still due.
        """

    @abstractmethod
    def next_expiry(self) -> float:
        """When `expire` next has something to do: infinite for never, in the past for at once."""

    @abstractmethod
    def drain(self) -> list[InferRequest]:
        """Remove and return everything."""

    def ahead_of(self, request: InferRequest) -> float:
        """Return about how many waiting requests would go before `request`, if it were pushed now."""
        del request
        return len(self)

    def patience(self, request: InferRequest) -> float:
        """Return how many seconds `request` might wait here before it is refused; infinite for ever."""
        del request
        return math.inf

    def shares(self) -> Mapping[str, TenantShare] | None:
        """Return what each tenant got, by name; None where tenants do not share the line."""
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class Sequencing(ABC):
    """What serving tells a line whose requests follow each other: where they run, and how they ended.

    A request that left the line to run ends by `done`, or comes back by `put_back` or `reschedule`.
    """

    queue: WaitingLine
    """The line of the same requests."""
    keeps_state: bool
    """Whether a sequence that has begun outlives its instance (`tritium.checkpoint`)."""
    has_states: bool
    """Whether answers bring states, which `collect` keeps."""
    iterative: bool
    """Whether the model may ask for a request to be run again (contract, scheduling.md section 6.7)."""

    @abstractmethod
    def stop(self, why: str) -> None:
        """Refuse new sequences with `why`; those that live go on."""

    @abstractmethod
    def join(self, instance: str, lanes: int, now: float) -> None:
        """Give sequences the lanes of an instance whose model is loaded."""

    @abstractmethod
    def about_to_leave(self, instance: str) -> None:
        """Note that an instance has died: what its sequences free while they are settled stays free."""

    @abstractmethod
    def leave(self, instance: str, now: float, *, unrun: Collection[InferRequest] = ()) -> list[InferRequest]:
        """Remove an instance that is gone, and return the waiting requests of its sequences that are over.

        Requests that were running are left to the caller: each ends by `done`, or comes back by `put_back`.
        `unrun` are those of them that were handed to the instance, which did not begin them.
        """

    @abstractmethod
    def may_move(self, following: InferRequest | None, *, ran: bool) -> bool:
        """Whether a sequence may go on in another instance.

        `following` is its oldest unanswered request, and `ran` says whether that was begun.
        """

    @abstractmethod
    def put_back(self, request: InferRequest, *, alone: bool, now: float) -> None:
        """Put a request back that left to run. `alone`: nothing else may run in its batch."""

    @abstractmethod
    def collect(self, request: InferRequest, outputs: list[Tensor], *, failed: bool) -> list[Tensor]:
        """Return what the client gets of the `outputs` of an execution; the rest is kept for the sequence.

        `failed`: the model answered with an error. Raises Internal for outputs that can't be kept.
        """

    @abstractmethod
    def done(self, request: InferRequest, now: float) -> None:
        """`request` has its answer; if it was running, its sequence goes on."""

    @abstractmethod
    def reschedule(self, request: InferRequest, now: float) -> bool:
        """Queue again a request that ran, as the next one of its sequence. Its flags are cleared.

        Return False if its sequence has ended with its instance meanwhile: then the caller answers it.
        """
