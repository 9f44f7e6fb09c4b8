"""`tritium serve` as it is, or with `TRITIUM_BENCHMARK_RANDOM`: prompts go to any engine that has room."""

from __future__ import annotations

import os
import random
import sys

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from actors.generation.policy.placement import Account, Placement, Route, Seat
from engine.server.machine import ThisMachine
from engine.server.run import run
from engine.settings.settings import Settings

AT_RANDOM = "TRITIUM_BENCHMARK_RANDOM"


class AtRandom:
    """Chooses in the place of `Placement`."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def choose(
        self, placement: Placement, seat: Seat, *, anywhere: bool = False
    ) -> tuple[Account, Route] | None:
        """See `Placement.choose`."""
        having = [
            each
            for each in placement.accounts.values()
            if anywhere or (each.admits(each.left_of(seat)) and each.fits(seat, placement.usual))
        ]
        return (self._random.choice(having), Route.LOAD) if having else None


def _choose_at_random(seed: str) -> None:
    at_random = AtRandom(seed)

    def choose(placement: Placement, seat: Seat, *, anywhere: bool = False) -> tuple[Account, Route] | None:
        return at_random.choose(placement, seat, anywhere=anywhere)

    Placement.choose = choose  # type: ignore[method-assign]  # what is measured beside it


if __name__ == "__main__":
    if AT_RANDOM in os.environ:
        _choose_at_random(os.environ[AT_RANDOM])
    sys.exit(run(Settings.from_argv(sys.argv[1:], os.environ), machine=ThisMachine()))
