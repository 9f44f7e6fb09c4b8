import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actors.seams.steps import at_once
from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, Unsupported
from actors.values.requests import InferResponse
from actors.values.tensors import Tensor, pack_bytes
from protocols.kserve.long_answers import encode_long, is_long
from protocols.kserve.meanings import BINARY_OUTPUTS, JSON_OUTPUTS, OutputChoice, OutputPlan
from protocols.kserve.requests import Arrival, InferDecoder
from protocols.kserve.responses import COPIED, encode
from tests.protocols.fakes import make_spec, tensor
from tests.support.ports import Port

SPEC = make_spec("m", labels=("cat", "dog"))


def response(*outputs, request_id="", **parameters):
    return InferResponse(
        model_name="m", model_version=3, id=request_id, outputs=outputs, parameters=parameters or None
    )


def named(**choices):
    return OutputPlan(False, {name: OutputChoice(*choice) for name, choice in choices.items()})


def joined(body):
    return b"".join(body.buffers)


def test_json_outputs_are_flat_arrays():
    body = encode(response(tensor("S", np.array([[1, 2], [3, 4]], dtype=np.int32))), JSON_OUTPUTS, SPEC)
    assert json.loads(joined(body)) == {
        "model_name": "m",
        "model_version": "3",
        "outputs": [{"name": "S", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]}],
    }
    assert body.json_size is None
    assert body.size == len(joined(body))


def test_binary_outputs_follow_the_json_text_in_order():
    a, b = np.arange(4, dtype=np.float32), np.arange(2, dtype=np.int64)
    body = encode(response(tensor("S", a), tensor("D", b), request_id="r1"), BINARY_OUTPUTS, SPEC)
    whole = joined(body)
    assert whole[body.json_size :] == a.tobytes() + b.tobytes()
    assert json.loads(whole[: body.json_size]) == {
        "id": "r1",
        "model_name": "m",
        "model_version": "3",
        "outputs": [
            {"name": "S", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}},
            {"name": "D", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}},
        ],
    }
    assert not body.borrowed


def test_outputs_come_each_in_the_form_that_was_asked_for():
    outputs = [tensor(name, np.array([1.0], dtype=np.float64)) for name in ("S", "D", "extra")]
    body = encode(response(*outputs), named(S=(True, 0), D=(False, 0)), SPEC)
    s, d = json.loads(joined(body)[: body.json_size])["outputs"]
    assert s["parameters"] == {"binary_data_size": 8}
    assert d["data"] == [1.0]


def test_an_output_in_shared_memory_has_no_data_in_the_answer():
    plan = named(S=OutputChoice(False, 0, True), D=OutputChoice(True, 0))
    placed = Tensor("S", DataType.FP32, (1, 2), b"")
    body = encode(response(placed, tensor("D", np.array([1], np.float32))), plan, SPEC)
    whole = joined(body)
    outputs = json.loads(whole[: body.json_size])["outputs"]
    assert outputs[0] == {"name": "S", "datatype": "FP32", "shape": [1, 2]}
    assert whole[body.json_size :] == np.array([1], np.float32).tobytes()
    # So it is in an answer that is made in slices.
    long = tensor("D", np.arange(10_000, dtype=np.float32))
    plan = named(S=OutputChoice(False, 0, True), D=OutputChoice(False, 0), Z=OutputChoice(False, 0, True))
    answer = response(placed, long, Tensor("Z", DataType.BYTES, (3,), b""))
    assert is_long(answer, plan)
    in_slices = at_once(encode_long(answer, plan, SPEC))
    assert joined(in_slices) == joined(encode(answer, plan, SPEC))


def test_a_binary_output_without_bytes_makes_no_binary_body():
    body = encode(response(tensor("S", np.empty((0, 4), dtype=np.float32))), BINARY_OUTPUTS, SPEC)
    assert body.json_size is None
    assert json.loads(joined(body))["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_small_answers_are_copied_and_large_ones_borrow_the_model_s_memory():
    small = memoryview(bytearray(COPIED))
    large = memoryview(bytearray(COPIED + 1))
    outputs = [Tensor("S", DataType.UINT8, (len(data),), data) for data in (small, large)]
    copied = encode(response(outputs[0]), BINARY_OUTPUTS, SPEC)
    borrowed = encode(response(outputs[1]), BINARY_OUTPUTS, SPEC)
    assert not copied.borrowed
    assert borrowed.borrowed
    large[-1] = 7
    assert joined(borrowed)[-1] == 7
    assert borrowed.size == len(joined(borrowed))


def test_fp32_is_widened_to_double():
    body = encode(response(tensor("S", np.array([0.1], dtype=np.float32))), JSON_OUTPUTS, SPEC)
    assert b"0.10000000149011612" in joined(body)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_that_are_none_are_written_as_bare_words(dtype):
    body = encode(
        response(tensor("S", np.array([np.nan, np.inf, -np.inf, 1], dtype=dtype))), JSON_OUTPUTS, SPEC
    )
    assert joined(body).endswith(b'"data":[NaN,Infinity,-Infinity,1.0]}]}')


def test_booleans_are_json_booleans():
    body = encode(response(tensor("S", np.array([True, False]))), JSON_OUTPUTS, SPEC)
    assert json.loads(joined(body))["outputs"][0]["data"] == [True, False]


def test_bytes_are_strings_whether_utf_8_or_not():
    good = encode(response(tensor("S", np.array(["é\n", "b"], dtype=object))), JSON_OUTPUTS, SPEC)
    assert json.loads(joined(good))["outputs"][0]["data"] == ["é\n", "b"]
    bad = Tensor("S", DataType.BYTES, (2,), pack_bytes([b'\xff"', b"ok"]))
    assert b'"data":["\xff\\"","ok"]' in joined(encode(response(bad), JSON_OUTPUTS, SPEC))


def test_unaligned_outputs_are_read_all_the_same():
    data = memoryview(b"x" + np.array([1, 2], dtype=np.int64).tobytes())[1:]
    body = encode(response(Tensor("S", DataType.INT64, (2,), data)), JSON_OUTPUTS, SPEC)
    assert json.loads(joined(body))["outputs"][0]["data"] == [1, 2]


def test_response_parameters_are_written_when_there_are_any():
    body = encode(response(flag=True, count=3, rate=0.5, text="x", odd=float("inf")), JSON_OUTPUTS, SPEC)
    assert b'"parameters":{"flag":true,"count":3,"rate":0.5,"text":"x","odd":Infinity}' in joined(body)
    assert b"parameters" not in joined(encode(response(), JSON_OUTPUTS, SPEC))


def test_bytes_parameters_are_refused():
    with pytest.raises(Unsupported) as caught:
        encode(response(blob=b"x"), JSON_OUTPUTS, SPEC)
    assert caught.value.message == (
        "Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported"
    )


def test_an_id_that_is_not_utf_8_comes_back_as_it_was():
    body = b'{"id":"\xff","inputs":[]}'
    request, _ = InferDecoder().decode(body, None, SPEC, Arrival(-1, Port(), 0.0))
    assert b'"id":"\xff"' in joined(encode(response(request_id=request.id), JSON_OUTPUTS, SPEC))


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_precision_outputs_are_refused_as_json_and_sent_as_binary(datatype):
    output = Tensor("S", datatype, (2,), b"\0\1\2\3")
    with pytest.raises(InvalidArgument) as caught:
        encode(response(output), JSON_OUTPUTS, SPEC)
    assert caught.value.message == (
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    )
    body = encode(response(output), BINARY_OUTPUTS, SPEC)
    assert joined(body)[body.json_size :] == b"\0\1\2\3"


def test_an_output_that_contradicts_its_shape_is_the_server_s_fault():
    with pytest.raises(Internal) as caught:
        encode(response(Tensor("S", DataType.FP32, (3,), b"\0" * 8)), JSON_OUTPUTS, SPEC)
    assert caught.value.message == (
        "Failed to write 'data' field: output tensor shape does not match size of output for 'S'"
    )
    with pytest.raises(Internal) as caught:
        encode(response(Tensor("S", DataType.BYTES, (2,), pack_bytes(["a"]))), JSON_OUTPUTS, SPEC)
    assert caught.value.message == "output tensor shape does not match size of output for 'S'"


# Classification


def classes(values, count, *, binary=False, spec=SPEC, dtype=np.float32):
    body = encode(response(tensor("S", np.array(values, dtype=dtype))), named(S=(binary, count)), spec)
    (output,) = json.loads(joined(body)[: body.json_size])["outputs"]
    return output


def test_an_output_becomes_its_best_classes_with_labels():
    output = classes([[0.25, 1.5, -3.0], [3.0, 2.0, 3.0]], 2)
    assert output == {
        "name": "S",
        "datatype": "BYTES",
        "shape": [2, 2],
        "data": ["1.500000:1:dog", "0.250000:0:cat", "3.000000:0:cat", "3.000000:2"],
    }


def test_integers_are_written_plainly_and_no_more_classes_than_there_are():
    output = classes([[-128, 127]], 5, dtype=np.int8)
    assert output["data"] == ["127:1:dog", "-128:0:cat"]
    assert output["shape"] == [1, 2]


def test_unsigned_elements_sort_as_what_they_are():
    assert classes([[0, 2**64 - 1, 1]], 3, dtype=np.uint64)["data"] == [
        f"{2**64 - 1}:1:dog",
        "1:2",
        "0:0:cat",
    ]


def test_nan_is_the_last_of_all():
    assert [entry.split(":")[1] for entry in classes([[np.nan, -1e9, 5.0]], 3)["data"]] == ["2", "1", "0"]


def test_a_model_without_batches_has_no_batch_dimension_in_its_classes():
    output = classes([1.0, 2.0], 1, spec=make_spec("m", max_batch_size=0))
    assert output["shape"] == [1]
    assert output["data"] == ["2.000000:1"]


def test_the_index_runs_over_the_flattened_item():
    assert classes([[[0.0, 1.0], [9.0, 2.0]]], 1)["data"] == ["9.000000:2"]


def test_classes_can_be_binary():
    output = classes([[1.0, 2.0]], 1, binary=True)
    assert output["parameters"] == {"binary_data_size": 4 + len("2.000000:1:dog")}


@pytest.mark.parametrize("datatype", [DataType.BOOL, DataType.FP16, DataType.BF16, DataType.BYTES])
def test_some_datatypes_have_no_classes(datatype):
    with pytest.raises(InvalidArgument) as caught:
        encode(response(Tensor("S", datatype, (1, 1), b"\0\0")), named(S=(False, 1)), SPEC)
    assert (
        caught.value.message == f"class result not available for output due to unsupported type '{datatype}'"
    )


def test_too_many_elements_have_no_classes():
    with pytest.raises(InvalidArgument) as caught:
        classes(np.zeros((1, 1_000_001), dtype=np.uint8), 1, dtype=np.uint8)
    assert caught.value.message == "classification output tensor too large"


def test_a_classified_output_that_contradicts_its_shape_is_the_server_s_fault():
    with pytest.raises(Internal, match="output tensor shape does not match size of output for 'S'"):
        encode(response(Tensor("S", DataType.FP32, (1, 3), b"\0" * 8)), named(S=(False, 1)), SPEC)


@given(
    hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-3, 3, width=16) | st.just(np.nan)),
    st.integers(1, 60),
)
def test_the_best_classes_are_those_of_a_plain_sort(values, count):
    data = classes(values[None], count)["data"]
    ranked = sorted(range(len(values)), key=lambda i: (-np.nan_to_num(values[i], nan=-np.inf), i))
    assert [int(entry.split(":")[1]) for entry in data] == ranked[:count]


# Round trips

FIXED = [member for member in DataType if member not in (DataType.BYTES, DataType.FP16, DataType.BF16)]


@st.composite
def tensors(draw):
    datatype = draw(st.sampled_from([*FIXED, DataType.BYTES]))
    shape = draw(hnp.array_shapes(max_dims=3, max_side=4))
    if datatype is DataType.BYTES:
        count = int(np.prod(shape))
        elements = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        return Tensor("S", datatype, shape, pack_bytes(elements))
    array = draw(hnp.arrays(datatype.numpy, shape))
    return Tensor.from_numpy("S", array, datatype)


@given(tensors(), st.booleans())
def test_what_is_encoded_as_an_output_decodes_as_an_input(output, binary):
    body = encode(response(output), BINARY_OUTPUTS if binary else JSON_OUTPUTS, SPEC)
    whole = joined(body)
    head = whole[: body.json_size].replace(b'"outputs":', b'"inputs":')
    size = len(head) if body.json_size is not None else None
    request, _ = InferDecoder().decode(
        head + (whole[body.json_size :] if body.json_size is not None else b""),
        size,
        SPEC,
        Arrival(-1, Port(), 0.0),
    )
    (tensor,) = request.inputs
    assert tensor.datatype is output.datatype
    assert list(tensor.shape) == list(output.shape)
    if output.datatype is DataType.BYTES or binary:
        assert bytes(tensor.data) == bytes(output.data)
    else:  # NaNs keep no payload in JSON
        np.testing.assert_array_equal(tensor.as_numpy(), output.as_numpy())
