"""Warmup samples, as far as their data files don't matter (contract, scheduling.md section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig, ModelWarmup

# Triton prepares warmup inputs as a request without an id, and its prefix shows.
WARMUP_PREFIX: Final = "[request id: <id_unknown>] "
_LARGEST_BATCH: Final = 65_536  # each is a request in memory


def warmup(config: ModelConfig) -> Iterator[Problem]:
    """Check `model_warmup`; samples of batch size 0 are skipped."""
    for at, sample in enumerate(config.model_warmup):
        yield from sample_problems(config, sample, f"model_warmup[{at}]")


def sample_problems(config: ModelConfig, sample: ModelWarmup, where: str) -> Iterator[Problem]:
    """Check one sample, whose key is `where`."""
    if not sample.batch_size:
        return
    if sample.batch_size > _LARGEST_BATCH:
        yield Problem(
            message=(
                f"warmup sample '{sample.name}' for {config.name} has batch size {sample.batch_size},"
                f" more than {_LARGEST_BATCH}"
            ),
            key=f"{where}.batch_size",
            hint="use 'count' to run a sample more often",
        )
    for name, tensor in sorted(sample.inputs.items()):
        key = f'{where}.inputs["{name}"]'
        if tensor.data_type == DataType.TYPE_INVALID or tensor.data_type not in DataType.values():
            yield Problem(
                message=f"warmup setting expects input '{name}' to have 'data_type' set",
                key=key,
                hint="such as data_type: TYPE_FP32",
            )
        if any(dim < 0 for dim in tensor.dims):
            yield Problem(
                message=f"warmup setting expects all variable-size dimensions are specified for input '{name}'",
                key=f"{key}.dims",
                hint="write the sizes, without the batch dimension",
            )
        if tensor.WhichOneof("input_data_type") is None:
            yield Problem(
                message=f"{WARMUP_PREFIX}warmup setting expects input '{name}' to have input_data_type set",
                key=key,
                hint="add: random_data: true",
            )
