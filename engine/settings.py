"""What the operator decided, read once from the command line or the environment and never edited.

`Settings.from_argv` takes tritonserver's flags, `Settings.from_environ` the same ones as variables, for servers that are
started by an ASGI server and have no command line of their own. `engine.cli.flags` is the table of both. Each part of the
server is given the few values it uses, not this object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, cast

from engine.cli.flags import BY_NAME, BY_VARIABLE, Flag, Kind

LogFormat = Literal["default", "ISO8601", "json", "console"]

RESTRICTABLE_APIS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)

_TRUE: Final = frozenset({"true", "on", "1"})
_FALSE: Final = frozenset({"false", "off", "0"})
_INT_MAX: Final = 2**31 - 1  # Triton reads these into C ints
_DEFAULT_QUANTILES: Final = MappingProxyType({0.5: 0.05, 0.9: 0.01, 0.95: 0.001, 0.99: 0.001, 0.999: 0.001})


class SettingsError(Exception):
    """The flags or variables make no sense. `hint` says what would have, where the message itself may not."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Which lines are logged, where, and how they look. An empty `file` is the console."""

    format: LogFormat = "default"
    file: str = ""
    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    requests: bool = False  # a canonical line for every request


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What metrics show (contract, observability.md section 1.4). `interval` is seconds."""

    cpu: bool = True
    interval: float = 2.0
    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    summary_quantiles: Mapping[float, float] = field(
        default_factory=lambda: _DEFAULT_QUANTILES
    )  # quantile → error


@dataclass(frozen=True, slots=True)
class RestrictedHeader:
    """The header that a restricted API asks for, and the value it must have."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the operator can set. Durations are seconds; port 0 lets the kernel choose."""

    model_repositories: tuple[str, ...]
    model_config_name: str = ""
    disable_auto_complete_config: bool = False
    load_thread_count: int = 4
    load_retry_count: int = 0
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # "": for every backend

    id: str = "triton"
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: float = 30.0

    allow_http: bool = True
    http_address: str = "0.0.0.0"  # Triton's default: a server in a container is meant to be reached
    http_port: int = 8000
    http_max_input_size: int = 64 * 1024 * 1024
    http_header_forward_pattern: str = ""
    http_restricted_api: Mapping[str, RestrictedHeader] = field(default_factory=dict)  # API → header

    allow_metrics: bool = True
    metrics_address: str = "0.0.0.0"
    metrics_port: int = 8002
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    log: LogSettings = field(default_factory=LogSettings)

    warnings: tuple[str, ...] = ()  # what was accepted and changes nothing, to be logged at start-up

    @classmethod
    def from_argv(cls, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
        """Read tritonserver's flags; `environ` supplies what they leave out. Raises SettingsError."""
        given = {} if environ is None else _scan_environ(environ)
        given.update(_scan_argv(argv))
        return _settings(_Given(given))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read `TRITIUM_*` variables, one for each flag. Raises SettingsError, for an unknown one too."""
        return _settings(_Given(_scan_environ(environ)))

    def settings_for(self, backend: str) -> dict[str, str]:
        """Return what `--backend-config` says for one backend: its own settings over those for all."""
        return {**self.backend_settings.get("", {}), **self.backend_settings.get(backend, {})}

    def options(self) -> list[tuple[str, str]]:
        """Return (name, value) of what an operator wants to see at start-up."""
        shown = [
            ("model_repository_path", ", ".join(self.model_repositories)),
            ("model_control_mode", "none"),
            ("strict_model_config", str(int(self.disable_auto_complete_config))),
            ("strict_readiness", str(int(self.strict_readiness))),
            ("exit_on_error", str(int(self.exit_on_error))),
            ("exit_timeout", f"{self.exit_timeout:g}"),
            ("http", f"{self.http_address}:{self.http_port}" if self.allow_http else "off"),
            ("metrics", f"{self.metrics_address}:{self.metrics_port}" if self.allow_metrics else "off"),
            ("log_format", self.log.format),
        ]
        for backend, values in self.backend_settings.items():
            name = f"backend_config[{backend}]" if backend else "backend_config"
            shown.append((name, ", ".join(f"{key}={value}" for key, value in values.items())))
        return [("server_id", self.id), *shown]


# -- from words to values by flag


def _scan_argv(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the values given for each flag, by its own name, in order."""
    given: dict[str, list[str]] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("--") or word == "--":
            raise SettingsError(f"Unexpected argument: {word}")
        name, equals, value = word[2:].partition("=")
        flag = BY_NAME.get(name)
        if flag is None:
            raise SettingsError(f"unrecognized option '--{name}'", hint=_nearest(name, BY_NAME, "--"))
        if flag.kind is Kind.SWITCH:
            if equals:
                raise SettingsError(f"option '--{name}' doesn't allow an argument")
            value = "true"
        elif not equals:
            following = next(words, None)
            if following is None:
                raise SettingsError(f"option '--{name}' requires an argument")
            value = following
        given.setdefault(flag.name, []).append(value)
    return given


def _scan_environ(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the values given for each flag; a variable set to nothing counts as unset."""
    given: dict[str, list[str]] = {}
    for variable, value in environ.items():
        if not variable.startswith("TRITIUM_"):
            continue
        flag = BY_VARIABLE.get(variable)
        if flag is None:
            raise SettingsError(
                f"unknown environment variable {variable}", hint=_nearest(variable, BY_VARIABLE, "")
            )
        if not value:
            continue
        if flag.kind is Kind.SWITCH and not _to_bool(value, flag):
            continue
        given[flag.name] = _split(flag, value)
    return given


def _split(flag: Flag, value: str) -> list[str]:
    # A cloud URI is one value, whatever colons it holds.
    if not flag.repeatable or (flag.separator == ":" and "://" in value):
        return [value]
    separator = os.pathsep if flag.separator == ":" else flag.separator
    return [part for part in value.split(separator) if part]


def _nearest(name: str, known: Mapping[str, Flag], prefix: str) -> str:
    from difflib import get_close_matches  # only a mistake pays for it

    matches = get_close_matches(name, known, n=1)
    return f"did you mean {prefix}{matches[0]}?" if matches else ""


# -- from values by flag to settings


class _Given:
    """Values by flag name, checked against what is refused, read as types."""

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self._given = given
        self.warnings: list[str] = []
        if "cache-config" in given and "response-cache-byte-size" in given:
            raise SettingsError(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided."
                " Please provide one or the other."
            )
        for name, values in given.items():
            self._check(BY_NAME[name], values)

    def _check(self, flag: Flag, values: Sequence[str]) -> None:
        for value in values:
            complaint = flag.check(value) if flag.check is not None else ""
            if complaint:
                raise SettingsError(complaint, hint=f"--{flag.name} was given '{value}'")
            if flag.kind is Kind.BOOL:
                _to_bool(value, flag)
            elif flag.kind is Kind.INT:
                _to_int(value, flag)
            if flag.instead and value.lower() not in {harmless.lower() for harmless in flag.harmless}:
                raise SettingsError(
                    f"--{flag.name} is not supported by this version of Tritium: {flag.instead}"
                )
        if flag.no_effect:
            self.warnings.append(f"--{flag.name} has no effect: {flag.no_effect}")

    def has(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str, default: str) -> str:
        return self._given[name][-1] if name in self._given else default

    def all(self, name: str) -> Sequence[str]:
        return self._given.get(name, ())

    def boolean(self, name: str, default: bool) -> bool:  # a default, beside the others'
        return _to_bool(self._given[name][-1], BY_NAME[name]) if name in self._given else default

    def integer(self, name: str, default: int, *, least: int = 0, most: int = _INT_MAX) -> int:
        if name not in self._given:
            return default
        word = self._given[name][-1]
        value = _to_int(word, BY_NAME[name])
        if not least <= value <= most:
            raise SettingsError(
                f"Provided option value is out of bound. Got {word}",
                hint=f"--{name} takes {least} to {most}",
            )
        return value


def _to_bool(word: str, flag: Flag) -> bool:
    if word.lower() in _TRUE:
        return True
    if word.lower() in _FALSE:
        return False
    raise SettingsError(
        f"invalid value for bool option: {word}", hint=f"--{flag.name} takes true, on or 1; false, off or 0"
    )


def _to_int(word: str, flag: Flag) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", word):
        raise SettingsError(f"Invalid option value. Got {word}", hint=f"--{flag.name} takes a whole number")
    # A C int, as in Triton; the length is bounded before `int` sees it.
    value = int(word) if len(word) < 20 else _INT_MAX + 1
    if not -_INT_MAX - 1 <= value <= _INT_MAX and flag.name not in _WIDE:
        raise SettingsError(
            f"Provided option value is out of bound. Got {word}",
            hint=f"--{flag.name} takes at most {_INT_MAX}",
        )
    return value


_WIDE: Final = frozenset(
    {"http-max-input-size", "pinned-memory-pool-byte-size", "response-cache-byte-size"}
)  # byte counts: 64 bits


def _settings(given: _Given) -> Settings:
    if given.text("model-control-mode", "none") != "none":
        mode = given.text("model-control-mode", "none")
        raise SettingsError(
            f"--model-control-mode={mode} is not supported by this version of Tritium:"
            " models load at start-up, use --model-control-mode=none"
        )
    max_input_size = given.integer("http-max-input-size", 64 * 1024 * 1024, least=-(2**63), most=2**63 - 1)
    if max_input_size <= 0:
        raise SettingsError("Error: --http-max-input-size must be greater than 0.")
    allow_http = given.boolean("allow-http", True)
    http_address = given.text("http-address", "0.0.0.0")
    settings = Settings(
        model_repositories=_repositories(given.all("model-repository")),
        model_config_name=given.text("model-config-name", ""),
        disable_auto_complete_config=given.has("disable-auto-complete-config")
        or given.boolean("strict-model-config", False),
        load_thread_count=given.integer("model-load-thread-count", 4, least=1),
        load_retry_count=given.integer("model-load-retry-count", 0),
        backend_settings=_backend_settings(given.all("backend-config")),
        id=given.text("id", "triton"),
        exit_on_error=given.boolean("exit-on-error", True),
        strict_readiness=given.boolean("strict-readiness", True),
        exit_timeout=float(given.integer("exit-timeout-secs", 30)),
        allow_http=allow_http,
        http_address=http_address,
        http_port=given.integer("http-port", 8000, most=65535),
        http_max_input_size=max_input_size,
        http_header_forward_pattern=_pattern(given.text("http-header-forward-pattern", "")),
        http_restricted_api=_restricted_apis(given.all("http-restricted-api")),
        allow_metrics=given.boolean("allow-metrics", True),
        metrics_address=given.text("metrics-address", http_address if allow_http else "0.0.0.0"),
        metrics_port=given.integer("metrics-port", 8002, most=65535),
        metrics=_metrics(given),
        log=_log(given),
        warnings=tuple(given.warnings),
    )
    _refuse_clashes(settings, given)
    return settings


def _refuse_clashes(settings: Settings, given: _Given) -> None:
    """Two listeners on one port are a mistake even where one of them is gRPC, which binds nothing yet."""
    listeners = []
    if settings.allow_http:
        listeners.append(("HTTP requests", settings.http_address, settings.http_port))
    if given.boolean("allow-grpc", True) and given.has("grpc-port"):
        address = given.text("grpc-address", "0.0.0.0")
        listeners.append(("GRPC requests", address, given.integer("grpc-port", 8001, most=65535)))
    if settings.allow_metrics:
        listeners.append(("metrics requests", settings.metrics_address, settings.metrics_port))
    for index, (what, address, port) in enumerate(listeners):
        for other, other_address, other_port in listeners[index + 1 :]:
            if port and (address, port) == (other_address, other_port):
                raise SettingsError(
                    f"The server cannot listen to {what} and {other} at the same address and port {address}:{port}"
                )


def _repositories(paths: Sequence[str]) -> tuple[str, ...]:
    if not paths:
        raise SettingsError("--model-repository must be specified", hint="--model-repository=DIR names it")
    for path in paths:
        if not path:
            raise SettingsError("--model-repository must not be empty")
        if re.match(r"(s3|gs|as)://", path):
            raise SettingsError(
                f"--model-repository={path} is not supported by this version of Tritium:"
                " copy the repository to a local directory and name that"
            )
    return tuple(paths)


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


def _pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise SettingsError(
            f"--http-header-forward-pattern is not a regular expression. Got {pattern}: {error}"
        ) from None
    return pattern


def _restricted_apis(groups: Sequence[str]) -> dict[str, RestrictedHeader]:
    restricted: dict[str, RestrictedHeader] = {}
    for group in groups:
        names, colon, header = group.partition(":")
        key, equals, value = header.partition("=")
        if not colon or not equals or not key:
            raise SettingsError(
                f"--http-restricted-api option format is '<API>[,<API>...]:<key>=<value>'. Got {group}"
            )
        for name in names.split(","):
            if name not in RESTRICTABLE_APIS:
                raise SettingsError(
                    f"unknown restricted api '{name}'", hint="APIs are " + ", ".join(RESTRICTABLE_APIS)
                )
            if name in restricted:
                raise SettingsError(f"restricted api '{name}' can not be specified in multiple config groups")
            restricted[name] = RestrictedHeader(key, value)
    return restricted


def _metrics(given: _Given) -> MetricsSettings:
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


def _log(given: _Given) -> LogSettings:
    return LogSettings(
        format=cast("LogFormat", given.text("log-format", "default")),
        file=given.text("log-file", ""),
        verbose=_verbosity(given.text("log-verbose", "0")),
        info=given.boolean("log-info", True),
        warning=given.boolean("log-warning", True),
        error=given.boolean("log-error", True),
        requests=given.boolean("log-requests", False),
    )


def _verbosity(word: str) -> int:
    if word.lower() in {"true", "on"}:
        return 1
    if word.lower() in {"false", "off"}:
        return 0
    level = _to_int(word, BY_NAME["log-verbose"])
    if level < 0:
        raise SettingsError(
            f"Provided option value is out of bound. Got {word}", hint="--log-verbose takes 0, 1 or 2"
        )
    return level
