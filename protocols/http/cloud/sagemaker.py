"""Amazon SageMaker: health, inferences by one model, and endpoints whose models come and go.

Such an endpoint loads a model from the folder where the platform has put it: that becomes a repository, and
leaves with the model. The platform names models by hashes. In the server, a model has the name that the
load's header gave, or else the hash.

Contract: http.md section 12, deployment.md section 5.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote, unquote

import trio

from actors.values.auditing import Auditor, ManagedChange, Requester, recorded
from actors.values.callers import Action, Caller
from actors.values.errors import (
    AlreadyExists,
    InvalidArgument,
    PermissionDenied,
    TooManyRequests,
    TritiumError,
    Unauthenticated,
)
from actors.values.interfaces import UNLOADED, Registrations, Server
from protocols.http.answers import NO_HEADERS, Answer, Receive, Scope, error_answer, json_answer
from protocols.http.bodies import read_document
from protocols.http.cloud.app import (
    BAD_REQUEST,
    NOT_FOUND,
    Platform,
    Translated,
    inference,
    said,
    tells_of_model,
)
from protocols.http.cloud.framing import Framing
from protocols.http.cloud.shortage import STATUS as SHORTAGE
from protocols.http.cloud.shortage import tells_of_shortage
from protocols.http.fields import Header, connecting
from protocols.http.routes import Route
from protocols.kserve.auditing import load_change, unload_change
from protocols.kserve.caps import check_name
from protocols.kserve.documents import dump, not_a
from protocols.kserve.permitted import permit_in

FRAMING: Final = Framing("sagemaker-triton")

UNLOADS_WITHIN: Final = 350.0
"""Seconds for which a model may unload. The platform waits for 360."""
LOOKS_EVERY: Final = 0.5
"""Seconds between two looks at a model that unloads."""

_MODELS: Final = re.compile(r"/models/?([^/]+)?(/invoke)?")
_TARGET: Final = b"x-amzn-sagemaker-target-model"
# Where the v2 API asks for what the management of models needs: the same restriction, action and limits.
_MANAGED: Final = b"/v2/repository/index"
_DONE: Final = Answer(200, NO_HEADERS)


class Place(Protocol):
    """Where a model lies."""

    @property
    def repository(self) -> str:
        """The folder that is to be its repository."""

    @property
    def folder(self) -> str:
        """The model's folder in there; empty if there is none."""


Find = Callable[[str], Awaitable[Place | None]]
"""From the URL of a load to where the model lies; None where no model may ever lie.

Raises TritiumError, which says what is wrong.
"""


class _Loaded:
    """A model of an endpoint with many models."""

    __slots__ = ("leaving", "name", "repository")

    def __init__(self, name: str, repository: str) -> None:
        self.name = name
        self.repository = repository
        self.leaving = False


class SageMaker(Platform):
    """The paths of SageMaker, and the models that the platform has had loaded."""

    def __init__(
        self,
        server: Server,
        registrations: Registrations,
        *,
        find: Find,
        max_input_size: int,
        ping: Literal["ready", "live"] = "ready",
        inferring: Literal["infer", "generate", "generate_stream"] = "infer",
        default_model: str,
        auditor: Auditor | None = None,
    ) -> None:
        """`inferring` is what the invocations ask the `default_model` for."""
        self._server = server
        self._registrations = registrations
        self._find = find
        self._max_input_size = max_input_size
        self._ping = f"/v2/health/{ping}".encode()
        self._invocations = f"/v2/models/{quote(default_model, safe='')}/{inferring}".encode()
        self._auditor = auditor
        self._loaded: dict[str, _Loaded] = {}
        self._coming: set[str] = set()  # the platform's names of models that are being loaded

    def is_health(self, path: bytes) -> bool:
        """Whether it is `/ping`."""
        return path == b"/ping"

    def read(self, method: str, path: bytes, headers: Sequence[Header]) -> Translated | Answer:
        """Return what a request asks for; 400 for any other path or method."""
        if path == b"/ping":
            return Translated(method=method, path=self._ping, headers=headers)
        if path == b"/invocations":
            return inference(FRAMING, method, self._invocations, headers, _framed)
        found = _MODELS.fullmatch(path.decode("latin-1"))
        if found is None:
            return BAD_REQUEST
        key = unquote(found[1] or "")
        match method:
            case "GET":
                return _managing(headers, partial(self._describe, key) if key else self._list)
            case "POST" if found[2]:
                return self._invoke(key, headers)
            case "POST":
                return _managing(headers, self._load)
            case "DELETE":
                return _managing(headers, partial(self._unload, key))
        return BAD_REQUEST

    def _invoke(self, key: str, headers: Sequence[Header]) -> Translated:
        loaded = self._standing(key)
        name = _target_of(headers) or (key if loaded is None else loaded.name)
        path = f"/v2/models/{quote(name or '-', safe='')}/infer".encode()
        if loaded is None:
            return Translated(method="POST", path=path, headers=headers, handle=_absent, answered=_as_absent)
        return inference(FRAMING, "POST", path, headers, _invoked)

    def _standing(self, key: str) -> _Loaded | None:
        loaded = self._loaded.get(key)
        return None if loaded is None or loaded.leaving else loaded

    # The models of an endpoint with many

    async def _list(self, _route: Route, scope: Scope, _receive: Receive) -> Answer:
        models = [
            await self._told(key, loaded)
            for key, loaded in list(self._loaded.items())
            if _sees(scope, loaded)
        ]
        return json_answer(dump({"models": models}))

    async def _told(self, key: str, loaded: _Loaded) -> Mapping[str, object]:
        """Return a line of the list, which is empty for a model that is not ready."""
        try:
            ready = not loaded.leaving and await self._server.health.model_ready(loaded.name)
        except TritiumError:
            ready = False
        return {"modelName": key, "modelUrl": loaded.repository} if ready else {}

    async def _describe(self, key: str, _route: Route, scope: Scope, _receive: Receive) -> Answer:
        loaded = self._standing(key)
        if loaded is None or not _sees(scope, loaded):
            return NOT_FOUND
        return json_answer(dump({"modelName": key, "modelUrl": loaded.repository}))

    async def _load(self, _route: Route, scope: Scope, receive: Receive) -> Answer | None:
        try:
            document = await read_document(receive, self._max_input_size)
            if document is None:
                return None
            key, url = _text(document, "model_name"), _text(document, "url")
            name = _target_of(scope["headers"]) or key
            _require(scope, name)
            place = await self._find(url)
            if place is None:
                return BAD_REQUEST
            await self._load_from(place, key, name, scope)
        except TritiumError as error:
            return _refused(error)
        return _DONE

    async def _load_from(self, place: Place, key: str, name: str, scope: Scope) -> None:
        taken = self._loaded.get(key)
        if key in self._coming or (taken is not None and taken.repository != place.repository):
            raise AlreadyExists(f"failed to register '{key}', there is a conflicting mapping for '{key}'")
        self._coming.add(key)
        try:
            change = load_change(name, {})
            await self._recorded(change, scope, partial(self._register_and_load, place, name, scope))
            self._loaded[key] = _Loaded(name, place.repository)
        finally:
            self._coming.remove(key)

    async def _register_and_load(self, place: Place, name: str, scope: Scope) -> None:
        await self._registrations.register(place.repository, {name: place.folder} if place.folder else {})
        try:
            await self._server.repository.load(name, {}, permit=permit_in(_caller(scope)))
        except BaseException:
            self._registrations.unregister(place.repository)
            raise

    async def _unload(self, key: str, _route: Route, scope: Scope, _receive: Receive) -> Answer:
        loaded = self._standing(key)
        if loaded is None:
            return NOT_FOUND
        loaded.leaving = True
        try:
            await self._unload_model(loaded.name, scope)
            self._registrations.unregister(loaded.repository)
        except TritiumError as error:
            return _refused(error)
        else:
            del self._loaded[key]
        finally:
            loaded.leaving = False
        return _DONE

    async def _unload_model(self, name: str, scope: Scope) -> None:
        """Unload it with the models that only it is composed of, and wait until its last answer is given."""
        repository = self._server.repository
        unload = partial(repository.unload, name, unload_dependents=True, permit=permit_in(_caller(scope)))
        await self._recorded(unload_change(name, dependents=True), scope, unload)
        deadline = trio.current_time() + UNLOADS_WITHIN
        while trio.current_time() < deadline:
            entries = [entry for entry in await repository.index() if entry.name == name and entry.state]
            if all(entry.reason == UNLOADED for entry in entries):
                return
            await trio.sleep(LOOKS_EVERY)

    async def _recorded(
        self, change: ManagedChange, scope: Scope, carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        origin = Requester.of(_caller(scope), connecting(scope))
        await recorded(self._auditor, change, origin, carry_out)


def _managing(
    headers: Sequence[Header], handle: Callable[[Route, Scope, Receive], Awaitable[Answer | None]]
) -> Translated:
    return Translated(method="POST", path=_MANAGED, headers=headers, handle=handle)


def _target_of(headers: Sequence[Header]) -> str:
    return dict(headers).get(_TARGET, b"").decode("latin-1")


def _text(document: Mapping[str, Any], key: str) -> str:
    """Return a member of a load's body; empty if there is none. Raises InvalidArgument."""
    value = document.get(key, "")
    if type(value) is not str:
        raise InvalidArgument(not_a("string"))
    check_name(value, f"'{key}'")
    try:
        value.encode()
    except UnicodeEncodeError:  # neither the list of models nor gRPC could tell it
        raise InvalidArgument(f"'{key}' has bytes that are no UTF-8") from None
    return value


def _caller(scope: Scope) -> Caller | None:
    caller: Caller | None = scope.get("tritium.caller")
    return caller


def _sees(scope: Scope, loaded: _Loaded) -> bool:
    caller = _caller(scope)
    return caller is None or caller.may(Action.MODEL_REPOSITORY, loaded.name)


def _require(scope: Scope, name: str) -> None:
    caller = _caller(scope)
    if caller is not None:
        caller.require(Action.MODEL_REPOSITORY, name)


def _refused(error: TritiumError) -> Answer:
    """Return the answer to a load or an unload that failed. Raises what says who may ask, and how much."""
    if isinstance(error, Unauthenticated | PermissionDenied | TooManyRequests):
        raise error
    if isinstance(error, AlreadyExists):
        return error_answer(409, error.message)
    return error_answer(SHORTAGE if tells_of_shortage(error.message) else 400, error.message)


def _framed(answer: Answer) -> Answer:
    return Answer(answer.status, FRAMING.response(answer.headers), answer.buffers, answer.release)


def _invoked(answer: Answer) -> Answer:
    """Put an answer into the platform's form: the status of an error says only whether memory is short."""
    if tells_of_model(answer):
        status = SHORTAGE if tells_of_shortage(said(answer)) else 400
        return Answer(status, answer.headers, answer.buffers, answer.release)
    return _framed(answer)


async def _absent(_route: Route, _scope: Scope, _receive: Receive) -> Answer:
    return NOT_FOUND


def _as_absent(answer: Answer) -> Answer:
    return NOT_FOUND if tells_of_model(answer) else answer
