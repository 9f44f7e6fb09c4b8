"""The ASGI application without a socket, on both kinds of server: ours with the extensions, and any other."""

import gzip
import json
import re
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import trio
import trio.testing

from actors.values.callers import Action
from actors.values.errors import Cancelled, Unavailable
from actors.values.requests import Endings, InferResponse
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeServer
from tests.support.garbage import uncollected


class Hook:
    disconnected = False
    on_disconnect: Callable[[], None] | None = None


class Client:
    """Calls the application as a server would, and keeps what it sends."""

    def __init__(self, app, *, native):
        self.app = app
        self.native = native
        self.hook = Hook()
        self.releases = []
        self.leave = trio.Event()
        self.after_send = lambda message: None
        self.extensions = {}

    async def ask(self, method, path, body=b"", headers=(), parts=None):
        messages = [
            {"type": "http.request", "body": part, "more_body": index < len(parts or [0]) - 1}
            for index, part in enumerate(parts or [body])
        ]
        sent = []

        async def receive():
            if messages:
                return messages.pop(0)
            await self.leave.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if message.get("release") is not None:
                message["body"] = [bytes(buffer) for buffer in message["body"]]
                self.releases.append(message["release"])
                message["release"]()

        native = {"tritium.response": {}, "tritium.disconnect": self.hook} if self.native else {}
        extensions = {**native, **self.extensions}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "headers": [(name.lower().encode(), value.encode()) for name, value in dict(headers).items()],
            "tritium.raw_headers": [(name.encode(), value.encode()) for name, value in dict(headers).items()],
            "extensions": extensions,
        }
        await self.app(scope, receive, send)
        if not sent:
            return None
        if self.native:
            (message,) = sent
            body = b"".join(message["body"])
        else:
            message, (last) = sent[0], sent[1]
            body = last["body"]
            assert (b"content-length", str(len(body)).encode()) in message["headers"]
        fields = {name.decode(): value.decode() for name, value in message["headers"]}
        fields.pop("content-length", None)
        return message["status"], fields, body


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture(params=["native", "foreign"])
def client(request, backend):
    return Client(V2App(backend.server), native=request.param == "native")


@pytest.fixture
def with_options(backend):
    return lambda **options: Client(V2App(backend.server, options=V2Options(**options)), native=True)


JSON = {"content-type": "application/json"}
X = {"name": "X", "datatype": "INT64", "shape": [1, 1], "data": [5]}


def add_body(**members):
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [value] * 16}
        for name, value in (("A", 3), ("B", 1))
    ]
    return json.dumps({"inputs": inputs, **members}).encode()


def refusal(answer):
    status, fields, body = answer
    assert fields == ({**JSON, "retry-after": "1"} if status == 503 else JSON)
    return status, json.loads(body)["error"]


INFER = "/v2/models/add/infer"


def loading(parameters):
    return json.dumps({"parameters": parameters}).encode()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        *(
            (
                "GET",
                f"/v2/models/{model}{action}",
                b"",
                404,
                f"Request for unknown model: {told} is not found",
            )
            for model, told in (("nope", "'nope'"), ("add/versions/9", "'add' version 9"))
            for action in ("", "/ready", "/config")
        ),
        # The repository
        *(
            ("POST", f"/v2/repository/{path}/{action}", b"", status, told)
            for action in ("load", "unload")
            for path, status, told in (
                ("models/add", 503, "explicit model load / unload is not allowed if polling is enabled"),
                ("r/models/add", 501, "'repository_name' specification is not supported"),
            )
        ),
        (
            "POST",
            "/v2/repository/index",
            b'{"ready":1}',
            400,
            "Invalid value for 'ready': expected a boolean",
        ),
        (
            "POST",
            "/v2/repository/index",
            b"{",
            500,
            "failed to parse the request JSON buffer: Missing a name for object member. at 1",
        ),
        *(
            ("POST", "/v2/repository/models/add/load", loading(parameters), 500, told)
            for parameters, told in (
                ({"other": "x"}, "unexpected error on creating Triton parameter"),
                ({"config": 5}, "Unable to parse 'config': attempt to access JSON non-string as string"),
                ({"file:a": True}, "Unable to parse 'file:a': attempt to access JSON non-string as string"),
                (5, "Unable to parse 'parameters': attempt to get members for non-object"),
            )
        ),
        # Inference
        *(
            ("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [X]}).encode(), status, told)
            for model, status, told in (
                ("nope", 404, "Request for unknown model: 'nope' is not found"),
                ("full", 503, "Exceeds maximum queue size"),
                ("add", 400, "unexpected inference input 'X' for model 'add'"),
                ("streams", 501, "HTTP end point doesn't support models with decoupled transaction policy"),
            )
        ),
        ("POST", INFER, b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
async def test_a_refusal_has_its_status_and_tritons_words(client, method, path, body, status, message):
    assert refusal(await client.ask(method, path, body)) == (status, message)


# Health and metadata


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/add/ready"])
async def test_probes_answer_with_a_status_and_nothing_else(client, path):
    assert await client.ask("GET", path) == (200, {}, b"")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/add/ready", {"name": "add", "ready": True}),
    ],
)
async def test_who_asks_for_json_by_name_is_told_in_a_body(client, path, told):
    asking = {"Accept": "text/html, application/json;q=0.9"}
    status, fields, body = await client.ask("GET", path, headers=asking)
    assert (status, fields["content-type"], json.loads(body)) == (200, "application/json", told)
    assert await client.ask("GET", path, headers={"Accept": "*/*"}) == (200, {}, b"")


async def test_a_server_that_is_not_ready_says_400(client, backend):
    backend.health.is_ready = False
    assert await client.ask("GET", "/v2/health/ready") == (400, {}, b"")
    assert await client.ask("GET", "/v2/health/live") == (200, {}, b"")


async def test_a_server_that_did_not_initialise_says_400(client, backend):
    backend.health.is_live = False
    assert await client.ask("GET", "/v2/health/live") == (400, {}, b"")
    assert refusal(await client.ask("GET", "/v2/models/add/ready")) == (503, "Server not ready")


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
async def test_probes_say_that_the_server_is_exiting(client, backend, path):
    backend.health.exiting = True
    assert refusal(await client.ask("GET", path)) == (503, "Server exiting")


async def test_a_server_that_is_about_to_end_is_not_ready_and_lives_and_serves(client, backend):
    backend.health.withdrawn = True
    assert refusal(await client.ask("GET", "/v2/health/ready")) == (503, "Server exiting")
    assert await client.ask("GET", "/v2/health/live") == (200, {}, b"")
    assert (await client.ask("GET", "/v2/models/add/ready"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/add"),
        ("GET", "/v2/models/add/ready"),
        ("GET", "/v2/models/add/config"),
        ("GET", "/v2/models/add/stats"),
        ("GET", "/v2/models/stats"),
        ("POST", "/v2/repository/index"),
    ],
)
async def test_model_endpoints_are_not_ready_while_exiting(client, backend, method, path):
    backend.health.exiting = True
    assert refusal(await client.ask(method, path)) == (503, "Server not ready")


async def test_an_instance_that_is_not_ready_makes_its_model_say_so(client, backend):
    backend.health.is_model_ready = False
    assert refusal(await client.ask("GET", "/v2/models/add/ready")) == (400, "Model version not ready")


async def test_server_metadata(client):
    status, fields, body = await client.ask("GET", "/v2")
    assert (status, fields) == (200, JSON)
    assert json.loads(body) == {
        "name": "tritium",
        "version": "0.1.0",
        "extensions": ["classification", "statistics"],
    }


@pytest.mark.parametrize("path", ["/v2/models/add", "/v2/models/add/versions/1"])
async def test_model_metadata(client, path):
    status, fields, body = await client.ask("GET", path)
    assert (status, fields) == (200, JSON)
    assert json.loads(body)["versions"] == ["1"]


async def test_model_config_is_the_spec_s_bytes(client):
    assert await client.ask("GET", "/v2/models/add/config") == (200, JSON, b'{"name":"add"}')


async def test_statistics_of_one_model_and_of_all(client):
    _, _, one = await client.ask("GET", "/v2/models/add/stats")
    _, _, everything = await client.ask("GET", "/v2/models/stats")
    assert [stats["name"] for stats in json.loads(one)["model_stats"]] == ["add"]
    assert len(json.loads(everything)["model_stats"]) > 1
    assert refusal(await client.ask("GET", "/v2/models/nope/stats")) == (
        400,
        "requested model 'nope' is not available",
    )


async def test_the_tree_is_shown(client):
    assert await client.ask("GET", "/v2/tritium/tree") == (200, JSON, b'{"name":"root","children":[]}')


# Routing


async def test_an_unknown_path_is_not_found_and_has_no_content_type(client):
    assert await client.ask("GET", "/v2/nothing") == (404, {}, b'{"error":"Not Found"}')


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2"),
        ("GET", "/v2/models/add/infer"),
        ("HEAD", "/v2/health/live"),
        ("DELETE", "/v2/logging"),
    ],
)
async def test_a_wrong_method_is_not_allowed(client, method, path):
    assert await client.ask(method, path) == (405, JSON, b'{"error":"Method Not Allowed"}')


async def test_thousands_of_made_up_paths_do_no_harm(client):
    for number in range(1500):
        status, _, _ = await client.ask("GET", f"/v2/models/m{number}")
        assert status == 404
    assert (await client.ask("GET", "/v2/health/live"))[0] == 200


async def test_a_restricted_api_wants_its_header_before_it_looks_at_the_method(with_options):
    client = with_options(restricted={Action.INFERENCE: ("Admin-Key", "s3cret"), Action.HEALTH: ("h", "1")})
    refused = (403, "This API is restricted, expecting header 'Admin-Key'")
    path = "/v2/models/add/infer"
    assert refusal(await client.ask("POST", path, add_body())) == refused
    assert refusal(await client.ask("GET", path)) == refused
    assert refusal(await client.ask("POST", path, add_body(), {"admin-key": "S3CRET"})) == refused
    assert (await client.ask("POST", path, add_body(), {"admin-key": "s3cret"}))[0] == 200
    assert (await client.ask("GET", "/v2"))[0] == 200
    assert (await client.ask("GET", "/v2/models/add/ready"))[0] == 403


# Repository


async def test_the_index_lists_everything_or_what_is_ready(client):
    _, _, everything = await client.ask("POST", "/v2/repository/index")
    _, _, ready = await client.ask("POST", "/v2/repository/index", b'{"ready":true}')
    assert [entry["name"] for entry in json.loads(everything)] == ["add", "broken", "resting"]
    assert [entry["name"] for entry in json.loads(ready)] == ["add"]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/models/add/load",
        "/v2/repository/models/add/unload",
        "/v2/tritium/models/add/traffic",
    ],
)
async def test_a_page_of_another_site_changes_nothing(client, backend, path):
    backend.repository.explicit = True
    foreign = {"host": "127.0.0.1:8000", "origin": "https://evil.example"}
    status, _, body = await client.ask("POST", path, b"{}", headers=foreign)
    assert (status, "Origin: https://evil.example" in json.loads(body)["error"]) == (403, True)
    assert (backend.repository.loaded, backend.repository.unloaded) == ([], [])
    assert backend.traffic.plans == {"add": {"weights": {"1": 1}}}
    for own in ({}, {"content-type": "text/plain"}, {"host": "[::1]:8000", "origin": "http://[::1]:8000"}):
        assert (await client.ask("POST", path, b"{}", headers=own))[0] == 200


async def test_what_changes_nothing_may_come_from_any_page(client):
    foreign = {"host": "127.0.0.1:8000", "sec-fetch-site": "cross-site"}
    assert (await client.ask("GET", "/v2/tritium/models/add/traffic", headers=foreign))[0] == 200
    assert (await client.ask("POST", "/v2/repository/index", headers=foreign))[0] == 200


async def test_load_parameters_are_text_and_files(client, backend):
    backend.repository.explicit = True
    parameters = {"config": "{}", "file:1/model.onnx": "aGV*sbG8", "file:x": "YWJjZ"}
    body = json.dumps({"parameters": parameters}).encode()
    assert await client.ask("POST", "/v2/repository/models/a%20b/load", body) == (200, JSON, b"")
    assert backend.repository.loaded == [
        ("a b", {"config": "{}", "file:1/model.onnx": b"hello", "file:x": b"abc"})
    ]


async def test_unload_can_take_the_dependents_along(client, backend):
    backend.repository.explicit = True
    for body in (b"", b'{"parameters":{"unload_dependents":true}}'):
        assert await client.ask("POST", "/v2/repository/models/m/unload", body) == (200, JSON, b"")
    assert backend.repository.unloaded == [("m", False), ("m", True)]
    assert refusal(
        await client.ask("POST", "/v2/repository/models/m/unload", b'{"parameters":{"unload_dependents":1}}')
    ) == (500, "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean")


async def test_a_long_repository_document_is_refused(with_options):
    client = with_options(max_input_size=10)
    status, message = refusal(await client.ask("POST", "/v2/repository/index", b" " * 11))
    assert (status, message[:37]) == (400, "request JSON size of 11 bytes exceeds")


# Inference


async def test_an_inference_in_json(client, backend):
    status, fields, body = await client.ask("POST", INFER, add_body(id="r1"))
    assert (status, fields) == (200, JSON)
    document = json.loads(body)
    assert document["id"] == "r1"
    assert [output["data"] for output in document["outputs"]] == [[4.0] * 16, [2.0] * 16]
    assert backend.model().released == 1


async def test_an_inference_in_binary(client, backend):
    values = np.arange(16, dtype=np.float32)
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in "AB"
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    status, fields, body = await client.ask(
        "POST",
        "/v2/models/add/versions/1/infer",
        head + values.tobytes() * 2,
        {"Inference-Header-Content-Length": str(len(head))},
    )
    size = int(fields["inference-header-content-length"])
    assert (status, fields["content-type"]) == (200, "application/octet-stream")
    np.testing.assert_array_equal(np.frombuffer(body[size : size + 64], np.float32), values * 2)
    assert backend.model().submitted[0].requested_version == 1
    assert backend.model().released == 1


async def test_a_body_may_come_in_parts(client):
    whole = add_body()
    parts = [whole[:10], b"", whole[10:]]
    status, _, _ = await client.ask("POST", INFER, parts=parts)
    assert status == 200


async def test_a_large_answer_is_released_once_it_was_sent(client, backend):
    document = {
        "inputs": [{"name": "X", "datatype": "INT64", "shape": [1], "data": [1_000_000]}],
        "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
    }
    status, fields, body = await client.ask("POST", "/v2/models/zeros/infer", json.dumps(document).encode())
    assert status == 200
    assert len(body) == 1_000_000 + int(fields["inference-header-content-length"])
    assert backend.model("zeros").released == 1
    assert len(client.releases) == (1 if client.native else 0)


async def test_an_answer_that_can_not_be_written_is_released(client, backend):
    def execute(model, request):
        response = model.respond(request, request.inputs)
        response.outputs[0].shape = (99,)
        return response

    backend.model().execute = execute
    status, message = refusal(await client.ask("POST", INFER, add_body()))
    assert status == 500
    assert (
        message == "Failed to write 'data' field: output tensor shape does not match size of output for 'A'"
    )
    assert backend.model().released == 1


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_bodies_are_decompressed_and_answers_compressed(client, coding, pack):
    status, fields, body = await client.ask(
        "POST",
        "/v2/models/add/infer",
        pack(add_body()),
        {"Content-Encoding": coding, "Accept-Encoding": f"identity;q=0.5, {coding}"},
    )
    assert (status, fields) == (200, {**JSON, "content-encoding": coding})
    assert json.loads(zlib.decompress(body, 47))["outputs"][0]["data"] == [4.0] * 16


async def test_large_bodies_are_unpacked_and_large_answers_packed_too(client, backend):
    document = {"inputs": [{"name": "X", "datatype": "INT64", "shape": [1], "data": [100_000]}]}
    padded = json.dumps({**document, "parameters": {"binary_data_output": True}, "pad": "ab" * 4000}).encode()
    status, fields, body = await client.ask(
        "POST",
        "/v2/models/zeros/infer",
        gzip.compress(padded, 0),
        {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"},
    )
    assert status == 200
    size = int(fields["inference-header-content-length"])
    assert gzip.decompress(body)[size:] == bytes(100_000)
    assert backend.model("zeros").released == 1


async def test_an_unknown_coding_is_refused_with_those_that_are_known(client):
    status, fields, body = await client.ask("POST", INFER, add_body(), {"Content-Encoding": "br"})
    assert status == 501
    assert fields == {**JSON, "accept-encoding": "gzip, deflate"}
    assert json.loads(body) == {"error": "Unsupported compression type"}


async def test_headers_that_match_become_parameters(with_options, backend):
    client = with_options(header_forward_pattern=re.compile("tenant", re.IGNORECASE))
    headers = {"X-Tenant-Id": "acme", "Other": "1"}
    await client.ask("POST", INFER, add_body(parameters={"a": 1}), headers)
    assert backend.model().submitted[0].parameters == {"X-Tenant-Id": "acme", "a": 1}


async def test_a_client_s_parameter_does_not_replace_what_a_proxy_put_into_a_header(with_options, backend):
    client = with_options(header_forward_pattern=re.compile("x-user", re.IGNORECASE))
    body = add_body(parameters={"x-user": "root", "X-User": "root"})
    await client.ask("POST", INFER, body, {"x-user": "ann"})
    await client.ask("POST", INFER, body)
    with_header, without = (request.parameters for request in backend.model().submitted)
    assert with_header == {"x-user": "ann"}
    assert without == {"x-user": "root", "X-User": "root"}


async def test_reserved_headers_are_not_forwarded(with_options):
    client = with_options(header_forward_pattern=re.compile("."))
    assert refusal(await client.ask("POST", INFER, add_body(), {"timeout": "1"})) == (
        400,
        "Header 'timeout' is reserved for Triton usage and cannot be forwarded.",
    )


async def test_server_timing_is_given_on_request_of_the_operator(with_options):
    _, fields, _ = await with_options(server_timing=True).ask("POST", INFER, add_body())
    assert fields["server-timing"] == (
        "queue;dur=1.000, compute_input;dur=0.002, compute_infer;dur=0.003, compute_output;dur=0.004"
    )


async def test_the_hook_is_told_every_inference_and_its_outcome(with_options, backend):
    seen = []
    client = with_options(
        endings=Endings(lambda request, outcome, _: seen.append((request, outcome, backend.model().released)))
    )
    await client.ask("POST", INFER, add_body())
    await client.ask("POST", "/v2/models/full/infer", json.dumps({"inputs": [X]}).encode())
    (good, response, released), (bad, error, _) = seen
    assert good.model_name == "add"
    assert isinstance(response, InferResponse)
    assert released == 0
    assert bad.model_name == "full"
    assert isinstance(error, Unavailable)


# Clients that leave


def leave(client):
    client.leave.set()
    client.hook.disconnected = True
    if client.hook.on_disconnect is not None:
        client.hook.on_disconnect()


async def test_a_client_that_leaves_has_its_inference_cancelled(client, backend, nursery):
    answers = []

    async def ask():
        answers.append(
            await client.ask("POST", "/v2/models/held/infer", json.dumps({"inputs": [X]}).encode())
        )

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    model = backend.model("held")
    assert len(model.submitted) == 1
    assert model.cancelled == []
    leave(client)
    await trio.testing.wait_all_tasks_blocked()
    assert model.cancelled == model.submitted
    assert answers == [None]


async def test_a_late_answer_for_a_client_that_left_is_released(client, backend, nursery):
    body = json.dumps({"inputs": [X]}).encode()
    nursery.start_soon(client.ask, "POST", "/v2/models/held/infer", body)
    await trio.testing.wait_all_tasks_blocked()
    leave(client)
    await trio.testing.wait_all_tasks_blocked()
    model = backend.model("held")
    request = model.submitted[0]
    request.reply.put(model.respond(request, ()), final=True)
    assert model.released == 1


async def test_a_client_that_left_before_is_not_served(backend):
    client = Client(V2App(backend.server), native=True)
    client.hook.disconnected = True
    assert await client.ask("POST", INFER, add_body()) is None
    assert backend.model().submitted == []


async def test_the_hook_learns_of_clients_that_left(with_options, nursery):
    seen = []
    client = with_options(endings=Endings(lambda _, outcome, __: seen.append(outcome)))
    nursery.start_soon(client.ask, "POST", "/v2/models/held/infer", json.dumps({"inputs": [X]}).encode())
    await trio.testing.wait_all_tasks_blocked()
    leave(client)
    await trio.testing.wait_all_tasks_blocked()
    (outcome,) = seen
    assert isinstance(outcome, Cancelled)


async def test_a_connection_that_is_stopped_cancels_its_inference(client, backend):
    with trio.move_on_after(0.01):
        await client.ask("POST", "/v2/models/held/infer", json.dumps({"inputs": [X]}).encode())
    model = backend.model("held")
    assert model.cancelled == model.submitted
    assert len(model.cancelled) == 1


async def test_the_disconnect_hook_is_left_as_it_was_found(backend):
    client = Client(V2App(backend.server), native=True)
    await client.ask("POST", INFER, add_body())
    assert client.hook.on_disconnect is None


@pytest.mark.parametrize("path", ["/v2/models/add/infer", "/v2/repository/index"])
async def test_a_client_that_leaves_amid_its_body_gets_nothing(client, path):
    client.leave.set()
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "headers": [], "extensions": {}}
    await client.app(scope, receive, send)
    assert sent == []


async def test_a_body_in_parts_is_bounded(backend):
    client = Client(V2App(backend.server, options=V2Options(max_body_size=5)), native=False)
    answer = await client.ask(
        "POST",
        "/v2/models/add/infer",
        parts=[b"123", b"456", b"7"],
        headers={"Inference-Header-Content-Length": "2"},
    )
    assert refusal(answer) == (413, "request body of 6 bytes exceeds the maximum allowed size of 5 bytes")


@pytest.mark.parametrize("version", ["1.1", "2", "3"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v2"), ("POST", "/v2/nothing"), ("GET", "/v2/models/no")]
)
async def test_over_http_2_no_answer_is_complete_before_the_end_of_its_request(
    backend, autojump_clock, version, method, path
):
    ended, sent = trio.Event(), []

    async def receive():
        await ended.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": version,
        "method": method,
        "path": path,
        "raw_path": path.encode(),
    }
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            V2App(backend.server), {**scope, "query_string": b"", "headers": []}, receive, send
        )
        await trio.sleep(1_000)
        assert sent[0]["type"] == "http.response.start"
        assert sent[-1].get("more_body", False) is (version != "1.1")
        ended.set()
    assert not sent[-1].get("more_body", False)


async def test_only_http_is_spoken(client):
    with pytest.raises(RuntimeError, match="speaks HTTP only"):
        await client.app({"type": "websocket"}, None, None)


REFUSED = {
    "unknown input": (INFER, json.dumps({"inputs": [X]}).encode(), {}),
    "no JSON": (INFER, b'{"inputs":', {}),
    "no object": (INFER, b"[]", {}),
    "unknown model": ("/v2/models/nobody/infer", add_body(), {}),
    "unknown version": ("/v2/models/add/versions/9/infer", add_body(), {}),
    "unknown datatype": (INFER, add_body().replace(b"FP32", b"FP33"), {}),
    "a string for a number": (INFER, add_body().replace(b"[3, ", b'["x", '), {}),
    "a length beyond the body": (INFER, add_body(), {"Inference-Header-Content-Length": "99999"}),
    "unknown coding": (INFER, add_body(), {"Content-Encoding": "br"}),
    "broken gzip": (INFER, gzip.compress(add_body())[:-5], {"Content-Encoding": "gzip"}),
    "no load": ("/v2/repository/models/m/load", b"{}", {}),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refusal_leaves_nothing_to_the_garbage_collector(client, kind):
    with uncollected() as left:
        assert (await client.ask("POST", *REFUSED[kind]))[0] >= 400
    assert left == []
