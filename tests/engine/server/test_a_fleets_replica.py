"""A server among several, for real: its register, name, gauges, and what refuses an old controller."""

import http.client
import json
import threading

import pytest

from tests.support.operators import serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]})
FLEET = "/v2/tritium/fleet"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replica")
    write_model(folder / "models")
    flags = (
        f"--model-repository={folder / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=double",
        "--replica-name=tritium-0",
        "--http-max-connection-age=1",
    )
    with serving(folder, *flags) as server:
        server.wait_ready()
        yield server


def ask(server, method, path, body=None, headers=(), service="HTTPService"):
    """Return the status, the header fields and the text of one answer."""
    connection = http.client.HTTPConnection(server.address(service), timeout=20)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_a_controller_writes_and_its_predecessor_is_refused(server):
    status, fields, text = ask(server, "GET", FLEET)
    told = json.loads(text)
    assert (status, fields["tritium-replica"]) == (200, "tritium-0")
    assert (told["replica"], told["epoch"], len(told["boot"])) == ("tritium-0", 0, 16)
    assert told["memory"]["available_bytes"] > 2**20
    document = {"models": ["double"]}
    body = json.dumps({"epoch": 2, "sequence": 1, "document": document})
    assert json.loads(ask(server, "POST", FLEET, body)[2])["document"] == document
    load = "/v2/repository/models/double/load"
    status, _, text = ask(server, "POST", load, headers={"tritium-epoch": "1"})
    assert (status, "another controller has taken over" in text) == (409, True)
    assert ask(server, "POST", load, headers={"tritium-epoch": "3"})[0] == 200
    assert json.loads(ask(server, "GET", FLEET)[2])["epoch"] == 3


def test_an_inference_tells_the_replica_and_the_load(server):
    headers = {"endpoint-load-metrics-format": "text"}
    status, fields, _ = ask(server, "POST", "/v2/models/double/infer", BODY, headers)
    assert (status, fields["tritium-replica"]) == (200, "tritium-0")
    assert fields["endpoint-load-metrics"].startswith(
        "TEXT named_metrics.queue_depth=0, application_utilization="
    )


def test_the_gauges_of_all_requests_have_no_labels(server):
    text = ask(server, "GET", "/metrics", service="Metrics Service")[2]
    assert "\ntritium_requests_pending 0\n" in text
    assert "\ntritium_requests_running 0\n" in text


def test_an_old_connection_ends_with_an_answer(server):
    connection = http.client.HTTPConnection(server.address(), timeout=20)
    try:
        for _ in range(500):
            connection.request("GET", "/v2/health/live")
            answer = connection.getresponse()
            answer.read()
            if answer.headers.get("Connection") == "close":
                return
            threading.Event().wait(0.02)
    finally:
        connection.close()
    raise AssertionError("no answer has ended the connection")
