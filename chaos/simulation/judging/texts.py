"""Whether what a language model's client got is right, and which errors the rule of resumption allows. Pure.

The rule is told in docs/llm.md, "Answers outlive their engine".
"""

from __future__ import annotations

from collections.abc import Iterator

from actors.generation.policy.suspects import MOST_DEATHS
from chaos.simulation.judging.control import BARELY
from chaos.simulation.outcomes import Outcome
from chaos.simulation.plan import Told


def complaints(outcome: Outcome, told: Told) -> Iterator[str]:
    """Yield what is wrong with a text, whether its client has all of it or left, or was told an error."""
    for choice, text in outcome.texts.items():
        if not told.right.startswith(text):
            yield f"the text of choice {choice} is no beginning of {told.right!r}"
    if outcome.twice:
        yield f"{outcome.twice} pieces behind the end of a choice"
    if outcome.late and not out_of_time(outcome):
        yield "it was ended by a deadline that was not over"
    if outcome.ok and told.asked.dies:
        yield "a good answer to a prompt that kills"


def right(outcome: Outcome, told: Told) -> bool:
    """Whether each choice has ended, with all of its text and for the right reason, or by its deadline."""
    if set(outcome.finishes) != set(range(told.choices)):
        return False
    if outcome.late:
        return all(each in ("length", told.finish) for each in outcome.finishes.values())
    found = [outcome.texts[choice] for choice in range(told.choices)]
    return found == [told.right] * told.choices and set(outcome.finishes.values()) == {told.finish}


def out_of_time(outcome: Outcome) -> bool:
    """Whether its own deadline was over."""
    took = outcome.ended - outcome.began + BARELY
    return bool(outcome.request.deadline) and took >= outcome.request.deadline


def not_resumed(outcome: Outcome, told: Told, deaths: int) -> bool:
    """Whether the rule lets an answer end with UNAVAILABLE after so many deaths under it."""
    if "does not go on in another engine" in outcome.message:
        return deaths > 0 and told.choices > 1 and bool(outcome.texts)
    return "not tried once more" in outcome.message and deaths >= MOST_DEATHS
