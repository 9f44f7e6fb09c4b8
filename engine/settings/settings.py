"""What the operator decided, read once from the command line or the environment and never edited.

`Settings.from_argv` takes tritonserver's flags. `Settings.from_environ` takes the same ones as variables, for
servers that are started by an ASGI server and have no command line of their own. `engine.settings.flags` is the
table of both. Each part of the server is given the few values it uses, not this object.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, cast

from actors.serving.policy.holding import StartAfter
from engine.settings.cache import CacheSettings, read_cache
from engine.settings.flags import BY_NAME
from engine.settings.instances import HostPolicy, read_host_policies, read_resources
from engine.settings.listening import (
    ConnectionSettings,
    GrpcSettings,
    RestrictedHeader,
    host_port,
    read_connections,
    read_grpc,
    read_pattern,
    read_restrictions,
    refuse_clashes,
)
from engine.settings.uris import is_remote, without_query
from engine.settings.words import (
    Given,
    read_memory_limit,
    read_size,
    scan_argv,
    scan_environ,
    to_int,
    warn_of_environ,
)
from engine.settings.words import SettingsError as SettingsError

LogFormat = Literal["default", "ISO8601", "json", "console"]
ControlMode = Literal["none", "poll", "explicit"]
WorkerEnvironment = Literal["inherit", "minimal"]

EVERY_MODEL: Final = "*"
"""The name that stands for all of them in `Settings.load_models`; always the only one."""

_DEFAULT_QUANTILES: Final = MappingProxyType({0.5: 0.05, 0.9: 0.01, 0.95: 0.001, 0.99: 0.001, 0.999: 0.001})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Which lines are logged, where, and how they look. An empty `file` is stdout.

    With `split_streams`, and without a file, warnings and errors go to stderr.
    """

    format: LogFormat = "default"
    file: str = ""
    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    requests: bool = False  # a canonical line for every request
    split_streams: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What metrics show (contract, observability.md section 1.4). `interval` is seconds."""

    cpu: bool = True
    interval: float = 2.0
    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    # Quantile → error.
    summary_quantiles: Mapping[float, float] = field(default_factory=lambda: _DEFAULT_QUANTILES)


def default_cache_directory(environ: Mapping[str, str]) -> str:
    """Return where remote models are kept by default (XDG Base Directory Specification)."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # unset, or one that the specification has us ignore
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(base, "tritium")


def default_environment_cache(environ: Mapping[str, str]) -> str:
    """Return where environments of Python models are kept unless the operator says otherwise."""
    return os.path.join(default_cache_directory(environ), "environments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the operator can set. Durations are seconds; port 0 lets the kernel choose."""

    model_repositories: tuple[str, ...]  # directories, and s3://, gs:// and as:// URIs
    control_mode: ControlMode = "none"
    poll_interval: float = 0.0  # between two looks at the repositories; 0 unless in poll mode
    load_models: tuple[str, ...] = ()  # at start-up, in explicit mode: names, or EVERY_MODEL
    namespacing: bool = False
    resident_memory_limit: str = "80%"  # a size, or a share of what the server may use
    model_cache_directory: str = field(default_factory=lambda: default_cache_directory(os.environ))
    model_cache_size: int = 50 * 1024**3  # bytes
    environment_cache: str = field(default_factory=lambda: default_environment_cache(os.environ))
    model_config_name: str = ""
    disable_auto_complete_config: bool = False
    load_thread_count: int = 4
    load_retry_count: int = 0
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # "": for every backend
    backend_directory: Path | None = None  # of backends written in Python
    rate_limit: bool = False  # by execution count
    # By name and device; None is every device. What is not in it is as much as any one instance needs.
    rate_limit_resources: Mapping[tuple[str, int | None], int] = field(default_factory=dict)
    host_policies: Mapping[str, HostPolicy] = field(default_factory=dict)
    spare_workers: int = 4  # processes that wait for a model, at most
    default_execution_timeout: float = 0.0  # of models that have none of their own; 0: none
    unready_after_hang: float = 300.0  # of every instance of an essential model; 0: never
    worker_environment: WorkerEnvironment = "inherit"

    cache: CacheSettings | None = None  # of responses
    start_after: StartAfter = field(default_factory=StartAfter)  # of a model's first batch

    id: str = "triton"
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: float = 30.0
    drain_delay: float = 0.0  # from the signal to the end of accepting

    connections: ConnectionSettings = field(default_factory=ConnectionSettings)  # of each port

    allow_http: bool = True
    http_address: str = "0.0.0.0"  # Triton's default: a server in a container is meant to be reached
    http_port: int = 8000
    http_max_input_size: int = 64 * 1024 * 1024
    server_timing: bool = False
    http_header_forward_pattern: str = ""
    http_restricted_api: Mapping[str, RestrictedHeader] = field(default_factory=dict)  # API → header

    allow_grpc: bool = True
    grpc: GrpcSettings = field(default_factory=GrpcSettings)

    allow_metrics: bool = True
    metrics_address: str = "0.0.0.0"
    metrics_port: int = 8002
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    log: LogSettings = field(default_factory=LogSettings)

    warnings: tuple[str, ...] = ()  # what was accepted and changes nothing, to be logged at start-up

    @classmethod
    def from_argv(cls, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
        """Read tritonserver's flags; `environ` supplies what they leave out. Raises SettingsError."""
        environ = {} if environ is None else environ
        given = scan_environ(environ)
        given.update(scan_argv(argv))
        return _settings(Given(given), environ)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read `TRITIUM_*` variables, one for each flag. Raises SettingsError.

        An unknown variable is a warning.
        """
        return _settings(Given(scan_environ(environ)), environ)

    def settings_for(self, backend: str) -> dict[str, str]:
        """Return what `--backend-config` says for one backend: its own settings over those for all."""
        return {**self.backend_settings.get("", {}), **self.backend_settings.get(backend, {})}

    def options(self) -> list[tuple[str, str]]:
        """Return (name, value) of what an operator wants to see at start-up."""
        shown = [
            ("model_repository_path", ", ".join(map(without_query, self.model_repositories))),
            ("model_control_mode", self.control_mode),
            *self._control_options(),
            ("model_namespacing", str(int(self.namespacing))),
            ("resident_memory_limit", self.resident_memory_limit),
            ("strict_model_config", str(int(self.disable_auto_complete_config))),
            ("strict_readiness", str(int(self.strict_readiness))),
            ("exit_on_error", str(int(self.exit_on_error))),
            ("exit_timeout", f"{self.exit_timeout:g}"),
            *([("drain_delay", f"{self.drain_delay:g}")] if self.drain_delay else []),
            *(
                [("default_execution_timeout", f"{self.default_execution_timeout:g}")]
                if self.default_execution_timeout
                else []
            ),
            ("http", host_port(self.http_address, self.http_port) if self.allow_http else "off"),
            *(self.grpc.options() if self.allow_grpc else [("grpc", "off")]),
            ("metrics", host_port(self.metrics_address, self.metrics_port) if self.allow_metrics else "off"),
            ("log_format", self.log.format),
            *(self.cache.options() if self.cache is not None else []),
        ]
        for backend, values in self.backend_settings.items():
            name = f"backend_config[{backend}]" if backend else "backend_config"
            shown.append((name, ", ".join(f"{key}={value}" for key, value in values.items())))
        return [("server_id", self.id), *shown]

    def _control_options(self) -> list[tuple[str, str]]:
        """Return those that count only in one control mode, or only for remote repositories."""
        shown = []
        if self.control_mode == "poll":
            shown.append(("repository_poll_secs", f"{self.poll_interval:g}"))
        if self.control_mode == "explicit":
            shown.append(("startup_models", ", ".join(self.load_models)))
        if any(map(is_remote, self.model_repositories)):
            shown.append(("model_cache_directory", self.model_cache_directory))
            shown.append(("model_cache_size", str(self.model_cache_size)))
        return shown


def _settings(given: Given, environ: Mapping[str, str]) -> Settings:
    control_mode = cast(ControlMode, given.text("model-control-mode", "none"))
    max_input_size = given.integer("http-max-input-size", 64 * 1024 * 1024, least=-(2**63), most=2**63 - 1)
    if max_input_size <= 0:
        raise SettingsError("Error: --http-max-input-size must be greater than 0.")
    allow_http = given.boolean("allow-http", True)
    http_address = given.text("http-address", "0.0.0.0")
    settings = Settings(
        model_repositories=_repositories(given.all("model-repository")),
        control_mode=control_mode,
        poll_interval=_poll_interval(given, control_mode),
        load_models=_load_models(given, control_mode),
        namespacing=given.boolean("model-namespacing", False),
        resident_memory_limit=_memory_limit(given.text("resident-memory-limit", "80%")),
        model_cache_directory=given.text("model-cache-directory", "") or default_cache_directory(environ),
        model_cache_size=read_size("model-cache-size", given.text("model-cache-size", "50GiB")),
        environment_cache=given.text("environment-cache", "") or default_environment_cache(environ),
        model_config_name=_config_name(given),
        disable_auto_complete_config=given.has("disable-auto-complete-config")
        or given.boolean("strict-model-config", False),
        load_thread_count=given.integer("model-load-thread-count", 4, least=1),
        load_retry_count=given.integer("model-load-retry-count", 0),
        backend_settings=_backend_settings(given.all("backend-config")),
        backend_directory=_backend_directory(given.text("backend-directory", "")),
        rate_limit=given.text("rate-limit", "off") != "off",
        rate_limit_resources=_resources(given),
        host_policies=read_host_policies(given.all("host-policy")),
        spare_workers=given.integer("spare-workers", 4, most=1024),
        default_execution_timeout=given.number("default-execution-timeout", 0.0),
        unready_after_hang=given.number("unready-after-hang-secs", 300.0),
        worker_environment=cast(WorkerEnvironment, given.text("worker-environment", "inherit")),
        cache=read_cache(given, environ),
        start_after=_start_after(given, environ),
        id=given.text("id", "triton"),
        exit_on_error=given.boolean("exit-on-error", True),
        strict_readiness=given.boolean("strict-readiness", True),
        exit_timeout=float(given.integer("exit-timeout-secs", 30)),
        drain_delay=given.number("drain-delay-secs", 0.0),
        connections=read_connections(given),
        allow_http=allow_http,
        http_address=http_address,
        http_port=given.integer("http-port", 8000, most=65535),
        http_max_input_size=max_input_size,
        server_timing=given.boolean("server-timing", False),
        http_header_forward_pattern=read_pattern(given, "http-header-forward-pattern"),
        http_restricted_api=read_restrictions(given, "http-restricted-api", kind="api"),
        allow_grpc=given.boolean("allow-grpc", True),
        grpc=read_grpc(given),
        allow_metrics=given.boolean("allow-metrics", True),
        metrics_address=given.text("metrics-address", http_address if allow_http else "0.0.0.0"),
        metrics_port=given.integer("metrics-port", 8002, most=65535),
        metrics=_metrics(given),
        log=_log(given),
        warnings=(*warn_of_environ(environ), *given.warnings),
    )
    refuse_clashes(_listeners(settings))
    return settings


def _listeners(settings: Settings) -> list[tuple[str, str, int]]:
    """Return what each listener is for, in Triton's words, and where it is."""
    places = [
        (settings.allow_http, "HTTP requests", settings.http_address, settings.http_port),
        (settings.allow_grpc, "GRPC requests", settings.grpc.address, settings.grpc.port),
        (settings.allow_metrics, "metrics requests", settings.metrics_address, settings.metrics_port),
    ]
    return [(what, address, port) for allowed, what, address, port in places if allowed]


def _repositories(paths: Sequence[str]) -> tuple[str, ...]:
    if not paths:
        raise SettingsError("--model-repository must be specified", hint="--model-repository=DIR names it")
    for path in paths:
        if not path:
            raise SettingsError("--model-repository must not be empty")
    return tuple(paths)


def _backend_directory(text: str) -> Path | None:
    if not text:
        return None
    try:
        os.listdir(text)
    except OSError as error:
        raise SettingsError(
            f"--backend-directory '{text}' can't be listed: {error.strerror}",
            hint="it holds a folder with a model.py for each backend written in Python",
        ) from error
    return Path(text)


def _poll_interval(given: Given, mode: ControlMode) -> float:
    """Return it, or 0 if nothing is polled (contract, repository.md section 10)."""
    interval = given.number("repository-poll-secs", 15.0)
    if mode != "poll":
        if interval and given.has("repository-poll-secs"):
            given.warnings.append(
                "--repository-poll-secs has no effect: only --model-control-mode=poll looks for changes"
            )
        return 0.0
    if not interval:
        raise SettingsError(
            "--repository-poll-secs must be greater than 0 in poll mode. Got 0",
            hint="--model-control-mode=none loads models once and never looks for changes",
        )
    return interval


def _load_models(given: Given, mode: ControlMode) -> tuple[str, ...]:
    names = given.all("load-model")
    # Texts and order: contract, repository.md section 3.
    if names and mode != "explicit":
        raise SettingsError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    once = tuple(dict.fromkeys(names))
    if EVERY_MODEL in once and len(once) > 1:
        raise SettingsError(
            "error: creating server: Invalid argument - "
            "Wildcard model name '*' must be the ONLY startup model if specified at all."
        )
    if "" in once:
        raise SettingsError("--load-model must not be empty", hint="--load-model='*' loads every model")
    for name in once:
        # A name may have them, so it is for the repositories to say that there is no such model.
        if "," in name or ":" in name:
            given.warnings.append(
                f"--load-model names one model, and got '{name}': for several, repeat it, or separate them by ';' in"
                " TRITIUM_LOAD_MODEL"
            )
    return once


def _config_name(given: Given) -> str:
    if not given.has("model-config-name"):
        return ""
    name = given.text("model-config-name", "")
    if not name:
        raise SettingsError("Error: empty argument for --model-config-name")
    if "/" in name:
        raise SettingsError(
            f"--model-config-name must be a name, not a path. Got {name}",
            hint="--model-config-name=NAME reads configs/NAME.pbtxt of each model",
        )
    return name


def _memory_limit(text: str) -> str:
    """Check it now; what a share comes to is known where the memory is."""
    read_memory_limit(text, total=1024**4)
    return text.strip()


def _resources(given: Given) -> Mapping[tuple[str, int | None], int]:
    resources = read_resources(given.all("rate-limit-resource"))
    if resources and given.text("rate-limit", "off") == "off":
        given.warnings.append(
            "--rate-limit-resource has no effect: only --rate-limit=execution_count limits executions"
        )
    return resources


def _start_after(given: Given, environ: Mapping[str, str]) -> StartAfter:
    """Return how many requests a model's first batch waits for (contract, scheduling.md section 12)."""
    after = StartAfter(_count(environ, _QUEUED), _count(environ, _BACKLOGGED))
    if after.queued:
        requests = f"{after.queued} requests wait"
        if after.backlogged:
            requests += f", and for sequences {after.backlogged} more in the backlog"
        given.warnings.append(
            f"{_QUEUED} holds back the first batch of each model with dynamic or sequence batching until"
            f" {requests}. It is meant for tests; unset it otherwise"
        )
    elif after.backlogged:
        given.warnings.append(f"{_BACKLOGGED} has no effect without {_QUEUED}")
    return after


# What Triton's tests tell a server by environment variables.
_QUEUED: Final = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOGGED: Final = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise SettingsError(
            f"{name} is '{text}', which is no number of requests", hint="such as 12; 0 holds nothing back"
        )
    return int(text)


def _backend_settings(pairs: Sequence[str]) -> dict[str, Mapping[str, str]]:
    settings: dict[str, dict[str, str]] = {}
    for pair in pairs:
        head, equals, value = pair.partition("=")
        backend, comma, setting = head.rpartition(",")
        if not equals or not setting or (comma and not backend):
            raise SettingsError(
                f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {pair}"
            )
        settings.setdefault(backend, {})[setting] = value
    return {backend: MappingProxyType(values) for backend, values in settings.items()}


def _metrics(given: Given) -> MetricsSettings:
    values: dict[str, str] = {}
    for pair in given.all("metrics-config"):
        name, equals, value = pair.partition("=")
        if not equals or not name or "," in name:
            raise SettingsError(f"--metrics-config option format is '<setting>=<value>'. Got {pair}")
        if name not in _METRICS_SETTINGS:
            raise SettingsError(
                f"unknown --metrics-config setting '{name}'",
                hint="settings are " + ", ".join(_METRICS_SETTINGS),
            )
        values[name] = value
    quantiles = _DEFAULT_QUANTILES
    if "summary_quantiles" in values:
        quantiles = MappingProxyType(_quantiles(values["summary_quantiles"], given.warnings))
    return MetricsSettings(
        cpu=given.boolean("allow-cpu-metrics", True),
        interval=given.integer("metrics-interval-ms", 2000, least=1) / 1000,
        counter_latencies=_literal(values, "counter_latencies", default=True),
        histogram_latencies=_literal(values, "histogram_latencies", default=False),
        summary_latencies=_literal(values, "summary_latencies", default=False),
        summary_quantiles=quantiles,
    )


_METRICS_SETTINGS: Final = (
    "counter_latencies",
    "histogram_latencies",
    "summary_latencies",
    "summary_quantiles",
)


def _literal(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = values.get(name)
    if value is None:
        return default
    if value not in {"true", "false"}:
        raise SettingsError(f"--metrics-config {name} takes true or false. Got {value}")
    return value == "true"


def _quantiles(pairs: str, warnings: list[str]) -> dict[float, float]:
    """Read `quantile:error,...`; a bad pair is skipped with a warning, as Triton does."""
    quantiles: dict[float, float] = {}
    for pair in pairs.split(","):
        quantile, _, error = pair.partition(":")
        try:
            key, tolerance = float(quantile), float(error)
        except ValueError:
            key = tolerance = -1.0
        if 0 < key < 1 and 0 < tolerance < 1:
            quantiles[key] = tolerance
        else:
            warnings.append(
                f"--metrics-config summary_quantiles: skipped '{pair}', which is not quantile:error between 0 and 1"
            )
    return quantiles


def _log(given: Given) -> LogSettings:
    return LogSettings(
        format=cast("LogFormat", given.text("log-format", "default")),
        file=given.text("log-file", ""),
        verbose=_verbosity(given.text("log-verbose", "0")),
        info=given.boolean("log-info", True),
        warning=given.boolean("log-warning", True),
        error=given.boolean("log-error", True),
        requests=given.boolean("log-requests", False),
        split_streams=given.boolean("log-split-streams", False),
    )


def _verbosity(word: str) -> int:
    if word.lower() in {"true", "on"}:
        return 1
    if word.lower() in {"false", "off"}:
        return 0
    level = to_int(word, BY_NAME["log-verbose"])
    if level < 0:
        raise SettingsError(
            f"Provided option value is out of bound. Got {word}", hint="--log-verbose takes 0, 1 or 2"
        )
    return level
