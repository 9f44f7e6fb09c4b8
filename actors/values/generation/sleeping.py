"""Whether an engine of a language model sleeps, or all engines of a version do.

    AWAKE     it takes requests
    FALLING   it takes no new ones; it falls asleep when it has answered those that it has
    ASLEEP    its process lives, and has given memory back
    WAKING    it takes that memory again

One that could not fall asleep goes back to AWAKE, or to WAKING where others of its version sleep by then. A
version is AWAKE from ASLEEP where there is nothing to wake.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class SleepState(Enum):
    """See the module."""

    AWAKE = "awake"
    FALLING = "falling asleep"
    ASLEEP = "asleep"
    WAKING = "waking"


SLEEP_CHANGES: Final[Mapping[SleepState, frozenset[SleepState]]] = {
    SleepState.AWAKE: frozenset({SleepState.FALLING}),
    SleepState.FALLING: frozenset({SleepState.ASLEEP, SleepState.WAKING, SleepState.AWAKE}),
    SleepState.ASLEEP: frozenset({SleepState.WAKING, SleepState.AWAKE}),
    SleepState.WAKING: frozenset({SleepState.AWAKE}),
}

SLEEP: Final = "sleep"
"""The key of an engine's `sampling` that has it fall asleep: with a level, as vLLM counts them.

    1   the weights stay in main memory, and the cache is given up
    2   the weights are dropped, too, and read again when it wakes
"""

WAKE: Final = "wake"
"""The key of an engine's `sampling` that wakes it."""

MOST_LEVEL: Final = 2

SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")
"""By level, what metrics call an engine: vLLM's words."""
