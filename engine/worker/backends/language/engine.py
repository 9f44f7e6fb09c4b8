"""What drives a language model step by step: the seam between our loop and a library's engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.values.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STOP = "stop"
LENGTH = "length"


class StepOutput(NamedTuple):
    """What one step has made for one stream."""

    stream: int
    ids: Sequence[int] = ()
    chances: Sequence[Sequence[Sequence[Any]]] | None = None
    """If they were asked for: for each id a list of (id, logarithmic probability, rank), the chosen first."""
    facts: Mapping[str, Any] | None = (
        None  # of the prompt, with the first output: see `actors.generation.engine`
    )
    finish: str = ""  # STOP or LENGTH; empty: it goes on
    error: str = ""  # it has ended with this error, which is the request's and not the engine's
    embedding: Sequence[float] | None = None
    reason: int | None = None  # the id that has stopped it, if it is one that the request named
    invalid: bool = False  # whether `error` is about what was asked for


class Gauges(NamedTuple):
    """What an engine is busy with."""

    running: int = 0
    waiting: int = 0
    cache_used: float = 0.0  # part of the cache that sequences hold, from 0 to 1
    prefix_hits: int = 0  # tokens of prompts found in the cache, since the start
    prefix_queries: int = 0  # tokens of prompts looked for
    preemptions: int = 0
    steps: int = 0  # since the start, as the backend counts them


class StepEngine(ABC):
    """A loaded model. All calls come from one thread, the engine's, but those of `prepare`."""

    context: int
    """Tokens of a prompt and its answer together."""

    stops: Iterable[int] = ()
    """Ids that end a text, where a request does not ignore them."""

    resumes: Sequence[str] = ()
    """What it takes up behind ids that another engine generated (`actors.generation.policy.resuming`)."""

    identity: str = ""
    """Tells whether another engine is of the same model; empty where that is not known."""

    sleeps: Sequence[int] = ()
    """Levels at which it can be put to sleep (`actors.values.generation.sleeping`)."""

    @abstractmethod
    def prepare(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Any:
        """Return what `add` takes: all of a stream that can be checked and computed before it begins.

        The last ids are not the prompt's if `sampling` has a number of them that another engine `generated`.
        Called on the thread that takes requests in, so that nothing of it delays a step. Raises
        InvalidArgument.
        """

    def load_adapter(self, adapter: Mapping[str, str]) -> None:
        """Load a LoRA adapter ahead of the first request for it: `name`, `path` and `id`.

        A request has the same under `adapter` of its sampling. An `id` that is not empty is that of its files
        (`model_folder.identity_of`); others are refused. Raises InvalidArgument.
        """
        raise InvalidArgument("LoRA feature is not enabled.")

    def sleep(self, level: int) -> None:
        """Give memory up until `wake`, while there are no streams: at one of the levels in `sleeps`.

        An exception means that the engine is dead, here and in `wake`.
        """
        raise NotImplementedError(f"an engine that sleeps at levels {self.sleeps} was put to sleep")

    def wake(self) -> None:
        """Take up again what was given up. Nothing else is called in between but `gauges` and `busy`."""
        raise NotImplementedError("an engine was woken that does not sleep")

    def begin(self) -> None:
        """Make ready the thread that steps: called once on it, before all else."""
        return

    @abstractmethod
    def add(self, stream: int, prepared: Any) -> None:
        """Begin a stream with what `prepare` has returned for it. Raises InvalidArgument."""

    @abstractmethod
    def abort(self, streams: Sequence[int]) -> None:
        """End streams now; what they held of the cache is free before the next step."""

    @abstractmethod
    def step(self) -> Sequence[StepOutput]:
        """Go one step on with all streams that there is room for.

        An exception means that the engine is dead.
        """

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a step would do anything."""

    @abstractmethod
    def gauges(self) -> Gauges:
        """Return what it is busy with."""

    def facts(self) -> Mapping[str, Any]:
        """Return what the server is to know besides `context`, as JSON values.

        `root`: what the engine was told to load; `max_adapters`: how many LoRA adapters one step can use, if
        the engine serves any; `cache`: `block_size` and `blocks`, and `shared`: false if texts share no
        beginnings; `step_tokens`: those that one step computes at most; `log_stats`: false if the engine is
        to tell of nothing.
        """
        return {}

    def close(self) -> None:
        """Give back what it holds."""
        return
