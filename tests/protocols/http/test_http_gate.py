"""The gate in front of the v2 API over HTTP: who is asked what, and what is kept from a caller."""

import json
import re

import pytest

from actors.values.callers import Action, Peer
from protocols.http.admission import Admitted
from protocols.http.answers import Answer
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeModel, FakeServer, hold, make_spec
from tests.protocols.http.test_http_app import INFER, Client, add_body
from tests.support.callers import KnownCaller, ListedGate
from tests.support.shared_memory import PAGE, an_object

EVERYTHING = {(action, model) for action in Action for model in ("", "add", "*")}
KEY = {"authorization": "Bearer alice"}


@pytest.fixture
def alice():
    return KnownCaller("alice", EVERYTHING)


@pytest.fixture
def gate(alice):
    return ListedGate({b"Bearer alice": alice, b"": KnownCaller("anonymous", {(Action.HEALTH, "")})})


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture
def app(backend, gate):
    return V2App(backend.server, options=V2Options(gate=gate))


@pytest.fixture(params=["native", "foreign"])
def client(request, app):
    return Client(app, native=request.param == "native")


async def test_an_inference_is_its_callers(client, backend, alice):
    body = add_body()
    status, _, _ = await client.ask("POST", INFER, body, {**KEY, "content-length": str(len(body))})
    assert status == 200
    assert alice.bytes == [len(body)]
    assert alice.running == 0
    (request,) = backend.model("add").submitted
    assert request.caller is alice
    assert request.sequence_key == ("alice", 0)


async def test_bytes_that_no_head_announced_are_told(client, alice):
    body = add_body()
    headers = {**KEY, "transfer-encoding": "chunked"}
    status, _, _ = await client.ask("POST", INFER, body, headers, parts=[body[:100], body[100:]])
    assert status == 200
    assert alice.bytes == [0, 100, len(body) - 100]


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ({}, 'Bearer realm="tritium"'),
        ({"authorization": "x"}, 'Bearer realm="tritium", error="invalid_token"'),
    ],
)
async def test_bad_credentials_are_challenged_before_the_model_is_known(client, headers, challenge):
    for model in ("add", "unknown"):
        status, fields, body = await client.ask("POST", f"/v2/models/{model}/infer", b"{}", headers)
        assert (status, fields["www-authenticate"]) == (401, challenge)
        assert "unknown" not in json.loads(body)["error"] or model == "unknown"


async def test_what_a_caller_may_not_do_is_refused(client, alice):
    alice.allowed = {(Action.METADATA, "add")}
    assert (await client.ask("GET", "/v2/models/add", b"", KEY))[0] == 200
    status, _, body = await client.ask("POST", INFER, add_body(), KEY)
    assert (status, json.loads(body)) == (403, {"error": "alice may not inference add"})


async def test_an_unknown_path_is_unknown_to_all(client):
    assert (await client.ask("GET", "/v2/elsewhere"))[0] == 404


async def test_health_is_as_the_gate_says(client):
    assert (await client.ask("GET", "/v2/health/ready"))[0] == 200


async def test_what_is_under_way_is_counted_until_its_end(client, backend, alice):
    alice.most = 0
    status, fields, _ = await client.ask("POST", INFER, add_body(), KEY)
    assert (status, fields["retry-after"]) == (429, "3")
    assert backend.model("add").submitted == []
    alice.most = 1
    unknown = json.dumps({"inputs": [{"name": "Z", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    assert (await client.ask("POST", INFER, unknown, KEY))[0] == 400
    assert (await client.ask("POST", INFER, add_body(), KEY))[0] == 200
    assert alice.running == 0


async def test_a_client_that_leaves_ends_what_was_under_way(backend, gate, alice):
    backend.models.by_name["held"] = FakeModel(make_spec("held"), hold)
    alice.allowed = {(Action.INFERENCE, "held")}
    client = Client(V2App(backend.server, options=V2Options(gate=gate)), native=True)
    running = []

    def leave():
        running.append(alice.running)
        on_disconnect = client.hook.on_disconnect
        assert on_disconnect is not None
        on_disconnect()

    backend.models.by_name["held"].on_submit = leave
    assert await client.ask("POST", "/v2/models/held/infer", add_body(), KEY) is None
    assert (running, alice.running) == ([1], 0)


async def test_lists_show_what_the_caller_may_see(client, alice):
    (whole,) = [json.loads((await client.ask("POST", "/v2/repository/index", b"", KEY))[2])]
    assert [entry["name"] for entry in whole if entry["name"] == "add"]
    alice.allowed = {(Action.MODEL_REPOSITORY, ""), (Action.STATISTICS, "")}
    assert json.loads((await client.ask("POST", "/v2/repository/index", b"", KEY))[2]) == []
    statistics = json.loads((await client.ask("GET", "/v2/models/stats", b"", KEY))[2])
    assert statistics == {"model_stats": []}


async def test_files_are_a_permission_of_their_own(client, backend, alice):
    body = json.dumps({"parameters": {"file:1/model.py": "AAAA"}}).encode()
    backend.repository.explicit = True
    alice.allowed = {(Action.MODEL_REPOSITORY, "add")}
    status, _, answer = await client.ask("POST", "/v2/repository/models/add/load", body, KEY)
    assert (status, json.loads(answer)) == (403, {"error": "alice may not upload add"})
    assert backend.repository.loaded == []
    alice.allowed = {(Action.MODEL_REPOSITORY, "add"), (Action.UPLOAD, "add")}
    assert (await client.ask("POST", "/v2/repository/models/add/load", body, KEY))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "action"),
    [
        ("GET", "/v2/logging", Action.LOGGING),
        ("POST", "/v2/logging", Action.SETTINGS),
        ("GET", "/v2/trace/setting", Action.TRACE),
        ("POST", "/v2/models/add/trace/setting", Action.SETTINGS),
        ("GET", "/v2/tritium/models/add/traffic", Action.TRAFFIC),
        ("POST", "/v2/tritium/models/add/traffic", Action.TRAFFIC),
        ("GET", "/v2/tritium/tree", Action.STATISTICS),
        ("GET", "/v2/tritium/events?after=never", Action.STATISTICS),
    ],
)
async def test_each_endpoint_asks_for_its_action(client, alice, method, path, action):
    alice.allowed = {each for each in EVERYTHING if each[0] is not action}
    status, _, body = await client.ask(method, path, b"{}", KEY)
    assert status == 403
    assert f"may not {action.value}" in json.loads(body)["error"]
    alice.allowed = EVERYTHING
    assert (await client.ask(method, path, b"{}", KEY))[0] != 403


def test_a_long_body_is_refused_by_its_head(app, alice):
    peer = Peer("192.0.2.7")
    fields = [(b"authorization", b"Bearer alice")]
    admitted = app.admit(peer, "POST", INFER.encode(), fields, 1_000_000)
    assert isinstance(admitted, Admitted)
    assert (admitted.caller, alice.bytes) == (alice, [1_000_000])
    refused = app.admit(peer, "POST", INFER.encode(), [(b"authorization", b"x")], 1_000_000)
    assert isinstance(refused, Answer)
    assert refused.status == 401
    twice = app.admit(peer, "POST", INFER.encode(), [*fields, *fields], 1_000_000)
    assert isinstance(twice, Answer)
    assert twice.status == 401


@pytest.mark.parametrize(("uploads", "status"), [(True, 0), (False, 413)])
def test_a_load_that_may_bring_no_files_is_short(app, alice, uploads, status):
    alice.allowed = {(Action.MODEL_REPOSITORY, "add")} | ({(Action.UPLOAD, "add")} if uploads else set())
    fields = [(b"authorization", b"Bearer alice")]
    told = app.admit(Peer(), "POST", b"/v2/repository/models/add/load", fields, 2_000_000)
    assert getattr(told, "status", 0) == status


async def test_the_gate_sees_one_peer_for_each_connection(backend, gate):
    peer = Peer("192.0.2.7")
    client = Client(V2App(backend.server, options=V2Options(gate=gate)), native=True)
    client.extensions = {"tritium.peer": peer}
    await client.ask("GET", "/v2", b"", KEY)
    await client.ask("GET", "/v2", b"", KEY)
    assert gate.peers == [peer, peer]


async def test_a_load_is_judged_by_where_the_model_was_found(client, backend, alice):
    alice.allowed = {(action, model) for action in Action for model in ("", "m")}
    alice.closed = {"/closed"}
    backend.repository.explicit = True
    for change, body in (("load", b'{"parameters": {"file:1/a": "eA=="}}'), ("unload", b"")):
        for found_in, expected in (("/open", 200), ("/closed", 403)):
            backend.repository.found_in = found_in
            path = f"/v2/repository/models/m/{change}"
            assert (await client.ask("POST", path, body, KEY))[0] == expected
    assert {each for each in alice.asked if each[2] == "/open"} == {
        (Action.MODEL_REPOSITORY, "m", "/open"),
        (Action.UPLOAD, "m", "/open"),
    }
    assert len(backend.repository.loaded) == len(backend.repository.unloaded) == 1


async def test_what_shows_all_models_takes_that_they_all_may_be_seen(client, backend, alice):
    backend.health.parts = [{"part": "add 1"}]
    tree, deep = "/v2/tritium/tree", "/v2/health/ready?deep=1"
    alice.allowed = EVERYTHING - {(Action.STATISTICS, "*"), (Action.METADATA, "*")}
    status, _, body = await client.ask("GET", tree, b"", KEY)
    assert (status, "'alice' may use 'statistics' on some only" in body.decode()) == (403, True)
    assert json.loads((await client.ask("GET", deep, b"", KEY))[2]) == {"ready": True, "live": True}
    alice.allowed = EVERYTHING
    assert (await client.ask("GET", tree, b"", KEY))[0] == 200
    assert json.loads((await client.ask("GET", deep, b"", KEY))[2])["parts"] == [{"part": "add 1"}]


@pytest.mark.parametrize("gated", [True, False])
async def test_models_are_not_told_the_credentials_that_the_gate_judges(backend, gate, gated):
    options = V2Options(gate=gate if gated else None, header_forward_pattern=re.compile("."))
    client = Client(V2App(backend.server, options=options), native=True)
    assert (await client.ask("POST", INFER, add_body(), {**KEY, "x-user": "u"}))[0] == 200
    (request,) = backend.model("add").submitted
    assert request.parameters["x-user"] == "u"
    assert ("authorization" in request.parameters) is not gated


@pytest.mark.parametrize("way", ["input", "output"])
async def test_regions_in_a_request_need_the_right_to_shared_memory(client, backend, alice, way):
    with an_object(PAGE) as memory:
        await backend.regions.register_system("R", memory.key, offset=0, byte_size=PAGE)
        place = {"parameters": {"shared_memory_region": "R", "shared_memory_byte_size": 64}}
        document = json.loads(add_body())
        if way == "input":
            document["inputs"][0] = {"name": "A", "datatype": "FP32", "shape": [1, 16], **place}
        else:
            document["outputs"] = [{"name": "S", **place}]
        body = json.dumps(document).encode()
        headers = {**KEY, "content-length": str(len(body))}
        assert (await client.ask("POST", INFER, body, headers))[0] == 200
        alice.allowed = EVERYTHING - {(Action.SHARED_MEMORY, model) for model in ("", "add", "*")}
        status, _, told = await client.ask("POST", INFER, body, headers)
        assert (status, json.loads(told)["error"]) == (403, "alice may not shared-memory")
        # Whether there is such a region, and how long it is, is not told either.
        for other in (body.replace(b'"R"', b'"Q"'), body.replace(b": 64", b": %d" % (2 * PAGE))):
            assert other != body
            headers["content-length"] = str(len(other))
            assert await client.ask("POST", INFER, other, headers) == (status, _, told)
        assert len(backend.model("add").submitted) == 1
        assert (alice.running, backend.regions.table.find("R").users) == (0, 0)
