"""The page of environment variables, docs/reference/environment.md.

Those of flags come from the table of options. The others are listed here; `read()` finds what the code names,
so that a variable without a line on the page fails a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

from engine.settings.settings import FLAGS
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "environment.md"

_PREFIXES: Final = "TRITIUM|TRITON|SAGEMAKER|AIP|AWS|AZURE|GOOGLE|GCE|STORAGE|CUDA|OTEL|HF|VLLM"
_VARIABLE: Final = re.compile(rf"(?:{_PREFIXES})_[A-Z0-9_]*[A-Z0-9]")
_ANY: Final = re.compile(r"[A-Z][A-Z0-9_]+")

OTHERS: Final[Mapping[str, Mapping[str, str]]] = {
    "Tritium's own, and Triton's": {
        "TRITIUM_API_KEY": "the key that commands such as `tritium tree` show to a server"
        " ([identity.md](../identity.md)); it is no setting of the server",
        "TRITIUM_PURE": "`1`: run the Python sources, also where there is a compiled core",
        "TRITIUM_COMPILE": "`1`, while Tritium is installed: compile the hot path",
        "TRITON_SERVER_CPU_ONLY": "if set: no metrics of GPUs",
        "TRITON_SERVER_ESCAPE_LOG_MESSAGES": "`0`: messages of the log are not escaped ([logs.md](../logs.md))",
        "TRITON_BATCH_STRATEGY_PATH": "the folder of custom batching strategies"
        " ([backends/c_libraries.md](../backends/c_libraries.md))",
        "CUDA_VISIBLE_DEVICES": "which GPUs are the server's ([gpu.md](../gpu.md))",
        "CUDA_MPS_PIPE_DIRECTORY": "where the daemon of MPS is found ([gpu.md](../gpu.md))",
        "KUBERNETES_SERVICE_HOST": "where `tritium fleet` finds the API server, as each pod is told"
        " ([fleet.md](../fleet.md))",
        "KUBERNETES_SERVICE_PORT": "the same, its port",
        "TERM": "`dumb`, or nothing: the start, and `tritium tree --watch`, are not drawn",
        "NO_COLOR": "if set: what is drawn on a terminal has no colours",
        "XDG_CACHE_HOME": "where caches lie unless a flag says so; else `$HOME/.cache`",
        "HOME": "see above",
        "PATH": "where compilers and interpreters are found",
        "CC": "the C compiler, for [forests](../backends/fil.md) and [C libraries](../backends/c_libraries.md)",
        "CXX": "the C++ compiler of PyTorch's own compiler",
        "TF_XLA_FLAGS": "handed to [TensorFlow](../backends/tensorflow.md)",
    },
    "Repositories in clouds": {
        "TRITON_CLOUD_CREDENTIAL_PATH": "a file of credentials by prefix ([storage.md](../storage.md))",
        "TRITON_AWS_MOUNT_DIRECTORY": "where copies of `s3://` repositories lie",
        "TRITON_GCS_MOUNT_DIRECTORY": "the same of `gs://`",
        "TRITON_AZURE_MOUNT_DIRECTORY": "the same of `as://`",
        "AWS_ACCESS_KEY_ID": "with the next two: a key for `s3://`",
        "AWS_SECRET_ACCESS_KEY": "see above",
        "AWS_SESSION_TOKEN": "see above",
        "AWS_PROFILE": "the profile to use, where there is no key",
        "AWS_DEFAULT_REGION": "the region",
        "AWS_REGION": "the region, after the one above",
        "AWS_ENDPOINT_URL_S3": "another address of S3",
        "AWS_ENDPOINT_URL": "the same, after the one above",
        "AWS_CONFIG_FILE": "AWS's own file of profiles",
        "AWS_SHARED_CREDENTIALS_FILE": "AWS's own file of keys",
        "AWS_EC2_METADATA_DISABLED": "`true`: no credentials are asked of the machine",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "AWS's own: an identity of a Kubernetes pod",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "AWS's own, as are the three that follow: credentials of a"
        " container",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "see above",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "see above",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "see above",
        "GOOGLE_APPLICATION_CREDENTIALS": "a file of credentials for `gs://`",
        "GCE_METADATA_HOST": "where the machine is asked for credentials",
        "NO_GCE_CHECK": "`true`: it is not asked",
        "STORAGE_EMULATOR_HOST": "an emulator of `gs://`",
        "AZURE_STORAGE_ACCOUNT": "the account of `as://`",
        "AZURE_STORAGE_KEY": "its key",
        "AZURE_STORAGE_AUTH_TYPE": "how it is asked ([storage.md](../storage.md))",
        "AZURE_STORAGE_CLIENT_ID": "which managed identity",
        "AZURE_STORAGE_SERVICE_ENDPOINT": "another address of Azure's storage",
        "AZURE_CLIENT_CERTIFICATE_PATH": "Azure's own, as are the two that follow: an identity",
        "AZURE_CLIENT_SECRET": "see above",
        "AZURE_FEDERATED_TOKEN_FILE": "see above",
        "AZURE_STORAGE_CONNECTION_STRING": "kept from workers, and not used",
        "AZURE_STORAGE_SAS_TOKEN": "kept from workers, and not used",
    },
    "SageMaker and Vertex AI": {
        "SAGEMAKER_BIND_TO_PORT": "`--sagemaker-port`",
        "SAGEMAKER_SAFE_PORT_RANGE": "`--sagemaker-safe-port-range`",
        "SAGEMAKER_MULTI_MODEL": "`true`: an endpoint with many models",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "the model that invocations ask for",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "`infer`, `generate` or `generate_stream`",
        "SAGEMAKER_TRITON_PING_MODE": "`ready` or `live`: what `/ping` asks",
        "SAGEMAKER_TRITON_OVERRIDE_PING_MODE": "the same, for endpoints with many models",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "more flags",
        "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING": "`--model-namespacing`",
        "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT": "`--model-load-gpu-limit`",
        "SAGEMAKER_TRITON_ALLOW_GRPC": "`--allow-grpc`",
        "SAGEMAKER_TRITON_GRPC_PORT": "`--grpc-port`",
        "SAGEMAKER_TRITON_ALLOW_METRICS": "`--allow-metrics`",
        "SAGEMAKER_TRITON_METRICS_PORT": "`--metrics-port`",
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT": "`--buffer-manager-thread-count`",
        "SAGEMAKER_TRITON_THREAD_COUNT": "`--sagemaker-thread-count`",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "`--log-verbose`",
        "SAGEMAKER_TRITON_LOG_INFO": "`--log-info`",
        "SAGEMAKER_TRITON_LOG_WARNING": "`--log-warning`",
        "SAGEMAKER_TRITON_LOG_ERROR": "`--log-error`",
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": "`--backend-config=python,shm-default-byte-size`",
        "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE": "`--backend-config=python,shm-growth-byte-size`",
        "SAGEMAKER_TRITON_TENSORFLOW_VERSION": "`--backend-config=tensorflow,version`",
        "AIP_MODE": "`PREDICTION`: Vertex AI has started this server",
        "AIP_HTTP_PORT": "the port of Vertex AI",
        "AIP_HEALTH_ROUTE": "the path of health",
        "AIP_PREDICT_ROUTE": "the path of predictions",
        "AIP_STORAGE_URI": "the repository, where no flag names one",
    },
    "Traces by OpenTelemetry": {
        "OTEL_BSP_MAX_QUEUE_SIZE": "as `--trace-config` has it ([opentelemetry.md](../opentelemetry.md)), which"
        " names those that the SDK reads as well",
        "OTEL_BSP_SCHEDULE_DELAY": "see above",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "see above",
    },
}
"""Variables that are no flag's, by subject, and what they say."""

GIVEN: Final = frozenset(
    {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "HF_HUB_OFFLINE",
        "LD_LIBRARY_PATH",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "PYTHONPATH",
        "RUST_BACKTRACE",
        "TOKENIZERS_PARALLELISM",
        "TRITIUM_WORKER",
        "TRITIUM_WORKER_GATE",
        "TRITIUM_WORKER_LIMITS",
        "TRITIUM_WORKER_UNAPPLIED",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_LOGGING_LEVEL",
        "VLLM_NO_USAGE_STATS",
    }
)
"""Variables that the server sets for its workers, or takes from them. An operator has no use for them."""

NO_VARIABLES: Final = frozenset({"CUDA_OUT_OF_MEMORY", "TRITON_STRING_TO_NUMPY"})
"""Words of that form which are something else."""

_INTRODUCTION: Final = """\
# Environment variables

This page is written by `python -m tests.house.reference`. A test compares it with what the code reads.

## Of flags

Each flag of `tritium serve` has a variable; [options.md](../options.md) says what it does. A flag on the
command line wins. `TRITIUM_MODEL_REPOSITORY` takes several directories separated by `:`, those of other
repeatable flags (*) are separated by `;`. Variables that Kubernetes makes for a Service named `tritium` are
told from settings.

| variable | flag |
|---|---|
"""


def page() -> str:
    """Return the page."""
    flags = sorted(FLAGS, key=lambda flag: flag.variable)
    rows = "".join(f"| `{flag.variable}`{_mark(flag.repeatable)} | `--{flag.name}` |\n" for flag in flags)
    return _INTRODUCTION + rows + "".join(_table(title, table) for title, table in OTHERS.items())


def _mark(repeatable: bool) -> str:
    return " *" if repeatable else ""


def _table(title: str, variables: Mapping[str, str]) -> str:
    rows = "".join(f"| `{name}` | {about} |\n" for name, about in variables.items())
    return f"\n## {title}\n\n| variable | |\n|---|---|\n{rows}"


def read() -> frozenset[str]:
    """Return the variables that the code names."""
    return frozenset(
        name
        for package in ("engine", "actors", "protocols")
        for path in (ROOT / package).rglob("*.py")
        if "/proto/" not in path.as_posix()
        for name in _named(path.read_text(encoding="utf-8"))
    )


def _named(source: str) -> Iterator[str]:
    if "environ" not in source and not re.search(rf"[\"'](?:{_PREFIXES})_", source):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)) if _VARIABLE.fullmatch(text):
                yield text
            case ast.Call(
                func=ast.Attribute(value=where, attr="get"), args=[ast.Constant(value=str(text)), *_]
            ):
                if _is_environ(where) and _ANY.fullmatch(text):
                    yield text
            case ast.Subscript(value=where, slice=ast.Constant(value=str(text))) if _is_environ(where):
                yield text


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node).endswith("environ")
