"""What a scrape of the metrics must be, beyond what a reader of the format refuses."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


def counters(text: str) -> Mapping[tuple[str, Labels], float]:
    """Return what must never decrease, by name and labels. Raises ValueError for a text that is malformed."""
    found: dict[tuple[str, Labels], float] = {}
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    for family in text_string_to_metric_families(text):
        values = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in family.samples}
        if family.type == "unknown" or len(values) < len(family.samples) or found.keys() & values.keys():
            raise ValueError(f"samples of no family, or samples that have been before: {family}")
        if family.type != "gauge":
            if any(each < 0 for each in values.values()):
                raise ValueError(f"a negative count: {family}")
            found |= {key: each for key, each in values.items() if "quantile" not in dict(key[1])}
        if family.type == "histogram":
            _check_buckets(family, values)
    return found


def _check_buckets(family: Metric, values: Mapping[tuple[str, Labels], float]) -> None:
    """Raise ValueError if the buckets of a histogram don't add up."""
    buckets: dict[Labels, list[tuple[float, float]]] = {}
    for (_, labels), value in values.items():
        if bound := dict(labels).get("le"):
            rest = tuple(each for each in labels if each[0] != "le")
            buckets.setdefault(rest, []).append((float(bound), value))
    for labels, each in buckets.items():
        counts = [count for _, count in sorted(each)]
        if counts != sorted(counts) or counts[-1] != values.get((f"{family.name}_count", labels)):
            raise ValueError(f"the buckets of {family.name} {labels} don't add up: {counts}")
