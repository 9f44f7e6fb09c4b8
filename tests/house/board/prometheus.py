"""A Prometheus of our own that scrapes one server every second, and answers queries."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from tests.house.board.chart import Line
from tests.house.board.panels import Panel, filled_in

INTERVAL: Final = "5s"
"""Over which rates are taken: five scrapes."""

_POINTS: Final = 40
"""Of a line, at most."""


def is_installed() -> bool:
    """Whether there is a Prometheus (Debian: `prometheus`)."""
    return shutil.which("prometheus") is not None


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs, at `url`."""

    url: str

    def ask(self, path: str, **fields: object) -> Any:
        """Return the data of an answer of its API. Raises RuntimeError with what it complains of."""
        query = urllib.parse.urlencode(fields)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"{path} {fields}: {error.read().decode()[:400]}") from error

    def now(self) -> float:
        """Return the time by its clock."""
        return float(self.ask("query", query="time()")["result"][0])

    def wait_answers(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it has read what it kept, and answers."""
        while process.poll() is None:
            try:
                self.now()
            except (OSError, RuntimeError):
                time.sleep(0.05)
            else:
                return
        raise RuntimeError("Prometheus ended while it started")

    def wait_scraped(self, within: float = 30.0) -> None:
        """Wait until it has scraped its server."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            targets = self.ask("targets")["activeTargets"]
            if targets and all(each["health"] == "up" for each in targets):
                return
            time.sleep(0.1)
        raise RuntimeError(f"nothing was scraped: {self.ask('targets')}")

    def lines(self, panel: Panel, begin: float, end: float) -> Sequence[Line]:
        """Return the series that a panel shows of this time, those of which all is zero last."""
        found = []
        step = max(1, math.ceil((end - begin) / _POINTS))
        for target in panel.targets:
            query = filled_in(target.expression, INTERVAL)
            data = self.ask("query_range", query=query, start=begin, end=end, step=step)
            for series in data["result"]:
                points = [(when - begin, float(value)) for when, value in series["values"]]
                points = [(when, value) for when, value in points if value == value]
                if points:
                    found.append(Line(_named(target.legend, series["metric"]), points))
        return sorted(found, key=lambda line: not any(value for _, value in line.points))


def _named(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    return legend


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """Run one that scrapes `target`, a host and port, every second."""
    folder.mkdir(exist_ok=True)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "tritium", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            prometheus = Prometheus(f"http://127.0.0.1:{_port(process, folder / 'log')}")
            prometheus.wait_answers(process)
            yield prometheus
        finally:
            process.terminate()
            process.wait(30)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port that the kernel chose for it."""
    while process.poll() is None:
        for each in psutil.Process(process.pid).net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN:
                return int(each.laddr.port)
        time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not start: {log.read_text()}")
