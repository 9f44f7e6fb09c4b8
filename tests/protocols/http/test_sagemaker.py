"""SageMaker's paths over a server in memory: what each asks of the v2 API, and what becomes of the answer."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.values.callers import Action, Peer
from actors.values.errors import AlreadyExists, Internal, InvalidArgument, NotFound, Unavailable
from actors.values.interfaces import IndexEntry
from protocols.http.admission import Admitted
from protocols.http.answers import Answer
from protocols.http.app import V2App
from protocols.http.cloud.app import CloudApp
from protocols.http.cloud.sagemaker import UNLOADS_WITHIN, SageMaker
from protocols.http.options import V2Options
from protocols.http.routes import match
from protocols.kserve.requests import DEFAULT_MAX_INPUT_SIZE
from tests.protocols.fakes import FakeModel, FakeServer, make_spec
from tests.protocols.http.test_http_app import Client, add_body
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate

MIME = "application/vnd.sagemaker-triton.binary+json;json-header-size="
JSON = {"content-type": "application/json"}
EMPTY: tuple[dict[str, str], bytes] = ({}, b"")
TARGET = "x-amzn-sagemaker-target-model"


@dataclass
class Place:
    repository: str
    folder: str


class Registered:
    """Repositories that are registered; `failure` is raised in place of the next registration."""

    def __init__(self):
        self.models = {}
        self.failure = None

    async def register(self, path, models):
        if self.failure is not None:
            raise self.failure
        if path in self.models:
            raise AlreadyExists(f"model repository '{path}' has already been registered")
        self.models[path] = dict(models)

    def unregister(self, path):
        if path not in self.models:
            raise InvalidArgument(f"failed to unregister '{path}', repository not found")
        del self.models[path]


async def find(url):
    if url.startswith("/proc/"):
        return None
    if not url.startswith("/opt/ml/models/"):
        raise InvalidArgument(f"Invalid \"url\" '{url}': expected a path")
    return Place(url.removesuffix("/model"), "model")


def served(**options):
    """Return a SageMaker front end, and what is behind it."""
    backend = FakeServer()
    backend.repository.explicit = True
    registered = Registered()
    v2 = V2Options(
        **{name: options.pop(name) for name in ("gate", "restricted", "auditor") if name in options}
    )
    platform = SageMaker(
        backend.server,
        registered,
        find=find,
        max_input_size=DEFAULT_MAX_INPUT_SIZE,
        auditor=v2.auditor,
        **{"default_model": "add", **options},
    )
    app = CloudApp(platform, V2App(backend.server, options=v2))
    client = Client(app, native=True)
    return SimpleNamespace(app=app, ask=client.ask, backend=backend, registered=registered, platform=platform)


@pytest.fixture
def sagemaker():
    return served()


def load_body(name="h1", url=None):
    return json.dumps({"model_name": name, "url": url or f"/opt/ml/models/{name}/model"}).encode()


async def loaded(sagemaker, key="h1", name="add"):
    headers = {TARGET: name} if name != key else {}
    assert await sagemaker.ask("POST", "/models", load_body(key), headers) == (200, *EMPTY)


def error(text):
    return {"error": text}


# -- paths that are always there


async def test_the_ping_tells_whether_the_server_is_ready(sagemaker):
    assert await sagemaker.ask("GET", "/ping?deep=1") == (200, *EMPTY)
    assert sagemaker.backend.health.deep_probes == 0
    sagemaker.backend.health.is_ready = False
    assert await sagemaker.ask("GET", "/ping") == (400, *EMPTY)
    status, _, body = await sagemaker.ask("POST", "/ping")
    assert (status, json.loads(body)) == (405, error("Method Not Allowed"))


async def test_the_ping_may_tell_whether_the_server_lives():
    sagemaker = served(ping="live")
    sagemaker.backend.health.is_ready = False
    assert await sagemaker.ask("GET", "/ping") == (200, *EMPTY)
    sagemaker.backend.health.exiting = True
    status, _, body = await sagemaker.ask("GET", "/ping")
    assert (status, json.loads(body)) == (503, error("Server exiting"))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/pings"),
        ("POST", "/invocations/"),
        ("GET", "/v2/health/ready"),
        ("POST", "/v2/models/add/infer"),
        ("PUT", "/models"),
        ("PATCH", "/models/h1"),
        ("GET", "/models/a/b"),
        ("POST", "/models/a/invoke/b"),
    ],
)
async def test_any_other_path_or_method_is_a_bad_request_without_a_word(sagemaker, method, path):
    assert await sagemaker.ask(method, path) == (400, *EMPTY)


def test_only_the_ping_is_asked_for_by_health_checks(sagemaker):
    assert sagemaker.platform.is_health(b"/ping")
    assert not sagemaker.platform.is_health(b"/models")


METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD")


@given(
    method=st.sampled_from(METHODS),
    path=st.one_of(
        st.binary(max_size=60), st.binary(max_size=40).map(lambda end: b"/models" + end), st.just(b"/ping")
    ),
    target=st.binary(max_size=40),
)
def test_any_head_is_a_path_of_the_v2_api_or_a_bad_request(method, path, target):
    asked = served().platform.read(method, path, [(TARGET.encode(), target)])
    if isinstance(asked, Answer):
        assert asked.status == 400
    else:
        assert match(asked.path.decode("latin-1")) is not None


# -- invocations


async def test_an_invocation_is_an_inference_by_the_default_model(sagemaker):
    status, fields, body = await sagemaker.ask("POST", "/invocations", add_body())
    assert (status, fields) == (200, JSON)
    assert [each["name"] for each in json.loads(body)["outputs"]] == ["S", "D"]


async def test_an_invocation_without_a_default_model_says_which_is_missing():
    sagemaker = served(default_model="unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME")
    status, _, body = await sagemaker.ask("POST", "/invocations", add_body())
    assert (status, json.loads(body)) == (
        404,
        error("Request for unknown model: 'unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME' is not found"),
    )


@pytest.mark.parametrize("name", ["a b", "a/b", "a%2Fb", "modèle"])
async def test_a_default_model_may_have_any_name(name):
    sagemaker = served(default_model=name)
    status, _, body = await sagemaker.ask("POST", "/invocations", add_body())
    assert (status, json.loads(body)) == (404, error(f"Request for unknown model: '{name}' is not found"))


async def test_an_invocation_by_another_method_is_refused(sagemaker):
    status, fields, body = await sagemaker.ask("GET", "/invocations")
    assert (status, fields, json.loads(body)) == (405, JSON, error("Method Not Allowed"))


async def test_errors_of_an_invocation_have_their_own_statuses():
    sagemaker = served(default_model="full")
    inputs = [{"name": "X", "datatype": "INT64", "shape": [1, 1], "data": [5]}]
    status, _, body = await sagemaker.ask("POST", "/invocations", json.dumps({"inputs": inputs}).encode())
    assert (status, json.loads(body)) == (503, error("Exceeds maximum queue size"))


@pytest.mark.parametrize("inferring", ["generate", "generate_stream"])
async def test_an_invocation_may_be_a_generation(inferring):
    sagemaker = served(inferring=inferring, default_model="nope")
    status, _, body = await sagemaker.ask("POST", "/invocations", b"{}")
    assert (status, json.loads(body)) == (404, error("Request for unknown model: 'nope' is not found"))
    asked = sagemaker.platform.read("POST", b"/invocations", [])
    assert asked.path == f"/v2/models/nope/{inferring}".encode()


async def test_tensors_are_binary_where_the_media_type_says_so(sagemaker):
    text = json.dumps(
        {
            "inputs": [
                {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
                for name in ("A", "B")
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    status, fields, body = await sagemaker.ask(
        "POST", "/invocations", text + bytes(128), {"content-type": f"{MIME}{len(text)}"}
    )
    assert status == 200
    size = int(fields["content-type"].removeprefix(MIME))
    assert "inference-header-content-length" not in fields
    assert [each["name"] for each in json.loads(body[:size])["outputs"]] == ["S", "D"]
    assert len(body) == size + 128


@pytest.mark.parametrize(
    ("media_type", "message"),
    [
        (f"a;{MIME}1", f"expect MIME type for binary data starts with '{MIME}', got: a;{MIME}1"),
        (f"{MIME}x", "Unable to parse inference header size, got: x"),
        (f"{MIME}-1", "inference header size should be in range (0, 2), got: -1"),
        (f"{MIME}3", "inference header size should be in range (0, 2), got: 3"),
        (
            f"{MIME}9999999999",
            "Unable to parse inference header size, value is out of range, got: 9999999999",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/invocations", "/models/h1/invoke"])
async def test_a_media_type_that_says_no_length_is_refused(sagemaker, path, media_type, message):
    await loaded(sagemaker)
    status, fields, body = await sagemaker.ask("POST", path, b"{}", {"content-type": media_type})
    assert (status, fields, json.loads(body)) == (400, JSON, error(message))


async def test_nothing_is_compressed(sagemaker):
    headers = {"content-encoding": "gzip", "accept-encoding": "gzip", "inference-header-content-length": "1"}
    status, fields, _ = await sagemaker.ask("POST", "/invocations", add_body(), headers)
    assert (status, fields) == (200, JSON)


# -- endpoints with many models


async def test_models_come_are_listed_and_go(sagemaker):
    assert await sagemaker.ask("GET", "/models") == (200, JSON, b'{"models":[]}')
    await loaded(sagemaker)
    assert sagemaker.registered.models == {"/opt/ml/models/h1": {"add": "model"}}
    assert sagemaker.backend.repository.loaded == [("add", {})]
    line = {"modelName": "h1", "modelUrl": "/opt/ml/models/h1"}
    for path in ("/models", "/models/"):
        status, _, body = await sagemaker.ask("GET", path)
        assert (status, json.loads(body)) == (200, {"models": [line]})
    for path in ("/models/h1", "/models/h1/invoke"):
        status, _, body = await sagemaker.ask("GET", path)
        assert (status, json.loads(body)) == (200, line)
    sagemaker.backend.repository.entries = [
        IndexEntry(name="add", version=1, state="UNAVAILABLE", reason="unloaded")
    ]
    assert await sagemaker.ask("DELETE", "/models/h1") == (200, *EMPTY)
    assert sagemaker.backend.repository.unloaded == [("add", True)]
    assert sagemaker.registered.models == {}
    for method, path in (("GET", "/models/h1"), ("DELETE", "/models/h1"), ("DELETE", "/models")):
        assert await sagemaker.ask(method, path) == (404, *EMPTY)


async def test_a_model_without_a_name_in_the_head_has_the_platform_s(sagemaker):
    await loaded(sagemaker, "h2", "h2")
    assert sagemaker.registered.models == {"/opt/ml/models/h2": {"h2": "model"}}
    assert sagemaker.backend.repository.loaded == [("h2", {})]


@pytest.mark.parametrize("ready", [True, False])
async def test_a_model_that_is_not_ready_is_an_empty_line(sagemaker, ready):
    await loaded(sagemaker)
    sagemaker.backend.health.is_model_ready = ready
    status, _, body = await sagemaker.ask("GET", "/models")
    assert (status, len(json.loads(body)["models"][0])) == (200, 2 if ready else 0)


async def test_a_model_that_serves_no_longer_is_an_empty_line(sagemaker):
    await loaded(sagemaker, "h1", "gone")
    status, _, body = await sagemaker.ask("GET", "/models")
    assert (status, json.loads(body)) == (200, {"models": [{}]})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Invalid \"url\" '': expected a path"),
        (b"[]", "Invalid \"url\" '': expected a path"),
        (b'{"model_name":1}', "attempt to access JSON non-string as string"),
        (b'{"url":[]}', "attempt to access JSON non-string as string"),
        (load_body(url="/tmp/x"), "Invalid \"url\" '/tmp/x': expected a path"),
    ],
)
async def test_a_load_that_makes_no_sense_is_a_bad_request(sagemaker, body, message):
    status, fields, said = await sagemaker.ask("POST", "/models", body)
    assert (status, fields, json.loads(said)) == (400, JSON, error(message))
    assert sagemaker.registered.models == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"model_name":"h\x80","url":"/opt/ml/models/h1/model"}',
            "'model_name' has bytes that are no UTF-8",
        ),
        (b'{"model_name":"h1","url":"/opt/ml/models/\x80/model"}', "'url' has bytes that are no UTF-8"),
        (
            load_body("h" * 4097),
            "the name of 'model_name' has 4097 characters, and may have 4096 at most: '" + "h" * 80 + "...'",
        ),
    ],
)
async def test_a_load_by_names_that_could_not_be_told_is_a_bad_request(sagemaker, body, message):
    status, _, told = await sagemaker.ask("POST", "/models", body)
    assert (status, json.loads(told)) == (400, error(message))
    assert await sagemaker.ask("GET", "/models") == (200, JSON, b'{"models":[]}')


async def test_a_load_whose_body_is_no_json_is_a_bad_request(sagemaker):
    status, _, body = await sagemaker.ask("POST", "/models/h1", b"{")
    assert status == 400
    assert json.loads(body)["error"].startswith("failed to parse the request JSON buffer: ")


async def test_a_load_from_the_system_s_own_folders_is_a_bad_request_without_a_word(sagemaker):
    assert await sagemaker.ask("POST", "/models", load_body(url="/proc/self/root")) == (400, *EMPTY)


async def test_a_model_that_is_there_is_a_conflict(sagemaker):
    await loaded(sagemaker)
    status, fields, body = await sagemaker.ask("POST", "/models", load_body("h1"))
    assert (status, fields) == (409, JSON)
    assert json.loads(body) == error("model repository '/opt/ml/models/h1' has already been registered")
    status, _, body = await sagemaker.ask("POST", "/models", load_body("h1", "/opt/ml/models/other/model"))
    assert status == 409
    assert json.loads(body) == error("failed to register 'h1', there is a conflicting mapping for 'h1'")
    assert list(sagemaker.registered.models) == ["/opt/ml/models/h1"]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Internal("failed to load 'h1', failed to poll from model repository"), 400),
        (InvalidArgument("load failed for model 'h1': CUDA out of memory"), 507),
        (AlreadyExists("it is there"), 409),
        (Unavailable("lack of memory"), 507),
    ],
)
async def test_a_failed_load_leaves_nothing_behind(sagemaker, failure, status):
    async def load(*_arguments, **_options):
        raise failure

    sagemaker.backend.repository.load = load
    answer = await sagemaker.ask("POST", "/models", load_body())
    assert (answer[0], json.loads(answer[2])) == (status, error(failure.message))
    assert sagemaker.registered.models == {}
    assert await sagemaker.ask("GET", "/models/h1") == (404, *EMPTY)


async def test_a_load_that_is_cut_off_leaves_nothing_behind(sagemaker):
    async def load(*_arguments, **_options):
        await trio.sleep_forever()

    sagemaker.backend.repository.load = load
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sagemaker.ask, "POST", "/models", load_body())
            await trio.testing.wait_all_tasks_blocked()
            assert list(sagemaker.registered.models) == ["/opt/ml/models/h1"]
            scope.cancel()
    assert sagemaker.registered.models == {}


async def test_a_model_that_is_being_loaded_is_a_conflict(sagemaker):
    # Otherwise the later of two loads would take the place of the other, which could never be unloaded.
    go = trio.Event()

    async def load(*_arguments, **_options):
        await go.wait()

    sagemaker.backend.repository.load = load
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sagemaker.ask, "POST", "/models", load_body("h1"))
        await trio.testing.wait_all_tasks_blocked()
        other = load_body("h1", "/opt/ml/models/other/model")
        status, _, body = await sagemaker.ask("POST", "/models", other, {TARGET: "second"})
        assert status == 409
        assert json.loads(body) == error("failed to register 'h1', there is a conflicting mapping for 'h1'")
        go.set()
    assert list(sagemaker.registered.models) == ["/opt/ml/models/h1"]
    assert (await sagemaker.ask("GET", "/models/h1"))[0] == 200


async def test_a_repository_that_can_not_be_registered_is_a_bad_request(sagemaker):
    sagemaker.registered.failure = NotFound("failed to register '/x', repository not found")
    status, _, body = await sagemaker.ask("POST", "/models", load_body())
    assert (status, json.loads(body)) == (400, error("failed to register '/x', repository not found"))


# -- unloading


async def test_an_unload_waits_for_the_last_answer(sagemaker, autojump_clock):
    await loaded(sagemaker)
    repository = sagemaker.backend.repository
    repository.entries = [IndexEntry(name="add", version=1, state="UNLOADING")]
    answers = []

    async def unload():
        answers.append(await sagemaker.ask("DELETE", "/models/h1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(unload)
        await trio.sleep(100.2)
        # Meanwhile it is as good as gone, but its place is taken.
        assert await sagemaker.ask("GET", "/models/h1") == (404, *EMPTY)
        assert await sagemaker.ask("DELETE", "/models/h1") == (404, *EMPTY)
        assert (await sagemaker.ask("GET", "/models"))[2] == b'{"models":[{}]}'
        assert (await sagemaker.ask("POST", "/models", load_body()))[0] == 409
        assert (await sagemaker.ask("POST", "/models/h1/invoke", add_body()))[0] == 404
        repository.entries = [IndexEntry(name="add", version=1, state="UNAVAILABLE", reason="unloaded")]
    assert answers == [(200, *EMPTY)]
    assert trio.current_time() < 102
    assert sagemaker.registered.models == {}


async def test_an_unload_ends_before_the_platform_gives_up(sagemaker, autojump_clock):
    await loaded(sagemaker)
    sagemaker.backend.repository.entries = [IndexEntry(name="add", version=1, state="UNLOADING")]
    began = trio.current_time()
    assert await sagemaker.ask("DELETE", "/models/h1") == (200, *EMPTY)
    assert UNLOADS_WITHIN <= trio.current_time() - began < 360
    assert sagemaker.registered.models == {}


async def test_a_failed_unload_leaves_the_model_in_its_place(sagemaker):
    await loaded(sagemaker)
    sagemaker.backend.repository.explicit = False
    status, _, body = await sagemaker.ask("DELETE", "/models/h1")
    assert status == 400
    assert "explicit model load / unload is not allowed" in json.loads(body)["error"]
    assert (await sagemaker.ask("GET", "/models/h1"))[0] == 200


# -- invoking one of many


async def test_a_model_of_many_is_invoked_by_the_name_in_the_head_or_its_own(sagemaker):
    await loaded(sagemaker)
    for headers in ({}, {TARGET: "add"}):
        status, fields, body = await sagemaker.ask("POST", "/models/h1/invoke", add_body(), headers)
        assert (status, fields, json.loads(body)["model_name"]) == (200, JSON, "add")
    assert await sagemaker.ask("POST", "/models/h2/invoke", add_body()) == (404, *EMPTY)
    assert await sagemaker.ask("POST", "/models//invoke", add_body()) == (404, *EMPTY)


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("nope", add_body(), "Request for unknown model: 'nope' is not found"),
        ("streams", b"{}", "HTTP end point doesn't support models with decoupled transaction policy"),
        (
            "full",
            json.dumps(
                {"inputs": [{"name": "X", "datatype": "INT64", "shape": [1, 1], "data": [5]}]}
            ).encode(),
            "Exceeds maximum queue size",
        ),
        ("add", b"{}", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ],
)
async def test_every_error_of_a_model_of_many_is_a_bad_request(sagemaker, target, body, message):
    await loaded(sagemaker)
    status, _, said = await sagemaker.ask("POST", "/models/h1/invoke", body, {TARGET: target})
    assert (status, json.loads(said)) == (400, error(message))


async def test_a_model_that_lacks_memory_has_the_status_that_frees_some(sagemaker):
    def short(_model, _request):
        return Internal("CUDA out of memory. Tried to allocate 2.00 GiB")

    sagemaker.backend.models.by_name["short"] = FakeModel(make_spec("short"), short)
    await loaded(sagemaker, "h1", "short")
    status, _, body = await sagemaker.ask("POST", "/models/h1/invoke", add_body())
    assert (status, json.loads(body)) == (507, error("CUDA out of memory. Tried to allocate 2.00 GiB"))


# -- who may do so


def head(app, method, path, headers=(), length=10):
    fields = [(name.encode(), value.encode()) for name, value in dict(headers).items()]
    return app.admit(Peer("192.0.2.7"), method, path, fields, length)


@pytest.mark.parametrize(
    ("method", "path", "length", "status"),
    [
        ("POST", b"/invocations", 1000, None),
        ("POST", b"/invocations", 100_000_000, 400),  # --http-max-input-size
        ("POST", b"/models/h2/invoke", 1000, 404),
        ("POST", b"/models", 1000, None),
        ("POST", b"/models", 100_000, 413),
        ("GET", b"/nothing", 1000, 400),
    ],
)
def test_the_head_decides_whether_a_body_may_come(sagemaker, method, path, length, status):
    verdict = head(sagemaker.app, method, path, length=length)
    if status is None:
        assert isinstance(verdict, Admitted)
    else:
        assert isinstance(verdict, Answer)
        assert verdict.status == status


async def test_the_head_of_an_invocation_of_many_has_the_platform_s_statuses(sagemaker):
    await loaded(sagemaker)
    assert isinstance(head(sagemaker.app, "POST", b"/models/h1/invoke", length=1000), Admitted)
    refused = head(sagemaker.app, "POST", b"/models/h1/invoke", {TARGET: "nope"}, 1000)
    assert (refused.status, json.loads(b"".join(refused.buffers))) == (
        400,
        error("Request for unknown model: 'nope' is not found"),
    )


RESTRICTED = {Action.MODEL_REPOSITORY: ("admin", "yes"), Action.INFERENCE: ("infer-key", "yes")}


@pytest.mark.parametrize(
    ("method", "path", "key"),
    [
        ("GET", "/models", "admin"),
        ("GET", "/models/h1", "admin"),
        ("POST", "/models", "admin"),
        ("DELETE", "/models/h1", "admin"),
        ("POST", "/invocations", "infer-key"),
        ("POST", "/models/h1/invoke", "infer-key"),
        ("POST", "/models/h2/invoke", "infer-key"),
    ],
)
async def test_restricted_apis_ask_for_their_header_here_too(method, path, key):
    sagemaker = served(restricted=RESTRICTED)
    status, _, body = await sagemaker.ask(method, path, add_body())
    assert (status, json.loads(body)) == (403, error(f"This API is restricted, expecting header '{key}'"))
    status, _, _ = await sagemaker.ask(method, path, load_body(), {key: "yes"})
    assert status != 403


async def test_identities_are_told_apart_and_see_what_is_theirs():
    allowed = {(Action.MODEL_REPOSITORY, ""), (Action.MODEL_REPOSITORY, "add"), (Action.INFERENCE, "add")}
    gate = ListedGate(
        {
            b"Bearer alice": KnownCaller("alice", allowed),
            b"Bearer bob": KnownCaller("bob", allowed - {(Action.MODEL_REPOSITORY, "add")}),
        }
    )
    auditor = KeptAuditor()
    sagemaker = served(gate=gate, auditor=auditor)
    alice, bob = {"authorization": "Bearer alice"}, {"authorization": "Bearer bob"}
    for method, path in (("POST", "/models"), ("GET", "/models"), ("POST", "/models/h1/invoke")):
        assert (await sagemaker.ask(method, path, load_body()))[0] == 401
    named = {TARGET: "add"}
    status, _, body = await sagemaker.ask("POST", "/models", load_body(), {**bob, **named})
    assert (status, json.loads(body)) == (403, error("bob may not model-repository add"))
    assert (await sagemaker.ask("POST", "/models", load_body(), {**alice, **named}))[0] == 200
    assert (await sagemaker.ask("GET", "/models", headers=bob))[2] == b'{"models":[]}'
    assert (await sagemaker.ask("GET", "/models/h1", headers=bob))[0] == 404
    assert (await sagemaker.ask("GET", "/models/h1", headers=alice))[0] == 200
    assert (await sagemaker.ask("POST", "/models/h1/invoke", add_body(), bob))[0] == 200
    status, _, body = await sagemaker.ask("DELETE", "/models/h1", headers=bob)
    assert (status, json.loads(body)) == (403, error("bob may not model-repository add"))
    sagemaker.backend.repository.entries = []
    assert (await sagemaker.ask("DELETE", "/models/h1", headers=alice))[0] == 200
    assert [(change.action, change.model) for change in auditor.changes] == [
        ("model_load", "add"),
        ("model_unload", "add"),
        ("model_unload", "add"),
    ]
