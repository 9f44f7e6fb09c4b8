"""What models ask of the server about other models: load, unload, readiness.

Contract: python_backend.md section 8.

If a model asks for a load while it is itself being loaded, its own load waits for the other model's load. A
request that would close a circle of such waits is refused, because none of those loads would ever end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from actors.calls.admission import Permit
from actors.calls.reach import confines_calls, why_not_load, why_not_unload
from actors.calls.subjects import CallingWorker, Subjects
from actors.serving.routing.router import Router
from actors.values.auditing import Auditor, Requester, recorded
from actors.values.callers import Action
from actors.values.confinement import Sandbox
from actors.values.errors import InvalidArgument, PermissionDenied, Unavailable
from actors.values.interfaces import Health, PermitIn, Repository
from actors.values.specs import ModelSpec
from actors.wire.call_fields import travels
from actors.wire.frames import FrameError
from engine.identity.rules import MODEL
from protocols.kserve.auditing import LOAD as LOADING
from protocols.kserve.auditing import UNLOAD as UNLOADING
from protocols.kserve.auditing import load_change, unload_change

LOAD: Final = "model.load"
UNLOAD: Final = "model.unload"
READY: Final = "model.ready"
"""Subjects, as `engine.worker.backends.python.control` asks on them."""

STARTING: Final = "models can't be loaded or unloaded by a model while the server starts"


Levels = Callable[[str], Awaitable[Mapping[str, Sandbox]]]
"""Tells the sandboxes of a model and of the models that it is composed of, by name."""


async def _unconfined(name: str) -> Mapping[str, Sandbox]:
    return {name: Sandbox.OFF}


class ModelControl:
    """Answers what workers ask of the repository, as a client would be answered."""

    def __init__(
        self,
        repository: Repository,
        health: Health,
        *,
        started: Callable[[], bool],
        loading: Callable[[CallingWorker], bool],
        needs: Callable[[str, str], bool] = lambda _, __: False,
        found: Levels = _unconfined,
        serving: Levels = _unconfined,
        permit: Permit | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        """Set up the control of models.

        `started` tells whether every model to be loaded at start is. `loading` tells whether a caller's
        version is being loaded. `needs` tells whether one model is composed of another. `found` tells the
        sandboxes of what the repository has, and `serving` of what serves.
        `permit` says what a model may ask for. `auditor` is told of what it asks.
        """
        self._repository = repository
        self._health = health
        self._started = started
        self._loading = loading
        self._needs = needs
        self._found = found
        self._serving = serving
        self._permit = permit
        self._auditor = auditor
        self._waiting: list[tuple[str, str]] = []  # models that are being loaded: what they wait for

    def answer(self, subjects: Subjects) -> None:
        """Take its subjects in the table."""
        subjects.answer(LOAD, self.load)
        subjects.answer(UNLOAD, self.unload)
        subjects.answer(READY, self.ready)

    async def load(
        self, body: Mapping[str, object], attachments: Mapping[str, bytes], caller: CallingWorker
    ) -> Mapping[str, object]:
        """Load `name` with `config`, if there is one, and files from the attachments; return when it serves.

        Raises as `Repository.load` does; Unavailable while the server starts; InvalidArgument for a circle;
        PermissionDenied where the model would be less confined than the one that asks, or rules forbid it.
        """
        name = _text(body, "name")
        self._require(caller, Action.MODEL_REPOSITORY, name)
        if attachments:
            self._require(caller, Action.UPLOAD, name)
        parameters: dict[str, object] = dict(attachments)
        if "config" in body:
            parameters["config"] = _text(body, "config")
        self._require_started()
        await self._require_confined(caller.spec, name, brings=bool(parameters))
        permit = self._permit_in(caller, brings_files=bool(attachments))
        change = load_change(name, parameters)
        load = partial(self._repository.load, name, parameters, permit=permit)
        if not self._loading(caller):
            await recorded(self._auditor, change, _origin(caller.spec), load)
            return {}
        self._check_circle(caller.spec.name, name)
        if self._needs(name, caller.spec.name):
            raise InvalidArgument(
                f"model '{caller.spec.name}' is being loaded and can't wait for a load of '{name}', which is composed of it"
            )
        wait = (caller.spec.name, name)
        self._waiting.append(wait)
        try:
            await recorded(self._auditor, change, _origin(caller.spec), load)
        finally:
            self._waiting.remove(wait)
        return {}

    async def unload(
        self, body: Mapping[str, object], _: Mapping[str, bytes], caller: CallingWorker
    ) -> Mapping[str, object]:
        """Unload `name`. Raises as `Repository.unload` does, and PermissionDenied as for a load.

        `unload_dependents` also unloads the models that only `name` is composed of.
        """
        name = _text(body, "name")
        self._require(caller, Action.MODEL_REPOSITORY, name)
        self._require_started()
        if name == caller.spec.name and self._loading(caller):
            raise InvalidArgument(f"model '{name}' can't unload itself while it is being loaded")
        level = caller.spec.confinement.sandbox
        if confines_calls(level):
            levels = await self._serving(name)
            if body.get("unload_dependents") is not True:
                levels = {each: its for each, its in levels.items() if each == name}
            if why_not := why_not_unload(caller.spec.name, level, name, levels):
                raise self._denial(caller.spec, UNLOADING, name, why_not)
        dependents = body.get("unload_dependents") is True
        permit = self._permit_in(caller)
        unload = partial(self._repository.unload, name, unload_dependents=dependents, permit=permit)
        change = unload_change(name, dependents=dependents)
        await recorded(self._auditor, change, _origin(caller.spec), unload)
        return {}

    async def ready(
        self, body: Mapping[str, object], _: Mapping[str, bytes], __: CallingWorker
    ) -> Mapping[str, object]:
        """Return whether `name` in `version` is ready.

        Raises as `Health.model_ready` does for an unloaded model.
        """
        return {"ready": await self._health.model_ready(_text(body, "name"), _text(body, "version"))}

    def awaited_by(self, name: str) -> AbstractSet[str]:
        """Return the models whose loads the load of `name` waits for, directly or through others."""
        found: set[str] = set()
        names = [name]
        for each in names:  # which grows meanwhile
            more = {wanted for waiting, wanted in self._waiting if waiting == each} - found
            found |= more
            names += more
        return found

    async def _require_confined(self, caller: ModelSpec, name: str, *, brings: bool) -> None:
        level = caller.confinement.sandbox
        if not confines_calls(level):
            return
        levels = {} if brings else await self._found(name)
        if why_not := why_not_load(caller.name, level, name, brings=brings, levels=levels):
            raise self._denial(caller, LOADING, name, why_not)

    def _denial(self, caller: ModelSpec, action: str, name: str, why: str) -> PermissionDenied:
        """Return the error of a model that asks for what its sandbox keeps it from, and record it."""
        error = PermissionDenied(why)
        if self._auditor is not None:
            self._auditor.denied(action, name, _origin(caller), error)
        return error

    def _require(
        self, caller: CallingWorker, action: Action, name: str, repository: str | None = None
    ) -> None:
        if self._permit is not None:
            self._permit(caller.spec, action, name, repository)

    def _permit_in(self, caller: CallingWorker, *, brings_files: bool = False) -> PermitIn:
        """Return what judges the caller by each model that it would change, where that is found."""

        def permit(name: str, repository: str) -> None:
            self._require(caller, Action.MODEL_REPOSITORY, name, repository)
            if brings_files:
                self._require(caller, Action.UPLOAD, name, repository)

        return permit

    def _require_started(self) -> None:
        if not self._started():
            raise Unavailable(STARTING)

    def _check_circle(self, caller: str, name: str) -> None:
        """Raise InvalidArgument if the load of `name` waits, directly or not, for the caller's own."""
        paths: list[tuple[str, ...]] = [(caller, name)]
        # Each is looked at once: there may be as many paths as hostile models care to make.
        seen = {name}
        for path in paths:  # which grows meanwhile
            if path[-1] == caller:
                raise InvalidArgument(
                    f"model '{caller}' is being loaded and can't wait for a load of '{name}', which waits for its own:"
                    f" {' -> '.join(path)}"
                )
            for waiting, wanted in self._waiting:
                if waiting == path[-1] and wanted not in seen:
                    seen.add(wanted)
                    paths.append((*path, wanted))


def _origin(caller: ModelSpec) -> Requester:
    return Requester(MODEL + caller.name)


def _text(body: Mapping[str, object], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not travels(value):
        raise FrameError(f"a worker asks about a model without a text for {key!r}")
    return value


def is_loading(router: Router, spec: ModelSpec) -> bool:
    """Whether a version of this specification is on its way, and does not serve yet."""
    return any(
        state.spec is spec and not state.standing.load_finished.is_set()
        for state in router.roster.background(spec.key)
    )
