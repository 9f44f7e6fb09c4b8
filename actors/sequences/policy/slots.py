"""Which sequence has which slot, and which ones wait. Pure. Contract, scheduling.md section 6.2."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from actors.sequences.policy.controls import Padding
from actors.sequences.policy.records import LiveSequence, SlotGroup


class Slots:
    """The slots of all instances, and the backlog: the sequences that wait for one, the first to be next."""

    def __init__(self) -> None:
        self.backlog: OrderedDict[LiveSequence, None] = OrderedDict()
        self._groups: dict[str, list[SlotGroup]] = {}
        self._free: list[tuple[int, int, SlotGroup]] = []  # the lowest slot of all groups first
        self._numbers = count()

    def add(self, instance: str, paddings: Sequence[Padding], limit: int) -> None:
        """Add an instance's groups of `limit` slots each, one for each of `paddings`."""
        groups = self._groups[instance] = []
        for padding in paddings:
            group = SlotGroup(instance, next(self._numbers), limit, padding)
            groups.append(group)
            heappush(self._free, (0, group.number, group))

    def groups(self, instance: str) -> Sequence[SlotGroup]:
        """Return the groups of an instance that has joined."""
        return self._groups.get(instance, ())

    @property
    def some_free(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def close(self, instance: str) -> None:
        """Give out no slot of `instance` any more."""
        for group in self._groups.get(instance, ()):
            group.leaving = True
        self._free = [each for each in self._free if not each[2].leaving]
        heapify(self._free)

    def remove(self, instance: str) -> list[LiveSequence]:
        """Remove an instance, and return the sequences that had its slots."""
        self.close(instance)
        unseated: list[LiveSequence] = []
        for group in self._groups.pop(instance, ()):
            unseated += group.slots.values()
            group.slots.clear()
            group.ready.clear()
        return unseated

    def wait(self, sequence: LiveSequence, *, first: bool = False) -> None:
        """Put a sequence into the backlog, if it is not there; `first`: before the others."""
        self.backlog[sequence] = None
        if first:
            self.backlog.move_to_end(sequence, last=False)

    def assign(self) -> LiveSequence | None:
        """Give the lowest free slot to the next sequence of the backlog; return that, or None."""
        if not (self.backlog and self._free):
            return None
        sequence, _ = self.backlog.popitem(last=False)
        index, _, group = heappop(self._free)
        if index == group.fresh:
            group.fresh += 1
            if group.fresh < group.limit:
                heappush(self._free, (group.fresh, group.number, group))
        sequence.group, sequence.index = group, index
        group.slots[index] = sequence
        return sequence

    def release(self, sequence: LiveSequence) -> bool:
        """Take a sequence's slot from it, if it has one. Whether that slot is free for another one now."""
        group, sequence.group = sequence.group, None
        if group is None:
            return False
        del group.slots[sequence.index]
        if not group.leaving:
            heappush(self._free, (sequence.index, group.number, group))
        return not group.leaving
