"""The traces of a server, with the sink that its mode asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import trio

from actors.tracing.sinks import TraceSink
from actors.tracing.tracing import Tracing
from actors.values.events import Log
from actors.values.tracing.settings import OPENTELEMETRY, TraceSetting
from engine.observability.spans.options import BadSpanOption, read_options
from engine.observability.traces.file import TraceFiles
from engine.settings.extras import how_to_install, is_missing

_PACKAGES: Final = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}


class TracesUnusable(Exception):
    """What the operator asks for can't be had, with a message that says what would work."""


def open_traces(
    setting: TraceSetting,
    log: Log,
    *,
    monotonic: Callable[[], float],
    random: Random,
    environ: Mapping[str, str],
) -> Tracing:
    """Return the traces of a server, whose actor is still to be run.

    `monotonic` returns seconds on the machine's steady clock. Raises TracesUnusable.
    """
    ahead = monotonic() - trio.current_time()

    def ns(at: float) -> int:
        return round((at + ahead) * 1e9)

    return Tracing(setting, _sink(setting, environ, log), ns=ns, random=random)


def _sink(setting: TraceSetting, environ: Mapping[str, str], log: Log) -> TraceSink:
    if setting.mode == OPENTELEMETRY:
        return _exporter(setting, environ, log)
    return TraceFiles(setting.file, log)


def _exporter(setting: TraceSetting, environ: Mapping[str, str], log: Log) -> TraceSink:
    """Return what sends spans to a collector. Raises TracesUnusable where that can't be."""
    missing = [_PACKAGES[each] for each in _PACKAGES if is_missing(each)]
    if missing:
        raise TracesUnusable(
            f"--trace-config=mode=opentelemetry needs {' and '.join(missing)}: {how_to_install('otel')}"
        )
    try:
        options = read_options(setting.options, environ)
    except BadSpanOption as error:
        raise TracesUnusable(f"--trace-config: {error}") from error
    # A server that does without must not import what this imports.
    from engine.observability.spans.sdk import OtlpSink

    try:
        return OtlpSink(options, log)
    except Exception as error:
        # The SDK reads OTEL_EXPORTER_OTLP_* itself, and says what it can't use in many ways.
        raise TracesUnusable(f"--trace-config=mode=opentelemetry: {type(error).__name__}: {error}") from error
