"""The generate extension over real sockets, as curl, httpx and bare sockets see it.

The Python models run in worker processes. There is one suite for `tritium serve` and for hypercorn with
either of its workers.
"""

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import httpx
import pytest

from tests.support.flavours import PROCESSES, write_common_models
from tests.support.tiers import mostly_long

EVENTS = "text/event-stream; charset=utf-8"
NOT_ONE = {
    "error": "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various number of responses"
}
NO_EVENT_SHOULD_TAKE = 20.0

TELLER = """
    import threading

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        # Says `text` `repeat` times, each time `factor` times over, and writes how often into the file `diary`.

        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                threading.Thread(target=tell, args=(request, sender), daemon=True).start()


    def tell(request, sender):
        try:
            tell_all(request, sender)
        except pb_utils.TritonModelException:
            return
        finally:
            note(request, "over")


    def tell_all(request, sender):
        text = value(request, "text", b"").decode()
        error = value(request, "error", b"").decode()
        first = value(request, "fail_first", False)
        if first:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error)))
        for number in range(value(request, "repeat", 1)):
            if sender.is_cancelled():
                break
            said = np.array([text * value(request, "factor", 1)], object)
            outputs = [pb_utils.Tensor("text", said), pb_utils.Tensor("number", np.array([number], np.int32))]
            sender.send(pb_utils.InferenceResponse(outputs))
            note(request, str(number + 1))
        if error and not first:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


    def value(request, name, default):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return default if tensor is None else tensor.as_numpy().item()


    def note(request, text):
        diary = value(request, "diary", b"").decode()
        if diary:
            with open(diary + ".new", "w") as file:
                file.write(text)
            import os
            os.replace(diary + ".new", diary)
"""
TELLER_CONFIG = """
    backend: "python"
    max_batch_size: 0
    model_transaction_policy { decoupled: true }
    input [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "repeat" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
      { name: "factor" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
      { name: "error" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "fail_first" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
      { name: "diary" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    ]
    output [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "number" data_type: TYPE_INT32 dims: [ 1 ] }
    ]
    instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_common_models(folder)
    (folder / "teller" / "1").mkdir(parents=True)
    (folder / "teller" / "config.pbtxt").write_text(dedent(TELLER_CONFIG))
    (folder / "teller" / "1" / "model.py").write_text(dedent(TELLER))
    return folder


@pytest.fixture(scope="module", params=mostly_long(PROCESSES, "tritium-serve", "hypercorn-asyncio"))
def address(request, repository) -> Iterator[str]:
    """`host:port` of a running server."""
    with PROCESSES[request.param](repository) as addresses:
        yield addresses.http


@pytest.fixture
def client(address) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{address}/v2/models/", timeout=NO_EVENT_SHOULD_TAKE) as client:
        yield client


def events(text):
    assert not text or text.endswith("\n\n")
    return [json.loads(each.removeprefix("data: ")) for each in text.split("\n\n")[:-1]]


def until(condition):
    """Wait until a process far away has done what makes `condition` true."""
    for _ in range(int(NO_EVENT_SHOULD_TAKE / 0.02)):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("nothing happened")


def read(diary):
    return diary.read_text() if diary.exists() else ""


def test_a_model_with_tensors_is_asked_in_plain_json(client):
    answer = client.post("add/generate", json={"A": list(range(16)), "B": [1] * 16, "id": "r1"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.json() == {
        "D": [float(number - 1) for number in range(16)],
        "S": [float(number + 1) for number in range(16)],
        "id": "r1",
        "model_name": "add",
        "model_version": "1",
    }
    assert list(answer.json()) == sorted(answer.json())


def test_a_scalar_answers_a_scalar_and_texts_stay_what_they_are(client):
    for text in ("", "a", "hé\r\n\u2028𝄞", 'data: "x"\n\n'):
        answer = client.post("strings/versions/1/generate", json={"X": text})
        assert answer.json()["Y"] == text
        streamed = client.post("strings/generate_stream", json={"X": text})
        assert [each["Y"] for each in events(streamed.text)] == [text]
    assert client.post("strings/generate", json={"X": ["a", "b"]}).json()["Y"] == ["a", "b"]


def test_a_decoupled_model_answers_in_events(client):
    for repeat in (1, 2, 500):
        answer = client.post("teller/generate_stream", json={"text": "hé", "repeat": repeat})
        assert (answer.status_code, answer.headers["content-type"]) == (200, EVENTS)
        said = events(answer.text)
        assert [each["number"] for each in said] == list(range(repeat))
        assert {each["text"] for each in said} == {"hé"}


def test_generate_takes_exactly_one_response(client):
    assert client.post("teller/generate", json={"text": "a"}).json()["text"] == "a"
    for repeat in (0, 2, 100):
        answer = client.post("teller/generate", json={"text": "a", "repeat": repeat})
        assert (answer.status_code, answer.json()) == (200, NOT_ONE)
    assert client.post("teller/generate", json={"text": "a"}).json()["text"] == "a"


def test_the_first_response_decides_the_status_and_later_errors_are_events(client):
    failing = {"text": "a", "error": "it broke", "repeat": 0}
    answer = client.post("teller/generate_stream", json=failing)
    assert (answer.status_code, events(answer.text)) == (500, [{"error": "it broke"}])
    answer = client.post("teller/generate", json=failing)
    assert (answer.status_code, answer.json()) == (500, {"error": "it broke"})
    answer = client.post("teller/generate_stream", json={**failing, "repeat": 2})
    assert answer.status_code == 200
    assert [each.get("text", each) for each in events(answer.text)] == ["a", "a", {"error": "it broke"}]
    answer = client.post("teller/generate_stream", json={**failing, "repeat": 1, "fail_first": True})
    assert answer.status_code == 500
    assert [each.get("text", each) for each in events(answer.text)] == [{"error": "it broke"}, "a"]


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
def test_what_is_wrong_with_a_request_is_an_ordinary_error(client, endpoint):
    for model, document, status, message in (
        ("teller", {}, 400, "but got 0 inputs for model 'teller'"),
        ("teller", {"text": 1}, 500, "attempt to access JSON non-string as string"),
        ("teller", {"text": "a", "x": {}}, 400, "parameter 'x' has invalid type"),
        ("nope", {}, 404, "Request for unknown model: 'nope' is not found"),
    ):
        answer = client.post(f"{model}/{endpoint}", json=document)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert message in answer.json()["error"]
    twice = client.post(f"teller/{endpoint}", content=b'{"text":"a","text":"b"}')
    assert twice.status_code == 400
    assert "input 'text' already exists in request" in twice.json()["error"]
    assert client.get(f"teller/{endpoint}").status_code == 405
    assert client.head(f"teller/{endpoint}").status_code == 405
    assert client.post(f"teller/{endpoint}", headers={"content-encoding": "gzip"}).status_code == 400


def test_events_can_be_read_while_the_model_goes_on(client, tmp_path):
    diary = tmp_path / "diary"
    told = {"text": "x", "factor": 50_000, "repeat": 2000, "diary": str(diary)}
    with client.stream("POST", "teller/generate_stream", json=told) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        assert (answer.status_code, first["number"]) == (200, 0)
        assert read(diary) not in ("2000", "over")
    until(lambda: read(diary) == "over")


def test_a_client_that_leaves_stops_its_model(address, tmp_path):
    diary = tmp_path / "diary"
    told = json.dumps({"text": "x", "repeat": 10_000_000, "diary": str(diary)}).encode()
    with socket.create_connection(address.rsplit(":", 1)) as sock:
        sock.sendall(_request("teller/generate_stream", told))
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert read(diary) != "over"
    until(lambda: read(diary) == "over")


def test_a_model_waits_for_a_client_that_does_not_read(address, tmp_path):
    diary = tmp_path / "diary"
    told = {"text": "x", "factor": 100_000, "repeat": 600, "diary": str(diary)}
    with socket.create_connection(address.rsplit(":", 1)) as sock:
        sock.sendall(_request("teller/generate_stream", json.dumps(told).encode()))
        said = [""]

        def waits():
            threading.Event().wait(0.3)
            said.append(read(diary))
            return said[-1] and said[-1] == said[-2]

        until(waits)
        assert int(said[-1]) < 600
        size = 0
        tail = b""
        while b"\r\n0\r\n\r\n" not in tail:
            part = sock.recv(1 << 20)
            assert part
            size += len(part)
            tail = (tail + part)[-32:]
        assert size > 600 * 100_000
    until(lambda: read(diary) == "over")


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(address):
    with socket.create_connection(address.rsplit(":", 1), timeout=NO_EVENT_SHOULD_TAKE) as sock:
        sock.sendall(_request("teller/generate_stream", b'{"text":"a","repeat":3}', version="1.0"))
        answer = b""
        while part := sock.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert [each["number"] for each in events(body.decode())] == [0, 1, 2]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_shows_events_as_they_come(address):
    url = f"http://{address}/v2/models/teller/generate_stream"
    ran = subprocess.run(
        [
            "curl",
            "-sS",
            "-N",
            "-i",
            "-d",
            '{"text": "hi", "repeat": 2}',
            url,
            "--next",
            "-sS",
            "-d",
            "{}",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=NO_EVENT_SHOULD_TAKE,
        check=True,
    )
    head, _, body = ran.stdout.replace("\r\n", "\n").partition("\n\n")
    assert "content-type: text/event-stream; charset=utf-8" in head.lower()
    *said, error = body.split("\n\n")
    assert [json.loads(each.removeprefix("data: "))["number"] for each in said] == [0, 1]
    assert "but got 0 inputs" in json.loads(error)["error"]


def _request(path, body, version="1.1"):
    head = f"POST /v2/models/{path} HTTP/{version}\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
