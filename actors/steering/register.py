"""The register that controllers of several servers keep in each of them, and the epochs that they show. Pure.

A controller writes down here what it wants, so that the next one can go on with it. Each controller shows an
epoch, a number that its successor raises. A server refuses what shows a lower epoch than it has seen: of two
controllers at once, only the newer one changes anything.

All of it lives as long as the process. `boot` tells a server that has been started anew, and knows nothing of
epochs, from the one before.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.values.errors import TakenOver
from actors.values.interfaces import Registered


class Register:
    """Implements `actors.values.interfaces.Steering`.

    The document has a place in order: the epoch and the sequence that it came with. It is replaced by one
    whose place is behind that, and never by one of a lower epoch than the highest seen.
    """

    def __init__(
        self, *, replica: str = "", boot: str = "", available: Callable[[], int | None] = lambda: None
    ) -> None:
        """`available` returns how many bytes of memory are left here; None where that is not known."""
        self._replica = replica
        self._boot = boot
        self._available = available
        self._epoch = 0
        self._document: bytes | None = None
        self._place = (0, 0)  # of the document

    def describe(self) -> Registered:
        """Return what is kept (`Steering`)."""
        document_epoch, sequence = self._place
        return Registered(
            replica=self._replica,
            boot=self._boot,
            epoch=self._epoch,
            document_epoch=document_epoch,
            sequence=sequence,
            document=self._document,
            available_bytes=self._available(),
        )

    def keep(self, epoch: int, sequence: int, document: bytes) -> None:
        """Keep a document (`Steering`)."""
        self._check(epoch)
        held_epoch, held_sequence = self._place
        if self._document is not None and (epoch, sequence) <= self._place:
            if document == self._document:
                return  # it was sent twice
            raise TakenOver(
                f"this server keeps sequence {held_sequence} of epoch {held_epoch}, and the document has"
                f" sequence {sequence} of epoch {epoch}: another controller has taken over"
            )
        self._epoch = epoch
        self._place = (epoch, sequence)
        self._document = document

    def take_over(self, epoch: int) -> None:
        """Raise the epoch (`Steering`)."""
        if epoch <= self._epoch:
            raise TakenOver(self._taken(epoch))
        self._epoch = epoch

    def begin(self, epoch: int) -> None:
        """Let a change begin (`Steering`)."""
        self._check(epoch)
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        """The highest epoch seen (`Steering`)."""
        return self._epoch

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise TakenOver(self._taken(epoch))

    def _taken(self, epoch: int) -> str:
        return (
            f"this server has seen epoch {self._epoch}, and the request shows epoch {epoch}: another"
            " controller has taken over"
        )
