"""Custom metrics of Python models (contract, python_backend.md section 9).

Values live in the server, where all workers' objects of one family and one set of labels are one series. The
server is told of a model's changes in the order in which they were made, and before any answer that the model
gives afterwards. If a model makes more than a thousand changes a second, they are put together, so that the
cost of a scrape does not depend on how often a model counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from bisect import bisect_left
from collections import deque
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from engine.worker.backends.python.host import checked_text, current_host
from engine.worker.backends.python.tensors import TritonModelException
from engine.worker.calls import CallFailed
from engine.worker.forking import when_forked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from engine.worker.backends.python.host import Host

FAMILY = "metric.family"
SERIES = "metric.series"
CHANGE = "metric.change"
VALUE = "metric.value"
RELEASE = "metric.release"

_BURST = 64  # changes that are told at once, one by one
# Changes a second that may go on for ever; beyond that they are put together.
_RATE = 1000.0
_WEIGHT = 1000  # numbers in one message, which must stay within a frame

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


class _Pending:
    """What was done to one series and is not told yet."""

    __slots__ = ("added", "counts", "put")

    def __init__(self) -> None:
        self.put: float | None = None  # set to this, and then
        self.added = 0.0
        self.counts: list[int] = []  # of a histogram, by bucket

    def weight(self) -> int:
        """How many numbers it takes to tell."""
        return 2 + len(self.counts)

    def told(self, series: int) -> list[Any]:
        """Return the change as it is told.

        These are the series, what is put, what is added or observed in all, and how often in each bucket.
        """
        return [series, self.put, self.added, self.counts]


class Metrics:
    """Tells the server of changes, at a bounded rate."""

    def __init__(self, host: Host) -> None:
        self._calls = host.calls
        self._begin()
        when_forked(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()  # of what is pending
        self._order = threading.Lock()  # of messages; taken before `_guard`
        self._pending: dict[int, _Pending] = {}
        self._released: deque[int] = deque()
        self._allowance = float(_BURST)
        self._counted_at = time.monotonic()
        # A SimpleQueue's put may be called from a finalizer, whatever the thread is in the middle of.
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._closed = threading.Event()
        self.process = os.getpid()
        self._thread: threading.Thread | None = None

    def keep_telling(self) -> None:
        """See to it that what is not told at once is told soon."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_telling, name="model-metrics", daemon=True)
                self._thread.start()

    def forked(self) -> None:
        """This is a process that the model has forked: its parent tells what was pending; forget it here."""
        self._begin()

    def change(self, series: int, change: Any) -> None:
        """Have `change` applied to what is pending for a series, and tell of it now or soon."""
        with self._guard:
            change(self._pending.setdefault(series, _Pending()))
            at_once = self._may_tell()
        if at_once:
            self.flush()
        else:
            self.keep_telling()
            self._wake.put(True)

    def release(self, series: int) -> None:
        """A reference to a series is gone. Called by finalizers: takes no lock."""
        self._released.append(series)
        self._wake.put(True)

    def flush(self) -> None:
        """Tell what is pending."""
        if not self._pending and not self._released:
            return
        with self._order:
            released = [self._released.popleft() for _ in range(len(self._released))]
            with self._guard:
                pending, self._pending = self._pending, {}
            for changes in _in_messages(pending):
                self._calls.tell(CHANGE, {"changes": changes})
            if released:
                self._calls.tell(RELEASE, {"series": released})

    def close(self) -> None:
        """Tell the rest, and end."""
        self.flush()
        self._closed.set()
        self._wake.put(False)

    def _may_tell(self) -> bool:
        now = time.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._counted_at) * _RATE)
        self._counted_at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _keep_telling(self) -> None:
        while self._wake.get():
            with contextlib.suppress(Empty):
                while self._wake.get_nowait():
                    pass
            self.flush()
            self._closed.wait(1 / _RATE)


def _in_messages(pending: Mapping[int, _Pending]) -> Iterator[list[list[Any]]]:
    message: list[list[Any]] = []
    weight = 0
    for series, change in pending.items():
        if message and weight + change.weight() > _WEIGHT:
            yield message
            message, weight = [], 0
        message.append(change.told(series))
        weight += change.weight()
    if message:
        yield message


_making = threading.Lock()


def _metrics_of(host: Host) -> Metrics:
    with _making:
        if host.metrics is None:
            host.metrics = Metrics(host)
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
        self._telling = _metrics_of(host)
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

        def change(pending: _Pending) -> None:
            pending.added += number

        self._telling.change(self._series, change)

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException for other kinds."""
        self._require("Failed to set metric value: ", "Set", MetricKind.GAUGE)
        number = float(value)

        def change(pending: _Pending) -> None:
            pending.put, pending.added = number, 0.0

        self._telling.change(self._series, change)

    def observe(self, value: float) -> None:
        """Count `value` in a histogram. Raises TritonModelException for other kinds."""
        self._require("Failed to observe metric value: ", "Observe", MetricKind.HISTOGRAM)
        number = float(value)
        at = bisect_left(self._bounds, number)

        def change(pending: _Pending) -> None:
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
