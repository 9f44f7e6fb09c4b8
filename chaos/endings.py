"""The ways to end a server, each seen through to its end.

The server is told once, told twice, killed, and told while it hangs. The figures are
those for which `chaos.checker.rules.endings` sets limits.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from signal import SIGKILL, SIGTERM
from typing import Final

import psutil
import trio

from chaos.clients.clients import Clients
from chaos.record.history import End
from chaos.record.outcome import now
from chaos.record.records import Ending, Fail, Ok
from chaos.subject.server import PATIENCE, Server, ServerFailed
from chaos.wires.http import LOOPBACK
from chaos.workload.control import Control

WAITING: Final = 40
"""Requests that are under way when the server is told to end."""

EXIT_TIMEOUT: Final = 2
"""Seconds, the setting of the server of `sigterm_hung`."""

ENDLESS: Final = "echo-endless"
"""The model without a limit that `sigterm_hung` needs."""

# Seconds that the kernel may take to end what is left, on a busy machine.
_LINGER: Final = 5.0
# Seconds: a server that was told to end and is still ready after them will not end.
_READY_FOR: Final = 10.0
_OF_ITS_OWN: Final = re.compile(r"(socket|pipe|memory):\[")


class Traces:
    """What a server holds, noted while it runs, and what is left of it when it has ended."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._held = _held(psutil.Process(server.pid))

    async def figures(self) -> Mapping[str, float]:
        """Return how many processes, ports, pieces of memory and descriptors are left.

        Returns once there are none, or when that takes too long.
        """
        with trio.move_on_after(_LINGER):
            while any(self._left().values()):  # noqa: ASYNC110 (the kernel does it, and sends no event)
                await trio.sleep(0.01)
        return self._left()

    def _left(self) -> dict[str, float]:
        server = self._server
        ports = (server.http_port, server.grpc_port, server.metrics_port)
        held = [each for process in psutil.process_iter() for each in self._held & _held(process)]
        memory = sum(each.startswith("memory:") for each in held)
        return {
            "children": len(server.survivors()),
            "sockets": sum(map(_taken, ports)),
            "memory": memory,
            "descriptors": len(held) - memory,
        }


async def sigterm(server: Server, clients: Clients, control: Control) -> Ending:
    """Tell the server once, with many requests accepted.

    It is not ready at once, answers all of them, and ends with status 0.
    """
    traces = Traces(server)
    async with _requests_under_way(server, clients, control, "slow") as answers:
        told = now()
        server.signal(SIGTERM)
        not_ready = await _not_ready(server, told)
    status = await server.wait_ended()
    failed = [end for end in answers if not isinstance(end, Ok)]
    return Ending(
        t=told,
        how="sigterm",
        figures={
            "not_ready": not_ready,
            "accepted": len(answers),
            "dropped": len(failed),
            "drained": now() - told,
            "status": status,
            **await traces.figures(),
        },
        trouble="" if not failed else f"{len(failed)} of {len(answers)}, such as: {_said(failed[0])}",
    )


async def sigterm_twice(server: Server, clients: Clients, control: Control) -> Ending:
    """Tell the server again while it drains and can't come to an end.

    It goes at once, and takes all its processes along.
    """
    traces = Traces(server)
    async with _requests_under_way(server, clients, control, "hang"):
        server.signal(SIGTERM)
        await _not_ready(server, now())
        told = now()
        server.signal(SIGTERM)
        status = await server.wait_ended()
        ended = now() - told
    return Ending(
        t=told,
        how="sigterm_twice",
        figures={"ended": ended, "status": status, **await traces.figures()},
        trouble="" if status == 1 else f"the exit status is {status}, not 1",
    )


async def sigterm_hung(server: Server, clients: Clients, control: Control) -> Ending:
    """Tell the server once, while a model without a limit hangs.

    The server ends at its own limit, and the clients that wait are told.
    """
    traces = Traces(server)
    async with _requests_under_way(server, clients, control, "hang", ENDLESS) as answers:
        told = now()
        server.signal(SIGTERM)
        status = await server.wait_ended()
        late = now() - told - EXIT_TIMEOUT
    untold = [end for end in answers if not (isinstance(end, Fail) and end.code == "UNAVAILABLE")]
    return Ending(
        t=told,
        how="sigterm_hung",
        figures={
            "late": late,
            "accepted": len(answers),
            "untold": len(untold),
            "status": status,
            **await traces.figures(),
        },
        trouble="; ".join(
            [
                *([f"the exit status is {status}, not 1"] if status != 1 else []),
                *([f"{len(untold)} of {len(answers)}, such as: {_said(untold[0])}"] if untold else []),
            ]
        ),
    )


async def sigkill(server: Server, clients: Clients, control: Control) -> Ending:
    """Kill it in the middle of its work: nothing of it is left."""
    traces = Traces(server)
    async with _requests_under_way(server, clients, control, "slow"):
        told = now()
        server.signal(SIGKILL)
        await server.wait_ended()
    figures = await traces.figures()
    return Ending(t=told, how="sigkill", figures={"gone": now() - told, **figures})


@asynccontextmanager
async def _requests_under_way(
    server: Server, clients: Clients, control: Control, conduct: str, model: str = "echo"
) -> AsyncIterator[list[End]]:
    """Have `WAITING` requests accepted that can't be answered yet, and afterwards wait for the end of each.

    The ends go to the list that is yielded.
    """
    answers: list[End] = []

    async def ask(number: int) -> None:
        answers.append(await clients.send(model, protocol="http" if number % 2 else "grpc"))

    with control.hold(model, conduct):
        async with trio.open_nursery() as nursery:
            for number in range(WAITING):
                nursery.start_soon(ask, number)
            with trio.move_on_after(PATIENCE) as patience:
                # Requests that were sent need not wait if they are done, and two instances each hold two.
                while await server.metric("tritium_queue_depth", model=model) < WAITING - len(answers) - 4:  # noqa: ASYNC110
                    await trio.sleep(0.005)
            if patience.cancelled_caught:
                raise ServerFailed(f"{WAITING} requests did not come to wait: {server.last_words()}")
            yield answers


async def _not_ready(server: Server, told: float) -> float:
    """Return how long after `told` the server said that it is not ready, or stopped answering.

    Raises ServerFailed.
    """
    with trio.move_on_after(_READY_FOR):
        while await server.is_ready():  # noqa: ASYNC110 (another process's state)
            await trio.sleep(0.001)
        return now() - told
    raise ServerFailed(f"it is ready still, {_READY_FOR:g} s after SIGTERM")


def _said(end: End) -> str:
    return f"{end.code}: {end.message}" if isinstance(end, Fail) else repr(end)


def _taken(port: int) -> bool:
    """Whether any process listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def _held(process: psutil.Process) -> frozenset[str]:
    """Return what a process has open without a name that others could open: sockets, pipes, and memory."""
    return frozenset(each for each in _open_files(process) if _OF_ITS_OWN.match(each))


def _open_files(process: psutil.Process) -> Iterator[str]:
    """Yield what a process has open, as the kernel names it.

    Memory without a name is named by its number, because its label need not be unique.
    """
    folder = f"/proc/{process.pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                is_memory = target.startswith("/memfd:")
                yield f"memory:[{os.stat(f'{folder}/{name}').st_ino}]" if is_memory else target
