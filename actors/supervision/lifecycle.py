"""A child's states, and the one table that says how they follow one another.

Two rules: a row's state changes only through `TRANSITIONS`, and each step is taken by the supervisor that
owns the row, never by the child. `END` and `DIE` are the same fact, a life that is over, told apart by what
follows: after `DIE` the supervisor is committed to another life.

    stopped ──BEGIN──► starting ──READY──► running ──STOP──► stopping ──END──► stopped
                          │                   │                 │
                          └────────DIE────────┴───────DIE───────┴─► backing_off ──BEGIN──► starting
                                                                         │
                                                                      EXHAUST
                                                                         └─► exhausted ──BEGIN──► starting
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class ChildState(Enum):
    """Where a child stands in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKING_OFF = "backing_off"
    EXHAUSTED = "exhausted"


class Step(Enum):
    """What can happen to a child."""

    BEGIN = "begin"
    READY = "ready"
    STOP = "stop"
    END = "end"
    DIE = "die"
    EXHAUST = "exhaust"


TRANSITIONS: Final[Mapping[tuple[ChildState, Step], ChildState]] = MappingProxyType(
    {
        (ChildState.STOPPED, Step.BEGIN): ChildState.STARTING,
        (ChildState.BACKING_OFF, Step.BEGIN): ChildState.STARTING,
        (ChildState.EXHAUSTED, Step.BEGIN): ChildState.STARTING,
        (ChildState.STARTING, Step.READY): ChildState.RUNNING,
        (ChildState.STARTING, Step.STOP): ChildState.STOPPING,
        (ChildState.RUNNING, Step.STOP): ChildState.STOPPING,
        # No task of it runs while it waits for its restart, so there is nothing to wait for.
        (ChildState.BACKING_OFF, Step.STOP): ChildState.STOPPED,
        (ChildState.EXHAUSTED, Step.STOP): ChildState.STOPPED,
        (ChildState.STARTING, Step.END): ChildState.STOPPED,
        (ChildState.RUNNING, Step.END): ChildState.STOPPED,
        (ChildState.STOPPING, Step.END): ChildState.STOPPED,
        (ChildState.STARTING, Step.DIE): ChildState.BACKING_OFF,
        (ChildState.RUNNING, Step.DIE): ChildState.BACKING_OFF,
        # Stopped in order to be restarted with its group.
        (ChildState.STOPPING, Step.DIE): ChildState.BACKING_OFF,
        (ChildState.BACKING_OFF, Step.EXHAUST): ChildState.EXHAUSTED,
    }
)

ALIVE: Final = frozenset({ChildState.STARTING, ChildState.RUNNING, ChildState.STOPPING})
"""States in which a task of the child runs."""

AWAITING: Final = frozenset({ChildState.BACKING_OFF, ChildState.EXHAUSTED})
"""States in which the child is down and its supervisor will start it again (OTP's `restarting`)."""


def follow(state: ChildState, step: Step) -> ChildState:
    """The state after `step`. Raises ValueError if `state` does not allow it: a bug in the supervisor."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise ValueError(f"a child that is {state.value} cannot {step.value}") from None
