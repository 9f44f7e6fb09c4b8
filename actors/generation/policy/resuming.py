"""What becomes of a choice whose engine has died: begun again, gone on with, ended, or given up. Pure.

    nothing of the answer was sent    it begins again: that is right whatever was asked for
    some was                          another engine gets the ids of the prompt and all generated ones, and
                                      goes on behind them, unless what it says would not be what the first
                                      one would have said; see `obstacle`

An engine that is to leave still lives. So a choice that would be given up stays there as long as it may, and
one that can go on goes on, sent or not: nothing of it was lost.

An engine says in its facts what it can go on with (`Resumes`). Text is no matter here: the text worker has
seen every id, and is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from actors.generation.policy.journal import Choice
from actors.values.generation.asking import Ask
from actors.values.generation.pieces import LENGTH, STOP

GENERATED: Final = "generated"
"""The key of an engine's `sampling` that says how many of its input ids were generated, the last ones."""


class Resumes(NamedTuple):
    """What an engine can take up behind ids that it did not generate itself."""

    seeds: bool = False  # its random numbers follow from seed and position
    penalties: bool = False  # it counts the given ids as generated, for penalties and forbidden words
    grammars: bool = False  # it leads a grammar over the given ids

    @classmethod
    def of(cls, told: object) -> Resumes:
        """Return what an engine's facts say, a list of names."""
        names = told if isinstance(told, (list, tuple)) else ()
        return cls(*(name in names for name in cls._fields))


class Fate(Enum):
    """What becomes of a choice."""

    AGAIN = "again"
    ONWARD = "onward"
    LOST = "lost"


def fate_of(
    ask: Ask, choice: Choice, *, choices: int, sent: bool, engine: Resumes | None, dead: bool = True
) -> tuple[Fate, str]:
    """Return what becomes of a choice, and for LOST why it can't go on.

    `choices` is how many the request has. `sent`: the client has some of the answer. `engine` is None where
    no answer is to go on. `dead`: its engine has died, and is not only about to leave.
    """
    if engine is None:
        return Fate.LOST, "no answer of this model goes on in another engine (tritium.resume)"
    if not sent and (dead or not choice.ids):
        return Fate.AGAIN, ""
    why = obstacle(ask, choice.sampling, choices=choices, engine=engine)
    if not why:
        return Fate.ONWARD, ""
    return (Fate.LOST, why) if sent else (Fate.AGAIN, "")


def obstacle(ask: Ask, sampling: Mapping[str, Any], *, choices: int, engine: Resumes) -> str:
    """Return why an answer of which some was sent can't go on in another engine; empty if it can."""
    if choices > 1:
        return f"an answer of {choices} choices does not go on in another engine"
    if sampling.get("seed") is not None and sampling.get("temperature") and not engine.seeds:
        return "another engine would follow its seed from the beginning"
    if sampling.get("grammar") and not engine.grammars:
        return "another engine could not take up its grammar in the middle"
    if not engine.penalties:
        named = [name for name in _COUNTING if sampling.get(name)]
        if named:
            return f"another engine would count nothing of the answer so far for its {named[0]}"
    if sampling.get("prompt_logprobs") is not None or (ask.echo and sampling.get("logprobs") is not None):
        return "an answer with probabilities of its prompt does not go on in another engine"
    return ""


_COUNTING: Final = ("presence_penalty", "frequency_penalty", "bad_words_ids", "no_repeat_ngram_size")


def end_of(choice: Choice, *, stops: Sequence[int], context: int) -> str:
    """Return the finish of a choice whose engine died behind its last id; empty if there is more to come.

    `stops` are the ids that end any text.
    """
    ids, sampling = choice.ids, choice.sampling
    if ids:
        last = ids[-1]
        if last in sampling.get("stop_token_ids", ()) or (last in stops and not sampling.get("ignore_eos")):
            return STOP
    most = min(sampling["max_tokens"], context - len(choice.prompt.ids))
    return LENGTH if len(ids) >= most else ""


def onward(sampling: Mapping[str, Any], generated: int) -> dict[str, Any]:
    """Return the sampling for an engine that goes on behind `generated` ids."""
    told = {**sampling, "max_tokens": sampling["max_tokens"] - generated, GENERATED: generated}
    if told.get("min_tokens"):
        told["min_tokens"] = max(0, told["min_tokens"] - generated)
    return told
