"""Dynamic batching: preferred sizes, priorities, queue policies (contract, model_config.md section 4.6)."""

from __future__ import annotations

from collections.abc import Iterator

from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy


def dynamic_batching(config: ModelConfig) -> Iterator[Problem]:
    """Check `dynamic_batching`, if it is set."""
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        yield from _preferred(config, batching)
        yield from _priorities(config, batching)
        yield from _ordering(config, batching)


def _preferred(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Problem]:
    key = "dynamic_batching.preferred_batch_size"
    if any(size <= 0 for size in batching.preferred_batch_size):
        yield Problem(
            message=f"dynamic batching preferred size must be positive for {config.name}",
            key=key,
            hint="leave it out to prefer the largest batch",
        )
    if any(size > max(config.max_batch_size, 0) for size in batching.preferred_batch_size):
        yield Problem(
            message=f"dynamic batching preferred size must be <= max batch size for {config.name}",
            key=key,
            hint=f"'max_batch_size' is {config.max_batch_size}",
        )


def _priorities(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Problem]:
    levels = batching.priority_levels
    if not levels:
        return
    if not 1 <= batching.default_priority_level <= levels:
        yield Problem(
            message=f"default priority level must be in range [1, {levels}] for {config.name}",
            key="dynamic_batching.default_priority_level",
            hint="it is the level of requests that name none",
        )
    beyond = [level for level in sorted(batching.priority_queue_policy) if not 1 <= level <= levels]
    if beyond:
        yield Problem(
            message=f"priority queue policy must have priority level in range [1, {levels}] for {config.name}",
            key=f'dynamic_batching.priority_queue_policy["{beyond[0]}"]',
            hint=f"'priority_levels' is {levels}",
        )


def _ordering(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Problem]:
    if not batching.preserve_ordering:
        return
    key = "dynamic_batching.preserve_ordering"
    if batching.priority_levels > 1:
        yield Problem(
            message=f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}",
            key=key,
            hint="leave out 'preserve_ordering' or 'priority_levels'",
        )
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(
        policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds
        for policy in policies
    ):
        yield Problem(
            message=(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"
                f" for {config.name}"
            ),
            key=key,
            hint="leave out 'preserve_ordering', or use timeout_action: REJECT",
        )
