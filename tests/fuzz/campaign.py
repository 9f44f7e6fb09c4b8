"""Running a fuzz target: inputs from a seed, what came of them, and the first that broke a rule.

An input is bytes and nothing else. Whatever more a target needs (where to cut, what to answer) it draws from
the input itself, so a file with the bytes is a whole reproducer.
"""

import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Protocol

CORPUS = Path(__file__).with_name("corpus")

HANG = 20.0
"""Seconds within which any input has to be done with. Inputs take about a millisecond; only an endless loop comes near."""


class Target(Protocol):
    """Something that reads bytes from strangers."""

    name: str
    prefix: str
    """How the names of its files in the corpus begin."""

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Make an input; `corpus` is not empty."""
        ...

    def check(self, octets: bytes) -> str:
        """Read `octets`; return the outcome in a word or two.

        Raises any exception (AssertionError, as a rule) if a rule is broken.
        """
        ...


class Finding(Exception):
    """An input broke a rule; `octets` reproduces it, the cause tells which."""

    def __init__(self, target: str, octets: bytes) -> None:
        super().__init__(f"{target}: {len(octets)} bytes")
        self.target = target
        self.octets = octets


class Hang(Exception):
    """An input took longer than `HANG` seconds."""


@dataclass(slots=True)
class Tally:
    """What a campaign has done so far."""

    inputs: int = 0
    octets: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


def chance_of(octets: bytes) -> Random:
    """Return the source of everything that a target decides about an input."""
    return Random(zlib.crc32(octets))


def corpus_of(target: Target) -> list[bytes]:
    """Return the target's committed inputs."""
    return [path.read_bytes() for path in sorted(CORPUS.glob(f"{target.prefix}_*.bin"))]


def replay(target: Target, octets: bytes) -> str:
    """Check one input. Raises Finding."""
    try:
        return target.check(octets)
    except Exception as error:
        raise Finding(target.name, octets) from error


def campaign(
    target: Target, *, inputs: int, seed: int, progress: Callable[[Tally], None] | None = None
) -> Tally:
    """Check the corpus, then inputs made from `seed`, `inputs` in all.

    Raises Finding at the first broken rule.
    """
    corpus = corpus_of(target)
    tally = Tally()
    with _alarm():
        for octets in _inputs(target, corpus, inputs, seed):
            if tally.inputs % 100 == 0:
                signal.setitimer(signal.ITIMER_REAL, HANG)
                if progress is not None and tally.inputs % 1000 == 0:
                    progress(tally)
            tally.outcomes[replay(target, octets)] += 1
            tally.inputs += 1
            tally.octets += len(octets)
    return tally


def _inputs(target: Target, corpus: list[bytes], inputs: int, seed: int) -> Iterator[bytes]:
    yield from corpus[:inputs]
    chance = Random(f"{seed} {target.name}")
    for _ in range(inputs - len(corpus)):
        yield target.generate(chance, corpus)


@contextmanager
def _alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _hang)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hang(_signal: int, _frame: FrameType | None) -> None:
    raise Hang(f"an input took more than {HANG:.0f} s")
