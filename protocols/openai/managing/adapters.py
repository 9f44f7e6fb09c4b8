"""The endpoints that load and unload LoRA adapters, in vLLM's form and words (contract, llm.md section 2.1).

vLLM serves one model. Where several here can serve adapters, a field of ours, `model`, says which is meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from actors.values.auditing import Requester, recorded
from actors.values.callers import Action, Caller
from actors.values.errors import InvalidArgument, Unsupported
from actors.values.generation.adapters import AdapterControl
from actors.values.generation.facts import Languages
from protocols.http.answers import Answer, Receive, Scope
from protocols.http.bodies import read_body
from protocols.http.fields import connecting
from protocols.kserve.auditing import adapter_load_change, adapter_unload_change
from protocols.openai.checking import Members
from protocols.openai.documents import parse
from protocols.openai.generation import ignored_fields
from protocols.openai.naming import find, unknown
from protocols.openai.options import OpenAiOptions
from protocols.openai.routes import OpenAiRoute

ONLY_EXPLICIT: Final = "LoRA adapter load/unload requires --model-control-mode=explicit"
_LOAD_FIELDS: Final = ("lora_name", "lora_path", "load_inplace", "is_3d_lora_weight", "model")
_UNLOAD_FIELDS: Final = ("lora_name", "lora_int_id", "model")
_LONGEST_NAME: Final = 256
_PLAIN: Final = (b"content-type", b"text/plain; charset=utf-8")


class AdapterEndpoints:
    """Answers for `control`, of the models among `languages`."""

    def __init__(self, control: AdapterControl, languages: Languages, options: OpenAiOptions) -> None:
        self._control = control
        self._languages = languages
        self._options = options

    async def load(self, _route: OpenAiRoute, scope: Scope, receive: Receive) -> Answer | None:
        """Load an adapter."""
        given = await self._read(receive)
        if given is None:
            return None
        name, path = given.text("lora_name", _LONGEST_NAME), given.text("lora_path")
        if not name or not path:
            raise InvalidArgument("Both 'lora_name' and 'lora_path' must be provided.")
        if given.flag("is_3d_lora_weight", default=False):
            raise Unsupported(
                "'is_3d_lora_weight' is not supported: adapters are in the form that PEFT writes"
            )
        in_place = given.flag("load_inplace", default=False)
        model = self._model(given, scope)
        self._check_name(name, model)

        async def carry_out() -> None:
            await self._control.load(model, name, path, in_place=in_place)

        change = adapter_load_change(model, name, path, in_place=in_place)
        await recorded(self._options.auditor, change, _origin(scope), _permitted(scope, model, carry_out))
        return _done(f"Success: LoRA adapter '{name}' added successfully.", given.others(_LOAD_FIELDS))

    async def unload(self, _route: OpenAiRoute, scope: Scope, receive: Receive) -> Answer | None:
        """Unload an adapter."""
        given = await self._read(receive)
        if given is None:
            return None
        name = given.text("lora_name", _LONGEST_NAME)
        if not name:
            raise InvalidArgument("'lora_name' needs to be provided to unload a LoRA adapter.")
        model = self._model(given, scope)

        async def carry_out() -> None:
            self._control.unload(model, name)

        change = adapter_unload_change(model, name)
        await recorded(self._options.auditor, change, _origin(scope), _permitted(scope, model, carry_out))
        return _done(f"Success: LoRA adapter '{name}' removed successfully.", given.others(_UNLOAD_FIELDS))

    async def _read(self, receive: Receive) -> Members | None:
        """Return what is asked for; None where the client has left. Raises InvalidArgument."""
        body = await read_body(receive)
        if body is None:
            return None
        if not self._options.explicit:
            raise InvalidArgument(ONLY_EXPLICIT)
        return Members(parse(body or b"{}"))

    def _model(self, given: Members, scope: Scope) -> str:
        """Return the model that is meant."""
        caller: Caller | None = scope.get("tritium.caller")
        named = given.text("model")
        if named:
            if self._languages.facts(named) is None:
                raise unknown(named)
            return named
        serving = [
            name
            for name in self._languages.names()
            if (facts := self._languages.facts(name)) is not None
            and facts.takes_adapters
            and (caller is None or caller.may(Action.MODEL_REPOSITORY, name))
        ]
        if not serving:
            raise InvalidArgument(
                "no model here serves LoRA adapters: the backend is vllm, and model.json has"
                ' "enable_lora": true'
            )
        if len(serving) > 1:
            raise InvalidArgument(f"'model' is missing: {', '.join(serving)} serve LoRA adapters")
        return serving[0]

    def _check_name(self, name: str, model: str) -> None:
        """Raise InvalidArgument for a name that clients would mean something else by."""
        separator = self._options.separator
        meant = find(f"{model}{separator}{name}" if separator else name, self._languages, "")
        if meant is None or (meant.model == model and meant.adapter):
            return
        if meant.adapter:
            raise InvalidArgument(
                f"The lora adapter '{name}' conflicts with one of model '{meant.model}': use another name, or"
                " start the server with --lora-separator"
            )
        raise InvalidArgument(f"The lora adapter '{name}' conflicts with a served base model.")


def _permitted(
    scope: Scope, model: str, carry_out: Callable[[], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    caller: Caller | None = scope.get("tritium.caller")

    async def permitted() -> None:
        if caller is not None:
            caller.require(Action.MODEL_REPOSITORY, model)
        await carry_out()

    return permitted


def _origin(scope: Scope) -> Requester:
    return Requester.of(scope.get("tritium.caller"), connecting(scope))


def _done(text: str, ignored: list[str]) -> Answer:
    return Answer(200, [_PLAIN, *ignored_fields(ignored)], (text.encode(),))
