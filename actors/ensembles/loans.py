"""The memory that an ensemble's tensors are in, on their way from step to step. Passive.

Tensors go from step to step by reference. A response whose outputs view a slot of a worker is lent while its
consumers execute; see `Loan` for when it is copied instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from actors.ensembles.policy.places import Place
from actors.values.requests import InferResponse
from actors.values.tensors import Tensor

# Loans that have ended are removed when there are more than this.
_LOANS_KEPT: Final = 32


class Loan:
    """A step's response that views memory of another owner, until no consumer needs its tensors.

    The response of a decoupled model is in memory of the server, and its release lets the model go on. It is
    released when the models of the consuming steps have accepted them, or later where the client has many
    parts to read first.

    Any other response lies in a slot of the worker that made it. Such a slot must never wait for room in
    another model's queue, which may wait for slots of its own in turn. So the slot is lent only to steps that
    execute. If a step does not execute after two turns of the loop or later, the response is copied.
    """

    __slots__ = ("_copies", "_response", "_unclaimed", "_users", "streamed", "turns")

    def __init__(self, response: InferResponse, uses: float, *, streamed: bool) -> None:
        """`uses` is the number of consumers; infinite where that is unknown before the request has ended."""
        self.streamed = streamed
        self.turns = 0  # turns of the loop in which it was looked at
        self._response = response
        self._unclaimed = uses
        # Each with a function that says whether it does not execute; None for one that is no step.
        self._users: dict[object, Callable[[], bool] | None] = {}
        # Tensors that view the response's tensors, each with the tensor that it views.
        self._copies: list[tuple[Tensor, Tensor]] = []

    @property
    def open(self) -> bool:
        """Whether the memory is still in use."""
        return self._response.leased

    def claim(self, user: object, waits: Callable[[], bool] | None = None) -> None:
        """One of the consumers is here; `waits` says whether it is a step that does not execute."""
        self._unclaimed -= 1
        self._users[user] = waits

    def keep_for(self, user: object) -> None:
        """A user that consumes nothing needs the memory as well."""
        if self.open:
            self._users[user] = None

    def view(self, copy: Tensor, source: Tensor) -> None:
        """`copy` reads the data of `source`, one of the response's tensors."""
        if self.open:
            self._copies.append((copy, source))

    def drop(self, user: object) -> None:
        """A consumer no longer needs it."""
        if user in self._users:
            del self._users[user]
            self._settle()

    def forsake(self) -> None:
        """There will be no further consumer."""
        self._unclaimed = 0
        self._settle()

    def _settle(self) -> None:
        if not self._users and self._unclaimed <= 0:
            self._response.release()
            self._copies.clear()

    @property
    def waits(self) -> bool:
        """Whether it is lent, or will be, to a step that does not execute."""
        if self._unclaimed > 0:
            return True
        return any(waits is not None and waits() for waits in self._users.values())

    def copy(self) -> None:
        """Let all consumers read copies, and give the memory back."""
        if self.open:
            for tensor in self._response.outputs:
                tensor.data = bytes(tensor.data)
            for copy, source in self._copies:
                copy.data = source.data
            self._copies.clear()
            self._response.release()


class Loans:
    """The loans of one request. Those that have ended are forgotten now and then."""

    def __init__(self) -> None:
        self._loans: list[Loan] = []
        self._sweep_at = _LOANS_KEPT

    def add(self, loan: Loan) -> None:
        """Keep `loan` until its end."""
        if len(self._loans) >= self._sweep_at:
            self._loans = [each for each in self._loans if each.open]
            self._sweep_at = 2 * len(self._loans) + _LOANS_KEPT
        self._loans.append(loan)

    def forsake(self) -> None:
        """The request is over: no loan has a further consumer."""
        for loan in self._loans:
            loan.forsake()


class Piece:
    """A value of an ensemble tensor that is lent, or has a place in a sequence.

    `sequence` replaces the request's for the step that consumes it.
    """

    __slots__ = ("loan", "sequence", "tensor")

    def __init__(self, tensor: Tensor, loan: Loan | None = None, sequence: Place | None = None) -> None:
        self.tensor = tensor
        self.loan = loan
        self.sequence = sequence


Value: TypeAlias = Tensor | Piece
"""A value of an ensemble tensor: most have neither a loan nor a place in a sequence."""


def claimed(
    values: Iterable[Value], user: object, waits: Callable[[], bool] | None = None
) -> tuple[Loan, ...]:
    """Have `user` claim the loans of `values`, and return those loans. See `Loan.claim`."""
    loans: dict[Loan, None] = {}
    for piece in set(values):
        if isinstance(piece, Piece) and piece.loan is not None:
            piece.loan.claim(user, waits)
            loans[piece.loan] = None
    return tuple(loans)


def drop_all(loans: Iterable[Loan], user: object) -> None:
    """`user` no longer needs any of `loans`."""
    for loan in loans:
        loan.drop(user)
