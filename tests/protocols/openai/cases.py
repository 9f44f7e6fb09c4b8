"""For each known field a value that is taken, with what it becomes, and values that are not.

`docs/openai_fields.md` is written from these and from `protocols.openai.fields` by
`python -m tests.house.reference`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from protocols.openai.asking import AskedFor, Kind
from protocols.openai.fields import CHAT, COMPLETIONS, DETOKENIZE, EMBEDDINGS, TOKENIZE, Field

TABLES: Mapping[Kind, Mapping[str, Field]] = {
    Kind.CHAT: CHAT,
    Kind.COMPLETIONS: COMPLETIONS,
    Kind.EMBEDDINGS: EMBEDDINGS,
    Kind.TOKENIZE: TOKENIZE,
    Kind.DETOKENIZE: DETOKENIZE,
}
PLAIN: Mapping[Kind, Mapping[str, Any]] = {
    Kind.CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    Kind.COMPLETIONS: {"model": "m", "prompt": "hi"},
    Kind.EMBEDDINGS: {"model": "m", "input": "hi"},
    Kind.TOKENIZE: {"model": "m", "prompt": "hi"},
    Kind.DETOKENIZE: {"model": "m", "tokens": [1]},
}


class Case(NamedTuple):
    """`value` of a field, perhaps `beside` others, is what `gives` reads; each of `bad` is refused."""

    field: str
    value: Any
    gives: Callable[[AskedFor], Any] | None
    becomes: Any = None
    bad: Sequence[Any] = ()
    beside: Mapping[str, Any] = {}


def _sampling(name: str, value: Any, *bad: Any, becomes: Any = None) -> Case:
    meaning = value if becomes is None else becomes
    return Case(name, value, lambda asked: getattr(asked.ask.sampling, name), meaning, bad)


def _ask(name: str, value: Any, *bad: Any, becomes: Any = None, **beside: Any) -> Case:
    meaning = value if becomes is None else becomes
    return Case(name, value, lambda asked: getattr(asked.ask, name), meaning, bad, beside)


def _nothing(name: str, value: Any) -> Case:
    return Case(name, value, lambda asked: asked.ignored, ())


def _refused(name: str, *values: Any, harmless: Any = None) -> Case:
    return Case(name, harmless, None, None, values)


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
_OTHER_TOOL = {"type": "file_search"}
_HUGE = 2**40

COMMON = (
    Case("model", "llama", lambda asked: asked.model, "llama", (1, "", ["m"])),
    Case("user", "ann", lambda asked: asked.user, "ann", (7,)),
    Case("priority", -2, lambda asked: asked.priority, -2, (2**32, 1.5, "high", True)),
    Case("deadline", 1.5, lambda asked: asked.deadline, 1.5, (-1, "1s", 10**9)),
    Case("request_id", "r-1", lambda asked: asked.request_id, "r-1", ("a b", "x" * 129, "a\nb", 5)),
    _nothing("metadata", {"a": "b"}),
    _nothing("store", True),
    _nothing("service_tier", "flex"),
    _nothing("safety_identifier", "s"),
)

_SAMPLING_CASES = (
    _sampling("n", 3, 0, 129, 1.5, "2", True),
    _sampling("temperature", 0, -0.1, 2.1, "0", True, [1]),
    _sampling("top_p", 0.5, -0.1, 1.1),
    _sampling("top_k", -1, -2, 0.5, _HUGE),
    _sampling("min_p", 0.1, -1, 2),
    _sampling("presence_penalty", -2, -2.1, 2.1),
    _sampling("frequency_penalty", 2, -2.1, 2.1),
    _sampling("repetition_penalty", 1.2, 0, -1),
    _sampling("seed", -(2**63), 2**63, "1"),
    _sampling(
        "logit_bias",
        {"07": 1, "8": -100},
        {"x": 1},
        {"1": 101},
        {"1": "2"},
        [1],
        {str(_HUGE): 1},
        {str(at): 1 for at in range(5000)},
        becomes={"7": 1.0, "8": -100.0},
    ),
    _sampling("bad_words", ["a"], "a", [""], [1], ["x" * 2000], becomes=("a",)),
    _sampling("allowed_token_ids", [1, 2], [], [-1], [1.5], ["1"], [2**31]),
    _sampling("max_tokens", 5, -1, 1.5, _HUGE),
    Case("min_tokens", 4, lambda asked: asked.ask.sampling.min_tokens, 4, (-1, 6), {"max_tokens": 5}),
    _sampling("stop", "end", "", [1], ["a"] * 65, ["a"] * 100_000, ["x" * 2000], 3, becomes=("end",)),
    _sampling("stop_token_ids", [2], ["a"], [-1], 2, becomes=(2,)),
    _sampling("include_stop_str_in_output", True, 1, "yes"),
    _sampling("ignore_eos", True, 1),
    _sampling("skip_special_tokens", False, 0),
    _sampling("prompt_logprobs", 2, -1, 21),
    _sampling("truncate_prompt_tokens", 8, -2),
    Case(
        "structured_outputs",
        {"regex": "a+"},
        lambda asked: asked.ask.sampling.grammar,
        {"regex": "a+"},
        (
            {},
            {"regex": "a", "json": {}},
            {"structural_tag": "x"},
            {"regex": ""},
            {"choice": []},
            {"json": "x"},
            {"regex": "a" * 9000},
            {"grammar": 5},
            [1],
            {"choice": [1]},
        ),
    ),
    Case(
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        lambda asked: asked.ask.sampling.grammar,
        {"json": {"type": "object"}},
        (
            {"type": "grammar"},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {"name": "s"}},
            "json",
            {},
        ),
    ),
    _ask("cache_salt", "s", 1),
    _ask("return_token_ids", True, 1),
    Case("return_tokens_as_token_ids", True, lambda asked: asked.ids_as_tokens, True, (1,)),
    _ask("add_special_tokens", False, 1),
    Case("stream", True, lambda asked: asked.streaming.wanted, True, (1, "true")),
    Case(
        "stream_options",
        {"include_usage": True, "continuous_usage_stats": True},
        lambda asked: tuple(asked.streaming),
        (True, True, True),
        (1, {"include_usage": 1}),
        {"stream": True},
    ),
    Case("prompt_cache_key", "k", lambda asked: asked.affinity, "k", (1,)),
    _nothing("prompt_cache_retention", "24h"),
    _nothing("prompt_cache_options", {"a": 1}),
    _refused("guided_json", {"type": "object"}),
    _refused("guided_regex", "a+"),
    _refused("guided_choice", ["a"]),
    _refused("guided_grammar", "root ::= a"),
    _refused("guided_decoding_backend", "xgrammar"),
    _refused("guided_whitespace_pattern", " "),
    _refused("use_beam_search", True, harmless=False),
    _refused("length_penalty", 2.0, harmless=1.0),
    _refused("best_of", 2, True, harmless=1),
    _refused("spaces_between_special_tokens", False, harmless=True),
    _refused("logits_processors", ["a.b"]),
    _refused("prompt_embeds", "AAAA"),
    _refused("kv_transfer_params", {"a": 1}),
    _refused("vllm_xargs", {"a": 1}),
    _refused("repetition_detection", {"a": 1}),
)

CASES: Mapping[Kind, Sequence[Case]] = {
    Kind.CHAT: (
        *COMMON,
        *_SAMPLING_CASES,
        Case("messages", [{"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]}],
             lambda asked: asked.ask.messages, [{"role": "developer", "content": "a\nb"}],
             ([], "hi", [1], [{"role": "king", "content": "x"}], [{"role": "user"}], [{"role": "assistant"}],
              [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "image_url"}]}],
              [{"role": "user", "content": [{"type": 5}]}], [{"role": "user", "content": [{"type": "text"}]}],
              [{"role": "user", "content": [7]}], [{"role": "tool", "tool_call_id": "c"}],
              [{"role": "user", "content": "x", "name": 1}], [{"role": "user", "content": "x", "audio": {}}],
              [{"role": "assistant", "function_call": {}}],
              [{"role": "assistant", "tool_calls": [{"type": "code"}]}],
              [{"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}],
              [{"role": "assistant", "tool_calls": [1]}])),
        Case("max_completion_tokens", 9, lambda asked: asked.ask.sampling.max_tokens, 9, (-1,),
             {"max_tokens": 5}),
        Case("logprobs", True, lambda asked: asked.logprobs, 0, (1,)),
        Case("top_logprobs", 20, lambda asked: asked.ask.sampling.logprobs, 20, (21, -1), {"logprobs": True}),
        _ask("tools", [TOOL], [_OTHER_TOOL], [1], [{"type": "function"}], [TOOL, TOOL], [TOOL] * 129,
             [{"type": "function", "function": {"name": "a b"}}],
             [{"type": "function", "function": {"name": "a", "parameters": 1}}]),
        _ask("tool_choice", {"type": "function", "function": {"name": "add"}}, "some", 1, {"type": "mcp"},
             {"type": "function"}, {"type": "function", "function": {"name": "mul"}}, becomes={"name": "add"},
             tools=[TOOL]),
        _ask("parallel_tool_calls", False, 0),
        Case("reasoning_effort", "low", lambda asked: asked.ask.template_kwargs, {"reasoning_effort": "low"},
             (1,)),
        Case("include_reasoning", False, lambda asked: asked.reasoning, False, (0,)),
        Case("chat_template_kwargs", {"a": 1}, lambda asked: asked.ask.template_kwargs, {"a": 1},
             (1, {str(at): 1 for at in range(65)})),
        _ask("add_generation_prompt", False, 0),
        Case("continue_final_message", True, lambda asked: asked.ask.add_generation_prompt, False, (1,)),
        _nothing("prediction", {"type": "content", "content": "x"}),
        _refused("verbosity", "low", harmless="medium"),
        _refused("modalities", ["audio"], ["text", "audio"], harmless=["text"]),
        _refused("audio", {"voice": "v"}),
        _refused("web_search_options", {}),
        _refused("moderation", {"a": 1}),
        _refused("functions", [{"name": "f"}], harmless=[]),
        _refused("function_call", "auto", harmless="none"),
        _refused("echo", True, harmless=False),
        _refused("chat_template", "{{ messages }}"),
        _refused("documents", [{"text": "a"}]),
        _refused("mm_processor_kwargs", {"a": 1}),
        _refused("media_io_kwargs", {"a": 1}),
    ),
    Kind.COMPLETIONS: (
        *COMMON,
        *_SAMPLING_CASES,
        Case("prompt", ["a", [1, 2]], lambda asked: asked.ask.prompts, ["a", array("i", [1, 2])],
             ("", [], [""], [[]], [1, "a"], [1.5], [True], [{}], {}, 5, ["a"] * 2049, [["a"]], [-1],
              [2**31])),
        Case("logprobs", 5, lambda asked: asked.logprobs, 5, (6, -1, True)),
        Case("echo", True, lambda asked: asked.ask.sampling.prompt_logprobs, 1, (1,), {"logprobs": 1}),
        _refused("suffix", "x", harmless=""),
    ),
    Kind.EMBEDDINGS: (
        *COMMON,
        Case("input", [[1, 2], [3]], lambda asked: [*map(list, asked.ask.prompts)], [[1, 2], [3]],
             ("", [], {}, [[1.5]])),
        _ask("dimensions", 2, 0, 1.5, "2"),
        Case("encoding_format", "base64", lambda asked: asked.base64, True, ("hex", 1)),
        _sampling("truncate_prompt_tokens", -1, -2),
        _ask("add_special_tokens", True, 1),
        _ask("cache_salt", "s", 1),
        Case("prompt_cache_key", "k", lambda asked: asked.affinity, "k", (1,)),
        _refused("messages", [{"role": "user", "content": "x"}]),
        _refused("embed_dtype", "float16", harmless="float32"),
        _refused("endianness", "big", harmless="little"),
        _refused("normalize", True),
        _refused("use_activation", True),
    ),
    Kind.TOKENIZE: (
        *COMMON[1:],
        Case("model", "llama", lambda asked: asked.model, "llama", (1,)),
        Case("prompt", "héllo", lambda asked: asked.ask.prompts, ("héllo",), (5, ["a"])),
        Case("messages", [{"role": "user", "content": "x"}], lambda asked: asked.ask.messages,
             [{"role": "user", "content": "x"}], ([],), {"prompt": None}),
        _ask("tools", [TOOL], [_OTHER_TOOL]),
        _ask("add_special_tokens", False, 1),
        _ask("return_token_strs", True, 1),
        _ask("add_generation_prompt", False, 1),
        _ask("continue_final_message", True, 1),
        Case("chat_template_kwargs", {"a": 1}, lambda asked: asked.ask.template_kwargs, {"a": 1}, (1,)),
        _refused("chat_template", "x"),
        _refused("mm_processor_kwargs", {"a": 1}),
    ),
    Kind.DETOKENIZE: (
        *COMMON[1:],
        Case("model", "llama", lambda asked: asked.model, "llama", (1,)),
        Case("tokens", [1, 2], lambda asked: asked.ask.prompts, (array("i", [1, 2]),),
             (None, "a", [1.5], [-1])),
    ),
}  # fmt: skip
