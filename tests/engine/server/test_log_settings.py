"""The logging extension of a real server, by Triton's own clients, and its log file when it is rotated."""

import re
import signal
import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.operators import serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

FAILING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_verbose("a word of the model's")
        return [pb_utils.InferenceResponse([], pb_utils.TritonError("no such luck")) for _ in requests]
"""
HTTP = (tritonclient.http, "HTTPService")
GRPC = (tritonclient.grpc, "GRPCInferenceService")
BOTH = pytest.mark.parametrize(("module", "service"), [HTTP, GRPC], ids=["http", "grpc"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logged")


@pytest.fixture(scope="module")
def server(folder):
    write_model(folder / "models", "failing", code=FAILING)
    flags = (f"--model-repository={folder / 'models'}", f"--log-file={folder / 'server.log'}")
    with serving(folder, *flags) as server:
        yield server


@pytest.fixture
def logged(server, folder):
    """Waits until the log file, or another, has what a pattern matches."""

    def logged(pattern, name="server.log", within=30.0):
        path, deadline = folder / name, time.monotonic() + within
        while time.monotonic() < deadline:
            text = path.read_text() if path.exists() else ""
            if found := re.search(pattern, text):
                return found
            assert server.process.poll() is None, text
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} was not said in {path}:\n{text}")

    return logged


@pytest.fixture
def client(server, logged, module, service):
    logged("server_ready")
    address = logged(rf"Started {service} at ([0-9.]+:[0-9]+)")[1]
    with module.InferenceServerClient(address) as client:
        yield client
        client.update_log_settings({"log_verbose_level": 0, "log_format": "default", "log_info": True})


def settings_of(module, client):
    found = client.get_log_settings()
    if module is tritonclient.http:
        return found
    return {
        key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in found.settings.items()
    }


def fail(module, client, request_id):
    given = module.InferInput("X", [1], "FP32")
    given.set_data_from_numpy(np.array([1], np.float32))
    with pytest.raises(InferenceServerException, match="no such luck"):
        client.infer("failing", [given], request_id=request_id)


@BOTH
def test_the_settings_of_the_start_are_told(folder, module, service, client):
    assert settings_of(module, client) == {
        "log_file": str(folder / "server.log"),
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    assert "logging" in (
        client.get_server_metadata()["extensions"]
        if module is tritonclient.http
        else client.get_server_metadata().extensions
    )


@BOTH
def test_failures_and_the_models_own_words_are_logged_while_a_client_wants_it(
    module, service, client, logged
):
    fail(module, client, f"{service}-quiet")
    client.update_log_settings({"log_verbose_level": 1})
    fail(module, client, f"{service}-told")
    logged(rf"\[request id: {service}-told\] Infer failed: .*no such luck")
    logged("a word of the model's")
    client.update_log_settings({"log_verbose_level": 0})
    fail(module, client, f"{service}-again")
    client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
    fail(module, client, f"{service}-last")
    last = logged(rf"(.*)\[request id: {service}-last\] Infer failed")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ ", last[1])
    assert f"{service}-quiet" not in last.string
    assert f"{service}-again" not in last.string


@BOTH
def test_the_file_can_not_be_changed_by_a_client(folder, module, service, client):
    with pytest.raises(InferenceServerException, match="log file location can not be updated"):
        client.update_log_settings({"log_file": str(folder / "other.log")})
    assert not (folder / "other.log").exists()


@BOTH
def test_a_format_that_is_none_is_refused(module, service, client):
    with pytest.raises(InferenceServerException, match=r"invalid argument for (--)?log_format, got: xml"):
        client.update_log_settings({"log_format": "xml"})


@pytest.mark.parametrize(("module", "service"), [HTTP], ids=["http"])
def test_a_rotated_file_is_left_and_a_new_one_begun(server, folder, logged, module, service, client):
    (folder / "server.log").rename(folder / "server.log.1")
    server.signal(signal.SIGHUP)
    logged("server_reloading")
    assert "server_reloading" not in (folder / "server.log.1").read_text()
    logged("Started HTTPService", "server.log.1")
