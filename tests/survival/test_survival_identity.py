"""An auth file in a real server: who gets in with real clients, and what changes while they ask."""

import json
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from signal import SIGHUP
from urllib.parse import quote

import grpc
import numpy as np
import pytest
import trio
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from engine.identity.keys import digest_of, new_secret
from tests.survival.repository import Repository
from tests.survival.server import ServerProcess, eventually, standing, until
from tests.survival.wire import Connection

pytestmark = pytest.mark.slow

MODELS = ("onnx_add_sub", "python_add_sub")
SECRETS = {name: new_secret() for name in ("user", "operator", "slow", "narrow", "old", "new")}
RULES = """
[[rule]]
for = ["operator"]
allow = ["*"]

[[rule]]
for = ["user", "slow", "narrow", "worker"]
allow = ["inference", "metadata", "model-repository"]
models = ["onnx_*"]

[[limit]]
for = ["slow"]
requests_per_second = 0.05

[[limit]]
for = ["narrow"]
bytes_per_second = 1
"""


def key(name, identity="", **more):
    fields = {"id": name, "name": identity or name, "digest": digest_of(SECRETS[name]), **more}
    return "[[key]]\n" + "".join(f"{field} = {json.dumps(value)}\n" for field, value in fields.items())


def bearer(name):
    return {"authorization": f"Bearer {name}.{SECRETS[name]}"}


KEYS = "".join(key(name) for name in ("user", "operator", "slow", "narrow"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server with an auth file for all tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("identity")
    repository = Repository(folder / "models")
    repository.onnx_add_sub()
    repository.python_add_sub()
    auth = folder / "auth.toml"
    auth.write_text(key("old", "worker") + KEYS + RULES)
    flags = (f"--auth-file={auth}", "--model-control-mode=explicit", "--load-model=*", "--log-verbose=1")
    with standing(repository.path, *flags, files=folder / "server") as server:
        yield server


def inputs_of(module):
    given = []
    for name in ("A", "B"):
        tensor = module.InferInput(name, [1, 16], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
        given.append(tensor)
    return given


HTTP_CODES = {"401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "429": "RESOURCE_EXHAUSTED"}


def outcome(call, headers):
    """Return "ok", or the name of the status that a call of tritonclient failed with."""
    try:
        call(headers=headers)
    except InferenceServerException as error:
        status = str(error.status())
        return HTTP_CODES.get(status, status.removeprefix("StatusCode."))
    return "ok"


ASKED = {
    "server metadata": lambda c, m: c.get_server_metadata,
    "metadata": lambda c, m: partial(c.get_model_metadata, "onnx_add_sub"),
    "other metadata": lambda c, m: partial(c.get_model_metadata, "python_add_sub"),
    "unknown": lambda c, m: partial(c.get_model_metadata, "unknown"),
    "config": lambda c, m: partial(c.get_model_config, "onnx_add_sub"),
    "statistics": lambda c, m: c.get_inference_statistics,
    "index": lambda c, m: c.get_model_repository_index,
    "infer": lambda c, m: partial(c.infer, "onnx_add_sub", inputs_of(m)),
    "other infer": lambda c, m: partial(c.infer, "python_add_sub", inputs_of(m)),
    "load": lambda c, m: partial(c.load_model, "onnx_add_sub"),
    "other load": lambda c, m: partial(c.load_model, "python_add_sub"),
    "upload": lambda c, m: partial(
        c.load_model, "onnx_new", config="{}", files={"file:1/model.onnx": b"no model"}
    ),
    "shared memory": lambda c, m: c.get_system_shared_memory_status,
}
USER = {
    **dict.fromkeys(ASKED, "PERMISSION_DENIED"),
    **dict.fromkeys(("server metadata", "metadata", "index", "infer", "load"), "ok"),
}


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_each_identity_may_do_what_rules_allow_and_no_more(server, module):
    url = server.url if module is tritonclient.http else server.grpc_url
    with module.InferenceServerClient(url) as client:
        assert outcome(client.is_server_ready, {}) == "ok"
        for name, ask in ASKED.items():
            call = ask(client, module)
            assert outcome(call, {}) == "UNAUTHENTICATED", name
            assert outcome(call, {"authorization": f"Bearer user.{SECRETS['operator']}"}) == "UNAUTHENTICATED"
            assert outcome(call, bearer("user")) == USER[name], name
            told = outcome(call, bearer("operator"))
            assert told not in HTTP_CODES.values(), name
        index = client.get_model_repository_index(headers=bearer("user"))
        models = index if isinstance(index, list) else [{"name": each.name} for each in index.models]
        names = {model["name"] for model in models}
        assert "onnx_add_sub" in names
        assert "python_add_sub" not in names


TRICKS = [
    "/v2/models/python_add_sub",
    "/v2/models/python%5fadd_sub",
    "/v2/models/%70ython_add_sub",
    "/v2/models/onnx_add_sub/../python_add_sub",
    "/v2/models/onnx_x%2f..%2fpython_add_sub",
    "/v2/models/onnx_add_sub%00",
    "/v2/models/python_add_sub/versions/1",
    "/v2//models/python_add_sub",
    "/v2/models//python_add_sub",
    "/V2/models/python_add_sub",
    "/v2/models/python_add_sub?model=onnx_add_sub",
    "/v2/models/python_add_sub;onnx_add_sub",
    "/v2/models/python_add_sub/",
    "/v2/./models/python_add_sub",
    "http://elsewhere/v2/models/python_add_sub",
    "http://onnx_add_sub/v2/models/python_add_sub/ready/../",
    "/" + quote("v2/models/python_add_sub", safe=""),
]


@pytest.mark.parametrize("path", TRICKS)
async def test_no_way_of_writing_a_path_reaches_a_model_that_is_not_allowed(server, path):
    async with await Connection.open(server.http_port) as connection:
        reply = await connection.request("GET", path, **bearer("user"))
        assert reply.status in {400, 403, 404}
        assert b"INPUT" not in reply.body


@pytest.mark.parametrize(
    "fields",
    [
        b"Authorization: Bearer user.{user}\r\nAuthorization: Bearer operator.{operator}\r\n",
        b"Authorization: Bearer user.x, Bearer operator.{operator}\r\n",
        b"Authorization : Bearer operator.{operator}\r\n",
        b"X-Authorization: Bearer operator.{operator}\r\n",
        b"Proxy-Authorization: Bearer operator.{operator}\r\n",
        b"X-Identity: operator\r\nX-Forwarded-User: operator\r\nRemote-User: operator\r\n",
        b"Cookie: authorization=Bearer operator.{operator}\r\n",
        b"Authorization: Bearer\r\n operator.{operator}\r\n",
        b"Authorization: Basic b3BlcmF0b3I6eA==\r\n",
        b"Authorization: Bearer operator\r\n",
        b"Authorization: Bearer .\r\n",
        b"Authorization: Bearer model:chain\r\n",
        b"Authorization: Bearer operator.\xff\xfe\r\n",
    ],
)
async def test_headers_that_are_like_credentials_are_none(server, fields):
    for name, secret in SECRETS.items():
        fields = fields.replace(b"{%s}" % name.encode(), secret.encode())
    async with await Connection.open(server.http_port) as connection:
        await connection.send(b"GET /v2/models/python_add_sub HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
        assert (await connection.receive()).status in {400, 401}


async def test_a_request_behind_another_on_one_connection_has_its_own_identity(server):
    async with await Connection.open(server.http_port) as connection:
        heads = [bearer("operator"), {}, bearer("user"), {"authorization": "Bearer user.x"}]
        for head in heads:
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            await connection.send(
                f"GET /v2/models/python_add_sub HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()
            )
        assert [(await connection.answer()).status for _ in heads] == [200, 401, 403, 401]


async def test_a_long_body_is_refused_by_its_head(server):
    async with await Connection.open(server.http_port) as connection:
        await connection.send(
            b"POST /v2/models/onnx_add_sub/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
        )
        assert (await connection.receive()).status == 401


def test_a_long_grpc_message_is_refused_by_its_head(server):
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            infer(bytes(200_000_000), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert dict(refused.value.trailing_metadata())["www-authenticate"] == 'Bearer realm="tritium"'


def test_each_message_of_a_stream_is_asked_for(server):
    def message(model):
        request = service_pb2.ModelInferRequest(model_name=model)
        for name in ("A", "B"):
            tensor = request.inputs.add(name=name, datatype="FP32", shape=[1, 16])
            tensor.contents.fp32_contents.extend([1.0] * 16)
        return request

    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        models = ["onnx_add_sub", "python_add_sub", "onnx_add_sub", "unknown"]
        metadata = tuple(bearer("user").items())
        answers = list(stub.ModelStreamInfer(iter(map(message, models)), metadata=metadata, timeout=60))
        told = [answer.error_message for answer in answers]
        assert told[0] == told[2] == ""
        assert "'user' may not use 'inference' on model 'python_add_sub'" in told[1]
        assert "'user' may not use 'inference' on model 'unknown'" in told[3]
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.ModelStreamInfer(iter([message("onnx_add_sub")]), timeout=60))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


BY_REPOSITORY = """
[[rule]]
for = ["*"]
deny = ["*"]
namespaces = ["*/closed"]

[[rule]]
for = ["user"]
allow = ["inference", "model-repository"]
namespaces = ["*/open"]

[[rule]]
for = ["operator"]
allow = ["*"]
"""


def test_rules_by_repository_hold_for_models_that_are_not_loaded_too(tmp_path):
    opened, closed = Repository(tmp_path / "open"), Repository(tmp_path / "closed")
    opened.python_add_sub()
    closed.onnx_add_sub()
    auth = tmp_path / "auth.toml"
    auth.write_text(KEYS + BY_REPOSITORY)
    flags = ("--model-control-mode=explicit", f"--model-repository={closed.path}", f"--auth-file={auth}")
    uploaded = {"file:1/model.py": b"import nothing"}
    with standing(opened.path, *flags, "--model-namespacing=true", files=tmp_path / "server") as server:
        for module, url in ((tritonclient.http, server.url), (tritonclient.grpc, server.grpc_url)):
            with module.InferenceServerClient(url) as client:
                for name, model, verdict in (
                    ("user", "python_add_sub", "ok"),
                    ("user", "onnx_add_sub", "PERMISSION_DENIED"),
                    ("operator", "onnx_add_sub", "PERMISSION_DENIED"),
                ):
                    assert outcome(partial(client.load_model, model), bearer(name)) == verdict, (name, model)
                infer = partial(client.infer, "python_add_sub", inputs_of(module))
                assert outcome(infer, bearer("user")) == "ok"
                assert outcome(partial(client.unload_model, "python_add_sub"), bearer("user")) == "ok"
                upload = partial(client.load_model, "brought", config="{}", files=uploaded)
                assert outcome(upload, bearer("operator")) == "PERMISSION_DENIED"
    refused = ServerProcess.start(opened.path, tmp_path / "other", *flags)
    assert trio.run(refused.wait_ended) == 1
    assert "names namespaces, and without --model-namespacing=true" in refused.stdout


async def test_what_is_used_up_is_told_with_a_time_and_health_checks_go_on(server):
    async with await Connection.open(server.http_port) as connection:
        first = await connection.request("GET", "/v2", **bearer("slow"))
        second = await connection.request("GET", "/v2", **bearer("slow"))
        assert (first.status, second.status) == (200, 429)
        assert 1 <= int(second.fields["retry-after"]) <= 20
        assert "'slow' may make 0.05 requests a second" in second.error
        for _ in range(5):
            assert (await connection.request("GET", "/v2/health/live", **bearer("slow"))).status == 200

    def over_grpc():
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            return outcome(client.get_server_metadata, bearer("slow")), outcome(
                client.is_server_live, bearer("slow")
            )

    assert await trio.to_thread.run_sync(over_grpc) == ("RESOURCE_EXHAUSTED", "ok")


def test_bytes_are_limited_too(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        call = partial(client.infer, "onnx_add_sub", inputs_of(tritonclient.http))
        assert [outcome(call, bearer("narrow")) for _ in range(2)] == ["ok", "RESOURCE_EXHAUSTED"]


async def test_metrics_are_open_and_tell_of_identities(server):
    async with await Connection.open(server.http_port) as connection:
        await connection.request("GET", "/v2", **bearer("user"))
        await connection.request("GET", "/v2")
    assert await server.metric("tritium_identity_requests_total", identity="user") >= 1
    refused = {"identity": "anonymous", "code": "unauthenticated"}
    assert await server.metric("tritium_identity_refusals_total", **refused) >= 1


def test_no_secret_is_ever_written(server):
    told = server.stdout + server.stderr
    assert "access_refused" in told
    assert not [name for name, secret in SECRETS.items() if secret in told]
    assert not [name for name, secret in SECRETS.items() if digest_of(secret) in told]


class Load:
    """Clients of each kind, which ask without a pause with the current key. Counts answers."""

    def __init__(self, server):
        self.name = "old"
        self.done: Counter[object] = Counter()
        self.errors = []
        self._over = threading.Event()
        self._server = server
        self._threads = [threading.Thread(target=each) for each in (self._http, self._grpc, self._fresh)]

    def has_since(self, before, more):
        done = self.done.copy()
        return len(done) == len(self._threads) and all(done[ask] >= before[ask] + more for ask in done)

    def _run(self, ask):
        while not self._over.is_set():
            name = self.name
            try:
                ask(bearer(name))
                self.done[ask] += 1
            except Exception as error:  # noqa: BLE001  # whatever a client raises
                self.errors.append(f"{name}: {error!r}")
                return

    def _http(self):
        with tritonclient.http.InferenceServerClient(self._server.url) as client:
            given = inputs_of(tritonclient.http)
            self._run(lambda headers: client.infer("onnx_add_sub", given, headers=headers))

    def _grpc(self):
        with tritonclient.grpc.InferenceServerClient(self._server.grpc_url) as client:
            given = inputs_of(tritonclient.grpc)
            self._run(lambda headers: client.infer("onnx_add_sub", given, headers=headers))

    def _fresh(self):
        def ask(headers):
            with tritonclient.http.InferenceServerClient(self._server.url) as client:
                client.get_model_metadata("onnx_add_sub", headers=headers)

        self._run(ask)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()


async def test_keys_are_rotated_under_load_without_an_error(tritium_server, repository, tmp_path):
    repository.onnx_add_sub()
    auth = tmp_path / "auth.toml"
    worker = {"old": key("old", "worker"), "new": key("new", "worker")}
    rules = '[[rule]]\nfor = ["worker"]\nallow = ["*"]\n'
    auth.write_text(worker["old"] + rules)
    async with tritium_server(f"--auth-file={auth}") as server:

        async def put(text: str, said: str = "files_reloaded") -> None:
            replaced_at(auth, text)
            before = len(server.logged(said))
            server.signal(SIGHUP)
            await until(lambda: len(server.logged(said)) > before)

        async def answered(load: Load, more: int = 5) -> None:
            """Wait until each client has had some answers to what it asked since."""
            before = load.done.copy()
            await until(lambda: bool(load.errors) or load.has_since(before, more))

        with Load(server) as load:
            await answered(load)
            for current, other in (("old", "new"), ("new", "old")) * 3:
                await put(worker["old"] + worker["new"] + rules)
                load.name = other
                await answered(load)
                await put(worker[other] + rules)
                await answered(load)
                assert load.errors == []
                assert await refused(server, current)
            await put("[[rule]]\nfor = 5\n", said="reload_failed")
            await answered(load)
            assert load.errors == []
        (failure,) = server.logged("reload_failed")
        assert "auth.toml, line 1: [[rule]] number 1, 'allow': a rule has either" in failure["error"]
        assert "the rules stay as they are" in failure["error"]


def replaced_at(path: Path, text: str) -> None:
    """Put another file in the place of one, as editors and Kubernetes do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


async def refused(server, name):
    async with await Connection.open(server.http_port) as connection:
        return (await connection.request("GET", "/v2", **bearer(name))).status == 401


@pytest.mark.long
async def test_a_key_that_is_revoked_ends_streams_that_are_open(tritium_server, repository, tmp_path):
    repository.onnx_add_sub()
    auth = tmp_path / "auth.toml"
    rules = '[[rule]]\nfor = ["worker"]\nallow = ["*"]\n'
    auth.write_text(key("old", "worker") + rules)
    async with tritium_server(f"--auth-file={auth}") as server:
        answers: list[str] = []

        def told(result, error):
            answers.append("ok" if error is None else str(error))

        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.start_stream(told, headers=bearer("old"))
            client.async_stream_infer("onnx_add_sub", inputs_of(tritonclient.grpc))
            await until(lambda: len(answers) == 1)
            replaced_at(auth, key("old", "worker", revoked=True) + rules)
            await eventually(partial(refused, server, "old"))  # without a signal
            client.async_stream_infer("onnx_add_sub", inputs_of(tritonclient.grpc))
            await until(lambda: len(answers) == 2)
            client.stop_stream()
        assert answers[0] == "ok"
        assert "the API key 'old' was revoked" in answers[1]


ASKS_ANOTHER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._asked(request) for request in requests]

    def _asked(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy().ravel()[0].decode()
        one = np.ones((1, 16), np.float32)
        call = pb_utils.InferenceRequest(
            model_name=name,
            requested_output_names=["SUM"],
            inputs=[pb_utils.Tensor(port, one) for port in ("A", "B")],
        )
        told = []
        answer = call.exec()
        told.append(answer.error().message() if answer.has_error() else "called")
        try:
            pb_utils.unload_model(name)
            told.append("unloaded")
        except Exception as error:
            told.append(str(error))
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array(told, dtype=object))])
"""


@pytest.mark.parametrize("sandbox", ["off", "basic"])
async def test_calls_of_a_confined_model_are_judged_by_the_same_rules(
    tritium_server, repository, tmp_path, sandbox
):
    repository.onnx_add_sub()
    repository.python_add_sub()
    asking = repository.path / "asking"
    (asking / "1").mkdir(parents=True)
    (asking / "1" / "model.py").write_text(ASKS_ANOTHER)
    (asking / "config.pbtxt").write_text(
        'backend: "python"\ninput { name: "NAME" data_type: TYPE_STRING dims: [1] }\n'
        'output { name: "TOLD" data_type: TYPE_STRING dims: [2] }\n'
        f'parameters {{ key: "tritium.sandbox" value {{ string_value: "{sandbox}" }} }}\n'
    )
    auth = tmp_path / "auth.toml"
    auth.write_text(
        key("user") + '[[rule]]\nfor = ["user"]\nallow = ["*"]\n'
        '[[rule]]\nfor = ["model:asking"]\nallow = ["inference"]\nmodels = ["onnx_*"]\n'
    )
    flags = (f"--auth-file={auth}", "--model-control-mode=explicit", "--load-model=*")
    async with tritium_server(*flags) as server:

        def told(model):
            named = tritonclient.http.InferInput("NAME", [1], "BYTES")
            named.set_data_from_numpy(np.array([model], dtype=object))
            with tritonclient.http.InferenceServerClient(server.url) as client:
                result = client.infer("asking", [named], headers=bearer("user"))
            return [each.decode() for each in result.as_numpy("TOLD")]

        denied = "'model:asking' may not use '{}' on model '{}'"
        if sandbox == "off":
            assert await trio.to_thread.run_sync(told, "python_add_sub") == ["called", "unloaded"]
            return
        called, unloaded = await trio.to_thread.run_sync(told, "onnx_add_sub")
        assert called == "called"
        assert denied.format("model-repository", "onnx_add_sub") in unloaded
        called, _ = await trio.to_thread.run_sync(told, "python_add_sub")
        assert denied.format("inference", "python_add_sub") in called


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read: No such file or directory"),
        ("[[rules]]\n", "'rules' is not known (did you mean 'rule'?)"),
        (
            '[[issuer]]\nissuer = "x"\naudience = "y"\njwks = "none.json"\nalgorithms = ["RS256"]\n',
            "none.json",
        ),
    ],
)
async def test_a_server_does_not_start_with_an_auth_file_that_makes_no_sense(
    tritium_server, repository, tmp_path, text, said
):
    auth = tmp_path / "auth.toml"
    if text is not None:
        auth.write_text(text)
    async with tritium_server(f"--auth-file={auth}", ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        (failure,) = server.failures
        assert failure.startswith("--auth-file: ")
        assert said in failure
