"""What the operator decided about logs and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from actors.serving.durations import DEFAULT_BOUNDS
from engine.settings.forms import (
    BOOL,
    SIZE,
    Form,
    SettingsError,
    integer,
    misshapen,
    number,
    one_of,
    out_of_bound,
    text,
    to_int,
)
from engine.settings.option import Flag, Given, Group, combined

LogFormat = Literal["default", "ISO8601", "json", "console"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("default", "ISO8601", "json", "console")
"""The first two are Triton's."""

_FORMATS: Final[Form[LogFormat]] = one_of("FORMAT", *LOG_FORMATS)

_QUANTILES: Final = MappingProxyType({0.5: 0.05, 0.9: 0.01, 0.95: 0.001, 0.99: 0.001, 0.999: 0.001})


def _verbosity(word: str, name: str) -> int:
    if word.lower() in {"true", "on"}:
        return 1
    if word.lower() in {"false", "off"}:
        return 0
    level = to_int(word, name)
    if level < 0:
        raise out_of_bound(word, f"--{name} takes 0, 1 or 2")
    return level


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Which lines are logged, where, and how they look. An empty `file` is stdout.

    With `split_streams`, and without a file, warnings and errors go to stderr.
    """

    verbose: int = Group.LOGGING.option("--log-verbose=0", Form("LEVEL", _verbosity)).means(
        "0: off; 1: why each request failed, and with --log-requests each stage of it; 2: more. true is 1."
    )
    info: bool = Group.LOGGING.option("--log-info=true", BOOL).means("Log information.")
    warning: bool = Group.LOGGING.option("--log-warning=true", BOOL).means("Log warnings.")
    error: bool = Group.LOGGING.option("--log-error=true", BOOL).means("Log errors.")
    format: LogFormat = Group.LOGGING.option("--log-format=default", _FORMATS).means(
        "default and ISO8601: Triton's lines; json: an object a line; console: for reading."
    )
    file: str = Group.LOGGING.option("--log-file", text("FILE")).means("Append to FILE. [default: stdout]")
    split_streams: bool = Group.LOGGING.option("--log-split-streams=false", BOOL).means(
        "Tritium's own: warnings and errors go to stderr, as with Triton, and the rest to stdout."
    )
    requests: bool = Group.LOGGING.option("--log-requests=false", BOOL).means(
        "Tritium's own: one line for every request, at its end. `tritium logs` reads them."
    )


def _pairs(given: Given) -> Mapping[str, str]:
    """Return the words of `--metrics-config`. Raises SettingsError for what is none of its settings."""
    values: dict[str, str] = {}
    for pair in given.all("metrics-config"):
        name, equals, value = pair.partition("=")
        if not equals or not name or "," in name:
            raise misshapen("metrics-config", "<setting>=<value>", pair)
        if name not in _SETTINGS:
            raise SettingsError(
                f"unknown --metrics-config setting '{name}'", hint="settings are " + ", ".join(_SETTINGS)
            )
        values[name] = value
    return values


_SETTINGS: Final = ("counter_latencies", "histogram_latencies", "summary_latencies", "summary_quantiles")


def _literal(name: str, default: str, *flags: Flag) -> bool:
    """Declare a setting of `--metrics-config` that is true or false."""

    def read(given: Given) -> bool:
        value = _pairs(given).get(name, default)
        if value not in {"true", "false"}:
            raise SettingsError(f"--metrics-config {name} takes true or false. Got {value}")
        return value == "true"

    return combined(read, *flags)


def _quantiles(given: Given) -> Mapping[float, float]:
    """Read `quantile:error,...`; a bad pair is skipped with a warning, as Triton does."""
    pairs = _pairs(given).get("summary_quantiles")
    if pairs is None:
        return _QUANTILES
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
            given.warnings.append(
                f"--metrics-config summary_quantiles: skipped '{pair}', which is not quantile:error between 0 and 1"
            )
    return MappingProxyType(quantiles)


MOST_BUCKETS: Final = 64
"""Of durations. Each model has as many series for each phase."""

_SECONDS: Final = number()


def _buckets(word: str, name: str) -> Sequence[float]:
    """Read upper bounds in seconds, such as `0.001,0.01,0.1`; `off` is none. Raises SettingsError."""
    if word.lower() == "off":
        return ()
    bounds = [_SECONDS.read(each, name) for each in word.split(",")]
    if bounds != sorted(set(bounds)) or bounds[0] <= 0 or len(bounds) > MOST_BUCKETS:
        raise SettingsError(
            f"invalid argument for --{name}",
            hint=f"--{name} was given '{word}'; it takes at most {MOST_BUCKETS} upper bounds in seconds that"
            " ascend, such as 0.001,0.01,0.1, or off",
        )
    return tuple(bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What metrics show (contract, observability.md section 1.4). `interval` is seconds."""

    gpu: bool = Group.METRICS.option("--allow-gpu-metrics=true", BOOL).means(
        "Report the GPUs' use, memory, power and energy. Needs the extra `gpu` and NVIDIA's driver; without"
        " one, the table at the start says why there are none. Off where TRITON_SERVER_CPU_ONLY is set."
    )
    cpu_only: bool = combined(lambda given: "TRITON_SERVER_CPU_ONLY" in given.environ)

    cpu: bool = Group.METRICS.option("--allow-cpu-metrics=true", BOOL).means(
        "Report the machine's CPU and memory use."
    )
    interval: float = Group.METRICS.option(
        "--metrics-interval-ms=2000", integer("MS", least=1).into(lambda ms: ms / 1000)
    ).means("How old figures of the CPU and GPUs may become; what requests count is always current.")
    duration_buckets: Sequence[float] = Group.METRICS.option(
        "--request-duration-buckets=" + ",".join(f"{bound:g}" for bound in DEFAULT_BOUNDS),
        Form("SECONDS,...", _buckets, _buckets),
    ).means(
        "Tritium's own: upper bounds of the histogram tritium_request_duration_seconds; off: do not keep it."
    )
    counter_latencies: bool = _literal(
        "counter_latencies",
        "true",
        Group.METRICS.flag(
            "--metrics-config",
            text("SETTING=VALUE"),
            "counter_latencies, histogram_latencies, summary_latencies (true or false); summary_quantiles"
            " (QUANTILE:ERROR,...). Repeatable.",
            repeatable=True,
        ),
    )
    histogram_latencies: bool = _literal("histogram_latencies", "false")
    summary_latencies: bool = _literal("summary_latencies", "false")
    summary_quantiles: Mapping[float, float] = combined(_quantiles)  # quantile to error


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """How much of the stream of events is kept, in how many `bytes`, and how many clients may follow it."""

    kept: int = Group.LOGGING.option("--events-kept=4096", integer("N", least=1)).means(
        "Tritium's own: how many events GET /v2/tritium/events keeps for those that come later or come back."
    )
    bytes: int = Group.LOGGING.option("--events-memory=4MiB", SIZE).means(
        "Tritium's own: the memory that they may take; the oldest go first."
    )
    followers: int = Group.LOGGING.option("--events-followers=16", integer("N")).means(
        "Tritium's own: how many clients may follow at once. 0: none, the endpoint answers 503."
    )
