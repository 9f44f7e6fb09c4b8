"""`/v2[/models/M]/trace/setting`: told and changed over HTTP (contract, http.md section 5.1)."""

import json

import pytest

from actors.values.callers import Action
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import Client
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate

EVERYWHERE = "/v2/trace/setting"
ADD = "/v2/models/add/trace/setting"
AT_FIRST = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "t.json",
    "trace_mode": "triton",
}


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture(params=["native", "foreign"])
def ask(request, backend):
    async def ask(method, path=EVERYWHERE, document=None, headers=(), **options):
        client = Client(V2App(backend.server, options=V2Options(**options)), native=request.param == "native")
        body = b"" if document is None else json.dumps(document).encode()
        status, _, answer = await client.ask(method, path, body, headers)
        return status, json.loads(answer)

    return ask


@pytest.mark.parametrize("path", [EVERYWHERE, ADD])
async def test_the_setting_is_told(ask, path):
    assert await ask("GET", path) == (200, AT_FIRST)


async def test_a_change_of_a_model_is_its_own_and_null_clears_it(ask):
    changed = {**AT_FIRST, "trace_rate": "5"}
    assert await ask("POST", ADD, {"trace_rate": "5"}) == (200, changed)
    assert await ask("GET") == (200, AT_FIRST)
    assert await ask("POST", document={"trace_rate": "7"}) == (200, {**AT_FIRST, "trace_rate": "7"})
    assert await ask("GET", ADD) == (200, changed)
    assert await ask("POST", ADD, {"trace_rate": None}) == (200, {**AT_FIRST, "trace_rate": "7"})


@pytest.mark.parametrize(
    ("path", "document", "status", "text"),
    [
        (
            EVERYWHERE,
            {"trace_rate": "0"},
            400,
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
        (EVERYWHERE, {"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
        (
            EVERYWHERE,
            {"trace_file": None},
            501,
            "trace file location can not be updated through network protocol",
        ),
        (EVERYWHERE, None, 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("/v2/models/nope/trace/setting", {}, 404, "Request for unknown model: 'nope' is not found"),
    ],
)
async def test_what_is_refused_has_its_status_and_text(ask, path, document, status, text):
    assert await ask("POST", path, document) == (status, {"error": text})
    assert await ask("GET") == (200, AT_FIRST)


async def test_the_setting_of_an_unknown_model_is_not_found(ask):
    status, _ = await ask("GET", "/v2/models/nope/trace/setting")
    assert status == 404


async def test_a_path_with_a_version_is_none(ask):
    client = Client(V2App(FakeServer().server), native=True)
    status, _, _ = await client.ask("GET", "/v2/models/add/versions/1/trace/setting")
    assert status == 404


async def test_it_belongs_to_the_restricted_category_trace(ask):
    restricted = {Action.TRACE: ("admin", "s3cret")}
    refused = (403, {"error": "This API is restricted, expecting header 'admin'"})
    assert await ask("GET", restricted=restricted) == refused
    assert await ask("POST", document={"trace_rate": "1"}, restricted=restricted) == refused
    assert await ask("GET", headers={"admin": "s3cret"}, restricted=restricted) == (200, AT_FIRST)


async def test_reading_is_one_permission_changing_another_and_changing_all_a_third(ask):
    may = {
        "reader": {(Action.TRACE, ""), (Action.TRACE, "add")},
        "owner": {(Action.SETTINGS, "add")},
        "ops": {(Action.SETTINGS, ""), (Action.SETTINGS, "*")},
    }
    gate = ListedGate({f"Bearer {name}".encode(): KnownCaller(name, each) for name, each in may.items()})
    auditor = KeptAuditor()

    async def status(name, method, path):
        headers = {"authorization": f"Bearer {name}"}
        document = {"trace_rate": "5"} if method == "POST" else None
        return (await ask(method, path, document, headers, gate=gate, auditor=auditor))[0]

    assert await status("reader", "GET", ADD) == 200
    assert await status("reader", "POST", ADD) == 403
    assert await status("owner", "POST", ADD) == 200
    assert await status("owner", "POST", EVERYWHERE) == 403
    assert await status("ops", "POST", EVERYWHERE) == 200


async def test_changes_are_told_to_the_audit_log_with_their_outcome(ask):
    auditor = KeptAuditor()
    await ask("POST", ADD, {"trace_rate": "5", "other": 1}, auditor=auditor)
    await ask("POST", EVERYWHERE, {"trace_rate": "0"}, auditor=auditor)
    await ask("GET", auditor=auditor)
    assert [(outcome, action) for outcome, action, *_ in auditor.told] == [
        ("asked", "trace"),
        ("done", "trace"),
        ("asked", "trace"),
        ("InvalidArgument", "trace"),
    ]
    assert [(change.model, change.facts) for change in auditor.changes] == [
        ("add", {"settings": {"trace_rate": "5"}}),
        ("", {"settings": {"trace_rate": "0"}}),
    ]
