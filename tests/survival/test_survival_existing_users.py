"""What Triton's users have in place works without a new flag; probes and scrapes work beside an auth file.

The calls are those of tritonclient, Model Analyzer, KServe's agent, ModelMesh's adapter for Triton, kubelet
and Prometheus, as each sends them. None of them shows credentials.
"""

import gzip
import http.client
import json
import shutil
import subprocess
from contextlib import closing

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.survival.repository import Repository
from tests.survival.server import standing
from tests.survival.test_survival_identity import inputs_of, key

pytestmark = [pytest.mark.slow, pytest.mark.system]

PROMTOOL = shutil.which("promtool")
MODEL, ANOTHER = "onnx_add_sub", "python_add_sub"
MESHED, MESHED_CODE = "onnx-add-sub__isvc-0123456789", "python-add-sub__isvc-0123456789"
PATIENCE = 60.0


def started(folder, *flags):
    repository = Repository(folder / "models")
    repository.onnx_add_sub()
    repository.python_add_sub()
    repository.onnx_add_sub(MESHED)
    repository.python_add_sub(MESHED_CODE)
    for name in (MESHED, MESHED_CODE):
        meshed(repository.path / name, folder / "pulled" / name)
    return standing(repository.path, "--model-control-mode=explicit", *flags, files=folder / "server")


def meshed(model, pulled):
    """Lay a model out as ModelMesh's adapter does: files lie where they were pulled to, versions are links.

    The adapter removes the name from a configuration, since the folder has another.
    """
    pulled.parent.mkdir(exist_ok=True)
    model.rename(pulled)
    model.mkdir()
    lines = (pulled / "config.pbtxt").read_text().splitlines()
    (model / "config.pbtxt").write_text("\n".join(line for line in lines if not line.startswith("name:")))
    for version in pulled.iterdir():
        if version.is_dir():
            (model / version.name).symlink_to(version)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A server as an existing user starts it."""
    with started(tmp_path_factory.mktemp("plain")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with an auth file, whose rules do not name health and metrics."""
    folder = tmp_path_factory.mktemp("guarded")
    auth = folder / "auth.toml"
    auth.write_text(key("operator") + '[[rule]]\nfor = ["operator"]\nallow = ["*"]\n')
    with started(folder, f"--load-model={MODEL}", f"--auth-file={auth}") as server:
        yield server


@pytest.fixture(params=["plain", "guarded"])
def either(request):
    return request.getfixturevalue(request.param)


def ask(port, method, path, body=None, **headers):
    """Return status, headers and body of one request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request(
            method, path, body, {name.replace("_", "-"): text for name, text in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


# -- tritonclient


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_tritonclient_loads_a_model_of_files_in_the_request(plain, module, tmp_path):
    Repository(tmp_path / "made").onnx_add_sub("made")
    files = {"file:1/model.onnx": (tmp_path / "made/made/1/model.onnx").read_bytes()}
    url = plain.url if module is tritonclient.http else plain.grpc_url
    with module.InferenceServerClient(url) as client:
        client.load_model(
            "made", config=json.dumps({"backend": "onnxruntime", "max_batch_size": 8}), files=files
        )
        assert client.infer("made", inputs_of(module)).as_numpy("SUM").tolist() == [[2.0] * 16]
        client.unload_model("made")
        assert not client.is_model_ready("made")


# -- Model Analyzer, in remote mode


def as_model_analyzer_writes_it(client, name):
    """The model's configuration with two instances, in protobuf's JSON, where int64 is a string."""
    config = service_pb2.ModelConfigResponse()
    if isinstance(client, tritonclient.http.InferenceServerClient):
        json_format.ParseDict(client.get_model_config(name), config.config)
    else:
        config.CopyFrom(client.get_model_config(name))
    variant = config.config
    variant.instance_group[0].count = 2
    variant.dynamic_batching.max_queue_delay_microseconds = 100
    text = json_format.MessageToJson(variant, preserving_proto_field_name=True)
    assert '"16"' in text
    return text


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_model_analyzer_loads_variants_asks_and_measures(plain, module):
    status, _, body = ask(plain.http_port, "POST", "/v2/repository/index", b"")
    assert status == 200
    names = [entry["name"] for entry in json.loads(body)]
    url = plain.url if module is tritonclient.http else plain.grpc_url
    with module.InferenceServerClient(url) as client:
        assert client.is_server_ready()
        for name in names:
            client.unload_model(name)
        client.load_model(MODEL)
        client.load_model(MODEL, config=as_model_analyzer_writes_it(client, MODEL))
        assert client.is_model_ready(MODEL)
        assert client.infer(MODEL, inputs_of(module)).as_numpy("SUM").tolist() == [[2.0] * 16]
        assert client.get_inference_statistics(MODEL)
        status, _, body = ask(plain.metrics_port, "GET", "/metrics", accept="*/*")
        assert status == 200
        assert b"nv_inference_count" in body
        client.unload_model(MODEL)
        assert not client.is_model_ready(MODEL)


# -- KServe's agent, and ModelMesh's adapter


def test_kserves_agent_loads_and_unloads_at_the_data_port(plain):
    for action, ready in (("load", {200}), ("unload", {400, 404})):
        path = f"/v2/repository/models/{ANOTHER}/{action}"
        headers = {"content_type": "application/json", "user_agent": "Go-http-client/1.1"}
        assert ask(plain.http_port, "POST", path, b"{}", **headers)[0] == 200
        assert ask(plain.http_port, "GET", f"/v2/models/{ANOTHER}/ready")[0] in ready


@pytest.mark.parametrize("name", [MESHED, MESHED_CODE], ids=["onnx", "python"])
def test_modelmeshs_adapter_begins_loads_and_unloads_at_the_data_port(plain, name):
    with grpc.insecure_channel(plain.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=PATIENCE).live
        assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PATIENCE).ready
        index = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=PATIENCE)
        for each in (*(model.name for model in index.models), "never-there"):
            stub.RepositoryModelUnload(
                service_pb2.RepositoryModelUnloadRequest(model_name=each), timeout=PATIENCE
            )
        assert stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=PATIENCE).version
        stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=name), timeout=PATIENCE)
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name=name), timeout=PATIENCE).ready
        with pytest.raises(grpc.RpcError):
            stub.RepositoryModelLoad(
                service_pb2.RepositoryModelLoadRequest(model_name="never-there"), timeout=PATIENCE
            )
        assert stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=name), timeout=PATIENCE).name == name
        with closing(tritonclient.grpc.InferenceServerClient(plain.grpc_url)) as client:
            answer = client.infer(name, inputs_of(tritonclient.grpc))
        assert answer.as_numpy("SUM") is not None
        stub.RepositoryModelUnload(
            service_pb2.RepositoryModelUnloadRequest(model_name=name), timeout=PATIENCE
        )


# -- kubelet and Prometheus


def test_kubelets_probes_pass_without_credentials(either):
    headers = {
        "user_agent": "kube-probe/1.32",
        "accept": "*/*",
        "connection": "close",
        "host": "10.42.0.7:8000",
    }
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert ask(either.http_port, "GET", path, **headers)[0] == 200
    options = (("grpc.primary_user_agent", "kube-probe/1.32"),)
    with grpc.insecure_channel(either.grpc_url, options=options) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService"):
            told = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
            assert told.status == health_pb2.HealthCheckResponse.SERVING


SCRAPE = {
    "user_agent": "Prometheus/3.5.0",
    "accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "accept_encoding": "gzip",
    "x_prometheus_scrape_timeout_seconds": "10",
}


def test_prometheus_scrapes_without_credentials(either):
    status, headers, body = ask(either.metrics_port, "GET", "/metrics", **SCRAPE)
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    text = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
    assert b"\nnv_" in text
    if PROMTOOL is not None:
        checked = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False, timeout=PATIENCE
        )
        assert b"error while linting" not in checked.stderr, checked.stderr
        assert checked.returncode in {0, 3}, checked.stderr  # 3: matters of taste, which are Triton's names


def test_beside_an_auth_file_all_else_takes_credentials(guarded):
    for method, path in (
        ("GET", "/v2"),
        ("GET", f"/v2/models/{MODEL}"),
        ("POST", "/v2/repository/index"),
        ("POST", f"/v2/repository/models/{ANOTHER}/load"),
    ):
        assert ask(guarded.http_port, method, path, b"")[0] == 401
    with tritonclient.grpc.InferenceServerClient(guarded.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="takes credentials"):
            client.load_model(ANOTHER)
        assert client.is_model_ready(MODEL)


@pytest.mark.parametrize("named", ["health", "metrics"])
async def test_a_rule_that_names_health_or_metrics_closes_them(tritium_server, repository, tmp_path, named):
    repository.onnx_add_sub()
    auth = tmp_path / "auth.toml"
    auth.write_text(key("operator") + f'[[rule]]\nfor = ["operator"]\nallow = ["{named}"]\n')
    async with tritium_server(f"--auth-file={auth}", ready=False) as server:
        await server.wait_loaded()
        asked = {
            "health": (server.http_port, "/v2/health/live"),
            "metrics": (server.metrics_port, "/metrics"),
        }
        for action, (port, path) in asked.items():
            reply = await server.get(path, port=port)
            assert reply.status == (401 if action == named else 200)
