"""Waiting, refusal, overtaking and cancellation as clients see them.

The client is tritonclient.http, or a socket where that library hides too much.
"""

from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from tests.survival.repository import instances
from tests.survival.server import until
from tests.survival.triton_clients import ask, refusal
from tests.survival.wire import inference

pytestmark = pytest.mark.slow

MODEL = {"model": "gated"}
PENDING = "nv_inference_pending_request_count"
FAILURES = "nv_inference_request_failure"


class Asked:
    """Requests in flight, by ticket, and the order in which they were answered."""

    def __init__(self, server, gates, nursery):
        self._server = server
        self._gates = gates
        self._nursery = nursery
        self.served = []
        self.refused = {}

    async def begin(self, ticket, **options):
        """Send a request, and wait until the model has begun to run it."""
        self._nursery.start_soon(self._ask, ticket, options)
        await until(lambda: ticket in self._gates.began())

    async def queue(self, ticket, *, pending, **options):
        """Send a request, and wait until `pending` are queued."""
        self._nursery.start_soon(self._ask, ticket, options)
        await self._server.until_metric(pending, PENDING, **MODEL)

    async def _ask(self, ticket, options):
        assert await ask(self._server, ticket, **options) == ticket
        self.served.append(ticket)


@pytest.fixture
def asked(tritium_server, repository, gates):
    """Open a server with one gated model of a given configuration; its requests end with the block."""

    @asynccontextmanager
    async def opened(config, *, workers=1):
        repository.gated(gates.directory, config=instances(workers) + config)
        async with tritium_server() as server, trio.open_nursery() as nursery:
            yield server, Asked(server, gates, nursery)
            gates.open()

    return opened


async def test_a_full_queue_refuses_at_once_and_serves_those_it_took(asked, gates):
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    async with asked(policy) as (server, requests):
        await requests.begin(1)
        await requests.queue(2, pending=1)
        await requests.queue(3, pending=2)
        status, message = await refusal(server, 4, request_id="four")
        assert (status, message) == ("503", "[request id: four] Exceeds maximum queue size")
        async with await server.connect() as connection:
            await connection.send(inference("gated", {"TICKET": np.array([[5]], np.int32)}))
            refused = await connection.receive()
        assert (refused.status, int(refused.fields["retry-after"]) >= 1) == (503, True)
        assert requests.served == []
        gates.open()
        await until(lambda: sorted(requests.served) == [1, 2, 3])
        assert gates.began() == [1, 2, 3]
