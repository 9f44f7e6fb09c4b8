"""Which of the choices that an engine's death cut off are suspect, and how they begin again. Pure.

Any of them may have caused it; those in their first steps are the likeliest. So:

* A death that no request can cause (a SIGKILL from outside) makes none a suspect, unless it comes again and
  again under the same one.
* If some were in their first steps, they are the suspects, and else all that ran.
* Suspects begin again one at a time, those in their first steps last. One is acquitted by its first steps.
* The second death in a row under a suspect is its own: it is POISONED. And after some deaths in all, it is
  not tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from actors.generation.policy.journal import Choice
from actors.serving.policy.retries import UNEXPLAINED_BEFORE_REFUSED, UNEXPLAINED_BEFORE_SUSPECT

FIRST_STEPS: Final = 2
"""Tokens by which a choice has shown that an engine can begin with it."""

MOST_DEATHS: Final = 6
"""Deaths under one choice, whatever it got on between them, after which it is not tried again."""


class Findings(NamedTuple):
    """What follows from a death. Each choice is in one of them; each but the first keeps its order."""

    poisoned: Sequence[Choice]  # they are known to kill
    unlucky: Sequence[Choice]  # too many engines have died under them
    innocent: Sequence[Choice]  # they begin again at once
    suspect: Sequence[Choice]  # these one at a time, in this order


def look_into(lost: Sequence[Choice], *, blamed: bool) -> Findings:
    """Return who is to blame for the death of an engine that had begun with `lost`; counts it on them.

    `blamed`: a request may have caused it.
    """
    entering = [choice for choice in lost if choice.steps < FIRST_STEPS]
    culprits = frozenset((entering or lost) if blamed else ())
    poisoned: list[Choice] = []
    unlucky: list[Choice] = []
    innocent: list[Choice] = []
    suspect: list[Choice] = []
    for choice in lost:
        if choice.steps >= FIRST_STEPS:
            choice.deaths_in_row = choice.unexplained_in_row = 0
        if choice in culprits:
            choice.deaths += 1
            choice.deaths_in_row += 1
        elif not blamed:
            choice.unexplained_in_row += 1
        if choice.deaths_in_row > 1:
            poisoned.append(choice)
        elif choice.deaths >= MOST_DEATHS or choice.unexplained_in_row >= UNEXPLAINED_BEFORE_REFUSED:
            unlucky.append(choice)
        elif choice in culprits or choice.unexplained_in_row >= UNEXPLAINED_BEFORE_SUSPECT:
            suspect.append(choice)
        else:
            innocent.append(choice)
    suspect.sort(key=lambda choice: -choice.steps)
    return Findings(poisoned, unlucky, innocent, suspect)
