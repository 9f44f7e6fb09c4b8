"""A model directory → what runs, or all that keeps it from running. The one call of the server and of `tritium check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from actors.specs import ModelSpec
from engine.config import parse
from engine.config.backends import BackendTraits
from engine.config.complete import Completed, complete
from engine.config.files import build_warmup, inside, read_labels
from engine.config.outline import outline
from engine.config.problems import Problem
from engine.config.refusals import ignored_hints, is_ensemble, refusals
from engine.config.settings import TritiumSettings, read_settings
from engine.config.translate import artifact, translate
from engine.config.validate import validate
from engine.repository.layout import VersionDirectory, select_versions, version_directories
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelVersionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """What became of a model's configuration.

    `specs` has one entry a version, ascending, and none where there is an error; `versions` are those that the policy
    chose either way. Errors stand before warnings in `problems`. `readable` is false where the file can't be parsed,
    for which the contract has an answer of its own (repository.md section 5).
    """

    name: str
    path: Path  # the configuration file, whether or not there is one
    versions: tuple[int, ...] = ()
    specs: tuple[ModelSpec, ...] = ()
    problems: tuple[Problem, ...] = ()
    readable: bool = True

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
        """The `<Prefix>: <message>` of the first error; empty where there is none."""
        return next((problem.reason for problem in self.errors), "")


def load_model_config(
    model_directory: Path,
    *,
    backends: Mapping[str, BackendTraits],
    gpus: int = 0,
    backend_settings: Mapping[str, Mapping[str, str]] | None = None,
    config_name: str = "",
    auto_complete: bool = True,
) -> LoadedConfig:
    """Read, complete, validate and translate the configuration of the model in `model_directory`.

    `gpus` is how many there are; `backend_settings` holds the command line's settings by backend, those for every
    backend under ""; `config_name` chooses `configs/<name>.pbtxt`. Never raises for a mistake of the model's owner.
    Reads files: not for the event loop.
    """
    model_directory = model_directory.absolute()  # workers have a directory of their own
    path = parse.config_path(model_directory, config_name)
    available, problems = version_directories(model_directory)
    numbers = [directory.number for directory in available]
    parsed = _read(path, model_directory.parent, auto_complete=auto_complete)
    if parsed.config is None:
        return LoadedConfig(
            name=model_directory.name,
            path=path,
            versions=select_versions(ModelVersionPolicy(), numbers),
            problems=parsed.problems,
            readable=False,
        )
    completed = complete(
        parsed.config, model_directory, backends=backends, gpus=gpus, auto_complete=auto_complete
    )
    config = completed.config
    found = [
        *problems,
        *parsed.problems,
        *check(completed, model_directory, path, backends=backends, gpus=gpus),
    ]
    versions = select_versions(config.version_policy, numbers)
    chosen = [directory for directory in available if directory.number in versions]
    traits = backends.get(config.backend, BackendTraits(name=config.backend))
    tritium, mistakes = read_settings(
        {key: parameter.string_value for key, parameter in config.parameters.items()}, traits
    )
    found += mistakes
    found += _versions(config, chosen, artifact(config, traits), model_directory)
    specs: tuple[ModelSpec, ...] = ()
    if not any(problem.is_error for problem in found):
        specs, unusable = _specs(
            completed,
            chosen,
            model_directory,
            traits,
            tritium,
            _merged(backend_settings or {}, config.backend),
        )
        found += unusable
    if any(problem.is_error for problem in found):
        specs = ()
    return LoadedConfig(
        name=model_directory.name,
        path=path,
        versions=versions,
        specs=specs,
        problems=_arranged(found, path, parsed.text),
    )


def check(
    completed: Completed,
    model_directory: Path,
    path: Path,
    *,
    backends: Mapping[str, BackendTraits],
    gpus: int = 0,
) -> list[Problem]:
    """Return everything that is wrong with a completed configuration but for versions and `tritium.*` settings.

    What this version does not do stands first: of an ensemble, nothing else is worth saying.
    """
    config = completed.config
    problems = _name(config, model_directory)
    problems += refusals(config)
    if is_ensemble(config):
        return problems
    undetermined = bool(completed.problems)
    problems += completed.problems
    for problem in validate(config, backends=backends, gpus=gpus):
        if undetermined and problem.key == "platform":
            continue  # the same mistake in other words
        problems.append(problem)
    problems += _missing_tensors(config, path)
    problems += ignored_hints(config)
    return problems


def _read(path: Path, repository: Path, *, auto_complete: bool) -> parse.Parsed:
    if path.exists() or path.is_symlink():
        if inside(repository, str(path)) is None:
            leads_out = parse.unreadable(path, "it is a link out of the model repository")
            return parse.Parsed(config=None, problems=(leads_out,))
        return parse.read(path)
    if auto_complete:
        return parse.Parsed(config=ModelConfig())
    missing = parse.unreadable(path, "there is no such file", hint="auto-completion is off")
    return parse.Parsed(config=None, problems=(missing,))


def _name(config: ModelConfig, model_directory: Path) -> list[Problem]:
    if not config.name or config.name == model_directory.name:
        return []
    return [
        Problem(
            message=(
                f"unexpected directory name '{model_directory.name}' for model '{config.name}',"
                " directory name must equal model name"
            ),
            key="name",
        )
    ]


def _missing_tensors(config: ModelConfig, path: Path) -> list[Problem]:
    """Inputs and outputs are not read from model files yet, so they must be written down."""
    problems: list[Problem] = []
    for side, tensors in (("input", config.input), ("output", config.output)):
        if not tensors:
            problems.append(
                Problem(
                    message=(
                        f"model '{config.name}' has no '{side}' in {path},"
                        " and this version does not complete it from the model file"
                    ),
                    hint=f'add: {side} [ {{ name: "…" data_type: TYPE_FP32 dims: [ … ] }} ]',
                )
            )
    return problems


def _versions(
    config: ModelConfig, chosen: list[VersionDirectory], file_name: str, model_directory: Path
) -> list[Problem]:
    if is_ensemble(config):
        return []
    if not chosen:
        return [
            Problem(
                message=(
                    "at least one version must be available under the version policy of model"
                    f" '{config.name or model_directory.name}'"
                ),
                key="version_policy",
                hint="put the model file into a numbered directory, such as 1/",
            )
        ]
    repository = model_directory.parent
    problems: list[Problem] = []
    for directory in chosen:
        path = directory.path / file_name
        named_out = inside(directory.path.resolve(), file_name) is None and not path.is_symlink()
        if named_out or inside(repository, str(path)) is None:
            problems.append(
                Problem(
                    message=(
                        f"model file '{file_name}' of model '{config.name}', version {directory.number},"
                        " is outside the model repository"
                    ),
                    key="default_model_filename",
                )
            )
    return problems


def _specs(
    completed: Completed,
    chosen: list[VersionDirectory],
    model_directory: Path,
    traits: BackendTraits,
    tritium: TritiumSettings,
    settings: Mapping[str, str],
) -> tuple[tuple[ModelSpec, ...], list[Problem]]:
    config = completed.config
    labels, problems = read_labels(config, model_directory)
    warmup, more = build_warmup(config, model_directory)
    problems += more
    specs = tuple(
        translate(
            config,
            version=directory.number,
            version_directory=directory.path,
            model_directory=model_directory,
            traits=traits,
            tritium=tritium,
            uncounted=completed.uncounted,
            settings=settings,
            labels=labels,
            warmup=warmup,
        )
        for directory in chosen
    )
    return specs, problems


def _merged(backend_settings: Mapping[str, Mapping[str, str]], backend: str) -> Mapping[str, str]:
    """A backend's own settings go before those for every backend."""
    return {**backend_settings.get("", {}), **backend_settings.get(backend, {})}


def _arranged(problems: list[Problem], path: Path, text: str) -> tuple[Problem, ...]:
    """Return errors before warnings, each with the file and, where its field is written there, the place."""
    if not problems:
        return ()
    found = outline(text)
    placed = []
    for problem in problems:
        if problem.path is None and problem.key:
            line, column = found.find(problem.key) or (0, 0)
            placed.append(dataclasses.replace(problem, path=path, line=line, column=column))
        else:
            placed.append(problem if problem.path else dataclasses.replace(problem, path=path))
    return tuple(sorted(placed, key=lambda problem: not problem.is_error))
