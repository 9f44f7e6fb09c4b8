"""`/v2/health/ready?deep=1`: the report as the body, the plain endpoint's statuses."""

import json

import pytest

from protocols.http.app import V2App
from protocols.http.options import V2Options
from protocols.kserve.categories import Category
from tests.protocols.fakes import FakeServer

PART = {"part": "model add version 1", "ready": True, "since": "2027-01-15T08:00:00.000Z", "seconds": 0.003}


@pytest.fixture
def backend():
    server = FakeServer()
    server.health.parts = [PART]
    return server


async def ask(backend, query, *, path="/v2/health/ready", options=None):
    """The status, content type and body of a GET."""
    sent = []

    async def receive():
        raise AssertionError("a probe has no body to wait for")

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [],
    }
    await V2App(backend.server, options=options)(scope, receive, send)
    start, body = sent
    return start["status"], dict(start["headers"]).get(b"content-type", b""), body["body"]


@pytest.mark.parametrize("query", [b"deep=1", b"deep=true", b"a=b&deep=1", b"deep=1&deep=0"])
async def test_a_deep_probe_is_answered_with_its_report(backend, query):
    status, content_type, body = await ask(backend, query)
    assert (status, content_type) == (200, b"application/json")
    assert json.loads(body) == {"ready": True, "live": True, "parts": [PART]}
    assert backend.health.deep_probes == 1


async def test_a_deep_probe_that_fails_has_the_plain_ones_status(backend):
    backend.health.is_ready = False
    status, content_type, body = await ask(backend, b"deep=1")
    assert (status, content_type) == (400, b"application/json")
    assert json.loads(body)["ready"] is False


@pytest.mark.parametrize("query", [b"", b"deep=0", b"deep=false", b"verbose", b"deeper=1", b"&&"])
async def test_any_other_query_is_the_plain_probe(backend, query):
    assert await ask(backend, query) == (200, b"", b"")
    assert backend.health.deep_probes == 0


@pytest.mark.parametrize("query", [b"deep", b"deep=", b"deep=yes", b"deep=%31", b"deep=\xff"])
async def test_a_value_that_says_neither_is_refused(backend, query):
    status, _, body = await ask(backend, query)
    assert status == 400
    assert "for 'deep': expected 1 or 0" in json.loads(body)["error"]
    assert backend.health.deep_probes == 0


async def test_a_server_that_exits_makes_no_probes(backend):
    backend.health.exiting = True
    status, _, body = await ask(backend, b"deep=1")
    assert (status, json.loads(body)) == (503, {"error": "Server exiting"})
    assert backend.health.deep_probes == 0


async def test_a_deep_probe_belongs_to_the_restricted_category_health(backend):
    options = V2Options(restricted={Category.HEALTH: ("admin", "s3cret")})
    status, _, _ = await ask(backend, b"deep=1", options=options)
    assert status == 403
    assert backend.health.deep_probes == 0


async def test_liveness_has_no_depth(backend):
    assert await ask(backend, b"deep=1", path="/v2/health/live") == (200, b"", b"")
    assert backend.health.deep_probes == 0
