"""Where a worker works: its instance, the version that this belongs to, and its place in the tree."""

from __future__ import annotations

from dataclasses import dataclass

from actors.serving.model import ModelState
from actors.serving.standing import InstanceState
from actors.supervision.context import ChildContext
from actors.values.events import Log


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """What the parts of an instance actor share."""

    ctx: ChildContext
    state: ModelState
    instance: InstanceState
    log: Log

    @property
    def name(self) -> str:
        """The instance's name."""
        return self.instance.spec.name

    def enter(self, phase: str) -> None:
        """Tell the tree what this instance is busy with, and the version too where it is loading."""
        self.ctx.publish(phase=phase)
        self.state.standing.enter(phase)

    def who(self) -> dict[str, object]:
        """Return the keys that identify the worker in each log line about it."""
        spec = self.state.spec
        return {
            "actor": self.ctx.path,
            "model": spec.name,
            "version": spec.version,
            "instance": self.name,
        }
