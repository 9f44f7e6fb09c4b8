"""Inferences that ask for the load of their model get it in a header, in the forms of ORCA."""

import dataclasses
import json

import pytest
import trio

from actors.values.interfaces import ModelLoad
from protocols.http.app import V2App
from protocols.http.steering.loads import as_json, as_text
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import Client, add_body
from tests.protocols.http.test_http_direct import Watched, post
from tests.protocols.http.test_http_listener import serve_on_loopback

INFER = "/v2/models/add/infer"
REPORT = "endpoint-load-metrics"


class Busy:
    """Says of every model what a test says."""

    def __init__(self):
        self.asked = []

    def of(self, model):
        self.asked.append(model.spec.name)
        return ModelLoad(queue_depth=3, utilization=0.5)


@pytest.fixture
def busy():
    return Busy()


@pytest.fixture
def server(busy):
    return dataclasses.replace(FakeServer().server, loads=busy)


@pytest.mark.parametrize(
    ("load", "text", "document"),
    [
        (ModelLoad(), "TEXT named_metrics.queue_depth=0", {"named_metrics": {"queue_depth": 0}}),
        (
            ModelLoad(queue_depth=2, utilization=1 / 3),
            "TEXT named_metrics.queue_depth=2, application_utilization=0.333333",
            {"named_metrics": {"queue_depth": 2}, "application_utilization": 1 / 3},
        ),
        (
            ModelLoad(utilization=0.25, cache_used=0.25, max_tokens=16384000),
            "TEXT named_metrics.kv_cache_utilization=0.25, named_metrics.max_token_capacity=16384000,"
            " named_metrics.queue_depth=0, application_utilization=0.25",
            {
                "named_metrics": {
                    "kv_cache_utilization": 0.25,
                    "max_token_capacity": 16384000,
                    "queue_depth": 0,
                },
                "application_utilization": 0.25,
            },
        ),
    ],
)
def test_a_load_in_words(load, text, document):
    assert as_text(load) == text
    kind, _, told = as_json(load).partition(" ")
    assert (kind, json.loads(told)) == ("JSON", document)


@pytest.fixture(params=["native", "foreign"])
def ask(request, server):
    client = Client(V2App(server), native=request.param == "native")

    async def ask(path, body, form):
        headers = {"Endpoint-Load-Metrics-Format": form} if form else {}
        status, fields, _ = await client.ask("POST", path, body, headers)
        return status, fields.get(REPORT)

    return ask


@pytest.mark.parametrize(
    ("form", "report"),
    [
        ("text", "TEXT named_metrics.queue_depth=3, application_utilization=0.5"),
        ("json", 'JSON {"named_metrics":{"queue_depth":3},"application_utilization":0.5}'),
        ("xml", None),
        ("TEXT", None),
        ("", None),
    ],
)
async def test_an_inference_is_answered_with_the_load_in_the_form_that_it_asks_for(ask, form, report):
    assert await ask(INFER, add_body(), form) == (200, report)


async def test_errors_and_other_requests_have_no_report(ask, busy):
    assert await ask(INFER, b"{}", "text") == (500, None)
    assert await ask("/v2/models/nope/infer", add_body(), "text") == (404, None)
    assert await ask("/v2/repository/index", b"", "text") == (200, None)
    assert busy.asked == []


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
async def test_the_generate_extension_tells_it_too(server, endpoint):
    with trio.fail_after(20):
        async with serve_on_loopback(V2App(server), None) as served, served.connect() as client:
            request = post(b'{"X":"hello"}', "strings", b"endpoint-load-metrics-format: text\r\n")
            await client.send(request.replace(b"/infer", b"/" + endpoint.encode()))
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await client.receive(1)
            assert b"endpoint-load-metrics: TEXT named_metrics.queue_depth=3, " in head


async def test_only_a_request_that_asks_for_it_costs_the_application(server):
    app = Watched(V2App(server))
    with trio.fail_after(20):
        async with serve_on_loopback(app, None) as served, served.connect() as client:
            for more, reported in ((b"", False), (b"Endpoint-Load-Metrics-Format: text\r\n", True)):
                await client.send(post(add_body(), more=more))
                status, fields, _ = await client.response()
                assert (status, REPORT in fields) == (200, reported)
    assert app.asked == [INFER]
