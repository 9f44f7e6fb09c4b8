"""What clients of a language model ask in one simulation, and what is done to it, drawn from a seed."""

from __future__ import annotations

from random import Random
from typing import Final

from chaos.languages.page import STOPS, Asked
from chaos.simulation.plan import LENGTH, Fault, Request, Told, Wire

MODEL: Final = "teller"
OFTEN: Final = 0.4
"""The share of seeds that have a language model."""

POINTS: Final = ("generation.turn", "assigner.turn")
"""The fault points that only language models pass."""

_SIGNALS: Final = ("9", "9", "11", "15")
_MISDEEDS: Final = ("segv", "killed", "oom", "exit", "close", "garbage", "hang", "slow")


def draw(seed: int) -> tuple[list[Request], list[Fault]]:
    """Return requests and faults; none for seeds without a language model."""
    random = Random(f"languages {seed}")
    if random.random() >= OFTEN:
        return [], []
    requests = [_request(random, number) for number in range(random.randint(8, 24))]
    faults = [_fault(random) for _ in range(random.randint(2, 8))]
    return requests, faults + _naps(seed)


def _naps(seed: int) -> list[Fault]:
    """Return when engines are put to sleep, and for how long at most. Their generator is their own."""
    random = Random(f"naps {seed}")
    return [
        Fault(
            at=_moment(random, random.uniform(0.05, 1.0)),
            what="sleep",
            model=MODEL,
            seconds=round(random.uniform(0.01, 3.0), 3),
            seed=random.randint(0, 10**6),
        )
        for _ in range(random.choice((0, 0, 1, 2, 4)))
    ]


def _request(random: Random, number: int) -> Request:
    odd = random.random()
    dies = 0.2 < odd < 0.23
    asked = Asked(
        random.choice((random.randint(10, 40), random.randint(60, 150))), random.randint(0, 58), dies
    )
    wire: Wire = random.choice(("core", "openai"))
    told = Told(
        asked=asked,
        most=0 if dies else random.choice((0, 0, 1, random.randint(2, 160), random.randint(30, 120))),
        stops=() if dies else tuple(random.sample(STOPS, random.choice((0, 0, 1, 2)))),
        choices=random.choice((1, 1, 1, 1, 2)),
        streams=random.random() < 0.75,
        pause=random.choice((0.0, 0.0, 0.01, 0.3)),
    )
    return Request(
        id=f"t{number}",
        at=_moment(random, 0.0),
        model=MODEL,
        values=(asked.tokens, asked.begin, dies),
        wire=wire,
        patience=round(random.uniform(0, 1.0), 3) if odd < 0.1 else 0.0,
        deadline=round(random.uniform(0.05, 3.0), 3) if 0.1 < odd < 0.2 else 0.0,
        told=told,
    )


def _moment(random: Random, later: float) -> float:
    """Return when something happens. Half of it is at few moments, so that streams run, and die, together."""
    if random.random() < 0.5:
        return round(random.uniform(0.1, LENGTH), 3)
    return round(random.randint(0, 3) + later, 3)


def _fault(random: Random) -> Fault:
    what = random.choices(
        ("signal", "texts", "misdeed", "suspend", "trouble", "crash", "touch", "version"),
        (10, 5, 4, 1, 1, 2, 1, 1),
    )[0]
    detail = ""
    if what == "signal":
        detail = random.choice(_SIGNALS)
    elif what == "misdeed":
        detail = random.choice(_MISDEEDS)
    elif what == "trouble":
        detail = random.choice(("refuse", "die", "dawdle"))
    elif what == "crash":
        detail = random.choice(POINTS)
    return Fault(
        at=_moment(random, random.uniform(0.05, 1.0)),
        what=what,
        model=MODEL,
        detail=detail,
        seconds=random.choice((0.0, 0.01)) if what == "misdeed" else round(random.uniform(0.01, 2.0), 3),
        seed=random.randint(0, 10**6),
    )
