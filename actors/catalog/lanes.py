"""The lanes by model: each is made when its model is first heard of, and ended when the model has left."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import trio

from actors.catalog.lane import ModelLane
from actors.catalog.loading import Surroundings
from actors.seams import faults
from actors.seams.bell import Bell
from actors.supervision.supervisor import Supervisor
from actors.values.specs import ModelKey


class Lanes:
    """Every lane, and its actor below `supervisor`. Passive around `keep`, a task of the catalog."""

    def __init__(self, around: Surroundings, supervisor: Supervisor) -> None:
        self._around = around
        self._supervisor = supervisor
        self._lanes: dict[ModelKey, ModelLane] = {}
        self._news = Bell()  # a lane is to be started, or is over

    def __len__(self) -> int:
        return len(self._lanes)

    def find(self, key: ModelKey) -> ModelLane | None:
        """Return the lane of a model that was heard of."""
        return self._lanes.get(key)

    def all(self) -> Mapping[ModelKey, ModelLane]:
        """Return every lane that there is now."""
        return dict(self._lanes)

    def named(self, name: str) -> list[ModelKey]:
        """Return the models of this name, in any namespace."""
        return [key for key in self._lanes if key.name == name]

    def ensembles_of(self, name: str) -> list[ModelKey]:
        """Return the models that are composed of the model called `name`, or would be."""
        return [key for key, lane in self._lanes.items() if name in lane.deployment.parts]

    def of(self, key: ModelKey) -> ModelLane:
        """Return the lane of a model; it may be new."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = ModelLane(
                key,
                self._around,
                self._free_name(key.name),
                on_over=self._news.ring,
                on_changed=self._recheck,
            )
            self._news.ring()
        return lane

    def _free_name(self, name: str) -> str:
        taken = {lane.name for lane in self._lanes.values()}
        candidates = itertools.chain((name,), (f"{name}@{number}" for number in itertools.count(2)))
        return next(each for each in candidates if each not in taken)

    def _recheck(self, key: ModelKey) -> None:
        """Other versions of a model serve than before: have its ensembles check themselves again."""
        for ensemble in self.ensembles_of(key.name):
            self._lanes[ensemble].recheck()

    async def keep(self) -> None:
        """Start the actors of new lanes, and end those of lanes that are over, for ever."""
        if faults.points is not None:
            faults.points.passing("catalog.lanes")
        present = set(self._supervisor.which_children())
        for lane in self._lanes.values():
            lane.standing = lane.name in present
        while True:
            heard = self._news.rings
            for key, lane in list(self._lanes.items()):
                with trio.CancelScope(shield=True):  # takes no time, and must not be interrupted
                    if lane.over:
                        del self._lanes[key]  # a later operation on the model gets a new lane
                        if lane.standing:
                            await self._supervisor.terminate_child(lane.name)
                    elif not lane.standing:
                        lane.standing = True
                        await self._supervisor.start_child(lane.spec())
            await self._news.wait(heard)

    def progress(self, key: ModelKey) -> Mapping[str, object] | None:
        """Return a model's operation under way: its phase, since how many seconds, at which attempt."""
        lane = self._lanes.get(key)
        busy = None if lane is None else lane.deployment.progress
        if busy is None:
            return None
        phase = busy.phase
        if phase == "loading":
            loading = [
                state
                for state in self._around.roster.background(key)
                if not state.standing.load_finished.is_set()
            ]
            phase = loading[-1].standing.phase if loading else phase
        seconds = round(trio.current_time() - busy.since, 3)
        return {"phase": phase, "seconds": seconds, "attempt": busy.attempt, **busy.details}
