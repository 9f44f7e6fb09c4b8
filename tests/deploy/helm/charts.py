"""The chart, rendered by Helm's own code, and the manifests that are kept of it (`golden/`).

Helm comes with `helm-python-sdk`, which the long tier installs: `HELM` in `tests.support.environments`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[3]
CHART: Final = ROOT / "deploy" / "helm" / "tritium"
VALUES: Final = Path(__file__).with_name("values")
GOLDEN: Final = Path(__file__).with_name("golden")
SETS: Final = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))
BOARD: Final = "<deploy/grafana/tritium.json>"
"""Stands for the board in what is kept."""

_BOARD: Final = re.compile(r"(?<=^  tritium\.json: \|-\n).*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)

Manifest = dict[str, Any]


def values_of(name: str) -> dict[str, Any]:
    """Return a set of values."""
    found: dict[str, Any] = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    return found


def rendered(
    values: Mapping[str, Any], *, release: str = "demo", namespace: str = "models"
) -> dict[str, str]:
    """Return the chart's templates with values, by name; those that are empty are left out.

    Raises the errors of `helm_python`, also for values that don't fit.
    """
    with import_module("helm_python.chart").Chart.load(CHART) as chart:
        # Two checks that `helm install` makes.
        chart.validate_schema(values)
        every = chart.render(values, name=release, namespace=namespace)
    return {name: text for name, text in every.items() if text.strip()}


def kept(every: Mapping[str, str]) -> str:
    """Return rendered manifests as one file, without the board."""
    parts = []
    for name, text in sorted(every.items()):
        if not name.endswith(".yaml"):
            continue
        lines = "\n".join(line.rstrip() for line in text.strip().removeprefix("---").strip().splitlines())
        parts.append(f"# {name.partition('/')[2]}\n{lines}\n")
    return _BOARD.sub(f"    {BOARD}\n", "---\n".join(parts))


def manifests(text: str) -> Iterator[Manifest]:
    """Yield the documents of YAML."""
    yield from (document for document in yaml.safe_load_all(text) if document)


def golden(name: str) -> list[Manifest]:
    """Return the manifests that are kept of a set of values."""
    return list(manifests((GOLDEN / f"{name}.yaml").read_text()))


def one(every: list[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the only manifest of a kind whose name ends so."""
    (found,) = (each for each in every if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return found


def servers(every: list[Manifest]) -> Manifest:
    """Return the Deployment of the servers."""
    (found,) = (
        each
        for each in every
        if each["kind"] == "Deployment"
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == "server"
    )
    return found


def container(every: list[Manifest]) -> Manifest:
    """Return the servers' container."""
    (found,) = servers(every)["spec"]["template"]["spec"]["containers"]
    return found
