"""Servers that are killed and ended one after the other, behind a balancer, while clients ask."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from signal import SIGKILL, SIGTERM

import trio

from chaos.fleet.balancers import balancer
from chaos.fleet.ground import GOOD, Ground
from chaos.fleet.load import Tally, ask
from chaos.fleet.stories import Finding
from chaos.subject.ports import free_ports


async def until_answers(port: int, *, within: float = 30) -> None:
    """Wait until the model is answered for at a port."""
    with trio.fail_after(within):
        tally = Tally()
        while not tally.answers:
            with trio.move_on_after(1):
                await ask([port], tally, pause=0.05)


async def endings(ground: Ground, proxy: str, *, seconds: float, every: float, clients: int) -> Finding:
    """Kill one server and end another every so many seconds, and start them again; count what clients saw."""
    finding, tally = Finding(f"endings behind {proxy}"), Tally()
    ground.want(GOOD)
    controller = ground.controller()
    http_port, grpc_port = free_ports(2)
    try:
        await ground.until_all_serve(GOOD)
        with balancer(ground.file, proxy, http_port, grpc_port, "--idempotent"):
            await until_answers(http_port)
            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(partial(ask, [http_port], tally, pause=0.005))
                ends = await _end_by_turns(ground, seconds, every)
                nursery.cancel_scope.cancel()
    finally:
        controller.kill()
    finding.figures |= {
        "requests": tally.total,
        "errors": sum(tally.errors.values()),
        "slowest_seconds": tally.slowest,
        "ended": ends,
    }
    finding.must(not tally.errors, f"clients saw errors: {tally.said[:3]}")
    return finding


async def _end_by_turns(ground: Ground, seconds: float, every: float) -> int:
    ends = 0
    turns = cycle(zip(cycle(ground.names), cycle([SIGKILL, SIGTERM]), strict=False))
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        next_at = trio.current_time() + every
        name, number = next(turns)
        server = ground.servers[name]
        server.signal(number)
        await server.wait_ended()
        await trio.to_thread.run_sync(server.kill_all)  # what it left; clients ask on meanwhile
        ground.restart(name)
        ends += 1
        await ground.servers[name].wait_ports()
        await ground.until_all_serve(GOOD)
        await trio.sleep_until(next_at)
    return ends
