"""The v2 HTTP API over real sockets, as Triton's own Python client and bare HTTP see it.

One suite for every way to serve it: the listener alone (over models in memory), `tritium serve`, and
hypercorn with either of its workers (over ONNX models in worker processes).
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.protocols.fakes import FakeServer
from tests.support.flavours import PROCESSES, listeners_alone, write_common_models
from tests.support.tiers import mostly_long
from tests.support.triton_inputs import inputs

FLAVOURS = {"listener": lambda _: listeners_alone(FakeServer()), **PROCESSES}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_common_models(folder)
    return folder


@pytest.fixture(
    scope="module", params=mostly_long(FLAVOURS, "listener", "tritium-serve", "hypercorn-asyncio")
)
def base_url(request, repository) -> Iterator[str]:
    """`host:port` of a running server."""
    with FLAVOURS[request.param](repository) as addresses:
        yield addresses.http


@pytest.fixture
def client(base_url) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(base_url, concurrency=4)
    yield client
    client.close()


@pytest.fixture
def ask(base_url):
    """Ask over bare HTTP: status, headers, body."""
    with ExitStack() as stack:
        connection = http.client.HTTPConnection(base_url, timeout=10)
        stack.callback(connection.close)

        def ask(method, path, body=None, headers=()):
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.headers.items()}, response.read()

        yield ask


def vector(value, *, rows=1):
    return np.full((rows, 16), value, dtype=np.float32)


def add_inputs(a, b, *, binary=True):
    made = inputs(triton, A=a, B=b)
    made[0].set_data_from_numpy(a, binary_data=binary)
    made[1].set_data_from_numpy(b, binary_data=binary)
    return made


def refused(call, *arguments, **options):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return caught.value.status(), caught.value.message()


# Triton's client: health and metadata


def test_the_server_is_live_and_ready(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add")
    assert client.is_model_ready("add", "1")
    assert not client.is_model_ready("nope")


def test_the_server_describes_itself(client):
    metadata = client.get_server_metadata()
    assert set(metadata) == {"name", "version", "extensions"}
    assert "classification" in metadata["extensions"]


def test_a_model_describes_itself(client):
    metadata = client.get_model_metadata("add")
    assert metadata["name"] == "add"
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"] == [
        {"name": "A", "datatype": "FP32", "shape": [-1, 16]},
        {"name": "B", "datatype": "FP32", "shape": [-1, 16]},
    ]
    assert [output["name"] for output in metadata["outputs"]] == ["S", "D"]
    assert client.get_model_metadata("add", "1") == metadata


def test_a_model_shows_its_configuration_and_statistics(client):
    assert client.get_model_config("add")["name"] == "add"
    (statistics,) = client.get_inference_statistics("add")["model_stats"]
    assert (statistics["name"], statistics["version"]) == ("add", "1")
    assert len(client.get_inference_statistics()["model_stats"]) >= 3


def test_the_repository_index_lists_the_models(client):
    index = {entry["name"]: entry for entry in client.get_model_repository_index()}
    assert index["add"] == {"name": "add", "version": "1", "state": "READY"}


def test_unknown_models_are_not_found(client):
    assert refused(client.get_model_metadata, "nope") == (
        "404",
        "Request for unknown model: 'nope' is not found",
    )
    assert refused(client.get_model_config, "add", "7") == (
        "404",
        "Request for unknown model: 'add' version 7 is not found",
    )


@pytest.mark.parametrize("call", ["load_model", "unload_model"])
def test_models_are_not_loaded_or_unloaded_by_clients(client, call):
    assert refused(getattr(client, call), "add") == (
        "503",
        "explicit model load / unload is not allowed if polling is enabled",
    )


# Triton's client: inference


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_every_mix_of_json_and_binary_gives_the_same_numbers(client, binary_in, binary_out):
    outputs = None
    if binary_out is not None:
        outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("S", "D")]
    a, b = vector(3, rows=2), vector(0.5, rows=2)
    result = client.infer("add", add_inputs(a, b, binary=binary_in), outputs=outputs, request_id="r-1")
    np.testing.assert_array_equal(result.as_numpy("S"), a + b)
    np.testing.assert_array_equal(result.as_numpy("D"), a - b)
    assert result.get_response()["id"] == "r-1"
    assert result.get_response()["model_version"] == "1"


def test_inputs_and_outputs_can_each_choose_their_form(client):
    given = add_inputs(vector(3), vector(1))
    given[1].set_data_from_numpy(vector(1), binary_data=False)
    outputs = [
        triton.InferRequestedOutput("D", binary_data=False),
        triton.InferRequestedOutput("S", binary_data=True),
    ]
    result = client.infer("add", given, model_version="1", outputs=outputs)
    assert "data" in result.get_output("D")
    assert result.get_output("S")["parameters"] == {"binary_data_size": 64}
    np.testing.assert_array_equal(result.as_numpy("S"), vector(4))
    np.testing.assert_array_equal(result.as_numpy("D"), vector(2))


def test_only_the_requested_outputs_come(client):
    result = client.infer("add", add_inputs(vector(3), vector(1)), outputs=[triton.InferRequestedOutput("D")])
    assert [output["name"] for output in result.get_response()["outputs"]] == ["D"]


@pytest.mark.parametrize("binary", [True, False])
def test_strings_come_back_as_they_went(client, binary):
    strings = np.array([["a", "", "ünï", "x" * 1000]], dtype=object)
    tensor = triton.InferInput("X", [1, 4], "BYTES")
    tensor.set_data_from_numpy(strings, binary_data=binary)
    result = client.infer("strings", [tensor], outputs=[triton.InferRequestedOutput("Y", binary_data=binary)])
    decoded = [
        element.decode() if isinstance(element, bytes) else element
        for element in result.as_numpy("Y").ravel()
    ]
    assert decoded == strings.ravel().tolist()


@pytest.mark.parametrize("binary", [True, False])
def test_an_output_can_be_classified(client, binary):
    given = inputs(triton, X=np.array([[0.5, 2, -1], [7, 0, 9]], dtype=np.float32))
    output = triton.InferRequestedOutput("Y", binary_data=binary, class_count=2)
    result = client.infer("scores", given, outputs=[output])
    classes = [
        entry.decode() if isinstance(entry, bytes) else entry for entry in result.as_numpy("Y").ravel()
    ]
    assert classes == ["2.000000:1:dog", "0.500000:0:cat", "9.000000:2", "7.000000:0:cat"]
    assert result.as_numpy("Y").shape == (2, 2)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_both_directions_can_be_compressed(client, coding):
    result = client.infer(
        "add",
        add_inputs(vector(3), vector(1)),
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    np.testing.assert_array_equal(result.as_numpy("S"), vector(4))


def test_large_tensors_travel_both_ways(client):
    values = np.arange(1_500_000, dtype=np.float32).reshape(1, -1)
    result = client.infer("scores", inputs(triton, X=values))
    np.testing.assert_array_equal(result.as_numpy("Y"), values)


def test_many_requests_at_once_get_each_its_own_answer(client):
    pending = [client.async_infer("add", add_inputs(vector(i), vector(1))) for i in range(40)]
    for i, request in enumerate(pending):
        np.testing.assert_array_equal(request.get_result().as_numpy("S"), vector(i + 1))


def test_numbers_that_are_none_travel_as_json(ask):
    body = (
        b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,4],"data":[NaN,Infinity,-Infinity,0.1]}],'
        b'"outputs":[{"name":"Y"}]}'
    )
    status, _, answer = ask("POST", "/v2/models/scores/infer", body)
    assert status == 200
    assert b'"data":[NaN,Infinity,-Infinity,0.10000000149011612]' in answer


def test_wrong_inputs_are_refused_with_the_contract_s_texts(client):
    too_few = add_inputs(vector(1), vector(1))[:1]
    status, message = refused(client.infer, "nope", too_few)
    assert (status, message) == ("404", "Request for unknown model: 'nope' is not found")
    odd = inputs(triton, Z=vector(1))
    status, message = refused(client.infer, "add", [*odd, *too_few])
    assert (status, message) == ("400", "unexpected inference input 'Z' for model 'add'")


def test_a_refused_request_leaves_the_connection_usable(ask):
    for _ in range(3):
        assert ask("POST", "/v2/models/add/infer", b"{")[0] == 500
        assert ask("GET", "/v2/health/live")[0] == 200


# Bare HTTP


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/", 404, b'{"error":"Not Found"}'),
        ("GET", "/v2/health/live/", 404, b'{"error":"Not Found"}'),
        ("GET", "/v2/models/add/versions/x", 404, b'{"error":"Not Found"}'),
        ("PUT", "/v2", 405, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2/models/add/infer", 405, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2/health/ready", 200, b""),
        ("GET", "/v2/health/live?verbose=1", 200, b""),
    ],
)
def test_paths_and_methods(ask, method, path, status, body):
    answered, fields, content = ask(method, path)
    assert (answered, content) == (status, body)
    assert fields.get("content-type") == ("application/json" if status == 405 else None)


INFER = "/v2/models/add/infer"


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"", {}, 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b'{"inputs":[}', {}, 500, "failed to parse the request JSON buffer: Invalid value. at 11"),
        (b"{}", {}, 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        (
            b"{}",
            {"Inference-Header-Content-Length": "3"},
            400,
            "inference header size should be in range (0, 2), got: 3",
        ),
        (
            b"{}",
            {"Inference-Header-Content-Length": "x"},
            400,
            "Unable to parse Inference-Header-Content-Length, got: x",
        ),
        (b"{}", {"Content-Encoding": "br"}, 501, "Unsupported compression type"),
        (b"", {"Content-Encoding": "gzip"}, 400, "nothing to be decompressed"),
    ],
)
def test_bodies_that_can_not_be_read(ask, body, headers, status, message):
    answered, fields, content = ask("POST", INFER, body, headers)
    assert (answered, json.loads(content)) == (status, {"error": message})
    assert fields["content-type"] == "application/json"


def test_a_binary_answer_says_where_its_json_ends(ask):
    described = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in "AB"
    ]
    head = json.dumps(
        {"inputs": described, "outputs": [{"name": "S", "parameters": {"binary_data": True}}]}
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, fields, body = ask("POST", INFER, head + vector(1).tobytes() * 2, headers)
    assert status == 200
    assert fields["content-type"] == "application/octet-stream"
    size = int(fields["inference-header-content-length"])
    assert json.loads(body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 64}
    assert body[size:] == vector(2).tobytes()


def test_a_raw_body_is_a_model_s_only_input(ask):
    values = np.arange(5, dtype=np.float32)
    status, fields, body = ask(
        "POST", "/v2/models/scores/infer", values.tobytes(), {"Inference-Header-Content-Length": "0"}
    )
    assert status == 200
    assert body[int(fields["inference-header-content-length"]) :] == values.tobytes()


def test_the_supervision_tree_can_be_read(ask):
    status, fields, body = ask("GET", "/v2/tritium/tree")
    assert (status, fields["content-type"]) == (200, "application/json")
    assert "children" in json.loads(body)
