"""Tritium's own settings of a model, `parameters { key: "tritium.…" }`: the second sheet of settings.

In this form every file stays a valid Triton file. `TritiumSettings` is the table: reading, refusals and the
table in docs/model_configuration.md follow from it. A key that starts with `tritium.` and is not in it is an
error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Literal, TypeVar

from actors.padding.policy import BucketsOf, CutsOf, read_buckets, read_cuts, read_values
from actors.serving.policy.fairness_plan import read_fairness, read_slo
from actors.serving.policy.plan_reading import InvalidDocument
from actors.serving.policy.recycling import read_recycle
from actors.traffic.policy.traffic_plan import read_plan
from actors.values.confinement import Confinement, Sandbox
from actors.values.hardware.gpus import GpuMemory
from actors.values.padding import Fill
from actors.values.specs import Fairness, Probe, QueueBounds, Recycle, Residency, Retry, Slo
from actors.values.traffic import TrafficPlan
from actors.wire.arena import MAX_LANES
from engine.models.problems import Problem, did_you_mean
from engine.settings.forms import AnyForm, Form, SettingsError, to_memory
from engine.settings.instances import parse_cores
from engine.settings.sheet import declared, entries_of, read_sheet

PREFIX: Final = "tritium."
T = TypeVar("T")


class _Invalid(ValueError):
    """A value that a setting can't have; the message says what it can."""


# -- how values are written


def choice(*allowed: T) -> Form[T]:
    """Return the form of one of some words, or of the members of an enumeration.

    Of each form here, what stands for the word is Markdown; reading raises _Invalid.
    """
    by_word = {str(each.value if isinstance(each, Enum) else each): each for each in allowed}

    def read(text: str, key: str) -> T:
        if text not in by_word:
            raise _Invalid("use " + " or ".join(f"'{word}'" for word in by_word))
        return by_word[text]

    return Form(", ".join(f"`{word}`" for word in by_word), read)


def whole(least: int, most: int | None = None) -> Form[int]:
    """Return the form of a whole number."""
    bounds = f", at least {least}" if most is None else f" from {least} to {most}"

    def read(text: str, key: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
        if number < least or (most is not None and number > most):
            raise _Invalid(f"use a whole number{bounds}")
        return number

    return Form(f"a whole number{bounds}", read)


def seconds(such_as: str, zero: str) -> Form[float]:
    """Return the form of a time that is neither negative nor endless; `zero` says what 0 is."""

    def read(text: str, key: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise _Invalid(f"use seconds, such as '{such_as}'; '0' {zero}")
        return value

    return Form(f"seconds, such as `{such_as}`; `0` {zero}", read)


def document(read: Callable[[Any], T]) -> Form[T]:
    """Return the form of JSON that `read` interprets. It raises InvalidDocument if that can't be done."""

    def read_text(text: str, key: str) -> T:
        try:
            value = json.loads(text, object_pairs_hook=_unambiguous)
        except (ValueError, RecursionError) as error:
            detail = error if isinstance(error, _Invalid) else f"use a JSON object: {error}"
            raise _Invalid(str(detail)) from error
        return read(value)

    return Form("a JSON object", read_text)


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _Invalid(f"give '{repeated}' once")
    return members


def _cores(text: str, key: str) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(parse_cores(part) for part in text.split(";"))
    except ValueError as error:
        hint = "use cores such as '0-3,8', or several such sets for the instances in turn, such as '0-1;2-3'"
        raise _Invalid(f"{error}; {hint}") from error


def worded(metavar: str, read: Callable[[str], T]) -> Form[T]:
    """Return the form of what `read` takes. It raises ValueError, whose text says what is to be written."""

    def read_text(text: str, key: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise _Invalid(str(error)) from error

    return Form(metavar, read_text)


def _paths(text: str, key: str) -> tuple[str, ...]:
    paths = tuple(text.split(":"))
    if not all(path.startswith("/") and "\0" not in path for path in paths):
        raise _Invalid("use absolute paths, with ':' between them")
    return paths


def _gpu_memory(text: str) -> GpuMemory:
    try:
        if text.strip().endswith("%"):
            return GpuMemory(share=to_memory(text, _WHOLE, "gpu-memory") / _WHOLE)
        return GpuMemory(nbytes=to_memory(text, _WHOLE, "gpu-memory"))
    except SettingsError as error:
        raise ValueError(
            "use a size, such as '4GiB', or a share of the GPU's memory, such as '25%'"
        ) from error


_WHOLE: Final = 2**50
GPU_MEMORY: Final = worded("a size such as `4GiB`, or a share such as `25%`", _gpu_memory)
SECONDS: Final = seconds("0.5", "is off")
DURATION: Final = seconds("30", "waits for nothing")
BOOLEAN: Final = choice("true", "false").into(lambda word: word == "true")
CORES: Final = Form("cores such as `0-3,8`, or several sets, `0-3;4-7`, for the instances in turn", _cores)
PATHS: Final = Form("absolute paths, with `:` between them", _paths)


# -- the sheet


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `default` and `about` are for the reader, in Markdown."""

    key: str
    form: AnyForm
    about: str
    default: str = ""


def parameter(key: str, form: Form[T], unset: T, about: str, default: str = "") -> T:
    """Declare a field that one parameter decides; it is `unset` without it."""

    def read(values: Mapping[str, Any]) -> T:
        value: T = values.get(key, unset)
        return value

    return declared(read, dict, Parameter(key, form, about, default or _told(unset)))


def parts(value: type[T], **parameters: Parameter) -> T:
    """Declare a field whose parts are parameters; the parts that are not given have the defaults of `value`."""

    def read(values: Mapping[str, Any]) -> T:
        return value(**{name: values[each.key] for name, each in parameters.items() if each.key in values})

    defaults = {name: each.default or _told(getattr(value(), name)) for name, each in parameters.items()}
    return declared(read, dict, *(replace(each, default=defaults[name]) for name, each in parameters.items()))


def _told(default: object) -> str:
    if default is None or default in ((), {}):
        return "–"
    if isinstance(default, bool | str | Enum):
        word = default.value if isinstance(default, Enum) else default
        return f"`{str(word).lower()}`"
    return f"{default:.15g}" if default else "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritiumSettings:
    """The settings of one model.

    `worker` is None if each instance group decides (see `engine.config.translate`). The sets of `cores` are
    for the instances in turn. `amp` is read by the pytorch backend, from the parameters.
    """

    isolation: Literal["process", "thread"] = parameter(
        "tritium.isolation",
        choice("process", "thread"),
        "process",
        "where model code runs: in a worker process that may die alone, or in the server process (lowest"
        " latency, no containment)",
    )
    retry: Retry = parameter(
        "tritium.retry",
        choice(*Retry),
        Retry.ALWAYS,
        "whether a batch runs again after its worker died under it",
        "`always` where the backend has no side effects (onnxruntime, pytorch), else `never` (python)",
    )
    execution_timeout: float = parameter(
        "tritium.execution_timeout",
        SECONDS,
        0.0,
        "how long one execution may take before its worker is killed and replaced. Hangs are contained only"
        " where this is set",
    )
    worker: Literal["instance", "model"] | None = parameter(
        "tritium.worker",
        choice("instance", "model"),
        None,
        "one worker process for each instance, or one for each device, whose instances are threads that"
        " share the weights",
        "see below",
    )
    queue_bounds: QueueBounds = parts(
        QueueBounds,
        requests=Parameter(
            "tritium.queue.max_requests",
            whole(1),
            "requests that may wait for the model before its clients' connections are held back",
        ),
        nbytes=Parameter("tritium.queue.max_bytes", whole(1), "the same, in bytes of input"),
    )
    threads: int = parameter(
        "tritium.threads",
        replace(whole(0), metavar="a whole number; `0` is automatic"),
        0,
        "CPU threads that one execution may use",
        "cores ÷ instances, at least 1",
    )
    cores: tuple[tuple[int, ...], ...] = parameter(
        "tritium.cores",
        CORES,
        (),
        "the cores that workers are bound to ([worker_life.md](worker_life.md#threads-and-cores))",
        "those of the [host policy](rate_limits.md), else any",
    )
    recycle: Recycle | None = parameter(
        "tritium.recycle",
        document(read_recycle),
        None,
        "when a worker is replaced by a fresh one, which loads first"
        " ([worker_life.md](worker_life.md#recycling))",
    )
    amp: str = parameter(
        "tritium.amp",
        choice("bf16", "fp16", "off"),
        "off",
        "pytorch models only: compute under automatic mixed precision",
    )
    fil_compile: str = parameter(
        "tritium.fil.compile",
        choice("auto", "on", "off"),
        "auto",
        "fil models only: make machine code of the forest when it is loaded, if tl2cgen and a C compiler are"
        " there; `auto` leaves large forests alone ([backends/fil.md](backends/fil.md#machine-code))",
    )
    gpu_tensors: bool = parameter(
        "tritium.gpu_tensors",
        choice("on", "off").into(lambda word: word == "on"),
        False,
        "ensembles only: tensors between two models on one GPU stay on it"
        " ([gpu.md](gpu.md#tensors-that-stay-on-the-gpu))",
        "`off`",
    )
    gpu_tensor_pool: int = parameter(
        "tritium.gpu_tensor_pool_bytes",
        whole(0),
        256 * 1024 * 1024,
        "GPU memory that a worker of this model may take for tensors which stay on the GPU, beside what the"
        " model itself takes; without room for one, it goes by host memory",
    )
    gpu_placement: Literal["all", "free_memory"] = parameter(
        "tritium.gpu_placement",
        choice("all", "free_memory"),
        "all",
        "where the instances of a group with `KIND_GPU` are: its `count` on each of its GPUs, or its `count`"
        " in all, each on the GPU with most free memory when it is loaded ([gpu.md](gpu.md#placement))",
    )
    gpus_seen: Literal["all", "own"] = parameter(
        "tritium.gpus_seen",
        choice("all", "own"),
        "all",
        "which GPUs a worker with `KIND_GPU` sees: those of the server, or its own only, which is number 0"
        " there ([gpu.md](gpu.md#sharing-a-gpu))",
        "`all`; `own` on a machine with MIG devices",
    )
    gpu_memory: GpuMemory = parameter(
        "tritium.gpu_memory",
        GPU_MEMORY,
        GpuMemory(),
        "how much of its GPU's memory an instance may take, by its framework's own means, and under MPS by"
        " the driver ([gpu.md](gpu.md#limits))",
        "no limit",
    )
    gpu_compute: int = parameter(
        "tritium.gpu_compute",
        whole(1, 100),
        0,
        "percent of its GPU's threads that an instance may use; only under MPS ([gpu.md](gpu.md#limits))",
        "all",
    )
    load_timeout: float = parameter(
        "tritium.load_timeout",
        SECONDS,
        0.0,
        "how long one attempt to load may take, also that of a worker that comes back after a death",
    )
    drain_timeout: float = parameter(
        "tritium.drain_timeout",
        DURATION,
        30.0,
        "how long requests that a retired version has accepted may take, before it is ended with them",
    )
    probe: Probe = parameter(
        "tritium.probe",
        choice(*Probe),
        Probe.COMPARE,
        "the inference that a new version must answer before requests are sent to it: without an error"
        " (`required`), or with none that the version it replaces does not answer the same inference with"
        " (`compare`)",
    )
    probe_interval: float = parameter(
        "tritium.probe_interval", SECONDS, 0.0, "how often deep readiness makes an inference of its own"
    )
    essential: bool = parameter(
        "tritium.essential", BOOLEAN, True, "whether the server is ready only while this model is"
    )
    residency: Residency = parameter(
        "tritium.residency",
        choice(*Residency),
        Residency.ALWAYS,
        "when the model is in memory: from the start; from its first request until memory is short; from"
        " its first request on. `on_demand` and `tritium.isolation: thread` exclude each other, for only"
        " the end of a process gives memory back",
    )
    traffic: TrafficPlan | None = parameter(
        "tritium.traffic",
        document(read_plan),
        None,
        "how requests that name no version are shared out over the versions ([see"
        " below](#traffic-between-versions))",
    )
    fairness: Fairness | None = parameter(
        "tritium.fairness",
        document(read_fairness),
        None,
        "how the queue is shared out over tenants, and how requests of low priority age"
        " ([fairness.md](fairness.md#fair-queues))",
    )
    slo: Slo | None = parameter(
        "tritium.slo",
        document(read_slo),
        None,
        "the latency that the model promises: what is refused to keep it, and how batches are tuned"
        " ([fairness.md](fairness.md#latency-promises))",
    )
    checkpoint: bool = parameter(
        "tritium.checkpoint",
        BOOLEAN,
        False,
        "whether sequences with implicit state outlive their worker"
        " ([sequences.md](sequences.md#when-a-worker-dies)); without such a state an error",
    )
    pad_to: BucketsOf = parameter(
        "tritium.pad_to",
        worded("`INPUT:1=64,128,256`, with `;` between several", read_buckets),
        {},
        "dimensions of inputs that are padded to the next of some sizes, so that requests of different"
        " lengths share"
        " batches ([ragged.md](ragged.md#padding-to-buckets))",
    )
    pad_values: Mapping[str, Fill] = parameter(
        "tritium.pad_value",
        worded("`INPUT=-1`, with `;` between several", read_values),
        {},
        "what these inputs are padded with",
        "`0`; empty strings",
    )
    pad_outputs: CutsOf = parameter(
        "tritium.pad_outputs",
        worded("`OUTPUT:1=INPUT:1`, with `;` between several", read_cuts),
        {},
        "dimensions of outputs that are cut back to the request's own size of a padded dimension",
    )
    streams: int = parameter(
        "tritium.streams",
        whole(0),
        0,
        "how many requests to a language model are under way at once; the others wait in its queue"
        " ([llm.md](llm.md))",
        "`0`: any number",
    )
    max_tokens: int = parameter(
        "tritium.max_tokens",
        whole(0),
        0,
        "tokens of a language model's answer where the client does not say ([llm.md](llm.md))",
        "`0`: as many as the context has room for",
    )
    tokenizer: str = parameter(
        "tritium.tokenizer",
        Form("a folder, as seen from the model's", lambda text, key: text),
        "",
        "where a language model's tokenizer and chat template are ([llm.md](llm.md))",
        "what the engine loads",
    )
    tool_parser: str = parameter(
        "tritium.tool_parser",
        choice("hermes", "llama3", "mistral"),
        "",
        "how a language model writes its calls of tools ([llm.md](llm.md))",
        "as its chat template tells",
    )
    reasoning_parser: str = parameter(
        "tritium.reasoning_parser",
        choice("think", "none"),
        "",
        "whether a language model's answers begin with reasoning, between `<think>` and `</think>`"
        " ([llm.md](llm.md))",
        "as its chat template tells",
    )
    resume: bool = parameter(
        "tritium.resume",
        choice("on", "off").into(lambda word: word == "on"),
        True,
        "whether a language model's answer goes on in another engine when its own has died"
        " ([llm.md](llm.md#when-something-dies))",
    )
    resume_within: float = parameter(
        "tritium.resume_within",
        DURATION,
        60.0,
        "how long an answer whose engine has died waits for another one",
    )
    hang_within: float = parameter(
        "tritium.hang_within",
        SECONDS,
        60.0,
        "how long a language model's engine or text worker may show no sign of life at its work before it is"
        " killed and replaced ([llm.md](llm.md#when-something-hangs))",
    )
    queued_prompt_tokens: int = parameter(
        "tritium.queued_prompt_tokens",
        whole(0),
        0,
        "tokens of prompts that an engine of a language model may have been given before it has computed"
        " them; other requests wait in the model's queue ([llm.md](llm.md#admission))",
        "`0`: what it computes in four steps",
    )
    sleep: int = parameter(
        "tritium.sleep",
        choice("0", "1", "2").into(int),
        0,
        "what a language model with residency `on_demand` gives up first when memory is wanted, while its"
        " processes stay: `1` its cache, `2` its weights, too ([residency.md](residency.md#sleep))",
        "`0`: it is evicted",
    )
    concurrency: int = parameter(
        "tritium.concurrency",
        whole(1, MAX_LANES),
        1,
        "how many batches of a Python model one instance may have under way at once"
        " ([python_backend.md](python_backend.md#several-batches-at-once))",
    )
    requirements: Literal["install", "ignore"] = parameter(
        "tritium.requirements",
        choice("install", "ignore"),
        "install",
        "whether a Python model's `requirements.txt` makes it an environment of its own"
        " ([environments.md](environments.md))",
    )
    confinement: Confinement = parts(
        Confinement,
        memory=Parameter(
            "tritium.memory_limit_mb",
            replace(whole(1), metavar="MiB, at least 1").into(lambda mib: mib * 1024 * 1024),
            "memory of one worker and all processes that it has started, beyond which they are killed"
            " ([worker_life.md](worker_life.md#limits))",
            "none",
        ),
        processes=Parameter(
            "tritium.max_processes",
            whole(1),
            "the number of those processes, the worker among them; `1` refuses children",
            "none",
        ),
        sandbox=Parameter(
            "tritium.sandbox",
            choice(*Sandbox),
            "what is taken away from model code: [privileges, network, files"
            " too](worker_life.md#the-sandbox), and no less than `--sandbox` says, if it is given. This and"
            " the two above need `tritium.isolation: process`",
            "`guard`, or `--sandbox`",
        ),
        read=Parameter(
            "tritium.sandbox_read",
            PATHS,
            "what a strict sandbox may read beyond its own; with another sandbox an error",
        ),
        write=Parameter(
            "tritium.sandbox_write",
            PATHS,
            "what a strict sandbox may write beyond its own; with another sandbox an error",
        ),
    )


PARAMETERS: Final[Mapping[str, Parameter]] = {each.key: each for each in entries_of(TritiumSettings)}


def read_parameters(parameters: Mapping[str, str]) -> tuple[Mapping[str, Any], list[Problem]]:
    """Return the value of each of Tritium's parameters, by key, and every mistake."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, text in sorted(parameters.items()):
        if not key.startswith(PREFIX):
            continue
        if key not in PARAMETERS:
            nearest = did_you_mean(key, PARAMETERS) or "known are " + ", ".join(PARAMETERS)
            problems.append(problem(key, f"unknown setting '{key}'", nearest))
            continue
        try:
            values[key] = PARAMETERS[key].form.read(text, key)
        except _Invalid as error:
            problems.append(problem(key, f"'{key}' is '{text}', which is no valid value", str(error)))
        except InvalidDocument as error:
            whole_value = "the plan" if key == "tritium.traffic" else "the value"
            problems += [
                problem(key, f"'{key}': '{mistake.key or whole_value}' {mistake.complaint}", mistake.remedy)
                for mistake in error.mistakes
            ]
    return values, problems


def settings_of(values: Mapping[str, Any]) -> TritiumSettings:
    """Return the settings of a model whose parameters have these values."""
    return read_sheet(TritiumSettings, values)


def problem(key: str, message: str, hint: str) -> Problem:
    """Return what is wrong with one parameter."""
    return Problem(message=message, key=f'parameters["{key}"]', hint=hint)
