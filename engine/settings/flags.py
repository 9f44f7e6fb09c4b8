"""Every flag `tritium serve` knows, as one table: help, parsing, environment variables and refusals read it.

A flag stands in one of three relations to this server:

- *honoured*: it does what its help says;
- *without effect* (`no_effect`): it tunes a part of Triton that has no counterpart here, so no answer can
  differ for it. Giving it earns a warning, so that command lines written for Triton keep working;
- *refused* (`instead`): what it asks for is not offered, and quietly serving without it would deceive. Values
  in `harmless` ask for what happens anyway and are let through.

Reference: contract repository.md section 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.settings.flag import Flag, Group, Kind, OneOf, grpc_threads, positive, trace_config
from engine.settings.flags_cache import CACHE_FLAGS
from engine.settings.flags_connections import CONNECTION_FLAGS
from engine.settings.flags_grpc import GRPC_FLAGS
from engine.settings.flags_instances import INSTANCE_FLAGS

_FALSE: Final = ("false", "off", "0")


def _refused(
    name: str,
    instead: str,
    *,
    kind: Kind = Kind.TEXT,
    harmless: tuple[str, ...] = (),
    check: Callable[[str], str] | None = None,
) -> Flag:
    return Flag(
        name=name,
        kind=kind,
        group=Group.REFUSED,
        instead=instead,
        harmless=harmless,
        check=check,
        repeatable=True,
    )


def _no_effect(
    name: str,
    why: str,
    *,
    kind: Kind = Kind.INT,
    repeatable: bool = False,
    check: Callable[[str], str] | None = None,
) -> Flag:
    return Flag(
        name=name, kind=kind, group=Group.COMPATIBLE, no_effect=why, repeatable=repeatable, check=check
    )


_HONOURED: Final = (
    # -- server
    Flag(
        name="id",
        group=Group.SERVER,
        default="triton",
        metavar="NAME",
        help="The server's name, as its metadata endpoint tells it.",
    ),
    Flag(
        name="exit-on-error",
        kind=Kind.BOOL,
        group=Group.SERVER,
        default="true",
        help="Exit with status 1 when a model fails to load at start-up; otherwise serve the others.",
    ),
    Flag(
        name="strict-readiness",
        kind=Kind.BOOL,
        group=Group.SERVER,
        default="true",
        help="Report ready only while every model is ready; otherwise as soon as the server is.",
    ),
    Flag(
        name="exit-timeout-secs",
        kind=Kind.INT,
        group=Group.SERVER,
        default="30",
        metavar="SECONDS",
        help="On SIGTERM or SIGINT, how long requests in flight may take to finish.",
    ),
    Flag(
        name="drain-delay-secs",
        kind=Kind.NUMBER,
        group=Group.SERVER,
        default="0",
        metavar="SECONDS",
        help="Tritium's own: on SIGTERM or SIGINT, how long the server serves on before --exit-timeout-secs begins. It says at"
        " once that it is not ready, so that load balancers have so long to send requests elsewhere. A second signal cuts it short.",
    ),
    *CONNECTION_FLAGS,
    # -- model repository
    Flag(
        name="model-repository",
        group=Group.MODELS,
        metavar="DIR|URI",
        repeatable=True,
        separator=":",
        aliases=("model-store",),
        help="A model repository: a directory, s3://BUCKET/PATH, gs://BUCKET/PATH or as://ACCOUNT/CONTAINER/PATH;"
        " required, and repeatable. --model-store is the same.",
    ),
    Flag(
        name="model-control-mode",
        group=Group.MODELS,
        default="none",
        metavar="MODE",
        check=OneOf("invalid argument for --model-control-mode", "none", "poll", "explicit"),
        help="none: load every model at start-up. poll: the same, then follow what changes in the repositories."
        " explicit: load what --load-model names, then what the load and unload requests of the repository API ask for.",
    ),
    Flag(
        name="repository-poll-secs",
        kind=Kind.NUMBER,
        group=Group.MODELS,
        default="15",
        metavar="SECONDS",
        help="How often poll mode looks at the repositories; decimals, such as 0.5, are Tritium's own.",
    ),
    Flag(
        name="load-model",
        group=Group.MODELS,
        metavar="MODEL",
        repeatable=True,
        help="Load MODEL at start-up, in explicit mode; repeatable. '*', alone, stands for every model.",
    ),
    Flag(
        name="model-namespacing",
        kind=Kind.BOOL,
        group=Group.MODELS,
        default="false",
        help="Let models of several repositories have the same name; otherwise such models are not served.",
    ),
    Flag(
        name="model-config-name",
        group=Group.MODELS,
        metavar="NAME",
        help="Prefer configs/NAME.pbtxt of each model to its config.pbtxt.",
    ),
    Flag(
        name="disable-auto-complete-config",
        kind=Kind.SWITCH,
        group=Group.MODELS,
        help="Take configurations as they are written, without completing them from the model file.",
    ),
    Flag(
        name="strict-model-config",
        kind=Kind.BOOL,
        group=Group.MODELS,
        default="false",
        help="Deprecated by Triton: true is --disable-auto-complete-config.",
    ),
    Flag(
        name="model-load-thread-count",
        kind=Kind.INT,
        group=Group.MODELS,
        default="4",
        metavar="N",
        help="How many models may load at once.",
    ),
    Flag(
        name="model-load-retry-count",
        kind=Kind.INT,
        group=Group.MODELS,
        default="0",
        metavar="N",
        help="How often a failed load is tried again.",
    ),
    Flag(
        name="resident-memory-limit",
        group=Group.MODELS,
        default="80%",
        metavar="SIZE",
        help="Tritium's own: the memory that all models may take before those loaded on demand are evicted, least recently"
        " used first: bytes, a size such as 8GiB, or a share of what the server may use, such as 80%.",
    ),
    Flag(
        name="model-cache-directory",
        group=Group.MODELS,
        metavar="DIR",
        help="Tritium's own: where models of remote repositories are kept. [default: tritium in ${XDG_CACHE_HOME}, else in"
        " ~/.cache]",
    ),
    Flag(
        name="model-cache-size",
        group=Group.MODELS,
        default="50GiB",
        metavar="SIZE",
        help="Tritium's own: how much of the disk that directory may fill; what was used least recently goes first.",
    ),
    Flag(
        name="environment-cache",
        group=Group.MODELS,
        metavar="DIR",
        help="Tritium's own: where the environments of Python models are unpacked and built, once each; servers may share it."
        " [default: tritium/environments in ${XDG_CACHE_HOME}, else in ~/.cache]",
    ),
    *INSTANCE_FLAGS,
    # -- backends
    Flag(
        name="backend-config",
        group=Group.BACKENDS,
        metavar="[BACKEND,]SETTING=VALUE",
        repeatable=True,
        help="A setting for one backend, or for all of them; repeatable.",
    ),
    Flag(
        name="backend-directory",
        group=Group.BACKENDS,
        metavar="DIR",
        help="Where backends written in Python are, each a folder with a model.py; others are packages with entry points.",
    ),
    *CACHE_FLAGS,
    # -- HTTP
    Flag(
        name="allow-http",
        kind=Kind.BOOL,
        group=Group.HTTP,
        default="true",
        help="Serve the KServe v2 protocol over HTTP.",
    ),
    Flag(
        name="http-address",
        group=Group.HTTP,
        default="0.0.0.0",
        metavar="ADDRESS",
        help="Where HTTP listens.",
    ),
    Flag(
        name="http-port",
        kind=Kind.INT,
        group=Group.HTTP,
        default="8000",
        metavar="PORT",
        help="On which port; 0 lets the kernel choose.",
    ),
    Flag(
        name="http-max-input-size",
        kind=Kind.INT,
        group=Group.HTTP,
        default="67108864",
        metavar="BYTES",
        help="The largest JSON part of a request, JSON tensor, raw-binary body, and body once decompressed;"
        " tensors in binary form are not limited by it.",
    ),
    Flag(
        name="http-header-forward-pattern",
        group=Group.HTTP,
        metavar="REGEX",
        help="Request headers whose name matches (anywhere, in any case) become request parameters.",
    ),
    Flag(
        name="server-timing",
        kind=Kind.BOOL,
        group=Group.HTTP,
        default="false",
        help="Tritium's own: tell each client in a Server-Timing header how long its request was queued and computed, as browsers"
        " and proxies read it.",
    ),
    Flag(
        name="http-restricted-api",
        group=Group.HTTP,
        metavar="API[,API...]:KEY=VALUE",
        repeatable=True,
        help="Answer these APIs only where the header KEY has the value VALUE: health, metadata, inference,"
        " shared-memory, model-config, model-repository, statistics, trace, logging. Repeatable.",
    ),
    *GRPC_FLAGS,
    # -- metrics
    Flag(
        name="allow-metrics",
        kind=Kind.BOOL,
        group=Group.METRICS,
        default="true",
        help="Serve Prometheus metrics at /metrics on a port of their own.",
    ),
    Flag(
        name="metrics-address",
        group=Group.METRICS,
        metavar="ADDRESS",
        help="Where metrics listen. [default: HTTP's address where HTTP is on, else 0.0.0.0]",
    ),
    Flag(
        name="metrics-port",
        kind=Kind.INT,
        group=Group.METRICS,
        default="8002",
        metavar="PORT",
        help="On which port; 0 lets the kernel choose.",
    ),
    Flag(
        name="allow-cpu-metrics",
        kind=Kind.BOOL,
        group=Group.METRICS,
        default="true",
        help="Report the machine's CPU and memory use.",
    ),
    Flag(
        name="metrics-interval-ms",
        kind=Kind.INT,
        group=Group.METRICS,
        default="2000",
        metavar="MS",
        help="How old CPU figures may become; what requests count is always current.",
    ),
    Flag(
        name="metrics-config",
        group=Group.METRICS,
        metavar="SETTING=VALUE",
        repeatable=True,
        help="counter_latencies, histogram_latencies, summary_latencies (true or false);"
        " summary_quantiles (QUANTILE:ERROR,...). Repeatable.",
    ),
    # -- logging
    Flag(
        name="log-verbose",
        kind=Kind.TEXT,
        group=Group.LOGGING,
        default="0",
        metavar="LEVEL",
        help="0: off; 1: why each request failed, and with --log-requests each stage of it; 2: more. true is 1.",
    ),
    Flag(name="log-info", kind=Kind.BOOL, group=Group.LOGGING, default="true", help="Log information."),
    Flag(name="log-warning", kind=Kind.BOOL, group=Group.LOGGING, default="true", help="Log warnings."),
    Flag(name="log-error", kind=Kind.BOOL, group=Group.LOGGING, default="true", help="Log errors."),
    Flag(
        name="log-format",
        group=Group.LOGGING,
        default="default",
        metavar="FORMAT",
        check=OneOf("invalid argument for --log-format", "default", "ISO8601", "json", "console"),
        help="default and ISO8601: Triton's lines; json: an object a line; console: for reading.",
    ),
    Flag(
        name="log-file",
        group=Group.LOGGING,
        metavar="FILE",
        help="Append to FILE. [default: stdout]",
    ),
    Flag(
        name="log-split-streams",
        kind=Kind.BOOL,
        group=Group.LOGGING,
        default="false",
        help="Tritium's own: warnings and errors go to stderr, as with Triton, and the rest to stdout.",
    ),
    Flag(
        name="log-requests",
        kind=Kind.BOOL,
        group=Group.LOGGING,
        default="false",
        help="Tritium's own: one line for every request, at its end. `tritium logs` reads them.",
    ),
)

_WITHOUT_EFFECT: Final = (
    _no_effect("http-thread-count", "one event loop serves all HTTP connections"),
    _no_effect("grpc-infer-thread-count", "one event loop serves all gRPC connections", check=grpc_threads),
    _no_effect(
        "grpc-infer-allocation-pool-size",
        "there is no pool: what a connection may hold is bounded by --grpc-connection-bytes",
    ),
    _no_effect(
        "grpc-max-response-pool-size",
        "there is no pool: what a connection may hold is bounded by --grpc-connection-bytes",
        check=positive("Error: --grpc-max-response-pool-size must be greater than 0."),
    ),
    _no_effect("buffer-manager-thread-count", "each batch is gathered by one copy, without helper threads"),
    _no_effect("pinned-memory-pool-byte-size", "there is no pinned memory pool"),
    _no_effect(
        "cuda-memory-pool-byte-size",
        "frameworks allocate device memory themselves",
        kind=Kind.TEXT,
        repeatable=True,
    ),
    _no_effect(
        "cuda-virtual-address-size",
        "frameworks allocate device memory themselves",
        kind=Kind.TEXT,
        repeatable=True,
    ),
    _no_effect(
        "cache-directory", "the caches, local and redis, are built in", kind=Kind.TEXT, repeatable=True
    ),
    _no_effect("enable-peer-access", "workers do not share device memory", kind=Kind.BOOL),
)

_REFUSED: Final = (
    _refused("allow-sagemaker", "send requests to the HTTP endpoint", kind=Kind.BOOL, harmless=_FALSE),
    _refused("sagemaker-port", "send requests to the HTTP endpoint", kind=Kind.INT),
    _refused("sagemaker-safe-port-range", "send requests to the HTTP endpoint"),
    _refused("sagemaker-thread-count", "send requests to the HTTP endpoint", kind=Kind.INT),
    _refused("allow-vertex-ai", "send requests to the HTTP endpoint", kind=Kind.BOOL, harmless=_FALSE),
    _refused("vertex-ai-port", "send requests to the HTTP endpoint", kind=Kind.INT),
    _refused("vertex-ai-thread-count", "send requests to the HTTP endpoint", kind=Kind.INT),
    _refused("vertex-ai-default-model", "send requests to the HTTP endpoint", harmless=("",)),
    _refused("reuse-http-port", "give each server a port of its own", kind=Kind.BOOL, harmless=_FALSE),
    _refused("model-load-gpu-limit", "limit what the framework allocates by its own settings"),
    _refused("allow-gpu-metrics", "read GPU figures from a device exporter", kind=Kind.BOOL, harmless=_FALSE),
    _refused("trace-config", "statistics and metrics give the durations of each phase", check=trace_config),
    _refused("trace-file", "statistics and metrics give the durations of each phase", harmless=("",)),
    _refused("trace-level", "statistics and metrics give the durations of each phase", harmless=("OFF",)),
    _refused("trace-rate", "statistics and metrics give the durations of each phase", kind=Kind.INT),
    _refused("trace-count", "statistics and metrics give the durations of each phase", kind=Kind.INT),
    _refused("trace-log-frequency", "statistics and metrics give the durations of each phase", kind=Kind.INT),
    _refused("min-supported-compute-capability", "the framework decides which devices it can use"),
    _refused("repoagent-directory", "prepare the repository before the server starts"),
    _refused(
        "allow-client-shm", "send tensors in the request, as binary data", kind=Kind.BOOL, harmless=_FALSE
    ),
)

FLAGS: Final = _HONOURED + _WITHOUT_EFFECT + _REFUSED
BY_NAME: Final = {name: flag for flag in FLAGS for name in (flag.name, *flag.aliases)}
BY_VARIABLE: Final = {flag.variable: flag for flag in FLAGS}
