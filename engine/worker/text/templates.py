"""Chat templates, as transformers runs them. They are code of a model's folder: `helpers` bounds them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from engine.worker.text.refusing import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NO_TEMPLATE: Final = (
    "This model has no chat template, so it can't be given messages: use completions, or put a"
    " chat_template.jinja into the model's folder."
)

LARGEST: Final = 64 * 1024 * 1024
"""Characters that a template may make."""

_LISTS: Final = re.compile(r"""for\s+\w+\s+in\s+[\w.\[\]'"]*content\b""")
"""What templates have that read content in parts."""

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_CONTINUED: Final = "CONTINUE_FINAL_MESSAGE_TAG "
_OURS: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplates:
    """The chat templates of one model, by name; most have one, `default`."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """`tokens` are the special tokens that templates name: `bos_token`, say."""
        self.sources = sources
        self._tokens = tokens
        self._compiled: dict[str, Callable[..., str]] = {}

    def __bool__(self) -> bool:
        return bool(self.sources)

    def source(self, *, tools: bool) -> str:
        """Return the text of the template for a request with or without tools. Raises Refused."""
        if not self.sources:
            raise Refused(NO_TEMPLATE, param="messages")
        if tools and "tool_use" in self.sources:
            return self.sources["tool_use"]
        if "default" in self.sources:
            return self.sources["default"]
        return next(iter(self.sources.values()))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any],
    ) -> str:
        """Return the prompt of a chat. Raises Refused, and whatever a hostile template makes Python raise."""
        if taken := sorted(_OURS & set(kwargs)):
            raise Refused(f"'{taken[0]}' is no argument for the chat template", param="chat_template_kwargs")
        source = self.source(tools=bool(tools))
        chat = _prepared(messages, lists=bool(_LISTS.search(source)), developer="developer" in source)
        final = _tagged(chat) if continue_final_message else ""
        template = self._compile(source)
        given = {**self._tokens, **kwargs}
        try:
            text = template(
                messages=chat,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **given,
            )
        except (MemoryError, Refused):
            raise
        except Exception as error:  # whatever a template's code raises
            raise Refused(f"The chat template refuses this: {_said(error)}", param="messages") from error
        if len(text) > LARGEST:
            raise Refused(f"The chat template makes more than {LARGEST} characters of this", param="messages")
        return _until_tag(text, final) if continue_final_message else text

    def _compile(self, source: str) -> Callable[..., str]:
        if source not in self._compiled:
            self._compiled[source] = _compiled(source)
        return self._compiled[source]


def _said(error: Exception) -> str:
    return f"{error}"[:1000] or type(error).__name__


def _prepared(messages: Sequence[Mapping[str, Any]], *, lists: bool, developer: bool) -> list[dict[str, Any]]:
    """Return messages as templates expect them.

    What is null is left out, as in transformers. Content in parts becomes one text for a template that knows
    no parts, arguments of calls become objects, and reasoning has all of its names, as in vLLM.
    """
    chat: list[dict[str, Any]] = []
    for place, given in enumerate(messages):
        message = {key: value for key, value in given.items() if value is not None}
        reasoning = next((message[key] for key in _REASONING if key in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        if message.get("role") == "developer" and not developer:
            message["role"] = "system"
        if isinstance(message.get("content"), list) and not lists:
            message["content"] = "\n".join(_texts(message["content"]))
        if message.get("tool_calls"):
            message["tool_calls"] = [_called(call, place) for call in message["tool_calls"]]
        chat.append(message)
    return chat


def _texts(parts: Sequence[Any]) -> list[str]:
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    return [text for text in texts if isinstance(text, str)]


def _called(call: Mapping[str, Any], place: int) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            where = f"messages[{place}].tool_calls"
            raise Refused(f"The arguments in {where} are no JSON: {error}", param=where) from error
    return {**call, "function": function}


def _tagged(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's content; return that content."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUED
        return content
    if isinstance(content, list):
        for place in range(len(content) - 1, -1, -1):
            part = content[place]
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                marked = {**part, "text": part["text"] + _CONTINUED}
                chat[-1]["content"] = [*content[:place], marked, *content[place + 1 :]]
                return str(part["text"])
    raise Refused("The last message has no text to be continued", param="continue_final_message")


def _until_tag(text: str, final: str) -> str:
    place = text.rfind(_CONTINUED.strip())
    if place < 0 or final.strip() not in text:
        raise Refused(
            "The chat template does not give the last message's text, so that can't be continued",
            param="continue_final_message",
        )
    if text[place : place + len(_CONTINUED)] == _CONTINUED:
        return text[:place]
    return text[:place].rstrip()  # the template strips what it is given


def _compiled(source: str) -> Callable[..., str]:
    """Return the template's function. Raises Refused. The environment is that of transformers 5."""
    from datetime import datetime

    import jinja2
    import jinja2.exceptions
    import jinja2.ext
    import jinja2.sandbox

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks, for training, what an assistant has said."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            """Return the nodes between the tags."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Namespace(jinja2.utils.Namespace):
        """A namespace without names that begin with `_`."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            for name in dict(*args[1:], **kwargs):
                _check_name(name)
            jinja2.utils.Namespace.__init__(*args, **kwargs)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    class Dictionary:
        """`dict`, without its attributes."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

    def _check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = Dictionary()
    environment.globals["namespace"] = Namespace
    try:
        return environment.from_string(source).render
    except (jinja2.TemplateError, RecursionError) as error:
        raise Refused(f"The model's chat template can't be read: {_said(error)}", param="messages") from error
