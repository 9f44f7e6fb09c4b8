"""HTTP tells an audit log of changes and denials, and changes nothing where that can't be told."""

import base64
import json

import pytest

from actors.values.callers import Action
from protocols.http.app import V2App
from protocols.http.options import V2Options
from protocols.kserve.apart import Elsewhere
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import INFER, Client, add_body
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate

KEY = {"authorization": "Bearer ops"}
LOAD = "/v2/repository/models/add/load"
UNLOAD = "/v2/repository/models/add/unload"
TRAFFIC = "/v2/tritium/models/add/traffic"
FILES = {"config": "{}", "file:1/model.py": base64.b64encode(b"code").decode()}


@pytest.fixture
def auditor():
    return KeptAuditor()


@pytest.fixture
def backend():
    backend = FakeServer()
    backend.repository.explicit = True
    return backend


@pytest.fixture(params=["native", "foreign"])
def ask(request, backend, auditor):
    """Asks an application with these options."""

    async def ask(method, path, body=b"", headers=KEY, **options):
        app = V2App(backend.server, options=V2Options(auditor=auditor, **options))
        return await Client(app, native=request.param == "native").ask(method, path, body, headers)

    return ask


@pytest.fixture
def gate():
    everything = {(action, model) for action in Action for model in ("", "add")}
    few = {(Action.INFERENCE, "add"), (Action.MODEL_REPOSITORY, "add")}
    some = {(Action.STATISTICS, "add")}
    callers = {"ops": everything, "few": few, "some": some}
    return ListedGate({f"Bearer {name}".encode(): KnownCaller(name, may) for name, may in callers.items()})


async def test_changes_are_told_with_their_outcome_and_whose_they_are(ask, auditor, backend, gate):
    body = json.dumps({"parameters": FILES}).encode()
    assert (await ask("POST", LOAD, body, gate=gate))[0] == 200
    assert (await ask("POST", UNLOAD, b'{"parameters": {"unload_dependents": true}}', gate=gate))[0] == 200
    assert (await ask("POST", TRAFFIC, b'{"weights": {"1": 2}}', gate=gate))[0] == 200
    assert auditor.told == [
        (outcome, action, "add", "ops")
        for action in ("model_load", "model_unload", "traffic")
        for outcome in ("asked", "done")
    ]
    load, unload, traffic = auditor.changes
    assert {name: bytes(content) for name, content in load.files.items() if name != "config"} == {
        "file:1/model.py": b"code"
    }
    assert unload.facts == {"unload_dependents": True}
    assert traffic.facts == {"plan": {"weights": {"1": 2}}}


async def test_changes_that_fail_and_requests_that_make_no_sense(ask, auditor, backend):
    backend.repository.explicit = False
    assert (await ask("POST", LOAD))[0] == 503
    assert (await ask("POST", LOAD, b"{"))[0] >= 400
    assert (await ask("GET", TRAFFIC))[0] == 200
    assert auditor.told == [("asked", "model_load", "add", ""), ("Unavailable", "model_load", "add", "")]


@pytest.mark.parametrize(("path", "body"), [(LOAD, b""), (UNLOAD, b""), (TRAFFIC, b"{}")])
async def test_nothing_is_changed_where_the_log_can_not_be_written_and_inference_goes_on(
    ask, auditor, backend, path, body
):
    auditor.unwritable = "the audit log can't be written: No space left on device"
    status, _, answer = await ask("POST", path, body)
    assert (status, json.loads(answer)) == (503, {"error": auditor.unwritable})
    assert (backend.repository.loaded, backend.repository.unloaded) == ([], [])
    assert backend.traffic.plans == {"add": {"weights": {"1": 1}}}
    assert (await ask("POST", INFER, add_body()))[0] == 200
    assert (await ask("GET", "/v2/health/ready"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "key", "told"),
    [
        ("POST", INFER, "wrong", ("denied", "inference", "add", "")),
        ("POST", "/v2/models/other/infer", "few", ("denied", "inference", "other", "few")),
        ("GET", "/v2/models/add/stats", "few", ("denied", "statistics", "add", "few")),
        ("POST", UNLOAD, "wrong", ("denied", "model_unload", "add", "")),
        ("POST", TRAFFIC, "few", ("denied", "traffic", "add", "few")),
        ("GET", "/v2/tritium/tree", "some", ("denied", "tree", "", "some")),
        ("GET", "/v2/tritium/events", "some", ("denied", "events", "", "some")),
    ],
)
async def test_what_a_gate_denies_is_told_once(ask, auditor, gate, method, path, key, told):
    headers = {"authorization": f"Bearer {key}"}
    assert (await ask(method, path, b"{}", headers, gate=gate))[0] in {401, 403}
    assert auditor.told == [told]


async def test_files_that_an_identity_may_not_bring_are_told_once(ask, auditor, gate):
    body = json.dumps({"parameters": FILES}).encode()
    assert (await ask("POST", LOAD, body, {"authorization": "Bearer few"}, gate=gate))[0] == 403
    assert auditor.told == [("denied", "upload", "add", "few")]


@pytest.mark.parametrize("length", [0, 1_000_000])
async def test_regions_that_an_identity_may_not_name_are_told_once(ask, auditor, gate, length):
    place = {"parameters": {"shared_memory_region": "R", "shared_memory_byte_size": 64}}
    document = {**json.loads(add_body()), "outputs": [{"name": "S", **place}]}
    body = json.dumps(document).encode() + b" " * length  # a long text is read in another way
    assert (await ask("POST", INFER, body, {"authorization": "Bearer few"}, gate=gate))[0] == 403
    assert auditor.told == [("denied", "shared-memory", "", "few")]


async def test_what_is_forbidden_before_credentials_are_looked_at_is_told(ask, auditor):
    elsewhere = Elsewhere("127.0.0.1:8003")
    assert (await ask("POST", LOAD, elsewhere=elsewhere))[0] == 403
    assert (await ask("POST", UNLOAD, restricted={Action.MODEL_REPOSITORY: ("key", "x")}))[0] == 403
    assert (await ask("POST", LOAD, b"", {"sec-fetch-site": "cross-site"}))[0] == 403
    assert auditor.told == [
        ("denied", action, "add", "") for action in ("model_load", "model_unload", "model_load")
    ]
    assert "management is served elsewhere" in auditor.reasons[0]
    assert "This API is restricted" in auditor.reasons[1]


async def test_what_is_no_denial_is_not_told(ask, auditor):
    assert (await ask("GET", "/v2/nowhere"))[0] == 404
    assert (await ask("PUT", LOAD))[0] == 405
    assert (await ask("POST", "/v2/models/unknown/infer", add_body()))[0] >= 400
    assert auditor.told == []
