"""The repository agents of one model, from LOAD to UNLOAD_COMPLETE (contract, backends.md section 11).

LOAD runs in the configuration's order and stops at the first error. LOAD_COMPLETE or LOAD_FAIL follows in
reverse; then, when the last version that was loaded from the files has ended, UNLOAD in order and
UNLOAD_COMPLETE in reverse. Everything waits; call it on threads. `end` may be called while `load` runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final

from engine.processes.agents.process import AgentFailed, AgentProcess

AFTERWARDS_SECONDS: Final = 10.0
"""The longest that an agent's action may take, unless it is LOAD, for which a client waits."""

Step = Callable[[Path], None]
"""An agent that runs in the server: it checks the files at a place, and raises AgentFailed."""


class _Stage(Enum):
    NEW = auto()
    LOADING = auto()
    LOADED = auto()
    COMPLETE = auto()
    ENDED = auto()


class Chain:
    """The agents of one model, in order. `failed` is told of errors that change nothing."""

    def __init__(
        self, agents: Sequence[AgentProcess | Step], *, within: float, failed: Callable[[str], None]
    ) -> None:
        self._agents = agents
        self._within = within
        self._failed = failed
        self._begun: list[AgentProcess] = []
        self._location = Path()
        self._stage = _Stage.NEW
        self._lock = threading.Lock()

    def load(self, location: Path) -> Path:
        """Run LOAD of each agent; return where the model lies after that.

        Raises AgentFailed after LOAD_FAIL of those that had begun.
        """
        self._enter(_Stage.LOADING, _Stage.NEW)
        try:
            for agent in self._agents:
                if isinstance(agent, AgentProcess):
                    with self._lock:
                        if self._stage is not _Stage.LOADING:
                            raise AgentFailed("the load was given up")
                        self._begun.append(agent)
                    location = agent.act("LOAD", location, self._within)
                else:
                    agent(location)
        except BaseException:
            if self._enter(_Stage.LOADED, _Stage.LOADING):
                self.settled(applied=False)
            else:
                self._end_processes()
            raise
        self._location = location
        if not self._enter(_Stage.LOADED, _Stage.LOADING):
            self._end_processes()
            raise AgentFailed("the load was given up")
        return location

    def settled(self, *, applied: bool) -> None:
        """The model was loaded, or not. Only the first call counts."""
        if not self._enter(_Stage.COMPLETE if applied else _Stage.ENDED, _Stage.LOADED):
            return
        self._each("LOAD_COMPLETE" if applied else "LOAD_FAIL", reversed(self._begun))
        if not applied:
            self._end_processes()

    def end(self) -> None:
        """Nothing reads the model's files any more. Idempotent."""
        with self._lock:
            stage, self._stage = self._stage, _Stage.ENDED
        if stage is _Stage.LOADING:
            for agent in self._begun:
                agent.kill()
            return  # the thread that loads sees it, and ends them
        if stage is _Stage.LOADED:
            self._each("LOAD_FAIL", reversed(self._begun))
        elif stage is _Stage.COMPLETE:
            self._each("UNLOAD", self._begun)
            self._each("UNLOAD_COMPLETE", reversed(self._begun))
        self._end_processes()

    def _each(self, action: str, agents: Iterable[AgentProcess]) -> None:
        for agent in agents:
            if agent.killed:
                continue
            try:
                agent.act(action, self._location, min(self._within, AFTERWARDS_SECONDS))
            except AgentFailed as error:
                self._failed(str(error))

    def _enter(self, stage: _Stage, before: _Stage) -> bool:
        with self._lock:
            if self._stage is not before:
                return False
            self._stage = stage
            return True

    def _end_processes(self) -> None:
        for agent in self._begun:
            agent.end()
