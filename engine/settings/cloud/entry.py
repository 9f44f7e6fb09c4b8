"""SageMaker's `serve`: from the platform's environment variables to the flags of `tritium serve`.

Contract: deployment.md section 5; texts are those of Triton's script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

SINGLE_MODEL: Final = "/opt/ml/model/"
MANY_MODELS: Final = "/tmp/sagemaker"  # an empty repository: the platform names others as it loads
"""Where models lie: of an endpoint with one model, and of one with many."""

_DEFAULT: Final = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_TYPE: Final = "SAGEMAKER_TRITON_INFERENCE_TYPE"
_PING: Final = "SAGEMAKER_TRITON_PING_MODE"
_TYPES: Final = ("infer", "generate", "generate_stream")

_FLAGS: Final = (
    ("SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING", "--model-namespacing={}", "true"),
    ("SAGEMAKER_BIND_TO_PORT", "--sagemaker-port={}", ""),
    ("SAGEMAKER_SAFE_PORT_RANGE", "--sagemaker-safe-port-range={}", ""),
    ("SAGEMAKER_TRITON_ALLOW_GRPC", "--allow-grpc={}", "false"),
    ("SAGEMAKER_TRITON_ALLOW_METRICS", "--allow-metrics={}", "false"),
    ("SAGEMAKER_TRITON_METRICS_PORT", "--metrics-port={}", ""),
    ("SAGEMAKER_TRITON_GRPC_PORT", "--grpc-port={}", ""),
    ("SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT", "--buffer-manager-thread-count={}", ""),
    ("SAGEMAKER_TRITON_THREAD_COUNT", "--sagemaker-thread-count={}", ""),
    ("SAGEMAKER_TRITON_LOG_VERBOSE", "--log-verbose={}", "true"),
    ("SAGEMAKER_TRITON_LOG_INFO", "--log-info={}", ""),
    ("SAGEMAKER_TRITON_LOG_WARNING", "--log-warning={}", ""),
    ("SAGEMAKER_TRITON_LOG_ERROR", "--log-error={}", ""),
    (
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",
        "--backend-config=python,shm-default-byte-size={}",
        "16777216",
    ),
    ("SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE", "--backend-config=python,shm-growth-byte-size={}", "1048576"),
    ("SAGEMAKER_TRITON_TENSORFLOW_VERSION", "--backend-config=tensorflow,version={}", ""),
)
"""Variables, the flags that they become, and the words of those that are not set; none: no flag."""


class EntryRefused(Exception):
    """The variables, or the model's folder, make no server. The message is for the platform's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """What the folder of an endpoint with one model has in it."""

    path: str = SINGLE_MODEL
    folders: Sequence[str] = ()
    configured: bool = False  # there is a config.pbtxt beside them


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How to serve: `flags`, variables to set, what to say first, and a directory to make."""

    flags: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    directory: str = ""


def has_many(environ: Mapping[str, str]) -> bool:
    """Whether the endpoint is one with many models."""
    return environ.get("SAGEMAKER_MULTI_MODEL", "") == "true"


def entry_of(environ: Mapping[str, str], model: ModelFolder, *, gpus: int = 0) -> Entry:
    """Return how to serve. Raises EntryRefused."""
    inference = environ.get(_TYPE, "")
    many = has_many(environ)
    if not many and model.configured:
        raise EntryRefused(
            "ERROR: Incorrect directory structure.\n"
            "       Model directory needs to contain the top level folder"
        )
    if inference and inference not in _TYPES:
        raise EntryRefused(
            f"ERROR: Invalid {_TYPE} '{inference}'\n       Must be one of: {', '.join(_TYPES)}"
        )
    repository = MANY_MODELS if many else model.path
    flags = (
        "--allow-sagemaker=true",
        "--allow-http=false",
        "--model-control-mode=explicit",
        f"--model-repository={repository}",
        *_given(environ, gpus),
    )
    if many:
        # Triton's script leaves the variable unexported, so that its server does not see it. What it means to
        # say is that a server without models is well.
        ping = environ.get("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", "") or "live"
        said = f'Triton is running in SageMaker MME mode. Using Triton ping mode: "{ping}"'
        return Entry(flags=flags, environ={_PING: ping}, said=(said,), directory=repository)
    name, said_of_name = _single(environ.get(_DEFAULT, ""), model)
    return Entry(flags=(*flags, f"--load-model={name}"), environ={_DEFAULT: name}, said=said_of_name)


def _given(environ: Mapping[str, str], gpus: int) -> Iterator[str]:
    for variable, flag, default in _FLAGS:
        word = environ.get(variable, "") or default
        if word:
            yield flag.format(word)
    limit = environ.get("SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT", "")
    if limit:
        yield from (f"--model-load-gpu-limit={gpu}:{limit}" for gpu in range(gpus))
    yield from environ.get("SAGEMAKER_TRITON_ADDITIONAL_ARGS", "").split()


def _single(name: str, model: ModelFolder) -> tuple[str, tuple[str, ...]]:
    """Return the model to load, and what to say of the choice. Raises EntryRefused."""
    if name:
        if name not in model.folders:
            raise EntryRefused(f"ERROR: Directory with provided {_DEFAULT} {name} does not exist")
        return name, ()
    if not model.folders:
        raise EntryRefused("ERROR: No model found in model repository")
    if len(model.folders) > 1:
        raise EntryRefused(
            "ERROR: More than 1 model directory found in model repository.\n"
            f"       Either provide a single directory or set {_DEFAULT} to run the ensemble backend.\n"
            f"       Directories found in model repository: {' '.join(sorted(model.folders))}"
        )
    (only,) = model.folders
    said = (
        f"WARNING: No {_DEFAULT} provided.",
        f"         Starting with the only existing model directory {only}",
    )
    return only, said
