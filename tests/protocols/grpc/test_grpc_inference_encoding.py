import math
import struct

import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as client_messages

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, Unsupported
from actors.values.requests import InferResponse
from actors.values.tensors import Tensor
from protocols.grpc.codec.infer_meaning import ALL_OUTPUTS, AnswerPlan
from protocols.grpc.codec.infer_response import encode, encode_stream, encode_stream_error
from protocols.kserve.proto.grpc_service_pb2 import ModelInferResponse, ModelStreamInferResponse
from tests.protocols.fakes import make_spec, tensor

SPEC = make_spec("m", labels=("cat", "dog"))


def answer(*outputs, **fields):
    fields = {"model_name": "m", "model_version": 3, "id": "r", "outputs": outputs, **fields}
    return InferResponse(**fields)


def encoded(response, plan=ALL_OUTPUTS, **options):
    """The message's bytes, once as made and once as repeated."""
    buffers, size = encode(response, plan, SPEC, **options)
    written = b"".join(buffers)
    assert len(written) == size
    again, _ = encode(response, plan, SPEC, **options)
    assert b"".join(again) == written
    return written


def streamed(response, *, final):
    """The ModelInferResponse within a streamed answer."""
    buffers, size, _ = encode_stream(response, ALL_OUTPUTS, SPEC, final=final)
    written = b"".join(buffers)
    assert len(written) == size
    return ModelStreamInferResponse.FromString(written).infer_response


def reference(response, final=None):
    """The same message, made by protobuf."""
    message = ModelInferResponse(
        model_name=response.model_name, model_version=str(response.model_version), id=response.id
    )
    parameters = dict(response.parameters or {})
    if final is not None:
        parameters["triton_final_response"] = final
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for key, value in parameters.items():
        setattr(message.parameters[key], kinds[type(value)], value)
    for output in response.outputs:
        message.outputs.add(name=output.name, datatype=str(output.datatype), shape=output.shape)
        message.raw_output_contents.append(bytes(output.data))
    return message


def assert_same(response, final=None):
    expected = reference(response, final)
    if final is None:
        assert encoded(response) == expected.SerializeToString(deterministic=True)
    else:
        assert streamed(response, final=final) == expected


def test_an_answer_is_written_as_protobuf_writes_it():
    assert_same(answer(tensor("S", np.ones((1, 16), np.float32)), tensor("D", np.zeros((1, 16), np.float32))))


def test_an_answer_without_anything_is_written_as_protobuf_writes_it():
    assert_same(answer(id="", model_name=""))
    assert_same(answer(Tensor("S", DataType.FP32, (), b"1234")))
    assert_same(answer(Tensor("", DataType.BYTES, (0,), b"")))


def test_ids_and_shapes_that_take_more_than_a_byte_are_written_right():
    assert_same(answer(Tensor("S" * 200, DataType.UINT8, [1, 300], bytes(300)), id="ü" * 100))
    assert_same(answer(Tensor("S", DataType.UINT8, (-1,), b"")))


def test_every_output_has_a_raw_entry_even_an_empty_one():
    outputs = [Tensor("E", DataType.FP32, (0,), b""), tensor("S", np.ones(2, np.float32))]
    message = ModelInferResponse.FromString(encoded(answer(*outputs)))
    assert [len(raw) for raw in message.raw_output_contents] == [0, 8]


def test_strings_of_changing_length_under_one_shape_are_written_right():
    for words in ([b"a"], [b"abc"], [b"x" * 200]):
        assert_same(answer(tensor("W", np.array(words, dtype=object))))


def test_parameters_are_written_in_the_order_of_their_keys():
    parameters = {"z": 1, "a": True, "é": 0.5, "b": "text", "c": False, "d": -1, "e": "", "n": math.inf}
    assert_same(answer(parameters=parameters))
    assert_same(answer(parameters=parameters), final=True)
    assert_same(answer(), final=False)


def test_the_shorter_key_comes_first():
    written = encoded(answer(parameters={"ab": 1, "": 2, "a": 3}))
    assert written.index(b"\x0a\x00\x12") < written.index(b"\x0a\x01a\x12") < written.index(b"\x0a\x02ab\x12")


def test_a_nan_parameter_keeps_its_type():
    message = ModelInferResponse.FromString(encoded(answer(parameters={"x": math.nan})))
    assert math.isnan(message.parameters["x"].double_param)


@pytest.mark.parametrize("key", ["k", "k" * 100], ids=["remembered", "too long for that"])
def test_parameters_that_equal_each_other_are_told_apart(key):
    """Flags and numbers are remembered as they were written, and 1, True and 1.0 are equal."""
    for value in (1, True, 1.0, 0, False, 0.0, -0.0, 1, True, 1.0, 0, False):
        assert_same(answer(parameters={key: value}))


def test_parameters_that_grpc_cannot_carry_are_refused():
    with pytest.raises(Unsupported, match="'TRITONSERVER_PARAMETER_BYTES' is not currently supported"):
        encode(answer(parameters={"x": b"bytes"}), ALL_OUTPUTS, SPEC)
    with pytest.raises(Internal, match="response parameter 'x' is 9223372036854775808"):
        encode(answer(parameters={"x": 2**63}), ALL_OUTPUTS, SPEC)
    with pytest.raises(Internal, match="response parameter 'x' is a list"):
        encode(answer(parameters={"x": [1]}), ALL_OUTPUTS, SPEC)


def test_tensors_are_not_copied():
    memory = bytearray(16)
    response = answer(Tensor("S", DataType.UINT8, (16,), memoryview(memory)))
    buffers, size = encode(response, ALL_OUTPUTS, SPEC)
    memory[0] = 7
    written = b"".join(buffers)
    assert len(written) == size
    assert written == reference(response).SerializeToString(deterministic=True)


def test_small_streamed_answers_are_copied_and_large_ones_borrowed():
    small = answer(Tensor("S", DataType.UINT8, (65536,), memoryview(bytes(65536))))
    buffers, size, borrowed = encode_stream(small, ALL_OUTPUTS, SPEC, final=True)
    assert (len(buffers), len(buffers[0]), borrowed) == (1, size, False)
    large = answer(Tensor("S", DataType.UINT8, (65537,), memoryview(bytes(65537))))
    assert encode_stream(large, ALL_OUTPUTS, SPEC, final=True)[2]


def test_what_changes_between_the_answers_of_a_model_is_written():
    """What they have in common is remembered."""
    ones, twos = np.ones(4, np.float32), np.ones((2, 2), np.float32)
    for outputs in (
        [("S", ones)],
        [("D", ones)],
        [("S", twos)],
        [("S", ones), ("D", twos)],
        [],
        [("S", ones)],
    ):
        for version in (1, 2):
            assert_same(answer(*(tensor(*output) for output in outputs), model_version=version))
    assert_same(answer(tensor("S", np.ones(4, np.int32))))
    assert_same(answer(tensor("S", ones), model_name="other"))
    for length in (0, 1, 127, 128, 300):
        assert_same(answer(tensor("S", ones), id="i" * length))


def test_only_named_outputs_are_sent_in_the_models_order():
    response = answer(tensor("S", np.ones(1, np.float32)), tensor("D", np.zeros(1, np.float32)))
    message = ModelInferResponse.FromString(encoded(response, AnswerPlan({"D": 0, "S": 0})))
    assert [output.name for output in message.outputs] == ["S", "D"]
    message = ModelInferResponse.FromString(encoded(response, AnswerPlan({"D": 0})))
    assert [output.name for output in message.outputs] == ["D"]
    assert len(message.raw_output_contents) == 1


def test_a_classified_output_is_sent_as_strings():
    response = answer(tensor("S", np.array([[0.25, 0.75]], np.float32)))
    message = ModelInferResponse.FromString(encoded(response, AnswerPlan({"S": 1})))
    assert (message.outputs[0].datatype, list(message.outputs[0].shape)) == ("BYTES", [1, 1])
    assert message.raw_output_contents[0] == struct.pack("<I", 14) + b"0.750000:1:dog"


def test_an_output_without_order_cannot_be_classified():
    response = answer(tensor("S", np.array([True])))
    with pytest.raises(InvalidArgument, match="unsupported type 'BOOL'"):
        encode(response, AnswerPlan({"S": 1}), SPEC)


def test_an_answer_over_the_limit_is_refused():
    response = answer(tensor("S", np.ones(64, np.float32)))
    size = len(encoded(response))
    assert encode(response, ALL_OUTPUTS, SPEC, max_message=size)[1] == size
    text = f"Response has byte size {size} which exceeds gRPC's byte size limit {size - 1}."
    with pytest.raises(InvalidArgument, match=text):
        encode(response, ALL_OUTPUTS, SPEC, max_message=size - 1)
    with pytest.raises(InvalidArgument, match="exceeds gRPC's byte size limit 10"):
        encode_stream(response, ALL_OUTPUTS, SPEC, final=True, max_message=10)


@pytest.mark.parametrize("elements", [1, 40, 100_000])
def test_streamed_answers_are_wrapped(elements):
    response = answer(tensor("S", np.ones(elements, np.float32)), parameters={"a": 1})
    buffers, size, borrowed = encode_stream(response, ALL_OUTPUTS, SPEC, final=False)
    assert borrowed == (elements == 100_000)
    written = b"".join(buffers)
    assert len(written) == size
    expected = ModelStreamInferResponse(infer_response=reference(response, final=False))
    assert written == expected.SerializeToString(deterministic=True)


def test_an_error_before_execution_tells_the_id_only():
    message = ModelStreamInferResponse.FromString(encode_stream_error("no such model", "r1"))
    assert message.error_message == "no such model"
    assert message.infer_response == ModelInferResponse(id="r1")
    message = ModelStreamInferResponse.FromString(encode_stream_error("no such model", ""))
    assert message.HasField("infer_response")


def test_an_error_of_execution_tells_its_model_and_whether_it_is_the_last():
    written = encode_stream_error("failed", "r1", "m", "2", final=True)
    expected = ModelStreamInferResponse(
        error_message="failed",
        infer_response=ModelInferResponse(model_name="m", model_version="2", id="r1"),
    )
    expected.infer_response.parameters["triton_final_response"].bool_param = True
    assert written == expected.SerializeToString(deterministic=True)


def test_text_that_is_not_unicode_does_not_break_the_message():
    message = ModelInferResponse.FromString(encoded(answer(parameters={"x": "a\udcff"})))
    assert message.parameters["x"].string_param == "a?"


def test_tritons_client_reads_the_answer():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    words = np.array([b"a", b"bc"], dtype=object)
    written = encoded(answer(tensor("S", array), tensor("W", words)))
    result = triton.InferResult(client_messages.ModelInferResponse.FromString(written))
    assert result.as_numpy("S").tolist() == array.tolist()
    assert result.as_numpy("W").tolist() == words.tolist()
    assert result.get_response().model_version == "3"


values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=4), st.floats(allow_nan=False)
)
# If one key begins the other, protobuf's own implementations disagree on their order.
keys = st.text(min_size=2, max_size=2).filter(lambda key: key != "tr")
tensors = st.builds(
    lambda name, shape, data: Tensor(name, DataType.BYTES, shape, data),
    st.text(max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.binary(max_size=200),
)


@pytest.mark.slow
@given(
    st.lists(tensors, max_size=3),
    st.text(max_size=3),
    st.dictionaries(keys, values, max_size=4),
    st.sampled_from([None, True, False]),
)
def test_any_answer_is_written_as_protobuf_writes_it(outputs, request_id, parameters, final):
    assert_same(answer(*outputs, id=request_id, parameters=parameters), final)
