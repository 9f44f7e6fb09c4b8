"""Rolls over servers of a fleet, under load, good ones and bad ones; a controller that is killed.

    python -m chaos.fleet [--replicas 4] [--story NAME …]

Each story begins with servers of its own. At the end there is a line for each with its figures. The exit
status is 1 if something did not hold that must.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from chaos.fleet.ground import ground
from chaos.fleet.stories import STORIES, Finding, tell

RULES = {"settle_seconds": 3, "min_requests": 20, "max_error_rate": 0.05}


def main(argv: Sequence[str] | None = None) -> int:
    """Play the stories; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m chaos.fleet", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--replicas", type=int, default=4, help="servers side by side [%(default)s]")
    parser.add_argument("--clients", type=int, default=4, help="clients at once [%(default)s]")
    parser.add_argument(
        "--story", action="append", choices=[*STORIES], help="play this one; repeatable [all]"
    )
    options = parser.parse_args(argv)
    findings = [trio.run(_play, name, options) for name in options.story or STORIES]
    for each in findings:
        figures = ", ".join(f"{name} {value:.6g}" for name, value in each.figures.items())
        sys.stdout.write(f"{each.story}: {'; '.join(each.complaints) or 'as it must be'} ({figures})\n")
    return 1 if any(each.complaints for each in findings) else 0


async def _play(name: str, options: argparse.Namespace) -> Finding:
    sys.stderr.write(f"{name} …\n")
    with tempfile.TemporaryDirectory() as folder:
        async with ground(Path(folder), options.replicas, **RULES) as made:
            return await tell(name, made, clients=options.clients, pause=0.01)


if __name__ == "__main__":
    sys.exit(main())
