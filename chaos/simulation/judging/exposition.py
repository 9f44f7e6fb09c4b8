"""Reading what a scrape gives: the text format 0.0.4 of Prometheus, strictly.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

Labels = tuple[tuple[str, str], ...]

_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL: Final = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE: Final = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}})? (\S+)")
_ONE_LABEL: Final = re.compile(r'([^=]+)="((?:[^"\\]|\\.)*)",?')
_TYPE: Final = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary)")
_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
}


class Malformed(Exception):
    """It is no such text. The message has the line."""


@dataclass(slots=True)
class Exposition:
    """Values by name and labels, and the kinds of the families."""

    kinds: dict[str, str] = field(default_factory=dict)
    values: dict[tuple[str, Labels], float] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)  # by the name of a sample

    def counters(self) -> Iterator[tuple[str, Labels, float]]:
        """Yield what must never decrease."""
        for (name, labels), value in self.values.items():
            family = self.families[name]
            kind = self.kinds[family]
            if kind in ("counter", "histogram") or (kind == "summary" and name != family):
                yield name, labels, value


def read(text: str) -> Exposition:
    """Return what the text says. Raises Malformed."""
    found = Exposition()
    family = ""
    if not text.endswith("\n"):
        raise Malformed("the last line has no end")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = ""
        elif line.startswith("#"):
            family = _read_type(line, found)
        else:
            _read_sample(line, family, found)
    _check_histograms(found)
    return found


def _read_type(line: str, found: Exposition) -> str:
    typed = _TYPE.fullmatch(line)
    if typed is None or typed[1] in found.kinds:
        raise Malformed(f"a type that is none, or another one: {line!r}")
    found.kinds[typed[1]] = typed[2]
    return typed[1]


def _read_sample(line: str, family: str, found: Exposition) -> None:
    sample = _SAMPLE.fullmatch(line)
    if sample is None:
        raise Malformed(f"not a sample: {line!r}")
    name, written, value = sample.groups()
    if not family or name not in [family + suffix for suffix in _SUFFIXES[found.kinds[family]]]:
        raise Malformed(f"a sample of another family than '{family}': {line!r}")
    labels = tuple(sorted(_ONE_LABEL.findall(written or "")))
    if len(dict(labels)) < len(labels) or (name, labels) in found.values:
        raise Malformed(f"a label or a sample that has been before: {line!r}")
    try:
        number = float(value)
    except ValueError:
        raise Malformed(f"not a number: {line!r}") from None
    if number < 0 and found.kinds[family] != "gauge":
        raise Malformed(f"a negative count: {line!r}")
    found.values[name, labels] = number
    found.families[name] = family


def _check_histograms(found: Exposition) -> None:
    """Raise Malformed if buckets don't add up."""
    buckets: dict[tuple[str, Labels], list[tuple[float, float]]] = {}
    for (name, labels), value in found.values.items():
        family = found.families[name]
        if found.kinds[family] == "histogram" and name.endswith("_bucket"):
            rest = tuple(each for each in labels if each[0] != "le")
            buckets.setdefault((family, rest), []).append((float(dict(labels)["le"]), value))
    for (family, labels), each in buckets.items():
        counts = [count for _, count in sorted(each)]
        if counts != sorted(counts) or counts[-1] != found.values.get((f"{family}_count", labels)):
            raise Malformed(f"the buckets of {family} {labels} don't add up: {counts}")
