"""What becomes of an ask before the engine has it: prompts as token ids, and a plan for the answer's text.

This is done in a process of its own (`engine.worker.text.helpers`), as a template's code and a tokenizer may
take any time and memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.worker.text.encoding import Encoder
from engine.worker.text.refusing import Refused
from engine.worker.text.speaking import Plan
from engine.worker.text.thinking import beginning_of
from engine.worker.text.tools import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.values.generation.asking import Ask, Sampling
    from engine.worker.text.loading import Loaded

CHAT: Final = "chat"
EMBED: Final = "embed"
TOKENIZE: Final = "tokenize"
DETOKENIZE: Final = "detokenize"
_LEAST_ANSWER: Final = 65_536  # tokens of an answer to TOKENIZE, however short the context
_LONGEST_ANSWER: Final = 262_144  # however long it is
_LONGEST_SCHEMA: Final = 262_144  # characters; engines refuse longer grammars


class Choices(NamedTuple):
    """What an operator has chosen for a model; empty: it is told by the template."""

    tools: str = ""  # a format of `formats.PARSERS`
    reasoning: str = ""  # "think": there is reasoning between `<think>` and `</think>`; "none": there is none


class Prepared(NamedTuple):
    """An ask as the engine and the worker get it."""

    prompts: Sequence[Sequence[int]]
    sampling: Mapping[str, Any]
    more: Mapping[str, Any]
    plan: Plan


class Preparer:
    """Prepares the asks of one model."""

    def __init__(
        self, loaded: Loaded, choices: Choices, *, rendering: Callable[[Callable[[], str]], str]
    ) -> None:
        """`rendering` runs what it is given, a template, within bounds."""
        self._loaded = loaded
        self._choices = choices
        self._rendering = rendering

    def prepare(self, ask: Ask, limits: Mapping[str, Any]) -> Prepared:
        """Return what becomes of an ask. Raises Refused, and MemoryError."""
        if ask.kind == DETOKENIZE:
            return self._detokenized(ask)
        context = int(limits.get("context") or 0)
        limit, named = self._room(ask, context), context
        if ask.kind == TOKENIZE:
            limit = named = min(max(context, _LEAST_ANSWER), _LONGEST_ANSWER)
        chat = ask.messages is not None
        encoder = Encoder(self._loaded, limit=limit, param="messages" if chat else "prompt", context=named)
        rendered = self._rendering(lambda: self._render(ask)) if chat else ""
        texts = [rendered] if chat else list(ask.prompts)
        prompts = [self._ids(encoder, ask, text, context) for text in texts]
        if not all(prompts) and ask.kind != TOKENIZE:
            raise Refused(
                "A prompt has no tokens: there must be one at least", param="messages" if chat else "prompt"
            )
        sampling = self._sampling(ask)
        return Prepared(
            prompts, sampling, self._more(ask, texts, prompts, named), self._plan(ask, rendered, prompts)
        )

    @staticmethod
    def _room(ask: Ask, context: int) -> int:
        """Return how many tokens a prompt may have, for one more at least to come."""
        return context - 1 if context and ask.kind != EMBED else context

    def _detokenized(self, ask: Ask) -> Prepared:
        if len(ask.prompts) != 1 or isinstance(ask.prompts[0], str):
            raise Refused("There must be one list of token ids", param="tokens")
        ids = Encoder(self._loaded, limit=0, param="tokens").checked(ask.prompts[0])
        text = self._loaded.vocabulary.text(ids)
        return Prepared((), {}, {"detokenized": text}, Plan())

    def _render(self, ask: Ask) -> str:
        return self._loaded.templates.render(
            ask.messages or (),
            tools=() if ask.tool_choice == "none" else ask.tools,
            add_generation_prompt=ask.add_generation_prompt,
            continue_final_message=ask.continue_final_message,
            kwargs=ask.template_kwargs,
        )

    def _ids(self, encoder: Encoder, ask: Ask, prompt: Any, context: int) -> list[int]:
        truncate = ask.sampling.truncate_prompt_tokens
        if truncate is not None and truncate < 0:
            truncate = self._room(ask, context) or None
        if not isinstance(prompt, str):
            return encoder.given(encoder.checked(prompt), truncate=truncate)
        special = ask.add_special_tokens
        if special is None:
            # A chat template writes the special tokens itself.
            special = ask.messages is None
        return encoder.encode(prompt, special=special, truncate=truncate)

    def _sampling(self, ask: Ask) -> dict[str, Any]:
        """Return what the engine is to be told beside the ask's own sampling."""
        found: dict[str, Any] = {}
        schema = _schema(ask)
        if schema is not None:
            size = len(json.dumps(schema))
            if size > _LONGEST_SCHEMA:
                raise Refused(
                    f"The schemas of the tools that have to be called have {size} characters together: there"
                    f" may be {_LONGEST_SCHEMA}",
                    param="tools",
                )
            found["grammar"] = {"json": schema}
        if ask.sampling.bad_words:
            found["bad_words_ids"] = self._bad_words(ask.sampling.bad_words)
        return found

    def _bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word, as it is at a beginning and behind a space; see vLLM's `bad_words`."""
        encoder = Encoder(self._loaded, limit=0, param="bad_words")
        found: list[list[int]] = []
        for word in words:
            bare = word.lstrip(" ")
            for text in dict.fromkeys((bare, f" {bare}")):
                ids = encoder.encode(text, special=False)
                if ids and ids not in found:
                    found.append(ids)
        return found

    def _more(
        self, ask: Ask, texts: Sequence[Any], prompts: Sequence[Sequence[int]], limit: int
    ) -> dict[str, Any]:
        if ask.kind == TOKENIZE:
            ids = prompts[0] if prompts else ()
            strings = self._strings(ids) if ask.return_token_strs else []
            return {"tokens": {"strings": strings, "longest": limit}}
        if not ask.echo:
            return {}
        whole = ask.sampling.truncate_prompt_tokens is None
        echoed = [
            text
            if isinstance(text, str) and whole
            else self._loaded.vocabulary.text(ids, skipped=self._skipped(ask))
            for text, ids in zip(texts, prompts)
        ]
        return {"text": echoed[0] if len(echoed) == 1 else echoed}

    def _strings(self, ids: Sequence[int]) -> list[str]:
        strings = self._loaded.vocabulary.strings
        return [strings[token] if token < len(strings) else "" for token in ids]

    def _skipped(self, ask: Ask) -> frozenset[int]:
        return self._loaded.vocabulary.special if ask.sampling.skip_special_tokens else frozenset()

    def _plan(self, ask: Ask, rendered: str, prompts: Sequence[Sequence[int]]) -> Plan:
        sampling: Sampling = ask.sampling
        special = self._loaded.vocabulary.special
        tools, names = self._tools(ask)
        return Plan(
            n=max(sampling.n, 1),
            beginnings=[all(token in special for token in ids) for ids in prompts] or [True],
            stop=list(sampling.stop),
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            stop_ids=list(sampling.stop_token_ids),
            skip_special=sampling.skip_special_tokens,
            token_ids=ask.return_token_ids,
            logprobs=sampling.logprobs or 0,
            thinking=self._thinking(ask, rendered) if tools not in (formats.JSON, formats.NAMED) else "",
            tools=tools,
            names=names,
            parallel=ask.parallel_tool_calls,
        )

    def _tools(self, ask: Ask) -> tuple[str, list[str]]:
        """Return the format in which calls come, and the names of tools."""
        if ask.kind != CHAT or not ask.tools or ask.tool_choice == "none":
            return "", []
        names = [str(tool["function"]["name"]) for tool in ask.tools]
        if ask.tool_choice == "required":
            return formats.JSON, names
        if ask.tool_choice != "auto":
            return formats.NAMED, [str(ask.tool_choice["name"])]
        found = self._choices.tools or formats.guessed(self._loaded.templates.source(tools=True))
        return found, names

    def _thinking(self, ask: Ask, rendered: str) -> str:
        if ask.kind != CHAT or self._choices.reasoning == "none" or ask.continue_final_message:
            return ""
        template = self._loaded.templates.source(tools=bool(ask.tools))
        if self._choices.reasoning or "<think>" in template:
            return beginning_of(rendered)
        return ""


def _schema(ask: Ask) -> dict[str, Any] | None:
    """Return the schema of what the model must say where it must call a tool. Raises Refused."""
    if ask.kind != CHAT or ask.tool_choice in ("none", "auto"):
        return None
    functions = {str(tool["function"]["name"]): tool["function"] for tool in ask.tools}
    if ask.tool_choice != "required":
        name = str(ask.tool_choice["name"])
        if name not in functions:
            raise Refused(f"tool_choice names '{name}', which is none of the tools", param="tool_choice")
        return dict(functions[name].get("parameters") or {"type": "object"})
    if not functions:
        raise Refused("tool_choice is 'required', and there are no tools", param="tool_choice")
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [name]},
                "parameters": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, function in functions.items()
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    definitions = _lifted(calls)
    if definitions:
        schema["$defs"] = definitions
    if not ask.parallel_tool_calls:
        schema["maxItems"] = 1
    return schema


def _lifted(calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Take the `$defs` of each tool's schema up to where references to them begin, as vLLM does."""
    found: dict[str, Any] = {}
    for call in calls:
        parameters = call["properties"]["parameters"]
        own = parameters.get("$defs")
        if not isinstance(own, dict):
            continue
        for name, schema in own.items():
            if found.get(name, schema) != schema:
                raise Refused(f"Two tools define '{name}' differently in $defs", param="tools")
            found[name] = schema
        call["properties"]["parameters"] = {key: value for key, value in parameters.items() if key != "$defs"}
    return found
