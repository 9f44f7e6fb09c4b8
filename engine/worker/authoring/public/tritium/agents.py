"""Write repository agents: code of the operator's that takes part when a model is loaded and unloaded.

docs/agents.md tells how. An agent is a class, named by an entry point of the group `tritium.agents`, or an
`Agent` in `<repoagent-directory>/<name>/agent.py`. A model asks for it by `model_repository_agents` in its
configuration. Each agent of each model runs in a process of its own, from LOAD to the end of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Agent", "AgentModel"]

_OUTSIDE = (
    "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is"
    " TRITONREPOAGENT_ACTION_{action}"
)


class AgentModel:
    """The model that an agent serves: its name, its configuration as written, and where its files lie."""

    def __init__(
        self,
        *,
        name: str,
        config: Mapping[str, Any],
        parameters: Mapping[str, str],
        location: Path,
        acquire: Callable[[], Path],
        release: Callable[[Path], None],
    ) -> None:
        """The server's own process makes it; in a test, make one yourself."""
        self.name = name
        self.config = config
        self.parameters = parameters
        self.action = "LOAD"
        self._location = location
        self._acquire = acquire
        self._release = release

    @property
    def location(self) -> Path:
        """The model's folder, as the repository or the agent before this one has it. Do not write there."""
        return self._location

    def acquire(self) -> Path:
        """Return a new empty folder to write into; it is removed when the model has ended.

        Raises RuntimeError outside of `load`.
        """
        self._only_in_load()
        return self._acquire()

    def release(self, folder: Path) -> None:
        """Have a folder of `acquire` removed: it was not needed. Raises ValueError for another folder."""
        self._release(folder)

    def relocate(self, folder: Path | str) -> None:
        """Have the model loaded from `folder` instead.

        Raises RuntimeError outside of `load`, and NotADirectoryError where there is no such folder.
        """
        self._only_in_load()
        found = Path(folder).absolute()
        if not found.is_dir():
            raise NotADirectoryError(f"'{folder}' is no folder, and a model can't be loaded from it")
        self._location = found

    def _only_in_load(self) -> None:
        if self.action != "LOAD":
            raise RuntimeError(_OUTSIDE.format(action=self.action))


class Agent:
    """Base of agents: override what you need. An exception in `load` keeps the model from loading.

    After `load` of all agents either `load_complete` or `load_fail` is called, and in the end `unload` and
    `unload_complete`. Exceptions in those are logged, and change nothing.
    """

    def __init__(self, model: AgentModel) -> None:
        """Called in the process of the agent, before `load`."""
        self.model = model

    def load(self) -> None:
        """The model is about to be loaded: check it, or write another one and `relocate` there."""

    def load_complete(self) -> None:
        """The model was loaded."""

    def load_fail(self) -> None:
        """The model was not loaded, by the fault of an agent or its own."""

    def unload(self) -> None:
        """The last version that was loaded from these files has ended."""

    def unload_complete(self) -> None:
        """All agents have had their `unload`. The process ends after this."""
