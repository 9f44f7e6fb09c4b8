"""Ensembles, as far as the models that they are made of say.

Contract: model_config.md 4.8 and repository.md 7. These are pure functions for the code that loads: they are
given what is known of the composing models, as plain values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from actors.values.specs import InputSpec, ModelSpec, OutputSpec
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

_STEPS: Final = "ensemble_scheduling.step"
_LATEST: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposingTensor:
    """An input or output of a composing model, as its clients see it. `dims` excludes the batch dimension."""

    name: str
    data_type: str  # as the configuration has it: TYPE_FP32
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposingModel:
    """What an ensemble must know of a model that it contains."""

    name: str
    max_batch_size: int
    inputs: tuple[ComposingTensor, ...]
    outputs: tuple[ComposingTensor, ...]
    decoupled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """How a composing model stands. `invalid` and `failure` tell what went wrong, and are empty otherwise."""

    versions: frozenset[int] = frozenset()  # those that are loaded
    invalid: str = ""  # why its configuration can't be used
    failure: str = ""  # why its last load failed


def composing_model(spec: ModelSpec) -> ComposingModel:
    """Return what an ensemble must know of the model version `spec`."""
    return ComposingModel(
        name=spec.name,
        max_batch_size=spec.max_batch_size,
        inputs=tuple(_tensor(tensor, optional=tensor.optional) for tensor in spec.inputs),
        outputs=tuple(_tensor(tensor) for tensor in spec.outputs),
        decoupled=spec.decoupled,
    )


def _tensor(spec: InputSpec | OutputSpec, *, optional: bool = False) -> ComposingTensor:
    return ComposingTensor(
        name=spec.name, data_type=spec.datatype.config_name, dims=spec.dims, optional=optional
    )


# -- which models there are ------------------------------------------------------------------------------


def unavailable_models(ensemble: str, models: Iterable[str]) -> Problem:
    """Return the problem of an ensemble whose composing `models` are missing, or there more than once."""
    return Problem(
        message=(
            f"ensemble {ensemble} contains models that are not available or ambiguous:"
            f" {', '.join(sorted(set(models)))}"
        ),
        key="ensemble_scheduling",
    )


def dependency_problems(
    config: ModelConfig, dependencies: Mapping[str, Dependency | None]
) -> Iterator[Problem]:
    """Tell which composing models keep the ensemble `config` from being loaded; None is a missing one."""
    ensemble = config.name
    missing = {
        step.model_name
        for step in config.ensemble_scheduling.step
        if dependencies.get(step.model_name) is None
    }
    if missing:
        yield unavailable_models(ensemble, missing)
    told: set[tuple[str, int]] = set()
    for number, step in enumerate(config.ensemble_scheduling.step):
        model, version = step.model_name, step.model_version
        dependency = dependencies.get(model)
        if dependency is None or (model, version) in told:
            continue
        told.add((model, version))
        depends = f"ensemble '{ensemble}' depends on '{model}'"
        hint = ""
        if dependency.invalid:
            text = f"{depends} which is not valid. Model '{model}' failed with error: {dependency.invalid}"
        elif not dependency.versions:
            text = f"{depends} which has no loaded version."
            if dependency.failure:
                text += f" Model '{model}' loading failed with error: {dependency.failure}"
        elif version != _LATEST and version not in dependency.versions:
            text = f"{depends} whose required version {version} is not loaded."
            if not version:
                hint = "an unset 'model_version' is 0: write -1 for the latest"
        else:
            continue
        yield Problem(message=text, key=f"{_STEPS}[{number}]", hint=hint)


def find_cycle(start: str, depends_on: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return a path from `start` through what it depends on back to `start`, or () if there is none."""
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        model = waiting.popleft()
        for needed in depends_on.get(model, ()):
            if needed == start:
                path = [start]
                while model != start:
                    path.insert(0, model)
                    model = came_from[model]
                return (start, *path)
            if needed not in came_from:
                came_from[needed] = model
                waiting.append(needed)
    return ()


def circular_dependency(start: str, depends_on: Mapping[str, Sequence[str]]) -> Problem | None:
    """Return the problem of an ensemble that contains itself, directly or through others, if it does.

    The text is Triton's, which names both ends of the cycle; the hint has every model of it.
    """
    path = find_cycle(start, depends_on)
    if not path:
        return None
    return Problem(
        message=f"circular dependency between ensembles: {start} -> ... -> {path[1]} -> {start}",
        key="ensemble_scheduling",
        hint="the whole cycle: " + " -> ".join(reversed(path)),
    )


# -- how they fit together -------------------------------------------------------------------------------


def is_decoupled(models: Iterable[ComposingModel]) -> bool:
    """Whether an ensemble of these models is decoupled, whatever its own configuration says."""
    return any(model.decoupled for model in models)


def composition_problems(config: ModelConfig, models: Sequence[ComposingModel]) -> list[Problem]:
    """Check that the steps of the ensemble `config` fit together; `models` has each step's composing model.

    `config` has passed `engine.config.validate`.
    """
    return list(_Composition(config, models).problems())


@dataclass(slots=True)
class _Node:
    """An ensemble tensor as the first model that has it sees it."""

    model: str
    data_type: str
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]  # with the batch dimension, if the model has one
    sources: list[_Node] = field(default_factory=list)
    uses: list[_Node] = field(default_factory=list)
    written_by: str = ""  # the composing model
    decoupled_step: int = 0  # the step that writes it, from 1, if its model is decoupled
    origin: int = 0  # the decoupled step that its responses go back to; 0: none
    visited: bool = False


class _Composition:
    """One pass over the steps, which builds the graph and tells what does not fit."""

    def __init__(self, config: ModelConfig, models: Sequence[ComposingModel]) -> None:
        self._config = config
        self._models = models
        self._nodes: dict[str, _Node] = {}

    def problems(self) -> Iterator[Problem]:
        config = self._config
        for given in config.input:
            self._nodes.setdefault(given.name, _own(config, given))
        for output in config.output:
            self._nodes.setdefault(output.name, _own(config, output))
        for number, model in enumerate(self._models):
            yield from self._batch_size(number, model)
            yield from self._inputs(number, model)
            yield from self._outputs(number, model)
            self._link(number, model)
        yield from self._origins()

    def _batch_size(self, number: int, model: ComposingModel) -> Iterator[Problem]:
        config = self._config
        if 0 < model.max_batch_size < config.max_batch_size:
            yield Problem(
                message=(
                    f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model"
                    f" {model.name} which only allows maximum batch size to be {model.max_batch_size}"
                ),
                key="max_batch_size",
                hint=f"use {model.max_batch_size} or less",
            )

    def _inputs(self, number: int, model: ComposingModel) -> Iterator[Problem]:
        step, where = self._config.ensemble_scheduling.step[number], f"in ensemble {self._config.name},"
        declared = {tensor.name: tensor for tensor in model.inputs}
        for name, mapped in sorted(step.input_map.items()):
            key = f'{_STEPS}[{number}].input_map["{name}"]'
            if name in declared:
                yield from self._agree(mapped, model, declared[name], key)
            else:
                yield Problem(
                    message=(
                        f"{where} ensemble tensor {mapped} is mapping to non-existing input {name}"
                        f" in model {model.name}"
                    ),
                    key=key,
                )
        for tensor in model.inputs:
            if tensor.name not in step.input_map and not tensor.optional:
                yield Problem(
                    message=(
                        f"{where} input {tensor.name} in model {model.name} is not mapped to any ensemble tensors"
                    ),
                    key=f"{_STEPS}[{number}].input_map",
                )

    def _outputs(self, number: int, model: ComposingModel) -> Iterator[Problem]:
        step, where = self._config.ensemble_scheduling.step[number], f"in ensemble {self._config.name},"
        declared = {tensor.name: tensor for tensor in model.outputs}
        mapped_to: set[str] = set()
        for name, mapped in sorted(step.output_map.items()):
            key = f'{_STEPS}[{number}].output_map["{name}"]'
            if mapped in mapped_to:
                yield Problem(
                    message=(
                        f"{where} multiple outputs in model {model.name} are mapped to the same ensemble tensor"
                        f" {mapped}"
                    ),
                    key=key,
                )
            mapped_to.add(mapped)
            if name in declared:
                yield from self._agree(mapped, model, declared[name], key)
            else:
                yield Problem(
                    message=(
                        f"{where} ensemble tensor {mapped} is mapped from non-existing output {name}"
                        f" in model {model.name}"
                    ),
                    key=key,
                )

    def _agree(
        self, name: str, model: ComposingModel, tensor: ComposingTensor, key: str
    ) -> Iterator[Problem]:
        """Check what `model` says of an ensemble tensor against what was said first."""
        node = _node(model.name, model.max_batch_size, tensor.data_type, tensor.dims)
        known = self._nodes.setdefault(name, node)
        where = f"in ensemble {self._config.name}, ensemble tensor {name}: inconsistent"
        if known.data_type != node.data_type:
            yield Problem(
                message=(
                    f"{where} data type: {known.data_type} is inferred from model {known.model} while"
                    f" {node.data_type} is inferred from model {node.model}"
                ),
                key=key,
            )
        elif not (_same_shape(known.dims, node.dims) or _same_shape(known.full_dims, node.full_dims)):
            yield Problem(
                message=(
                    f"{where} shape: {_rendered(known.full_dims)} is inferred from model {known.model} while"
                    f" {_rendered(node.full_dims)} is inferred from model {node.model}"
                ),
                key=key,
            )

    def _link(self, number: int, model: ComposingModel) -> None:
        step = self._config.ensemble_scheduling.step[number]
        sources = [self._nodes[name] for name in step.input_map.values() if name in self._nodes]
        for name in step.output_map.values():
            node = self._nodes.get(name)
            if node is None:  # of an output that the model doesn't have
                continue
            node.written_by = model.name
            node.decoupled_step = number + 1 if model.decoupled else 0
            node.sources += sources
            for source in sources:
                source.uses.append(node)

    def _origins(self) -> Iterator[Problem]:
        """Follow responses from their decoupled models: those of two can't be told which belong together.

        The answer is told of as a step of the ensemble itself, as Triton does.
        """
        ready = deque(self._nodes[tensor.name] for tensor in self._config.input)
        for node in ready:
            node.visited = True
        told: set[str] = set()
        while ready:
            for node in ready.popleft().uses:
                if node.visited or not all(source.visited for source in node.sources):
                    continue
                node.visited = True
                ready.append(node)
                origins = {source.origin for source in node.sources}
                if len(origins) > 1 and node.written_by not in told:
                    told.add(node.written_by)
                    yield Problem(
                        message=_merged(self._config.name, node.written_by), key="ensemble_scheduling"
                    )
                node.origin = node.decoupled_step or max(origins)
        outputs = {output.name: self._nodes[output.name] for output in self._config.output}
        if len({node.origin for node in outputs.values()}) > 1 and all(
            node.visited for node in outputs.values()
        ):
            from_steps = (f"'{name}' {_source(node.origin)}" for name, node in outputs.items())
            yield Problem(
                message=_merged(self._config.name, self._config.name),
                key="ensemble_scheduling",
                hint=f"all outputs must come from the same decoupled step, or all from none: {', '.join(from_steps)}",
            )


def _merged(ensemble: str, model: str) -> str:
    return f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled models"


def _source(origin: int) -> str:
    return f"comes from that of step {origin - 1}" if origin else "comes from none"


def _own(config: ModelConfig, tensor: ModelInput | ModelOutput) -> _Node:
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    return _node(config.name, config.max_batch_size, DataType.Name(tensor.data_type), tuple(dims))


def _node(model: str, max_batch_size: int, data_type: str, dims: tuple[int, ...]) -> _Node:
    full = (-1, *dims) if max_batch_size > 0 else dims
    return _Node(model=model, data_type=data_type, dims=dims, full_dims=full)


def _same_shape(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """Whether two shapes can be of one tensor: -1 goes with any size."""
    return len(ours) == len(theirs) and all(
        -1 in (one, other) or one == other for one, other in zip(ours, theirs, strict=True)
    )


def _rendered(dims: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
