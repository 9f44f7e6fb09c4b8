"""What the endpoint picker of a Kubernetes inference gateway reads of language models, by vLLM's names.

A picker takes one series of each family, so a version has one, whatever instances it has. Who waits is who
has no token yet: in the version's own queue, in the text worker or in the engine. The picker compares
servers by that, and a queue that it does not see would be filled further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from actors.generation.families import GenerationSample
from actors.values.families import Block, Families, Family, Labels, Slice, SplitFamily, blocks
from actors.values.specs import ModelKey, ModelSpec


class GatewaySample(NamedTuple):
    """A version at the moment of a scrape."""

    generation: GenerationSample
    cache_used: float | None  # of its engines' caches; None: none has told yet
    now: float  # seconds since the epoch


FAMILIES: Final[Families[GatewaySample]] = (
    Family(
        "vllm:num_requests_running",
        "gauge",
        "As tritium_llm_requests_running",
        lambda sample: sample.generation.running,
    ),
    Family(
        "vllm:num_requests_waiting",
        "gauge",
        "As tritium_llm_requests_waiting",
        lambda sample: sample.generation.waiting,
    ),
    Family(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "As tritium_llm_cache_usage_ratio, the mean of the version's instances",
        lambda sample: sample.cache_used,
    ),
    SplitFamily(
        "vllm:lora_requests_info",
        "gauge",
        "The adapters of requests, in labels; the value is the time of the scrape",
        lambda sample: _adapters(sample),
    ),
    SplitFamily(
        "vllm:cache_config_info",
        "gauge",
        "The size of the cache of an engine, in labels; the value is 1",
        lambda sample: _cache(sample),
    ),
)


def _adapters(sample: GatewaySample) -> Iterator[Slice]:
    used = sample.generation.adapters
    if used is None:
        return
    labels = {
        "max_lora": str(used.most),
        "running_lora_adapters": ",".join(used.running),
        "waiting_lora_adapters": ",".join(used.waiting),
    }
    yield Slice(sample.now, labels)


def _cache(sample: GatewaySample) -> Iterator[Slice]:
    size = sample.generation.cache
    if size is not None:
        yield Slice(1, {"block_size": str(size.block_size), "num_gpu_blocks": str(size.blocks)})


def gateway_blocks(
    generations: Iterable[tuple[ModelSpec, GenerationSample]],
    cache_used: Callable[[ModelKey, int], float | None],
    now: float,
) -> Iterator[Block]:
    """Yield each family, with a series for each version that is READY.

    `now` is in seconds since the epoch.
    """
    samples = [
        (Labels(_labels(spec)), GatewaySample(generation, cache_used(spec.key, spec.version), now))
        for spec, generation in generations
    ]
    return blocks(FAMILIES, samples)


def _labels(spec: ModelSpec) -> dict[str, str]:
    labels = {"model_name": spec.name, "engine": str(spec.version)}
    return {**labels, "namespace": spec.namespace} if spec.namespace else labels
