"""A client with few rights against a real server: it reaches no model, file or port that is not its own.

What it tries is of docs/attacks.md. One server has an auth file, ports for management, and forwards headers.
"""

import json
import re
import ssl
from urllib.parse import quote

import grpc
import httpx
import pytest
import trio
from tritonclient.grpc import service_pb2

from tests.support.certificates import Authority
from tests.support.flavours import process
from tests.survival.repository import Repository
from tests.survival.server import standing
from tests.survival.test_survival_identity import SECRETS, TRICKS, bearer, key
from tests.survival.wire import Connection

pytestmark = [pytest.mark.slow, pytest.mark.system]

RULES = """
[[rule]]
for = ["operator"]
allow = ["*"]

[[rule]]
for = ["user"]
allow = ["inference", "metadata", "model-repository", "model-config"]
models = ["onnx_*", "telling"]
"""
TELLS_PARAMETERS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        told = [np.array([request.parameters()], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", each)]) for each in told]
"""
SERVICE = "/inference.GRPCInferenceService/"
MINE, OTHER = "onnx_add_sub", "python_add_sub"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    repository = Repository(folder / "models")
    repository.onnx_add_sub()
    repository.python_add_sub()
    telling = repository.path / "telling"
    (telling / "1").mkdir(parents=True)
    (telling / "1" / "model.py").write_text(TELLS_PARAMETERS)
    (telling / "config.pbtxt").write_text(
        'backend: "python"\ninput { name: "X" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "TOLD" data_type: TYPE_STRING dims: [1] }\n'
    )
    auth = folder / "auth.toml"
    auth.write_text(key("user") + key("operator") + RULES)
    flags = (
        *(f"--auth-file={auth}", "--model-control-mode=explicit", "--load-model=*"),
        *("--management-address=127.0.0.1", "--management-http-port=0", "--management-grpc-port=0"),
        *("--http-header-forward-pattern=.*", "--grpc-header-forward-pattern=.*"),
    )
    with standing(repository.path, *flags, files=folder / "server") as server:
        yield server


def port_of(server, service):
    """The port of a service, as the log tells it."""
    (line,) = (line for line in server.logged("listener_opened") if line["service"] == service)
    return int(line["address"].rpartition(":")[2])


@pytest.fixture
def management(server):
    return port_of(server, "HTTPManagementService")


async def ask(port, method, path, document=None, **headers):
    body = b"" if document is None else json.dumps(document).encode()
    async with await Connection.open(port) as connection:
        return await connection.request(method, path, body, **headers)


def call(port, path, request, *metadata):
    """Return the name of the status of an RPC, and what it tells."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        rpc = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        try:
            return "OK", rpc(request.SerializeToString(), metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            return error.code().name, error.details()


def credentials(name):
    return ("authorization", bearer(name)["authorization"])


async def states(server):
    """The state of each model, as the operator sees it."""
    reply = await ask(server.http_port, "POST", "/v2/repository/index", **bearer("operator"))
    return {entry["name"]: entry["state"] for entry in reply.json()}


# -- names and paths

NAMES = [
    *("onnx_x/../python_add_sub", "onnx_add_sub/../python_add_sub", "onnx_add_sub/", "onnx_add_sub\0"),
    "onnx_..",
    *("onnx_add_sub/1", "onnx_*", "onnx_add_sub\\..\\python_add_sub", "onnx_add_sub\n", "onnx_\ud800"),
    *("python_add_sub", "./python_add_sub", "python_add_sub ", "PYTHON_ADD_SUB", "\uff50ython_add_sub", ""),
]  # fmt: skip


@pytest.mark.parametrize("action", ["load", "unload"])
async def test_no_name_loads_or_unloads_a_model_that_is_not_allowed(server, management, action):
    before = await states(server)
    grpc_port = port_of(server, "GRPCManagementService")
    for name in NAMES:
        path = f"/v2/repository/models/{quote(name, safe='', errors='surrogatepass')}/{action}"
        reply = await ask(management, "POST", path, **bearer("user"))
        unknown = action == "unload" and ("onnx_" in name or not name)  # what is not there is unloaded
        assert reply.status in ({200, 400, 404} if unknown else {400, 403, 404, 500}), name
        if "\ud800" in name:
            continue
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        status, _ = await trio.to_thread.run_sync(
            call, grpc_port, f"{SERVICE}RepositoryModel{action.title()}", request, credentials("user")
        )
        assert unknown or status in {"PERMISSION_DENIED", "INVALID_ARGUMENT", "INTERNAL", "NOT_FOUND"}, name
    assert await states(server) == before


TARGETS = [
    "/v2/repository/models/onnx_add_sub/unload",
    "http://127.0.0.1/v2/repository/models/onnx_add_sub/unload",
    "HTTP://health.example/v2/repository/models/onnx_add_sub/unload",
    "http:///v2/repository/models/onnx_add_sub/unload",
    "http://x?/v2/repository/models/onnx_add_sub/unload",
    "http://x/v2/health/../repository/models/onnx_add_sub/unload",
    "//x/v2/repository/models/onnx_add_sub/unload",
    "/v2/health/live/../../repository/models/onnx_add_sub/unload",
    "/v2/health/live;/v2/repository/models/onnx_add_sub/unload",
    "/v2/repository/x/models/onnx_add_sub/unload",
    "/v2/repository/models/onnx%5fadd_sub/unload?index",
    "/v2/repository/models/onnx_add_sub/%75nload",
    "/v2/repository/models/onnx_add_sub/UNLOAD",
    "/V2/repository/models/onnx_add_sub/unload",
]
PRETENDED = {
    "x-http-method-override": "POST",
    "x-original-url": TARGETS[0],
    "x-rewrite-url": TARGETS[0],
    "x-forwarded-prefix": "/v2/repository",
    "x-forwarded-host": "127.0.0.1:8003",
    "x-forwarded-for": "127.0.0.1",
    "forwarded": "for=127.0.0.1;host=127.0.0.1:8003",
}


async def test_no_way_of_writing_a_target_manages_at_a_port_for_inference(server):
    for target in TARGETS:
        reply = await ask(server.http_port, "POST", target, **bearer("operator"), **PRETENDED)
        assert reply.status in {400, 403, 404}, target
    reply = await ask(server.http_port, "POST", "/v2/repository/index", **bearer("operator"), **PRETENDED)
    assert reply.status == 200
    assert (await states(server))[MINE] == "READY"


PATHS = [
    *("RepositoryModelUnload", "repositorymodelunload", "RepositoryModelUnload/", "RepositoryModelUnloa%64"),
    *("/RepositoryModelUnload", "RepositoryModelUnload?x"),
    "../inference.GRPCInferenceService/RepositoryModelUnload",
]  # fmt: skip


async def test_no_way_of_writing_a_method_manages_at_a_port_for_inference(server):
    request = service_pb2.RepositoryModelUnloadRequest(model_name=MINE)
    for path in (*(SERVICE + path for path in PATHS), "/" + SERVICE + PATHS[0], SERVICE.lower() + PATHS[0]):
        status, _ = await trio.to_thread.run_sync(
            call, server.grpc_port, path, request, credentials("operator")
        )
        assert status in {"PERMISSION_DENIED", "UNIMPLEMENTED"}, path
    assert (await states(server))[MINE] == "READY"


# -- credentials

LIKE_CREDENTIALS = [
    (("authorization-bin", b"Bearer operator." + SECRETS["operator"].encode()),),
    (credentials("operator"), credentials("user")),
    (credentials("user"), credentials("operator")),
    (("x-authorization", credentials("operator")[1]),),
    (("authorization_", credentials("operator")[1]),),
    (("authorization", f"{credentials('user')[1]}, {credentials('operator')[1]}"),),
    (("authorization", "Bearer operator"),),
    (("x-forwarded-user", "operator"), ("x-client-cert", "CN=operator")),
    (),
]


@pytest.mark.parametrize("metadata", LIKE_CREDENTIALS)
def test_metadata_that_is_like_credentials_is_none(server, metadata):
    request = service_pb2.ModelMetadataRequest(name=OTHER)
    assert call(server.grpc_port, SERVICE + "ModelMetadata", request, *metadata)[0] == "UNAUTHENTICATED"
    status, _ = call(server.grpc_port, SERVICE + "ModelMetadata", request, credentials("operator"))
    assert status == "OK"


async def test_a_model_gets_no_credentials_among_the_headers_that_are_forwarded(server):
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
    headers = {**bearer("user"), "x-team": "vision"}
    reply = await ask(server.http_port, "POST", "/v2/models/telling/infer", document, **headers)
    (told,) = reply.json()["outputs"][0]["data"]
    assert json.loads(told)["x-team"] == "vision"
    assert SECRETS["user"] not in told
    request = service_pb2.ModelInferRequest(model_name="telling")
    request.inputs.add(name="X", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    metadata = (credentials("user"), ("x-team", "vision"))
    status, answer = await trio.to_thread.run_sync(
        call, server.grpc_port, SERVICE + "ModelInfer", request, *metadata
    )
    assert status == "OK"
    assert b"vision" in answer
    assert SECRETS["user"].encode() not in answer


# -- loads with a configuration of their own

PORTS = {
    "input": [{"name": name, "data_type": "TYPE_FP32", "dims": ["16"]} for name in ("A", "B")],
    "output": [{"name": name, "data_type": "TYPE_FP32", "dims": ["16"]} for name in ("SUM", "DIFFERENCE")],
}
STEP = {
    "model_version": -1,
    "input_map": {"A": "A", "B": "B"},
    "output_map": {"SUM": "SUM", "DIFFERENCE": "DIFFERENCE"},
}


@pytest.mark.parametrize("spelt", ["ensemble_scheduling model_name", "ensembleScheduling modelName"])
async def test_an_ensemble_is_no_way_to_a_model_that_is_not_allowed(server, management, spelt):
    scheduling, step = spelt.split()
    config = {
        **PORTS,
        "platform": "ensemble",
        "max_batch_size": 8,
        scheduling: {"step": [{**STEP, step: OTHER}]},
    }
    document = {"parameters": {"config": json.dumps(config)}}
    path = f"/v2/repository/models/{MINE}/load"
    reply = await ask(management, "POST", path, document, **bearer("user"))
    assert reply.status == 403
    assert (
        reply.error == f"'user' may not use 'inference' on model '{OTHER}': no rule of the server allows it"
    )
    request = service_pb2.RepositoryModelLoadRequest(model_name=MINE)
    request.parameters["config"].string_param = json.dumps(config)
    port = port_of(server, "GRPCManagementService")
    status, _ = await trio.to_thread.run_sync(
        call, port, SERVICE + "RepositoryModelLoad", request, credentials("user")
    )
    assert status == "PERMISSION_DENIED"
    reply = await ask(server.http_port, "GET", f"/v2/models/{MINE}/config", **bearer("user"))
    assert reply.json()["backend"] == "onnxruntime"


LEADING_OUT = [
    {"backend": "python", "default_model_filename": "../../python_add_sub/1/model.py"},
    {"backend": "python", "default_model_filename": "/etc/passwd"},
    {"backend": "../../evil"},
    {"backend": "onnxruntime", "name": OTHER},
    {
        "backend": "onnxruntime",
        "model_operations": {"op_library_filename": ["/lib/x86_64-linux-gnu/libc.so.6"]},
    },
    {
        "backend": "onnxruntime",
        "model_warmup": [
            {
                "name": "x",
                "batch_size": 1,
                "inputs": {
                    "A": {"data_type": "TYPE_FP32", "dims": ["16"], "input_data_file": "../../../etc/passwd"}
                },
            }
        ],
    },
]


@pytest.mark.parametrize("named", LEADING_OUT, ids=str)
async def test_a_configuration_leads_to_no_file_outside_of_its_model(server, management, named):
    document = {"parameters": {"config": json.dumps({**PORTS, "max_batch_size": 8, **named})}}
    reply = await ask(
        management, "POST", f"/v2/repository/models/{MINE}/load", document, **bearer("operator")
    )
    assert reply.status == 400
    assert "root:" not in reply.error
    assert (await states(server))[MINE] == "READY"


# -- answers

SPLITTING = "x\r\nSet-Cookie: a=b\r\n\r\nHTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/v2/models/{quote('onnx_' + SPLITTING, safe='')}", {}),
        (f"/v2/models/{quote('onnx_' + SPLITTING, safe='')}/infer", {}),
        (f"/v2/models/{MINE}/versions/{quote(SPLITTING, safe='')}", {}),
        (f"/v2/health/ready?deep={quote(SPLITTING, safe='')}", {}),
        (f"/v2/models/{MINE}", {"origin": "http://x%0d%0aset-cookie: a=b"}),
        (f"/v2/models/{MINE}", {"authorization": "Bearer user.%0d%0aset-cookie:a=b"}),
    ],
)
async def test_nothing_that_a_client_sends_becomes_a_header_of_the_answer(server, path, headers):
    method = "POST" if path.endswith("infer") else "GET"
    reply = await ask(server.http_port, method, path, **{**bearer("user"), **headers})
    assert "set-cookie" not in reply.fields
    assert reply.status in {200, 400, 401, 403, 404}


def test_nothing_that_a_client_sends_becomes_a_trailer_of_the_answer(server):
    request = service_pb2.ModelMetadataRequest(name="onnx_" + SPLITTING)
    with grpc.insecure_channel(server.grpc_url) as channel:
        rpc = channel.unary_unary(SERVICE + "ModelMetadata", request_serializer=bytes)
        with pytest.raises(grpc.RpcError) as refused:
            rpc(request.SerializeToString(), metadata=(credentials("user"),), timeout=60)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert SPLITTING in refused.value.details()
    assert "set-cookie" not in dict(refused.value.trailing_metadata())


# -- under another server

APART = {
    "TRITIUM_MODEL_CONTROL_MODE": "explicit",
    "TRITIUM_LOAD_MODEL": "*",
    "TRITIUM_MANAGEMENT_ADDRESS": "127.0.0.1",
    "TRITIUM_MANAGEMENT_HTTP_PORT": "0",
    "TRITIUM_MANAGEMENT_GRPC_PORT": "0",
}


@pytest.mark.long
async def test_under_hypercorn_no_way_of_writing_a_path_reaches_more(tmp_path):
    repository = Repository(tmp_path / "models")
    repository.onnx_add_sub()
    repository.python_add_sub()
    auth = tmp_path / "auth.toml"
    auth.write_text(key("user") + key("operator") + RULES.replace(', "telling"', ""))
    authority = Authority(tmp_path)
    signed = authority.sign("server")
    said = tmp_path / "said"
    hypercorn = process(
        *("hypercorn", "-k", "trio", "--insecure-bind", "127.0.0.1:0", "-b", "127.0.0.1:0"),
        *("--certfile", str(signed.certificate), "--keyfile", str(signed.key), "engine.asgi"),
        said=said,
        http=r"Running on http://(\S+)",
        TRITIUM_AUTH_FILE=str(auth),
        **APART,
    )
    with hypercorn(repository.path) as addresses:
        port = int(addresses.http.rpartition(":")[2])
        for path in TRICKS:
            reply = await ask(port, "GET", path, **bearer("user"))
            assert reply.status in {400, 403, 404}, path
        for target in TARGETS:
            reply = await ask(port, "POST", target, **bearer("operator"), **PRETENDED)
            assert reply.status in {400, 403, 404}, target
        (secure,) = re.findall(r"Running on https://\S+:(\d+)", said.read_text())
        context = ssl.create_default_context(cafile=authority.root)
        url = f"https://localhost:{secure}"
        async with httpx.AsyncClient(base_url=url, http1=False, http2=True, verify=context) as client:
            for path in (
                f"/v2/models/{OTHER}",
                "/v2/models/%70ython_add_sub",
                f"/v2/models/{MINE}/../{OTHER}",
            ):
                answer = await client.get(path, headers=bearer("user"))
                assert (answer.http_version, answer.status_code in {403, 404}) == ("HTTP/2", True)
            assert (await client.post(TARGETS[0], headers=bearer("operator"))).status_code == 403
            assert (await client.get(f"/v2/models/{OTHER}", headers=bearer("operator"))).status_code == 200
