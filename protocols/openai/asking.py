"""Requests of the OpenAI API as an `Ask`, with what their answer needs.

Reading is a generator that yields every some tenths of a millisecond, since lists may be long
(`actors.seams.steps`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from actors.values.generation import asking
from actors.values.generation.asking import Ask, Sampling
from actors.values.specs import LanguageServing, ModelSpec
from protocols.openai.checking import Members, misfit, read_ids, refuse
from protocols.openai.fields import CHAT, COMPLETIONS, DETOKENIZE, EMBEDDINGS, TOKENIZE, Field
from protocols.openai.messages import read_messages, read_tool_choice, read_tools
from protocols.openai.sampling import read_sampling

MOST_PROMPTS: Final = 2048
"""Prompts or inputs of one request: as many as OpenAI's embeddings take, and clients send."""

_MOST_TOKENS: Final = 1024 * 1024
_LONGEST_TEXT: Final = 4 * 1024 * 1024
_MOST_KWARGS: Final = 64
_LONGEST_DEADLINE: Final = 7 * 24 * 3600.0
_LEVELS: Final = 2**32 - 1
_AT_ONCE: Final = 64
_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


class Kind(Enum):
    """The endpoints that ask a language model for something."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds for requests that don't say it."""

    max_tokens: int | None = None  # None: as many as the context has room for


class Streaming(NamedTuple):
    """Whether and how an answer comes in events."""

    wanted: bool = False
    usage: bool = False  # a last event tells it
    continuous: bool = False  # each event tells it


_AT_ONCE_ANSWER: Final = Streaming()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """One request. `deadline` is seconds from now, 0 for none; `ignored` names fields that mean nothing."""

    kind: Kind
    model: str
    ask: Ask
    streaming: Streaming = _AT_ONCE_ANSWER
    logprobs: int | None = None  # alternatives to show of each token; None: no probabilities
    prompt_logprobs: bool = False
    ids_as_tokens: bool = False
    reasoning: bool = True
    base64: bool = False
    request_id: str = ""
    affinity: str = ""
    user: str = ""
    priority: int = 0  # vLLM's: see `level_of`
    deadline: float = 0.0
    ignored: tuple[str, ...] = ()

    @property
    def choices(self) -> int:
        """How many choices its answer has."""
        return len(self.ask.prompts or (0,)) * self.ask.sampling.n


Steps = Generator[None, None, AskedFor]


def is_request_id(text: str) -> bool:
    """Whether `text` can be the id of a request."""
    return _REQUEST_ID.fullmatch(text) is not None


def read(kind: Kind, document: Any, defaults: Defaults) -> Steps:
    """Return what a request asks for. Raises BadAsk."""
    fields, reader = _ENDPOINTS[kind]
    given = Members(document)
    unknown = given.sort(fields)
    model = given.text("model")
    if not model and kind not in _WITHOUT_MODEL:
        refuse("model", "'model' is missing: it has to name a model", reason="missing_field")
    request_id = given.text("request_id")
    if request_id and not is_request_id(request_id):
        misfit("request_id", request_id, "1 to 128 printable ASCII characters without spaces")
    deadline = given.number("deadline", 0, _LONGEST_DEADLINE)
    asked = AskedFor(
        kind=kind,
        model=model,
        ask=Ask(""),
        request_id=request_id,
        affinity=given.text("prompt_cache_key"),
        user=given.text("user"),
        priority=given.whole("priority", -_LEVELS, _LEVELS) or 0,
        deadline=0.0 if deadline is None else max(deadline, 0.001),
        ignored=tuple(unknown),
    )
    return (yield from reader(given, asked, defaults))


def level_of(priority: int, spec: ModelSpec) -> int:
    """Return the level of a model's queue that a client's `priority` means; 0 is the default one.

    vLLM's meaning: 0 is usual, and a lower number goes earlier. So it counts from the default level. Raises
    BadAsk for a level that there is not, as vLLM does where it keeps to the order of arrival.
    """
    if not priority:
        return 0
    scheduling = spec.scheduling
    if not isinstance(scheduling, LanguageServing) or scheduling.priority_levels < 2:
        refuse("priority", f"'priority' is {priority}, and the queue of '{spec.name}' has one level: use 0")
    levels, usual = scheduling.priority_levels, scheduling.default_priority_level
    if not 1 <= usual + priority <= levels:
        misfit("priority", priority, f"a whole number from {1 - usual} to {levels - usual}")
    return usual + priority


def _chat(given: Members, asked: AskedFor, defaults: Defaults) -> Steps:
    ignored: set[str] = set()
    streaming, more = _streaming(given)
    logprobs = _chat_logprobs(given)
    messages = yield from read_messages(given, ignored)
    tools = read_tools(given)
    choice = read_tool_choice(given, tools)
    sampling = yield from read_sampling(given, default_max_tokens=defaults.max_tokens, logprobs=logprobs)
    if sampling.grammar is not None and (choice == "required" or type(choice) is dict):
        refuse(
            "tool_choice",
            "a tool that has to be called and a format of the answer exclude each other: give one",
        )
    kwargs = _template_kwargs(given)
    effort = given.text("reasoning_effort", 64)
    if effort:
        kwargs["reasoning_effort"] = effort
    ask = Ask(
        asking.CHAT,
        messages=messages,
        sampling=sampling,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=given.flag("parallel_tool_calls", True),
        template_kwargs=kwargs,
        **_prompting(given),
        add_special_tokens=_optional_flag(given, "add_special_tokens"),
        return_token_ids=given.flag("return_token_ids", False),
        cache_salt=given.text("cache_salt"),
    )
    return replace(
        _generating(given, asked, sampling),
        ask=ask,
        streaming=streaming,
        logprobs=logprobs,
        reasoning=given.flag("include_reasoning", True),
        ignored=(*asked.ignored, *more, *sorted(ignored)),
    )


def _completions(given: Members, asked: AskedFor, defaults: Defaults) -> Steps:
    streaming, more = _streaming(given)
    logprobs = given.whole("logprobs", 0, 5)
    prompts = yield from _prompts(given, "prompt")
    sampling = yield from read_sampling(given, default_max_tokens=defaults.max_tokens, logprobs=logprobs)
    asked = _generating(given, asked, sampling)
    if len(prompts) * sampling.n > asking.MOST_CHOICES:
        refuse(
            "n", f"{len(prompts)} prompts with {sampling.n} choices each are more than {asking.MOST_CHOICES}"
        )
    echo = given.flag("echo", False)
    if echo and logprobs is not None and sampling.prompt_logprobs is None:
        if sampling.max_tokens == 0:
            refuse(_max_tokens_of(given), _NO_STEP)
        sampling = sampling._replace(prompt_logprobs=logprobs)
    ask = Ask(
        asking.TEXT,
        prompts=prompts,
        sampling=sampling,
        echo=echo,
        add_special_tokens=_optional_flag(given, "add_special_tokens"),
        return_token_ids=given.flag("return_token_ids", False),
        cache_salt=given.text("cache_salt"),
    )
    return replace(asked, ask=ask, streaming=streaming, logprobs=logprobs, ignored=(*asked.ignored, *more))


def _embeddings(given: Members, asked: AskedFor, _defaults: Defaults) -> Steps:
    encoding = given.text("encoding_format") or "float"
    if encoding not in {"float", "base64"}:
        misfit("encoding_format", encoding, "float or base64")
    prompts = yield from _prompts(given, "input")
    ask = Ask(
        asking.EMBED,
        prompts=prompts,
        sampling=Sampling(truncate_prompt_tokens=given.whole("truncate_prompt_tokens", -1, 2**31 - 1)),
        add_special_tokens=_optional_flag(given, "add_special_tokens"),
        cache_salt=given.text("cache_salt"),
        dimensions=given.whole("dimensions", 1, 1024 * 1024),
    )
    return replace(asked, ask=ask, base64=encoding == "base64")


def _tokenize(given: Members, asked: AskedFor, _defaults: Defaults) -> Steps:
    ignored: set[str] = set()
    messages = None
    prompts: tuple[str, ...] = ()
    if "messages" in given:
        if "prompt" in given:
            refuse("prompt", "'prompt' and 'messages' exclude each other: give one")
        messages = yield from read_messages(given, ignored)
    elif "prompt" in given:
        prompts = (given.text("prompt", _LONGEST_TEXT),)
    else:
        refuse("prompt", "'prompt' is missing: give that, or 'messages'", reason="missing_field")
    ask = Ask(
        asking.TOKENIZE,
        messages=messages,
        prompts=prompts,
        tools=read_tools(given),
        template_kwargs=_template_kwargs(given),
        **_prompting(given),
        add_special_tokens=_optional_flag(given, "add_special_tokens"),
        return_token_strs=given.flag("return_token_strs", False),
    )
    return replace(asked, ask=ask, ignored=(*asked.ignored, *sorted(ignored)))


def _detokenize(given: Members, asked: AskedFor, _defaults: Defaults) -> Steps:
    tokens = given.array("tokens", _MOST_TOKENS)
    if tokens is None:
        refuse("tokens", "'tokens' is missing: it is a list of token ids", reason="missing_field")
    ids = yield from read_ids("tokens", tokens)
    return replace(asked, ask=Ask(asking.DETOKENIZE, prompts=(ids,)))


_ENDPOINTS: Final[
    Mapping[Kind, tuple[Mapping[str, Field], Callable[[Members, AskedFor, Defaults], Steps]]]
] = {
    Kind.CHAT: (CHAT, _chat),
    Kind.COMPLETIONS: (COMPLETIONS, _completions),
    Kind.EMBEDDINGS: (EMBEDDINGS, _embeddings),
    Kind.TOKENIZE: (TOKENIZE, _tokenize),
    Kind.DETOKENIZE: (DETOKENIZE, _detokenize),
}
# Where there is one language model only, these mean it without its name, as in vLLM.
_WITHOUT_MODEL: Final = frozenset({Kind.TOKENIZE, Kind.DETOKENIZE})


def _streaming(given: Members) -> tuple[Streaming, list[str]]:
    wanted = given.flag("stream", False)
    if "stream_options" not in given:
        return Streaming(wanted), []
    if not wanted:
        refuse("stream_options", "`stream_options` can only be used when `stream` is True")
    options = Members(given.get("stream_options"), "stream_options")
    usage = options.flag("include_usage", False)
    continuous = options.flag("continuous_usage_stats", False)
    unknown = options.others(("include_usage", "continuous_usage_stats", "include_obfuscation"))
    return Streaming(wanted, usage, usage and continuous), unknown


def _chat_logprobs(given: Members) -> int | None:
    wanted = given.flag("logprobs", False)
    alternatives = given.whole("top_logprobs", 0, 20)
    if not wanted:
        if alternatives:
            refuse("top_logprobs", "`top_logprobs` can only be used when `logprobs` is True")
        return None
    return alternatives or 0


def _generating(given: Members, asked: AskedFor, sampling: Sampling) -> AskedFor:
    """Return `asked` with what both APIs say of probabilities and ids."""
    if sampling.prompt_logprobs is not None and sampling.max_tokens == 0:
        refuse(_max_tokens_of(given), _NO_STEP)
    if sampling.prompt_logprobs is not None and given.flag("stream", False):
        refuse("prompt_logprobs", "`prompt_logprobs` can only be used when `stream` is not True")
    return replace(
        asked,
        prompt_logprobs=sampling.prompt_logprobs is not None,
        ids_as_tokens=given.flag("return_tokens_as_token_ids", False),
    )


_NO_STEP: Final = (
    "probabilities of the prompt come with the engine's first step, and there is none with 'max_tokens' 0:"
    " ask for 1 token"
)


def _max_tokens_of(given: Members) -> str:
    return "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"


def _template_kwargs(given: Members) -> dict[str, Any]:
    kwargs = given.object("chat_template_kwargs") or {}
    if len(kwargs) > _MOST_KWARGS:
        misfit("chat_template_kwargs", kwargs, f"at most {_MOST_KWARGS} names")
    return dict(kwargs)


def _prompting(given: Members) -> dict[str, Any]:
    goes_on = given.flag("continue_final_message", False)
    begins = given.flag("add_generation_prompt", not goes_on)
    if goes_on and begins:
        refuse(
            "continue_final_message",
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        )
    return {"continue_final_message": goes_on, "add_generation_prompt": begins}


def _optional_flag(given: Members, name: str) -> bool | None:
    return given.flag(name, False) if name in given else None


def _prompts(given: Members, name: str) -> Generator[None, None, list[Any]]:
    """Return one or several prompts, each a text or an array of token ids. Raises BadAsk."""
    value = given.get(name)
    if value is None:
        refuse(name, f"'{name}' is missing", reason="missing_field")
    if type(value) is str:
        value = [value]
    elif type(value) is not list:
        misfit(name, value, "a text, texts, token ids, or lists of token ids")
    if value and type(value[0]) in {int, float, bool}:
        return [(yield from read_ids(name, value))]
    if not 0 < len(value) <= MOST_PROMPTS:
        misfit(name, value, f"1 to {MOST_PROMPTS} prompts")
    prompts: list[Any] = []
    for at, prompt in enumerate(value):
        if type(prompt) is list:
            prompt = yield from read_ids(f"{name}[{at}]", prompt)
        elif type(prompt) is not str:
            misfit(f"{name}[{at}]", prompt, "a text or a list of token ids")
        if not prompt:
            refuse(name, "prompt must be non-empty")
        prompts.append(prompt)
        if at % _AT_ONCE == 0:
            yield
    return prompts
