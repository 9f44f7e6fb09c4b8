"""Traffic between versions in the HTTP frontend: the extension's endpoint, models that pass requests on."""

import json

import numpy as np
import pytest

from actors.values.callers import Action
from actors.values.datatypes import DataType
from actors.values.marks import ClientMarks
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeModel, FakeServer, identity, make_spec
from tests.protocols.http.test_http_app import Client

PATH = "/v2/tritium/models/add/traffic"


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture(params=["native", "foreign"])
def client(request, backend):
    return Client(V2App(backend.server), native=request.param == "native")


async def test_the_plan_of_a_model_is_described(client):
    status, headers, body = await client.ask("GET", PATH)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == {"model": "add", "plan": {"weights": {"1": 1}}}


async def test_a_posted_plan_is_put_in_force_and_described(client, backend):
    status, _, body = await client.ask("POST", PATH, b'{"weights": {"2": 1}}')
    assert (status, json.loads(body)["plan"]) == (200, {"weights": {"2": 1}})
    status, _, body = await client.ask("POST", PATH, b"{}")
    assert (status, json.loads(body)["plan"]) == (200, {})


@pytest.mark.parametrize("body", [b"", b"[]", b'"off"', b"null"])
async def test_a_body_that_is_no_object_changes_nothing(client, backend, body):
    status, _, answer = await client.ask("POST", PATH, body)
    assert status == 400
    assert json.loads(answer) == {
        "error": "the body is a traffic plan as a JSON object, or {} to end the split"
    }
    assert backend.traffic.plans == {"add": {"weights": {"1": 1}}}


async def test_a_body_that_is_no_json_or_too_long_is_refused(backend):
    client = Client(V2App(backend.server, options=V2Options(max_input_size=10)), native=True)
    assert (await client.ask("POST", PATH, b"{"))[0] == 400
    status, _, answer = await client.ask("POST", PATH, b"{          }")
    assert status == 400
    assert b"exceeds the maximum allowed input size of 10 bytes" in answer


async def test_a_client_that_leaves_before_its_plan_is_here_changes_nothing(client, backend):
    client.leave.set()
    await client.ask("POST", PATH, parts=[])
    assert backend.traffic.plans == {"add": {"weights": {"1": 1}}}


async def test_an_unknown_model_is_not_found(client):
    for method in ("GET", "POST"):
        status, _, body = await client.ask(method, "/v2/tritium/models/nobody/traffic", b"{}")
        assert status == 404
        assert json.loads(body) == {"error": "Request for unknown model: 'nobody' is not found"}


async def test_a_server_that_is_exiting_describes_and_changes_nothing(client, backend):
    backend.health.exiting = True
    assert (await client.ask("GET", PATH))[0] == 200
    assert (await client.ask("POST", PATH, b"{}"))[0] == 503
    assert backend.traffic.plans == {"add": {"weights": {"1": 1}}}


async def test_traffic_is_restricted_with_the_repository(backend):
    options = V2Options(restricted={Action.MODEL_REPOSITORY: ("admin-key", "s3cret")})
    client = Client(V2App(backend.server, options=options), native=True)
    for method in ("GET", "POST"):
        assert (await client.ask(method, PATH, b"{}"))[0] == 403
        assert (await client.ask(method, PATH, b"{}", headers={"Admin-Key": "s3cret"}))[0] == 200


# -- models that pass requests on


class Front(FakeModel):
    """A split: every request goes to `target`."""

    def __init__(self, target, *, header=""):
        super().__init__(make_spec("front", version=1), identity)
        self.spec = target.spec
        self.target = target
        self.marks = ClientMarks(affinity_header=header)
        self.seen = []

    def submit_nowait(self, request):
        self.seen.append(request.affinity)
        request.routed_to = self.target
        self.target.submit_nowait(request)


def scores(*labels, version):
    return FakeModel(
        make_spec(
            "scores",
            version=version,
            inputs=[("X", DataType.FP32, (-1,))],
            outputs=[("Y", DataType.FP32, (-1,))],
            labels=labels,
        ),
        identity,
    )


def inference(**output):
    values = np.array([[0.25, 0.75]], np.float32).ravel().tolist()
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": values}]}
    return json.dumps({**document, **output}).encode()


async def ask(front, body, headers=()):
    server = FakeServer([front])
    client = Client(V2App(server.server), native=True)
    status, _, answer = await client.ask("POST", "/v2/models/scores/infer", body, headers=headers)
    assert status == 200
    return json.loads(answer)


async def test_an_answer_has_the_labels_of_the_version_that_gave_it():
    front = Front(scores("old cat", "old dog", version=1))
    front.target = scores("cat", "dog", version=2)
    body = inference(outputs=[{"name": "Y", "parameters": {"classification": 1}}])
    answer = await ask(front, body)
    assert answer["model_version"] == "2"
    assert answer["outputs"][0]["data"] == ["0.750000:1:dog"]


async def test_the_header_that_a_model_goes_by_travels_with_the_request():
    front = Front(scores(version=1), header="x-user")
    await ask(front, inference(), headers={"X-User": "böse"})
    await ask(front, inference())
    assert front.seen == ["b\xc3\xb6se", ""]


async def test_other_models_leave_headers_alone():
    front = Front(scores(version=1))
    await ask(front, inference(), headers={"X-User": "a"})
    assert front.seen == [""]
