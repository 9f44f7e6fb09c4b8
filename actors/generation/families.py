"""What is told of a version's generations in numbers, under the same names for every engine. Passive.

All is counted once a request, at its end: a token costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.serving.families import cumulated
from actors.serving.statistics import Histogram
from actors.values.families import Families, Family, Slice, SplitFamily
from actors.values.generation.sleeping import SLEEP_STATES

if TYPE_CHECKING:
    from actors.generation.generation import Generation
    from actors.generation.policy.journal import Choice

SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""Bounds of the histogram of times to the first token: vLLM's."""

BETWEEN: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0
)  # fmt: skip
"""Bounds of the histogram of times between tokens."""

WHOLE: Final = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0,
    10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 480.0, 1920.0,
)  # fmt: skip
"""Bounds of the histogram of whole requests."""

TOKENS: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000,
    10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
)  # fmt: skip
"""Bounds of the histograms of tokens: vLLM's, as far as any context goes."""

SEQUENCES: Final = (1, 2, 5, 10, 20)


class RequestSizes:
    """How large requests are: told only where the operator has asked for it."""

    def __init__(self) -> None:
        self.prompt = Histogram(TOKENS)
        self.generated = Histogram(TOKENS)
        self.sequences = Histogram(SEQUENCES)


class GenerationCounts:
    """What is counted of one version. What makes no tokens (`tokenize`) is not."""

    def __init__(self, sizes: RequestSizes | None = None) -> None:
        self.sizes = sizes
        self.cancelled = 0
        self.late = 0
        self.again = self.onward = 0  # choices that another engine took over when theirs had died
        self.moved = 0  # and before theirs was ended
        self.recomputed_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.first_token = Histogram(SECONDS)
        self.between_tokens = Histogram(BETWEEN)
        self.whole = Histogram(WHOLE)

    def resumed(self, choice: Choice, *, dead: bool) -> None:
        """Another engine takes over a choice: behind its ids, or from the beginning."""
        if not dead:
            self.moved += 1
        elif choice.ids:
            self.onward += 1
        else:
            self.again += 1
        self.recomputed_tokens += len(choice.prompt.ids) + len(choice.ids)

    def ended(self, generation: Generation, now: float) -> None:
        """A generation is over. Without an answer of the engine it counts nothing here."""
        journal = generation.journal
        if journal is None or not (generation.embedded or generation.first_at >= 0.0):
            return
        prompt = sum(len(prompt.ids) for prompt in journal.prompts)
        self.prompt_tokens += prompt
        self.cached_tokens += journal.cached
        accepted_at = generation.request.accepted_at
        self.whole.observe(now - accepted_at)
        if generation.first_at < 0.0:
            return
        generated = sum(len(choice.ids) for choice in journal.choices)
        self.generated_tokens += generated
        if self.sizes is not None:
            self.sizes.prompt.observe(prompt)
            self.sizes.generated.observe(generated)
            self.sizes.sequences.observe(generation.ask.sampling.n)
        self.first_token.observe(generation.first_at - accepted_at)
        steps = max(len(choice.ids) for choice in journal.choices) - 1
        if steps > 0:
            self.between_tokens.observe((generation.token_at - generation.first_at) / steps, steps)


class AdapterUse(NamedTuple):
    """Which adapters requests name, each once."""

    most: int  # adapters that one step of the engine can use
    running: Sequence[str]
    waiting: Sequence[str]


class CacheSize(NamedTuple):
    """How large an engine's cache is."""

    block_size: int  # tokens
    blocks: int


class EngineLoad(NamedTuple):
    """What one engine was given."""

    name: str
    runs: int
    queued: int  # tokens of prompts that have brought no token yet
    held: int  # blocks of its cache
    known: int  # blocks that it is thought to have

    @property
    def told(self) -> dict[str, int]:
        """What the tree shows of it."""
        return {"runs": self.runs, "queued_prompt_tokens": self.queued, "blocks": self.held}


class RouteCount(NamedTuple):
    """What was given to engines that were chosen for one reason."""

    route: str
    runs: int
    looked_up: int  # tokens of prompts
    found: int  # those of them that the engine was thought to have


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSample:
    """A language model's version at the moment of a scrape. `counts` is its own object."""

    counts: GenerationCounts
    running: int
    waiting: int
    texts_restored: int
    vllm: bool = False  # tell the families of Triton's vLLM backend, too
    adapters: AdapterUse | None = None  # if the engine serves any
    cache: CacheSize | None = None
    in_line: int = 0
    engines: Sequence[EngineLoad] = ()
    routes: Sequence[RouteCount] = ()
    sleep_states: Sequence[tuple[str, str]] = ()  # of each engine, if they may be put to sleep


FAMILIES: Final[Families[GenerationSample]] = (
    Family(
        "tritium_llm_requests_running",
        "gauge",
        "Requests to a language model whose first token has come",
        lambda sample: sample.running,
    ),
    Family(
        "tritium_llm_requests_waiting",
        "gauge",
        "Requests to a language model that wait for their first token, those in the queue included",
        lambda sample: sample.waiting,
    ),
    SplitFamily(
        "tritium_llm_time_to_first_token_seconds",
        "histogram",
        "From the request to its first token",
        lambda sample: _series(sample.counts.first_token),
    ),
    SplitFamily(
        "tritium_llm_inter_token_seconds",
        "histogram",
        "Time between two tokens of a choice: of each request the mean, as often as it had one",
        lambda sample: _series(sample.counts.between_tokens),
    ),
    SplitFamily(
        "tritium_llm_request_seconds",
        "histogram",
        "From the request to the end of its answer, whatever ended it",
        lambda sample: _series(sample.counts.whole),
    ),
    Family(
        "tritium_llm_prompt_tokens_total",
        "counter",
        "Tokens of prompts",
        lambda sample: sample.counts.prompt_tokens,
    ),
    Family(
        "tritium_llm_cached_tokens_total",
        "counter",
        "Those of them that the engine had in its cache",
        lambda sample: sample.counts.cached_tokens,
    ),
    Family(
        "tritium_llm_generated_tokens_total",
        "counter",
        "Tokens that were generated",
        lambda sample: sample.counts.generated_tokens,
    ),
    Family(
        "tritium_llm_requests_cancelled_total",
        "counter",
        "Requests that were called off after they had left the queue, as when the client leaves",
        lambda sample: sample.counts.cancelled,
    ),
    Family(
        "tritium_llm_requests_late_total",
        "counter",
        "Requests whose deadline passed after they had left the queue",
        lambda sample: sample.counts.late,
    ),
    SplitFamily(
        "tritium_llm_choices_resumed_total",
        "counter",
        "Choices that another engine took over when theirs had died, begun again or gone on with",
        lambda sample: _resumed(sample.counts),
    ),
    Family(
        "tritium_llm_choices_moved_total",
        "counter",
        "Choices that another engine took over because theirs was recycled or scaled down",
        lambda sample: sample.counts.moved,
    ),
    Family(
        "tritium_llm_recomputed_tokens_total",
        "counter",
        "Tokens of prompts and answers that engines were given for that",
        lambda sample: sample.counts.recomputed_tokens,
    ),
    Family(
        "tritium_llm_streams_restored_total",
        "counter",
        "Requests that went on in a new text worker after the death of one",
        lambda sample: sample.texts_restored,
    ),
    Family(
        "tritium_llm_runs_in_line",
        "gauge",
        "Choices whose prompts are ready and that no engine has room for",
        lambda sample: sample.in_line,
    ),
    SplitFamily(
        "tritium_llm_engine_runs",
        "gauge",
        "Choices that an engine has",
        lambda sample: _of_engines(sample, lambda each: each.runs),
    ),
    SplitFamily(
        "tritium_llm_engine_queued_prompt_tokens",
        "gauge",
        "Tokens of prompts that an engine was given, and of which no token has come",
        lambda sample: _of_engines(sample, lambda each: each.queued),
    ),
    SplitFamily(
        "tritium_llm_engine_held_blocks",
        "gauge",
        "Blocks of an engine's cache that its choices hold, as the server counts them",
        lambda sample: _of_engines(sample, lambda each: each.held),
    ),
    SplitFamily(
        "tritium_llm_engine_known_blocks",
        "gauge",
        "Blocks that an engine is thought to have, by which prompts are sent to it",
        lambda sample: _of_engines(sample, lambda each: each.known),
    ),
    SplitFamily(
        "tritium_llm_engine_sleep_state",
        "gauge",
        "Whether an engine is awake, sleeps with its weights in main memory, or without: 1 for what it does",
        lambda sample: _sleep_states(sample),
    ),
    SplitFamily(
        "tritium_llm_routed_runs_total",
        "counter",
        "Choices that engines were given, by why that engine was chosen",
        lambda sample: _by_route(sample, lambda each: each.runs),
    ),
    SplitFamily(
        "tritium_llm_routed_prompt_tokens_total",
        "counter",
        "Tokens of their prompts",
        lambda sample: _by_route(sample, lambda each: each.looked_up),
    ),
    SplitFamily(
        "tritium_llm_routed_prefix_tokens_total",
        "counter",
        "Those of them that the engine was thought to have in its cache",
        lambda sample: _by_route(sample, lambda each: each.found),
    ),
)


OF_VLLM_BACKEND: Final[Families[GenerationSample]] = (
    Family(
        "vllm:prompt_tokens_total",
        "counter",
        "As tritium_llm_prompt_tokens_total",
        lambda sample: sample.counts.prompt_tokens,
    ),
    Family(
        "vllm:generation_tokens_total",
        "counter",
        "As tritium_llm_generated_tokens_total",
        lambda sample: sample.counts.generated_tokens,
    ),
    SplitFamily(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "As tritium_llm_time_to_first_token_seconds",
        lambda sample: _series(sample.counts.first_token),
    ),
    SplitFamily(
        "vllm:time_per_output_token_seconds",
        "histogram",
        "As tritium_llm_inter_token_seconds",
        lambda sample: _series(sample.counts.between_tokens),
    ),
    SplitFamily(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "As tritium_llm_request_seconds",
        lambda sample: _series(sample.counts.whole),
    ),
    SplitFamily(
        "vllm:request_prompt_tokens",
        "histogram",
        "Tokens of a request's prompt",
        lambda sample: _series(sample.counts.sizes.prompt) if sample.counts.sizes else (),
    ),
    SplitFamily(
        "vllm:request_generation_tokens",
        "histogram",
        "Tokens that were generated for a request, in all its sequences",
        lambda sample: _series(sample.counts.sizes.generated) if sample.counts.sizes else (),
    ),
    SplitFamily(
        "vllm:request_params_n",
        "histogram",
        "Sequences that a request has asked for",
        lambda sample: _series(sample.counts.sizes.sequences) if sample.counts.sizes else (),
    ),
)
"""Those of Triton's vLLM backend, by its names (contract, llm.md section 3)."""


def _of_engines(sample: GenerationSample, value: Callable[[EngineLoad], int]) -> Iterator[Slice]:
    for each in sample.engines:
        yield Slice(value(each), {"engine": each.name})


def _sleep_states(sample: GenerationSample) -> Iterator[Slice]:
    for engine, told in sample.sleep_states:
        for state in SLEEP_STATES:
            yield Slice(int(state == told), {"engine": engine, "sleep_state": state})


def _by_route(sample: GenerationSample, value: Callable[[RouteCount], int]) -> Iterator[Slice]:
    for each in sample.routes:
        yield Slice(value(each), {"route": each.route})


def _resumed(counts: GenerationCounts) -> Iterator[Slice]:
    yield Slice(counts.again, {"from": "beginning"})
    yield Slice(counts.onward, {"from": "journal"})


def _series(histogram: Histogram) -> Iterator[Slice]:
    return cumulated(histogram.bounds, histogram.counts, histogram.total, {})
