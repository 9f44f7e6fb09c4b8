"""Draw the board from a server under load: `python -m tests.house.board` writes docs/board.svg.

A real server serves some models on loopback, clients ask them, and a request kills its worker now and then.
A real Prometheus (Debian: `prometheus`) scrapes the server every second. The queries are those of
`deploy/grafana/tritium.json`, with 5 s in place of Grafana's interval.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.house.board.chart import Line, drawn
from tests.house.board.load import Load, served
from tests.house.board.panels import ROOT, panels
from tests.house.board.prometheus import INTERVAL, is_installed, scraping

PICTURE: Final = ROOT / "docs" / "board.svg"


def draw(seconds: float, picture: Path) -> dict[str, list[Line]]:
    """Load a server for so long, and draw what its board shows of it. Returns the series by panel."""
    every = list(panels())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with (
            served(folder) as server,
            scraping(server.address("Metrics Service"), folder / "prometheus") as prometheus,
        ):
            prometheus.wait_scraped()
            began = prometheus.now()
            with Load(server.address()).running() as load:
                time.sleep(seconds)
            ended = prometheus.now()
            lines = {panel.title: list(prometheus.lines(panel, began, ended)) for panel in every}
    asked = sum(load.answers.values())
    caption = (
        f"{asked:,} requests of 7 clients in {ended - began:.0f} s, on loopback. Every 8 s one of them kills"
        f" its worker, until it is quarantined. Scraped every second; rates over {INTERVAL}."
    )
    picture.write_text(drawn(every, lines, ended - began, caption))
    return lines


def main() -> int:
    """Draw it; return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.board", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load [%(default)s]")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture [docs/board.svg]")
    options = parser.parse_args()
    if not is_installed():
        sys.stderr.write(
            "there is no `prometheus` to evaluate the queries: install it (Debian: prometheus)\n"
        )
        return 1
    lines = draw(options.seconds, options.out)
    empty = [panel.title for panel in panels() if panel.targets and not lines[panel.title]]
    sys.stdout.write(f"{options.out}: {len(lines) - len(empty)} panels; without data: {', '.join(empty)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
