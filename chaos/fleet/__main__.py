"""Rolls over servers of a fleet, under load, good ones and bad ones; a controller that is killed.

    python -m chaos.fleet [--replicas 4] [--story NAME …]
    python -m chaos.fleet --behind haproxy [--seconds 300] [--every 10]

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

from chaos.fleet.balancers import BALANCERS
from chaos.fleet.behind import endings
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
    parser.add_argument(
        "--behind", action="append", choices=[*BALANCERS], help="end servers behind this balancer instead"
    )
    parser.add_argument("--seconds", type=float, default=300, help="how long they are ended [%(default)g]")
    parser.add_argument(
        "--every", type=float, default=10, help="seconds from one end to the next [%(default)g]"
    )
    options = parser.parse_args(argv)
    if options.behind:
        findings = [trio.run(_end, proxy, options) for proxy in options.behind]
    else:
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


async def _end(proxy: str, options: argparse.Namespace) -> Finding:
    sys.stderr.write(f"behind {proxy} …\n")
    with tempfile.TemporaryDirectory() as folder:
        async with ground(Path(folder), options.replicas, **(RULES | {"settle_seconds": 1})) as made:
            return await endings(
                made, proxy, seconds=options.seconds, every=options.every, clients=options.clients
            )


if __name__ == "__main__":
    sys.exit(main())
