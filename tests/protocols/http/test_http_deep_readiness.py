"""`/v2/health/ready?deep=1`: the report as the body, the plain endpoint's statuses."""

import json

import pytest

from actors.values.callers import Action
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import Client

PART = {"part": "model add version 1", "ready": True, "since": "2027-01-15T08:00:00.000Z", "seconds": 0.003}
JSON = {"content-type": "application/json"}
DEEP = "/v2/health/ready?deep=1"


@pytest.fixture
def backend():
    server = FakeServer()
    server.health.parts = [PART]
    return server


@pytest.fixture
def client(backend):
    return Client(V2App(backend.server), native=False)


@pytest.mark.parametrize("query", ["deep=1", "deep=true", "a=b&deep=1", "deep=1&deep=0"])
async def test_a_deep_probe_is_answered_with_its_report(client, backend, query):
    status, fields, body = await client.ask("GET", f"/v2/health/ready?{query}")
    assert (status, fields) == (200, JSON)
    assert json.loads(body) == {"ready": True, "live": True, "parts": [PART]}
    assert backend.health.deep_probes == 1


async def test_a_deep_probe_that_fails_has_the_plain_ones_status(client, backend):
    backend.health.is_ready = False
    status, fields, body = await client.ask("GET", DEEP)
    assert (status, fields, json.loads(body)["ready"]) == (400, JSON, False)


@pytest.mark.parametrize("query", ["", "deep=0", "deep=false", "verbose", "deeper=1", "&&"])
async def test_any_other_query_is_the_plain_probe(client, backend, query):
    assert await client.ask("GET", f"/v2/health/ready?{query}") == (200, {}, b"")
    assert backend.health.deep_probes == 0


@pytest.mark.parametrize("query", ["deep", "deep=", "deep=yes", "deep=%31", "deep=\xff"])
async def test_a_value_that_says_neither_is_refused(client, backend, query):
    status, _, body = await client.ask("GET", f"/v2/health/ready?{query}")
    assert (status, "for 'deep': expected 1 or 0" in json.loads(body)["error"]) == (400, True)
    assert backend.health.deep_probes == 0


async def test_a_server_that_exits_makes_no_probes(client, backend):
    backend.health.exiting = True
    status, _, body = await client.ask("GET", DEEP)
    assert (status, json.loads(body)) == (503, {"error": "Server exiting"})
    assert backend.health.deep_probes == 0


async def test_a_deep_probe_belongs_to_the_restricted_category_health(backend):
    options = V2Options(restricted={Action.HEALTH: ("admin", "s3cret")})
    client = Client(V2App(backend.server, options=options), native=False)
    assert (await client.ask("GET", DEEP))[0] == 403
    assert backend.health.deep_probes == 0


async def test_liveness_has_no_depth(client, backend):
    assert await client.ask("GET", "/v2/health/live?deep=1") == (200, {}, b"")
    assert backend.health.deep_probes == 0
