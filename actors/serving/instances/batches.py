"""The batches that an instance holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.values.requests import InferRequest
from actors.wire.slots import Slot


class InFlight:
    """A batch that a worker holds.

    A batch of a decoupled model stays `open` after its execution, as long as some of its requests are open.
    """

    __slots__ = ("_places", "alone", "began_at", "id", "open", "requests", "slot", "started_at")

    def __init__(
        self, batch_id: int, requests: Sequence[InferRequest], slot: Slot, *, alone: bool, began_at: float
    ) -> None:
        self.id = batch_id
        self.requests = requests
        self.slot = slot
        # It holds suspects: no other batch may be in this worker.
        self.alone = alone
        # When its execution began, as far as the server can know: when it became the oldest batch.
        self.began_at = began_at
        self.open = 0  # requests whose answer comes in parts, and has not ended
        self.started_at = math.inf  # `began_at` as it was before the first part
        self._places: dict[InferRequest, int] | None = None

    def place_of(self, request: InferRequest) -> int | None:
        """Return the place of `request` in the batch; None if it is not in it.

        Cheap for requests in order.
        """
        if self._places is None:
            self._places = {member: place for place, member in enumerate(self.requests)}
        return self._places.get(request)

    @property
    def since(self) -> float:
        """When it began, whatever progress it has made; infinite while it waits behind other batches."""
        return min(self.began_at, self.started_at)

    def progressed(self, now: float) -> None:
        """A part has come: the time without progress counts from now on."""
        self.started_at = min(self.started_at, self.began_at, now)
        self.began_at = now
