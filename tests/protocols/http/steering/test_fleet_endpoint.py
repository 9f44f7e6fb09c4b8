"""The register over HTTP, and the epochs that changes show."""

import json

import pytest

from actors.values.callers import Action
from actors.values.errors import TakenOver
from protocols.http.app import V2App
from protocols.http.options import V2Options
from protocols.kserve.apart import Elsewhere
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import Client
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate

PATH = "/v2/tritium/fleet"
LOAD = "/v2/repository/models/add/load"
UNLOAD = "/v2/repository/models/add/unload"
TRAFFIC = "/v2/tritium/models/add/traffic"
CHANGES = {LOAD: b"", UNLOAD: b"", TRAFFIC: b'{"weights": {"1": 2}}'}


@pytest.fixture
def backend():
    backend = FakeServer()
    backend.repository.explicit = True
    return backend


@pytest.fixture(params=["native", "foreign"])
def ask(request, backend):
    """Asks an application with these options; returns the status and what the answer says."""

    async def ask(method, path, body=b"", headers=(), **options):
        app = V2App(backend.server, options=V2Options(**options))
        client = Client(app, native=request.param == "native")
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = await client.ask(method, path, body, headers)
        return status, json.loads(answer) if answer else None

    return ask


EMPTY = {
    "replica": "",
    "boot": "b00t",
    "epoch": 0,
    "sequence": 0,
    "document_epoch": 0,
    "held": False,
    "document": None,
    "memory": {"available_bytes": 5},
}


async def test_the_register_is_told_and_written(ask):
    assert await ask("GET", PATH) == (200, EMPTY)
    document = {"b": [1, None, {"c": "ü"}], "a": 0.5}
    kept = {**EMPTY, "epoch": 3, "sequence": 2, "document_epoch": 3, "document": document}
    body = {"epoch": 3, "sequence": 2, "document": document}
    assert await ask("POST", PATH, body) == (200, kept)
    assert await ask("POST", PATH, {**body, "document": dict(sorted(document.items()))}) == (200, kept)
    assert await ask("POST", PATH, {"epoch": 7}) == (200, {**kept, "epoch": 7})
    assert await ask("GET", PATH) == (200, {**kept, "epoch": 7})


async def test_a_controller_keeps_a_server_from_being_ready_until_it_lets_it_be(ask, backend):
    body = {"epoch": 3, "sequence": 2, "document": {}}
    for sequence, held in enumerate((True, None, False)):
        status, told = await ask("POST", PATH, {**body, "sequence": sequence, "held": held})
        assert (status, told["held"]) == (200, held is not False)
        assert backend.health.held is told["held"]
    status, _ = await ask("POST", PATH, {**body, "epoch": 2, "held": True})
    assert (status, backend.health.held) == (409, False)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"epoch": 3}, "this server has seen epoch 3, and the request shows epoch 3"),
        (
            {"epoch": 2, "sequence": 9, "document": {}},
            "this server has seen epoch 3, and the request shows epoch 2",
        ),
        (
            {"epoch": 3, "sequence": 2, "document": {}},
            "this server keeps sequence 2 of epoch 3, and the document has sequence 2 of epoch 3",
        ),
    ],
)
async def test_a_controller_that_was_replaced_is_told_so(ask, backend, body, said):
    backend.register.keep(3, 2, b'{"a":1}')
    expected = {"error": f"{said}: another controller has taken over"}
    assert await ask("POST", PATH, body) == (409, expected)
    assert backend.register.describe().document == b'{"a":1}'


MANY = "a whole number from 1 to 9223372036854775807"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is a JSON object: "),
        (b"[]", "the body is a JSON object: "),
        (b"{", "the body is no JSON text: "),
        ({}, f"'epoch' is missing: it is {MANY}"),
        ({"epoch": 0}, f"'epoch' is '0': it is {MANY}"),
        ({"epoch": True}, f"'epoch' is 'True': it is {MANY}"),
        ({"epoch": "1"}, f"'epoch' is '1': it is {MANY}"),
        ({"epoch": 2**63}, f"'epoch' is '9223372036854775808': it is {MANY}"),
        ({"epoch": 1, "sequence": 1}, "'sequence' goes with a 'document', and there is none"),
        ({"epoch": 1, "held": True}, "'held' goes with a 'document', and there is none"),
        ({"epoch": 1, "sequence": 1, "document": {}, "held": 1}, "'held' is '1': it is true or false"),
        ({"epoch": 1, "document": {}}, "'sequence' is missing: it is a whole number from 0"),
        ({"epoch": 1, "sequence": -1, "document": {}}, "'sequence' is '-1': it is a whole number from 0"),
        ({"epoch": 1, "sequence": 1, "document": []}, "'document' is a JSON object"),
        ({"epoch": 1, "sequence": 1, "document": None}, "'document' is a JSON object"),
        (b'{"epoch": 1, "sequence": 1, "document": {"a": "\xff"}}', "the body is no JSON text: "),
        (b'{"epoch": 1, "sequence": 1, "document": {"a": NaN}}', "the body is no JSON text: "),
        (b'{"epoch":1,"sequence":1,"document":' + b'{"a":' * 500 + b"1" + b"}" * 501, "can't be kept: "),
        (
            {"epoch": 1, "wanted": {}},
            "unknown member 'wanted': there are 'epoch', 'sequence', 'document', 'held'",
        ),
        ({"epoch": 1, "sequence": 1, "document": {"a": "x" * 262144}}, "has 262144 bytes at most"),
    ],
)
async def test_a_body_that_makes_no_sense_changes_nothing(ask, backend, body, said):
    status, answer = await ask("POST", PATH, body)
    assert status in {400, 413}
    assert said in answer["error"] or "exceeds the 262144 bytes" in answer["error"]
    assert backend.register.epoch == 0


async def test_a_client_that_leaves_before_its_document_is_here_changes_nothing(backend):
    client = Client(V2App(backend.server), native=True)
    client.leave.set()
    await client.ask("POST", PATH, parts=[])
    assert backend.register.epoch == 0


async def test_a_long_document_is_kept(ask):
    document = {str(index): [index, "x" * 10] for index in range(5000)}
    status, answer = await ask("POST", PATH, {"epoch": 1, "sequence": 0, "document": document})
    assert (status, answer["document"]) == (200, document)


@pytest.mark.parametrize("path", CHANGES)
async def test_a_change_of_a_lower_epoch_is_refused_and_nothing_is_done(ask, backend, path):
    backend.register.begin(5)
    status, answer = await ask("POST", path, CHANGES[path], {"Tritium-Epoch": "4"})
    said = "this server has seen epoch 5, and the request shows epoch 4: another controller has taken over"
    assert (status, answer) == (409, {"error": said})
    assert (backend.repository.loaded, backend.repository.unloaded) == ([], [])
    assert backend.traffic.plans == {"add": {"weights": {"1": 1}}}


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    ("headers", "epoch"), [({}, 5), ({"Tritium-Epoch": "5"}, 5), ({"Tritium-Epoch": "6"}, 6)]
)
async def test_a_change_of_an_epoch_as_high_raises_it_and_one_without_an_epoch_is_made(
    ask, backend, path, headers, epoch
):
    backend.register.begin(5)
    assert (await ask("POST", path, CHANGES[path], headers))[0] == 200
    assert backend.register.epoch == epoch


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("epoch", ["", "0", "-1", "+1", "1.0", "one", "1" * 20, "9223372036854775808", "١"])
async def test_an_epoch_that_is_no_number_is_refused(ask, backend, path, epoch):
    status, answer = await ask("POST", path, CHANGES[path], {"Tritium-Epoch": epoch})
    assert status == 400
    assert answer["error"].startswith(f"'tritium-epoch' is {MANY}, and not '")
    assert (backend.repository.loaded, backend.repository.unloaded) == ([], [])


async def test_a_change_whose_epoch_was_outrun_while_its_model_was_found_is_refused(ask, backend):
    def outrun(name, parameters, *, permit):
        backend.register.begin(9)
        permit(name, "")

    async def load(name, parameters, *, permit):
        outrun(name, parameters, permit=permit)

    backend.repository.load = load
    status, answer = await ask("POST", LOAD, b"", {"Tritium-Epoch": "8"})
    assert (status, "has seen epoch 9" in answer["error"]) == (409, True)


# -- who may


async def test_the_register_is_restricted_with_the_repository_and_served_where_management_is(ask):
    restricted = {Action.MODEL_REPOSITORY: ("admin-key", "s3cret")}
    for method in ("GET", "POST"):
        assert (await ask(method, PATH, {"epoch": 1}, restricted=restricted))[0] == 403
        assert (await ask(method, PATH, {"epoch": 1}, elsewhere=Elsewhere(http="127.0.0.1:8003")))[0] == 403
    assert (await ask("GET", PATH, b"", {"Admin-Key": "s3cret"}, restricted=restricted))[0] == 200


def key(name):
    return {"Authorization": f"Bearer {name}"}


@pytest.fixture
def gate():
    everything = {(action, model) for action in Action for model in ("*", "add")}
    repository = {(action, "add") for action in (Action.MODEL_REPOSITORY, Action.TRAFFIC)}
    callers = {
        "ops": KnownCaller("ops", everything),
        "some": KnownCaller("some", repository),
    }
    return ListedGate({f"Bearer {name}".encode(): caller for name, caller in callers.items()})


async def test_who_may_change_some_models_only_neither_reads_the_register_nor_raises_an_epoch(
    ask, backend, gate
):
    auditor = KeptAuditor()
    for method in ("GET", "POST"):
        status, answer = await ask(method, PATH, {"epoch": 1}, key("some"), gate=gate, auditor=auditor)
        assert status == 403
        assert "'some' may use 'model-repository' on some only" in answer["error"]
    assert auditor.told == [("denied", "fleet", "", "some")] * 2
    for epoch, (path, body) in enumerate(CHANGES.items(), start=1):
        shown = {"Tritium-Epoch": str(epoch)}
        for name, status in (("some", 403), ("ops", 200), ("some", 200)):
            assert (await ask("POST", path, body, {**key(name), **shown}, gate=gate))[0] == status


async def test_changes_of_the_register_are_told_to_the_audit_log(ask, gate):
    auditor = KeptAuditor()
    document = {"epoch": 1, "sequence": 0, "document": {"a": 1}}
    assert (await ask("POST", PATH, document, key("ops"), gate=gate, auditor=auditor))[0] == 200
    assert (await ask("POST", PATH, {"epoch": 1}, key("ops"), gate=gate, auditor=auditor))[0] == 409
    assert (await ask("GET", PATH, b"", key("ops"), gate=gate, auditor=auditor))[0] == 200
    assert auditor.told == [
        ("asked", "fleet", "", "ops"),
        ("done", "fleet", "", "ops"),
        ("asked", "fleet", "", "ops"),
        (TakenOver.__name__, "fleet", "", "ops"),
    ]
    kept, taken = auditor.changes
    assert (kept.facts, kept.files["document"]) == ({"epoch": 1, "sequence": 0}, b'{"a":1}')
    assert (taken.facts, dict(taken.files)) == ({"epoch": 1}, {})
