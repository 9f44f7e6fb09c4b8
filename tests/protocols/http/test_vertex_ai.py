"""Vertex AI's paths over a server in memory: predictions, and what a header sends on to the v2 API."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.callers import Action, Peer
from actors.values.errors import InvalidArgument
from engine.observability.metrics import Exposition, MetricsApp
from protocols.http.admission import Admitted
from protocols.http.answers import Answer
from protocols.http.app import V2App
from protocols.http.cloud.app import CloudApp
from protocols.http.cloud.vertex import DefaultModel, VertexAi, chosen_model
from protocols.http.options import V2Options
from protocols.http.routes import match
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import Client, add_body

MIME = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
JSON = {"content-type": "application/json"}
REDIRECT = "x-vertex-ai-triton-redirect"
EMPTY: tuple[dict[str, str], bytes] = ({}, b"")


class StandardClient(Client):
    """Also takes answers in ASGI's standard messages, as the metrics are."""

    async def ask(self, *arguments, **options):
        self.parts: list[Any] = []
        app = self.app

        async def collecting(scope, receive, send):
            async def sent(message):
                self.parts.append(message)

            await app(scope, receive, sent)
            start, *rest = self.parts
            if start["type"] == "http.response.start":
                start = {**start, "type": "tritium.response", "body": [part["body"] for part in rest]}
            await send({"release": None, **start})

        self.app = collecting
        try:
            return await super().ask(*arguments, **options)
        finally:
            self.app = app


def served(*, default="add", metrics=True, predict="/predict", health="/health", **options):
    backend = FakeServer()
    app = MetricsApp(Exposition(lambda: ["nv_one 1\n"]))
    platform = VertexAi(
        health=re.compile(health),
        predict=re.compile(predict),
        default=DefaultModel(default),
        metrics=app if metrics else None,
    )
    cloud = CloudApp(platform, V2App(backend.server, options=V2Options(**options)))
    return SimpleNamespace(
        app=cloud, ask=StandardClient(cloud, native=True).ask, backend=backend, platform=platform
    )


@pytest.fixture
def vertex():
    return served()


def error(text):
    return {"error": text}


async def test_the_path_of_health_tells_whether_the_server_is_ready(vertex):
    assert await vertex.ask("GET", "/health") == (200, *EMPTY)
    vertex.backend.health.is_ready = False
    assert await vertex.ask("GET", "/health") == (400, *EMPTY)
    status, _, body = await vertex.ask("POST", "/health")
    assert (status, json.loads(body)) == (405, error("Method Not Allowed"))
    assert vertex.platform.is_health(b"/health")
    assert not vertex.platform.is_health(b"/predict")


@pytest.mark.parametrize(
    "path", ["/", "/predictions", "/v2/health/ready", "/v2/models/add/infer", "/metrics"]
)
async def test_any_other_path_is_a_bad_request_without_a_word(vertex, path):
    assert await vertex.ask("GET", path) == (400, *EMPTY)
    assert await vertex.ask("POST", path) == (400, *EMPTY)


async def test_routes_are_patterns_of_whole_paths():
    vertex = served(predict="/v1/endpoints/[0-9]+:predict", health="/h(ealth)?")
    assert (await vertex.ask("POST", "/v1/endpoints/42:predict", add_body()))[0] == 200
    assert (await vertex.ask("POST", "/v1/endpoints/42:predicts", add_body()))[0] == 400
    assert (await vertex.ask("GET", "/h"))[0] == 200
    assert (await vertex.ask("GET", "/he"))[0] == 400


@given(path=st.binary(max_size=60), redirect=st.one_of(st.none(), st.binary(max_size=60)))
def test_any_head_is_a_path_of_the_v2_api_or_an_empty_answer(path, redirect):
    headers = [] if redirect is None else [(REDIRECT.encode(), redirect)]
    for each in (path, b"/predict"):
        asked = served().platform.read("POST", each, headers)
        if isinstance(asked, Answer):
            assert asked.status in (400, 403)
        else:
            assert asked.path == b"/metrics" or match(asked.path.decode("latin-1")) is not None


# -- predictions


async def test_a_prediction_is_an_inference_by_the_default_model(vertex):
    status, fields, body = await vertex.ask("POST", "/predict", add_body())
    assert (status, fields, json.loads(body)["model_name"]) == (200, JSON, "add")
    status, fields, body = await vertex.ask("GET", "/predict")
    assert (status, fields, json.loads(body)) == (405, JSON, error("Method Not Allowed"))


async def test_before_there_is_a_default_model_predictions_are_told_to_come_again():
    vertex = served(default="")
    status, fields, body = await vertex.ask("POST", "/predict", add_body())
    assert (status, fields["retry-after"]) == (503, "1")
    assert "default model is not loaded yet" in json.loads(body)["error"]
    headers = {REDIRECT: "v2/models/add/infer"}
    assert (await vertex.ask("POST", "/predict", add_body(), headers))[0] == 200


@pytest.mark.parametrize("headers", [{}, {REDIRECT: "v2/models/add/infer"}])
async def test_tensors_are_binary_where_the_media_type_says_so(vertex, headers):
    text = json.dumps(
        {
            "inputs": [
                {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
                for name in ("A", "B")
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    status, fields, body = await vertex.ask(
        "POST", "/predict", text + bytes(128), {"content-type": f"{MIME}{len(text)}", **headers}
    )
    assert status == 200
    size = int(fields["content-type"].removeprefix(MIME))
    assert len(body) == size + 128


async def test_a_media_type_that_says_no_length_is_refused(vertex):
    headers = {"content-type": f"{MIME}x"}
    status, fields, body = await vertex.ask("POST", "/predict", b"{}", headers)
    assert (status, fields) == (400, JSON)
    assert json.loads(body) == error("Unable to parse inference header size, got: x")


# -- requests that are sent on


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("v2", 200, b'"name"'),
        ("v2/health/live", 200, b""),
        ("v2/health/ready", 200, b""),
        ("v2/models/stats", 200, b"model_stats"),
        ("v2/models/add", 200, b'"platform"'),
        ("v2/models/add/versions/1", 200, b'"platform"'),
        ("v2/models/add/ready", 200, b""),
        ("v2/models/add/config", 200, b'"name":"add"'),
        ("v2/models/add/stats", 200, b"model_stats"),
        ("v2/models/nope", 404, b"unknown model"),
        ("v2/repository/index", 200, b'"state":"READY"'),
        ("v2/repository/mine/index", 200, b'"state":"READY"'),
        ("metrics", 200, b"nv_one 1\n"),
        ("v2/repository/models/add/load", 403, b""),
        ("v2/repository/models/add/unload", 403, b""),
        ("v2/repository/mine/models/add/unload", 403, b""),
        ("v2/systemsharedmemory/register", 403, b""),
        ("v2/systemsharedmemory/region/r/register", 403, b""),
        ("v2/systemsharedmemory/region/r/unregister", 403, b""),
        ("v2/systemsharedmemory/unregister", 403, b""),
        ("v2/cudasharedmemory/region/r/register", 403, b""),
        ("v2/cudasharedmemory/region/r/unregister", 403, b""),
        ("v2/models/add/generate", 400, b""),
        ("v2/models/add/generate_stream", 400, b""),
        ("v2/models/add/trace/setting", 400, b""),
        ("v2/trace/setting", 400, b""),
        ("v2/logging", 400, b""),
        ("v2/tritium/tree", 400, b""),
        ("metrics/", 400, b""),
        ("/v2", 400, b""),
        ("", 400, b""),
        ("nothing", 400, b""),
    ],
)
async def test_a_header_sends_a_request_on_to_a_part_of_the_v2_api(vertex, path, status, said):
    got, _, body = await vertex.ask("POST", "/predict", b"", {REDIRECT: path})
    assert got == status
    assert said in body
    assert bool(said) == bool(body)


@pytest.mark.parametrize("path", ["v2/systemsharedmemory/status", "v2/cudasharedmemory/status"])
async def test_what_is_shared_may_be_looked_at(vertex, path):
    status, _, body = await vertex.ask("POST", "/predict", b"", {REDIRECT: path})
    assert (status, body) == (200, b"[]")


@pytest.mark.parametrize("path", ["v2", "v2/models/add/infer", "nothing", "metrics"])
async def test_only_posts_are_sent_on(vertex, path):
    assert await vertex.ask("GET", "/predict", b"", {REDIRECT: path}) == (405, *EMPTY)


async def test_without_metrics_none_are_sent_on_to():
    assert await served(metrics=False).ask("POST", "/predict", b"", {REDIRECT: "metrics"}) == (400, *EMPTY)


async def test_restricted_apis_ask_for_their_header_here_too():
    vertex = served(restricted={Action.MODEL_CONFIG: ("admin", "yes")})
    headers = {REDIRECT: "v2/models/add/config"}
    status, _, body = await vertex.ask("POST", "/predict", b"", headers)
    assert (status, json.loads(body)) == (403, error("This API is restricted, expecting header 'admin'"))
    assert (await vertex.ask("POST", "/predict", b"", {**headers, "admin": "yes"}))[0] == 200


@pytest.mark.parametrize(
    ("path", "redirect", "length", "admitted"),
    [
        (b"/predict", "", 1_000_000, True),
        (b"/predict", "", 100_000_000, False),
        (b"/predict", "v2/models/add/infer", 1_000_000, True),
        (b"/predict", "v2/models/nope/infer", 1_000_000, False),
        (b"/predict", "v2", 1000, True),
        (b"/predict", "v2", 1_000_000, False),
        (b"/predict", "metrics", 1000, True),
        (b"/predict", "metrics", 1_000_000, False),
        (b"/nothing", "", 1000, False),
    ],
)
def test_the_head_decides_whether_a_body_may_come(vertex, path, redirect, length, admitted):
    headers = [(REDIRECT.encode(), redirect.encode())] if redirect else []
    verdict = vertex.app.admit(Peer(), "POST", path, headers, length)
    assert isinstance(verdict, Admitted if admitted else Answer)


# -- the default model


@pytest.mark.parametrize(
    ("configured", "ready", "name"),
    [("", ["a"], "a"), ("", ["a", "a"], "a"), ("b", ["a", "b"], "b")],
)
def test_the_default_model_is_the_configured_or_the_only_one(configured, ready, name):
    assert chosen_model(configured, ready) == name


@pytest.mark.parametrize(
    ("configured", "ready", "message"),
    [
        (
            "",
            [],
            "Expect the model repository contains only a single model if default model is not specified",
        ),
        (
            "",
            ["a", "b"],
            "Expect the model repository contains only a single model if default model is not specified",
        ),
        ("c", ["a", "b"], "Expect the default model 'c' is loaded"),
    ],
)
def test_without_a_default_model_it_is_said_what_is_missing(configured, ready, message):
    with pytest.raises(InvalidArgument) as caught:
        chosen_model(configured, ready)
    assert caught.value.message == message
