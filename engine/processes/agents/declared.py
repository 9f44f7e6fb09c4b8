"""Which repository agents there are: entry points of installed packages, and folders of a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

GROUP: Final = "tritium.agents"
FILE: Final = "agent.py"

CHECKSUM: Final = "checksum"
"""The agent that is built in, and runs in the server (`engine.config.agents`)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An agent that a model's configuration asks for."""

    name: str
    parameters: Mapping[str, str]


class KnownAgents:
    """The agents that a server may run. `directory` is that of `--repoagent-directory`."""

    def __init__(self, directory: str = "") -> None:
        self._directory = directory
        self._installed = {entry.name: entry.value for entry in entry_points(group=GROUP)}

    def target(self, name: str) -> str | None:
        """Return where its class is, as `module:Class` or the path of its file; None for an unknown agent."""
        if name in self._installed:
            return self._installed[name]
        path = self._in_directory(name, FILE)
        return str(path) if path is not None and path.is_file() else None

    def names(self) -> tuple[str, ...]:
        """Return the names of all agents, the built-in one first."""
        found = dict.fromkeys((CHECKSUM, *sorted(self._installed)))
        if self._directory:
            try:
                entries = sorted(os.listdir(self._directory))
            except OSError:
                entries = []
            found.update(dict.fromkeys(name for name in entries if self.target(name) is not None))
        return tuple(found)

    def why_unknown(self, name: str) -> tuple[str, str]:
        """Return why there is no agent of this name, and what would help (contract, c_abi.md section 10)."""
        library = f"libtritonrepoagent_{name}.so"
        path = self._in_directory(name, library)
        if path is not None and path.is_file():
            return (
                f"repository agent '{name}' is the library '{path}', and repository agents as shared libraries"
                " are not supported; write it as a Python entry point",
                f"a package with an entry point '{name}' of the group '{GROUP}' (docs/agents.md)",
            )
        searched = self._directory or "no --repoagent-directory"
        return (
            f"unable to find '{library}' for repo agent '{name}', searched: {searched}",
            f"agents are Python classes here: install a package with an entry point '{name}' of the group"
            f" '{GROUP}', or write {name}/{FILE} in --repoagent-directory (docs/agents.md);"
            f" known are {', '.join(self.names())}",
        )

    def _in_directory(self, name: str, file: str) -> Path | None:
        if not self._directory or not name or "/" in name or name in (".", "..") or "\0" in name:
            return None
        return Path(self._directory) / name / file
