"""The gRPC API over real sockets, as Triton's own clients, grpcio and grpclib see it.

One suite for every way to serve it, and for every client where a case is about what clients see. Bare
messages serve for cases about messages that no client would make.
"""

import gc
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from onnx import TensorProto
from tritonclient.grpc import model_config_pb2, service_pb2

from actors.serving.validation import Validator
from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.errors import ErrorCode, TritiumError
from actors.values.requests import InferRequest, InferResponse
from actors.values.tensors import Tensor as ServedTensor
from actors.values.tensors import pack_bytes, unpack_bytes
from protocols.grpc.call import Call, ServerStream
from protocols.grpc.services.model_stream_infer import StreamedRequest
from protocols.http2.streams import Stream
from protocols.status import grpc_status
from tests.protocols.fakes import FakeModel, FakeServer, default_models, hold, identity, make_spec
from tests.support.flavours import (
    PROCESSES,
    Addresses,
    listeners_alone,
    process,
    write_common_models,
    write_onnx_model,
)
from tests.support.grpc_clients import (
    CLIENTS,
    PATIENCE,
    SERVICE,
    Answer,
    Ask,
    GrpcioStubs,
    Refused,
    Tensor,
    grpcio_errors,
    infer_request,
)
from tests.support.tiers import mostly_long
from tests.survival.repository import Gates, Repository

# The models `add`, `strings` and `scores` are the HTTP suite's. `typed`, `fp16` and `bf16` return tensors of
# all datatypes, `tell` returns what else it knows of a request, and `gated` answers once its gate opens.

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
}
IDENTITIES = {
    "typed": tuple(name for name in ONNX_TYPES if name not in {"FP16", "BF16"}),
    "fp16": ("FP16",),
    "bf16": ("BF16",),
}

TELL = """
import json
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        asked = pb_utils.get_input_tensor_by_name(request, "ASK").as_numpy().ravel()[0].decode()
        if asked != "parameters":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"as asked: {asked}", int(asked)))
        import numpy as np
        told = np.array([[request.parameters().encode()]], dtype=np.object_)
        more = {"answered": True, "count": 3, "word": "ünï"}
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", told)], parameters=more)
"""
TELL_CONFIG = """
backend: "python"
max_batch_size: 1
input [ { name: "ASK" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
TOLD_BESIDES = {"answered": True, "count": 3, "word": "ünï"}
ERROR_CODES = (
    ErrorCode.UNKNOWN,
    ErrorCode.INTERNAL,
    ErrorCode.NOT_FOUND,
    ErrorCode.INVALID_ARG,
    ErrorCode.UNAVAILABLE,
    ErrorCode.UNSUPPORTED,
    ErrorCode.ALREADY_EXISTS,
    ErrorCode.CANCELLED,
)  # as Python models number them


class CheckedModel(FakeModel):
    """A model in memory that refuses what a real one would."""

    def submit_nowait(self, request):
        Validator(self.spec)(request)
        super().submit_nowait(request)


def tell(model, request):
    [asked] = unpack_bytes(request.inputs[0].data, "ASK", 1)
    if asked != b"parameters":
        return TritiumError.of(ERROR_CODES[int(asked)], f"as asked: {asked.decode()}")
    parameters = json.dumps(dict(request.parameters or {})).encode()
    told = ServedTensor("TOLD", DataType.BYTES, (1, 1), pack_bytes([parameters]))
    return model.respond(request, [told], **TOLD_BESIDES)


def identities(name, datatypes):
    inputs, outputs = (
        [(f"{side}_{each}", BY_PROTOCOL_NAME[each], (-1,)) for each in datatypes] for side in "XY"
    )
    return CheckedModel(make_spec(name, inputs=inputs, outputs=outputs), identity)


@contextmanager
def in_memory(_: Path) -> Iterator[Addresses]:
    models = [CheckedModel(model.spec, model.execute) for model in default_models()]
    text, ticket = DataType.BYTES, DataType.INT32
    models += [
        *(identities(name, datatypes) for name, datatypes in IDENTITIES.items()),
        CheckedModel(
            make_spec("tell", inputs=[("ASK", text, (1,))], outputs=[("TOLD", text, (1,))], max_batch_size=1),
            tell,
        ),
        CheckedModel(
            make_spec(
                "gated",
                inputs=[("TICKET", ticket, (1,))],
                outputs=[("SERVED", ticket, (1,))],
                max_batch_size=1,
            ),
            hold,
        ),
    ]
    with listeners_alone(FakeServer(models)) as addresses:
        yield addresses


FLAVOURS = {"listener": in_memory, **PROCESSES}


@pytest.fixture(scope="module")
def gates(tmp_path_factory) -> Gates:
    return Gates(tmp_path_factory.mktemp("steering") / "gates")


@pytest.fixture(scope="module")
def repository(tmp_path_factory, gates) -> Path:
    folder = tmp_path_factory.mktemp("models") / "repository"
    Repository(folder).gated(gates.directory)
    write_common_models(folder)
    for name, datatypes in IDENTITIES.items():
        write_onnx_model(
            folder,
            name,
            nodes=[("Identity", [f"X_{each}"], f"Y_{each}") for each in datatypes],
            inputs=[(f"X_{each}", ONNX_TYPES[each], [-1]) for each in datatypes],
            outputs=[(f"Y_{each}", ONNX_TYPES[each], [-1]) for each in datatypes],
        )
    (folder / "tell" / "1").mkdir(parents=True)
    (folder / "tell" / "config.pbtxt").write_text(TELL_CONFIG)
    (folder / "tell" / "1" / "model.py").write_text(TELL)
    return folder


@pytest.fixture(scope="module", params=mostly_long(FLAVOURS, "listener", "tritium-serve"))
def server(request, repository) -> Iterator[Addresses]:
    """A running server's addresses."""
    with FLAVOURS[request.param](repository) as addresses:
        yield addresses


@pytest.fixture(scope="module")
def connected(server):
    """A client of each kind, connected."""
    clients = {name: connect(server.grpc) for name, connect in CLIENTS.items()}
    yield clients
    for each in clients.values():
        each.close()


@pytest.fixture(params=CLIENTS)
def client(request, connected):
    """Each of the clients in turn."""
    return connected[request.param]


@pytest.fixture
def stubs(connected) -> GrpcioStubs:
    """Bare messages to the server."""
    return connected["grpcio"]


def vector(value, *, rows=1):
    return np.full((rows, 16), value, dtype=np.float32)


def fp32(array):
    return Tensor("FP32", np.asarray(array, dtype=np.float32))


def ask_add(a, b, **more) -> Ask:
    return Ask(model="add", inputs={"A": fp32(a), "B": fp32(b)}, **more)


def ask_tell(asked="parameters", **more) -> Ask:
    return Ask(model="tell", inputs={"ASK": Tensor("BYTES", np.array([[asked.encode()]], object))}, **more)


def told(answer: Answer) -> dict[str, object]:
    return json.loads(answer.outputs["TOLD"].ravel()[0])


def refusal(call, *arguments, **options):
    with pytest.raises(Refused) as caught:
        call(*arguments, **options)
    return caught.value.status, caught.value.text


def over_http(server, method, path, document=None):
    with ExitStack() as stack:
        connection = http.client.HTTPConnection(server.http, timeout=PATIENCE)
        stack.callback(connection.close)
        connection.request(method, path, None if document is None else json.dumps(document))
        return json.loads(connection.getresponse().read())


# Health and metadata


def test_the_server_is_live_and_ready(client):
    assert client.live()
    assert client.ready()
    assert client.model_ready("add")
    assert client.model_ready("add", "1")
    assert not client.model_ready("nope")
    assert not client.model_ready("add", "7")


def test_the_server_describes_itself(client, server):
    metadata = client.describe("ServerMetadata")
    assert metadata == over_http(server, "GET", "/v2")
    assert "classification" in metadata["extensions"]


def test_a_model_describes_itself(client):
    metadata = client.describe("ModelMetadata", name="add")
    assert (metadata["name"], metadata["versions"]) == ("add", ["1"])
    assert metadata["inputs"] == [
        {"name": "A", "datatype": "FP32", "shape": ["-1", "16"]},
        {"name": "B", "datatype": "FP32", "shape": ["-1", "16"]},
    ]
    assert [output["name"] for output in metadata["outputs"]] == ["S", "D"]
    assert client.describe("ModelMetadata", name="add", version="1") == metadata


@pytest.mark.parametrize("model", ["add", "scores", "typed", "tell"])
def test_a_models_configuration_is_what_http_shows(client, server, model):
    shown = over_http(server, "GET", f"/v2/models/{model}/config")
    told = client.describe("ModelConfig", name=model)["config"]
    assert ParseDict(told, model_config_pb2.ModelConfig()) == ParseDict(shown, model_config_pb2.ModelConfig())
    assert told["name"] == model


def test_statistics_count_what_was_asked(client):
    def successes():
        [each] = client.describe("ModelStatistics", name="strings", version="1")["model_stats"]
        assert (each["name"], each["version"]) == ("strings", "1")
        return int(each.get("inference_count", 0))

    before = successes()
    words = Tensor("BYTES", np.array([[b"a"]], object))
    client.infer(Ask(model="strings", inputs={"X": words}))
    assert successes() == before + 1
    assert {"add", "strings", "scores"} <= {
        each["name"] for each in client.describe("ModelStatistics")["model_stats"]
    }


def test_statistics_are_what_http_shows(client, server):
    client.infer(ask_add(vector(1), vector(1)))
    told = client.describe("ModelStatistics", name="add")
    shown = over_http(server, "GET", "/v2/models/add/stats")
    assert ParseDict(told, service_pb2.ModelStatisticsResponse()) == ParseDict(
        shown, service_pb2.ModelStatisticsResponse()
    )


def test_the_repository_index_lists_the_models(client):
    index = {entry["name"]: entry for entry in client.describe("RepositoryIndex")["models"]}
    assert index["add"] == {"name": "add", "version": "1", "state": "READY"}


def test_unknown_models_and_versions_are_not_found(client):
    unknown = ("NOT_FOUND", "Request for unknown model: 'nope' is not found")
    assert refusal(client.describe, "ModelMetadata", name="nope") == unknown
    assert refusal(client.infer, Ask(model="nope", inputs={"A": fp32(vector(1))})) == unknown
    absent = ("NOT_FOUND", "Request for unknown model: 'add' version 7 is not found")
    assert refusal(client.describe, "ModelConfig", name="add", version="7") == absent
    assert refusal(client.infer, ask_add(vector(1), vector(1), version="7")) == absent


def test_statistics_of_unknown_models_are_an_invalid_argument(client):
    assert refusal(client.describe, "ModelStatistics", name="nope") == (
        "INVALID_ARGUMENT",
        "requested model 'nope' is not available",
    )


@pytest.mark.parametrize("call", ["load", "unload"])
def test_models_are_not_loaded_or_unloaded_by_clients(client, call):
    assert refusal(getattr(client, call), "add") == (
        "UNAVAILABLE",
        "explicit model load / unload is not allowed if polling is enabled",
    )


# Inference


def test_numbers_are_added_and_subtracted(client):
    a, b = vector(3, rows=2), vector(0.5, rows=2)
    answer = client.infer(ask_add(a, b, id="r-1"))
    np.testing.assert_array_equal(answer.outputs["S"], a + b)
    np.testing.assert_array_equal(answer.outputs["D"], a - b)
    assert (answer.model, answer.version, answer.id) == ("add", "1", "r-1")


def test_a_version_can_be_named(client):
    assert client.infer(ask_add(vector(3), vector(1), version="1")).version == "1"


def test_only_the_requested_outputs_come(client):
    assert list(client.infer(ask_add(vector(3), vector(1), outputs={"D": 0})).outputs) == ["D"]


@pytest.mark.parametrize("strings", [["a", "", "ünï", "x" * 1000, "a\0b"], [""] * 300])
def test_strings_come_back_as_they_went(client, strings):
    sent = np.array([[each.encode() for each in strings]], dtype=object)
    answer = client.infer(Ask(model="strings", inputs={"X": Tensor("BYTES", sent)}))
    assert answer.outputs["Y"].tolist() == sent.tolist()


def test_an_output_can_be_classified(client):
    scores = fp32([[0.5, 2, -1], [7, 0, 9]])
    answer = client.infer(Ask(model="scores", inputs={"X": scores}, outputs={"Y": 2}))
    assert answer.outputs["Y"].tolist() == [
        [b"2.000000:1:dog", b"0.500000:0:cat"],
        [b"9.000000:2", b"7.000000:0:cat"],
    ]


def test_parameters_reach_the_model_and_come_back(client):
    parameters = {"flag": True, "count": -7, "word": "ünï", "share": 0.25}
    answer = client.infer(ask_tell(parameters=parameters))
    assert told(answer) == parameters
    assert answer.parameters == TOLD_BESIDES


def test_what_is_special_over_http_only_is_a_parameter_like_others(stubs):
    asked = infer_request(service_pb2, ask_tell(parameters={"binary_data_output": True, "headers": "x"}))
    told = json.loads(stubs.ask("ModelInfer", asked).raw_output_contents[0][4:])
    assert told == {"binary_data_output": True, "headers": "x"}


def test_what_marks_a_sequence_is_accepted_and_no_parameter(stubs):
    marks = {"sequence_id": 5, "sequence_start": True, "sequence_end": False}
    assert told(stubs.infer(ask_tell(parameters=marks))) == {}
    assert told(stubs.infer(ask_tell(parameters={"sequence_id": "five"}))) == {}


def test_priority_and_queue_timeout_are_accepted_and_no_parameters(client):
    assert told(client.infer(ask_tell(priority=1, timeout=5_000_000))) == {}


@pytest.mark.parametrize("number", range(8))
def test_every_error_of_a_model_has_its_status(client, number):
    status = grpc_status(ERROR_CODES[number])
    by_number = {code.value[0]: code.name for code in grpc.StatusCode}
    assert refusal(client.infer, ask_tell(str(number))) == (by_number[status], f"as asked: {number}")


def samples(datatype):
    """Return two rows of elements at the ends of what `datatype` holds."""
    if datatype == "BYTES":
        return np.array([[b"", b"a\x00b", "ünï".encode()], [b"x" * 300, b"1", b" "]], object)
    if datatype == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    dtype = BY_PROTOCOL_NAME[datatype].numpy
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return np.array([[limits.min, limits.max, 0], [1, 2, 3]], dtype)


@pytest.mark.parametrize("model", ["typed", "fp16"])
def test_every_datatype_travels_both_ways(client, model):
    datatypes = IDENTITIES[model]
    inputs = {f"X_{each}": Tensor(each, samples(each)) for each in datatypes}
    outputs = client.infer(Ask(model=model, inputs=inputs)).outputs
    for each in datatypes:
        found = outputs[f"Y_{each}"]
        assert found.tolist() == samples(each).tolist(), each


# numpy has no bfloat16, and tritonclient's releases differ in what stands for it.
def test_bfloat16_travels_both_ways(
    stubs,
):
    raw = bytes(range(200))
    request = message("bf16", inputs=[entry("X_BF16", "BF16", (2, 50))], raw=[raw])
    response = stubs.ask("ModelInfer", request)
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BF16", [2, 50])
    assert response.raw_output_contents[0] == raw


CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def test_every_datatype_that_has_a_field_can_be_sent_typed(stubs):
    request = service_pb2.ModelInferRequest(model_name="typed")
    for each, field in CONTENTS.items():
        values = samples(each)
        given = request.inputs.add(name=f"X_{each}", datatype=each, shape=values.shape)
        getattr(given.contents, field).extend(values.ravel().tolist())
    response = stubs.ask("ModelInfer", request)
    assert not any(output.HasField("contents") for output in response.outputs)
    for each, raw in zip(CONTENTS, response.raw_output_contents, strict=True):
        assert raw == Tensor(each, samples(each)).raw, each


def test_integers_sent_typed_are_cut_to_their_low_bytes(stubs):
    request = service_pb2.ModelInferRequest(model_name="typed")
    for each, field in CONTENTS.items():
        given = request.inputs.add(name=f"X_{each}", datatype=each, shape=[1, 1])
        getattr(given.contents, field).append(b"" if each == "BYTES" else 0x1_02 if "INT" in each else 1)
    response = stubs.ask("ModelInfer", request)
    raw = dict(zip(CONTENTS, response.raw_output_contents, strict=True))
    assert (raw["INT8"], raw["UINT8"], raw["INT16"]) == (b"\x02", b"\x02", b"\x02\x01")


def test_large_typed_contents_are_read(stubs):
    values = np.arange(300_000, dtype=np.float32)
    request = service_pb2.ModelInferRequest(model_name="scores", id="typed")
    given = request.inputs.add(name="X", datatype="FP32", shape=[1, len(values)])
    given.contents.fp32_contents.extend(values)
    response = stubs.ask("ModelInfer", request)
    assert response.id == "typed"
    assert response.raw_output_contents[0] == values.tobytes()


@pytest.mark.parametrize("client", [name for name in CLIENTS if CLIENTS[name].compresses], indirect=True)
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_requests_can_be_compressed(client, coding):
    answer = client.infer(ask_add(vector(3), vector(1)), compression=coding)
    np.testing.assert_array_equal(answer.outputs["S"], vector(4))
    scores = Tensor("FP32", np.zeros((1, 100_000), np.float32))
    answer = client.infer(Ask(model="scores", inputs={"X": scores}), compression=coding)
    np.testing.assert_array_equal(answer.outputs["Y"], scores.array)


def test_large_tensors_travel_both_ways(client):
    values = np.arange(client.large // 4, dtype=np.float32).reshape(1, -1)
    answer = client.infer(Ask(model="scores", inputs={"X": Tensor("FP32", values)}))
    np.testing.assert_array_equal(answer.outputs["Y"], values)


def test_many_requests_at_once_get_each_its_own_answer(client):
    answers = client.many([ask_add(vector(i), vector(1), id=str(i)) for i in range(40)])
    assert [answer.id for answer in answers] == [str(i) for i in range(40)]
    for i, answer in enumerate(answers):
        np.testing.assert_array_equal(answer.outputs["S"], vector(i + 1))


def test_a_refused_request_leaves_the_connection_usable(client):
    for _ in range(3):
        assert refusal(client.infer, Ask(model="add", inputs={"Z": fp32(vector(1))}))[0] == "INVALID_ARGUMENT"
        assert client.live()


# Streams


def test_a_stream_answers_in_the_order_of_its_requests(client):
    asks = [ask_add(vector(i), vector(1), id=str(i)) for i in range(20)]
    asks[7] = ask_tell(id="7")
    answers = client.stream(asks)
    assert [answer.id for answer in answers] == [str(i) for i in range(20)]
    assert answers[7].parameters == {**TOLD_BESIDES, "triton_final_response": True}
    for i in (0, 6, 19):
        np.testing.assert_array_equal(answers[i].outputs["S"], vector(i + 1))
        assert answers[i].parameters == {"triton_final_response": True}


def test_an_error_on_a_stream_costs_no_other_request(client):
    good = ask_add(vector(1), vector(1))
    bad = [Ask(model="nope", inputs={"A": fp32(vector(1))}), ask_tell("4")]
    first, unknown, failed, last = client.stream([good, *bad, good])
    assert isinstance(first, Answer)
    assert isinstance(last, Answer)
    assert unknown.text == "Request for unknown model: 'nope' is not found"
    assert failed.text == "as asked: 4"


def test_nothing_asked_on_a_stream_is_nothing_answered(client):
    assert client.stream([]) == []


def test_what_a_streams_errors_tell_besides_their_text(stubs):
    asks = [
        Ask(model="nope", inputs={}, id="unknown"),
        Ask(model="add", inputs={}, id="invalid"),
        ask_tell("4", id="failed", version="1"),
        Ask(model="nope", inputs={}),
    ]
    unknown, invalid, failed, unnamed = stubs.exchange(
        [infer_request(service_pb2, ask) for ask in asks], None
    )
    assert unknown.infer_response == service_pb2.ModelInferResponse(id="unknown")
    assert invalid.infer_response == service_pb2.ModelInferResponse(id="invalid")
    assert unnamed.infer_response == service_pb2.ModelInferResponse()
    wanted = service_pb2.ModelInferResponse(model_name="tell", model_version="1", id="failed")
    wanted.parameters["triton_final_response"].bool_param = True
    assert failed.infer_response == wanted


def test_a_strict_stream_ends_with_its_first_error(client):
    asks = [Ask(model="nope", inputs={"A": fp32(vector(1))})]
    # tritonclient hands the end of a stream to its callback, as an error with a status.
    try:
        [ended] = client.stream(asks, headers={"triton_grpc_error": "true"})
    except Refused as refused:
        ended = refused
    assert (ended.status, ended.text) == ("NOT_FOUND", "Request for unknown model: 'nope' is not found")


# Refusals


def message(model="add", *, raw=(), **document):
    """Return the ModelInferRequest that `document` is in JSON."""
    request = ParseDict({"model_name": model, **document}, service_pb2.ModelInferRequest())
    request.raw_input_contents.extend(raw)
    return request


def entry(name, datatype="FP32", shape=(1, 16), **more):
    return {"name": name, "datatype": datatype, "shape": list(shape), **more}


RAW = vector(1).tobytes()
ONES = {"fp32_contents": [1.0] * 16}
GOOD = {"inputs": [entry("A"), entry("B")], "raw": (RAW, RAW)}


def parameter(**choice):
    return {**GOOD, "parameters": {"key": choice}}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"inputs": [entry("A"), entry("B")], "raw": (RAW,)},
            "unable to find data for input tensor 'B' for model 'add' in request.",
        ),
        (
            {"inputs": [entry("A"), entry("B", contents=ONES)], "raw": (RAW,)},
            "contents field must not be specified when using raw_input_contents for 'B' for model 'add'",
        ),
        (
            {
                "inputs": [
                    entry(
                        "A",
                        contents=ONES,
                        parameters={
                            "shared_memory_region": {"string_param": "r"},
                            "shared_memory_byte_size": {"int64_param": 64},
                        },
                    )
                ]
            },
            "unexpected 'content' provided when using shared memory for input tensor 'A' for model 'add'",
        ),
        (
            {"inputs": [entry("A", contents={"int_contents": [1]})]},
            "unexpected explicit tensor data for input tensor 'A' for model 'add' of type 'INT32', "
            "expected datatype 'FP32'",
        ),
        (
            {"inputs": [entry("A", contents={**ONES, "bool_contents": [True]})]},
            "unexpected explicit tensor data for input tensor 'A' for model 'add' of type 'BOOL', "
            "expected datatype 'FP32'",
        ),
        (
            {"inputs": [entry("A", contents={**ONES, "fp64_contents": [1.0]})]},
            "unexpected explicit tensor data for input tensor 'A' for model 'add', binary data was already supplied.",
        ),
        (
            {"inputs": [entry("A", "FP16", contents=ONES)]},
            "unexpected explicit tensor data for input tensor 'A' for model 'add' of type 'FP32', "
            "expected datatype 'FP16'",
        ),
        *[
            ({**GOOD, "parameters": {key: choice}}, text)
            for key, choice, text in (
                (
                    "sequence_id",
                    {"bool_param": True},
                    "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
                ),
                (
                    "sequence_start",
                    {"int64_param": 1},
                    "invalid value type for 'sequence_start' parameter, expected bool_param.",
                ),
                (
                    "sequence_end",
                    {"string_param": "true"},
                    "invalid value type for 'sequence_end' parameter, expected bool_param.",
                ),
                ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
                (
                    "priority",
                    {"string_param": "1"},
                    "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
                ),
                (
                    "timeout",
                    {"uint64_param": 1},
                    "invalid value type for 'timeout' parameter, expected int64_param.",
                ),
                (
                    "triton_enable_empty_final_response",
                    {"int64_param": 1},
                    "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
                ),
                (
                    "triton_other",
                    {"bool_param": True},
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                    "starting with 'triton_' are allowed: triton_enable_empty_final_response",
                ),
                (
                    "custom",
                    {"uint64_param": 1},
                    "invalid value type for 'custom' parameter, expected int64_param, bool_param, or string_param.",
                ),
                (
                    "custom",
                    {},
                    "invalid value type for 'custom' parameter, expected int64_param, bool_param, or string_param.",
                ),
            )
        ],
        *[
            ({**GOOD, "outputs": [{"name": "S", "parameters": {"classification": choice, **more}}]}, text)
            for choice, more, text in (
                (
                    {"string_param": "1"},
                    {},
                    "invalid value type for 'classification' parameter, expected int64_param",
                ),
                ({"int64_param": 0}, {}, "invalid value for 'classification' parameter, expected >= 0"),
                (
                    {"int64_param": 1},
                    {
                        "shared_memory_region": {"string_param": "r"},
                        "shared_memory_byte_size": {"int64_param": 64},
                    },
                    "output can't set both 'shared_memory_region' and 'classification'",
                ),
            )
        ],
        (
            {**GOOD, "model_version": "x"},
            "failed to get model version from specified version string 'x' (details: stoll), "
            "version should be an integral value > 0",
        ),
        (
            {**GOOD, "model_version": "0"},
            "invalid model version specified '0' , version should be an integral value > 0",
        ),
    ],
)
def test_requests_that_can_not_be_read(stubs, document, text):
    request = message(**document)
    assert refusal(stubs.ask, "ModelInfer", request) == ("INVALID_ARGUMENT", text)
    [answer] = stubs.exchange([request], None)
    assert answer.error_message == text


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("add", [("Z", "FP32", [1, 16], RAW), ("A", "FP32", [1, 16], RAW)], []),
        ("add", [("A", "FP32", [1, 16], RAW)], []),
        ("add", [], []),
        ("add", [("A", "FP32", [1, 16], RAW), ("B", "FP32", [1, 16], RAW)], ["Q"]),
        ("add", [("A", "FP32", [1, 16], RAW), ("B", "FP32", [2, 16], RAW * 2)], []),
        ("add", [("A", "FP32", [9, 16], RAW * 9), ("B", "FP32", [9, 16], RAW * 9)], []),
        ("add", [("A", "INT32", [1, 16], RAW), ("B", "FP32", [1, 16], RAW)], []),
        ("add", [("A", "FP99", [1, 16], RAW), ("B", "FP32", [1, 16], RAW)], []),
        ("add", [("A", "FP32", [1, 8], RAW[:32]), ("B", "FP32", [1, 8], RAW[:32])], []),
        ("add", [("A", "FP32", [1, 16], RAW[:60]), ("B", "FP32", [1, 16], RAW)], []),
        ("add", [("A", "FP32", [], RAW[:4]), ("B", "FP32", [], RAW[:4])], []),
        ("strings", [("X", "BYTES", [1, 2], b"\x01\x00\x00\x00a")], []),
        ("strings", [("X", "BYTES", [1, 1], b"\x01\x00\x00\x00a" * 2)], []),
        ("strings", [("X", "BYTES", [1, 1], b"\x01\x00")], []),
        ("strings", [("X", "BYTES", [1, 1], b"\x09\x00\x00\x00a")], []),
    ],
)
def test_what_does_not_fit_the_model_is_refused_as_over_http(stubs, server, model, inputs, outputs):
    request = service_pb2.ModelInferRequest(model_name=model, id="odd")
    for name, datatype, shape, raw in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    for name in outputs:
        request.outputs.add(name=name)
    document = {
        "id": "odd",
        "inputs": [
            {
                "name": name,
                "datatype": datatype,
                "shape": shape,
                "parameters": {"binary_data_size": len(raw)},
            }
            for name, datatype, shape, raw in inputs
        ],
        "outputs": [{"name": name} for name in outputs],
    }
    head = json.dumps(document).encode()
    with ExitStack() as stack:
        connection = http.client.HTTPConnection(server.http, timeout=PATIENCE)
        stack.callback(connection.close)
        connection.request(
            "POST",
            f"/v2/models/{model}/infer",
            head + b"".join(raw for *_, raw in inputs),
            {"Inference-Header-Content-Length": str(len(head))},
        )
        answer = connection.getresponse()
        text = json.loads(answer.read())["error"]
    assert answer.status == 400
    assert refusal(stubs.ask, "ModelInfer", request) == ("INVALID_ARGUMENT", text)


def test_surplus_raw_tensors_are_ignored(stubs):
    request = message(**{**GOOD, "raw": (RAW, RAW, b"more")})
    assert stubs.ask("ModelInfer", request).raw_output_contents[0] == vector(2).tobytes()


@pytest.mark.parametrize("rpc", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_repositories_have_no_names(stubs, rpc):
    request = getattr(service_pb2, f"{rpc}Request")(repository_name="mine")
    assert refusal(stubs.ask, rpc, request) == (
        "UNIMPLEMENTED",
        "'repository_name' specification is not supported",
    )


@pytest.mark.parametrize(
    ("rpc", "parameters", "text"),
    [
        (
            "RepositoryModelLoad",
            {"config": {"bytes_param": ""}},
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "RepositoryModelLoad",
            {"file:1/model.onnx": {"string_param": ""}},
            "invalid value type for load parameter 'file:1/model.onnx', expected bytes_param.",
        ),
        ("RepositoryModelLoad", {"other": {"bool_param": True}}, "unrecognized load parameter 'other'."),
        (
            "RepositoryModelUnload",
            {"unload_dependents": {"int64_param": 1}},
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
    ],
)
def test_load_and_unload_parameters_have_types(stubs, rpc, parameters, text):
    request = getattr(service_pb2, f"{rpc}Request")()
    ParseDict({"model_name": "add", "parameters": parameters}, request)
    assert refusal(stubs.ask, rpc, request) == ("INVALID_ARGUMENT", text)


def test_bytes_that_are_no_message_are_an_error_of_their_call_only(stubs):
    send = stubs.channel.unary_unary(SERVICE + "ModelInfer")
    with pytest.raises(Refused, match="failed to parse the 3 bytes") as caught, grpcio_errors():
        send(b"\xff\xff\xff", timeout=PATIENCE)
    assert caught.value.status == "INTERNAL"
    assert stubs.live()


def test_methods_and_services_that_do_not_exist_are_unimplemented(stubs):
    for path in ("/inference.GRPCInferenceService/Nope", "/nope.Nope/Nope"):
        with pytest.raises(Refused) as caught, grpcio_errors():
            stubs.channel.unary_unary(path)(b"", timeout=PATIENCE)
        assert caught.value.status == "UNIMPLEMENTED"


# Ends before the answer


TICKETS = iter(range(1_000_000))


def ask_gated(ticket) -> Ask:
    return Ask(model="gated", inputs={"TICKET": Tensor("INT32", np.array([[ticket]], np.int32))})


def test_a_deadline_ends_a_call(client):
    assert refusal(client.infer, ask_gated(next(TICKETS)), within=0.1)[0] == "DEADLINE_EXCEEDED"
    assert client.live()


def test_a_cancelled_call_ends_at_once_and_costs_no_other(stubs):
    call = stubs.begin("ModelInfer", infer_request(service_pb2, ask_gated(next(TICKETS))))
    assert not call.done()
    assert call.cancel()
    assert stubs.infer(ask_add(vector(1), vector(1))).version == "1"


# Health and reflection


def test_the_standard_health_check_says_serving(stubs):
    health = health_pb2_grpc.HealthStub(stubs.channel)
    for service in ("", "inference.GRPCInferenceService", "whatever"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_health_service_can_be_watched(stubs):
    """Triton's can not; clients that balance by health need it (docs/differences/protocols.md)."""
    health = health_pb2_grpc.HealthStub(stubs.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_reflection_describes_the_services(stubs):
    database = ProtoReflectionDescriptorDatabase(stubs.channel)
    assert set(database.get_services()) >= {"inference.GRPCInferenceService", "grpc.health.v1.Health"}
    file = database.FindFileContainingSymbol("inference.ModelInferRequest")
    assert "ModelInferRequest" in [each.name for each in file.message_type]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_both_versions_of_reflection_answer_many_questions_on_one_stream(stubs, version):
    ask = stubs.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    symbols = ["inference.GRPCInferenceService", "nope.Nope", "grpc.health.v1.Health"]
    questions = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=each) for each in symbols]
    answers = list(ask(iter(questions), timeout=PATIENCE))
    assert [each.WhichOneof("message_response") for each in answers] == [
        "file_descriptor_response",
        "error_response",
        "file_descriptor_response",
    ]


# What calls leave behind


@pytest.mark.long
def test_calls_that_are_over_leave_nothing_for_the_garbage_collector():
    with listeners_alone(FakeServer()) as addresses:
        stubs = GrpcioStubs(addresses.grpc)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)  # it keeps what it finds
        try:
            talk(stubs)
            gc.collect()
            found = [type(each).__name__ for each in gc.garbage if isinstance(each, KINDS)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            stubs.close()
        assert found == []


def talk(stubs):
    """Make a thousand calls, with every end that calls have."""
    good = ask_add(vector(1), vector(1))
    stubs.many([good] * 800)
    for _ in range(50):
        assert refusal(stubs.infer, Ask(model="nope", inputs={}))[0] == "NOT_FOUND"
        assert stubs.live()
        assert len(stubs.stream([good, Ask(model="nope", inputs={}), good])) == 3
    held = Ask(model="held", inputs={"X": Tensor("INT64", np.array([[1]], np.int64))})
    request = infer_request(service_pb2, held)
    for _ in range(20):
        assert refusal(stubs.infer, held, within=0.005)[0] == "DEADLINE_EXCEEDED"
    for _ in range(20):
        stubs.begin("ModelInfer", request).cancel()
        stream = begun(stubs, request, "stream")
        assert stubs.live()
        stream.cancel()
    large = Ask(model="scores", inputs={"X": fp32(np.zeros((1, 500_000)))})
    stubs.infer(large)
    stubs.infer(large, compression="gzip")
    stubs.stream([large])


KINDS = (Call, ServerStream, Stream, StreamedRequest, InferRequest, InferResponse)


# One server with what operators may set


ADMIN = {"triton-grpc-protocol-admin": "s3cret"}
IDENTITY_CONFIG = """
{
  "backend": "onnxruntime",
  "max_batch_size": %d,
  "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
  "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
  "instance_group": [{"kind": "KIND_CPU", "count": 1}]
}
"""


@pytest.fixture(scope="module")
def configured(repository) -> Iterator[Addresses]:
    serve = process(
        "engine",
        "serve",
        "--model-control-mode=explicit",
        "--load-model=tell",
        "--load-model=gated",
        "--load-model=add",
        "--grpc-restricted-protocol=model-repository,logging:admin=s3cret",
        "--grpc-header-forward-pattern=^(x-|sequence_)",
        "--grpc-infer-response-compression-level=medium",
    )
    with serve(repository) as addresses:
        yield addresses


@pytest.fixture(params=CLIENTS)
def settled(request, configured):
    """Each of the clients in turn, connected to the configured server."""
    connected = CLIENTS[request.param](configured.grpc)
    yield connected
    connected.close()


@pytest.fixture
def bare(configured):
    connected = GrpcioStubs(configured.grpc)
    yield connected
    connected.close()


def test_restricted_rpcs_need_their_key(settled):
    text = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
    assert refusal(settled.load, "scores") == ("UNAVAILABLE", text)
    assert refusal(settled.load, "scores", headers={"triton-grpc-protocol-admin": "guess"}) == (
        "UNAVAILABLE",
        text,
    )
    assert settled.live()


def test_a_restricted_rpc_is_refused_before_anything_else(bare):
    restricted = ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'")
    assert refusal(bare.ask, "LogSettings", service_pb2.LogSettingsRequest()) == restricted
    index = service_pb2.RepositoryIndexRequest()
    assert refusal(bare.ask, "RepositoryIndex", index) == restricted
    assert bare.ask("RepositoryIndex", index, metadata=ADMIN).models


def test_models_are_loaded_and_unloaded(settled):
    ask = Ask(model="scores", inputs={"X": fp32([[1, 2]])})
    assert refusal(settled.infer, ask)[0] == "NOT_FOUND"
    settled.load("scores", headers=ADMIN)
    assert settled.infer(ask).outputs["Y"].tolist() == [[1, 2]]
    settled.unload("scores", headers=ADMIN)
    assert refusal(settled.infer, ask)[0] == "NOT_FOUND"


def test_a_load_may_bring_its_configuration(settled):
    settled.load("scores", config=IDENTITY_CONFIG % 2, headers=ADMIN)
    assert settled.describe("ModelConfig", name="scores")["config"]["max_batch_size"] == 2
    settled.unload("scores", headers=ADMIN)


def test_a_load_may_bring_its_files(settled, repository):
    model = (repository / "scores" / "1" / "model.onnx").read_bytes()
    settled.load("brought", config=IDENTITY_CONFIG % 4, files={"file:7/model.onnx": model}, headers=ADMIN)
    answer = settled.infer(Ask(model="brought", inputs={"X": fp32([[5]])}))
    assert (answer.version, answer.outputs["Y"].tolist()) == ("7", [[5]])
    settled.unload("brought", headers=ADMIN)


def test_a_load_that_fails_tells_why(settled):
    status, text = refusal(settled.load, "nowhere", headers=ADMIN)
    assert status == "INTERNAL"
    assert "failed to load 'nowhere'" in text


def test_metadata_that_operators_picked_becomes_parameters(settled):
    answer = settled.infer(ask_tell(), headers={"x-user": "ann", "y-user": "bob"})
    assert told(answer) == {"x-user": "ann"}
    [streamed] = settled.stream([ask_tell()], headers={"x-user": "ann", "y-user": "bob"})
    assert told(streamed) == {"x-user": "ann"}


def test_of_repeated_metadata_the_last_value_is_forwarded_as_over_http(bare):
    request = infer_request(service_pb2, ask_tell())
    send = bare.channel.unary_unary(
        SERVICE + "ModelInfer",
        request_serializer=type(request).SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )
    metadata = (("x-user", "ann"), ("x-user", "bob"), ("x-blob-bin", b"\x01\xe9"))
    response = send(request, metadata=metadata, timeout=PATIENCE)
    assert json.loads(response.raw_output_contents[0][4:]) == {"x-user": "bob", "x-blob-bin": "\x01é"}


def test_reserved_metadata_is_not_forwarded(settled):
    text = "Header 'sequence_id' is reserved for Triton usage and cannot be forwarded."
    headers = {"sequence_id": "1"}
    assert refusal(settled.infer, ask_tell(), headers=headers) == ("INVALID_ARGUMENT", text)
    [answer] = settled.stream([ask_tell()], headers=headers)
    assert answer.text == text


def test_answers_are_compressed_for_clients_that_take_that(settled):
    answer = settled.infer(ask_add(vector(3), vector(1)))
    np.testing.assert_array_equal(answer.outputs["S"], vector(4))
    rows = vector(3, rows=8)
    [streamed] = settled.stream([ask_add(rows, rows)])
    np.testing.assert_array_equal(streamed.outputs["S"], rows + rows)


def test_a_model_learns_that_its_client_has_left(bare, gates):
    for leave in ("cancel", "deadline", "stream"):
        ticket = next(TICKETS)
        request = infer_request(service_pb2, ask_gated(ticket))
        call = begun(bare, request, leave)
        wait_until(lambda ticket=ticket: ticket in gates.began())
        call.cancel()
        wait_until(lambda ticket=ticket: gates.saw_cancelled([ticket]))
    assert bare.infer(ask_add(vector(1), vector(1))).version == "1"


def begun(stubs, request, how):
    if how != "stream":
        return stubs.begin("ModelInfer", request, timeout=1.0 if how == "deadline" else PATIENCE)
    method = stubs.channel.stream_stream(
        SERVICE + "ModelStreamInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
    return method(iter([request]), timeout=PATIENCE)


def wait_until(condition, *, tries=2000):
    for _ in range(tries):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come about")
