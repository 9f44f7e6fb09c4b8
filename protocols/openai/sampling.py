"""How tokens are chosen: the fields of a request that become `Sampling`.

Ranges: contract, http.md section 14. Triton refuses what is outside with 422; here it is OpenAI's 400.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final, NoReturn

import orjson

from actors.values.generation.asking import Sampling
from protocols.openai.checking import Members, misfit, read_ids, refuse

MOST_STOPS: Final = 64
MOST_CHOICES: Final = 128
_MOST_WORDS: Final = 1024
_LONGEST_WORD: Final = 1024
_MOST_BIASES: Final = 4096
_MOST_IDS: Final = 16_384
_TOKENS: Final = 2**31 - 1
_SEED: Final = 2**63
_LONGEST_REGEX: Final = 8192
_LONGEST_GRAMMAR: Final = 65_536
_LONGEST_SCHEMA: Final = 262_144
_MOST_ALTERNATIVES: Final = 20
_GRAMMARS: Final = ("json", "regex", "choice", "grammar", "json_object")
_FORMATS: Final = "text, json_object or json_schema"


def read_sampling(
    given: Members, *, default_max_tokens: int | None, logprobs: int | None
) -> Generator[None, None, Sampling]:
    """Return what a request says of how tokens are chosen. Raises BadAsk.

    `logprobs` is how many alternatives are to be told, which each API says in its own way.
    """
    allowed = given.array("allowed_token_ids", _MOST_IDS)
    if allowed is not None:
        if not allowed:
            refuse("allowed_token_ids", "'allowed_token_ids' is empty, so nothing could be generated")
        yield from read_ids("allowed_token_ids", allowed)
    stop_ids = given.array("stop_token_ids", _MOST_WORDS) or ()
    yield from read_ids("stop_token_ids", stop_ids)
    most = _max_tokens(given, default_max_tokens)
    fewest = given.whole("min_tokens", 0, _TOKENS) or 0
    if most is not None and fewest > most:
        refuse("min_tokens", f"'min_tokens' is {fewest}, more than the {most} of 'max_tokens'")
    return Sampling(
        n=given.whole("n", 1, MOST_CHOICES) or 1,
        temperature=given.number("temperature", 0, 2),
        top_p=given.number("top_p", 0, 1),
        top_k=given.whole("top_k", -1, _TOKENS),
        min_p=given.number("min_p", 0, 1),
        presence_penalty=given.number("presence_penalty", -2, 2),
        frequency_penalty=given.number("frequency_penalty", -2, 2),
        repetition_penalty=_repetition_penalty(given),
        seed=given.whole("seed", -_SEED, _SEED - 1),
        logit_bias=_biases(given),
        bad_words=given.texts("bad_words", _MOST_WORDS, _LONGEST_WORD),
        allowed_token_ids=allowed,
        max_tokens=most,
        min_tokens=fewest,
        stop=given.texts("stop", MOST_STOPS, _LONGEST_WORD, single=True),
        stop_token_ids=tuple(stop_ids),
        include_stop_str_in_output=given.flag("include_stop_str_in_output", False),
        ignore_eos=given.flag("ignore_eos", False),
        skip_special_tokens=given.flag("skip_special_tokens", True),
        logprobs=logprobs,
        prompt_logprobs=given.whole("prompt_logprobs", 0, _MOST_ALTERNATIVES),
        truncate_prompt_tokens=given.whole("truncate_prompt_tokens", -1, _TOKENS),
        grammar=_grammar(given),
    )


def _max_tokens(given: Members, default: int | None) -> int | None:
    most = given.whole("max_completion_tokens", 0, _TOKENS)
    other = given.whole("max_tokens", 0, _TOKENS)
    if most is None:
        most = other
    return default if most is None else most


def _repetition_penalty(given: Members) -> float | None:
    value = given.number("repetition_penalty", 0, 1000)
    if value == 0:
        misfit(given.param("repetition_penalty"), value, "a number above 0")
    return value


def _biases(given: Members) -> Mapping[str, float] | None:
    biases = given.object("logit_bias")
    if not biases:
        return None
    if len(biases) > _MOST_BIASES:
        misfit("logit_bias", biases, f"at most {_MOST_BIASES} token ids")
    found: dict[str, float] = {}
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and int(token[:11]) <= _TOKENS):
            misfit("logit_bias", token, "token ids, in digits, as names")
        if type(bias) not in {int, float} or not -100 <= bias <= 100:
            misfit(f"logit_bias.{token}", bias, "a number from -100 to 100")
        found[str(int(token))] = float(bias)
    return found


def _grammar(given: Members) -> Mapping[str, Any] | None:
    formatted = _response_format(given)
    outputs = given.object("structured_outputs")
    if outputs is None:
        return formatted
    if formatted is not None:
        refuse(
            "structured_outputs",
            "'structured_outputs' and 'response_format' both say what comes out: give one",
        )
    wanted = Members(outputs, "structured_outputs")
    named = [name for name in wanted.others(()) if outputs[name.partition(".")[2]] is not None]
    kinds = [kind for kind in _GRAMMARS if kind in wanted and outputs[kind] is not False]
    others = [name for name in named if name.partition(".")[2] not in _GRAMMARS]
    if others:
        refuse(
            others[0],
            f"'{others[0]}' is not supported: there are {', '.join(_GRAMMARS)}",
            reason="unsupported_field",
        )
    if len(kinds) != 1:
        misfit("structured_outputs", outputs, f"exactly one of {', '.join(_GRAMMARS)}")
    return {kinds[0]: _READ_AS[kinds[0]](wanted)}


def _schema(wanted: Members) -> Any:
    schema = wanted.get("json")
    if not isinstance(schema, dict | bool):
        misfit(wanted.param("json"), schema, "a JSON schema, an object")
    return _not_too_long(wanted.param("json"), schema)


def _not_too_long(param: str, schema: Any) -> Any:
    size = len(orjson.dumps(schema))
    if size > _LONGEST_SCHEMA:
        refuse(param, f"'{param}' has {size} bytes as JSON: there may be {_LONGEST_SCHEMA}")
    return schema


def _choice(wanted: Members) -> Any:
    choices = wanted.texts("choice", _MOST_WORDS, _LONGEST_GRAMMAR)
    if not choices:
        misfit(wanted.param("choice"), [], "at least one text")
    return list(choices)


def _rules(name: str, longest: int) -> Any:
    def read(wanted: Members) -> str:
        text = wanted.text(name, longest)
        if not text:
            misfit(wanted.param(name), text, "a text that is not empty")
        return text

    return read


_READ_AS: Final[Mapping[str, Any]] = {
    "json": _schema,
    "regex": _rules("regex", _LONGEST_REGEX),
    "choice": _choice,
    "grammar": _rules("grammar", _LONGEST_GRAMMAR),
    "json_object": lambda wanted: wanted.flag("json_object", True),
}


def _response_format(given: Members) -> Mapping[str, Any] | None:
    wanted = given.object("response_format")
    if wanted is None:
        return None
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            named = Members(wanted.get("json_schema"), "response_format.json_schema")
            schema = named.object("schema")
            if schema is None:
                _no_schema()
            return {"json": _not_too_long("response_format.json_schema.schema", schema)}
        case other:
            return misfit("response_format.type", other, _FORMATS)


def _no_schema() -> NoReturn:
    refuse("response_format.json_schema.schema", "'response_format.json_schema' has no 'schema'")
