"""Custom metrics of models: the series of all workers, and what each worker may do to them.

Contract, python_backend.md section 9. A family is known by its name, a series by its family and labels. Every
worker that makes a series with the same labels shares it. A series is shown for as long as a worker refers to
it, and all references of a worker end with it. A family's name stays taken, up to `MAX_FAMILIES` of them.

Nothing here waits. What a worker sends is checked. A model's mistake is `InvalidArgument`. What no worker of
ours would send is `FrameError`, which ends the worker.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from actors.calls.subjects import Ask, CallingWorker, Subjects
from actors.values.errors import AlreadyExists, InvalidArgument, Unavailable, Unsupported
from actors.values.families import Labels
from actors.wire.call_fields import travels
from actors.wire.frames import FrameError
from engine.observability.metrics import head, number

MAX_FAMILIES: Final = 1024
"""In the server. A family without series gives way to a new one."""

MAX_SERIES: Final = 4096
"""Of one worker, so that a model which puts request ids into labels fails by itself."""

MAX_LABELS: Final = 32
MAX_TEXT: Final = 1024
"""Characters of a name, a label's value, a description."""

MAX_BUCKETS: Final = 256

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OURS = re.compile(r"(tritium|nv_(inference|cache|cpu|gpu|energy|model|pinned_memory))_.*")
_SUFFIXES = ("_bucket", "_sum", "_count")
_WHOLE = 2**63  # what is not below would not fit a float for ever
_PIECE = 256  # series that are put into words at once
_KINDS = ("counter", "gauge", "histogram")

Body = Mapping[str, object]
_Named = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Family:
    name: str
    description: str
    kind: str
    series: dict[_Named, _Series] = field(default_factory=dict)


@dataclass(slots=True)
class _Series:
    number: int
    family: _Family
    labels: _Named
    bounds: Sequence[float]
    counts: list[int]  # by bucket, the last one without bound
    value: float = 0.0  # a histogram's sum
    holders: int = 0


class CustomMetrics:
    """Every family and series. `open` gives a worker its own hold on them."""

    def __init__(self, *, enabled: bool = True) -> None:
        """With `enabled` false there is nowhere to show them, and making one is refused."""
        self._enabled = enabled
        self._families: dict[str, _Family] = {}
        self._series: dict[int, _Series] = {}
        self._last = 0

    def open(self) -> MetricsHold:
        """Return the hold of a worker that begins; close it when the worker has ended."""
        return MetricsHold(self)

    def blocks(self) -> Iterator[str]:
        """Yield the text of each family that has a series, by name; that of a large one in pieces.

        Others may run between two pieces: what they change may be seen or not.
        """
        for family in sorted(self._families.values(), key=lambda family: family.name):
            if family.series:
                yield _head(family)
                series = list(family.series.values())
                for start in range(0, len(series), _PIECE):
                    yield "".join(_lines(family, series[start : start + _PIECE]))

    def answer(self, subjects: Subjects) -> None:
        """Have workers reach it, each by a hold of its own, which ends with the worker."""
        holds: dict[CallingWorker, MetricsHold] = {}

        def hold_of(caller: CallingWorker) -> MetricsHold:
            if caller not in holds:
                holds[caller] = self.open()
            return holds[caller]

        def asked(answer: Callable[[MetricsHold, Body], dict[str, Any]]) -> Ask:
            async def handle(body: Body, _: Mapping[str, bytes], caller: CallingWorker) -> Body:
                return answer(hold_of(caller), body)

            return handle

        def end(caller: CallingWorker) -> None:
            if caller in holds:
                holds.pop(caller).close()

        subjects.answer("metric.family", asked(MetricsHold.family))
        subjects.answer("metric.series", asked(MetricsHold.series))
        subjects.answer("metric.value", asked(MetricsHold.value))
        subjects.hear("metric.change", lambda body, caller: hold_of(caller).change(body))
        subjects.hear("metric.release", lambda body, caller: hold_of(caller).release(body))
        subjects.on_end(end)

    # -- for holds

    def register(self, name: str, description: str, kind: str) -> None:
        """Make the family, or find it; the description is its first one.

        Raises Unsupported if metrics are off, InvalidArgument, AlreadyExists if the name has another kind,
        and Unavailable if there are too many.
        """
        if not self._enabled:
            raise Unsupported("metrics are not allowed (--allow-metrics=false)")
        if _NAME.fullmatch(name) is None or len(name) > MAX_TEXT:
            raise InvalidArgument(
                f"'{name[:MAX_TEXT]}' is no name for a metric: letters, digits, '_' and ':', at most {MAX_TEXT} of them"
            )
        known = self._families.get(name)
        if known is None:
            self._check_free(name, kind)
            self._make_room()
            self._families[name] = _Family(name, description[:MAX_TEXT], kind)
        elif known.kind != kind:
            raise AlreadyExists(f"metric family '{name}' is a {known.kind} already, and can't be a {kind}")

    def find(self, family_name: str, labels: Mapping[str, str], bounds: Sequence[float]) -> int:
        """Return the number of a series, which is made if there is none. Raises InvalidArgument."""
        family = self._families.get(family_name)
        if family is None:
            raise InvalidArgument(f"there is no metric family '{family_name[:MAX_TEXT]}': make it first")
        _check_labels(labels, family.kind)
        key = tuple(sorted(labels.items()))
        series = family.series.get(key)
        if series is None:
            self._last += 1
            series = _Series(self._last, family, key, bounds, [0] * (len(bounds) + 1))
            family.series[key] = self._series[self._last] = series
        elif list(series.bounds) != list(bounds):
            raise InvalidArgument(
                f"metric '{family_name}' has buckets {list(series.bounds)} with these labels, not {list(bounds)}"
            )
        return series.number

    def refer(self, number: int, references: int) -> None:
        """Count references to a series up or down; without any it is gone."""
        series = self._series[number]
        series.holders += references
        if not series.holders:
            del self._series[number]
            del series.family.series[series.labels]

    def value(self, number: int) -> float:
        """Return what a counter or gauge stands at."""
        return self._series[number].value

    def change(self, number: int, put: float | None, added: float, counts: Sequence[int]) -> None:
        """Put a gauge to a value, add to what there is, and count in the buckets.

        Raises FrameError for what can't be.
        """
        series = self._series[number]
        kind = series.family.kind
        if (put is not None and kind != "gauge") or (kind == "counter" and not added >= 0):
            raise FrameError(f"a change of {kind} '{series.family.name}' that no {kind} allows")
        if counts and (kind != "histogram" or len(counts) != len(series.counts)):
            raise FrameError(f"{len(counts)} buckets for {kind} '{series.family.name}'")
        series.value = (series.value if put is None else put) + added
        if counts:
            series.counts = [count + more for count, more in zip(series.counts, counts, strict=True)]

    def _check_free(self, name: str, kind: str) -> None:
        """Raise InvalidArgument if lines of the exposition would have two meanings."""
        if _OURS.fullmatch(name):
            raise InvalidArgument(f"metric names like '{name}' are the server's own; choose another prefix")
        clash = [f"{name}{suffix}" for suffix in _SUFFIXES] if kind == "histogram" else []
        for suffix in _SUFFIXES:
            base = self._families.get(name.removesuffix(suffix))
            if name.endswith(suffix) and base is not None and base.kind == "histogram":
                clash.append(name)
        taken = [each for each in clash if each in self._families or each == name]
        if taken:
            raise InvalidArgument(f"metric '{taken[0]}' would be taken for a part of a histogram's")

    def _make_room(self) -> None:
        if len(self._families) < MAX_FAMILIES:
            return
        unused = next((name for name, family in self._families.items() if not family.series), None)
        if unused is None:
            raise Unavailable(f"there are {MAX_FAMILIES} custom metric families with series already")
        del self._families[unused]


class MetricsHold:
    """What one worker refers to, and may do with it.

    Requests are the JSON objects of `engine.worker.backends.python.metrics`.
    """

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics
        self._references: Counter[int] = Counter()
        self._closed = False

    def family(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make or find a family: `name`, `description`, `kind`.

        Raises as `CustomMetrics.register` does, and FrameError.
        """
        kind = _text(body, "kind")
        if kind not in _KINDS:
            raise FrameError(f"a metric family of kind {kind[:32]!r}")
        self._metrics.register(_text(body, "name"), _text(body, "description"), kind)
        return {}

    def series(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make or find a series and refer to it once more; return its number as `series`.

        The request has `family`, `labels` and `buckets`.
        """
        if self._closed:
            raise Unavailable("the worker has ended")
        labels, bounds = body.get("labels"), body.get("buckets")
        if not isinstance(labels, dict) or not isinstance(bounds, list) or not all(map(_is_number, bounds)):
            raise FrameError("a metric's labels are no object, or its buckets no numbers")
        if len(bounds) > MAX_BUCKETS:
            raise InvalidArgument(f"{len(bounds)} buckets; a histogram has at most {MAX_BUCKETS}")
        if not all(map(math.isfinite, bounds)) or any(low >= high for low, high in pairwise(bounds)):
            raise InvalidArgument(f"buckets {bounds[:8]}… are not numbers in ascending order, each once")
        if self._references.total() >= MAX_SERIES:
            raise Unavailable(
                f"this worker holds {MAX_SERIES} metrics already: let go of some, or use fewer different labels"
            )
        number = self._metrics.find(_text(body, "family"), labels, bounds)
        self._metrics.refer(number, 1)
        self._references[number] += 1
        return {"series": number}

    def value(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `value` of `series`. Raises InvalidArgument if the worker has released it."""
        number = body.get("series")
        if not isinstance(number, int) or number not in self._references:
            raise InvalidArgument("the metric has been deleted")
        return {"value": self._metrics.value(number)}

    def change(self, body: Mapping[str, Any]) -> None:
        """Apply `changes`, each [series, put, added, counts]. Raises FrameError.

        A series that was released is left out.
        """
        for change in _list(body, "changes"):
            if not isinstance(change, list) or len(change) != 4:
                raise FrameError("a change of a metric has other than four parts")
            number, put, added, counts = change
            if not isinstance(number, int):
                raise FrameError("a change of a metric that has no number")
            if not (_is_number(added) and (put is None or _is_number(put)) and _are_counts(counts)):
                raise FrameError("a change of a metric by something that is no number")
            if number in self._references:
                self._metrics.change(number, put, added, counts)

    def release(self, body: Mapping[str, Any]) -> None:
        """Let go of each of `series` once. Raises FrameError for one that the worker does not hold."""
        for each in _list(body, "series"):
            if not isinstance(each, int) or each not in self._references:
                raise FrameError("a worker lets go of a metric that it does not hold")
            self._references[each] -= 1
            if not self._references[each]:
                del self._references[each]
            self._metrics.refer(each, -1)

    def close(self) -> None:
        """The worker has ended: release everything."""
        references, self._references, self._closed = self._references, Counter(), True
        for series, count in references.items():
            self._metrics.refer(series, -count)


def _head(family: _Family) -> str:
    text = family.description.replace("\\", "\\\\").replace("\n", "\\n")
    return head(family.name, family.kind, text)


def _lines(family: _Family, some: Sequence[_Series]) -> Iterator[str]:
    for series in some:
        for suffix, labels, value in _samples(series):
            yield f"{family.name}{suffix}{labels} {number(value)}\n"


def _samples(series: _Series) -> Iterator[tuple[str, str, float]]:
    labels = dict(series.labels)
    if series.family.kind != "histogram":
        yield "", Labels(labels).text, _plain(series.value)
        return
    below = 0
    for bound, count in zip([*map(_bound, series.bounds), "+Inf"], series.counts, strict=True):
        below += count
        yield "_bucket", Labels({**labels, "le": bound}).text, below
    yield "_sum", Labels(labels).text, _plain(series.value)
    yield "_count", Labels(labels).text, below


def _plain(value: float) -> float:
    """Return a whole number as one, which Triton writes without a point."""
    return int(value) if abs(value) < 2**53 and value == int(value) else value


def _bound(bound: float) -> str:
    return number(_plain(float(bound)))


def _check_labels(labels: Mapping[Any, Any], kind: str) -> None:
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"{len(labels)} labels; a metric has at most {MAX_LABELS}")
    for name, value in labels.items():
        if not isinstance(value, str) or not travels(name) or not travels(value):
            raise FrameError("a metric's label is no text")
        if _LABEL.fullmatch(name) is None or name.startswith("__") or (name == "le" and kind == "histogram"):
            raise InvalidArgument(
                f"'{name[:MAX_TEXT]}' is no name for a label: letters, digits and '_', not two of these in front,"
                " and not 'le' for a histogram"
            )
        if max(len(name), len(value)) > MAX_TEXT:
            raise InvalidArgument(f"label '{name[:64]}' or its value has more than {MAX_TEXT} characters")


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not travels(value):
        raise FrameError(f"what a worker says of a metric has no text for {key!r}")
    return value


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    if not isinstance(value, list):
        raise FrameError(f"what a worker says of a metric has no list for {key!r}")
    return value


def _is_number(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _WHOLE
    return whole or isinstance(value, float)


def _are_counts(counts: object) -> bool:
    return isinstance(counts, list) and all(
        _is_number(each) and each >= 0 and isinstance(each, int) for each in counts
    )
