"""Repository agents: whether the files of a model are the ones that its configuration vouches for.

Contract, repository.md section 11. The agent `checksum` is built in. Each of its parameters maps
`MD5:<file>` (or, here, `SHA256:<file>`), the file relative to the model directory, to the digest that it must
have. Other agents are the operator's (`engine.processes.agents`): they are run before a configuration is
read in full, and are only named here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from engine.config import parse
from engine.config.files import inside
from engine.config.override import parse_override
from engine.models.links import Links
from engine.models.problems import Problem, did_you_mean
from engine.processes.agents.declared import CHECKSUM, KnownAgents
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelRepositoryAgents

_ALGORITHMS: Final = {"MD5": 32, "SHA256": 64}  # and how many digits their digests have
_DIGEST: Final = re.compile(r"[0-9a-fA-F]+\Z")


def first_config(model_directory: Path, config_name: str, override: str | None) -> ModelConfig | None:
    """Return the configuration as written, whose agents count whatever they make of it.

    None if it can't be read, which `load_model_config` tells of. Of a load's configuration, `override`, see
    `keep_own`.
    """
    path = parse.config_path(model_directory, config_name)
    if override is None:
        return parse.read(path).config
    config = parse_override(override, model_directory).config
    if config is not None:
        keep_own(config, own_agents(path))
    return config


def own_agents(path: Path) -> Sequence[ModelRepositoryAgents.Agent]:
    """Return the agents that the repository's own configuration, the file `path`, asks for.

    If only some of its fields can't be read, its agents count all the same.
    """
    parsed = parse.read(path)
    config = parsed.config or parsed.partial
    return () if config is None else tuple(config.model_repository_agents.agents)


def brought(
    config: ModelConfig, own: Sequence[ModelRepositoryAgents.Agent]
) -> Sequence[ModelRepositoryAgents.Agent]:
    """Return the agents that a load's configuration asks for beside those of the repository's own."""
    left = list(own)
    found = []
    for agent in config.model_repository_agents.agents:
        if agent in left:
            left.remove(agent)
        else:
            found.append(agent)
    return found


def keep_own(config: ModelConfig, own: Sequence[ModelRepositoryAgents.Agent]) -> None:
    """Have the agents of the repository's own configuration stay in force, whatever a load's `config` says.

    They check or decrypt what the repository has: who loads a model must not turn them off. They come first.
    """
    added = brought(config, own)
    del config.model_repository_agents.agents[:]
    config.model_repository_agents.agents.extend([*own, *added])
    if not config.model_repository_agents.agents:
        config.ClearField("model_repository_agents")


def verify_agents(
    config: ModelConfig, model_directory: Path, links: Links = Links.INSIDE, known: KnownAgents | None = None
) -> list[Problem]:
    """Run the built-in agents of `config`, and return what they find wrong. Reads every file that they name.

    Of others it is only looked whether they are among the `known` ones.
    """
    problems: list[Problem] = []
    for at, agent in enumerate(config.model_repository_agents.agents):
        key = f"model_repository_agents.agents[{at}]"
        if agent.name == CHECKSUM:
            problems += _checksum(agent, key, config.name, model_directory, links)
        elif not agent.name:
            problems.append(
                Problem(
                    message=f"repository agent {at} of model '{config.name}' has no name",
                    key=key,
                    hint=f'write name: "{CHECKSUM}"',
                )
            )
        else:
            problems += _known(agent.name, key, known)
    return problems


def _known(name: str, key: str, known: KnownAgents | None) -> Iterator[Problem]:
    agents = known or KnownAgents()
    if agents.target(name) is None:
        message, hint = agents.why_unknown(name)
        yield Problem(message=message, key=f"{key}.name", hint=did_you_mean(name, agents.names()) or hint)


def _checksum(
    agent: ModelRepositoryAgents.Agent, key: str, model: str, model_directory: Path, links: Links
) -> Iterator[Problem]:
    for parameter in sorted(agent.parameters):
        expected = agent.parameters[parameter].strip()
        where = f'{key}.parameters["{parameter}"]'
        algorithm, colon, name = parameter.partition(":")
        if not (colon and name and algorithm in _ALGORITHMS):
            yield Problem(
                message=f"repository agent '{CHECKSUM}' of model '{model}' does not know the parameter '{parameter}'",
                key=where,
                hint="use 'MD5:<file>' or 'SHA256:<file>', the file relative to the model directory",
            )
        elif len(expected) != _ALGORITHMS[algorithm] or not _DIGEST.match(expected):
            yield Problem(
                message=f"'{expected}' of model '{model}' is no {algorithm} digest of file '{name}'",
                key=where,
                hint=f"use its {_ALGORITHMS[algorithm]} hexadecimal digits",
            )
        else:
            path = inside(model_directory, name, links)
            yield from _verify(algorithm, name, expected.lower(), where, model, path)


def _verify(
    algorithm: str, name: str, expected: str, key: str, model: str, path: Path | None
) -> Iterator[Problem]:
    if path is None:
        yield Problem(
            message=f"file '{name}', which the checksum agent of model '{model}' reads, is outside model directory",
            key=key,
        )
        return
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise OSError("it is no regular file")
        with path.open("rb") as file:
            actual = hashlib.file_digest(
                file, lambda: hashlib.new(algorithm.lower(), usedforsecurity=False)
            ).hexdigest()
    except OSError as error:
        yield Problem(
            message=f"failed to read file '{name}' for the checksum agent of model '{model}': {error.strerror or error}",
            key=key,
        )
        return
    if actual != expected:
        yield Problem(
            message=f"file '{name}' of model '{model}' has {algorithm} {actual}, but {expected} is expected",
            key=key,
            hint="the file was changed or is not complete; or the digest in the configuration is of another file",
        )
