"""How faults change a repository, and what the server says of its models."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from chaos.faults.base import PATIENCE, Stage, until
from chaos.subject.server import Server
from chaos.wires.http import Reply, ask

READY: Final = "READY"
GONE: Final = "UNAVAILABLE"
UNLOADED: Final = "unloaded"  # the reason of a version that is no longer wanted
LOOK: Final = 0.05  # seconds between two questions about the same thing

States = Mapping[int, str]


class Shelf:
    """One model's directory in the repository.

    What is put there was made beside it, and comes by a rename.
    """

    _numbers = itertools.count()

    def __init__(self, stage: Stage, model: str) -> None:
        self.model = model
        self.path = stage.repository / model
        self._workshop = stage.repository.with_name(f"{stage.repository.name}.workshop")
        self._workshop.mkdir(exist_ok=True)

    def beside(self) -> Path:
        """Return a path that is free, outside the repository and on the same file system."""
        return self._workshop / f"{self.model}.{os.getpid()}.{next(self._numbers)}"

    def put(self, inside: str, content: bytes) -> None:
        """Replace a file."""
        made = self.beside()
        made.write_bytes(content)
        made.replace(self.path / inside)

    def take(self, inside: str = "") -> Path:
        """Take a file or a directory out; return where it is now.

        Without `inside` it is the model's directory itself.
        """
        return (self.path / inside).rename(self.beside())

    def give_back(self, taken: Path) -> None:
        """Put the model's directory back where `take` took it from."""
        taken.rename(self.path)

    def remove(self, inside: str = "") -> None:
        """Take it out for good; do nothing if there is none."""
        try:
            taken = self.take(inside)
        except FileNotFoundError:
            return
        if taken.is_dir():
            shutil.rmtree(taken)
        else:
            taken.unlink()

    def copy_of(self, version: int) -> Path:
        """Copy a version to outside the repository, and return the copy."""
        made = self.beside()
        shutil.copytree(self.path / str(version), made, ignore=shutil.ignore_patterns("__pycache__"))
        return made

    @property
    def versions(self) -> list[int]:
        """The versions that are there, lowest first."""
        return sorted(int(each.name) for each in self.path.iterdir() if each.name.isdecimal())


async def post(server: Server, path: str, body: bytes = b"") -> Reply:
    """One POST on a fresh connection. Raises Broken."""
    return await ask(server.http_port, "POST", path, body)


async def ask_for(server: Server, what: str, model: str) -> Reply:
    """Ask for the `load` or the `unload` of a model. A server that polls refuses. Raises Broken."""
    return await post(server, f"/v2/repository/models/{model}/{what}")


async def states(server: Server, model: str) -> States:
    """Return the state of each version of a model that the server's index knows. Raises Broken.

    The state of a version that failed is its reason. A version that serves is ready, whatever became of its
    last reload: see `chaos.faults.setbacks`.
    """
    return {
        int(each["version"]): each["state"]
        if each["state"] == READY or each.get("reason", UNLOADED) == UNLOADED
        else each["reason"]
        for each in await index_rows(server, model)
        if "version" in each
    }


async def index_rows(server: Server, model: str) -> list[dict[str, Any]]:
    """Return what the server's index says of a model, a row each of its versions. Raises Broken."""
    entries = (await post(server, "/v2/repository/index")).json()
    return [each for each in entries if each["name"] == model]


async def until_states(server: Server, model: str, right: Callable[[States], bool], what: str) -> None:
    """Wait until the states of a model's versions are as they should be.

    Raises Trouble if that takes too long.
    """
    await until(
        partial(states, server, model),
        right,
        lambda seen: f"'{model}' is {json.dumps(seen)} after {PATIENCE:.0f} s; {what}",
        pause=LOOK,
    )


def gone(found: States) -> bool:
    """Whether no version is ready."""
    return READY not in found.values()


def serving_alone(version: int) -> Callable[[States], bool]:
    """Whether this version is ready, and no other is."""
    return lambda found: {number for number, state in found.items() if state == READY} == {version}
