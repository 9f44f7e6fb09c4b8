"""The flags with which a run starts its server, and the faults that fit them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.faults import actors, certificates, collector, control, machine, repository, trace_file
from chaos.faults.base import Fault
from chaos.faults.network import clients, crowds, streams
from chaos.faults.regions import harms
from chaos.faults.workers import backends, deeds, hangs, languages, signals, starts


def catalogue(*families: Iterable[Fault]) -> Mapping[str, Fault]:
    """Return the faults of these families by name."""
    return {fault.name: fault for family in families for fault in family}


_ANY: Final = (
    *(signals.FAULTS, deeds.FAULTS, starts.FAULTS, hangs.FAULTS, languages.FAULTS, actors.FAULTS),
    *(clients.FAULTS, crowds.FAULTS, streams.FAULTS, machine.FAULTS),
    *(harms.FAULTS, certificates.FAULTS),
)


@dataclass(frozen=True, slots=True)
class Mode:
    """How the server learns of changes in its repository: it looks by itself, or it is told.

    No server does both. `writes_traces`: its traces go to a file, not to a collector. No server does both of
    these either.
    """

    name: str
    flags: Sequence[str]
    catalogue: Mapping[str, Fault]
    writes_traces: bool = False


POLL: Final = Mode(
    "poll", repository.POLLED, catalogue(*_ANY, collector.FAULTS, repository.FAULTS, control.REFUSED)
)
EXPLICIT: Final = Mode(
    "explicit",
    control.EXPLICIT,
    {
        name: fault
        for name, fault in catalogue(*_ANY, trace_file.FAULTS, control.FAULTS).items()
        if not name.startswith("watcher_")  # it has none
    },
    writes_traces=True,
)

MODES: Final[Mapping[str, Mode]] = {mode.name: mode for mode in (POLL, EXPLICIT)}

BACKENDS: Final = catalogue(
    *(signals.FAULTS, deeds.FAULTS, starts.FAULTS, hangs.FAULTS, languages.FAULTS, backends.FAULTS)
)
"""The faults of a run with one model of each backend, in any mode: those of workers."""

EVERY_FAULT: Final[Mapping[str, Fault]] = {**POLL.catalogue, **EXPLICIT.catalogue, **BACKENDS}
"""The faults of all runs, by name."""


def mode_of(seed: int) -> Mode:
    """Return the mode of a run that was not told: by turns."""
    return POLL if seed % 2 else EXPLICIT


def chosen(mode: Mode, only: Collection[str], *, backends: bool = False) -> Mapping[str, Fault]:
    """Return the faults of a mode, or `only` some; or of a run with one model of each backend.

    Raises ValueError for a name that is not one of its faults.
    """
    there = BACKENDS if backends else mode.catalogue
    strangers = sorted(set(only) - there.keys())
    if strangers:
        where = "with --backends" if backends else f"in {mode.name} mode"
        raise ValueError(
            f"no such fault of a server {where}: {', '.join(strangers)}; `python -m chaos faults` lists them"
        )
    return {name: fault for name, fault in there.items() if not only or name in only}


_ALONE: Final = ("server_stopped", "disk_full")
_ENDS_CONNECTIONS: Final = ("frontends_supervisor_crash", "http_connection_crash", "grpc_connection_crash")
_HOLDS_CONNECTIONS: Final = [
    each.name for each in (*clients.FAULTS, *crowds.FAULTS, *streams.FAULTS, *harms.FAULTS)
]
_TAKES_ALL: Final = frozenset(name for name in EVERY_FAULT if name.endswith("supervisor_crash")) | {
    "all_workers_sigkill",
    "backend_all_workers_sigkill",
}
_HAS_GUESTS: Final = [each.name for each in (*hangs.FAULTS, *streams.FAULTS, *harms.FAULTS)]

EXCLUSIONS: Final[Sequence[frozenset[str]]] = (
    _TAKES_ALL,
    *(frozenset({"corrupted_model", name}) for name in _TAKES_ALL),
    *(frozenset({takes, has}) for takes in _TAKES_ALL for has in _HAS_GUESTS),
    frozenset(each.name for each in collector.FAULTS),
    frozenset(each.name for each in harms.FAULTS),
    frozenset(each.name for each in certificates.FAULTS),
    *(frozenset({ends, holds}) for ends in _ENDS_CONNECTIONS for holds in _HOLDS_CONNECTIONS),
    *(frozenset({alone, name}) for alone in _ALONE for name in EVERY_FAULT if name != alone),
)
"""No two faults of one of these sets are injected together.

- One supervisor takes along what another has just started again.
- A model whose file is broken and whose workers are all gone can't come back.
- A fault that has models of its own asked accepts no error as an answer.
- What is traced is set for all requests.
- Clients with regions have one guest, and the metrics one certificate.
- A client that misbehaves has to see how its own connections fare.
- A server that stands still, or whose log has no room, tells nothing about anything else.
"""


def clashing(name: str, active: Collection[str]) -> Collection[str]:
    """Return the faults under way beside which this one must not begin; itself is one."""
    barred = {name}.union(*(together for together in EXCLUSIONS if name in together))
    return sorted(barred.intersection(active))
