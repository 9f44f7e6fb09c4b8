"""Sampling as clients of the v2 protocol write it: vLLM's names, as JSON or as parameters of the request.

Contract, llm.md section 3, "Sampling": a value may be of another type than the one that is meant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from actors.values.errors import InvalidArgument
from actors.values.generation.asking import Sampling
from actors.values.requests import Parameter


def _boolean(value: Any) -> bool:
    return value.strip().lower() not in ("false", "0", "") if isinstance(value, str) else bool(value)


def _texts_in(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(each) for each in value]


def _ids_in(value: Any) -> list[int]:
    return [int(each) for each in value]


def _bias(value: Any) -> dict[str, float]:
    return {str(int(key)): float(bias) for key, bias in dict(value).items()}


def _grammar(value: Any) -> Mapping[str, Any]:
    document = json.loads(value) if isinstance(value, str) else dict(value)
    _check_depth(document)
    chosen = {key: each for key, each in document.items() if each not in (None, False)}
    if len(chosen) != 1 or not chosen.keys() <= {"json", "json_object", "regex", "choice", "grammar"}:
        raise ValueError("one of json, json_object, regex, choice and grammar")
    return chosen


def _check_depth(document: Any) -> None:
    """Raise ValueError for JSON values in more levels than the OpenAI API takes."""
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"it nests more than {_DEEPEST} levels deep")


# vLLM's names, and what a value that came as text, as all request parameters may, is read as.
_READ: Final[Mapping[str, Any]] = {
    "n": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "seed": int,
    "logit_bias": _bias,
    "bad_words": _texts_in,
    "allowed_token_ids": _ids_in,
    "max_tokens": int,
    "min_tokens": int,
    "stop": _texts_in,
    "stop_token_ids": _ids_in,
    "include_stop_str_in_output": _boolean,
    "ignore_eos": _boolean,
    "skip_special_tokens": _boolean,
    "logprobs": int,
    "prompt_logprobs": int,
    "truncate_prompt_tokens": int,
}
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "n": (1, 128),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, 100.0),
    "max_tokens": (0, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
}
_MOST_STOPS: Final = 64
_LONGEST_STOP: Final = 1024
# Of vLLM, with the one value that there is here.
_FIXED: Final[Mapping[str, bool]] = {"detokenize": True, "spaces_between_special_tokens": True}
_OF_THE_PROTOCOL: Final = "id"
"""The generate extension gives a request's id as a parameter too."""

_DEEPEST: Final = 64


def sampling_of(parameters: Mapping[str, Parameter | Any]) -> tuple[Sampling, str]:
    """Return the sampling and the adapter that a client's parameters ask for.

    Raises InvalidArgument for a name or a value that says nothing of how tokens are chosen.
    """
    fields: dict[str, Any] = {}
    adapter = ""
    for name, value in parameters.items():
        if value is None or name == _OF_THE_PROTOCOL:
            continue
        if name == "lora_name":
            adapter = str(value)
        elif name in ("structured_outputs", "guided_decoding"):
            fields["grammar"] = _read(name, value, _grammar)
        elif name in _READ:
            fields[name] = _read(name, value, _READ[name])
        elif _FIXED.get(name) is not _read(name, value, _boolean):
            raise InvalidArgument(
                f"sampling parameter '{name}' is not known; there are {', '.join(sorted(_READ))}, lora_name"
                " and structured_outputs"
            )
    _check_ranges(fields)
    return Sampling(**fields), adapter


def _check_ranges(fields: Mapping[str, Any]) -> None:
    for name, (low, high) in _RANGES.items():
        if name in fields and not low <= fields[name] <= high:
            raise InvalidArgument(
                f"sampling parameter '{name}' is {fields[name]}; it must be from {low:g} to {high:g}"
            )
    if len(fields.get("stop", ())) > _MOST_STOPS:
        raise InvalidArgument(f"{len(fields['stop'])} stop texts; there may be {_MOST_STOPS}")
    if any(len(each) > _LONGEST_STOP for each in fields.get("stop", ())):
        raise InvalidArgument(f"a stop text has more than {_LONGEST_STOP} characters")


def _read(name: str, value: Any, read: Any) -> Any:
    try:
        return read(value)
    except RecursionError:
        raise InvalidArgument(f"sampling parameter '{name}' nests too deeply") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidArgument(f"sampling parameter '{name}' can't be {value!r:.100}: {error}") from None
