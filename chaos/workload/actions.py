"""The harm that a reference model can do to itself: the closed list, and what each is.

A Python model is told in two ways: by a request, in its input POISON, and by files
(`chaos.workload.control`). It does the deed when it has written in its journal that it has begun. A hang ends
by itself after a minute, in case the server does not end it. What takes memory stops at twice the model's
limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ACTIONS: Final[Mapping[str, str]] = {
    "raise": "an exception leaves execute: the whole batch fails",
    "raise_member": "one request of the batch gets an error response: the poisoned one, or the first",
    "hang": "sleeps in Python",
    "hang_lock": "sleeps in C and holds the interpreter lock",
    "segv": "reads address 0",
    "exit0": "ends its process in mid-request, with status 0",
    "oom": "takes memory up to twice its limit",
    "close_frames": "closes its connection to the server",
    "garbage_frames": "writes nonsense to the server",
    "slow": "takes twenty times as long",
    "leak_descriptors": "opens descriptors until there are none, and answers",
    "flood_stdout": "prints 2 MiB, and answers",
}
"""By name, what a model does in an execution."""

STARTING: Final[Mapping[str, str]] = {
    "init_fail": "initialize raises",
    "init_hang": "initialize sleeps",
}
"""By name, what a model does as it is loaded; only files tell it to."""
