"""Models whose files come with a load request: taken as in Triton, shut in strictly, or refused."""

import base64
import http.client
import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.interpreters import shared_interpreter, with_these_packages
from tests.support.operators import DOUBLE, clean_environ, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

CONFIG = {
    "backend": "python",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
}
READER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        try:
            open("{path}").close()
            found = 1.0
        except PermissionError:
            found = 0.0
        import numpy
        tensor = pb_utils.Tensor("Y", numpy.array([found], numpy.float32))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
LOADER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for _ in requests:
            try:
                pb_utils.load_model("brought", files={"file:1/model.py": b"x = 1"}, config=CONFIG)
                answers.append(pb_utils.InferenceResponse([]))
            except Exception as error:
                answers.append(pb_utils.InferenceResponse([], pb_utils.TritonError(str(error))))
        return answers
"""
REFUSED = "this server takes none (--uploads=off)"


def config(**parameters):
    settings = {f"tritium.{key}": {"string_value": value} for key, value in parameters.items()}
    return json.dumps({**CONFIG, "parameters": settings})


@pytest.fixture(scope="module", params=["off", "strict"])
def uploads(request):
    return request.param


@pytest.fixture(scope="module")
def server(uploads, tmp_path_factory):
    folder = tmp_path_factory.mktemp(uploads)
    write_model(folder / "models")
    write_model(folder / "models", "loader", code=LOADER.replace("CONFIG", repr(json.dumps(CONFIG))))
    flags = (f"--model-repository={folder / 'models'}", "--model-control-mode=explicit", "--load-model=*")
    python, environ = shared_interpreter(), with_these_packages(clean_environ())
    with serving(folder, *flags, f"--uploads={uploads}", python=python, environ=environ) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.address()) as client:
        yield client


def infer(client, name):
    given = tritonclient.http.InferInput("X", [2], "FP32")
    given.set_data_from_numpy(np.array([1, 2], np.float32))
    return client.infer(name, [given])


@pytest.mark.parametrize("uploads", ["off"], indirect=True)
class TestOff:
    def test_files_are_refused_over_http_and_grpc_with_the_flag_that_forbids_them(self, server, client):
        with pytest.raises(InferenceServerException) as caught:
            client.load_model("new", config=config(), files={"file:1/model.py": DOUBLE.encode()})
        assert caught.value.status() == "403"
        assert REFUSED in str(caught.value)
        address = server.address("GRPCInferenceService")
        with tritonclient.grpc.InferenceServerClient(address) as other:
            with pytest.raises(InferenceServerException) as caught:
                other.load_model("double", config=config(), files={"file:1/model.py": DOUBLE.encode()})
            assert "PERMISSION_DENIED" in str(caught.value.status())

    def test_a_model_brings_no_files_either(self, client):
        with pytest.raises(InferenceServerException, match="takes none"):
            infer(client, "loader")

    def test_a_configuration_alone_is_taken_and_what_was_refused_changed_nothing(self, client):
        client.load_model("double", config=config())
        assert infer(client, "double").as_numpy("Y").tolist() == [2, 4]
        client.load_model("double")


@pytest.mark.parametrize("uploads", ["strict"], indirect=True)
class TestStrict:
    def test_an_uploaded_model_reads_its_own_files_only_whatever_its_configuration_says(
        self, client, tmp_path
    ):
        secret = tmp_path / "secret"
        secret.write_text("the server's")
        code = READER.replace("{path}", str(secret)).encode()
        for given in (config(), config(sandbox="off"), config(sandbox="basic")):
            client.load_model("brought", config=given, files={"file:1/model.py": code})
            assert infer(client, "brought").as_numpy("Y").tolist() == [0.0]
        client.unload_model("brought")

    def test_the_same_code_from_the_repository_runs_as_its_configuration_says(self, client):
        client.load_model("double", config=config())
        assert infer(client, "double").as_numpy("Y").tolist() == [2, 4]
        client.load_model("double")

    @pytest.mark.parametrize(
        "asked", [{"isolation": "thread"}, {"sandbox": "strict", "sandbox_read": "/etc/shadow"}], ids=str
    )
    def test_it_may_not_ask_for_more(self, server, client, asked):
        with pytest.raises(InferenceServerException):
            client.load_model("greedy", config=config(**asked), files={"file:1/model.py": DOUBLE.encode()})
        server.wait_said(r"\(--uploads=strict\)")

    def test_an_environment_is_not_built_for_it(self, server, client):
        files = {"file:1/model.py": DOUBLE.encode(), "file:requirements.txt": b"./evil\n"}
        with pytest.raises(InferenceServerException):
            client.load_model("built", config=config(requirements="install"), files=files)
        server.wait_said("an environment for it is not built")


def test_without_the_flag_files_run_as_in_triton(tmp_path):
    """In such a form, an address is not known to be this machine's own, so that a warning is due."""
    write_model(tmp_path / "models")
    flags = (
        f"--model-repository={tmp_path / 'models'}",
        "--model-control-mode=explicit",
        "--http-address=127.1",
    )
    (tmp_path / "secret").write_text("the server's")
    with serving(tmp_path, *flags, "--log-format=json") as server:
        server.wait_ready()
        lines = [json.loads(line) for line in server.out.splitlines()]
        (opened,) = [line for line in lines if line["event"] == "server_opened"]
        assert (opened["uploads"], opened["sandbox"], opened["credentials"]) == (
            "on",
            "guard by default",
            "none",
        )
        (warning,) = [line["warning"] for line in lines if line["level"] == "warning"]
        assert "may load a model that it brings along" in warning
        code = READER.replace("{path}", str(tmp_path / "secret")).encode()
        parameters = {"config": config(), "file:1/model.py": base64.b64encode(code).decode()}
        port = server.wait_said(r'"HTTPService", "address": "127\.0\.0\.1:([0-9]+)"')[1]
        connection = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=20)
        connection.request("POST", "/v2/repository/models/new/load", json.dumps({"parameters": parameters}))
        assert connection.getresponse().read() == b""
        connection.close()
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert infer(client, "new").as_numpy("Y").tolist() == [1.0]


def test_the_text_log_says_in_one_line_what_is_open(tmp_path):
    write_model(tmp_path / "models")
    with serving(tmp_path, f"--model-repository={tmp_path / 'models'}") as server:
        server.wait_ready()
        (line,) = [line for line in server.out.splitlines() if "open: " in line]
        places = f"{server.address()} and {server.address('GRPCInferenceService')}"
        metrics = server.address("Metrics Service")
        assert line.endswith(
            f"open: inference on {places}; management on {places}; metrics on {metrics};"
            ' credentials: none; uploads: off; sandbox: guard by default; TLS: none"'
        )
