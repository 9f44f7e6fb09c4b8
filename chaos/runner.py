"""One run, from an empty folder to the record of everything that happened.

`chaos.checker` judges it.
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, TextIO

import psutil
import trio

from chaos import endings
from chaos.clients.clients import PATIENCE, Clients, open_clients
from chaos.clients.mix import EACH_BACKEND, ORDINARY, OVERLOAD, Kind, arrivals
from chaos.clients.tales import TaleClients
from chaos.conductor import Conductor
from chaos.faults.base import Fault, Stage
from chaos.faults.certificates import served_files
from chaos.faults.collector import reserved_port, tracing_flags
from chaos.faults.regions.asking import SHARED_MEMORY
from chaos.faults.trace_file import file_flags
from chaos.languages import serving as tales
from chaos.plan import Plan
from chaos.record.history import History
from chaos.record.outcome import now
from chaos.record.records import Ending, Manifest, Phase, Tally, line_of, write_manifest
from chaos.subject.sabotage import SabotageClient
from chaos.subject.server import Server, ServerFailed
from chaos.wires.http import Broken
from chaos.workload.answers import TALE
from chaos.workload.backends.writing import write_backends
from chaos.workload.control import Control
from chaos.workload.repository import INSTANCES, SLOW_CAPACITY, write_model, write_repository

OVERLOAD_FACTOR: Final = 3.0
"""The overloaded model is sent so many times what it can answer."""

# Seconds from the server being ready to the beginning of a run.
_LEAD: Final = 0.5
_TELLERS: Final = 4  # clients of the language model
_PACE: Final = 0.01  # seconds of a step of its engines
_SAMPLES_EVERY: Final = 0.5  # seconds

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run is made of, apart from its plan."""

    folder: Path  # for the record; it must not hold another's
    catalogue: Mapping[str, Fault]
    flags: Sequence[str]  # of the server
    writes_traces: bool = False  # to a file, and exports none
    command: str  # that a reader can repeat
    end: bool = True  # with the ways to end a server
    # The kinds of `chaos.workload.backends` that are there beside the reference repository.
    backends: Sequence[str] = ()
    tensorflow: str = ""  # the directory of an environment that has it

    @property
    def load(self) -> Sequence[Kind]:
        """What clients ask in all phases."""
        return (*ORDINARY, *(Kind(model=each, weight=EACH_BACKEND) for each in self.backends))


class FolderTaken(Exception):
    """There is something in the folder already."""


async def run(plan: Plan, setting: Setting, tell: Tell) -> None:
    """Do what is planned and write the record.

    Raises FolderTaken, and ServerFailed if the server ended by itself.
    """
    folder = setting.folder
    if folder.is_dir() and any(folder.iterdir()):
        raise FolderTaken(
            f"there is something in {folder} already; name a folder that is empty, or not there"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_repository(folder / "models", run=folder)
    write_backends(
        folder / "models",
        setting.backends,
        run=folder,
        backends=folder / "backends",
        tensorflow=setting.tensorflow,
    )
    tales.write_model(folder / "models", TALE, pace=_PACE, instances=INSTANCES)
    with ExitStack() as stack:
        history = stack.enter_context(History(folder / "history.jsonl"))
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        collector = 0 if setting.writes_traces else stack.enter_context(reserved_port())
        traces = file_flags(folder) if setting.writes_traces else tracing_flags(collector)
        certificates = served_files(folder / "tls")
        flags = [*traces, *(certificates.flags if certificates else ())]
        async with _serving(setting, sockets / "1", *flags) as (server, sabotage):
            server.trust = certificates.trust if certificates else None
            async with open_clients(
                history, server.http_port, server.grpc_port, kinds=setting.load, seed=plan.seed
            ) as clients:
                stage = Stage(
                    server=server,
                    sabotage=sabotage,
                    repository=folder / "models",
                    control=Control(folder),
                    send=clients.send,
                    folder=folder,
                    collector=collector,
                    certificates=certificates,
                )
                await _phases(plan, setting, server, stage, clients, tell)
                tally = await _tally(server, clients)
                (folder / "tally.jsonl").write_text(line_of(tally) + "\n")
                if setting.end:
                    await _endings(setting, server, clients, sockets, tell)


@asynccontextmanager
async def _serving(
    setting: Setting, sabotage: Path, *more: str
) -> AsyncIterator[tuple[Server, SabotageClient]]:
    """Have a server around the block; nothing of it is left afterwards. Raises ServerFailed."""
    folder = setting.folder
    flags = (
        *setting.flags,
        f"--backend-directory={folder / 'backends'}",
        "--log-requests=true",
        "--openai-port=0",
        SHARED_MEMORY,
        *more,
    )
    server = Server.start(folder / "models", folder / "server", *flags, sabotage=sabotage)
    try:
        await server.wait_ready()
        yield server, SabotageClient(sabotage)
    finally:
        server.kill_all()


async def _phases(
    plan: Plan, setting: Setting, server: Server, stage: Stage, clients: Clients, tell: Tell
) -> None:
    folder = setting.folder
    began = now() + _LEAD
    write_manifest(folder, _manifest(plan, setting, began))
    with ExitStack() as stack:
        faults = stack.enter_context((folder / "faults.jsonl").open("w"))
        samples = stack.enter_context((folder / "samples.jsonl").open("w"))
        conductor = Conductor(stage, clients, setting.catalogue, faults, tell)
        async with trio.open_nursery() as beside:
            beside.start_soon(_must_go_on, server)
            beside.start_soon(_follow_phases, plan, clients, began, tell)
            beside.start_soon(_take_samples, server, clients, samples)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conductor.run, plan, began)
                nursery.start_soon(_load, plan, setting.load, clients, began)
                nursery.start_soon(_overload, plan, clients, began)
                nursery.start_soon(_tell, plan, server, clients, began)
            beside.cancel_scope.cancel()


async def _load(plan: Plan, kinds: Sequence[Kind], clients: Clients, began: float) -> None:
    users = arrivals(kinds, plan.rate, plan.seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(clients.last, begin=began, until=began + plan.seconds))
        await clients.load(users, begin=began, until=began + plan.seconds)


async def _tell(plan: Plan, server: Server, clients: Clients, began: float) -> None:
    """Have some clients ask the language model for streams, beside the load."""
    tellers = TaleClients(clients, server.openai_port, patience=PATIENCE)
    async with trio.open_nursery() as nursery:
        for number in range(_TELLERS):
            asking = partial(tellers.ask_on, number, begin=began, until=began + plan.seconds)
            nursery.start_soon(asking)


async def _overload(plan: Plan, clients: Clients, began: float) -> None:
    for span in plan.phases:
        if span.phase == "overload":
            await trio.sleep(max(0.0, began + span.begin - now()))
            users = arrivals(OVERLOAD, OVERLOAD_FACTOR * SLOW_CAPACITY, plan.seed + 1)
            await clients.load(users, begin=began + span.begin, until=began + span.end)


async def _follow_phases(plan: Plan, clients: Clients, began: float, tell: Tell) -> None:
    for span in plan.phases:
        await trio.sleep(max(0.0, began + span.begin - now()))
        clients.phase = span.phase
        tell(f"-- {span.phase}, {span.end - span.begin:.0f} s")


async def _must_go_on(server: Server) -> None:
    """Raise ServerFailed once the server has ended: nothing in a run may end it."""
    await server.wait_ended(within=math.inf)
    raise ServerFailed(f"the server ended in the middle of a run: {server.last_words()}")


async def _take_samples(server: Server, clients: Clients, out: TextIO) -> None:
    while True:
        with suppress(psutil.NoSuchProcess):
            out.write(line_of(await server.sample(clients.phase)) + "\n")
        out.flush()
        await trio.sleep(_SAMPLES_EVERY)


async def _tally(server: Server, clients: Clients) -> Tally:
    try:
        violations = await server.metric("tritium_reply_violations_total")
    except (OSError, Broken) as error:
        raise ServerFailed(
            f"it does not tell its metrics at the end: {error}; {server.last_words()}"
        ) from error
    return Tally(t=now(), surplus=clients.surplus, violations=int(violations))


# -- the end


_MORE_ENDINGS: Final = (
    (endings.sigterm_twice, ()),
    (endings.sigterm_hung, (f"--exit-timeout-secs={endings.EXIT_TIMEOUT}",)),
    (endings.sigkill, ()),
)
"""The endings for which another server is started, and its flags beside those of the mode."""


async def _endings(setting: Setting, server: Server, clients: Clients, sockets: Path, tell: Tell) -> None:
    """End the server, and other servers that are started for this, in each way there is."""
    control = Control(setting.folder)
    clients.phase = "ending"
    with (setting.folder / "endings.jsonl").open("w") as out:
        _write(out, await _seen("sigterm", endings.sigterm(server, clients, control)), tell)
        write_model(setting.folder / "models", endings.ENDLESS, run=setting.folder, timeout=None)
        for number, (end, flags) in enumerate(_MORE_ENDINGS, 2):
            async with _serving(setting, sockets / str(number), *flags) as (another, _):
                clients.retarget(another.http_port, another.grpc_port)
                _write(out, await _seen(end.__name__, end(another, clients, control)), tell)


async def _seen(how: str, ending: Awaitable[Ending]) -> Ending:
    """See an ending through.

    An ending that never completes reports only that, and the next ending is tried all the same.
    """
    began, failures = now(), list[str]()
    seen: Ending | None = None
    try:
        seen = await ending
    except* ServerFailed as group:
        failures += map(str, group.exceptions)
    return seen or Ending(t=began, how=how, figures={}, trouble="; ".join(failures))


def _write(out: TextIO, ending: Ending, tell: Tell) -> None:
    out.write(line_of(ending) + "\n")
    figures = ", ".join(f"{name} {value:.3g}" for name, value in ending.figures.items())
    tell(f"-- {ending.how}: {figures}{f': TROUBLE, {ending.trouble}' if ending.trouble else ''}")


# -- what a run was


def _manifest(plan: Plan, setting: Setting, began: float) -> Manifest:
    phases: list[tuple[Phase, float, float]] = [
        (span.phase, began + span.begin, began + span.end) for span in plan.phases
    ]
    return Manifest(
        seed=plan.seed,
        minutes=plan.minutes,
        rate=plan.rate,
        faults_per_minute=plan.faults_per_minute,
        began=began,
        began_wall=time.clock_gettime(time.CLOCK_REALTIME) + (began - now()),
        version=version("tritium"),
        machine=_machine(),
        command=setting.command,
        phases=phases,
    )


def _machine() -> str:
    gibibytes = psutil.virtual_memory().total / (1 << 30)
    return f"{os.cpu_count()} cores, {gibibytes:.0f} GiB, {platform.system()}, Python {platform.python_version()}"
