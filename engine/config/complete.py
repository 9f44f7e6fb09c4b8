"""What a configuration leaves out: names, backend, version policy, batching sizes, instance groups.

Contract: model_config.md sections 1 (normalisation), 5 (instance groups) and 7 (backend and platform). Inputs
and outputs come from the model itself (section 7.1, `engine.config.inspection`). The model is asked after the
backend is known, and before what follows from the batch size is filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.config.engines import choose_engine
from engine.config.provenance import DEFAULT, Provenance, Source
from engine.config.rules.finding import SCRIPT
from engine.config.rules.foreign import backend_of_files
from engine.config.rules.language import fill_language
from engine.models.problems import Problem
from engine.processes.backends import BackendTraits
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup

ENSEMBLE: Final = "ensemble"

# Backends whose models on a CPU get two instances if the configuration names no count.
_TWO_ON_CPU: Final = frozenset(("onnxruntime", "tensorflow"))
# Backends that take KIND_AUTO for KIND_CPU, whatever GPUs there are.
_ON_CPU_ONLY: Final = frozenset(("fil", "openvino"))
_DEFAULT_IDLE_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of the inference table: what gives a backend away, and what is then filled in."""

    backend: str
    filename: str  # as `default_model_filename`, or as an entry of the first version directory
    platforms: tuple[str, ...] = ()  # platform names that select the backend
    platform: str = ""  # what an empty platform becomes
    needs_no_platform: bool = False  # the file name counts only if no platform is given


_RULES: Final = (
    _Rule("tensorflow", "model.savedmodel", platform="tensorflow_savedmodel", needs_no_platform=True),
    _Rule("tensorflow", "model.graphdef", platform="tensorflow_graphdef", needs_no_platform=True),
    _Rule("tensorrt", "model.plan", ("tensorrt_plan",), "tensorrt_plan"),
    _Rule("onnxruntime", "model.onnx", ("onnxruntime_onnx",), "onnxruntime_onnx"),
    _Rule("openvino", "model.xml"),
    _Rule("pytorch", "model.pt", ("pytorch_libtorch", "libtorch"), "pytorch_libtorch"),
    _Rule("pytorch", "model.pt2", ("torch_aoti",), "torch_aoti"),
    _Rule("python", "model.py"),
)


Fill = Callable[[ModelConfig, Provenance], list[Problem]]
"""Completes a configuration, whose backend is known, in place from the model itself.

See `engine.config.inspection.model`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A configuration with everything filled in that can be.

    `uncounted` holds the positions of instance groups without a written count. `provenance` knows where all
    values are from.
    """

    config: ModelConfig
    uncounted: frozenset[int]
    provenance: Provenance
    problems: tuple[Problem, ...] = ()


def complete(
    written: ModelConfig,
    model_directory: Path,
    *,
    backends: Mapping[str, BackendTraits],
    gpus: int = 0,
    auto_complete: bool = True,
    name: str = "",
    source: Source | None = None,
    fill: Fill | None = None,
) -> Completed:
    """Return a completed copy of `written`, which is from `source`.

    Without `auto_complete` only the normalisation is applied, and a known platform gives the backend. `name`
    is the model's name if its directory is called otherwise. If the backend can't be found, `fill` is not
    asked.
    """
    config = ModelConfig()
    config.CopyFrom(written)
    provenance = Provenance(config, source or Source(name="config.pbtxt"))
    origin, problems = choose_engine(
        config, config.name or name or model_directory.name, _first_directory(model_directory), backends
    )
    provenance.note(config, origin)
    if auto_complete:
        if not config.name:
            config.name = name or model_directory.name
            provenance.note(config, "directory name")
        origin, undetermined = infer_backend(config, *_first_version(model_directory), backends)
        problems = [*problems, *undetermined]
        provenance.note(config, origin)
        if fill is not None and not problems:
            problems = fill(config, provenance)
    elif not config.backend:
        config.backend = backend_of(config.platform, backends)
        provenance.note(config, "follows from 'platform'")
    traits = backends.get(config.backend)
    library = traits is not None and traits.library
    if traits is not None and traits.implementation and not library and not config.runtime:
        # As the reference implementation does it, with or without completion.
        config.runtime = SCRIPT
        provenance.note(config, f"file {traits.implementation}")
    if traits is not None and traits.language:
        fill_language(config)
        provenance.note(config, "what every language model has")
    uncounted = frozenset(at for at, group in enumerate(config.instance_group) if group.count < 1)
    if not config.instance_group:
        uncounted = frozenset((0,))
    # None of a library's instances can be on a GPU.
    normalise(config, gpus=0 if library else gpus, on_cpu=traits is not None and traits.runs_python)
    provenance.note(config, DEFAULT)
    return Completed(config=config, uncounted=uncounted, provenance=provenance, problems=tuple(problems))


def backend_of(platform: str, backends: Mapping[str, BackendTraits]) -> str:
    """Return the backend that a platform stands for without any completion, or nothing.

    See the contract, section 7.1.

    `libtorch` is not among them: only completion takes it for `pytorch_libtorch`.
    """
    if not platform:
        return ""
    for rule in _RULES:
        if platform == rule.platform:
            return rule.backend
    return next((traits.name for traits in backends.values() if platform in traits.platforms), "")


def infer_backend(
    config: ModelConfig, directory: str, entries: frozenset[str], backends: Mapping[str, BackendTraits]
) -> tuple[str, list[Problem]]:
    """Fill `backend`, `platform` and `default_model_filename` in place, in the contract's order.

    `entries` are the names in the model's first version directory, called `directory`. Returns what gave the
    values away, and what kept the backend from being found.
    """
    if config.platform == ENSEMBLE:
        return "", []
    if config.backend:
        _fill_known(config)
        return "follows from 'backend'", []
    probing = not config.platform and not config.default_model_filename
    for rule in _RULES:
        discovered = probing and rule.filename in entries
        by_name = config.default_model_filename == rule.filename and not (
            rule.needs_no_platform and config.platform
        )
        if discovered or by_name or config.platform in rule.platforms:
            given = "platform" if config.platform else "default_model_filename"
            _apply(config, rule, discovered=discovered)
            return f"file {directory}/{rule.filename}" if discovered else f"follows from '{given}'", []
    for traits in backends.values():
        if config.platform and config.platform in traits.platforms:
            config.backend = traits.name
            return "follows from 'platform'", []
    if not probing:
        return "", []
    _, dot, suffix = config.name.partition(".")
    if not dot or not suffix:
        return "", [_undetermined(config.name, entries)]
    config.backend = suffix
    config.default_model_filename = f"model.{suffix}"
    return "follows from 'name'", []


def _apply(config: ModelConfig, rule: _Rule, *, discovered: bool) -> None:
    by_platform = config.platform in rule.platforms
    config.backend = rule.backend
    if not config.platform or config.platform == "libtorch":
        config.platform = rule.platform
    # A discovered or platform-given `model.pt` is left out of the reported configuration; the backend falls
    # back to it.
    left_out = rule.filename == "model.pt" and (discovered or by_platform)
    if not config.default_model_filename and not left_out:
        config.default_model_filename = rule.filename


def _fill_known(config: ModelConfig) -> None:
    """Fill the platform and file name that a given backend implies, if they are not ambiguous."""
    rules = [rule for rule in _RULES if rule.backend == config.backend]
    if not rules:
        return
    chosen = next(
        (
            rule
            for rule in rules
            if (config.platform and config.platform in rule.platforms)
            or (not config.platform and config.default_model_filename == rule.filename)
        ),
        None,
    )
    if chosen is None:
        if config.platform or config.backend == "tensorflow":  # a wrong pair, or one of two formats
            return
        chosen = rules[0]
    was_empty = not config.platform
    if was_empty:
        config.platform = chosen.platform
    if config.runtime == SCRIPT:
        # A file of that name would be the weights, and not the model (contract, backends.md section 3.4).
        return
    if not config.default_model_filename and (was_empty or chosen.filename != "model.pt"):
        config.default_model_filename = chosen.filename


def _undetermined(name: str, entries: Collection[str]) -> Problem:
    likely = backend_of_files(entries)
    return Problem(
        message=(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model configuration."
            " Expected model name of the form 'model.<backend_name>'."
        ),
        hint=f'write backend: "{likely}"'
        if likely
        else "name the 'backend', or put the model file under its usual name (model.onnx, model.pt, model.py) into a version directory",
    )


def _first_version(model_directory: Path) -> tuple[str, frozenset[str]]:
    """Return the name of the lexicographically first subdirectory and the names inside it.

    Both are empty if there is none.
    """
    first = _first_directory(model_directory)
    try:
        if first is not None:
            return first.name, frozenset(entry.name for entry in first.iterdir())
    except OSError:
        # What can't be listed can't be probed. The code that opens it says why.
        pass
    return "", frozenset()


def _first_directory(model_directory: Path) -> Path | None:
    try:
        return min((entry for entry in model_directory.iterdir() if entry.is_dir()), default=None)
    except OSError:
        return None


def normalise(config: ModelConfig, *, gpus: int = 0, on_cpu: bool = False) -> None:
    """Fill in place what is filled with or without auto-completion.

    With `on_cpu`, instances that nothing is said about are on the CPU, whatever GPUs there are.
    """
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
    sizes = [config.max_batch_size] if config.max_batch_size > 0 else []
    if config.HasField("dynamic_batching") and not config.dynamic_batching.preferred_batch_size:
        config.dynamic_batching.preferred_batch_size.extend(sizes)
    if config.HasField("sequence_batching"):
        sequences = config.sequence_batching
        if sequences.HasField("oldest") and not sequences.oldest.preferred_batch_size:
            sequences.oldest.preferred_batch_size.extend(sizes)
        if not sequences.max_sequence_idle_microseconds:
            sequences.max_sequence_idle_microseconds = _DEFAULT_IDLE_MICROSECONDS
    if config.platform == ENSEMBLE:
        return
    for memory in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(memory):
            getattr(config.optimization, memory).enable = True
    _resolve_groups(config, gpus, on_cpu=on_cpu)


def _resolve_groups(config: ModelConfig, gpus: int, *, on_cpu: bool) -> None:
    """Give every instance group a name, a kind, a count and its GPUs (contract, section 5)."""
    if not config.instance_group:
        alone = config.instance_group.add(name=config.name)
        if on_cpu:
            alone.kind = ModelInstanceGroup.KIND_CPU
    for position, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{position}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            usable = gpus > 0 and all(0 <= gpu < gpus for gpu in group.gpus)
            usable = usable and config.backend not in _ON_CPU_ONLY
            group.kind = ModelInstanceGroup.KIND_GPU if usable else ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            is_cpu = group.kind == ModelInstanceGroup.KIND_CPU
            group.count = 2 if is_cpu and config.backend in _TWO_ON_CPU else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(range(gpus))
