"""`/v2/logging`: what is logged, told and changed over HTTP (contract, http.md section 5.2)."""

import json

import pytest

from actors.values.callers import Action
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import Client
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate

PATH = "/v2/logging"
AT_FIRST = {
    "log_file": "server.log",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture(params=["native", "foreign"])
def ask(request, backend):
    async def ask(method, document=None, headers=(), **options):
        client = Client(V2App(backend.server, options=V2Options(**options)), native=request.param == "native")
        body = b"" if document is None else json.dumps(document).encode()
        status, _, answer = await client.ask(method, PATH, body, headers)
        return status, json.loads(answer)

    return ask


async def test_the_settings_are_told(ask):
    assert await ask("GET") == (200, AT_FIRST)


async def test_a_change_answers_with_the_settings_as_they_are_then(ask, backend):
    wanted = {"log_verbose_level": 1, "log_info": False, "log_format": "ISO8601", "log_file": None}
    told = {**AT_FIRST, "log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}
    assert await ask("POST", wanted) == (200, told)
    assert await ask("GET") == (200, told)


@pytest.mark.parametrize("document", [{}, [], 1])
async def test_a_document_without_settings_changes_nothing(ask, backend, document):
    assert await ask("POST", document) == (200, AT_FIRST)
    assert len(backend.logs.states) == 1


async def test_nothing_is_no_document(ask):
    status, answer = await ask("POST")
    assert status == 500
    assert answer["error"].startswith("failed to parse the request JSON buffer: ")


async def test_what_stands_before_a_wrong_key_is_applied(ask):
    status, answer = await ask("POST", {"log_format": "xml", "log_verbose_level": 2})
    assert (status, answer) == (503, {"error": "invalid argument for --log_format, got: xml"})
    assert await ask("GET") == (200, {**AT_FIRST, "log_verbose_level": 2})


async def test_the_file_is_the_operators(ask):
    assert await ask("POST", {"log_info": False, "log_file": "/etc/passwd"}) == (
        501,
        {"error": "log file location can not be updated through network protocol"},
    )
    assert await ask("GET") == (200, AT_FIRST)


async def test_it_belongs_to_the_restricted_category_logging(ask):
    restricted = {Action.LOGGING: ("admin", "s3cret")}
    refused = (403, {"error": "This API is restricted, expecting header 'admin'"})
    assert await ask("GET", restricted=restricted) == refused
    assert await ask("POST", {"log_info": False}, restricted=restricted) == refused
    assert await ask("GET", headers={"admin": "s3cret"}, restricted=restricted) == (200, AT_FIRST)


async def test_reading_is_one_permission_and_changing_another(ask):
    callers = {"reader": {(Action.LOGGING, "")}, "ops": {(Action.LOGGING, ""), (Action.SETTINGS, "")}}
    gate = ListedGate({f"Bearer {name}".encode(): KnownCaller(name, may) for name, may in callers.items()})
    reader, ops = ({"authorization": f"Bearer {name}"} for name in callers)
    assert (await ask("GET", headers=reader, gate=gate))[0] == 200
    assert (await ask("POST", {"log_info": False}, headers=reader, gate=gate))[0] == 403
    assert (await ask("POST", {"log_info": False}, headers=ops, gate=gate))[0] == 200


async def test_changes_are_told_to_the_audit_log_with_their_outcome(ask):
    auditor = KeptAuditor()
    await ask("POST", {"log_info": False, "log_unknown": 1}, auditor=auditor)
    await ask("POST", {"log_format": "xml"}, auditor=auditor)
    await ask("GET", auditor=auditor)
    assert [(outcome, action) for outcome, action, *_ in auditor.told] == [
        ("asked", "logging"),
        ("done", "logging"),
        ("asked", "logging"),
        ("Unavailable", "logging"),
    ]
    assert [change.facts for change in auditor.changes] == [
        {"settings": {"log_info": False}},
        {"settings": {"log_format": "xml"}},
    ]
