"""Where spans go, and in what batches: `--trace-config opentelemetry,…` and OTEL_BSP_*, checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SERVICE_NAME: Final = "triton-inference-server"
"""The service's name, where nothing names another (contract, observability.md section 3.1)."""

_BATCHES: Final = {
    "bsp_max_queue_size": ("OTEL_BSP_MAX_QUEUE_SIZE", 2048),
    "bsp_schedule_delay": ("OTEL_BSP_SCHEDULE_DELAY", 5000),
    "bsp_max_export_batch_size": ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512),
}
_MOST: Final = 2**31


class BadSpanOption(ValueError):
    """A setting that makes no sense. The message says which, what it was, and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions:
    """Checked settings. An empty `url` leaves it to OTEL_EXPORTER_OTLP_*, and to a collector on this host."""

    url: str = ""
    resource: Mapping[str, str]
    service_name: str = SERVICE_NAME
    max_queue_size: int
    schedule_delay_ms: int
    max_export_batch_size: int


def read_options(given: Sequence[tuple[str, str]], environ: Mapping[str, str]) -> SpanOptions:
    """Return the options that `--trace-config opentelemetry,<name>=<value>` gives, in order.

    Of a name that is repeated the last value counts; `resource` adds up. Raises BadSpanOption.
    """
    url = ""
    resource: dict[str, str] = {}
    batches = {
        name: _number(variable, environ.get(variable), default)
        for name, (variable, default) in _BATCHES.items()
    }
    for name, value in given:
        if name == "url":
            url = _url(value)
        elif name == "resource":
            key, _, said = value.partition("=")
            if not key or not said:
                raise BadSpanOption(f"opentelemetry,resource={value}: expected resource=<key>=<value>")
            resource[key] = said
        elif name in batches:
            batches[name] = _number(f"opentelemetry,{name}", value, 0)
        else:
            known = ", ".join(["url", "resource", *_BATCHES])
            raise BadSpanOption(f"opentelemetry,{name}={value}: there is no such setting; there are {known}")
    queue, batch = batches["bsp_max_queue_size"], batches["bsp_max_export_batch_size"]
    if batch > queue:
        raise BadSpanOption(
            f"opentelemetry,bsp_max_export_batch_size={batch}: at most bsp_max_queue_size, which is {queue}"
        )
    return SpanOptions(
        url=url,
        resource=resource,
        max_queue_size=queue,
        schedule_delay_ms=batches["bsp_schedule_delay"],
        max_export_batch_size=batch,
    )


def _url(value: str) -> str:
    """Return where to post; Triton's users leave the scheme out."""
    return value if "://" in value or not value else f"http://{value}"


def _number(name: str, value: str | None, default: int) -> int:
    if value is None or not value.strip():
        return default
    text = value.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < _MOST):
        raise BadSpanOption(f"{name}={value}: expected a whole number from 1 to {_MOST - 1}")
    return int(text)
