"""What Tritium's settings of one model come to, for its backend, its version policy and its scheduler.

`engine.settings.parameters` is their table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from actors.values.confinement import Confinement, Sandbox
from actors.values.specs import Fairness, Residency, Retry, Slo
from actors.values.traffic import TrafficPlan
from engine.models.problems import Problem, Severity
from engine.processes.backends import BackendTraits
from engine.settings.parameters import TritiumSettings, problem, read_parameters, settings_of
from engine.settings.sandbox import SandboxSettings
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup, ModelVersionPolicy

_LIMITING: Final = ("tritium.memory_limit_mb", "tritium.max_processes", "tritium.sandbox")
NO_FLOOR: Final = SandboxSettings(asked=True, level=Sandbox.OFF)
"""The operator leaves confinement to the models' configurations."""

_OF_LANGUAGES: Final = (
    "tritium.streams",
    "tritium.max_tokens",
    "tritium.tokenizer",
    "tritium.tool_parser",
    "tritium.reasoning_parser",
    "tritium.resume",
    "tritium.resume_within",
    "tritium.hang_within",
    "tritium.queued_prompt_tokens",
    "tritium.sleep",
)

_OF_GPUS: Final = ("tritium.gpu_placement", "tritium.gpus_seen", "tritium.gpu_memory", "tritium.gpu_compute")

CONFINING: Final = (*_LIMITING, "tritium.sandbox_read", "tritium.sandbox_write")
"""What limits a model's code, wherever it runs."""


def read_settings(
    parameters: Mapping[str, str],
    traits: BackendTraits,
    policy: ModelVersionPolicy | None = None,
    config: ModelConfig | None = None,
    *,
    floor: SandboxSettings = NO_FLOOR,
) -> tuple[TritiumSettings, tuple[Problem, ...]]:
    """Return the settings in a model's `parameters`, defaults if `traits` decides them, and every mistake.

    `policy` is the model's completed version policy: a setting may not speak of versions that it leaves out.
    `config` is all of its configuration: a setting may not ask for what its scheduler does not do. `floor` is
    the operator's: the settings are no laxer, and a warning says so where the model asks for that.
    """
    values, problems = read_parameters(parameters)
    if config is None or not config.HasField("ensemble_scheduling"):
        values, raised = _raised(values, floor)
        problems += raised
    problems += _contradictions(values, traits)
    problems += _of_language_models(values, traits)
    problems += _mispromised(values.get("tritium.slo"), traits)
    if policy is not None and "tritium.traffic" in values:
        problems += _left_out(values["tritium.traffic"], policy)
    if config is not None:
        problems += _without_a_queue_of_its_own(values, config, traits)
        problems += _not_recyclable(values, config)
        problems += _without_tensors_on_a_gpu(values, config)
        problems += _without_a_share_of_a_gpu(values, config, traits)
    settings = settings_of(values)
    if "tritium.retry" not in values and not traits.pure:
        settings = replace(settings, retry=Retry.NEVER)
    return replace(settings, confinement=_told_of(settings.confinement, parameters, floor)), tuple(problems)


def _told_of(confinement: Confinement, parameters: Mapping[str, str], floor: SandboxSettings) -> Confinement:
    """Return the confinement with who has asked for its sandbox."""
    if confinement.sandbox is Sandbox.OFF or confinement.sandbox is not floor.level:
        return confinement
    if floor.asked:
        return replace(confinement, imposed=True)
    return replace(confinement, by_default="tritium.sandbox" not in parameters)


def _raised(values: Mapping[str, Any], floor: SandboxSettings) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values with a sandbox that is no laxer than the operator's, and what is to be said of that.

    Paths beyond the model's own are the operator's to give if a strict sandbox is. They come back without
    links, which the model's code could have made.
    """
    raised = dict(values)
    if floor.floor is Sandbox.OFF:
        if values.get("tritium.isolation") != "thread":
            raised.setdefault("tritium.sandbox", floor.level)
        return raised, []
    level = floor.level.value
    if values.get("tritium.isolation") == "thread":
        message = (
            "'tritium.isolation' is 'thread', which nothing can confine, and this server confines every model"
            f" ({floor.flag})"
        )
        return raised, [problem("tritium.isolation", message, "use isolation 'process'")]
    found: list[Problem] = []
    wanted = values.get("tritium.sandbox", floor.level)
    if not wanted.holds(floor.level):
        message = (
            f"'tritium.sandbox' is '{wanted.value}', and the model is served in sandbox '{level}'"
            f" nevertheless: this server's floor ({floor.flag})"
        )
        said = problem("tritium.sandbox", message, f"leave it out, or write '{level}'")
        found.append(replace(said, severity=Severity.WARNING))
    if floor.level.holds(wanted):
        raised["tritium.sandbox"] = floor.level
    if floor.level is Sandbox.STRICT:
        for key, flags, allowed in (
            ("tritium.sandbox_read", "--sandbox-read", (*floor.read, *floor.write)),
            ("tritium.sandbox_write", "--sandbox-write", floor.write),
        ):
            paths = tuple(map(os.path.realpath, values.get(key, ())))
            found += [
                problem(
                    key,
                    f"'{key}' names '{path}', which this server gives to no model ({floor.flag})",
                    "leave it out"
                    if floor.uploaded
                    else f"leave it out, or have the operator start the server with {flags}={path}",
                )
                for path in paths
                if not _lies_below(path, allowed)
            ]
            if paths:
                raised[key] = paths
    return raised, found


def _lies_below(path: str, allowed: Sequence[str]) -> bool:
    whole = map(os.path.realpath, allowed)
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in whole)


def _contradictions(values: Mapping[str, Any], traits: BackendTraits) -> list[Problem]:
    found: list[Problem] = []
    if "tritium.amp" in values and traits.name != "pytorch":
        found.append(
            problem(
                "tritium.amp",
                f"'tritium.amp' is a setting of pytorch models, not of '{traits.name}'",
                "leave it out",
            )
        )
    if "tritium.requirements" in values and not traits.runs_python:
        found.append(
            problem(
                "tritium.requirements",
                f"'tritium.requirements' is a setting of Python models, not of '{traits.name}'",
                "leave it out",
            )
        )
    if "tritium.concurrency" in values and not traits.runs_python:
        found.append(
            problem(
                "tritium.concurrency",
                f"'tritium.concurrency' is a setting of Python models, not of '{traits.name}'",
                "use the count of 'instance_group'",
            )
        )
    if values.get("tritium.worker") == "model" and not traits.concurrent:
        found.append(
            problem(
                "tritium.worker",
                f"'tritium.worker' is 'model', but backend '{traits.name}' runs one execution at a time in a worker",
                "use 'instance'",
            )
        )
    if values.get("tritium.isolation") == "thread" and traits.library:
        found.append(
            problem(
                "tritium.isolation",
                f"'tritium.isolation' is 'thread', but backend '{traits.name}' is a C library, whose crash"
                " would be the server's",
                "use isolation 'process'",
            )
        )
    if values.get("tritium.isolation") == "thread" and values.get("tritium.residency") is Residency.ON_DEMAND:
        found.append(
            problem(
                "tritium.residency",
                "'tritium.residency' is 'on_demand', but 'tritium.isolation' is 'thread', whose memory is never given back",
                "use isolation 'process', or residency 'pinned'",
            )
        )
    if values.get("tritium.sleep") and values.get("tritium.residency") is not Residency.ON_DEMAND:
        found.append(
            problem(
                "tritium.sleep",
                "'tritium.sleep' is set for a model whose memory is never wanted by others",
                "set 'tritium.residency' to 'on_demand', or leave it out",
            )
        )
    return found + _unconfinable(values)


def _unconfinable(values: Mapping[str, Any]) -> list[Problem]:
    """Tell of limits that nothing could keep."""
    wanted = [key for key in _LIMITING if values.get(key, Sandbox.OFF) is not Sandbox.OFF]
    if values.get("tritium.isolation") == "thread":
        message = "'{}' is set, but 'tritium.isolation' is 'thread': the model shares the server's process"
        return [problem(key, message.format(key), "use isolation 'process'") for key in wanted]
    if values.get("tritium.sandbox") is Sandbox.STRICT:
        return []
    message = "'{}' is set, but only a strict sandbox is kept from files"
    return [
        problem(key, message.format(key), "set 'tritium.sandbox' to 'strict', or leave it out")
        for key in ("tritium.sandbox_read", "tritium.sandbox_write")
        if key in values
    ]


def _without_a_queue_of_its_own(
    values: Mapping[str, Any], config: ModelConfig, traits: BackendTraits
) -> list[Problem]:
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
        elif key == "tritium.slo" and config.model_transaction_policy.decoupled and not traits.language:
            what, hint = "a decoupled model, whose answers have no one time", "leave it out"
        else:
            continue
        found.append(problem(key, f"'{key}' is set for {what}", hint))
    if not found and fairness is not None and fairness.ageing and config.dynamic_batching.priority_levels < 2:
        hint = "set 'dynamic_batching.priority_levels' and 'default_priority_level', or leave 'age' out"
        found.append(
            problem(
                "tritium.fairness",
                "'tritium.fairness': 'age' raises requests by a level, and there is one only",
                hint,
            )
        )
    return found


def _of_language_models(values: Mapping[str, Any], traits: BackendTraits) -> list[Problem]:
    """Tell of settings about generations if the model generates nothing, and of those that it can't have."""
    if not traits.language:
        return [
            problem(key, f"'{key}' is set for a model that generates no tokens", "leave it out")
            for key in _OF_LANGUAGES
            if key in values
        ]
    return [
        problem(key, f"'{key}' is set for a language model, which is served without", "leave it out")
        for key in ("tritium.concurrency", "tritium.checkpoint")
        if key in values
    ]


def _mispromised(slo: Slo | None, traits: BackendTraits) -> list[Problem]:
    """Tell of promised times that a model of this kind has not."""
    if slo is None:
        return []
    if traits.language and slo.p99:
        what, hint = "'p99' is set for a language model", 'promise "ttft" and "itl"'
    elif not traits.language and (slo.ttft or slo.itl):
        what, hint = "'ttft' and 'itl' are set for a model that generates no tokens", 'promise "p99"'
    else:
        return []
    return [problem("tritium.slo", f"'tritium.slo': {what}", hint)]


def _not_recyclable(values: Mapping[str, Any], config: ModelConfig) -> list[Problem]:
    """Tell of settings about worker processes if there are none, or if a model would lose its memory."""
    if config.HasField("ensemble_scheduling"):
        return [
            problem(key, f"'{key}' is set for an ensemble, which has no workers", "set it for its models")
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
    return [problem("tritium.recycle", f"'tritium.recycle' is set for {what}", hint)]


def _without_tensors_on_a_gpu(values: Mapping[str, Any], config: ModelConfig) -> list[Problem]:
    """Tell of settings about tensors on a GPU that the model can't follow."""
    if config.HasField("ensemble_scheduling"):
        key, what = "tritium.gpu_tensor_pool_bytes", "an ensemble, which has no workers"
        hint = "set it for the models of its steps"
    else:
        key, what = (
            "tritium.gpu_tensors",
            "a model that is no ensemble, and has no steps to pass tensors on to",
        )
        hint = "set it in the ensemble's configuration"
    return [problem(key, f"'{key}' is set for {what}", hint)] if key in values else []


def _without_a_share_of_a_gpu(
    values: Mapping[str, Any], config: ModelConfig, traits: BackendTraits
) -> list[Problem]:
    """Tell of settings about a worker's GPU if there is no worker that could be told, or no one GPU."""
    given = [key for key in _OF_GPUS if values.get(key, "all") != "all"]
    kinds = {group.kind for group in config.instance_group}
    if config.HasField("ensemble_scheduling"):
        what, hint = "an ensemble, which has no workers", "set it for the models of its steps"
    elif values.get("tritium.isolation") == "thread":
        what, hint = "a model on a thread of the server", "use isolation 'process'"
    elif kinds == {ModelInstanceGroup.KIND_MODEL} and not traits.language:
        what, hint = "a model that chooses its devices itself (KIND_MODEL)", "use KIND_GPU, or leave it out"
    else:
        return []
    return [problem(key, f"'{key}' is set for {what}", hint) for key in given]


def _ceiling_above_the_limit(values: Mapping[str, Any]) -> list[Problem]:
    ceiling, limit = values["tritium.recycle"].memory, values.get("tritium.memory_limit_mb", 0)
    if not limit or ceiling < limit:
        return []
    message = (
        "'tritium.recycle': 'memory_mb' is not below 'tritium.memory_limit_mb', at which the worker is killed"
    )
    hint = "leave room between the two for what a model takes in half a second"
    return [problem("tritium.recycle", message, hint)]


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
                problem(key, f"'{key}' names version {version}, which 'version_policy' leaves out", hint)
                for version in absent
            ]
        case "latest" if len(needed) > policy.latest.num_versions:
            served = policy.latest.num_versions
            message = (
                f"'{key}' needs {len(needed)} versions, but 'version_policy' serves the latest {served} only"
            )
            versions = ", ".join(map(str, needed))
            return [
                problem(key, message, f"write version_policy {{ specific {{ versions: [ {versions} ] }} }}")
            ]
        case _:
            return []
