"""How one stream's tokens are chosen: the fields of a request's `sampling`, read and checked.

Names, ranges and meanings are vLLM's (`vllm.SamplingParams`). What reads as it does here can be chosen from
at each step without another check. Nothing that a client says may end an engine's loop.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.values.errors import InvalidArgument
from actors.values.generation.context import too_long

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GREEDY_BELOW = 1e-5
"""A temperature below this one means the most probable token (`_SAMPLING_EPS` of vLLM)."""

_MOST_IDS = 100_000  # ids or words in one field


class Choosing(NamedTuple):
    """See the module. Each field has vLLM's name, and its default, where a request has none."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0  # 0, which vLLM does not take and OpenAI's clients send: the most probable token
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = {}
    bad_words_ids: Sequence[Sequence[int]] = ()  # of each way to write a word that must not be said
    allowed_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    stops: frozenset[int] = frozenset()
    """Ids that end the stream: the model's own, if they are not ignored, and the request's."""
    stop_token_ids: frozenset[int] = frozenset()  # the request's
    logprobs: int | None = None
    grammar: Mapping[str, Any] | None = None

    @property
    def greedy(self) -> bool:
        """Whether it takes the most probable token."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalises(self) -> bool:
        """Whether what was said before changes what is said next."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1.0


class Bounds(NamedTuple):
    """What a model allows."""

    vocabulary: int  # ids are below it
    context: int  # tokens of prompt and answer together
    eos: frozenset[int] = frozenset()  # ids that end a text


def check_prompt(ids: Sequence[int], bounds: Bounds) -> None:
    """Raise InvalidArgument for a prompt that is empty, too long, or has an id that there is not."""
    if not len(ids):
        raise InvalidArgument("the prompt is empty; give at least one token")
    if len(ids) >= bounds.context:
        raise InvalidArgument(too_long(bounds.context, str(len(ids))))
    wrong = next((each for each in ids if not 0 <= each < bounds.vocabulary), None)
    if wrong is not None:
        raise InvalidArgument(
            f"token id {wrong} is out of vocabulary; this model's ids are 0 to {bounds.vocabulary - 1}"
        )


def read_choosing(sampling: Mapping[str, Any], prompt: int, bounds: Bounds) -> Choosing:
    """Read the `sampling` of a request with a prompt of so many tokens. Raises InvalidArgument."""
    fields = _Fields(sampling)
    most = fields.whole("max_tokens", bounds.context - prompt, least=1)
    if prompt + most > bounds.context:
        raise InvalidArgument(
            f"{prompt} tokens of prompt and {most} of 'max_tokens' are more than the {bounds.context} that"
            " this"
            " model's context has"
        )
    own = fields.ids("stop_token_ids", bounds)
    grammar = fields.mapping("grammar")
    # A text that keeps to a grammar ends with it, so the model's own end is never ignored there.
    ends = frozenset() if sampling.get("ignore_eos") and grammar is None else bounds.eos
    top_k = fields.whole("top_k", 0, least=-1)
    return Choosing(
        max_tokens=most,
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        top_k=0 if top_k < 0 or top_k >= bounds.vocabulary else top_k,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=_above_zero(
            "repetition_penalty", fields.number("repetition_penalty", 1.0, 0.0, 1000.0)
        ),
        seed=_folded(fields.whole_or_none("seed")),
        logit_bias=fields.bias(bounds),
        bad_words_ids=fields.words("bad_words_ids", bounds),
        allowed_token_ids=fields.ids("allowed_token_ids", bounds),
        min_tokens=fields.whole("min_tokens", 0, most=most),
        stops=ends | frozenset(own),
        stop_token_ids=frozenset(own),
        logprobs=_told(fields.whole_or_none("logprobs"), bounds),
        grammar=grammar,
    )


def _above_zero(name: str, value: float) -> float:
    if value <= 0.0:
        raise InvalidArgument(f"'{name}' must be above 0, got {value}")
    return value


def _told(logprobs: int | None, bounds: Bounds) -> int | None:
    if logprobs is None:
        return None
    if logprobs == -1:
        return bounds.vocabulary
    if logprobs < 0:
        raise InvalidArgument(f"'logprobs' must be 0 or more, or -1 for all, got {logprobs}")
    return min(logprobs, bounds.vocabulary)


def _folded(seed: int | None) -> int | None:
    """Return a seed that a generator takes: 63 bits."""
    return None if seed is None else seed % 2**63


def _ids(name: str, value: Any, bounds: Bounds) -> Sequence[int]:
    if not isinstance(value, (list, tuple)) or len(value) > max(_MOST_IDS, bounds.vocabulary):
        raise InvalidArgument(f"'{name}' must be a list of token ids")
    for each in value:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < bounds.vocabulary:
            raise InvalidArgument(
                f"'{name}' has {each!r}; this model's token ids are 0 to {bounds.vocabulary - 1}"
            )
    return value


class _Fields:
    """Reads fields of JSON, each of one kind."""

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        self._all = sampling

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self._all.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InvalidArgument(f"'{name}' must be a number, got {value!r}")
        if not least <= value <= most:
            raise InvalidArgument(f"'{name}' must be from {least} to {most}, got {value}")
        return float(value)

    def whole_or_none(self, name: str) -> int | None:
        value = self._all.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidArgument(f"'{name}' must be a whole number, got {value!r}")
        return value

    def whole(self, name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        value = self.whole_or_none(name)
        if value is None:
            return default
        if value < least or (most is not None and value > most):
            raise InvalidArgument(
                f"'{name}' must be {least} or more, got {value}"
                if most is None
                else f"'{name}' must be from {least} to {most}, got {value}"
            )
        return value

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self._all.get(name)
        if value is not None and not isinstance(value, dict):
            raise InvalidArgument(f"'{name}' must be an object, got {value!r}")
        return value or None

    def words(self, name: str, bounds: Bounds) -> Sequence[Sequence[int]]:
        value = self._all.get(name) or ()
        if not isinstance(value, (list, tuple)) or len(value) > _MOST_IDS:
            raise InvalidArgument(f"'{name}' must be a list of at most {_MOST_IDS} lists of token ids")
        words = tuple(_ids(name, word, bounds) for word in value)
        if not all(words):
            raise InvalidArgument(f"'{name}' must be lists of token ids, none of them empty")
        return words

    def ids(self, name: str, bounds: Bounds) -> Sequence[int]:
        value = self._all.get(name)
        if value is None:
            return ()
        ids = _ids(name, value, bounds)
        if name == "allowed_token_ids" and not ids:
            raise InvalidArgument(f"'{name}' is empty; leave it out, or allow at least one token")
        return ids

    def bias(self, bounds: Bounds) -> Mapping[int, float]:
        value = self.mapping("logit_bias")
        if value is None:
            return {}
        read = {}
        for key, bias in value.items():
            number = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
            if not 0 <= number < bounds.vocabulary:
                raise InvalidArgument(
                    f"'logit_bias' has {key!r}; this model's token ids are 0 to {bounds.vocabulary - 1}"
                )
            if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
                raise InvalidArgument(f"'logit_bias' of token {key} must be from -100 to 100, got {bias!r}")
            read[number] = float(bias)
        return read
