"""Every field of a request that is known, and what becomes of it: one table for each endpoint.

Fields that are in no table are ignored, and the answer names them in a header. The page
`docs/openai_fields.md` is written from these tables and from the tests' cases.

Contract: llm.md section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple


class Use(Enum):
    """What becomes of a field."""

    READ = "read"
    TAKEN = "taken, changes nothing"
    REFUSED = "refused"


class Field(NamedTuple):
    """A known field. A refused one may have the values `harmless`, which change nothing.

    `about` says what it does, or why it is refused and what would work.
    """

    use: Use
    about: str
    harmless: tuple[Any, ...] = ()


def _read(about: str) -> Field:
    return Field(Use.READ, about)


def _taken(about: str) -> Field:
    return Field(Use.TAKEN, about)


def _refused(about: str, *harmless: Any) -> Field:
    return Field(Use.REFUSED, about, harmless)


_COMMON: Final[Mapping[str, Field]] = {
    "model": _read("a model, or one of its adapters"),
    "user": _read("the tenant, where the model's fairness asks for the parameter `user`"),
    "priority": _read(
        "vLLM's: lower goes earlier, 0 is usual; as far as the model has levels ([llm.md](llm.md#priorities))"
    ),
    "deadline": _read("ours: seconds for queue and generation together"),
    "request_id": _read("vLLM's: stands for the header X-Request-ID"),
    "metadata": _taken("of OpenAI's dashboards"),
    "store": _taken("nothing is stored"),
    "service_tier": _taken("there is one tier"),
    "safety_identifier": _taken("of OpenAI's policies"),
}

_SAMPLING: Final[Mapping[str, Field]] = {
    "n": _read("1 to 128 choices of each prompt"),
    "temperature": _read("0 to 2"),
    "top_p": _read("0 to 1"),
    "top_k": _read("-1 and 0: off"),
    "min_p": _read("0 to 1"),
    "presence_penalty": _read("-2 to 2"),
    "frequency_penalty": _read("-2 to 2"),
    "repetition_penalty": _read("above 0"),
    "seed": _read("64 bits"),
    "logit_bias": _read("by token id, -100 to 100"),
    "bad_words": _read("texts that are not generated"),
    "allowed_token_ids": _read("no others are generated"),
    "max_tokens": _read("none: what the context has room for, or --default-max-tokens"),
    "min_tokens": _read("before these no end is generated"),
    "stop": _read("a text, or up to 64"),
    "stop_token_ids": _read("token ids that end a choice"),
    "include_stop_str_in_output": _read("the text that ended a choice is in it"),
    "ignore_eos": _read("go on behind the model's own end"),
    "skip_special_tokens": _read("leave special tokens out of texts"),
    "prompt_logprobs": _read("alternatives of each token of the prompt; not with `stream`"),
    "truncate_prompt_tokens": _read("keep the prompt's last tokens; -1: what the context has room for"),
    "structured_outputs": _read("one of json, regex, choice, grammar, json_object"),
    "response_format": _read("text, json_object or json_schema, enforced by the engine"),
    "cache_salt": _read("prompts share cached prefixes within one salt"),
    "return_token_ids": _read("ids of prompt and choices"),
    "return_tokens_as_token_ids": _read("`token_id:7` in place of a token's text in logprobs"),
    "add_special_tokens": _read("whether the tokenizer adds its own, such as BOS"),
    "stream": _read("server-sent events"),
    "stream_options": _read("include_usage, continuous_usage_stats"),
    "logprobs": _read("logarithmic probabilities of generated tokens"),
    "prompt_cache_key": _read(
        "a session: keeps it with one engine, and with one version where a traffic plan is sticky"
    ),
    "prompt_cache_retention": _taken("the engine decides what it keeps"),
    "prompt_cache_options": _taken("the engine decides what it keeps"),
    "guided_json": _refused("vLLM dropped it: use structured_outputs {'json': ...}"),
    "guided_regex": _refused("vLLM dropped it: use structured_outputs {'regex': ...}"),
    "guided_choice": _refused("vLLM dropped it: use structured_outputs {'choice': ...}"),
    "guided_grammar": _refused("vLLM dropped it: use structured_outputs {'grammar': ...}"),
    "guided_decoding_backend": _refused("the engine has one: leave it out"),
    "guided_whitespace_pattern": _refused("the engine's grammar decides: leave it out"),
    "use_beam_search": _refused("engines here sample: leave it out", False),
    "length_penalty": _refused("it is for beam search: leave it out", 1),
    "best_of": _refused("use n", 1),
    "spaces_between_special_tokens": _refused("they are always there", True),
    "logits_processors": _refused("a client can't bring code: use logit_bias or structured_outputs"),
    "prompt_embeds": _refused("prompts are texts or token ids"),
    "kv_transfer_params": _refused("caches are not moved between engines"),
    "vllm_xargs": _refused("an engine's own arguments are not passed on"),
    "repetition_detection": _refused("use repetition_penalty"),
}

CHAT: Final[Mapping[str, Field]] = {
    **_COMMON,
    **_SAMPLING,
    "messages": _read("of roles system, developer, user, assistant and tool; content a text or text parts"),
    "max_completion_tokens": _read("goes before max_tokens"),
    "top_logprobs": _read("0 to 20, with `logprobs`"),
    "tools": _read("up to 128, of type function"),
    "tool_choice": _read("none, auto, required, or one function by name"),
    "parallel_tool_calls": _read("false: at most one call"),
    "reasoning_effort": _read("given to the chat template"),
    "include_reasoning": _read("false: reasoning is left out of the answer"),
    "chat_template_kwargs": _read("given to the chat template"),
    "add_generation_prompt": _read("whether the template begins the assistant's message"),
    "continue_final_message": _read("go on with the last message"),
    "prediction": _taken("it makes nothing faster here"),
    "verbosity": _refused("say it in a message", "medium"),
    "modalities": _refused("text comes out", ["text"]),
    "audio": _refused("text comes out"),
    "web_search_options": _refused("use a tool of yours"),
    "moderation": _refused("nothing is moderated"),
    "functions": _refused("use tools", []),
    "function_call": _refused("use tool_choice", "none"),
    "echo": _refused("only /v1/completions can repeat its prompt", False),
    "chat_template": _refused("templates come with the model: use chat_template_kwargs"),
    "documents": _refused("put them into a message, or into chat_template_kwargs"),
    "mm_processor_kwargs": _refused("prompts are texts"),
    "media_io_kwargs": _refused("prompts are texts"),
}

COMPLETIONS: Final[Mapping[str, Field]] = {
    **_COMMON,
    **_SAMPLING,
    "prompt": _read("a text, texts, token ids, or lists of token ids"),
    "echo": _read("begin with the prompt"),
    "suffix": _refused("suffix is not currently supported", ""),
}

EMBEDDINGS: Final[Mapping[str, Field]] = {
    **_COMMON,
    "input": _read("a text, texts, token ids, or lists of token ids"),
    "dimensions": _read("of the vectors, where the model can shorten them"),
    "encoding_format": _read("float or base64 (little-endian float32)"),
    "truncate_prompt_tokens": _read("keep the first tokens of each input; -1: what the model has room for"),
    "add_special_tokens": _read("whether the tokenizer adds its own, such as BOS"),
    "cache_salt": _read("inputs share cached prefixes within one salt"),
    "prompt_cache_key": _SAMPLING["prompt_cache_key"],
    "messages": _refused("use input"),
    "embed_dtype": _refused("vectors are float32", "float32"),
    "endianness": _refused("base64 is little-endian", "little", "native"),
    "normalize": _refused("the model decides"),
    "use_activation": _refused("the model decides"),
}

TOKENIZE: Final[Mapping[str, Field]] = {
    **_COMMON,
    "prompt": _read("a text"),
    "messages": CHAT["messages"],
    "tools": CHAT["tools"],
    "add_special_tokens": _read("whether the tokenizer adds its own, such as BOS"),
    "return_token_strs": _read("each token's text as well"),
    "add_generation_prompt": CHAT["add_generation_prompt"],
    "continue_final_message": CHAT["continue_final_message"],
    "chat_template_kwargs": CHAT["chat_template_kwargs"],
    "chat_template": CHAT["chat_template"],
    "mm_processor_kwargs": CHAT["mm_processor_kwargs"],
}

DETOKENIZE: Final[Mapping[str, Field]] = {
    **_COMMON,
    "tokens": _read("token ids"),
}
