"""Ensembles against the models that they are made of, as the router has them at the moment.

`engine.config.rules.composition` tells what keeps an ensemble from being served. This module adds what the
ensemble takes over from its models: whether it is decoupled, labels of outputs that have none of their own,
and where its models were found.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from google.protobuf.json_format import ParseDict

from actors.catalog.found import FoundModel
from actors.serving.routing.router import Router
from actors.values.errors import TritiumError
from actors.values.interfaces import UNLOADED
from actors.values.specs import Ensemble, ModelKey, ModelSpec, OutputSpec
from actors.values.wiring import Wiring
from engine.config.jsonform import config_json
from engine.config.rules.composition import (
    Dependency,
    composing_model,
    composition_problems,
    dependency_problems,
    is_decoupled,
)
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig


class Composer:
    """Completes ensembles from their models. Other models pass through."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._roster = router.roster

    def __call__(self, found: FoundModel) -> FoundModel:
        """Return `found` as its models make it up; or, if they don't, without specs and with the reason.

        The models have been loaded before, as far as they can be.
        """
        if not any(isinstance(spec.scheduling, Ensemble) for spec in found.specs):
            return found
        specs: list[ModelSpec] = []
        problems: list[Problem] = []
        for spec in found.specs:
            composed = self._compose(spec)
            if isinstance(composed, ModelSpec):
                specs.append(composed)
            else:
                problems += composed
        if not problems:
            return dataclasses.replace(found, specs=specs)
        return dataclasses.replace(
            found,
            specs=(),
            reason=problems[0].reason,
            unfit=problems[0].message,
            errors=list(dict.fromkeys(map(str, problems))),
        )

    def _compose(self, spec: ModelSpec) -> ModelSpec | list[Problem]:
        config = ParseDict(json.loads(spec.config_json), ModelConfig())
        names = dict.fromkeys(spec.depends_on)
        keys = {name: self._key(name, spec.namespace) for name in names}
        dependencies = {name: None if key is None else self._dependency(key) for name, key in keys.items()}
        problems = list(dependency_problems(config, dependencies))
        if problems:
            return problems
        for step in config.ensemble_scheduling.step:
            key = keys[step.model_name]
            step.model_namespace = "" if key is None else key.namespace
        try:
            models = [
                self._spec(ModelKey(step.model_name, step.model_namespace), step.model_version)
                for step in config.ensemble_scheduling.step
            ]
        except TritiumError as error:  # it was there a moment ago
            return [Problem(message=error.message, key="ensemble_scheduling", code=error.code)]
        composing = [composing_model(each) for each in models]
        problems = composition_problems(config, composing)
        if problems:
            return problems
        return _completed(spec, config, models, decoupled=is_decoupled(composing))

    def _key(self, name: str, namespace: str) -> ModelKey | None:
        """Return the model that an ensemble of this namespace means; None if missing or not the only one."""
        keys = self._roster.keys(name)
        own = ModelKey(name, namespace)
        if own in keys:
            return own
        return keys[0] if len(keys) == 1 else None

    def _dependency(self, key: ModelKey) -> Dependency:
        roster = self._roster
        versions = frozenset(roster.ready(key) or roster.dormant(key))
        failures = {number: reason for number, reason in roster.past(key).items() if reason != UNLOADED}
        return Dependency(
            versions=versions,
            invalid="" if versions else failures.pop(0, ""),
            failure=next(iter(failures.values()), ""),
        )

    def _spec(self, key: ModelKey, version: int) -> ModelSpec:
        number = "" if version < 0 else str(version)
        return self._router.resolve(key.name, number, namespace=key.namespace).spec


def _completed(
    spec: ModelSpec, config: ModelConfig, models: Sequence[ModelSpec], *, decoupled: bool
) -> ModelSpec:
    """Return an ensemble's specification with what follows from `models`, one for each step."""
    assert isinstance(spec.scheduling, Ensemble)
    config.model_transaction_policy.decoupled = decoupled
    steps = tuple(
        dataclasses.replace(step, model_namespace=given.model_namespace)
        for step, given in zip(spec.scheduling.steps, config.ensemble_scheduling.step, strict=True)
    )
    wiring = Wiring(spec.scheduling)
    return dataclasses.replace(
        spec,
        decoupled=decoupled,
        outputs=tuple(_labelled(output, wiring, models) for output in spec.outputs),
        scheduling=dataclasses.replace(spec.scheduling, steps=steps),
        config_json=config_json(config),
    )


def _labelled(output: OutputSpec, wiring: Wiring, models: Sequence[ModelSpec]) -> OutputSpec:
    written = wiring.writer(output.name)
    if output.labels or written is None:
        return output
    number, name = written
    source = models[number].outputs_by_name.get(name)
    return output if source is None else dataclasses.replace(output, labels=source.labels)
