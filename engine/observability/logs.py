"""Logging: which events become lines, how the lines look, and who writes them.

Events come from the closed list in `actors.values.events`; everything else about them is a key. They are
rendered where they happen and written by one thread, which takes lines from a bounded queue. So a full disk,
a stalled pipe or a closed terminal costs lines (counted, and told once writing works again), never the event
loop or the server.

Bind once and keep the result (`log = structlog.get_logger().bind(model=...)`). On a bound logger a
switched-off level is a method that does nothing; on the bare proxy it is a look-up each time.

Reference: contract observability.md section 4.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, Self

from actors.values.events import Event
from engine.observability.log_file import LogFile
from engine.observability.starting.drawing import redrawn
from engine.observability.structured import structlog
from engine.observability.text import PLAINER
from engine.settings.reporting import LogSettings
from engine.settings.settings import SettingsError

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_DEBUG, _INFO, _WARNING, _ERROR, _CRITICAL = 10, 20, 30, 40, 50
_LETTERS: Final = {"debug": "I", "info": "I", "warning": "W", "error": "E", "critical": "E"}
_SEVERE: Final = frozenset({"warning", "error", "critical"})
_MOST_WAITING: Final = 10_000
# Seconds in which lines collect, so that a busy server wakes the writer rarely.
_GATHERING: Final = 0.01


# -- the writer


def _told_lost(count: int) -> str:
    return f"({count} log lines were lost)"


class LineStream(Protocol):
    """What a sink writes to: `sys.stdout`, or a file that may be rotated."""

    @property
    def encoding(self) -> str:
        """The encoding that its text will have."""

    def write(self, text: str, /) -> object:
        """Take `text`. Raises OSError or ValueError."""

    def flush(self) -> None:
        """Pass all of it on. Raises OSError or ValueError."""

    def close(self) -> None:
        """Let go of it. Raises OSError."""


class LogSink:
    """Writes lines from a thread of its own: severe ones to `err`, others to `out`. Close it to flush it."""

    def __init__(
        self,
        out: LineStream,
        err: LineStream,
        *,
        owns: bool = False,
        most_waiting: int = _MOST_WAITING,
        lost: Callable[[int], str] = _told_lost,
    ) -> None:
        """`lost` makes the line that owns up to a number of lost lines."""
        self._out = out
        self._err = err
        self._owns = owns
        self._tell_lost = lost
        self._most_waiting = most_waiting
        self._lines: deque[tuple[bool, str]] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._refused = 0  # lines the full queue did not take: counted by callers, on the loop
        self._failed = 0  # lines that could not be written: counted by the thread
        self._told = 0  # of both, how many the log itself has reported
        # The last write to it failed, perhaps in the middle of a line.
        self._torn: set[LineStream] = set()
        # Another part of the server tells of the loads at its start, and their lines are left out.
        self.tells_loads = False
        # What is to be kept below all lines on a terminal, and what is there.
        self._below: Sequence[str] = ()
        self._shown: Sequence[str] = ()
        self._thread = threading.Thread(target=self._run, name="tritium-logs", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Lines lost so far."""
        return self._refused + self._failed

    def write(self, line: str, *, severe: bool) -> None:
        """Queue a line; never waits and never raises."""
        if len(self._lines) >= self._most_waiting:
            self._refused += 1
            return
        self._lines.append((severe, line))
        if not self._wake.is_set():
            self._wake.set()

    def below(self, lines: Sequence[str]) -> None:
        """Keep `lines` below all others from now on, in place of earlier ones. `out` draws. Never waits."""
        self._below = lines
        self._wake.set()

    def close(self, timeout: float = 1.0) -> None:
        """Write what is queued, for at most `timeout` seconds, and stop. A file of its own is closed."""
        self._below = ()
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)
        if self._owns and not self._thread.is_alive():
            # The flush inside failed, and there is no place left to report it.
            with contextlib.suppress(OSError):
                self._out.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(_GATHERING)
            self._wake.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._lines:
            severe, line = self._lines.popleft()
            lines = [line]
            while self._lines and self._lines[0][0] is severe and len(lines) < 1000:
                lines.append(self._lines.popleft()[1])
            self._write(self._err if severe else self._out, lines)
        if self._below is not self._shown:
            self._write(self._out, [])

    def _write(self, stream: LineStream, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        lost = self.dropped
        if lost > self._told:
            text = f"{self._tell_lost(lost - self._told)}\n{text}"
        if stream in self._torn:
            text = f"\n{text}"
        below = self._below
        if below or self._shown:
            text, self._shown = redrawn(text, below), below
        encoding = stream.encoding or "utf-8"
        try:
            stream.write(text.encode(encoding, PLAINER).decode(encoding))
            stream.flush()
        except (OSError, ValueError):  # a full disk, a reader that went away, a closed stream
            self._failed += len(lines)
            self._torn.add(stream)
        else:
            self._told = lost
            self._torn.discard(stream)


def open_sink(settings: LogSettings) -> LogSink:
    """Return the sink that the settings name. Raises SettingsError if the log file can't be opened."""
    lost = _lost_as_json if settings.format == "json" else _told_lost
    if not settings.file:
        return LogSink(sys.stdout, sys.stderr if settings.split_streams else sys.stdout, lost=lost)
    try:
        file = LogFile(settings.file, _kept_as_json if settings.format == "json" else _told_kept)
    except OSError as error:
        raise SettingsError(
            f"Failed to open log file: {error.strerror}", hint=_why_no_log_file(settings.file)
        ) from error
    return LogSink(file, file, owns=True, lost=lost)


def _why_no_log_file(path: str) -> str:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return f"--log-file was given '{path}', and there is no directory '{folder}': make it first"
    return f"--log-file was given '{path}'"


def _told_kept(why: str) -> str:
    return f"(the log file was moved away, and its name can't be opened: {why}; this file goes on)"


def _kept_as_json(why: str) -> str:
    return json_line("warning", Event.LOG_FILE_KEPT, error=why)


def _lost_as_json(count: int) -> str:
    return json_line("warning", Event.LOG_LINES_LOST, lines=count)


def json_line(level: str, event: Event, **keys: object) -> str:
    """Return a line of the JSON log, said now, for what can't pass through structlog."""
    moment = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    return json.dumps({"timestamp": moment, "level": level, "event": event.value, **keys}, default=repr)


# -- from events to lines


def configure_logging(
    settings: LogSettings,
    sink: LogSink,
    *,
    wall_ns: Callable[[], int] = time.time_ns,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Make structlog follow the settings and write to `sink`."""
    structlog.configure(
        processors=processors(settings, sink, wall_ns=wall_ns, environ=environ),
        wrapper_class=structlog.make_filtering_bound_logger(_lowest_level(settings)),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )


def processors(
    settings: LogSettings,
    sink: LogSink,
    *,
    wall_ns: Callable[[], int],
    environ: Mapping[str, str],
) -> list[Processor]:
    """Return the chain that an event passes through, from the check of its level to the sink."""
    chain: list[Processor] = [_only_what_is_on(settings), _stamp(wall_ns)]
    if not settings.verbose:
        chain.append(_not_told_otherwise(sink))
    if settings.format != "console":
        chain.append(
            structlog.processors.CallsiteParameterAdder(
                {
                    structlog.processors.CallsiteParameter.FILENAME,
                    structlog.processors.CallsiteParameter.LINENO,
                },
                additional_ignores=["engine.observability"],  # where events pass through
            )
        )
    return [*chain, _renderer(settings, environ), _deliver(sink)]


def _lowest_level(settings: LogSettings) -> int:
    if settings.verbose > 0:
        return _DEBUG
    if settings.info:
        return _INFO
    if settings.warning:
        return _WARNING
    return _ERROR if settings.error else _CRITICAL


def _only_what_is_on(settings: LogSettings) -> Processor:
    """Each level has a switch of its own in Triton; `debug` has two depths, by its key `verbose`."""
    switches = {
        "info": settings.info,
        "warning": settings.warning,
        "error": settings.error,
        "critical": settings.error,
    }

    def drop_what_is_off(_: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if not switches.get(method, True) or event.pop("verbose", 1) > max(1, settings.verbose):
            raise structlog.DropEvent
        return event

    return drop_what_is_off


def _not_told_otherwise(sink: LogSink) -> Processor:
    """Leave out what a terminal shows at the start in a better way; problems of a load that goes on stay."""

    def drop_what_is_told(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        bad = event.get("warning") or event.get("error") or event.get("ready") is False
        if sink.tells_loads and event["event"] in _OF_STARTS and not bad:
            raise structlog.DropEvent
        return event

    return drop_what_is_told


def _stamp(wall_ns: Callable[[], int]) -> Processor:
    def stamped(_: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event["event"] = str(event["event"])
        event["level"] = method
        event["timestamp"] = datetime.fromtimestamp(wall_ns() // 1000 / 1e6, UTC)
        return event

    return stamped


def _deliver(sink: LogSink) -> Processor:
    """The last link: hand the line to the sink and leave nothing for structlog to print."""

    def deliver(_: WrappedLogger, method: str, line: Any) -> NoReturn:
        sink.write(line, severe=method in _SEVERE)
        raise structlog.DropEvent

    return deliver


def _renderer(settings: LogSettings, environ: Mapping[str, str]) -> Processor:
    match settings.format:
        case "json":
            return _json_lines(whole=settings.verbose > 0)
        case "console":
            return _console(colors=not settings.file and sys.stdout.isatty())
        case "default" | "ISO8601":
            escape = environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0"
            return _triton_lines(iso=settings.format == "ISO8601", escape=escape, whole=settings.verbose > 0)


def _console(*, colors: bool) -> Processor:
    pretty = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, sort_keys=False
    )

    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        event["timestamp"] = f"{event['timestamp']:%H:%M:%S.%f}"[:-3]
        return str(pretty(logger, method, event))

    return render


def _json_lines(*, whole: bool) -> Processor:
    """An object a line."""

    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        moment = event.pop("timestamp")
        line = {
            "timestamp": f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": event.pop("level"),
            "event": event.pop("event"),
        }
        trace = traceback_text(event.pop("exc_info", None), whole=whole)
        line.update(event)
        if trace:
            line["exception"] = trace
        return json.dumps(line, default=repr)

    return render


def _triton_lines(*, iso: bool, escape: bool, whole: bool) -> Processor:
    """Triton's two formats, in which the event is a sentence: Triton's own if it has one for it."""
    pid = os.getpid()

    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        moment: datetime = event.pop("timestamp")
        letter = _LETTERS[event.pop("level")]
        source = f"{event.pop('filename', '?')}:{event.pop('lineno', 0)}"
        trace = traceback_text(event.pop("exc_info", None), whole=whole)
        message = sentence(event.pop("event"), event)
        if trace:
            message = f"{message}\n{trace}"
        if escape:
            message = _escaped(message)
        if iso:
            return f"{moment:%Y-%m-%dT%H:%M:%SZ} {letter} {pid} {source}] {message}"
        return f"{letter}{moment:%m%d %H:%M:%S.%f} {pid} {source}] {message}"

    return render


def _escaped(message: str) -> str:
    """Return `message` as a JSON string. Also what moves or hides text on a terminal is spelt out."""
    text = json.dumps(message, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


# What tools and people look for in Triton's log.
_SENTENCES: Final[Mapping[str, str]] = {
    Event.MODEL_LOADING.value: "loading: {model}:{version}",
    Event.MODEL_READY.value: "successfully loaded '{model}'",
    Event.SERVER_OPENED.value: (
        "open: inference on {inference}; management on {management}; metrics on {metrics};"
        " credentials: {credentials}; uploads: {uploads}; sandbox: {sandbox}; TLS: {tls}"
    ),
    Event.LISTENER_OPENED.value: "Started {service} at {address}",
    Event.REQUEST_FAILED.value: "[request id: {request_id}] Infer failed: {message}",
}
_OF_STARTS: Final = frozenset(
    {
        Event.SERVER_OPENED.value,
        Event.SERVER_READY.value,
        Event.LISTENER_OPENED.value,
        Event.GPUS_UNAVAILABLE.value,
        Event.MODEL_LOADING.value,
        Event.MODEL_READY.value,
        Event.MODEL_UNAVAILABLE.value,
        Event.WORKER_STARTED.value,
        Event.WORKER_LOADING.value,
        Event.WORKER_READY.value,
        Event.WORKER_EXITED.value,
        Event.READINESS_CHANGED.value,
    }
)
"""Events that the lines about a start on its terminal stand for."""

_PROBLEMS: Final = frozenset(
    {
        Event.MODEL_LOADING.value,
        Event.SERVER_STARTING.value,
        Event.SERVER_FAILED.value,
        Event.PYTHON_WARNING.value,
        Event.PYTHON_ERROR.value,
    }
)
"""Events that are told with an `error` or a `warning`, which is a sentence of its own.

What they are about goes on.
"""
_UNLOADED: Final = "successfully unloaded '{model}' version {version}"


def sentence(event: str, keys: Mapping[str, Any]) -> str:
    """Return an event in Triton's words if it has any, else its name; what is left of the keys follows."""
    template = _SENTENCES.get(event, "")
    if event == Event.MODEL_UNAVAILABLE.value and keys.get("reason") == "unloaded":
        template = _UNLOADED
    elif event in _PROBLEMS:
        template = next((f"{{{key}}}" for key in ("error", "warning") if keys.get(key)), template)
    words = {key: value if value or key != "request_id" else "<id_unknown>" for key, value in keys.items()}
    try:
        said = template.format(**words) or event
    except KeyError:  # the event was told with fewer keys than the sentence needs
        template, said = "", event
    rest = [f"{key}={_plain(value)}" for key, value in keys.items() if f"{{{key}}}" not in template]
    return " ".join([said, *rest])


def _plain(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(character in text for character in ' "=\n') else text


_MACHINERY: Final = (
    "<frozen importlib",
    os.path.join("actors", "supervision", ""),
    os.path.join("site-packages", "trio", ""),
)
"""In whose frames no error lies: what imports modules, and what runs tasks."""


def traceback_text(exc_info: Any, *, whole: bool) -> str:
    """Return a traceback as Python writes it; unless `whole`, without the frames of what only led there."""
    if not exc_info:
        return ""
    if isinstance(exc_info, BaseException):
        exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
    elif not isinstance(exc_info, tuple):
        exc_info = sys.exc_info()
    if exc_info[0] is None:
        return ""
    told = traceback.TracebackException(*exc_info)
    if not whole:
        _leave_out_machinery(told)
    return "".join(told.format()).rstrip()


def _leave_out_machinery(told: traceback.TracebackException) -> None:
    """Take out the frames of the machinery, of causes and contexts too.

    A traceback of nothing else stays as it is.
    """
    ahead, seen = [told], set()
    while ahead:
        each = ahead.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kept = [frame for frame in each.stack if not any(part in frame.filename for part in _MACHINERY)]
        if kept:
            each.stack = traceback.StackSummary.from_list(kept)
        ahead += [one for one in (each.__cause__, each.__context__, *(each.exceptions or ())) if one]
