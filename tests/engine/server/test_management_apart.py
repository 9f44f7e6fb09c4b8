"""Management at ports of its own: served there alone, refused elsewhere, there until the rest has ended."""

import base64
import http.client
import json
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.flavours import process
from tests.support.operators import DOUBLE, ROOT, clean_environ, serving, write_model
from tests.support.tiers import mostly_long

pytestmark = [pytest.mark.slow, pytest.mark.system]

APART = ("--management-address=127.0.0.1", "--management-http-port=0", "--management-grpc-port=0")
TREBLE = DOUBLE.replace("* 2", "* 3")
CONFIG = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
)
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]})


def explicit(folder):
    write_model(folder / "models")
    return (f"--model-repository={folder / 'models'}", "--model-control-mode=explicit", "--load-model=double")


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """A server whose management is apart, in explicit mode."""
    folder = tmp_path_factory.mktemp("apart")
    with serving(folder, *explicit(folder), *APART) as server:
        server.wait_ready()
        yield server


def client_of(module, address):
    return module.InferenceServerClient(address)


def ask(address, method, path, body=None, headers=()):
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def answered(module, address, factor, name="double"):
    with client_of(module, address) as client:
        given = module.InferInput("X", [2], "FP32")
        given.set_data_from_numpy(np.array([1, 2], np.float32))
        assert client.infer(name, [given]).as_numpy("Y").tolist() == [factor, 2 * factor]


HTTP = (tritonclient.http, "HTTPService", "HTTPManagementService")
GRPC = (tritonclient.grpc, "GRPCInferenceService", "GRPCManagementService")
MANAGED = [
    ("POST", "/v2/repository/models/double/load"),
    ("POST", "/v2/repository/models/double/unload"),
    ("POST", "/v2/tritium/models/double/traffic"),
    ("GET", "/v2/tritium/tree"),
    ("GET", "/v2/tritium/events"),
    ("GET", "/v2/tritium/fleet"),
    ("POST", "/v2/tritium/fleet"),
    ("POST", "/v2/logging"),
    ("POST", "/v2/trace/setting"),
    ("POST", "/v2/models/double/trace/setting"),
]


@pytest.mark.parametrize(("method", "path"), MANAGED)
def test_a_data_port_refuses_management_and_says_where_it_is(apart, method, path):
    places = (
        f"HTTP at {apart.address('HTTPManagementService')}, gRPC at {apart.address('GRPCManagementService')}"
    )
    assert ask(apart.address(), method, path, "{}" if method == "POST" else None) == (
        403,
        {"error": f"management is served elsewhere: {places} (--management-address)"},
    )


@pytest.mark.parametrize(("module", "data", "management"), [HTTP, GRPC], ids=["http", "grpc"])
def test_tritons_clients_load_unload_and_upload_at_the_management_port(apart, module, data, management):
    answered(module, apart.address(data), 2)
    with client_of(module, apart.address(data)) as client:
        with pytest.raises(InferenceServerException, match="management is served elsewhere"):
            client.load_model("double")
        with pytest.raises(InferenceServerException, match="management is served elsewhere"):
            client.unload_model("double")
        assert client.is_server_ready()
        assert client.get_model_repository_index()
        assert client.get_model_config("double")
        assert client.get_inference_statistics("double")
    with client_of(module, apart.address(management)) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        client.load_model("double", config=CONFIG, files={"file:1/model.py": TREBLE.encode()})
        answered(module, apart.address(data), 3)
        answered(module, apart.address(management), 3)
        client.unload_model("double")
        with pytest.raises(InferenceServerException):
            answered(module, apart.address(data), 3)
        client.load_model("double")
    answered(module, apart.address(data), 2)


@pytest.mark.parametrize("rpc", ["LogSettings", "TraceSetting"])
def test_over_grpc_settings_are_changed_at_the_management_port_alone(apart, rpc):
    request = {
        "LogSettings": service_pb2.LogSettingsRequest,
        "TraceSetting": service_pb2.TraceSettingRequest,
    }[rpc]
    change = request()
    if rpc == "LogSettings":
        change.settings["log_verbose_level"].uint32_param = 1
    else:
        change.settings["trace_rate"].value.append("1")

    def code(service, message):
        with grpc.insecure_channel(apart.address(service)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                getattr(stub, rpc)(message, timeout=20)
            except grpc.RpcError as error:
                return error.code()
            return None

    read = None
    assert code("GRPCInferenceService", change) is grpc.StatusCode.PERMISSION_DENIED
    assert code("GRPCInferenceService", request()) is read
    assert code("GRPCManagementService", change) is read


def tritium(*words):
    command = [sys.executable, "-m", "engine", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", [["tree"], ["traffic", "double", "--off"]], ids=" ".join)
def test_commands_find_the_management_port_by_what_the_data_port_says(apart, words):
    refused = tritium(*words, "--url", apart.address())
    assert refused.returncode == 1
    assert f"HTTP at {apart.address('HTTPManagementService')}" in refused.stderr
    assert refused.stderr.endswith("; ask there, with --url\n")
    assert tritium(*words, "--url", apart.address("HTTPManagementService")).returncode == 0


def test_the_tree_has_the_listeners(apart):
    status, tree = ask(apart.address("HTTPManagementService"), "GET", "/v2/tritium/tree")
    assert status == 200
    (frontends,) = [child for child in tree["children"] if child["name"] == "frontends"]
    names = [child["name"] for child in frontends["children"]]
    assert names == ["management-http", "management-grpc", "http", "grpc", "metrics"]


def test_without_the_flag_everything_is_served_at_the_data_ports(tmp_path):
    with serving(tmp_path, *explicit(tmp_path), "--management-http-port=0") as server:
        server.wait_ready()
        assert "--management-http-port has no effect" in server.said
        assert "Management" not in server.said
        for module, data, _ in (HTTP, GRPC):
            with client_of(module, server.address(data)) as client:
                client.load_model("double", config=CONFIG, files={"file:1/model.py": TREBLE.encode()})
                answered(module, server.address(data), 3)
                client.unload_model("double")
                client.load_model("double")
        assert ask(server.address(), "GET", "/v2/tritium/tree")[0] == 200
        assert ask(server.address(), "POST", "/v2/tritium/models/double/traffic", "{}")[0] == 200


SLOW = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        open(os.environ["BEGUN"], "w").close()
        while not os.path.exists(os.environ["GATE"]):
            time.sleep(0.01)
        tensors = [pb_utils.Tensor("Y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""


def test_while_the_server_drains_the_management_port_shows_the_tree_and_takes_nothing_new(tmp_path):
    write_model(tmp_path / "models", code=SLOW)
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    environ = {"BEGUN": str(begun), "GATE": str(gate)}
    flags = (
        f"--model-repository={tmp_path / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=double",
    )
    with serving(tmp_path, *flags, *APART, environ=clean_environ(**environ)) as server:
        server.wait_ready()
        place = server.address("HTTPManagementService")
        answers = []
        waiting = threading.Thread(
            target=lambda: answers.append(ask(server.address(), "POST", "/v2/models/double/infer", BODY))
        )
        waiting.start()
        while not begun.exists():
            threading.Event().wait(0.01)
        server.signal()
        server.wait_said("listener_closed.*HTTPService")
        assert ask(place, "GET", "/v2/tritium/tree")[0] == 200
        assert ask(place, "GET", "/v2/health/ready")[0] == 503
        for path in (
            "/v2/repository/models/double/load",
            "/v2/repository/models/double/unload",
            "/v2/models/double/infer",
            "/v2/models/double/generate",
        ):
            assert ask(place, "POST", path, BODY) == (503, {"error": "Server exiting"}), path
        gate.touch()
        waiting.join(30)
        assert answers[0][0] == 200
        assert server.wait() == 0


@pytest.mark.parametrize("worker", mostly_long(["asyncio", "trio"], "asyncio"))
def test_under_hypercorn_the_tree_opens_the_management_ports(tmp_path, worker):
    write_model(tmp_path / "models")
    said = tmp_path / "said"
    flavour = process(
        *("hypercorn", "-k", worker, "-b", "127.0.0.1:0", "engine.asgi"),
        http=r"Running on http://(\S+)",
        said=said,
        TRITIUM_MANAGEMENT_ADDRESS="127.0.0.1",
        TRITIUM_MANAGEMENT_HTTP_PORT="0",
        TRITIUM_MANAGEMENT_GRPC_PORT="0",
        TRITIUM_MODEL_CONTROL_MODE="explicit",
        TRITIUM_LOAD_MODEL="double",
    )
    with flavour(tmp_path / "models") as addresses:
        place = said.read_text().split("Started HTTPManagementService at ")[1].split()[0].strip('"')
        status, document = ask(addresses.http, "POST", "/v2/repository/models/double/load")
        assert status == 403
        assert f"HTTP at {place}" in document["error"]
        assert ask(place, "POST", "/v2/repository/models/double/load")[0] == 200
        assert ask(place, "GET", "/v2/tritium/tree")[0] == 200
        with (
            tritonclient.grpc.InferenceServerClient(addresses.grpc) as client,
            pytest.raises(InferenceServerException, match="management is served elsewhere"),
        ):
            client.load_model("double")


def test_uploads_over_bare_http_are_taken_at_the_management_port(apart):
    parameters = {"config": CONFIG, "file:1/model.py": base64.b64encode(TREBLE.encode()).decode()}
    body = json.dumps({"parameters": parameters})
    path = "/v2/repository/models/double/load"
    assert ask(apart.address(), "POST", path, body)[0] == 403
    assert ask(apart.address("HTTPManagementService"), "POST", path, body)[0] == 200
    assert ask(apart.address("HTTPManagementService"), "POST", path)[0] == 200
