"""Traffic between versions on a real server: shares, sticky clients, compared copies, a bad version's end."""

import json
import math
from collections import Counter
from typing import Any

import pytest
import trio

from tests.survival.changing import CLIENTS, Workshop, policy
from tests.survival.repository import parameter

ALL = policy("all { }")
CHANGEABLE = ("--model-control-mode=explicit", "--load-model=split")


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


@pytest.fixture(params=[2_000, pytest.param(10_000, marks=pytest.mark.long)])
def requests(request):
    """How many requests are shared out."""
    return request.param


def planned(**plan):
    """Configuration text: serve all versions, by this plan."""
    return ALL + parameter("tritium.traffic", json.dumps(plan).replace('"', '\\"'))


async def ask(connection, model, ticket, **headers):
    """Have a model answer, and accept any answer."""
    asked = {"inputs": [{"name": "TICKET", "shape": [1], "datatype": "INT32", "data": [ticket]}]}
    return await connection.request(
        "POST", f"/v2/models/{model}/infer", json.dumps(asked).encode(), **headers
    )


async def versions_met(server, model, count, **headers):
    """Send `count` requests from CLIENTS connections; return how often each version answered."""
    met: Counter[Any] = Counter()
    left = iter(range(count))

    async def client():
        async with await server.connect() as connection:
            for ticket in left:
                response = await ask(connection, model, ticket, **headers)
                assert response.status == 200, response.error
                answered, version, _ = response.json()["outputs"][0]["data"]
                assert answered == ticket
                met[version] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(client)
    return met


async def traffic(server, model, plan=None):
    """Change the plan of a model, if one is given, and return how it is described."""
    body = b"" if plan is None else json.dumps(plan).encode()
    async with await server.connect() as connection:
        method = "GET" if plan is None else "POST"
        response = await connection.request(method, f"/v2/tritium/models/{model}/traffic", body)
        assert response.status == 200, response.error
        return response.json()


async def test_a_canary_gets_its_share(tritium_server, workshop, requests):
    workshop.model("split", versions=(1, 2), extra=planned(weights={"1": 90, "2": 10}))
    async with tritium_server(*CHANGEABLE) as server:
        met = await versions_met(server, "split", requests)
        assert sum(met.values()) == requests
        deviation = math.sqrt(requests * 0.9 * 0.1)
        assert abs(met[2] - requests / 10) < 6 * deviation  # which chance exceeds once in 500 million runs
        described = await traffic(server, "split")
        assert {each["version"]: each["requests"] for each in described["versions"]} == dict(met)
        assert await server.metric("tritium_traffic_requests_total", model="split", version="2") == met[2]

        await traffic(server, "split", {"weights": {"2": 1}})
        assert set(await versions_met(server, "split", 100)) == {2}
        await traffic(server, "split", {})
        assert set(await versions_met(server, "split", 100)) == {2}  # the highest, as without a plan
