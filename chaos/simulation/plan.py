"""What one simulation is made of: requests, faults, changes and orders, as values.

`chaos.simulation.scenario` draws them from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from chaos.languages.page import Asked

Wire = Literal["core", "http", "grpc", "stream", "openai"]
Watched = Literal["metrics", "live", "ready", "statistics", "index", "model"]

LENGTH: Final = 12.0  # seconds in which requests are sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a language model is asked for (`chaos.languages.page`), and how its client reads."""

    asked: Asked
    most: int = 0  # tokens; 0: as many as the prompt says
    stops: tuple[str, ...] = ()
    choices: int = 1
    streams: bool = True
    pause: float = 0.0  # seconds that the client takes to read a part

    @property
    def right(self) -> str:
        """The text of each choice."""
        return self.asked.text(self.most or None, self.stops)

    @property
    def finish(self) -> str:
        """Why each choice ends."""
        whole = self.asked.text(self.most or None)
        stopped = any(stop in whole for stop in self.stops)
        return "stop" if stopped or not self.most or self.asked.tokens < self.most else "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a client, or the next of a sequence."""

    id: str
    # Seconds after the beginning; for the later requests of a sequence, seconds after the answer before.
    at: float
    model: str
    values: tuple[int, ...]  # one a row
    wire: Wire
    patience: float = 0.0  # seconds after which the client leaves; 0: never
    timeout: float = 0.0  # seconds that it may wait in the queue
    deadline: float = 0.0  # seconds that all of it may take
    priority: int = 0
    poison: str = ""
    raises: bool = False
    sequence: int = 0
    start: bool = False
    end: bool = False
    hold: float = 0.0  # seconds for which the client keeps the answer's memory
    told: Told | None = None  # what a language model is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong, or changes.

    `what` is one of the methods of `chaos.simulation.faults.Faults`.
    """

    at: float
    what: str
    model: str = ""
    detail: str = ""
    seconds: float = 0.0  # how long it lasts, or how late in an execution it comes
    seed: int = 0  # for choices that depend on what is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an operator asks of the repository API."""

    at: float
    what: Literal["load", "unload"]
    model: str
    wire: Wire
    dependents: bool = False  # `unload_dependents`


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What an observer asks. Metrics are asked for by HTTP alone."""

    at: float
    what: Watched
    wire: Literal["http", "grpc"]
    model: str = ""  # of which it is asked whether it is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation. `sequences` are sent one request after the other; `requests` are not.

    Without a `startup` the server polls its repository. With one it has explicit model control, and loads
    these models at first.
    """

    seed: int
    models: Sequence[str]
    requests: Sequence[Request]
    sequences: Sequence[Sequence[Request]]
    faults: Sequence[Fault]
    startup: Sequence[str] | None = None
    orders: Sequence[Order] = ()
    looks: Sequence[Look] = ()
    recycle: Mapping[str, str] = field(default_factory=dict)  # by model: `tritium.recycle`

    def describe(self) -> str:
        """Return it in a few lines."""
        count = len(self.requests) + sum(map(len, self.sequences))
        mode = "" if self.startup is None else f"; explicit, at first {', '.join(self.startup) or 'nothing'}"
        told = [(each.at, f"{each.what} {each.model} {each.detail} {each.seconds:g}") for each in self.faults]
        told += [(each.at, f"order by {each.wire}: {each.what} {each.model}") for each in self.orders]
        lines = "".join(f"\n  {at:7.3f} {text}" for at, text in sorted(told))
        return f"seed {self.seed}: {', '.join(self.models)}; {count} requests{mode}{lines}"
