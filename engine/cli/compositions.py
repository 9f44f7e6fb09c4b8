"""Ensembles among what `tritium check` has found, held against the models that they are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from actors.values.specs import Ensemble, ModelSpec
from engine.cli.findings import Finding
from engine.config.loaded import LoadedConfig
from engine.config.outline import outline
from engine.config.rules.composition import (
    Dependency,
    circular_dependency,
    composing_model,
    composition_problems,
    dependency_problems,
)
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig


def held_against_models(findings: Sequence[Finding], *, complete: bool) -> list[Finding]:
    """Return the findings with what keeps ensembles from being made up of their models.

    `complete` says that a model which is not among them is nowhere. Otherwise ensembles that need other
    models are left as they are.
    """
    by_name = {finding.name: finding for finding in findings}
    parts = {
        name: spec.depends_on for name, finding in by_name.items() if (spec := _ensemble(finding)) is not None
    }
    return [_held(finding, by_name, parts, complete=complete) for finding in findings]


def _ensemble(finding: Finding) -> ModelSpec | None:
    specs = () if finding.config is None else finding.config.specs
    return next((spec for spec in specs if isinstance(spec.scheduling, Ensemble)), None)


def _held(
    finding: Finding,
    by_name: Mapping[str, Finding],
    parts: Mapping[str, Sequence[str]],
    *,
    complete: bool,
) -> Finding:
    config = finding.config
    if config is None or finding.name not in parts:
        return finding
    if not complete and any(part not in by_name for part in parts[finding.name]):
        return finding
    problems = [*_placed(_problems(config.configs[-1].config, by_name, parts), config)]
    if not problems:
        return finding
    held = dataclasses.replace(config, specs=(), problems=(*problems, *config.problems))
    return dataclasses.replace(finding, config=held)


def _problems(
    config: ModelConfig, by_name: Mapping[str, Finding], parts: Mapping[str, Sequence[str]]
) -> list[Problem]:
    circle = circular_dependency(config.name, parts)
    if circle is not None:
        return [circle]
    found = {name: _dependency(by_name.get(name)) for name in parts[config.name]}
    problems = list(dependency_problems(config, found))
    if problems:
        return problems
    models = [
        composing_model(_version(by_name[step.model_name], step.model_version))
        for step in config.ensemble_scheduling.step
    ]
    return composition_problems(config, models)


def _dependency(finding: Finding | None) -> Dependency | None:
    if finding is None or finding.config is None:  # it is nowhere, or in two places
        return None
    if not finding.config.ok:
        return Dependency(invalid=finding.config.reason)
    return Dependency(versions=frozenset(finding.config.versions))


def _version(finding: Finding, number: int) -> ModelSpec:
    assert finding.config is not None
    specs = finding.config.specs
    return next((spec for spec in specs if spec.version == number), specs[-1])


def _placed(problems: Sequence[Problem], config: LoadedConfig) -> Iterator[Problem]:
    """Yield the problems with their places in the configuration's file."""
    try:
        found = outline(config.path.read_text())
    except (OSError, UnicodeError):  # it was there a moment ago
        yield from problems
        return
    for problem in problems:
        line, column = found.find(problem.key) or (0, 0)
        yield dataclasses.replace(problem, path=config.path, line=line, column=column)
