"""Sampling as the engine is told it: every default filled in, and no more tokens than there is room for.

It is done once, when the prompt's length is known, so that another engine would go on in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import Ask
from actors.values.generation.context import too_long
from actors.values.generation.facts import BadAsk, NoSuchAdapter

DEFAULTS: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""vLLM's and OpenAI's defaults. A `top_k` of 0 means all tokens."""

# They are the text worker's business, or become several requests.
_NOT_THE_ENGINES: Final = frozenset(
    (
        "n",
        "stop",
        "bad_words",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "truncate_prompt_tokens",
    )
)
_BLANK: Final[tuple[Any, ...]] = (None, (), [])


ADAPTER: Final = "adapter"
"""The key of an engine's `sampling` that has the adapter, and the reason of an error for one."""


class Limits(NamedTuple):
    """What a model allows."""

    context: int  # tokens of prompt and answer together
    max_tokens: int = 0  # tokens of an answer where the client does not say; 0: as many as there is room for
    defaults: Mapping[str, Any] = {}  # the model's own, as its `generation_config.json` has them
    adapters: Mapping[str, Adapter] | None = None  # LoRA adapters by name; None: the engine serves none

    def told(self) -> dict[str, Any]:
        """Return what the text worker is told of them."""
        return {"context": self.context}


CONTEXT: Final = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long."""


def _no_room(context: int, prompt: int) -> BadAsk:
    return BadAsk(too_long(context, str(prompt)), reason=CONTEXT)


def resolve(
    ask: Ask,
    overrides: Mapping[str, Any],
    *,
    prompt: int,
    limits: Limits,
    adapter: Adapter | None = None,
) -> list[dict[str, Any]]:
    """Return what the engine is told for each of the `n` choices of a prompt of so many tokens.

    `overrides` are the text worker's: a grammar for tools, say. `adapter` is the one that was asked for.
    Raises BadAsk for a prompt that leaves no room.
    """
    room = limits.context - prompt
    if room < 1:
        raise _no_room(limits.context, prompt)
    sampling = ask.sampling
    given = {
        key: value
        for key, value in {**sampling._asdict(), **overrides}.items()
        if key not in _NOT_THE_ENGINES and value not in _BLANK
    }
    told = {**DEFAULTS, **limits.defaults, **given}
    wanted = told.get("max_tokens")
    told["max_tokens"] = min(room, wanted if wanted is not None else limits.max_tokens or room)
    if adapter is not None:
        told[ADAPTER] = adapter.told
    if ask.cache_salt:
        told["cache_salt"] = ask.cache_salt
    return [_of_choice(told, number) for number in range(sampling.n)]


def embedding(ask: Ask, adapter: Adapter | None) -> dict[str, Any]:
    """Return what the engine is told of a text to embed."""
    told: dict[str, Any] = {"embed": True, "dimensions": ask.dimensions}
    return told if adapter is None else {**told, ADAPTER: adapter.told}


def check_adapter(ask: Ask, limits: Limits) -> Adapter | None:
    """Return the adapter that is asked for. Raises in the words of Triton's vLLM backend.

    BadAsk, if the engine serves none; NoSuchAdapter.
    """
    if not ask.adapter:
        return None
    if limits.adapters is None:
        raise BadAsk("LoRA feature is not enabled.", param="lora_name", reason=ADAPTER)
    found = limits.adapters.get(ask.adapter)
    if found is None:
        raise NoSuchAdapter(
            f"LoRA {ask.adapter:.100} is not supported, we currently support {list(limits.adapters)}"
        )
    return found


def _of_choice(told: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Choices differ, though their client gave one seed."""
    seed = told.get("seed")
    return {**told} if seed is None else {**told, "seed": (seed + number) % 2**63}


MOST_TOLD: Final = 16 * 1024 * 1024
"""Bytes of what the engine is told of all choices of a request."""

_OF_CHOICE: Final = ("max_tokens", "seed")


class Telling:
    """Makes what the engine is told of each choice, as JSON.

    Choices of one request differ in `_OF_CHOICE` alone. So what may be long, a grammar or a list, is encoded
    once, and choices that are told the same share the bytes.
    """

    def __init__(self, first: Mapping[str, Any], choices: int) -> None:
        """`first` is the sampling of the first of so many. Raise BadAsk where all together is too much."""
        shared = {key: value for key, value in first.items() if key not in _OF_CHOICE}
        self._shared = json.dumps(shared).encode()[:-1]
        self._made: dict[tuple[Any, ...], bytes] = {}
        total = choices * len(self._shared)
        if total > MOST_TOLD:
            raise BadAsk(
                f"{choices} choices, each with {len(self._shared)} bytes of what tokens may be chosen,"
                f" are more than {MOST_TOLD} bytes: ask for fewer choices, or with a shorter grammar or list",
                param="n",
            )

    def of(self, sampling: Mapping[str, Any]) -> bytes:
        """Return the JSON of one of the samplings."""
        own = (sampling.get("max_tokens"), sampling.get("seed"))
        made = self._made.get(own)
        if made is None:
            told = {key: value for key, value in zip(_OF_CHOICE, own, strict=True) if value is not None}
            more = json.dumps(told).encode()[1:]
            made = self._made[own] = self._shared + (b", " if told and self._shared != b"{" else b"") + more
        return made


def check_prompts(ask: Ask, limits: Limits) -> None:
    """Raise BadAsk for prompts of token ids that are longer than anything the model takes."""
    if ask.sampling.truncate_prompt_tokens is not None:
        return
    for prompt in ask.prompts:
        if isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > limits.context:
            raise _no_room(limits.context, len(prompt))
