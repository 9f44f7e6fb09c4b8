"""How a server ends: asked once, asked twice, out of patience, and killed."""

import os
import signal
from contextlib import asynccontextmanager

import numpy as np
import psutil
import pytest
import trio

from chaos.subject.processes import alive
from tests.support.tiers import mostly_long
from tests.survival.repository import instances
from tests.survival.server import until
from tests.survival.storm import Storm
from tests.survival.wire import Lost, inference, message

PENDING = "nv_inference_pending_request_count"


def ticket(number):
    """The bytes of a request to the gated model."""
    return inference("gated", {"TICKET": np.array([[number]], np.int32)})


@asynccontextmanager
async def requests_in_hand(server, gates, count):
    """Have the gated model accept `count` requests, one of them running; yields their connections."""
    connections = [await server.connect() for _ in range(count)]
    try:
        for number, connection in enumerate(connections, 1):
            await connection.send(ticket(number))
            await until(lambda: gates.began() == [1])
            await server.until_metric(number - 1, PENDING, model="gated")
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def wait_refusing(server):
    """Wait until the server accepts no connection any more."""
    with trio.fail_after(60):
        while True:
            try:
                (await server.connect()).close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                pass  # it waited in the backlog of a listener that was closed
            await trio.sleep(0.01)


async def test_told_to_end_it_answers_what_it_accepted_and_tells_others_that_it_exits(
    tritium_server, repository, gates
):
    repository.gated(gates.directory)
    async with tritium_server() as server:
        idle, asking = await server.connect(), await server.connect()
        assert (await idle.request("GET", "/v2/health/ready")).status == 200
        question = message("GET", "/v2/health/ready")
        await asking.send(question[:20])
        async with requests_in_hand(server, gates, 4) as connections:
            server.signal(signal.SIGTERM)
            await wait_refusing(server)
            await asking.send(question[20:])
            answer = await asking.receive()
            assert (answer.status, answer.error) == (503, "Server exiting")
            await idle.wait_closed()
            await asking.wait_closed()
            assert server.status is None
            gates.open()
            for number, connection in enumerate(connections, 1):
                response = await connection.receive()
                assert response.tensors()["SERVED"] == number
                assert response.fields["connection"] == "close"
        idle.close()
        asking.close()
        assert await server.wait_ended() == 0
        assert [line["signal"] for line in server.logged("server_draining")] == ["SIGTERM"]
        assert server.logged("server_stopped")


@pytest.mark.parametrize("number", mostly_long([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
async def test_ended_under_load_every_request_it_took_has_an_answer(tritium_server, repository, number):
    repository.onnx_add_sub()
    repository.python_add_sub()
    async with tritium_server("--log-requests=true") as server:
        storm = Storm(server)

        async def client(model):
            # The connection ends, or is refused, at some time. An answer that was begun is whole, or it is an
            # error.
            with pytest.raises((Lost, OSError)):
                await storm.client(model, reconnect=False)

        async with trio.open_nursery() as nursery:
            for model in ("onnx_add_sub", "python_add_sub"):
                for _ in range(4):
                    nursery.start_soon(client, model)
            await server.until_metric_above(500, "nv_inference_request_success", model="onnx_add_sub")
            server.signal(number)
        assert await server.wait_ended() == 0
        for tally in storm.tallies.values():
            assert not tally.wrong
            assert not tally.errors
        # The number of answers that the server reports is the number that clients got.
        answered = sum(tally.answered for tally in storm.tallies.values())
        assert len(server.logged("request_completed")) == answered
        assert not server.logged("request_failed")


async def test_told_twice_it_ends_at_once(tritium_server, repository, gates):
    repository.gated(gates.directory)
    async with tritium_server(exit_status=1) as server:
        async with requests_in_hand(server, gates, 2) as connections:
            workers = server.descendants()
            assert workers
            server.signal(signal.SIGTERM)
            await wait_refusing(server)
            server.signal(signal.SIGTERM)
            assert await server.wait_ended() == 1
            for connection in connections:
                answer = await connection.receive()
                assert answer.status == 503
                assert b"not answered before a second signal" in answer.body
        await until(lambda: not any(alive(worker) for worker in workers))


async def test_killed_it_leaves_no_worker_and_no_spare_behind(tritium_server, repository, gates):
    repository.gated(gates.directory)
    repository.onnx_add_sub(config=instances(1))
    async with tritium_server("--spare-workers=2", exit_status=-signal.SIGKILL) as server:
        await server.until_metric(2, "tritium_spare_workers")
        async with requests_in_hand(server, gates, 1):  # a worker in the middle of its model's code
            started = server.descendants()
            workers = {*await server.workers("gated"), *await server.workers("onnx_add_sub")}
            assert workers < {each.pid for each in started}
            server.signal(signal.SIGKILL)
            await server.wait_ended()
        await until(lambda: not any(alive(each) for each in started))


@pytest.mark.long  # a worker has seven seconds to obey
async def test_a_stopped_worker_does_not_hold_up_the_end(tritium_server, repository):
    repository.onnx_add_sub(config=instances(1))
    async with tritium_server() as server:
        (worker,) = await server.workers("onnx_add_sub")
        os.kill(worker, signal.SIGSTOP)
        server.signal(signal.SIGTERM)
        assert await server.wait_ended() == 0
        assert not psutil.pid_exists(worker)
