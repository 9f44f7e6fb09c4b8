"""The loads that a controller has asked replicas for, and how they ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import trio

from engine.fleet.policy.values import Load, Release, Seen
from engine.fleet.ports import Refused, Replica, Superseded, Unreachable

Tell = Callable[..., None]


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a load came to nothing, when, and in which life of the replica."""

    why: str
    at: float
    boot: str


class Loads:
    """Loads by replica and model. Of two for the same, the later one counts."""

    def __init__(self, tell: Tell, lose: Callable[[str], None]) -> None:
        """`lose` is told if a replica knows of another controller."""
        self._tell = tell
        self._lose = lose
        self._loading: dict[tuple[str, str], Release] = {}
        self._failed: dict[tuple[str, str], _Failed] = {}
        self._ended: dict[tuple[str, str], float] = {}

    def __bool__(self) -> bool:
        """Whether some are under way."""
        return bool(self._loading)

    def forget(self, before: float) -> None:
        """Forget loads that ended before a time.

        What failed then, or did not mend what it was to, is due again.
        """
        self._failed = {key: each for key, each in self._failed.items() if each.at > before}
        self._ended = {key: at for key, at in self._ended.items() if at > before}

    def shown_in(self, seen: Seen) -> Seen:
        """Return a replica with what is known here of its loads.

        One load is to mend what a failed one has left; until it is forgotten, it isn't asked for again.
        """
        models = dict(seen.models)
        for (replica, model), release in self._loading.items():
            if replica == seen.name:
                models[model] = replace(models.get(model) or seen.served(model), loading=release)
        for (replica, model), failed in self._failed.items():
            if replica == seen.name and failed.boot == seen.boot:
                models[model] = replace(models.get(model) or seen.served(model), failed=failed.why)
        for replica, model in self._ended:
            if replica == seen.name and model in models:
                models[model] = replace(models[model], spoilt=False)
        return replace(seen, models=models)

    def begin(self, step: Load, port: Replica, boot: str, epoch: int, nursery: trio.Nursery) -> None:
        """Have a replica load, and note how that ends."""
        key = (step.replica, step.model)
        self._loading[key] = step.release
        self._failed.pop(key, None)
        self._tell("fleet_load", replica=step.replica, model=step.model, release=str(step.release))
        nursery.start_soon(self._carry_out, key, step, port, boot, epoch)

    async def _carry_out(
        self, key: tuple[str, str], step: Load, port: Replica, boot: str, epoch: int
    ) -> None:
        failed = ""
        try:
            await port.load(step.model, step.release, epoch)
        except Refused as error:
            failed = str(error)
        except Unreachable as error:
            self._tell("fleet_load_lost", replica=step.replica, model=step.model, reason=str(error))
        except Superseded as error:
            self._lose(str(error))
        if self._loading.get(key) != step.release:
            return  # another one has been asked for since
        del self._loading[key]
        if not failed:
            self._ended[key] = trio.current_time()
        else:
            self._failed[key] = _Failed(failed, trio.current_time(), boot)
            self._tell("fleet_load_failed", replica=step.replica, model=step.model, reason=failed)
