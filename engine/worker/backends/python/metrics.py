"""Custom metrics of Python models (contract, python_backend.md section 9).

Values live in the server, where all workers' objects of one family and one set of labels are one series. The
server is told of a model's changes in the order in which they were made, and before any answer that the model
gives afterwards. If a model makes more than a thousand changes a second, they are put together, so that the
cost of a scrape does not depend on how often a model counts.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from bisect import bisect_left
from enum import Enum
from typing import TYPE_CHECKING, Any

from engine.worker.backends.python.host import checked_text, current_host
from engine.worker.backends.python.telling import MetricChanges, PendingChange
from engine.worker.backends.python.tensors import TritonModelException
from engine.worker.calls import CallFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.python.host import Host

FAMILY = "metric.family"
SERIES = "metric.series"
VALUE = "metric.value"

_FAMILY_GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be"
    " deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class MetricKind(Enum):
    """What a family's series are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"

    @property
    def triton_name(self) -> str:
        """The name in Triton's messages."""
        return f"TRITONSERVER_METRIC_KIND_{self.name}"


_making = threading.Lock()


def _changes_of(host: Host) -> MetricChanges:
    with _making:
        if host.metrics is None:
            host.metrics = MetricChanges(host.calls)
        return host.metrics


class MetricFamily:
    """A metric of the server's, of one kind, with any number of series that differ by their labels.

    It must live as long as its metrics do. Its name stays taken when it is gone.
    """

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Register the family with the server, or find it there.

        Raises TritonModelException if it can't be.
        """
        self._metrics: weakref.WeakSet[Metric] = weakref.WeakSet()
        self._host = current_host()
        self._name = name
        try:
            self._kind = MetricKind(kind)
            body = {
                "name": checked_text("name", name),
                "description": checked_text("description", description),
                "kind": self._kind.value,
            }
            self._host.calls.ask(FAMILY, body)
        except CallFailed as error:
            raise TritonModelException(
                f"Error when creating MetricFamily: {self._host.failure(error.message)}"
            ) from error
        except (ValueError, TritonModelException) as error:
            raise TritonModelException(f"Error when creating MetricFamily: {error}") from error

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Return the series with these labels; the same labels give the same series, also in other workers.

        A histogram takes `buckets`, the upper bounds in ascending order. Raises TritonModelException.
        """
        metric = Metric(
            self._host, self._name, self._kind, _checked_labels(labels), _checked_buckets(self._kind, buckets)
        )
        self._metrics.add(metric)
        return metric

    def __del__(self) -> None:
        for metric in list(self._metrics):
            metric.orphan()


class Metric:
    """One series; made by `MetricFamily.Metric`. It is shown as long as any worker holds it."""

    def __init__(
        self, host: Host, family: str, kind: MetricKind, labels: Mapping[str, str], buckets: Sequence[float]
    ) -> None:
        self._held = False
        self._host = host
        self._kind = kind
        self._bounds = list(buckets)
        body = {"family": family, "labels": labels, "buckets": self._bounds}
        try:
            self._series: int = host.calls.ask(SERIES, body)["series"]
        except CallFailed as error:
            raise TritonModelException(f"Failed to create metric. {host.failure(error.message)}") from error
        self._telling = _changes_of(host)
        self._telling.keep_telling()
        self._process = os.getpid()
        self._held = True

    def increment(self, value: float) -> None:
        """Add `value`: to a counter what is not negative, to a gauge anything.

        Raises TritonModelException.
        """
        what = "Failed to increment metric value: "
        self._require(what, "Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        number = float(value)
        if self._kind is MetricKind.COUNTER and not number >= 0:
            name = self._kind.triton_name
            text = f"{name} can only be incremented monotonically by non-negative values."
            raise TritonModelException(what + self._host.failure(text))

        def change(pending: PendingChange) -> None:
            pending.added += number

        self._telling.change(self._series, change)

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException for other kinds."""
        self._require("Failed to set metric value: ", "Set", MetricKind.GAUGE)
        number = float(value)

        def change(pending: PendingChange) -> None:
            pending.put, pending.added = number, 0.0

        self._telling.change(self._series, change)

    def observe(self, value: float) -> None:
        """Count `value` in a histogram. Raises TritonModelException for other kinds."""
        self._require("Failed to observe metric value: ", "Observe", MetricKind.HISTOGRAM)
        number = float(value)
        at = bisect_left(self._bounds, number)

        def change(pending: PendingChange) -> None:
            if not pending.counts:
                pending.counts = [0] * (len(self._bounds) + 1)
            pending.counts[at] += 1
            pending.added += number

        self._telling.change(self._series, change)

    def value(self) -> float:
        """Return the value of a counter or gauge, with what all workers did to it.

        Raises TritonModelException.
        """
        what = "Failed to get metric value: "
        self._require(what, "Value", MetricKind.COUNTER, MetricKind.GAUGE)
        self._telling.flush()
        try:
            return float(self._host.calls.ask(VALUE, {"series": self._series})["value"])
        except CallFailed as error:
            raise TritonModelException(what + self._host.failure(error.message)) from error

    def orphan(self) -> None:
        """The family is gone: the series can't be used any more."""
        if self._held:
            self._held = False
            # Otherwise it is a forked child's copy, which must not release the series.
            if self._process == self._telling.process:
                self._telling.release(self._series)

    def _require(self, what: str, operation: str, *kinds: MetricKind) -> None:
        if not self._held:
            raise TritonModelException(_FAMILY_GONE)
        if self._kind not in kinds:
            text = f"{self._kind.triton_name} does not support {operation}"
            raise TritonModelException(what + self._host.failure(text))

    def __del__(self) -> None:
        self.orphan()


def _checked_labels(labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TritonModelException(
                f"Failed to create metric. Labels must be a dictionary of str to str, got {name!r}: {value!r}."
            )
        checked_text("a label's name", name)
        checked_text("a label's value", value)
    return labels


def _checked_buckets(kind: MetricKind, buckets: Any) -> list[float]:
    if kind is not MetricKind.HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return []
    if buckets is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    bounds = [float(bound) for bound in buckets]
    if any(not low < high for low, high in zip((-math.inf, *bounds), bounds)):
        raise TritonModelException(
            f"Failed to create metric. Buckets must be in ascending order, each once, got {bounds}."
        )
    return bounds[:-1] if bounds[-1:] == [math.inf] else bounds  # one without bound is there anyway
