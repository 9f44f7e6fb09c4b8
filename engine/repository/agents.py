"""Runs the repository agents of a model, before its configuration is read in full. For threads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from actors.values.events import Event, Log
from engine.config.agents import brought, first_config, own_agents, verify_agents
from engine.config.jsonform import json_value
from engine.config.parse import config_path
from engine.models.links import Links
from engine.processes.agents.chain import Chain, Step
from engine.processes.agents.declared import CHECKSUM, KnownAgents, Wanted
from engine.processes.agents.process import AgentFailed, AgentProcess
from engine.repository.source import Contents, Fetched
from engine.settings.models import AgentSettings
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelRepositoryAgents

_NO_SIGNATURE: Final = (
    "no signature covers what a repository agent makes of a model, and --require-signed forbids that; sign"
    " what the agent makes"
)

_BROUGHT: Final = (
    "its agents came with the load, and repository agents run outside of any sandbox, and this server shuts"
    " uploaded models in (--uploads=strict); ask for the agents, with the same parameters, in the"
    " repository's config.pbtxt"
)


class AgentRunner:
    """Runs agents that are not built in. `environ` is what workers get of the server's environment."""

    def __init__(
        self, settings: AgentSettings, *, environ: Mapping[str, str], log: Log, links: Links = Links.INSIDE
    ) -> None:
        self.known = KnownAgents(settings.directory)
        self._settings = settings
        self._environ = environ
        self._log = log
        self._links = links

    def chain(
        self,
        model: str,
        directory: Path,
        *,
        config_name: str,
        override: str | None,
        signed: bool,
        own_only: bool = False,
    ) -> Chain | None:
        """Return the agents that a model wants; None if all are built in, or not all are known.

        Then `load_model_config` runs the one, and tells of the others. `own_only`: a load's configuration,
        `override`, may ask for those alone that the repository's asks for. Raises AgentFailed where none may
        run.
        """
        config = first_config(directory, config_name, override)
        wanted = () if config is None else tuple(config.model_repository_agents.agents)
        if config is None or all(agent.name == CHECKSUM for agent in wanted):
            return None
        if not all(agent.name == CHECKSUM or self.known.target(agent.name) for agent in wanted):
            return None
        if signed:
            raise AgentFailed(_NO_SIGNATURE)
        own = own_agents(config_path(directory, config_name)) if own_only else ()
        if own_only and override is not None and brought(config, own):
            raise AgentFailed(_BROUGHT)
        agents = [self._agent(agent, model, config) for agent in wanted]
        return Chain(agents, within=self._settings.timeout, failed=partial(self._failed, model))

    def _agent(
        self, agent: ModelRepositoryAgents.Agent, model: str, config: ModelConfig
    ) -> AgentProcess | Step:
        if agent.name == CHECKSUM:
            return partial(_verify, agent, model, self._links)
        target = self.known.target(agent.name)
        assert target is not None
        return AgentProcess(
            Wanted(agent.name, dict(agent.parameters)),
            target,
            model=model,
            config=json_value(config),
            environ=self._environ,
            memory=self._settings.memory,
            printed=partial(self._printed, model),
        )

    def _printed(self, model: str, agent: str, line: str) -> None:
        self._tell(Event.AGENT_OUTPUT, "info", model=model, agent=agent, line=line)

    def _failed(self, model: str, reason: str) -> None:
        self._tell(Event.AGENT_FAILED, "warning", model=model, reason=reason)

    def _tell(self, event: Event, level: str, **keys: object) -> None:
        try:
            trio.from_thread.run_sync(lambda: self._log(event, level=level, **keys))
        except (RuntimeError, trio.RunFinishedError):  # the loop has ended, and its agents end after it
            self._log(event, level=level, **keys)


def run(chain: Chain, fetched: Fetched) -> Fetched:
    """Run LOAD of all agents; return the model as they leave it. Raises AgentFailed."""
    location = chain.load(fetched.path)
    if location == fetched.path:
        return fetched
    # The files are compared as the repository has them. What the agents have made of them is its own: the
    # next load's answers may be others, and must not come from this one's cache.
    contents = None if fetched.contents is None else _made_now(fetched.contents)
    return replace(fetched, path=location, contents=contents, verified=True)


def _made_now(contents: Contents) -> Contents:
    return replace(contents, shared=f"{contents.shared} {secrets.token_hex(16)}")


def _verify(agent: ModelRepositoryAgents.Agent, model: str, links: Links, location: Path) -> None:
    config = ModelConfig(name=model)
    config.model_repository_agents.agents.append(agent)
    problems = verify_agents(config, location, links)
    if problems:
        raise AgentFailed(str(problems[0]))


Finish = Callable[[], None]


def all_of(steps: Sequence[Finish]) -> Finish:
    """Return what takes one step after the other, whatever the first ones raise."""

    def finish() -> None:
        errors = []
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001  # the others are due all the same
                errors.append(error)
        if errors:
            raise errors[0]

    return finish
