"""Tensors, datatypes and errors as they travel: nothing is rounded, nothing malformed gets through."""

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.datatypes import BY_CONFIG_NAME, BY_NUMBER, BY_PROTOCOL_NAME, DataType, from_numpy_dtype
from actors.values.errors import ErrorCode, Internal, InvalidArgument, TritiumError
from actors.values.events import Event
from actors.values.requests import InferResponse, release
from actors.values.shapes import client_shape
from actors.values.specs import OutputSpec
from actors.values.tensors import Tensor, element_count, pack_bytes, packed_row_bounds, unpack_bytes
from tests.support.ports import waiting_request

FIXED = [datatype for datatype in DataType if datatype is not DataType.BYTES]


@pytest.mark.parametrize("datatype", FIXED, ids=str)
def test_every_bit_pattern_survives_the_way_through_numpy(datatype):
    if datatype is DataType.BOOL:
        raw = bytes([0, 1, 1, 0, 1, 0])
    else:
        raw = np.random.default_rng(1).bytes(6 * datatype.size)
    array = Tensor("x", datatype, (2, 3), raw).as_numpy()
    assert array.shape == (2, 3)
    assert array.dtype == datatype.numpy
    again = Tensor.from_numpy("x", array, datatype)
    assert bytes(again.data) == raw
    assert (again.name, again.datatype, tuple(again.shape), again.nbytes) == ("x", datatype, (2, 3), len(raw))


def test_all_fourteen_datatypes_are_found_by_each_of_their_names():
    assert len(DataType) == 14
    for datatype in DataType:
        assert BY_PROTOCOL_NAME[str(datatype)] is datatype
        assert BY_CONFIG_NAME[datatype.config_name] is datatype
        assert BY_NUMBER[datatype.number] is datatype
    assert DataType.BYTES.config_name == "TYPE_STRING"


@pytest.mark.parametrize("datatype", [each for each in FIXED if each is not DataType.BF16], ids=str)
def test_a_numpy_dtype_names_its_datatype_in_either_byte_order(datatype: Any):
    for each in (datatype.numpy, datatype.numpy.newbyteorder(">")):
        assert from_numpy_dtype(each) == datatype


@pytest.mark.parametrize("dtype", ["O", "S5", "U5"])
def test_object_and_string_arrays_are_bytes(dtype):
    assert from_numpy_dtype(np.dtype(dtype)) is DataType.BYTES


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "V4", "f16"])
def test_a_dtype_without_a_counterpart_is_refused_by_name(dtype):
    array = np.zeros(2, dtype)
    assert from_numpy_dtype(array.dtype) is None
    with pytest.raises(InvalidArgument, match=f"tensor 'x': numpy dtype {array.dtype}".replace("[", r"\[")):
        Tensor.from_numpy("x", array)


def test_big_endian_and_strided_arrays_are_put_in_order():
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    tensor = Tensor.from_numpy("x", array)
    assert bytes(tensor.data) == struct.pack("<6i", 0, 2, 4, 6, 8, 10)


def test_a_contiguous_array_is_not_copied():
    array = np.arange(4, dtype=np.int32)
    tensor = Tensor.from_numpy("x", array)
    array[0] = 7
    assert tensor.as_numpy()[0] == 7


def test_bf16_is_never_inferred_and_keeps_its_bits():
    bits = np.array([0x3F80, 0x7FC1, 0x0001], np.uint16)
    assert Tensor.from_numpy("x", bits).datatype is DataType.UINT16
    tensor = Tensor.from_numpy("x", bits, DataType.BF16)
    assert tensor.datatype is DataType.BF16
    assert tensor.as_numpy().tolist() == bits.tolist()


def test_fp16_is_exact_down_to_subnormals_and_nan_payloads():
    bits = np.array([0x0001, 0x03FF, 0x7BFF, 0xFC00, 0x7E01], np.uint16)
    tensor = Tensor("x", DataType.FP16, (5,), bits.tobytes())
    assert tensor.as_numpy().view(np.uint16).tolist() == bits.tolist()
    assert math.isnan(tensor.as_numpy()[-1])


def test_scalars_and_empty_tensors_have_their_shapes():
    assert Tensor("x", DataType.FP32, (), bytes(4)).as_numpy().shape == ()
    assert Tensor("x", DataType.FP32, (0, 7), b"").as_numpy().shape == (0, 7)
    assert Tensor("x", DataType.BYTES, (0,), b"").as_numpy().shape == (0,)
    assert element_count(()) == 1


@pytest.mark.parametrize("size", [0, 4, 7, 9])
def test_data_that_does_not_fit_the_shape_is_refused(size):
    with pytest.raises(InvalidArgument, match=rf"FP32\[2\] takes 8 bytes, got {size}"):
        Tensor("x", DataType.FP32, (2,), bytes(size)).as_numpy()


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_packed_bytes_come_back_as_they_went(elements):
    packed = pack_bytes(elements)
    assert unpack_bytes(packed, "x", len(elements)) == elements
    tensor = Tensor("x", DataType.BYTES, (len(elements),), packed)
    assert tensor.as_numpy().tolist() == elements
    assert bytes(Tensor.from_numpy("x", tensor.as_numpy()).data) == packed


def test_elements_that_are_not_bytes_are_packed_as_their_text():
    assert unpack_bytes(pack_bytes(["é", 7, b"\xff"]), "x", 3) == ["é".encode(), b"7", b"\xff"]


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=6), st.data())
def test_cut_packed_bytes_are_refused_and_never_read_beyond_their_end(elements, data):
    packed = pack_bytes(elements)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(InvalidArgument):
        unpack_bytes(cut, "x", len(elements))
    with pytest.raises(InvalidArgument):
        packed_row_bounds(cut, "x", len(elements), 1)


@given(st.binary(max_size=40), st.integers(0, 5))
def test_any_bytes_are_either_unpacked_whole_or_refused(data, count):
    try:
        elements = unpack_bytes(data, "x", count)
    except InvalidArgument:
        return
    assert len(elements) == count
    assert pack_bytes(elements) == data


@pytest.mark.parametrize(
    ("packed", "count", "text"),
    [
        (b"\xff\xff\xff\xffab", 1, "cut short at element 0"),
        (pack_bytes([b"a", b"b"]), 1, "holds 2 elements, its shape 1"),
        (pack_bytes([b"a", b"b"]), 3, "holds 2 elements, its shape 3"),
    ],
    ids=["a length that claims gigabytes", "too many", "too few"],
)
def test_packed_elements_that_are_not_as_many_or_as_long_as_said_are_refused(packed, count, text):
    with pytest.raises(InvalidArgument, match=text):
        unpack_bytes(packed, "x", count)


def test_rows_of_packed_bytes_are_found_where_they_begin():
    packed = pack_bytes([b"a", b"", b"ccc", b"dd"])
    assert packed_row_bounds(packed, "x", 2, 2) == [0, 9, 22]
    with pytest.raises(InvalidArgument, match="1 bytes after its last row"):
        packed_row_bounds(packed + b"x", "x", 2, 2)


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_an_error_class_of_its_own(code):
    error = TritiumError.of(code, "what happened")
    assert error.code is code
    assert error.message == str(error) == "what happened"
    prefix = "<invalid code>" if code is ErrorCode.CANCELLED else code.value
    assert error.render() == f"{prefix}: what happened"
    assert type(error) is not TritiumError


def test_events_are_their_names():
    assert str(Event.MODEL_READY) == "model_ready"
    assert len({str(event) for event in Event}) == len(Event)


def test_a_response_is_released_once():
    released = []
    response = InferResponse(model_name="m", model_version=1)
    response.release()
    response.on_release(lambda: released.append(1))
    assert response.leased
    response.release()
    response.release()
    assert released == [1]
    assert not response.leased


def test_a_request_names_itself_in_error_texts():
    assert waiting_request().prefix == "[request id: <id_unknown>] "
    named = waiting_request("7")
    assert named.prefix == "[request id: 7] "
    assert repr(named) == "<InferRequest 7 of 'add', 1 rows>"


def test_a_request_made_for_several_has_the_time_of_the_most_patient_one():
    parents = [waiting_request(deadline=at) for at in (3.0, 5.0)]
    parents[0].tenant, parents[0].synthetic = "gold", True
    made = waiting_request()
    made.inherit(parents)
    assert (made.deadline, made.tenant, made.synthetic) == (5.0, "gold", False)


def test_an_output_of_another_rank_than_configured_keeps_its_shape():
    declared = OutputSpec(name="O", datatype=DataType.FP32, dims=(4,), reshape=(2, 2))
    assert list(client_shape((1, 2, 2), declared, batches=True)) == [1, 4]
    assert client_shape((1, 4), declared, batches=True) == (1, 4)
    plain = OutputSpec(name="O", datatype=DataType.FP32, dims=(4,))
    assert client_shape((1, 2), plain, batches=True) == (1, 2)


def test_a_part_that_is_not_wanted_gives_its_memory_back():
    given: list[str] = []
    response = InferResponse(model_name="m", model_version=1, id="", outputs=[])
    response.on_release(lambda: given.append("back"))
    for part in (response, response, Internal("no")):
        release(part)
    assert given == ["back"]
