"""Whether a server can give its strict workers control groups of their own, and what these hold. Pure.

A server may only divide a control group that was handed over to it. Three things show that: the group is the
server's to write; the service manager, where one runs the machine, says it has delegated it; and no process
of another program is in it, because a group that is divided can hold no processes itself.

Reference: `Documentation/admin-guide/cgroup-v2.rst` of the kernel ("Delegation", "No Internal Process
Constraint"), and "Control Group APIs and Delegation" of systemd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from actors.values.confinement import Confinement, Sandbox

NEEDED: Final = ("memory", "pids")
"""The controllers that a worker's group has."""

LEAF: Final = "tritium-server"
"""The group that a server moves itself to where it divides its own."""

HOMES: Final = "tritium-workers-"
"""How the name of a group begins that holds all workers of one server."""

NO_GROUP: Final = "a control group for each worker, with its memory and processes"
"""What is missing without one, in words for an operator."""

TASKS: Final = 4096
"""Threads that a worker may have beyond its processes. The kernel counts both alike."""


@dataclass(frozen=True, slots=True)
class Mount:
    """Where the hierarchy of version 2 is seen, and which of its groups is its uppermost there."""

    point: str
    root: str
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a server finds of the control group that it would divide."""

    path: str  # as a directory
    controllers: frozenset[str]  # that it may hand on
    enabled: frozenset[str]  # that it hands on already
    is_root: bool  # of the machine: it may hold processes and be divided
    writable: bool
    delegated: bool  # nothing says that it is a service manager's own
    other: int | None  # a process in it that the server has not started; not looked for in the machine's


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What one worker's group may take. 0: no limit."""

    memory: int  # bytes
    tasks: int  # processes and threads

    def files(self) -> Iterable[tuple[str, str]]:
        """Return what is written to which file of the group; the kernel may lack the second."""
        if self.memory:
            yield "memory.max", str(self.memory)
            yield "memory.swap.max", "0"
        yield "memory.oom.group", "1"
        yield "pids.max", str(self.tasks) if self.tasks else "max"


def limits_of(confinement: Confinement) -> GroupLimits | None:
    """Return the limits of a worker's group; None if it has no group, as all but strict ones."""
    if confinement.sandbox is not Sandbox.STRICT:
        return None
    return GroupLimits(confinement.memory, TASKS + confinement.processes)


def mounted(mountinfo: str) -> Mount | None:
    """Return where /proc/self/mountinfo says that the hierarchy of version 2 is mounted."""
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        words = fields.split()
        if kind.split()[:1] == ["cgroup2"] and len(words) > 5:
            root, point = (word.replace("\\040", " ") for word in words[3:5])
            return Mount(point, root, writable="rw" in words[5].split(","))
    return None


def group_of(cgroup: str, mount: Mount) -> str | None:
    """Return the directory of the group that /proc/self/cgroup names; None if the mount does not show it.

    A server that had moved itself, or whose service manager has put it there, stands in the leaf of the group
    that is divided.
    """
    name = next((line[3:] for line in cgroup.splitlines() if line.startswith("0::")), None)
    if name is None or ".." in PurePosixPath(name).parts:
        return None
    if mount.root != "/" and name != mount.root and not name.startswith(mount.root.rstrip("/") + "/"):
        return None
    below = PurePosixPath(name).relative_to(mount.root)
    path = PurePosixPath(mount.point) / below
    return str(path.parent if path.name == LEAF else path)


def why_none(found: Found | None) -> str:
    """Return why workers get no groups, with the remedy; "" if they get some."""
    if found is None:
        return "there is no hierarchy of control groups of version 2 here that shows this server's"
    if missing := [name for name in NEEDED if name not in found.controllers]:
        return f"'{found.path}' has no controller for {' and '.join(missing)}"
    if not found.delegated:
        return f"'{found.path}' is the service manager's: Delegate=memory pids in its unit hands it over"
    if not found.writable:
        return (
            f"'{found.path}' is not for this server to write:"
            " Delegate=memory pids without ProtectControlGroups in its unit, or a container whose control"
            " groups can be written, hands it over"
        )
    if found.other is not None and not set(NEEDED) <= found.enabled:
        return (
            f"process {found.other}, which is not the server's, is in '{found.path}' too: start the server"
            " in a group of its own"
        )
    return ""


def oom_kills(events: str) -> int:
    """Return how many processes the kernel has killed for memory, as a `memory.events` tells it."""
    return int(_numbers(events).get("oom_kill", 0))


def reached_limit(events: str) -> bool:
    """Whether it was the group's own limit of memory that was reached, by the same file."""
    return bool(_numbers(events).get("oom", 0))


def is_populated(events: str) -> bool:
    """Whether a process is in a group or below it, as a `cgroup.events` tells it."""
    return bool(_numbers(events).get("populated", 0))


def _numbers(text: str) -> Mapping[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}
