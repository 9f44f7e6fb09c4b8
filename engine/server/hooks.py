"""What Triton's tests tell a server by environment variables (contract, scheduling.md section 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actors.serving.policy.holding import StartAfter
from engine.settings.words import SettingsError

QUEUED: Final = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOGGED: Final = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


def read_start_after(environ: Mapping[str, str]) -> StartAfter:
    """Return how many requests a model's first batch waits for.

    Raises SettingsError if the value is not a whole number.
    """
    return StartAfter(_count(environ, QUEUED), _count(environ, BACKLOGGED))


def warnings_of(after: StartAfter) -> list[str]:
    """Return what an operator should know if such a variable was left set."""
    if after.queued:
        requests = f"{after.queued} requests wait"
        if after.backlogged:
            requests += f", and for sequences {after.backlogged} more in the backlog"
        return [
            f"{QUEUED} holds back the first batch of each model with dynamic or sequence batching until {requests}."
            " It is meant for tests; unset it otherwise"
        ]
    if after.backlogged:
        return [f"{BACKLOGGED} has no effect without {QUEUED}"]
    return []


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise SettingsError(
            f"{name} is '{text}', which is no number of requests", hint="such as 12; 0 holds nothing back"
        )
    return int(text)
