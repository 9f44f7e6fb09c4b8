"""Where a balancer finds each model: on the replicas that have it, or will have it once they are ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.fleet.picture import Picture
from engine.fleet.policy.values import Seen


class Homes:
    """Where models are, look by look. A replica that falls silent keeps what it had."""

    def __init__(self) -> None:
        self._last: dict[str, Seen] = {}

    def found(self, picture: Picture) -> Mapping[str, Sequence[str]] | None:
        """Return the replicas of each model; None where every replica has every model.

        A balancer sends nothing to a replica that is not ready. It counts where the fleet places it,
        or where it serves still: a restart and a drain change no routes.
        """
        self._last |= {name: look.seen for name, look in picture.looks.items()}
        names = {each.name for each in picture.members}
        self._last = {name: seen for name, seen in self._last.items() if name in names}
        homes = {}
        for lane in picture.lanes:
            if lane.wanted:
                there = {name for name in names if self._is_home(name, lane.model, lane.placed, picture)}
                serving = {name for name in names if self._serves(name, lane.model)}
                homes[lane.model] = sorted(there or serving or lane.placed)
        return homes if any({*found} != names for found in homes.values()) else None

    def unknown(self, picture: Picture) -> Sequence[str]:
        """Return the replicas that never answered: they may have every model."""
        return sorted(each.name for each in picture.members if each.name not in self._last)

    def _is_home(self, name: str, model: str, placed: Sequence[str], picture: Picture) -> bool:
        if name not in self._last:
            return True
        if name not in picture.looks:
            return name in placed or self._serves(name, model)
        seen = self._last[name]
        is_ready = seen.ready and not seen.withdrawn
        if self._serves(name, model):
            return name in placed or name in picture.drained or not is_ready
        return name in placed and not is_ready

    def _serves(self, name: str, model: str) -> bool:
        return name in self._last and bool(self._last[name].served(model).ready)
