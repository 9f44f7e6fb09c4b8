"""Metric families: what is told of a feature in numbers, declared next to the feature.

A family reads its value of a sample that the feature gives: its counters, or what it knows at the moment.
Samples become blocks, which `engine.observability.metrics` writes as text. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

Number = int | float
MetricKind = Literal["counter", "gauge", "histogram", "summary"]


class Labels:
    """The labels of a series, put into words once: a model has as many series as there are families."""

    __slots__ = ("named", "text")

    def __init__(self, named: Mapping[str, str]) -> None:
        self.named = named
        self.text = _in_words(named)

    def also(self, more: Mapping[str, str] | None) -> Labels:
        """Return these labels and more."""
        return Labels({**self.named, **more}) if more else self


def _in_words(labels: Mapping[str, str]) -> str:
    """Return labels as they stand in a line, alphabetical by name; nothing for none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


UNLABELLED: Final = Labels({})
"""The labels of what there is once in a server."""


class Series(NamedTuple):
    """One series: its labels, its value, and what follows the family's name (`_sum`, `_bucket`)."""

    labels: Labels
    value: Number
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A family as it is at a scrape. One without series is not told of."""

    name: str
    kind: MetricKind
    help: str
    series: Sequence[Series]


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """A family with one series a sample, or none where the value is None."""

    name: str
    kind: MetricKind
    help: str
    read: Callable[[T], Number | None]

    def block(self, samples: Iterable[tuple[Labels, T]]) -> Block:
        """Return the family with the series of these samples."""
        read = self.read
        series = [Series(labels, value) for labels, sample in samples if (value := read(sample)) is not None]
        return Block(self.name, self.kind, self.help, series)


@dataclass(frozen=True, slots=True)
class Slice:
    """One of several series of a sample: its value, the labels it has besides, its suffix."""

    value: Number
    labels: Mapping[str, str] | None = None
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class SplitFamily(Generic[T]):
    """A family with several series a sample: by reason, by version, by quantile."""

    name: str
    kind: MetricKind
    help: str
    read: Callable[[T], Iterable[Slice]]

    def block(self, samples: Iterable[tuple[Labels, T]]) -> Block:
        """Return the family with the series of these samples."""
        return Block(
            self.name,
            self.kind,
            self.help,
            [
                Series(labels.also(each.labels), each.value, each.suffix)
                for labels, sample in samples
                for each in self.read(sample)
            ],
        )


Families = Sequence[Family[T] | SplitFamily[T]]


def by(label: str, values: Iterable[tuple[object, Number]]) -> Iterator[Slice]:
    """Yield a series for each (value of the label, number)."""
    return (Slice(number, {label: str(name)}) for name, number in values)


def blocks(families: Families[T], samples: Sequence[tuple[Labels, T]]) -> Iterator[Block]:
    """Yield each family with the series of these samples."""
    return (family.block(samples) for family in families)


def once(families: Families[T], sample: T) -> Iterator[Block]:
    """Yield each family of what there is once in a server."""
    return blocks(families, [(UNLABELLED, sample)])


def model_labels(name: str, namespace: str = "", version: int | None = None) -> dict[str, str]:
    """Return the labels of a model, or of a version of it."""
    labels = {"model": name}
    if version is not None:
        labels["version"] = str(version)
    return {**labels, "namespace": namespace} if namespace else labels
