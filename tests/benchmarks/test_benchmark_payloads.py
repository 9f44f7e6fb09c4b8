"""The benchmarks' own v2 codec: what it sends, what it accepts as an answer, and that scenarios are sound."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks import payloads
from benchmarks.grpc import payloads as messages
from benchmarks.grpc.scenarios import GRPC_SCENARIOS, Asked
from benchmarks.payloads import HEADER_LENGTH, WrongAnswer
from benchmarks.repository import WRITERS
from benchmarks.scenarios import SCENARIOS
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.support.examples import examples

_TENSORS = st.dictionaries(
    st.text("ABC", min_size=1),
    arrays.arrays(
        st.sampled_from(["f4", "f8", "i4", "u1"]),
        arrays.array_shapes(),
        elements={"min_value": 0, "max_value": 9},
    ),
    min_size=1,
    max_size=3,
)


def _echo(request):
    """Turn a request into the answer of a model that returns its inputs."""
    length = request.headers.get(HEADER_LENGTH)
    cut = len(request.body) if length is None else int(length)
    head = json.loads(request.body[:cut])
    answer = json.dumps({"model_name": "echo", "outputs": head["inputs"]}).encode()
    return answer + request.body[cut:], None if length is None else len(answer)


@settings(max_examples=examples(50))
@given(_TENSORS, st.sampled_from(["binary", "json"]))
def test_tensors_survive_the_trip_in_either_encoding(tensors, encoding):
    outputs = payloads.decode(*_echo(payloads.encode(tensors, encoding)))
    payloads.check(outputs, tensors)


def test_a_binary_request_asks_for_binary_outputs():
    request = payloads.encode({"A": np.zeros(2, np.float32)}, "binary")
    head = json.loads(request.body[: int(request.headers[HEADER_LENGTH])])
    assert head["parameters"] == {"binary_data_output": True}
    assert len(request.body) == int(request.headers[HEADER_LENGTH]) + 8


def test_a_flat_answer_takes_the_shape_it_names():
    body = b'{"outputs":[{"name":"S","datatype":"INT32","shape":[1,4],"data":[1,2,3,4]}]}'
    assert payloads.decode(body, None)["S"].tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"error":"no"}',
        b'{"outputs":[{"name":"S","datatype":"INT32","shape":[2],"data":[1]}]}',
        b'{"outputs":[{"name":"S","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}]}',
    ],
)
def test_a_body_that_contradicts_itself_is_a_wrong_answer(body):
    with pytest.raises(WrongAnswer):
        payloads.decode(body, None)


def test_bytes_that_no_output_accounts_for_are_a_wrong_answer():
    head = b'{"outputs":[]}'
    with pytest.raises(WrongAnswer, match="17 bytes and accounts for 14"):
        payloads.decode(head + b"abc", len(head))


@pytest.mark.parametrize(
    ("outputs", "expected", "reason"),
    [
        ({"S": np.ones(2, np.float32)}, {"S": np.zeros(2, np.float32)}, "'S'"),
        ({}, {"S": np.zeros(2, np.float32)}, "'S'"),
        ({"S": np.array([np.nan], np.float32)}, None, "not finite"),
    ],
)
def test_wrong_and_missing_outputs_are_named_and_numbers_must_be_finite(outputs, expected, reason):
    with pytest.raises(WrongAnswer, match=reason):
        payloads.check(outputs, expected)


def test_metadata_alone_is_enough_to_build_inputs():
    metadata = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 64]}]}
    inputs = payloads.inputs_from_metadata(metadata)
    assert inputs["image"].shape == (1, 64)
    assert inputs["image"].dtype == np.float32


def test_inputs_without_fixed_size_are_refused():
    with pytest.raises(ValueError, match="BYTES"):
        payloads.inputs_from_metadata({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}]})


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.inputs], ids=lambda each: each.name)
def test_a_scenario_knows_its_answer_and_its_model_can_be_written(scenario):
    request, expected = payloads.build(scenario)
    assert expected
    assert len(request.body) >= scenario.transfer
    assert scenario.model in WRITERS


def test_scenarios_have_names_of_their_own():
    names = [each.name for each in (*SCENARIOS, *GRPC_SCENARIOS)]
    assert len(set(names)) == len(names)


def _as_response(tensors):
    request = messages.encode(Asked("echo"), tensors)
    response = pb.ModelInferResponse(raw_output_contents=request.raw_input_contents)
    for each in request.inputs:
        response.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    return response


@settings(max_examples=examples(30))
@given(_TENSORS)
def test_tensors_survive_the_trip_as_messages(tensors):
    payloads.check(messages.decode(_as_response(tensors)), tensors)


@pytest.mark.parametrize("change", [{"raw": b"abc"}, {"shape": 9}, {"datatype": "BYTES"}, {"extra": True}])
def test_a_message_that_contradicts_itself_is_a_wrong_answer(change):
    response = _as_response({"S": np.zeros(2, np.float32)})
    match change:
        case {"raw": raw}:
            response.raw_output_contents[0] = raw
        case {"shape": size}:
            response.outputs[0].shape[0] = size
        case {"datatype": datatype}:
            response.outputs[0].datatype = datatype
        case _:
            response.raw_output_contents.append(b"")
    with pytest.raises(WrongAnswer):
        messages.decode(response)


@pytest.mark.parametrize("scenario", GRPC_SCENARIOS, ids=lambda each: each.name)
def test_a_grpc_scenario_knows_its_answer_and_its_model_can_be_written(scenario):
    inputs = scenario.inputs()
    assert scenario.expected(inputs)
    assert messages.encode(scenario.first, inputs).ByteSize() >= scenario.transfer
    assert scenario.model in WRITERS
