"""Text of other programs, read into values: wrk, h2load, /proc and the server's tree.

Pure; tested on captured text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.results import Load, percentile

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"([\d.]+)(us|ms|s|m|h)")


class UnreadableOutput(Exception):
    """A load client said something that its parser does not know."""


def duration(text: str) -> float:
    """Return seconds for wrk's and h2load's way of writing them: `59.00us`, `3.45ms`, `1.00s`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UnreadableOutput(f"{text!r} is no duration such as 59.00us or 3.45ms")
    return float(match[1]) * _SECONDS[match[2]]


def _find(pattern: str, text: str, program: str) -> re.Match[str]:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise UnreadableOutput(f"{program} printed nothing like {pattern!r}:\n{text.strip()[-500:]}")
    return match


def wrk(text: str) -> Load:
    """Read what `wrk --latency` prints.

    Every answer that is not 2xx or 3xx, and every socket error, is an error.
    """
    total = _find(r"^\s*(\d+) requests in ([\d.]+\w+),", text, "wrk")
    sockets = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    statuses = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return Load(
        requests=int(total[1]),
        seconds=duration(total[2]),
        rate=float(_find(r"^Requests/sec:\s+([\d.]+)", text, "wrk")[1]),
        p50=duration(_find(r"^\s+50%\s+(\S+)$", text, "wrk")[1]),
        p99=duration(_find(r"^\s+99%\s+(\S+)$", text, "wrk")[1]),
        errors=sum(map(int, sockets.groups())) if sockets else 0,
        refused=int(statuses[1]) if statuses else 0,
    )


def h2load(text: str, log: str) -> Load:
    """Read what h2load prints, and the latencies from its `--log-file`.

    A line of that file holds start, status and microseconds.
    """
    finished = _find(r"^finished in ([\d.]+\w+), ([\d.]+) req/s", text, "h2load")
    requests = _find(
        r"^requests: \d+ total, \d+ started, (\d+) done, \d+ succeeded, (\d+) failed, (\d+) errored",
        text,
        "h2load",
    )
    statuses = _find(r"^status codes: \d+ 2xx, (\d+) 3xx", text, "h2load")
    latencies = sorted(int(line.split("\t")[2]) * 1e-6 for line in log.splitlines())
    # h2load counts an errored request as failed too, and a redirect as a success.
    failed, errored = int(requests[2]), int(requests[3])
    return Load(
        requests=int(requests[1]),
        seconds=duration(finished[1]),
        rate=float(finished[2]),
        p50=percentile(latencies, 50),
        p99=percentile(latencies, 99),
        errors=errored,
        refused=failed - errored + int(statuses[1]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One line of /proc/<pid>/stat.

    `pid` and `started` together name a process for as long as the machine runs.
    """

    pid: int
    parent: int
    started: int  # clock ticks since boot
    # CPU time, user and system, its own and of the children that it has waited for.
    ticks: int
    zombie: bool


def proc_stat(text: str) -> ProcessStat:
    """Read /proc/<pid>/stat.

    The command's name is in parentheses and may hold any character, these included.
    """
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(")")[2].split()  # fields[0] is field 3 of proc_pid_stat(5)
    return ProcessStat(
        pid=int(pid),
        parent=int(fields[1]),
        started=int(fields[19]),
        ticks=sum(map(int, fields[11:15])),
        zombie=fields[0] == "Z",
    )


def resident_bytes(status: str) -> int:
    """Read VmRSS from /proc/<pid>/status; 0 if there is none (a zombie)."""
    match = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def worker_pids(tree: Mapping[str, Any], model: str) -> tuple[int, ...]:
    """Return the processes of a model's instances, from the snapshot of the server's tree, in its order.

    A node is a mapping with `name`, `children` (nodes) and `info`, where an instance publishes its `pid`.
    """
    return tuple(_pids(tree, model, ()))


def _pids(node: Mapping[str, Any], model: str, above: Sequence[str]) -> Iterator[int]:
    path = (*above, *str(node.get("name", "")).split("/"))
    pid = (node.get("info") or {}).get("pid")
    if isinstance(pid, int) and model in path:
        yield pid
    for child in node.get("children") or ():
        yield from _pids(child, model, path)
