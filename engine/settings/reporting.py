"""What the operator decided about logs, metrics and traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from actors.serving.durations import DEFAULT_BOUNDS
from actors.values.tracing.settings import (
    HIGHEST_COUNT,
    HIGHEST_RATE,
    LEVELS,
    OFF,
    OPENTELEMETRY,
    TENSORS,
    TIMESTAMPS,
    TRITON,
    TraceSetting,
)
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
    shaped,
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
    progress: bool = Group.LOGGING.option("--log-progress=true", BOOL).means(
        "Tritium's own: on a terminal, show models as they load, then a summary, in place of the log's lines about"
        " that. It has no effect on JSON, on a file and with --log-split-streams."
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


# Traces (contract, observability.md section 3.1)

_TRACE_CONFIG: Final = "trace-config"
_EVERYWHERE: Final = ("mode", "level", "rate", "count")
_IN_TRITON: Final = ("file", "log-frequency")
_IN_OPENTELEMETRY: Final = (
    "url",
    "resource",
    "bsp_max_queue_size",
    "bsp_schedule_delay",
    "bsp_max_export_batch_size",
)
_OF_MODE: Final = MappingProxyType({TRITON: _IN_TRITON, OPENTELEMETRY: _IN_OPENTELEMETRY, "": _EVERYWHERE})
_OLD_TRACE_FLAGS: Final = {
    "trace-file": "triton,file",
    "trace-level": "level",
    "trace-rate": "rate",
    "trace-count": "count",
    "trace-log-frequency": "triton,log-frequency",
}

_TraceWords = Mapping[tuple[str, str], Sequence[str]]  # by mode (empty: of all modes) and setting


def _trace_word(word: str) -> tuple[str, str, str]:
    """Return the mode (empty: of all modes), the setting and the value of a word. Raises SettingsError."""
    said, equals, value = word.partition("=")
    mode, comma, name = said.partition(",")
    if not comma:
        mode, name = "", said
    mode = mode.strip().lower()
    if not equals or not name or not value or (comma and not mode):
        raise misshapen(_TRACE_CONFIG, "<trace mode>,<setting>=<value>", word)
    return mode, name, value


def _trace_words(given: Given) -> _TraceWords:
    """Return what was said of each setting, in order. Raises SettingsError for one that there is not."""
    words: dict[tuple[str, str], list[str]] = {}
    for flag, meant in _OLD_TRACE_FLAGS.items():
        mode, _, name = meant.rpartition(",")
        if given.has(flag):
            words[mode, name] = list(given.all(flag))
    said: dict[tuple[str, str], list[str]] = {}
    for word in given.all(_TRACE_CONFIG):
        mode, name, value = _trace_word(word)
        if mode not in _OF_MODE:
            raise _no_trace_mode(mode)
        if name not in _OF_MODE[mode]:
            raise SettingsError(
                f"unknown --{_TRACE_CONFIG} setting '{name}'" + (f" of mode '{mode}'" if mode else ""),
                hint=f"settings are {', '.join(_OF_MODE[mode])}",
            )
        said.setdefault((mode, name), []).append(value)
    for flag, meant in _OLD_TRACE_FLAGS.items():
        mode, _, name = meant.rpartition(",")
        if (mode, name) in said and given.has(flag):
            given.warnings.append(f"--{flag} has no effect: --{_TRACE_CONFIG}={meant} is given as well")
    return {**words, **said}


def _no_trace_mode(mode: str) -> SettingsError:
    return SettingsError(
        f'invalid value for trace mode option: {mode}. Available options are "triton" and "opentelemetry"'
    )


def _trace_levels(words: Sequence[str]) -> tuple[str, ...]:
    """Return the levels that are on. Each word adds its own, and OFF turns all off."""
    on: set[str] = set()
    for word in words:
        level = word.upper()
        if level in ("MIN", "MAX"):  # Triton's names of old
            level = TIMESTAMPS
        if level not in (OFF, *LEVELS):
            raise SettingsError(
                f"invalid value for trace level option: {word}", hint="levels are OFF, TIMESTAMPS and TENSORS"
            )
        on.add(level)
    return () if OFF in on else tuple(level for level in LEVELS if level in on)


def _trace_number(words: Sequence[str], name: str, default: int, least: int, most: int) -> int:
    if not words:
        return default
    value = to_int(words[-1], f"{_TRACE_CONFIG}={name}", wide=True)
    if not least <= value <= most:
        raise SettingsError(
            f"Provided option value is out of bound. Got {words[-1]}",
            hint=f"--{_TRACE_CONFIG}={name} takes {least} to {most}",
        )
    return value


def read_trace(given: Given) -> TraceSetting:
    """Return the trace setting that the flags say. Raises SettingsError."""
    words = _trace_words(given)

    def all_of(mode: str, name: str) -> Sequence[str]:
        return words.get((mode, name), ())

    mode = (all_of("", "mode") or (TRITON,))[-1].lower()
    if mode not in (TRITON, OPENTELEMETRY):
        raise _no_trace_mode(mode)
    setting = TraceSetting(
        levels=_trace_levels(all_of("", "level")),
        rate=_trace_number(all_of("", "rate"), "rate", 1000, 0, HIGHEST_RATE),
        count=_trace_number(all_of("", "count"), "count", -1, -1, HIGHEST_COUNT),
        log_frequency=_trace_number(
            all_of(TRITON, "log-frequency"), "triton,log-frequency", 0, 0, HIGHEST_RATE
        ),
        file=(all_of(TRITON, "file") or ("",))[-1],
        mode=mode,
        options=tuple((name, value) for name in _IN_OPENTELEMETRY for value in all_of(OPENTELEMETRY, name)),
    )
    if setting.levels:
        given.warnings += _trace_doubts(setting)
    return setting


def _trace_doubts(setting: TraceSetting) -> list[str]:
    """Return what the operator may not have meant of a setting that traces."""
    doubts = []
    if setting.mode == TRITON and not setting.file:
        doubts.append(
            f"nothing is traced, since the trace file name is not given: --{_TRACE_CONFIG}=triton,file=FILE"
        )
    if setting.mode == TRITON and not setting.rate:
        doubts.append(f"nothing is traced with --{_TRACE_CONFIG}=rate=0: every rate-th request is sampled")
    if setting.mode == OPENTELEMETRY and TENSORS in setting.levels:
        doubts.append("the trace level TENSORS has no effect in the mode opentelemetry")
    return doubts


TRACE_FLAGS: Final = (
    Group.TRACING.flag(
        "--trace-config",
        shaped("[MODE,]SETTING=VALUE", "[^=]*[^=,]=.*", "<trace mode>,<setting>=<value>"),
        "mode=triton or opentelemetry; level=OFF, TIMESTAMPS or TENSORS; rate=N: every Nth request is traced"
        " (1000); count=N: so many at most (-1: all). triton,file=FILE; triton,log-frequency=N: a file for"
        " each N traces. opentelemetry,url=URL; opentelemetry,resource=KEY=VALUE;"
        " opentelemetry,bsp_max_queue_size=N,"
        " bsp_schedule_delay=MS, bsp_max_export_batch_size=N. Repeatable.",
        repeatable=True,
    ),
    Group.TRACING.flag(
        "--trace-file", text("FILE"), "Deprecated by Triton: --trace-config=triton,file=FILE."
    ),
    Group.TRACING.flag(
        "--trace-level", text("LEVEL"), "Deprecated by Triton: --trace-config=level=LEVEL.", repeatable=True
    ),
    Group.TRACING.flag("--trace-rate", integer("N"), "Deprecated by Triton: --trace-config=rate=N."),
    Group.TRACING.flag(
        "--trace-count", integer("N", least=-1), "Deprecated by Triton: --trace-config=count=N."
    ),
    Group.TRACING.flag(
        "--trace-log-frequency", integer("N"), "Deprecated by Triton: --trace-config=triton,log-frequency=N."
    ),
)
