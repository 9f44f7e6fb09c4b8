"""What is asked of a language model: a prompt, and how to go on from it.

A frontend makes an `Ask` of what its client sent, and checks ranges and combinations. What a prompt becomes
for the engine is not its business: templates and tokenizers run in the model's text worker. An `Ask` travels
there as JSON, its token ids as bytes (`document`, `actors.wire.text_frames`). This is part of the workers'
import closure, so it runs on Python 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors.values.requests import InferRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHAT: Final = "chat"
TEXT: Final = "text"
EMBED: Final = "embed"
TOKENIZE: Final = "tokenize"
DETOKENIZE: Final = "detokenize"

MOST_CHOICES: Final = 2048
"""Choices of one request: prompts times `n`."""


class Sampling(NamedTuple):
    """How tokens are chosen. None and empty mean that the client did not say.

    The names are those of vLLM's `SamplingParams` (contract, llm.md section 2.1), which most engines take.
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[str, float] | None = None  # by the token's id, in decimal digits
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] | None = None
    max_tokens: int | None = None  # None: as many as the context has room for
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # alternatives to tell of each generated token; 0: only the chosen one
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    grammar: Mapping[str, Any] | None = None
    """One of `{"json": schema}`, `{"json_object": true}`, `{"regex": text}`, `{"choice": [texts]}` and
    `{"grammar": text}`: what the generated text must be, enforced by the engine."""


class Ask(NamedTuple):
    """One request to a language model, as a client has put it."""

    kind: str  # CHAT, TEXT, EMBED, TOKENIZE or DETOKENIZE
    messages: Sequence[Mapping[str, Any]] | None = None  # CHAT: OpenAI's messages, each checked by itself
    prompts: Sequence[Any] = ()  # TEXT, EMBED, …: each a text, or token ids: a list, or an `array("i")`
    sampling: Sampling = Sampling()
    tools: Sequence[Mapping[str, Any]] = ()  # OpenAI's, of type function
    tool_choice: Any = "none"  # "none", "auto", "required", or {"name": …}
    parallel_tool_calls: bool = True
    template_kwargs: Mapping[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None  # None: as is usual for the kind
    stream: bool = True  # the client takes pieces as they come; else all of them at the end
    echo: bool = False
    return_token_ids: bool = False
    return_token_strs: bool = False
    adapter: str = ""  # the name of a LoRA adapter; empty: none
    cache_salt: str = ""
    dimensions: int | None = None  # EMBED

    @property
    def choices(self) -> int:
        """How many choices its answer has."""
        return max(1, len(self.prompts)) * self.sampling.n

    @property
    def extent(self) -> tuple[int, int]:
        """The characters of its prompt's texts, without the template's, and the token ids that it brings."""
        characters = ids = 0
        for prompt in self.prompts:
            if isinstance(prompt, str):
                characters += len(prompt)
            else:
                ids += len(prompt)
        for message in self.messages or ():
            characters += len(message.get("content") or "")
        return characters, ids

    def document(self) -> dict[str, Any]:
        """Return it as JSON values, but for token ids in arrays."""
        return {**self._asdict(), "sampling": self.sampling._asdict()}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Ask:
        """Return what `document` made. Raises TypeError for keys that are none of its fields."""
        fields = dict(document)
        return cls(**{**fields, "sampling": Sampling(**fields["sampling"])})


class GenerationRequest(InferRequest):
    """A request for a language model that did not come as tensors. Its parts carry `InferResponse.generated`.

    Only a model whose scheduling is `LanguageServing` takes one; it is `ask` that says what is wanted, and
    `inputs` is empty.
    """

    __slots__ = ("ask",)

    ask: Ask
