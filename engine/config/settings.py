"""Tritium's own settings of a model: `parameters { key: "tritium.…" }`, so that every file stays a valid Triton file.

They are documented in docs/model_configuration.md, and a key that starts with `tritium.` and is not there is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from actors.specs import QueueBounds, Retry
from engine.config.backends import BackendTraits
from engine.config.problems import Problem, did_you_mean

PREFIX: Final = "tritium."


@dataclass(frozen=True, slots=True, kw_only=True)
class TritiumSettings:
    """The settings of one model. `worker` is None where each instance group decides (see `engine.config.translate`)."""

    isolation: Literal["process", "thread"] = "process"
    retry: Retry = Retry.ALWAYS
    execution_timeout: float = 0.0
    worker: Literal["instance", "model"] | None = None
    queue_bounds: QueueBounds = field(default_factory=QueueBounds)
    threads: int = 0


class _Invalid(ValueError):
    """A value that a setting can't have; the message says what it can."""


def read_settings(
    parameters: Mapping[str, str], traits: BackendTraits
) -> tuple[TritiumSettings, tuple[Problem, ...]]:
    """Return the settings in a model's `parameters`, defaults where `traits` decides them, and every mistake."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, text in sorted(parameters.items()):
        if not key.startswith(PREFIX):
            continue
        reader = _READERS.get(key)
        if reader is None:
            problems.append(_problem(key, f"unknown setting '{key}'", _nearest(key)))
            continue
        try:
            values[key] = reader(text)
        except _Invalid as error:
            problems.append(_problem(key, f"'{key}' is '{text}', which is no valid value", str(error)))
    problems += _contradictions(values, traits)
    bounds = QueueBounds(
        requests=values.get("tritium.queue.max_requests", QueueBounds().requests),
        nbytes=values.get("tritium.queue.max_bytes", QueueBounds().nbytes),
    )
    settings = TritiumSettings(
        isolation=values.get("tritium.isolation", "process"),
        retry=values.get("tritium.retry", Retry.ALWAYS if traits.pure else Retry.NEVER),
        execution_timeout=values.get("tritium.execution_timeout", 0.0),
        worker=values.get("tritium.worker"),
        queue_bounds=bounds,
        threads=values.get("tritium.threads", 0),
    )
    return settings, tuple(problems)


def _contradictions(values: Mapping[str, Any], traits: BackendTraits) -> list[Problem]:
    found: list[Problem] = []
    if "tritium.amp" in values and traits.name != "pytorch":
        found.append(
            _problem(
                "tritium.amp",
                f"'tritium.amp' is a setting of pytorch models, not of '{traits.name}'",
                "leave it out",
            )
        )
    if values.get("tritium.worker") == "model" and not traits.concurrent:
        found.append(
            _problem(
                "tritium.worker",
                f"'tritium.worker' is 'model', but backend '{traits.name}' runs one execution at a time in a worker",
                "use 'instance'",
            )
        )
    return found


def _problem(key: str, message: str, hint: str) -> Problem:
    return Problem(message=message, key=f'parameters["{key}"]', hint=hint)


def _nearest(key: str) -> str:
    return did_you_mean(key, _READERS) or "known are " + ", ".join(_READERS)


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise _Invalid("use " + " or ".join(f"'{value}'" for value in allowed))
        return text

    return read


def _integer(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= least):
            raise _Invalid(f"use a whole number, at least {least}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise _Invalid("use seconds, such as '0.5'; '0' is off")
    return value


def _retry(text: str) -> Retry:
    return Retry(_choice("always", "never")(text))


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "tritium.isolation": _choice("process", "thread"),
    "tritium.retry": _retry,
    "tritium.execution_timeout": _seconds,
    "tritium.worker": _choice("instance", "model"),
    "tritium.queue.max_requests": _integer(1),
    "tritium.queue.max_bytes": _integer(1),
    "tritium.threads": _integer(0),
    "tritium.amp": _choice("bf16", "fp16", "off"),
}
