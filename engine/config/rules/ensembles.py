"""Ensembles, as far as their own configuration says (contract, model_config.md section 4.8).

What depends on the models that they are made of is in `engine.config.rules.composition`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from engine.config.complete import ENSEMBLE
from engine.models.problems import Problem, did_you_mean
from protocols.kserve.proto.model_config_pb2 import ModelConfig

_STEPS: Final = "ensemble_scheduling.step"


@dataclass(slots=True)
class _Tensor:
    """A tensor of the graph: which steps' inputs it is made of, and what is made of it."""

    sources: list[str] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    written: bool = False  # by a step
    ready: bool = False  # once everything that it is made of is


def ensemble(config: ModelConfig) -> Iterator[Problem]:
    """Check that a configuration is either of an ensemble in every respect, or in none."""
    name = config.name
    scheduled = config.HasField("ensemble_scheduling")
    if config.platform != ENSEMBLE:
        if scheduled:
            yield Problem(
                message=f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
                key="ensemble_scheduling",
                hint='write platform: "ensemble", and no backend',
            )
        return
    if config.backend:
        yield Problem(
            message=f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type",
            key="backend",
            hint="leave 'backend' out",
        )
    if not scheduled:
        yield Problem(
            message=f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble",
            key="platform",
            hint="add: ensemble_scheduling { step [ … ] }",
        )
        return
    if config.instance_group:
        yield Problem(
            message=f"instance group should not be specified for ensemble '{name}'",
            key="instance_group",
            hint="leave it out: the models of its steps have instances",
        )
    if config.HasField("optimization"):
        yield Problem(
            message=f"optimization should not be specified for ensemble '{name}'",
            key="optimization",
            hint="leave it out: it belongs to the models of the steps",
        )
    if config.model_warmup:
        yield Problem(
            message=f"model_warmup can not be specified for ensemble '{name}'",
            key="model_warmup",
            hint="leave it out: warm up the models of the steps",
        )
    if not config.ensemble_scheduling.step:
        yield Problem(
            message=f"must specify 'step' for ensemble '{name}'",
            key="ensemble_scheduling",
            hint='add: step { model_name: "…" model_version: -1 input_map { … } output_map { … } }',
        )
        return
    incomplete = list(_steps(config))
    yield from incomplete
    if not incomplete:  # else the graph has holes that are told already
        tensors: dict[str, _Tensor] = {}
        yield from _link(config, tensors)
        yield from _flow(config, tensors)


def _steps(config: ModelConfig) -> Iterator[Problem]:
    for number, step in enumerate(config.ensemble_scheduling.step):
        for needed in ("model_name", "input_map", "output_map"):
            if not getattr(step, needed):
                yield Problem(
                    message=f"must specify '{needed}' in step {number} of ensemble '{config.name}'",
                    key=f"{_STEPS}[{number}]",
                    hint='add: model_name: "…"'
                    if needed == "model_name"
                    else f'add: {needed} {{ key: "<the model\'s tensor>" value: "<the ensemble\'s>" }}',
                )


def _link(config: ModelConfig, tensors: dict[str, _Tensor]) -> Iterator[Problem]:
    """Fill `tensors` with the graph of the steps."""
    for number, step in enumerate(config.ensemble_scheduling.step):
        made: list[str] = []
        for output in sorted(step.output_map):
            name = step.output_map[output]
            tensor = tensors.setdefault(name, _Tensor())
            if tensor.written:
                yield Problem(
                    message=(
                        f"ensemble tensor '{name}' can appear in an output map only once for ensemble"
                        f" '{config.name}' step {number}"
                    ),
                    key=f'{_STEPS}[{number}].output_map["{output}"]',
                    hint="give it another name here",
                )
            tensor.written = True
            made.append(name)
        for name in step.input_map.values():
            tensors.setdefault(name, _Tensor()).uses += made
            for output in made:
                tensors[output].sources.append(name)


def _flow(config: ModelConfig, tensors: dict[str, _Tensor]) -> Iterator[Problem]:
    """Follow the tensors from the ensemble's inputs.

    A tensor that is not reached is not connected. A tensor that ends is unused.
    """
    name = config.name
    for at, tensor in enumerate(config.input):
        if tensor.name not in tensors:
            # The lone quotation mark is Triton's, and clients match on it.
            yield Problem(
                message=f"ensemble input '{tensor.name}' for ensemble {name}' is not used",
                key=f"input[{at}].name",
                hint=did_you_mean(tensor.name, tensors) or "no step's 'input_map' has it as value",
            )
    _spread(tensors, [tensor.name for tensor in config.input if tensor.name in tensors])
    outputs: set[str] = set()
    for at, output in enumerate(config.output):
        found = tensors.get(output.name)
        outputs.add(output.name)
        if found is None:
            yield Problem(
                message=f"ensemble output '{output.name}' for ensemble {name}' is not used",
                key=f"output[{at}].name",
                hint=did_you_mean(output.name, tensors) or "no step's 'output_map' has it as value",
            )
        elif not found.ready:
            missing = [source for source in found.sources if not tensors[source].ready]
            because = (
                f": at least one of its depending tensors, '{missing[0]}', is not connected"
                if missing
                else ""
            )
            yield Problem(
                message=f"output '{output.name}' for ensemble '{name}' is not written{because}",
                key=f"output[{at}].name",
                hint="follow it back: each tensor is an input of the ensemble, or in one step's 'output_map'",
            )
    for tensor_name in sorted(tensors.keys() - outputs):
        found = tensors[tensor_name]
        if not found.ready or not found.uses:
            yield Problem(
                message=f"ensemble tensor '{tensor_name}' is unused in ensemble '{name}'",
                key=_where(config, tensor_name),
                hint="no step and no output takes it: leave it out of the 'output_map'"
                if found.ready
                else "nothing that comes from the inputs gives it a value",
            )


def _spread(tensors: dict[str, _Tensor], names: list[str]) -> None:
    """Mark as ready the tensors `names`, and every tensor that is made of ready ones."""
    waiting = deque(names)
    for name in names:
        tensors[name].ready = True
    while waiting:
        for use in tensors[waiting.popleft()].uses:
            tensor = tensors[use]
            if not tensor.ready and all(tensors[source].ready for source in tensor.sources):
                tensor.ready = True
                waiting.append(use)


def _where(config: ModelConfig, tensor: str) -> str:
    """Return the key of the first place that names an ensemble tensor."""
    for number, step in enumerate(config.ensemble_scheduling.step):
        for side in ("input_map", "output_map"):
            for name, mapped in sorted(getattr(step, side).items()):
                if mapped == tensor:
                    return f'{_STEPS}[{number}].{side}["{name}"]'
    return "ensemble_scheduling"
