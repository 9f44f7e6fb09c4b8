"""The endpoints beside those of inference: which models there are, loading and unloading them, and health."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import orjson

from actors.values.auditing import ManagedChange, Requester, recorded
from actors.values.callers import Action, Caller
from actors.values.errors import AlreadyExists, InvalidArgument, TritiumError, Unavailable
from actors.values.generation.facts import Languages
from actors.values.interfaces import Server
from protocols.http.answers import NO, YES, Answer, Receive, Scope, json_answer
from protocols.http.bodies import read_body
from protocols.http.fields import connecting
from protocols.kserve.auditing import load_change, unload_change
from protocols.kserve.permitted import permit_in
from protocols.openai.listing import model_list, model_object
from protocols.openai.naming import adapters, find, unknown
from protocols.openai.options import OpenAiOptions
from protocols.openai.routes import OpenAiRoute, Path

ONLY_EXPLICIT: Final = "Model load/unload requires --model-control-mode=explicit"
Handler = Callable[[OpenAiRoute, Scope, Receive], Awaitable[Answer | None]]
_EXITING: Final = "Server exiting"
_EMPTY: Final = re.compile(rb"\s*(?:\{\s*\})?\s*")


class Management:
    """Answers for `server`. `handlers` are by path."""

    def __init__(self, server: Server, languages: Languages, options: OpenAiOptions) -> None:
        self._server = server
        self._languages = languages
        self._options = options
        self.handlers: dict[Path, Handler] = {
            Path.MODELS: self._models,
            Path.MODEL: self._model,
            Path.LOAD: self._load,
            Path.UNLOAD: self._unload,
            Path.READY: self._ready,
            Path.LIVE: self._live,
        }

    async def _models(self, _route: OpenAiRoute, scope: Scope, _receive: Receive) -> Answer:
        caller: Caller | None = scope.get("tritium.caller")
        listed = []
        for name in self._languages.names():
            facts = self._languages.facts(name)
            if facts is not None and (caller is None or caller.may(Action.METADATA, name)):
                listed.append((name, facts, adapters(name, facts, self._options.separator)))
        return json_answer(orjson.dumps({"object": "list", "data": model_list(listed)}))

    async def _model(self, route: OpenAiRoute, scope: Scope, _receive: Receive) -> Answer:
        return json_answer(orjson.dumps(self._described(route.model, scope.get("tritium.caller"))))

    def _described(self, name: str, caller: Caller | None) -> dict[str, Any]:
        meant = find(name, self._languages, self._options.separator)
        if meant is None:
            raise unknown(name)
        if caller is not None:
            caller.require(Action.METADATA, meant.model)
        if not meant.adapter:
            return model_object(name, meant.facts)
        return model_object(name, meant.facts, parent=meant.model, root=meant.facts.adapters[meant.adapter])

    async def _load(self, route: OpenAiRoute, scope: Scope, receive: Receive) -> Answer | None:
        if not await self._may_change(receive):
            return None
        name = route.model
        if self._languages.facts(name) is not None:
            raise AlreadyExists(f"Model '{name}' is already loaded")
        permit = permit_in(scope.get("tritium.caller"))
        load = partial(self._server.repository.load, name, {}, permit=permit)
        await self._recorded(load_change(name, {}), scope, load)
        facts = self._languages.facts(name)
        if facts is None:
            # It was loaded, and is served over the v2 API.
            return json_answer(orjson.dumps({"id": name, "object": "model"}))
        return json_answer(orjson.dumps(model_object(name, facts)))

    async def _unload(self, route: OpenAiRoute, scope: Scope, receive: Receive) -> Answer | None:
        if not await self._may_change(receive):
            return None
        name = route.model
        try:
            self._server.models.resolve(name)
        except Unavailable:
            pass  # it is known, and may have to go
        except TritiumError:
            raise unknown(name) from None
        permit = permit_in(scope.get("tritium.caller"))
        unload = partial(self._server.repository.unload, name, permit=permit)
        await self._recorded(unload_change(name, dependents=False), scope, unload)
        return json_answer(orjson.dumps({"status": "success", "model": name}))

    async def _may_change(self, receive: Receive) -> bool:
        """Return whether the client still waits. Raises InvalidArgument where nothing may be changed."""
        body = await read_body(receive)
        if body is None:
            return False
        if not self._options.explicit:
            raise InvalidArgument(ONLY_EXPLICIT)
        if _EMPTY.fullmatch(body) is None:
            raise InvalidArgument("this takes no body: use /v2/repository to load a model with parameters")
        return True

    async def _recorded(
        self, change: ManagedChange, scope: Scope, carry_out: Callable[[], Awaitable[None]]
    ) -> None:
        auditor = self._options.auditor
        if auditor is None:
            await carry_out()
        else:
            origin = Requester.of(scope.get("tritium.caller"), connecting(scope))
            await recorded(auditor, change, origin, carry_out)

    async def _ready(self, _route: OpenAiRoute, _scope: Scope, _receive: Receive) -> Answer:
        health = self._server.health
        if health.exiting or health.withdrawn:
            raise Unavailable(_EXITING)
        return YES if await health.ready() else NO

    async def _live(self, _route: OpenAiRoute, _scope: Scope, _receive: Receive) -> Answer:
        health = self._server.health
        if health.exiting:
            raise Unavailable(_EXITING)
        return YES if health.live() else NO
