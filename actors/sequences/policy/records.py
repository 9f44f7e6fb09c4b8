"""The records of a model's sequences: sequences, slots, and their counts.

Only `actors.sequences.policy.lives` and `actors.sequences.policy.batches` change them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from actors.sequences.policy.controls import Extra, Padding
from actors.values.requests import InferRequest

# A correlation id as clients give it, or a tuple for one that the server made: the two can't be equal.
Key: TypeAlias = int | str | tuple[int] | tuple[str, int | str]


class Ticket(NamedTuple):
    """A queued request's place in the order of arrival."""

    number: int
    enqueued_at: float
    timer: int  # of its own deadline; 0: none


class StateKey(NamedTuple):
    """A batch key of a model with states of variable size: sequences whose states differ can't be stacked."""

    inputs: object
    states: tuple[tuple[int, ...], ...]


class LiveSequence:
    """One sequence, from its START until its last request is answered. Equality is identity."""

    __slots__ = (
        "closing",
        "controls",
        "correlation_id",
        "group",
        "index",
        "key",
        "last_arrival",
        "patience",
        "queue",
        "running",
        "runs_in",
        "seated_at",
        "states",
        "ticket",
        "timer",
    )

    def __init__(self, key: Key, correlation_id: int | str, states: Extra) -> None:
        self.key = key
        self.correlation_id = correlation_id
        self.group: SlotGroup | None = None  # the group that its slot is in
        self.index = 0
        self.queue: deque[InferRequest] = deque()
        self.running: InferRequest | None = None
        self.runs_in: SlotGroup | None = None
        self.ticket = Ticket(0, 0.0, 0)  # of the running request
        self.closing = False  # its id no longer names it
        self.states = states
        self.controls: list[Extra | None] = [None, None, None, None]  # by flags
        self.last_arrival = 0.0
        self.seated_at = -math.inf
        # Runs until it is idle for too long, while it has a slot or nothing queued.
        self.timer = 0
        # When it leaves the backlog without a slot, and the timer of that.
        self.patience: tuple[float, int] = (math.inf, 0)


@dataclass(frozen=True, slots=True)
class Impatience:
    """The target of a timer that ends a sequence's wait in the backlog."""

    sequence: LiveSequence


Due: TypeAlias = LiveSequence | Impatience | InferRequest
"""What a timer of a model's sequences is set for: idleness, a wait in the backlog, or a deadline."""


class SlotGroup:
    """The slots of one lane of an instance."""

    def __init__(self, instance: str, number: int, limit: int, padding: Padding) -> None:
        self.instance = instance
        self.number = number
        self.limit = limit
        self.leaving = False  # its instance is about to go: no other sequence gets a slot
        self.fresh = 0  # slots from here on have never been used
        self.slots: dict[int, LiveSequence] = {}  # those that are taken
        self.ready: list[tuple[int, LiveSequence]] = []  # by arrival of their first requests
        self.running = 0  # requests of its batch that are not answered
        self.padding = padding


@dataclass(frozen=True, slots=True)
class Batch:
    """What a group runs now, padding included.

    `alone`: its one real request is suspected of killing workers.
    """

    requests: list[InferRequest]
    alone: bool = False
