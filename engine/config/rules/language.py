"""Language models: what every one of them has, and what none may ask for.

The tensors are those of Triton's vLLM backend, whatever the engine is (contract, llm.md section 3). As there,
such a model is decoupled and has no batch dimension, whether its configuration says so or not. It is so
without auto-completion as well, where Triton's backend refuses the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from engine.models.problems import Problem
from engine.processes.backends import BackendTraits
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig, ModelInput

_INPUTS: Final = (
    ("text_input", DataType.TYPE_STRING, True),
    ("stream", DataType.TYPE_BOOL, True),
    ("sampling_parameters", DataType.TYPE_STRING, True),
    ("exclude_input_in_output", DataType.TYPE_BOOL, True),
    ("return_finish_reason", DataType.TYPE_BOOL, True),
    ("return_cumulative_logprob", DataType.TYPE_BOOL, True),
    ("return_logprobs", DataType.TYPE_BOOL, True),
    ("return_num_input_tokens", DataType.TYPE_BOOL, True),
    ("return_num_output_tokens", DataType.TYPE_BOOL, True),
    ("embedding_request", DataType.TYPE_STRING, True),
)
_OUTPUTS: Final = (
    ("text_output", DataType.TYPE_STRING, -1),
    ("finish_reason", DataType.TYPE_STRING, -1),
    ("cumulative_logprob", DataType.TYPE_FP32, -1),
    ("logprobs", DataType.TYPE_STRING, -1),
    ("num_input_tokens", DataType.TYPE_UINT32, 1),
    ("num_output_tokens", DataType.TYPE_UINT32, -1),
)


def fill_language(config: ModelConfig) -> None:
    """Add in place the tensors that are missing, and what every language model is."""
    inputs = {tensor.name for tensor in config.input}
    for name, datatype, optional in _INPUTS:
        if name not in inputs:
            config.input.append(ModelInput(name=name, data_type=datatype, dims=[1], optional=optional))
    outputs = {tensor.name for tensor in config.output}
    for name, datatype, size in _OUTPUTS:
        if name not in outputs:
            config.output.add(name=name, data_type=datatype, dims=[size])
    config.model_transaction_policy.decoupled = True
    config.max_batch_size = 0


def language(config: ModelConfig, traits: BackendTraits | None) -> Iterator[Problem]:
    """Check a completed configuration, if its backend is an engine of language models."""
    if traits is None or not traits.language:
        return
    yield from _tensors(config.name, "input", [(each.name, each.data_type) for each in config.input])
    yield from _tensors(config.name, "output", [(each.name, each.data_type) for each in config.output])
    for field in _batches(config):
        yield Problem(
            message=f"'{field}' is set for language model '{config.name}', whose engine makes batches",
            key=field,
            hint="leave it out; 'tritium.streams' bounds how many requests are under way",
        )
    if config.model_warmup:
        yield Problem(
            message=f"'model_warmup' is set for language model '{config.name}', which takes no samples",
            key="model_warmup",
            hint="leave it out: the engine warms itself up as it loads",
        )


def _batches(config: ModelConfig) -> Iterator[str]:
    """Yield what is set about batches. Levels and policies of the queue are about no batch, and are kept."""
    if config.HasField("sequence_batching"):
        yield "sequence_batching"
    if not config.HasField("dynamic_batching"):
        return
    set_here = {field.name for field, _ in config.dynamic_batching.ListFields()}
    if not set_here:
        yield "dynamic_batching"
    for name in ("preferred_batch_size", "max_queue_delay_microseconds", "preserve_ordering"):
        if name in set_here:
            yield f"dynamic_batching.{name}"


def _tensors(model: str, side: str, tensors: Sequence[tuple[str, int]]) -> Iterator[Problem]:
    known = {name: datatype for name, datatype, *_ in (_INPUTS if side == "input" else _OUTPUTS)}
    for at, (name, datatype) in enumerate(tensors):
        wanted = known.get(name)
        if wanted is None:
            yield Problem(
                message=f"model {side} '{name}' is none that a language model has for {model}",
                key=f"{side}[{at}]",
                hint=f"leave all {side}s out, and they are filled in: {', '.join(known)}",
            )
        elif datatype != wanted:
            yield Problem(
                message=f"model {side} '{name}' has the wrong data type for {model}",
                key=f"{side}[{at}].data_type",
                hint=f"write data_type: {DataType.Name(wanted)}",
            )
