"""The runtimes of a model's versions, and all that keeps them from having one.

This is a part of reading a model's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from actors.values.errors import ErrorCode
from actors.values.specs import Runtime
from engine.environments import requirements
from engine.environments.cache import Environments, NotBuilt
from engine.environments.declared import PATH_PARAMETER, Environment, archive_of, declared
from engine.environments.layout import EnvironmentFailed
from engine.models.layout import VersionDirectory
from engine.models.links import Links
from engine.models.problems import Problem, Severity
from engine.processes.backends import BackendTraits
from engine.settings.parameters import TritiumSettings

_KEY: Final = f'parameters["{PATH_PARAMETER}"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What each version runs on, by number; one that is not in it runs on the server's own interpreter.

    `unbuilt` are the environments that have to be built first, of the versions `waiting`.
    """

    runtimes: Mapping[int, Runtime] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    unbuilt: tuple[Environment, ...] = ()
    waiting: tuple[int, ...] = ()

    def fails(self, version: int) -> bool:
        """Whether a version can't have what it asks for, so that nothing of it may be run."""
        return version in self.waiting or any(
            problem.is_error and version in problem.versions for problem in self.problems
        )


def choose(
    parameters: Mapping[str, str],
    traits: BackendTraits,
    settings: TritiumSettings,
    versions: Sequence[VersionDirectory],
    model_directory: Path,
    environments: Environments,
    links: Links = Links.INSIDE,
) -> Chosen:
    """Look up the environment of every version of a model whose backend lets it have one.

    A `requirements.txt` counts only for Python code of the model's owner: in a folder of weights it is
    information.
    """
    if not traits.has_environments:
        return _without(parameters, traits)
    runtimes: dict[int, Runtime] = {}
    backend = Path(traits.folder) if traits.implementation else None
    problems = _contradictions(parameters, versions, model_directory, backend) if traits.runs_python else []
    unbuilt: dict[Environment, list[int]] = {}
    install = traits.runs_python and settings.requirements == "install"
    for version in versions:
        try:
            environment = declared(
                parameters, version.path, model_directory, links, install=install, backend=backend
            )
            if environment is None:
                continue
            if settings.isolation == "thread":
                problems.append(_in_the_server(environment, version))
                continue
            found = _standing(environment, environments)
            if found is None:
                unbuilt.setdefault(environment, []).append(version.number)
            else:
                runtimes[version.number] = found
        except EnvironmentFailed as error:
            problems.append(_failed(error, version))
    return Chosen(
        runtimes=runtimes,
        problems=tuple(problems),
        unbuilt=tuple(unbuilt),
        waiting=tuple(number for numbers in unbuilt.values() for number in numbers),
    )


def _standing(environment: Environment, environments: Environments) -> Runtime | None:
    try:
        return environments.runtime(environment)
    except NotBuilt:
        return None


def _failed(error: EnvironmentFailed, version: VersionDirectory) -> Problem:
    return Problem(message=str(error), hint=error.hint, code=ErrorCode.INTERNAL, versions=(version.number,))


def not_built_yet(chosen: Chosen) -> list[Problem]:
    """Return what is to be said if what is missing will not be built, as in `tritium check`."""
    return [
        Problem(
            severity=Severity.WARNING,
            message=(
                f"the environment of '{environment.source}' is not built yet, so that nothing was run in it"
            ),
            hint="the server builds it when it loads the model",
            path=environment.source,
        )
        for environment in chosen.unbuilt
    ]


def _without(parameters: Mapping[str, str], traits: BackendTraits) -> Chosen:
    if PATH_PARAMETER not in parameters:
        return Chosen()
    ignored = Problem(
        severity=Severity.WARNING,
        message=(
            f"'{PATH_PARAMETER}' has no effect: it is a parameter of Python models, not of '{traits.name}'"
        ),
        key=_KEY,
    )
    return Chosen(problems=(ignored,))


def _contradictions(
    parameters: Mapping[str, str],
    versions: Sequence[VersionDirectory],
    model_directory: Path,
    backend: Path | None,
) -> list[Problem]:
    """Warn of a requirements file that is not installed because there is a packed environment."""
    archive = archive_of(backend)
    if not parameters.get(PATH_PARAMETER) and archive is None:
        return []
    instead = f"the model has an environment by '{PATH_PARAMETER}'"
    if not parameters.get(PATH_PARAMETER):
        instead = f"the model has the environment of its backend, '{archive}'"
    found = {requirements.find(version.path, model_directory) for version in versions}
    return [
        Problem(
            severity=Severity.WARNING,
            message=f"'{path.name}' has no effect: {instead}",
            path=path,
        )
        for path in sorted(filter(None, found))
    ]


def _in_the_server(environment: Environment, version: VersionDirectory) -> Problem:
    return Problem(
        message=(
            f"the model's environment, '{environment.source}', needs a process of its own, but"
            " 'tritium.isolation' is"
            " 'thread'"
        ),
        key='parameters["tritium.isolation"]',
        hint=(
            "use 'process', or set 'tritium.requirements' to 'ignore' if the server has what the model needs"
        ),
        versions=(version.number,),
    )
