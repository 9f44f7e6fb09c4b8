import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.seams.steps import at_once
from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, NotFound, TritiumError, Unsupported
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START
from protocols.kserve.caps import parse_json_size
from protocols.kserve.forwarding import forward_headers
from protocols.kserve.meanings import BINARY_OUTPUTS, JSON_OUTPUTS, OutputChoice
from protocols.kserve.requests import Arrival, InferDecoder
from tests.protocols.fakes import make_spec
from tests.support.ports import Port

SPEC = make_spec("m", inputs=[("A", DataType.INT32, (-1,)), ("B", DataType.FP32, (-1,))])


def decode(body, json_size=None, *, spec=SPEC, limit=1 << 20, decoder=None, forwarded=None):
    decoder = decoder or InferDecoder(max_input_size=limit)
    return decoder.decode(body, json_size, spec, Arrival(-1, Port(), 3.5, forwarded))


def decode_in_slices(body, json_size=None, *, spec=SPEC, limit=1 << 20):
    decoder = InferDecoder(max_input_size=limit)
    return at_once(decoder.decode_long(body, json_size, spec, Arrival(-1, Port(), 3.5)))


def decode_document(document, **options):
    return decode(json.dumps(document).encode(), **options)


def one_input(**members):
    return {"inputs": [{"name": "A", "datatype": "INT32", "shape": [2], **members}]}


def framed(document, *tails):
    head = json.dumps(document).encode()
    return b"".join((head, *tails)), len(head)


def binary_input(name, size, datatype="INT32", shape=(2,)):
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(shape),
        "parameters": {"binary_data_size": size},
    }


def refusal(document, error, **options):
    with pytest.raises(error) as caught:
        decode_document(document, **options)
    assert type(caught.value) is error
    with pytest.raises(error) as in_slices:
        decode_in_slices(json.dumps(document).encode(), **options)
    assert in_slices.value.message == caught.value.message
    return caught.value.message


# What a good request becomes


def test_a_json_request_becomes_tensors():
    request, plan = decode_document(one_input(data=[1, -2]))
    assert request.model_name == "m"
    assert request.requested_version == -1
    assert request.accepted_at == 3.5
    assert request.id == ""
    assert request.parameters is None
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("A", DataType.INT32, [2])
    assert tensor.as_numpy().tolist() == [1, -2]
    assert plan is JSON_OUTPUTS


def test_binary_inputs_are_views_on_the_body():
    body, size = framed(
        {"inputs": [binary_input("A", 8), binary_input("B", 4, "FP32", [1])]}, b"\1" * 8, b"\2" * 4
    )
    body = bytearray(body)
    request, _ = decode(body, size)
    a, b = request.inputs
    body[-1] = 0x40
    body[size] = 5
    assert bytes(a.data) == b"\5" + b"\1" * 7
    assert bytes(b.data) == b"\2\2\2\x40"


def test_json_and_binary_inputs_mix():
    inputs = [binary_input("A", 8), {"name": "B", "datatype": "FP32", "shape": [1], "data": [0.5]}]
    body, size = framed({"inputs": inputs}, b"\1" * 8)
    request, _ = decode(body, size)
    assert [tensor.nbytes for tensor in request.inputs] == [8, 4]
    assert request.inputs[1].as_numpy().tolist() == [0.5]


def test_a_repeated_json_text_gets_the_bytes_of_its_own_body():
    decoder = InferDecoder()
    answers = []
    for byte in (b"\1", b"\2", b"\3"):
        body, size = framed({"id": "r", "inputs": [binary_input("A", 8)]}, byte * 8)
        request, _ = decode(body, size, decoder=decoder)
        answers.append((request.id, bytes(request.inputs[0].data)))
    assert answers == [("r", b"\1" * 8), ("r", b"\2" * 8), ("r", b"\3" * 8)]


def test_a_repeated_json_text_with_too_few_bytes_behind_it_is_refused_all_the_same():
    decoder = InferDecoder()
    body, size = framed({"inputs": [binary_input("A", 8)]}, b"\1" * 8)
    decode(body, size, decoder=decoder)
    with pytest.raises(InvalidArgument, match="expecting 3 additional bytes"):
        decode(body[:-3], size, decoder=decoder)
    with pytest.raises(InvalidArgument, match="unexpected additional input data for model 'm'"):
        decode(body + b"x", size, decoder=decoder)


def test_thousands_of_different_json_texts_do_not_confuse_the_decoder():
    decoder = InferDecoder()
    for number in range(1500):
        body, size = framed({"id": str(number), "inputs": [binary_input("A", 1)]}, b"x")
        request, _ = decode(body, size, decoder=decoder)
        assert request.id == str(number)


def test_members_that_nobody_knows_are_ignored():
    document = one_input(data=[1, 2], colour="red")
    request, _ = decode_document({**document, "unknown": [1]})
    assert request.inputs[0].nbytes == 8


def test_parameters_go_to_the_fields_they_mean():
    parameters = {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 2,
        "timeout": 1500,
        "binary_data_output": True,
        "text": "x",
        "count": -3,
        "flag": False,
        "rate": 0.5,
    }
    request, plan = decode_document({**one_input(data=[1, 2]), "id": "r1", "parameters": parameters})
    assert request.id == "r1"
    assert request.correlation_id == 7
    assert request.flags == FLAG_SEQUENCE_START | FLAG_SEQUENCE_END
    assert request.priority == 2
    assert request.timeout == pytest.approx(0.0015)
    assert request.parameters == {"text": "x", "count": -3, "flag": False, "rate": 0.5}
    assert plan is BINARY_OUTPUTS


def test_a_sequence_may_be_named_by_a_string():
    request, _ = decode_document({**one_input(data=[1, 2]), "parameters": {"sequence_id": "abc"}})
    assert request.correlation_id == "abc"


def test_sequence_flags_that_are_false_set_nothing():
    parameters = {"sequence_start": False, "sequence_end": False}
    request, _ = decode_document({**one_input(data=[1, 2]), "parameters": parameters})
    assert request.flags == 0


def test_integers_beyond_int64_become_doubles_as_custom_parameters():
    request, _ = decode_document({**one_input(data=[1, 2]), "parameters": {"big": 2**63}})
    assert request.parameters == {"big": float(2**63)}
    assert type(request.parameters["big"]) is float


def test_requested_outputs_say_how_they_want_to_come():
    outputs = [
        {"name": "S", "parameters": {"binary_data": True}},
        {"name": "D"},
        {"name": "E", "parameters": {"classification": 3}},
        {"name": "F", "parameters": {"classification": 0, "binary_data": False}},
    ]
    document = {**one_input(data=[1, 2]), "outputs": outputs, "parameters": {"binary_data_output": True}}
    request, plan = decode_document(document)
    assert request.requested_outputs == ("S", "D", "E", "F")
    assert plan.named == {
        "S": OutputChoice(True, 0),
        "D": OutputChoice(False, 0),  # even when `binary_data_output` is true
        "E": OutputChoice(False, 3),
        "F": OutputChoice(False, 0),
    }


def test_an_empty_list_of_outputs_asks_for_all_of_them():
    request, plan = decode_document({**one_input(data=[1, 2]), "outputs": []})
    assert request.requested_outputs == ()
    assert plan.named is None


def test_no_parameter_takes_the_place_of_a_forwarded_header():
    document = {**one_input(data=[1, 2]), "parameters": {"x-b": "body", "x-a": "body", "X-B": 1, "c": "body"}}
    request, _ = decode_document(document, forwarded={"X-A": "header", "x-b": "header"})
    assert request.parameters == {"X-A": "header", "x-b": "header", "c": "body"}
    request, _ = decode_document(one_input(data=[1, 2]), forwarded={"X-A": "header"})
    assert request.parameters == {"X-A": "header"}


# Data


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("BOOL", [True, False], [True, False]),
        ("INT8", [-1, 127], [-1, 127]),
        ("INT8", [300, -129], [44, 127]),
        ("INT16", [1, 65536], [1, 0]),
        ("INT32", [2**31, -1], [-(2**31), -1]),
        ("INT64", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ("UINT8", [255, 256], [255, 0]),
        ("UINT16", [65535, 65537], [65535, 1]),
        ("UINT32", [2**32 - 1, 2**32], [2**32 - 1, 0]),
        ("UINT64", [2**64 - 1, 0], [2**64 - 1, 0]),
        ("FP32", [1, 2.5], [1.0, 2.5]),
        ("FP32", [1e300, -1e300], [np.inf, -np.inf]),
        ("FP64", [1, 1e300], [1.0, 1e300]),
        ("BYTES", ["a", "é"], [b"a", "é".encode()]),
    ],
)
def test_each_datatype_takes_its_json_type_and_narrows_without_a_range_check(datatype, data, expected):
    document = {"inputs": [{"name": "A", "datatype": datatype, "shape": [2], "data": data}]}
    request, _ = decode_document(document)
    assert request.inputs[0].as_numpy().tolist() == expected


def test_numbers_that_are_none_go_into_float_tensors():
    body = b'{"inputs":[{"name":"B","datatype":"FP32","shape":[3],"data":[NaN,Inf,-Infinity]}]}'
    request, _ = decode(body)
    np.testing.assert_array_equal(
        request.inputs[0].as_numpy(), np.array([np.nan, np.inf, -np.inf], dtype=np.float32)
    )


def test_bytes_elements_need_not_be_utf_8():
    request, _ = decode(b'{"inputs":[{"name":"A","datatype":"BYTES","shape":[1],"data":["\xff\\u0000"]}]}')
    assert request.inputs[0].as_numpy().tolist() == [b"\xff\0"]


@pytest.mark.parametrize(
    "data",
    [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]], [1, [2, [3]], [[4]]], [[], [1, 2, 3, 4]]],
)
def test_only_the_count_of_elements_matters_and_not_how_they_nest(data):
    document = {"inputs": [{"name": "A", "datatype": "INT32", "shape": [2, 2], "data": data}]}
    request, _ = decode_document(document)
    assert request.inputs[0].as_numpy().ravel().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("shape", [[], [0], [3, 0]])
def test_an_empty_shape_ignores_what_data_holds(shape):
    document = {"inputs": [{"name": "A", "datatype": "INT32", "shape": shape, "data": [1, "x", None]}]}
    request, _ = decode_document(document)
    assert request.inputs[0].nbytes == 0


def test_a_binary_size_of_zero_is_an_empty_tensor_even_without_a_header():
    request, _ = decode_document({"inputs": [binary_input("A", 0, shape=[0])]})
    assert request.inputs[0].nbytes == 0


def test_ninety_nine_levels_of_nesting_are_fine():
    data: object = 1
    for _ in range(99):
        data = [data]
    request, _ = decode_document({"inputs": [{"name": "A", "datatype": "INT32", "shape": [1], "data": data}]})
    assert request.inputs[0].nbytes == 4


# Exact refusals: contract http.md sections 6 and 7

NOT_ONE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
REFUSALS = [
    ({}, Internal, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ([], Internal, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ({"inputs": {}}, Internal, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    ({"id": 5, "inputs": []}, Internal, "Unable to parse 'id': attempt to access JSON non-string as string"),
    (
        {"inputs": [{"datatype": "INT32", "shape": [1], "data": [1]}]},
        Internal,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (
        {"inputs": [3]},
        Internal,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (
        {"inputs": [{"name": 1}]},
        Internal,
        "Unable to parse 'name': attempt to access JSON non-string as string",
    ),
    (
        {"inputs": [{"name": "A"}]},
        Internal,
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    (
        {"inputs": [{"name": "A", "datatype": 3}]},
        Internal,
        "Unable to parse 'datatype': attempt to access JSON non-string as string",
    ),
    (
        {"inputs": [{"name": "A", "datatype": "INT32"}]},
        Internal,
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    (one_input(shape="x"), Internal, "Unable to parse 'shape': attempt to access JSON non-array as array"),
    *(
        (
            one_input(shape=shape),
            Internal,
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        )
        for shape in ([-1], [1.0], ["2"], [True], [None], [2, -2])
    ),
    (one_input(), InvalidArgument, NOT_ONE + "no field is set"),
    (
        one_input(data=[1, 2], parameters={"binary_data_size": 8}),
        InvalidArgument,
        NOT_ONE + "set 'data' 'binary_data_size'",
    ),
    (
        one_input(data=[1, 2], parameters={"binary_data_size": 8, "shared_memory_region": "r"}),
        InvalidArgument,
        NOT_ONE + "set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
    (
        one_input(parameters={"binary_data_size": 8, "shared_memory_region": "r"}),
        InvalidArgument,
        NOT_ONE + "set 'binary_data_size' 'shared_memory_region'",
    ),
    (
        one_input(parameters={"binary_data_size": 8}),
        InvalidArgument,
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing "
        "inputs in binary data format",
    ),
    (
        one_input(parameters={"binary_data_size": -8}),
        Internal,
        "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (one_input(data="x"), Internal, "Unable to parse 'data': attempt to access JSON non-array as array"),
    *(
        (
            one_input(datatype=datatype, data=[1.0, 2.0]),
            InvalidArgument,
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input A",
        )
        for datatype in ("FP16", "BF16")
    ),
    (one_input(datatype="INT7", data=[1, 2]), InvalidArgument, "invalid datatype for input A"),
    (
        one_input(data=[1, 2, 3]),
        Internal,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    (
        one_input(datatype="BYTES", data=["a", "b", "c"]),
        Internal,
        "Unable to parse 'data': shape does not match true shape of 'data' field",
    ),
    (one_input(data=[1]), Internal, "Failed to parse 'data' field: shape does not match true shape"),
    (
        one_input(datatype="BYTES", data=["a"]),
        Internal,
        "Failed to parse 'data' field: shape does not match true shape",
    ),
    (
        one_input(datatype="BYTES", data=["a", 1]),
        Internal,
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    *(
        (
            one_input(data=data),
            Internal,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        )
        for data in ([1, 2.0], [1, True], [1, "2"], [1, None], [{}, 1], [1, 2**63], [1.5, 2, 3])
    ),
    *(
        (
            one_input(datatype="UINT8", data=data),
            Internal,
            "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
        )
        for data in ([1, -2], [1, 2.5], [True, 1])
    ),
    (
        one_input(datatype="UINT64", data=[1, 2**64]),
        Internal,
        "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        one_input(datatype="BOOL", data=[True, 1]),
        Internal,
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    *(
        (
            one_input(datatype="FP32", data=data),
            Internal,
            "Unable to parse 'data': attempt to access JSON non-number as double",
        )
        for data in ([1.0, True], ["1.0", 2.0], [None, 1.0])
    ),
    (
        one_input(shape=[2**62, 4], data=[1]),
        InvalidArgument,
        f"invalid shape for input 'A': shape [{2**62},4] causes total element count to exceed maximum size of "
        "9223372036854775807",
    ),
    (
        one_input(shape=[2**62], data=[1]),
        InvalidArgument,
        f"byte size overflow for input 'A': element count ({2**62}) * data type size (4) exceeds maximum allowed "
        "size (9223372036854775807)",
    ),
    (
        one_input(parameters={"shared_memory_region": "r"}),
        NotFound,
        "Unable to find shared memory region: 'r'",
    ),
    (
        one_input(parameters={"shared_memory_region": ["r"]}),
        Internal,
        "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
    ),
]


@pytest.mark.parametrize(("document", "error", "message"), REFUSALS)
def test_a_bad_input_is_refused_in_triton_s_words(document, error, message):
    assert refusal(document, error) == message


PARAMETER_REFUSALS = [
    (
        {"sequence_id": 1.5},
        Internal,
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        {"sequence_id": -1},
        Internal,
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        {"sequence_start": 1},
        Internal,
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"sequence_end": "x"},
        Internal,
        "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"priority": -1},
        Internal,
        "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        {"timeout": "1"},
        Internal,
        "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        {"binary_data_output": 1},
        Internal,
        "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"triton_x": 1},
        InvalidArgument,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    *(
        (
            {"x": value},
            InvalidArgument,
            "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
        )
        for value in (dict[str, int](), list[int](), None)
    ),
    ([], Internal, "Unable to parse 'parameters': attempt to get members for non-object"),
]


@pytest.mark.parametrize(("parameters", "error", "message"), PARAMETER_REFUSALS)
def test_a_bad_request_parameter_is_refused_in_triton_s_words(parameters, error, message):
    assert refusal({**one_input(data=[1, 2]), "parameters": parameters}, error) == message


OUTPUT_REFUSALS = [
    ({}, Internal, "Unable to parse 'outputs': attempt to access JSON non-array as array"),
    ([{}], Internal, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    (
        [{"name": "S", "parameters": {"binary_data": 1}}],
        Internal,
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    ),
    (
        [{"name": "S", "parameters": {"classification": "1"}}],
        Internal,
        "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        [{"name": "S", "parameters": {"shared_memory_region": 1}}],
        Internal,
        "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
    ),
    (
        [{"name": "S", "parameters": {"shared_memory_region": "r", "classification": 1}}],
        InvalidArgument,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        [{"name": "S", "parameters": {"shared_memory_region": "r", "binary_data": True}}],
        InvalidArgument,
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
    (
        [{"name": "S", "parameters": {"shared_memory_region": "r"}}],
        NotFound,
        "Unable to find shared memory region: 'r'",
    ),
]


@pytest.mark.parametrize(("outputs", "error", "message"), OUTPUT_REFUSALS)
def test_a_bad_output_is_refused_in_triton_s_words(outputs, error, message):
    assert refusal({**one_input(data=[1, 2]), "outputs": outputs}, error) == message


@pytest.mark.parametrize(("datatype", "prefix"), [("INT32", "Unable to parse 'data': "), ("BYTES", "")])
@pytest.mark.parametrize("sibling", [[], [1]])
def test_a_hundred_levels_of_nesting_are_too_many(datatype, prefix, sibling):
    data: object = "x" if datatype == "BYTES" else 1
    for _ in range(99):
        data = [data]
    document = one_input(datatype=datatype, shape=[1], data=[data, *sibling])
    expected = f"{prefix}JSON nesting depth exceeds maximum allowed limit (100)"
    assert refusal(document, InvalidArgument) == expected


def test_a_body_shorter_than_its_binary_sizes_says_how_many_bytes_are_missing():
    body, size = framed({"inputs": [binary_input("A", 8), binary_input("B", 8, "FP32")]}, b"x" * 10)
    with pytest.raises(InvalidArgument) as caught:
        decode(body, size)
    assert caught.value.message == "unexpected size for input 'B', expecting 6 additional bytes for model 'm'"


def test_a_body_longer_than_its_binary_sizes_is_refused():
    body, size = framed({"inputs": [binary_input("A", 8)]}, b"x" * 9)
    with pytest.raises(InvalidArgument) as caught:
        decode(body, size)
    assert caught.value.message == "unexpected additional input data for model 'm'"


def test_something_after_the_json_value_in_its_section_is_a_parse_error():
    body, size = framed(one_input(data=[1, 2]), b"x")
    with pytest.raises(Internal, match=r"The document root must not be followed by other values\. at"):
        decode(body, size + 1)


def test_the_leftover_check_comes_before_the_outputs():
    body, size = framed({"inputs": [binary_input("A", 8)], "outputs": [{}]}, b"x" * 9)
    with pytest.raises(InvalidArgument, match="unexpected additional input data"):
        decode(body, size)


@pytest.mark.parametrize("datatype", ["INT7", ""])
def test_a_binary_input_of_no_known_datatype_gets_the_core_s_complaint(datatype):
    body, size = framed({"id": "r9", "inputs": [binary_input("A", 1, datatype)]}, b"x")
    with pytest.raises(InvalidArgument) as caught:
        decode(body, size)
    expected = "[request id: r9] inference input 'A' data-type is '<invalid>', but model 'm' expects 'INT32'"
    assert caught.value.message == expected


def test_an_unknown_input_of_no_known_datatype_is_unknown_first():
    body, size = framed({"inputs": [binary_input("Z", 1, "INT7")]}, b"x")
    with pytest.raises(InvalidArgument, match="unexpected inference input 'Z' for model 'm'"):
        decode(body, size)


# Sizes


def test_a_json_text_over_the_limit_is_refused():
    body = json.dumps(one_input(data=[1, 2])).encode()
    with pytest.raises(InvalidArgument) as caught:
        decode(body, limit=10)
    assert caught.value.message == (
        f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of 10 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def test_binary_data_is_not_limited():
    body, size = framed({"inputs": [binary_input("A", 4096)]}, b"x" * 4096)
    request, _ = decode(body, size, limit=200)
    assert request.inputs[0].nbytes == 4096


@pytest.mark.parametrize(
    ("datatype", "data", "nbytes"), [("FP64", [0] * 300, 2400), ("BYTES", ["x"] * 300, 1500)]
)
def test_a_json_tensor_over_the_limit_is_refused(datatype, data, nbytes):
    document = one_input(datatype=datatype, shape=[300], data=data)
    with pytest.raises(InvalidArgument) as caught:
        decode(json.dumps(document, separators=(",", ":")).encode(), limit=1499)
    assert caught.value.message == (
        f"JSON input 'A' has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of 1499 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize(
    ("value", "size"), [(b"0", 0), (b"185", 185), (b" +12 ", 12), (b"00000000000007", 7)]
)
def test_the_header_length_is_a_number_within_the_body(value, size):
    assert parse_json_size(value, 200) == size


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (b"", "Unable to parse Inference-Header-Content-Length, got: "),
        (b"1_0", "Unable to parse Inference-Header-Content-Length, got: 1_0"),
        (b"201", "inference header size should be in range (0, 200), got: 201"),
        (b"-1", "inference header size should be in range (0, 200), got: -1"),
        (
            b"99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            "got: 99999999999",
        ),
        (
            b"-2147483649",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            "got: -2147483649",
        ),
    ],
)
def test_a_bad_header_length_is_refused_in_triton_s_words(value, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_json_size(value, 200)
    assert caught.value.message == message


def test_a_header_length_of_thousands_of_digits_is_out_of_range():
    with pytest.raises(InvalidArgument, match="out of range"):
        parse_json_size(b"9" * 9000, 200)


# Raw-binary requests


def raw(body, inputs, *, max_batch_size=8, limit=1 << 20):
    return decode(body, 0, spec=make_spec("m", inputs=inputs, max_batch_size=max_batch_size), limit=limit)


def test_a_raw_body_is_the_only_input_with_its_shape_deduced():
    request, plan = raw(b"\1" * 24, [("X", DataType.FP32, (2, -1))])
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("X", DataType.FP32, (1, 2, 3))
    assert bytes(tensor.data) == b"\1" * 24
    assert plan is BINARY_OUTPUTS


def test_a_raw_body_for_a_model_without_batches_has_no_batch_dimension():
    request, _ = raw(b"\1" * 8, [("X", DataType.INT64, (1,))], max_batch_size=0)
    assert request.inputs[0].shape == (1,)


def test_a_raw_body_of_bytes_is_one_element():
    request, _ = raw(b"hello", [("X", DataType.BYTES, (1,))])
    assert request.inputs[0].as_numpy().tolist() == [[b"hello"]]


PREFIX = "[request id: <id_unknown>] "


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [("X", DataType.FP32, (1,)), ("Y", DataType.FP32, (1,))],
            PREFIX
            + "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model "
            "configuration",
        ),
        (
            [("X", DataType.FP32, (-1, 2, -1))],
            PREFIX + "The shape of the raw input 'X' can not be deduced because there are more than one "
            "variable-sized dimension",
        ),
        (
            [("X", DataType.BYTES, (2,))],
            PREFIX + "For BYTE datatype raw input 'X', the model must have input shape [1]",
        ),
    ],
)
def test_a_raw_body_that_can_not_be_understood_is_refused(inputs, message):
    with pytest.raises(InvalidArgument) as caught:
        raw(b"\1" * 8, inputs)
    assert caught.value.message == message


def test_a_raw_body_over_the_limit_is_refused():
    with pytest.raises(InvalidArgument) as caught:
        raw(b"\1" * 8, [("X", DataType.FP32, (-1,))], limit=7)
    assert caught.value.message == (
        "Raw input has a byte_size (8 bytes) that exceeds the maximum allowed value of 7 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


# Header forwarding


def test_headers_whose_names_match_anywhere_are_forwarded_as_received():
    pattern = re.compile("my_|agent", re.IGNORECASE)
    headers = [(b"X-My_Key", b"1"), (b"User-Agent", b"curl"), (b"Host", b"h")]
    assert forward_headers(headers, pattern) == {"X-My_Key": "1", "User-Agent": "curl"}
    assert forward_headers(headers, re.compile("none")) is None


def test_credentials_are_not_forwarded_where_they_are_the_servers_matter():
    headers = [(b"Authorization", b"Bearer k.s"), (b"x-authorization-note", b"1")]
    forwarded = forward_headers(headers, re.compile("authorization", re.IGNORECASE), credentials=False)
    assert forwarded == {"x-authorization-note": "1"}
    assert forward_headers(headers[:1], re.compile(".*")) == {"Authorization": "Bearer k.s"}


@pytest.mark.parametrize("name", ["sequence_id", "timeout", "headers", "triton_x"])
def test_reserved_header_names_are_not_forwarded(name):
    with pytest.raises(InvalidArgument) as caught:
        forward_headers([(name.encode(), b"1")], re.compile(".*"))
    assert caught.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


# Anything at all

names = st.text(max_size=4)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "inputs",
                    "outputs",
                    "parameters",
                    "name",
                    "datatype",
                    "shape",
                    "data",
                    "binary_data_size",
                ]
            )
            | names,
            children,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@given(documents, st.binary(max_size=16))
def test_whatever_the_client_sends_is_decoded_or_refused(document, tail):
    head = json.dumps(document).encode()
    try:
        request, _ = decode(head + tail, len(head))
    except (Internal, InvalidArgument, Unsupported):
        return
    assert sum(tensor.nbytes for tensor in request.inputs) >= len(tail)


# In slices


def told(decoding, body, size):
    """What the request in `body` says, or how it is refused."""
    try:
        request, plan = decoding(body, size)
    except TritiumError as refused:
        return type(refused), refused.message
    inputs = [(each.name, each.datatype, list(each.shape), bytes(each.data)) for each in request.inputs]
    return inputs, request.id, request.parameters, request.requested_outputs, plan


@given(documents, st.binary(max_size=16))
def test_a_request_that_is_read_in_slices_says_what_it_says_otherwise(document, tail):
    head = json.dumps(document).encode()
    assert told(decode_in_slices, head + tail, len(head)) == told(decode, head + tail, len(head))


@pytest.mark.parametrize("framed_json", [True, False])
@pytest.mark.parametrize(
    "members",
    [
        {"shape": [3], "datatype": "INT32", "data": [1, 2, 3]},
        {"data": [1, 2, 3], "shape": [3], "datatype": "INT32"},
        {"data": [[1, 2], [3]], "datatype": "INT32", "shape": [3]},
        {"datatype": "INT32", "data": [1.5], "shape": [1]},
        {"data": ["a", "bc"], "datatype": "BYTES", "shape": [2]},
        {"data": ["a", 1], "datatype": "BYTES", "shape": [2]},
        {"shape": [2], "datatype": "FP64", "data": [1, 2], "name": "B"},
        {"shape": [0], "datatype": "FP32", "data": []},
        {"shape": [0], "datatype": "FP32", "data": ["a"]},
        {"shape": ["a"], "datatype": "FP32", "data": [1]},
        {"shape": "a", "datatype": "FP32", "data": [1]},
        {"shape": [2**40], "datatype": "FP32", "data": [1]},
        {"shape": [1], "datatype": "FP16", "data": [1]},
        {"shape": [1], "datatype": "none", "data": [1]},
        {"shape": [1], "datatype": "INT32", "data": "long"},
        {"shape": [1] * 1025, "datatype": "INT32", "data": [1]},
        {"shape": [1], "datatype": "INT32", "data": [1], "name": "n" * 5000},
    ],
)
def test_members_of_an_input_come_in_any_order_also_in_slices(members, framed_json):
    document = {"inputs": [{"name": "A", **members}, 7]}, {"inputs": [{"name": "A", **members}]}
    for each in document:
        body = json.dumps(each).encode()
        size = len(body) if framed_json else None
        assert told(decode_in_slices, body, size) == told(decode, body, size)


@pytest.mark.parametrize(
    "document", [[1], "a", {"inputs": ["a"]}, {"inputs": "a"}, {**one_input(data=[1, 2]), "outputs": ["a"]}]
)
def test_what_is_no_request_is_refused_in_slices_as_otherwise(document):
    body = json.dumps(document).encode()
    assert told(decode_in_slices, body, None) == told(decode, body, None)
    assert told(decode, body, None)[0] is Internal


@pytest.mark.parametrize(
    ("datatype", "dtype"), [("INT32", np.int32), ("FP32", np.float32), ("INT64", np.int64)]
)
@pytest.mark.parametrize("names_first", [True, False])
def test_a_long_array_is_read_in_slices(datatype, dtype, names_first):
    data = list(range(30_000))
    declared = {"name": "A", "datatype": datatype, "shape": [30_000]}
    members = {**declared, "data": data} if names_first else {"data": data, **declared}
    request, _ = decode_in_slices(json.dumps({"inputs": [members]}).encode())
    assert request.inputs[0].as_numpy().tolist() == np.arange(30_000, dtype=dtype).tolist()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_float_data_arrives_unchanged(values):
    document = {"inputs": [{"name": "B", "datatype": "FP32", "shape": [len(values)], "data": values}]}
    request, _ = decode_document(document)
    assert request.inputs[0].as_numpy().tolist() == values
