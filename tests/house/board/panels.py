"""The board and the alert rules as values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[3]
BOARD: Final = ROOT / "deploy" / "grafana" / "tritium.json"
RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yml"


@dataclass(frozen=True, slots=True)
class Target:
    """A query of a panel, and what its series are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel, or the heading of a row: `kind` is Grafana's. Places and sizes are of its grid, 24 wide."""

    title: str
    kind: str
    unit: str
    stacked: bool
    x: int
    y: int
    width: int
    height: int
    targets: tuple[Target, ...]


def board() -> Mapping[str, Any]:
    """Return the board's JSON."""
    document: Mapping[str, Any] = json.loads(BOARD.read_text())
    return document


def panels() -> Iterator[Panel]:
    """Yield the panels of the board, in the order of the file."""
    for each in board()["panels"]:
        place, defaults = each["gridPos"], each.get("fieldConfig", {}).get("defaults", {})
        yield Panel(
            title=each["title"],
            kind=each["type"],
            unit=defaults.get("unit", ""),
            stacked=defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal",
            x=place["x"],
            y=place["y"],
            width=place["w"],
            height=place["h"],
            targets=tuple(
                Target(target["expr"], target["legendFormat"]) for target in each.get("targets", ())
            ),
        )


def filled_in(expression: str, interval: str = "1m") -> str:
    """Return an expression of the board with its variables as where everything is chosen."""
    for name, value in (("$__rate_interval", interval), ("$instance", ".*"), ("$model", ".*")):
        expression = expression.replace(name, value)
    return expression


def expressions() -> Iterator[tuple[str, str]]:
    """Yield (where, expression) for all of the board: panels, annotations, and the lists of its variables."""
    for panel in panels():
        for target in panel.targets:
            yield panel.title, filled_in(target.expression)
    document = board()
    for annotation in document["annotations"]["list"]:
        yield annotation["name"], filled_in(annotation["expr"])
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            # Grafana asks for the values that a label has.
            inner = variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
            yield variable["name"], filled_in(inner)


def rules() -> Iterator[Mapping[str, Any]]:
    """Yield the alert rules."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]
