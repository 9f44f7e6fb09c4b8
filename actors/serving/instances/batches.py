"""The batches that an instance holds: the states of each, its in-flight table, and the channel to it.

A batch enters the table before it is handed to the instance. Its states:

- HANDED: it waits in the instance's channel, or its inputs are being copied. The worker has not heard of it.
- SENT: the worker has it, and may begin.
- BEGUN: the worker has claimed it (`actors.wire.arena`, "Claims"). The server learns that when it claims the
  batch in vain; otherwise it hears no more of the batch than its result.
- DONE: its result has been taken.
- REVOKED: the server has taken it back. The instance passes over it, and its requests run elsewhere.

The table and the channel are the version's. So they outlive the instance, and whatever lies in them when an
instance dies goes back to the head of the queue. The channel has a place for all that the instance may hold:
a batch is handed over only where there is credit, so the channel is never full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain, islice
from types import MappingProxyType
from typing import Final

import trio

from actors.seams.bell import Bell
from actors.values.errors import TritiumError
from actors.values.requests import InferRequest
from actors.wire.gathering import DeviceInput, lost_input
from actors.wire.slots import Slot

AHEAD: Final = 2
"""Batches for each lane: one that executes and, where batches are sent ahead, one that waits behind it."""


class BatchState(IntEnum):  # its hash is an integer's, which is cheap
    """How far a batch has come; see the module."""

    HANDED = 1
    SENT = 2
    BEGUN = 3
    DONE = 4
    REVOKED = 5


HANDED, SENT, BEGUN, DONE, REVOKED = BatchState

BATCH_CHANGES: Final[Mapping[BatchState, frozenset[BatchState]]] = MappingProxyType(
    {
        HANDED: frozenset({SENT, REVOKED}),
        SENT: frozenset({BEGUN, DONE, REVOKED}),
        BEGUN: frozenset({DONE}),
        DONE: frozenset(),
        REVOKED: frozenset(),
    }
)


class InFlight:
    """A batch that an instance holds.

    A batch of a decoupled model stays `open` after its execution, as long as some of its requests are open.
    """

    __slots__ = (
        "_places",
        "alone",
        "began_at",
        "devices",
        "id",
        "open",
        "requests",
        "slot",
        "started_at",
        "state",
        "unread",
    )

    def __init__(
        self, batch_id: int, requests: Sequence[InferRequest], slot: Slot, *, alone: bool, began_at: float
    ) -> None:
        self.id = batch_id
        self.requests = requests
        self.slot = slot
        self.state = HANDED
        # It holds suspects: no other batch may be in this worker.
        self.alone = alone
        # When its execution began, as far as the server can know: when it became the oldest batch.
        self.began_at = began_at
        self.open = 0  # requests whose answer comes in parts, and has not ended
        self.started_at = math.inf  # `began_at` as it was before the first part
        # Of requests whose inputs could not be read from their regions, by their places.
        self.unread: Mapping[int, TritiumError] | None = None
        # Its inputs that lie on the GPU.
        self.devices: Sequence[DeviceInput] | None = None
        self._places: dict[InferRequest, int] | None = None

    def become(self, state: BatchState) -> None:
        """Change the state. Raises ValueError for a change that the table forbids."""
        if state not in BATCH_CHANGES[self.state]:
            raise ValueError(f"batch {self.id} can't go from {self.state.name} to {state.name}")
        self.state = state

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


def lost_inputs(batch: InFlight) -> Mapping[int, TritiumError]:
    """Return errors for the requests whose inputs were on a GPU, and whose maker has ended meanwhile."""
    found: dict[int, TritiumError] = {}
    for each in batch.devices or ():
        keeper = each.place.keeper
        if keeper is not None and keeper.lost:
            found[each.index] = lost_input(batch.requests[each.index], each.tensor)
    return found


class HeldBatches:
    """The in-flight table of one instance, and the channel by which batches come to it. Passive.

    `outstanding` has the batches that are HANDED, SENT or BEGUN, the oldest first. `open` has those of a
    decoupled model that have executed and still have requests to answer. `revoked` has those that were taken
    back from the worker, and that it has still to pass over: they keep their place until then.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.outstanding: dict[int, InFlight] = {}
        self.open: dict[int, InFlight] = {}
        self.revoked: dict[int, InFlight] = {}
        self.unsent = 0  # batches in the channel
        self.withdrawn = 0  # batches in the channel that were taken back: they keep their place there
        self._places, self._handed = trio.open_memory_channel[InFlight](AHEAD * lanes)
        self._coming: InFlight | None = None  # the HANDED batch that the instance has come to
        self._emptied = Bell()

    # -- the channel -----------------------------------------------------------------------------------------

    def hand(self, batch: InFlight) -> None:
        """Hand a batch to the instance. There is always a place, or the credit was counted wrongly."""
        self.unsent += 1
        self._places.send_nowait(batch)

    async def next_handed(self) -> InFlight | None:
        """Wait for the next batch; None for one that was taken back, whose place is free now."""
        batch = await self._handed.receive()
        return batch if self._came_to(batch) else None

    def next_handed_nowait(self) -> InFlight | None:
        """Return the next batch that was handed over and not taken back, if there is one."""
        while self.unsent:
            try:
                batch = self._handed.receive_nowait()
            except trio.WouldBlock:  # the task that waits for it has been given it, and has not run yet
                return None
            if self._came_to(batch):
                return batch
        return None

    def _came_to(self, batch: InFlight) -> bool:
        self.unsent -= 1
        if batch.state is HANDED:
            self._coming = batch
            return True
        self.withdrawn -= 1
        return False

    def sent(self, batch: InFlight, now: float) -> None:
        """The instance has sent the batch that it came to."""
        self._coming = None
        if batch in self.having_lanes():
            batch.began_at = now

    def revoke(self, batch: InFlight) -> None:
        """A batch is not to run here: take it out of the table."""
        if batch.state is SENT:
            self.revoked[batch.id] = batch
        elif batch is self._coming:
            self._coming = None
        else:
            self.withdrawn += 1
        batch.become(REVOKED)
        del self.outstanding[batch.id]

    # -- what it holds ---------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether it holds no batch."""
        return not self.outstanding and not self.open

    def note_end(self) -> None:
        """A batch has gone: tell the tasks that wait for it, if that was the last."""
        if not self.outstanding and not self.open:
            self._emptied.ring()

    async def wait_idle(self) -> None:
        """Wait until it holds no batch: all are answered, or the worker is gone."""
        while not self.idle:
            await self._emptied.next_ring()

    @property
    def waiting(self) -> int:
        """How many of its requests wait behind those that execute."""
        behind = (each for each in self.outstanding.values() if each.began_at == math.inf)
        return sum(not request.padding for each in behind for request in each.requests)

    @property
    def free_lanes(self) -> int:
        """How many batches could begin to execute at once.

        Zero or less means that a further batch would wait behind others.
        """
        return self.lanes - len(self.outstanding)

    @property
    def busy_since(self) -> float:
        """When the last of its lanes was given its execution; infinite while a lane is free."""
        lanes = self.lanes
        if len(self.outstanding) < lanes:
            return math.inf
        return max(batch.since for batch in islice(self.outstanding.values(), lanes))

    @property
    def lanes_busy_since(self) -> float:
        """Since when each of its lanes has been busy without progress; infinite while a lane is free."""
        # A batch that was taken back keeps its lane until the worker has skipped it. A stopped worker never
        # does.
        held = chain(self.outstanding.values(), self.revoked.values())
        begun = sorted(batch.began_at for batch in held if batch.began_at < math.inf)
        return math.inf if len(begun) < self.lanes else begun[self.lanes - 1]

    def all(self) -> Iterator[InFlight]:
        """Return whatever the worker may be busy with."""
        return chain(self.revoked.values(), self.outstanding.values(), self.open.values())

    def holding(self, request: InferRequest) -> InFlight | None:
        """Return the batch with `request` that is not known to be over; None if there is none."""
        return next((batch for batch in self.outstanding.values() if request in batch.requests), None)

    def having_lanes(self) -> Iterator[InFlight]:
        """Return the batches that have a lane, and that the worker was sent."""
        first = islice(self.outstanding.values(), self.lanes)
        return (batch for batch in first if batch.state is not HANDED)

    # -- changes ---------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """A batch has finished at `now`, was sent or was taken back: the next in line begins."""
        for batch in islice(self.outstanding.values(), self.lanes):
            if batch.state is not HANDED:
                batch.began_at = min(batch.began_at, now)
        if self.revoked and len(self.outstanding) < self.lanes:
            for batch in self.revoked.values():  # the worker has only to skip them
                batch.began_at = min(batch.began_at, now)

    def restore(self, batch: InFlight) -> None:
        """Some requests of a finished batch could not be answered: it is the oldest one again."""
        others = list(self.outstanding.values())
        self.outstanding.clear()
        self.outstanding.update((each.id, each) for each in (batch, *others))

    def clear(self) -> None:
        """Hold nothing: all is answered, or was taken over. The instance passes over what was handed to it."""
        for batch in self.outstanding.values():
            if batch.state is HANDED:
                batch.become(REVOKED)
        self.withdrawn = self.unsent
        self._coming = None
        self.outstanding.clear()
        self.revoked.clear()
        self.open.clear()
        self.next_handed_nowait()  # so the channel is empty
        self.note_end()
