"""`--since` and `--until`, for the commands that read logs."""

from __future__ import annotations

import argparse
import math
from datetime import UTC, datetime

from engine.observability.reading.selecting import moment


def add_period(group: argparse._ArgumentGroup) -> None:
    """Add both options."""
    group.add_argument(
        "--since",
        metavar="TIME",
        help="not before TIME: 2026-11-21T01:57:53Z, 01:57 (UTC, today) or 5m (ago)",
    )
    group.add_argument("--until", metavar="TIME", help="not after TIME")


def period(options: argparse.Namespace) -> tuple[float, float]:
    """Return the first and the last moment that the options want, in seconds of the epoch. Raises NoTime."""
    now = datetime.now(UTC).timestamp()
    since = -math.inf if options.since is None else moment(options.since, now=now)
    until = math.inf if options.until is None else moment(options.until, now=now)
    return since, until
