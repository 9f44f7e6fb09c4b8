"""What became of a model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from actors.values.specs import ModelSpec
from engine.config.complete import Completed
from engine.environments.declared import Environment
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionConfig:
    """The completed configuration of one version; `version` is 0 for a model that has none yet."""

    version: int
    completed: Completed

    @property
    def config(self) -> ModelConfig:
        """The configuration itself, not to be changed."""
        return self.completed.config

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each value came from, by its key: `config.pbtxt:3:5`, `model file (onnx)`, `default`, ..."""
        return self.completed.provenance.origins()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """What became of a model's configuration.

    `specs` has one entry for each version, ascending, and none if there is an error. `versions` are those
    that the policy chose either way, and `configs` their completed configurations, also if they are wrong.
    Errors stand before warnings in `problems`. `readable` is false if the file can't be parsed, for which the
    contract has an answer of its own (repository.md section 5).
    """

    name: str
    path: Path  # the configuration file, whether or not there is one
    versions: tuple[int, ...] = ()
    specs: tuple[ModelSpec, ...] = ()
    configs: tuple[VersionConfig, ...] = ()
    problems: tuple[Problem, ...] = ()
    # The errors among `problems` that are ours: valid, and not served by this version.
    unserved: tuple[Problem, ...] = ()
    readable: bool = True
    # Environments that have to be built before anything else can be said. Then there are no specs, and this
    # is to be read again.
    unbuilt: tuple[Environment, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the model can be started."""
        return not self.errors

    @property
    def errors(self) -> tuple[Problem, ...]:
        """What keeps the model from being started."""
        return tuple(problem for problem in self.problems if problem.is_error)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What the owner of the model should know."""
        return tuple(problem for problem in self.problems if not problem.is_error)

    @property
    def reason(self) -> str:
        """The `<Prefix>: <message>` of the first error; empty if there is none."""
        return next((problem.reason for problem in self.errors), "")

    @property
    def reasons(self) -> Mapping[int, str]:
        """The `<Prefix>: <message>` of the first error of each version that has one; see `versions`.

        A version that is not in it has nothing wrong with it, and is not started because of the others.
        """
        first = {
            version: next((problem.reason for problem in self.errors if problem.concerns(version)), "")
            for version in self.versions
        }
        return {version: reason for version, reason in first.items() if reason}

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each value of the newest version's configuration came from; see `VersionConfig.origins`."""
        return self.configs[-1].origins if self.configs else {}
