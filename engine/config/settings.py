"""Tritium's own settings of a model: `parameters { key: "tritium.…" }`.

In this form every file stays a valid Triton file. The settings are documented in docs/model_configuration.md.
A key that starts with `tritium.` and is not documented there is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from actors.serving.policy.fairness_plan import read_fairness, read_slo
from actors.serving.policy.plan_reading import InvalidDocument
from actors.serving.policy.recycling import read_recycle
from actors.traffic.policy.traffic_plan import read_plan
from actors.values.specs import (
    Confinement,
    Fairness,
    Probe,
    QueueBounds,
    Recycle,
    Residency,
    Retry,
    Sandbox,
    Slo,
    TrafficPlan,
)
from actors.wire.arena import MAX_LANES
from engine.models.problems import Problem, did_you_mean
from engine.processes.backends import BackendTraits
from engine.settings.instances import parse_cores
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelVersionPolicy

PREFIX: Final = "tritium."


@dataclass(frozen=True, slots=True, kw_only=True)
class TritiumSettings:
    """The settings of one model.

    `worker` is None if each instance group decides (see `engine.config.translate`).
    """

    isolation: Literal["process", "thread"] = "process"
    retry: Retry = Retry.ALWAYS
    execution_timeout: float = 0.0
    worker: Literal["instance", "model"] | None = None
    queue_bounds: QueueBounds = field(default_factory=QueueBounds)
    threads: int = 0
    cores: tuple[tuple[int, ...], ...] = ()  # of the instances in turn
    recycle: Recycle | None = None
    load_timeout: float = 0.0
    drain_timeout: float = 30.0
    probe: Probe = Probe.COMPARE
    probe_interval: float = 0.0
    essential: bool = True
    residency: Residency = Residency.ALWAYS
    traffic: TrafficPlan | None = None
    fairness: Fairness | None = None
    slo: Slo | None = None
    checkpoint: bool = False
    concurrency: int = 1
    confinement: Confinement = field(default_factory=Confinement)
    requirements: Literal["install", "ignore"] = "install"


class _Invalid(ValueError):
    """A value that a setting can't have; the message says what it can."""


def read_settings(
    parameters: Mapping[str, str],
    traits: BackendTraits,
    policy: ModelVersionPolicy | None = None,
    config: ModelConfig | None = None,
) -> tuple[TritiumSettings, tuple[Problem, ...]]:
    """Return the settings in a model's `parameters`, defaults if `traits` decides them, and every mistake.

    `policy` is the model's completed version policy: a setting may not speak of versions that it leaves out.
    `config` is all of its configuration: a setting may not ask for what its scheduler does not do.
    """
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
        except InvalidDocument as error:
            whole = "the plan" if key == "tritium.traffic" else "the value"
            problems += [
                _problem(key, f"'{key}': '{mistake.key or whole}' {mistake.complaint}", mistake.remedy)
                for mistake in error.mistakes
            ]
    problems += _contradictions(values, traits)
    if policy is not None and "tritium.traffic" in values:
        problems += _left_out(values["tritium.traffic"], policy)
    if config is not None:
        problems += _without_a_queue_of_its_own(values, config)
        problems += _not_recyclable(values, config)
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
        cores=values.get("tritium.cores", ()),
        recycle=values.get("tritium.recycle"),
        load_timeout=values.get("tritium.load_timeout", 0.0),
        drain_timeout=values.get("tritium.drain_timeout", 30.0),
        probe=values.get("tritium.probe", Probe.COMPARE),
        probe_interval=values.get("tritium.probe_interval", 0.0),
        essential=values.get("tritium.essential", True),
        residency=values.get("tritium.residency", Residency.ALWAYS),
        traffic=values.get("tritium.traffic"),
        checkpoint=values.get("tritium.checkpoint", False),
        concurrency=values.get("tritium.concurrency", 1),
        fairness=values.get("tritium.fairness"),
        slo=values.get("tritium.slo"),
        confinement=_confinement(values),
        requirements=values.get("tritium.requirements", "install"),
    )
    return settings, tuple(problems)


def _confinement(values: Mapping[str, Any]) -> Confinement:
    return Confinement(
        memory=values.get("tritium.memory_limit_mb", 0) * 1024 * 1024,
        processes=values.get("tritium.max_processes", 0),
        sandbox=values.get("tritium.sandbox", Sandbox.OFF),
        read=values.get("tritium.sandbox_read", ()),
        write=values.get("tritium.sandbox_write", ()),
    )


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
    if "tritium.requirements" in values and not traits.runs_python:
        found.append(
            _problem(
                "tritium.requirements",
                f"'tritium.requirements' is a setting of Python models, not of '{traits.name}'",
                "leave it out",
            )
        )
    if "tritium.concurrency" in values and not traits.runs_python:
        found.append(
            _problem(
                "tritium.concurrency",
                f"'tritium.concurrency' is a setting of Python models, not of '{traits.name}'",
                "use the count of 'instance_group'",
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
    if values.get("tritium.isolation") == "thread" and values.get("tritium.residency") is Residency.ON_DEMAND:
        found.append(
            _problem(
                "tritium.residency",
                "'tritium.residency' is 'on_demand', but 'tritium.isolation' is 'thread', whose memory is never given back",
                "use isolation 'process', or residency 'pinned'",
            )
        )
    return found + _unconfinable(values)


def _unconfinable(values: Mapping[str, Any]) -> list[Problem]:
    """Tell of limits that nothing could keep."""
    wanted = [key for key in _LIMITING if values.get(key, Sandbox.OFF) is not Sandbox.OFF]
    if values.get("tritium.isolation") == "thread":
        message = "'{}' is set, but 'tritium.isolation' is 'thread': the model shares the server's process"
        return [_problem(key, message.format(key), "use isolation 'process'") for key in wanted]
    if values.get("tritium.sandbox") is Sandbox.STRICT:
        return []
    message = "'{}' is set, but only a strict sandbox is kept from files"
    return [
        _problem(key, message.format(key), "set 'tritium.sandbox' to 'strict', or leave it out")
        for key in ("tritium.sandbox_read", "tritium.sandbox_write")
        if key in values
    ]


def _without_a_queue_of_its_own(values: Mapping[str, Any], config: ModelConfig) -> list[Problem]:
    """Tell of settings about the queue if another scheduler decides which request is next."""
    found: list[Problem] = []
    fairness: Fairness | None = values.get("tritium.fairness")
    for key in ("tritium.fairness", "tritium.slo"):
        if key not in values:
            continue
        if config.HasField("ensemble_scheduling"):
            what, hint = "an ensemble, whose steps wait in other models' queues", "set it for those models"
        elif config.HasField("sequence_batching"):
            what, hint = "a model of sequences, whose order decides who goes next", "leave it out"
        elif key == "tritium.slo" and config.model_transaction_policy.decoupled:
            what, hint = "a decoupled model, whose answers have no one time", "leave it out"
        else:
            continue
        found.append(_problem(key, f"'{key}' is set for {what}", hint))
    if not found and fairness is not None and fairness.ageing and config.dynamic_batching.priority_levels < 2:
        hint = "set 'dynamic_batching.priority_levels' and 'default_priority_level', or leave 'age' out"
        found.append(
            _problem(
                "tritium.fairness",
                "'tritium.fairness': 'age' raises requests by a level, and there is one only",
                hint,
            )
        )
    return found


def _not_recyclable(values: Mapping[str, Any], config: ModelConfig) -> list[Problem]:
    """Tell of settings about worker processes if there are none, or if a model would lose its memory."""
    if config.HasField("ensemble_scheduling"):
        return [
            _problem(key, f"'{key}' is set for an ensemble, which has no workers", "set it for its models")
            for key in ("tritium.recycle", "tritium.cores")
            if key in values
        ]
    if "tritium.recycle" not in values:
        return []
    if config.HasField("sequence_batching"):
        what, hint = "a model of sequences, which live in the worker that they began in", "leave it out"
    elif values.get("tritium.isolation") == "thread":
        what, hint = (
            "a model on a thread of the server, whose memory is never given back",
            "use isolation 'process'",
        )
    else:
        return _ceiling_above_the_limit(values)
    return [_problem("tritium.recycle", f"'tritium.recycle' is set for {what}", hint)]


def _ceiling_above_the_limit(values: Mapping[str, Any]) -> list[Problem]:
    ceiling, limit = values["tritium.recycle"].memory, values.get("tritium.memory_limit_mb", 0) * 1024 * 1024
    if not limit or ceiling < limit:
        return []
    message = (
        "'tritium.recycle': 'memory_mb' is not below 'tritium.memory_limit_mb', at which the worker is killed"
    )
    hint = "leave room between the two for what a model takes in half a second"
    return [_problem("tritium.recycle", message, hint)]


def _left_out(plan: TrafficPlan, policy: ModelVersionPolicy) -> list[Problem]:
    """Tell of versions that a traffic plan needs and the version policy never serves."""
    key = "tritium.traffic"
    needed = sorted({version for version, share in plan.weights.items() if share > 0})
    if plan.mirror is not None:
        needed = sorted({*needed, plan.mirror.version})
    match policy.WhichOneof("policy_choice"):
        case "specific":
            absent = [version for version in needed if version not in policy.specific.versions]
            hint = f"add them to 'version_policy': specific {{ versions: [ {', '.join(map(str, needed))} ] }}"
            return [
                _problem(key, f"'{key}' names version {version}, which 'version_policy' leaves out", hint)
                for version in absent
            ]
        case "latest" if len(needed) > policy.latest.num_versions:
            served = policy.latest.num_versions
            message = (
                f"'{key}' needs {len(needed)} versions, but 'version_policy' serves the latest {served} only"
            )
            versions = ", ".join(map(str, needed))
            return [
                _problem(key, message, f"write version_policy {{ specific {{ versions: [ {versions} ] }} }}")
            ]
        case _:
            return []


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


def _concurrency(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 3 and 1 <= int(text) <= MAX_LANES):
        raise _Invalid(f"use a whole number from 1 to {MAX_LANES}")
    return int(text)


def _cores(text: str) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(parse_cores(part) for part in text.split(";"))
    except ValueError as error:
        hint = "use cores such as '0-3,8', or several such sets for the instances in turn, such as '0-1;2-3'"
        raise _Invalid(f"{error}; {hint}") from error


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise _Invalid("use seconds, such as '0.5'; '0' is off")
    return value


def _duration(text: str) -> float:
    try:
        return _seconds(text)
    except _Invalid:
        raise _Invalid("use seconds, such as '30'; '0' waits for nothing") from None


def _retry(text: str) -> Retry:
    return Retry(_choice("always", "never")(text))


def _probe(text: str) -> Probe:
    return Probe(_choice("compare", "required", "off")(text))


def _residency(text: str) -> Residency:
    return Residency(_choice("always", "on_demand", "pinned")(text))


def _sandbox(text: str) -> Sandbox:
    return Sandbox(_choice("off", "basic", "strict")(text))


def _paths(text: str) -> tuple[str, ...]:
    paths = tuple(text.split(":"))
    if not all(path.startswith("/") and "\0" not in path for path in paths):
        raise _Invalid("use absolute paths, with ':' between them")
    return paths


def _boolean(text: str) -> bool:
    return _choice("true", "false")(text) == "true"


def _json(read: Callable[[Any], object]) -> Callable[[str], object]:
    """Return a reader of JSON that `read` interprets. It raises InvalidDocument if that can't be done."""

    def read_text(text: str) -> object:
        try:
            document = json.loads(text, object_pairs_hook=_unambiguous)
        except (ValueError, RecursionError) as error:
            detail = error if isinstance(error, _Invalid) else f"use a JSON object: {error}"
            raise _Invalid(str(detail)) from error
        return read(document)

    return read_text


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _Invalid(f"give '{repeated}' once")
    return members


_LIMITING: Final = ("tritium.memory_limit_mb", "tritium.max_processes", "tritium.sandbox")
CONFINING: Final = (*_LIMITING, "tritium.sandbox_read", "tritium.sandbox_write")
"""What limits a model's code, wherever it runs."""

_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "tritium.isolation": _choice("process", "thread"),
    "tritium.retry": _retry,
    "tritium.execution_timeout": _seconds,
    "tritium.worker": _choice("instance", "model"),
    "tritium.queue.max_requests": _integer(1),
    "tritium.queue.max_bytes": _integer(1),
    "tritium.threads": _integer(0),
    "tritium.cores": _cores,
    "tritium.recycle": _json(read_recycle),
    "tritium.amp": _choice("bf16", "fp16", "off"),
    "tritium.load_timeout": _seconds,
    "tritium.drain_timeout": _duration,
    "tritium.probe": _probe,
    "tritium.probe_interval": _seconds,
    "tritium.essential": _boolean,
    "tritium.residency": _residency,
    "tritium.traffic": _json(read_plan),
    "tritium.fairness": _json(read_fairness),
    "tritium.slo": _json(read_slo),
    "tritium.checkpoint": _boolean,
    "tritium.concurrency": _concurrency,
    "tritium.requirements": _choice("install", "ignore"),
    "tritium.memory_limit_mb": _integer(1),
    "tritium.max_processes": _integer(1),
    "tritium.sandbox": _sandbox,
    "tritium.sandbox_read": _paths,
    "tritium.sandbox_write": _paths,
}
