import math
from collections.abc import Generator

import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc._utils import _get_inference_request

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, NotFound, Unsupported
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START
from actors.values.tensors import pack_bytes
from protocols.grpc.codec.infer_meaning import ALL_OUTPUTS
from protocols.grpc.codec.infer_request import InferDecoder
from protocols.grpc.codec.protobuf import MAX_FIELDS, delimited, varint
from protocols.grpc.codec.typed_contents import MOST_REST, UNPACKED, Piece, packing_lifted
from protocols.kserve.proto.grpc_service_pb2 import InferParameter, InferTensorContents, ModelInferRequest
from tests.protocols.fakes import make_spec
from tests.support.examples import examples
from tests.support.ports import Port

SPEC = make_spec("m", inputs=[("A", DataType.INT32, (-1,)), ("B", DataType.FP32, (-1,))])


def decode(message, *, spec=SPEC, decoder=None, forwarded=None):
    decoder = decoder or InferDecoder()
    if not isinstance(message, (bytes, bytearray, memoryview)):
        message = message.SerializeToString()
    target = decoder.peek(message)
    return decoder.decode(
        target, spec, requested_version=-1, reply=Port(), accepted_at=3.5, forwarded=forwarded
    )


def refusal(message, error=InvalidArgument, **options):
    """The text with which `message` is refused: the same whether or not something is remembered."""
    decoder = InferDecoder()
    texts = []
    for _ in range(2):
        with pytest.raises(error) as caught:
            decode(message, decoder=decoder, **options)
        assert type(caught.value) is error
        texts.append(caught.value.message)
    assert texts[0] == texts[1]
    return texts[0]


def make(*raw, request_id="r", inputs=(("A", "INT32", (2,)),), **fields):
    message = ModelInferRequest(model_name="m", id=request_id, raw_input_contents=raw, **fields)
    for name, datatype, shape in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
    return message


def typed(datatype, shape=(2,), raw=(), **contents):
    message = make(*raw, inputs=[("A", datatype, shape)])
    message.inputs[0].contents.CopyFrom(InferTensorContents(**contents))
    return message


def with_parameter(key, **choice):
    message = make(b"\1" * 8)
    message.parameters[key].CopyFrom(InferParameter(**choice))
    return message


# What a good request becomes


def test_raw_inputs_become_tensors_over_the_message():
    message = bytearray(
        make(
            b"\1" * 8, b"\2" * 4, inputs=[("A", "INT32", (2,)), ("B", "FP32", (1,))], model_version="3"
        ).SerializeToString()
    )
    decoder = InferDecoder()
    target = decoder.peek(message)
    assert (target.model_name, target.model_version, target.id) == ("m", "3", "r")
    request, plan = decoder.decode(
        target, SPEC, requested_version=3, reply=Port(), accepted_at=3.5, deadline=9.0
    )
    assert (request.model_name, request.requested_version, request.id) == ("m", 3, "r")
    assert (request.accepted_at, request.deadline) == (3.5, 9.0)
    assert [(t.name, t.datatype, t.shape) for t in request.inputs] == [
        ("A", DataType.INT32, (2,)),
        ("B", DataType.FP32, (1,)),
    ]
    assert plan is ALL_OUTPUTS
    assert request.parameters is None
    message[-1] = 7
    assert bytes(request.inputs[1].data) == b"\2\2\2\7"


def test_a_request_without_a_deadline_has_time_without_end():
    request, _ = decode(make(b"\1" * 8))
    assert request.deadline == math.inf


def test_messages_that_differ_in_ids_and_tensors_get_their_own():
    decoder = InferDecoder()
    answers = []
    for request_id, byte in (("a", b"\1"), ("bbbb", b"\2"), ("", b"\3"), ("ü", b"\4"), ("x" * 200, b"\5")):
        request, _ = decode(make(byte * 8, request_id=request_id), decoder=decoder)
        answers.append((request.id, bytes(request.inputs[0].data)))
    assert answers == [
        ("a", b"\1" * 8),
        ("bbbb", b"\2" * 8),
        ("", b"\3" * 8),
        ("ü", b"\4" * 8),
        ("x" * 200, b"\5" * 8),
    ]


def test_tensors_of_any_size_are_cut_right():
    decoder = InferDecoder()
    for size in (0, 1, 127, 128, 16383, 16384, 2_097_151, 2_097_152):
        request, _ = decode(
            make(b"x" * size, b"y" * 3, inputs=[("A", "UINT8", (size,)), ("B", "UINT8", (3,))])
        )
        again, _ = decode(make(b"x" * size, b"y" * 3), decoder=decoder)
        assert [tensor.nbytes for tensor in request.inputs] == [size, 3]
        assert again.inputs[0].nbytes == size


def test_the_same_shapes_for_different_models_and_versions_are_told_apart():
    decoder = InferDecoder()
    for _ in range(2):
        for name, version in (("m", ""), ("m", "1"), ("n", "1"), ("", ""), ("m" * 200, ""), ("m", "1" * 200)):
            message = make(b"\1" * 8, model_version=version)
            message.model_name = name
            target = decoder.peek(message.SerializeToString())
            assert (target.model_name, target.model_version) == (name, version)


def test_shapes_that_alternate_are_told_apart():
    decoder = InferDecoder()
    for _ in range(3):
        for count in (1, 2, 3):
            request, _ = decode(make(b"\1" * 4 * count, inputs=[("A", "INT32", (count,))]), decoder=decoder)
            assert request.inputs[0].shape == (count,)


def test_a_request_that_says_more_than_the_last_one_is_read_anew():
    decoder = InferDecoder()
    short = make(b"\1" * 8)
    decode(short, decoder=decoder)
    longer = make(b"\1" * 8)
    longer.outputs.add(name="S")
    request, plan = decode(longer, decoder=decoder)
    assert request.requested_outputs == ("S",)
    assert plan.classes == {"S": 0}
    request, _ = decode(short, decoder=decoder)
    assert request.requested_outputs == ()


def test_thousands_of_different_requests_do_not_confuse_the_decoder():
    decoder = InferDecoder()
    for number in range(1500):
        message = make(b"\1" * 8)
        message.parameters["number"].int64_param = number
        request, _ = decode(message, decoder=decoder)
        assert request.parameters == {"number": number}


def test_surplus_raw_entries_are_ignored():
    decoder = InferDecoder()
    for surplus in (1, 1, 100):
        request, _ = decode(make(b"\1" * 8, *[b"left over"] * surplus), decoder=decoder)
        assert [tensor.nbytes for tensor in request.inputs] == [8]


def test_fields_may_come_in_any_order_and_the_last_of_a_singular_one_counts():
    raw = ModelInferRequest(raw_input_contents=[b"\1" * 8]).SerializeToString()
    first = ModelInferRequest(id="first", model_name="other").SerializeToString()
    rest = make(inputs=[("A", "INT32", (2,))]).SerializeToString()
    decoder = InferDecoder()
    for order in ((first, rest, raw), (first, raw, rest), (raw, first, rest)) * 2:
        target = decoder.peek(b"".join(order))
        assert (target.model_name, target.id) == ("m", "r")
        request, _ = decoder.decode(target, SPEC, requested_version=-1, reply=Port(), accepted_at=0.0)
        assert bytes(request.inputs[0].data) == b"\1" * 8


def test_a_message_may_be_any_buffer():
    message = make(b"\1" * 8).SerializeToString()
    for buffer in (message, bytearray(message), memoryview(message)):
        request, _ = decode(buffer)
        assert request.inputs[0].nbytes == 8


# Parameters


def test_parameters_go_to_the_fields_they_mean():
    message = make(b"\1" * 8)
    parameters = message.parameters
    parameters["sequence_id"].int64_param = 7
    parameters["sequence_start"].bool_param = True
    parameters["sequence_end"].bool_param = True
    parameters["priority"].uint64_param = 2
    parameters["timeout"].int64_param = 1500
    parameters["triton_enable_empty_final_response"].bool_param = True
    parameters["binary_data_output"].bool_param = True
    parameters["text"].string_param = "x"
    parameters["count"].int64_param = -3
    parameters["flag"].bool_param = False
    parameters["rate"].double_param = 0.5
    decoder = InferDecoder()
    for _ in range(2):
        request, plan = decode(message, decoder=decoder)
        assert request.correlation_id == 7
        assert request.flags == FLAG_SEQUENCE_START | FLAG_SEQUENCE_END
        assert request.priority == 2
        assert request.timeout == 0.0015
        assert plan.empty_final
        assert plan.classes is None
        assert request.parameters == {
            "binary_data_output": True,
            "text": "x",
            "count": -3,
            "flag": False,
            "rate": 0.5,
        }


def test_flags_that_are_false_are_no_flags():
    message = make(b"\1" * 8)
    message.parameters["sequence_start"].bool_param = False
    message.parameters["triton_enable_empty_final_response"].bool_param = False
    request, plan = decode(message)
    assert request.flags == 0
    assert plan is ALL_OUTPUTS


def test_correlation_ids_may_be_text_and_numbers_are_unsigned():
    assert decode(with_parameter("sequence_id", string_param="s"))[0].correlation_id == "s"
    assert decode(with_parameter("sequence_id", int64_param=-1))[0].correlation_id == 2**64 - 1


@pytest.mark.parametrize(
    ("key", "choice", "text"),
    [
        ("sequence_id", {"bool_param": True}, "expected int64_param or string_param."),
        ("sequence_id", {"uint64_param": 1}, "expected int64_param or string_param."),
        ("sequence_start", {"int64_param": 1}, "expected bool_param."),
        ("sequence_end", {}, "expected bool_param."),
        ("priority", {"string_param": "1"}, "expected int64_param or uint64_param."),
        ("timeout", {"uint64_param": 1}, "expected int64_param."),
        ("triton_enable_empty_final_response", {"int64_param": 1}, "expected bool_param."),
        ("mine", {"uint64_param": 1}, "expected int64_param, bool_param, or string_param."),
        ("mine", {}, "expected int64_param, bool_param, or string_param."),
    ],
)
def test_a_parameter_of_the_wrong_type_is_refused(key, choice, text):
    assert refusal(with_parameter(key, **choice)) == f"invalid value type for '{key}' parameter, {text}"


def test_forwarded_metadata_becomes_parameters_in_front_of_the_clients_own():
    message = with_parameter("k", string_param="own")
    decoder = InferDecoder()
    for value in ("1", "2"):
        request, _ = decode(message, decoder=decoder, forwarded={"x-user": value, "k": "metadata"})
        assert request.parameters == {"x-user": value, "k": "metadata"}
    request, _ = decode(message, decoder=decoder)
    assert request.parameters == {"k": "own"}


def test_metadata_that_is_refused_is_told_after_parameters_and_before_data():
    forwarded = InvalidArgument("Header 'timeout' is reserved for Triton usage and cannot be forwarded.")
    assert refusal(make(), forwarded=forwarded) == forwarded.message
    assert refusal(make(b"\1" * 8), forwarded=forwarded) == forwarded.message
    message = with_parameter("timeout", string_param="x")
    assert "invalid value type for 'timeout'" in refusal(message, forwarded=forwarded)


# Data


CONTENTS = [
    ("BOOL", "bool_contents", [True, False]),
    ("INT8", "int_contents", [-1, 127]),
    ("INT16", "int_contents", [-1, 32767]),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
    ("UINT8", "uint_contents", [0, 255]),
    ("UINT16", "uint_contents", [1, 65535]),
    ("UINT32", "uint_contents", [1, 2**32 - 1]),
    ("UINT64", "uint64_contents", [1, 2**64 - 1]),
    ("FP32", "fp32_contents", [0.5, -math.inf]),
    ("FP64", "fp64_contents", [0.1, 1e300]),
]


@pytest.mark.parametrize(("datatype", "field", "values"), CONTENTS)
def test_typed_contents_are_packed_as_raw_ones_would_be(datatype, field, values):
    request, _ = decode(typed(datatype, **{field: values}))
    (tensor,) = request.inputs
    assert tensor.as_numpy().tolist() == values
    assert tensor.nbytes == 2 * tensor.datatype.size


def test_typed_strings_are_packed():
    request, _ = decode(typed("BYTES", bytes_contents=[b"", b"\xff\0"]))
    assert bytes(request.inputs[0].data) == pack_bytes([b"", b"\xff\0"])


@pytest.mark.parametrize(
    ("datatype", "field", "elements"),
    [
        ("INT32", "int_contents", range(-70_000, 70_000)),
        ("UINT16", "uint_contents", range(140_000)),
        ("UINT64", "uint64_contents", range(2**64 - 140_000, 2**64)),
        ("BYTES", "bytes_contents", [b"", b"ab"] * 70_000),
    ],
)
def test_long_typed_contents_lose_nothing_between_their_slices(datatype, field, elements):
    request, _ = decode(typed(datatype, (len(elements),), **{field: elements}))
    (tensor,) = request.inputs
    if datatype == "BYTES":
        assert bytes(tensor.data) == pack_bytes(elements)
    else:
        wide = np.array(elements, np.uint64 if datatype == "UINT64" else np.int64)
        assert np.array_equal(tensor.as_numpy(), wide.astype(tensor.datatype.numpy))


@given(
    contents=st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from(
                [b"", b"B", b"B\x01", b"BB\x00", b"x" * 127, b"x" * 128, b"B" * 300, b"y" * 40_000]
            ),
        ),
        min_size=1,
        max_size=9,
    ),
    every=st.integers(1, 80),
    broken=st.one_of(st.none(), st.tuples(st.integers(0, 30_000), st.integers(0, 255))),
    cut=st.integers(0, 3),
)
@settings(deadline=None, max_examples=examples(60))
def test_long_typed_strings_are_read_as_if_one_by_one(contents, every, broken, cut):
    elements = [
        contents[place // every % len(contents)] if place % every == 0 else b"x" * (place * 7 % 11)
        for place in range(4_000)
    ][:3_000]
    encoded = bytearray(b"".join(delimited(0x42, element) for element in elements))
    if broken is not None:
        place, value = broken
        encoded[place % len(encoded)] = value
    encoded = encoded[: len(encoded) - cut]
    try:
        expected = pack_bytes(one_by_one(encoded))
    except ValueError:
        with pytest.raises(Internal, match="failed to parse"):
            decode(long_input(bytes(encoded), shape=(3_000,), datatype="BYTES"))
    else:
        request, _ = decode(long_input(bytes(encoded), shape=(3_000,), datatype="BYTES"))
        assert bytes(request.inputs[0].data) == expected


def one_by_one(encoded):
    """Return the strings of a `bytes_contents`. Raises ValueError where it is malformed."""
    at = 0
    strings = []
    while at < len(encoded):
        if encoded[at] != 0x42:
            raise ValueError("another field")
        at += 1
        size = shift = 0
        while True:
            if at == len(encoded) or shift > 63:
                raise ValueError("the length is cut short")
            size |= (encoded[at] & 0x7F) << shift
            shift += 7
            at += 1
            if encoded[at - 1] < 0x80:
                break
        if at + size > len(encoded):
            raise ValueError("the string is cut short")
        strings.append(bytes(encoded[at : at + size]))
        at += size
    return strings


def test_short_typed_strings_are_packed_some_thousand_at_a_time():
    elements = [b"%d" % (place * 7_919 % 10 ** (place % 7)) for place in range(100_000)]
    content = b"".join(delimited(0x42, element) for element in elements)
    steps = packing_lifted([Piece(8, memoryview(content))], DataType.BYTES, name="A", model="m")
    assert sum(1 for _ in steps) <= len(content) // (32 * 1024) + 3


def test_narrow_integers_keep_their_low_bytes():
    request, _ = decode(typed("INT8", int_contents=[256 + 5, -129]))
    assert request.inputs[0].as_numpy().tolist() == [5, 127]
    request, _ = decode(typed("UINT16", uint_contents=[65536 + 5, 7]))
    assert request.inputs[0].as_numpy().tolist() == [5, 7]


def test_the_bits_of_a_float_that_is_no_number_survive():
    bits = np.array([0x7FA00001, 0xFFC01234], dtype="<u4")
    packed = InferTensorContents()
    packed.MergeFromString(b"\x32\x08" + bits.tobytes())
    message = make()
    message.inputs[0].datatype = "FP32"
    message.inputs[0].contents.CopyFrom(packed)
    request, _ = decode(message)
    assert bytes(request.inputs[0].data) == bits.tobytes()


def test_fields_unknown_to_us_in_typed_contents_do_not_get_into_the_tensor():
    contents = InferTensorContents(fp32_contents=[1.0, 2.0]).SerializeToString() + b"\xf8\x01\x05"
    message = make()
    message.inputs[0].datatype = "FP32"
    message.inputs[0].contents.MergeFromString(contents)
    request, _ = decode(message)
    assert request.inputs[0].as_numpy().tolist() == [1.0, 2.0]


def long_input(contents, *, shape=(2,), datatype="INT32", more=b""):
    """A message with one input, whose typed contents are the bytes `contents`.

    `more` are further fields of the input.
    """
    declared = ModelInferRequest.InferInputTensor(
        name="A", datatype=datatype, shape=shape
    ).SerializeToString()
    return delimited(0x0A, b"m") + delimited(0x2A, declared + delimited(0x2A, contents) + more)


def packed(field, content):
    return delimited(field << 3 | 2, content)


FIELDS = {
    "INT8": ("int_contents", 2),
    "INT32": ("int_contents", 2),
    "INT64": ("int64_contents", 3),
    "UINT16": ("uint_contents", 4),
    "UINT64": ("uint64_contents", 5),
    "BOOL": ("bool_contents", 1),
}


@st.composite
def encoded_numbers(draw):
    """Some numbers, written in more bytes than they need here and there."""
    some = draw(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 10)), min_size=1, max_size=40))
    encoded = bytearray()
    for value, length in some:
        shortest = bytearray(varint(value))
        while len(shortest) < length:
            shortest[-1] |= 0x80
            shortest.append(0)
        encoded += shortest
    return bytes(encoded)


@pytest.mark.slow
@given(st.sampled_from(sorted(FIELDS)), encoded_numbers())
@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_long_contents_are_read_as_protobuf_reads_them(datatype, encoded):
    name, number = FIELDS[datatype]
    often = 70_000 // len(encoded) + 1
    message = long_input(packed(number, encoded * often), datatype=datatype)
    request, _ = decode(message)
    expected = getattr(ModelInferRequest.FromString(message).inputs[0].contents, name)
    wide = np.array(expected, np.uint64 if datatype == "UINT64" else np.int64)
    low_bytes = wide.astype(DataType[datatype].numpy)
    assert bytes(request.inputs[0].data) == low_bytes.tobytes()


def test_long_floats_are_views_of_the_message():
    numbers = np.arange(50_000, dtype=np.float32)
    message = typed("FP32", (50_000,), fp32_contents=numbers).SerializeToString()
    request, _ = decode(message)
    assert request.inputs[0].data.obj is message
    assert bytes(request.inputs[0].data) == numbers.tobytes()


def test_long_contents_may_come_in_several_pieces():
    request, _ = decode(long_input(packed(2, b"\1" * 70_000) + packed(2, b"") + packed(2, b"\x80\1")))
    assert np.frombuffer(request.inputs[0].data, np.int32).tolist() == [1] * 70_000 + [128]
    request, _ = decode(long_input(packed(6, bytes(70_000)) + packed(6, b"abcd"), datatype="FP32"))
    assert bytes(request.inputs[0].data) == bytes(70_000) + b"abcd"


def test_megabytes_of_strings_are_packed():
    strings = [b"", b"ab", bytes(200)] * 25_000
    message = typed("BYTES", (75_000,), bytes_contents=strings)
    assert message.ByteSize() > 4 * 1024 * 1024
    request, _ = decode(message)
    assert bytes(request.inputs[0].data) == pack_bytes(strings)


def test_what_is_beside_long_contents_is_kept():
    message = typed("INT32", (70_000,), int_contents=range(70_000))
    message.inputs.add(name="B", datatype="FP32", shape=[1]).contents.fp32_contents.append(0.5)
    message.inputs.add(name="C", datatype="INT64", shape=[70_000]).contents.int64_contents.extend(
        range(70_000)
    )
    message.outputs.add(name="S")
    message.parameters["key"].string_param = "value"
    request, _ = decode(message)
    assert (request.id, request.requested_outputs, request.parameters) == ("r", ("S",), {"key": "value"})
    assert [(tensor.name, tensor.shape) for tensor in request.inputs] == [
        ("A", (70_000,)),
        ("B", (1,)),
        ("C", (70_000,)),
    ]
    first, second, third = [tensor.data for tensor in request.inputs]
    assert np.array_equal(np.frombuffer(first, np.int32), np.arange(70_000))
    assert bytes(second) == b"\0\0\0\x3f"
    assert np.array_equal(np.frombuffer(third, np.int64), np.arange(70_000))


def test_long_contents_are_refused_as_short_ones_are():
    assert refusal(typed("INT64", int_contents=range(70_000))) == (
        "unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'INT32', expected datatype 'INT64'"
    )
    assert refusal(typed("INT32", int_contents=range(70_000), int64_contents=[1])) == (
        "unexpected explicit tensor data for input tensor 'A' for model 'm', binary data was already supplied."
    )
    message = typed("INT32", raw=[b"x"], int_contents=range(70_000))
    assert "contents field must not be specified" in refusal(message)


def test_long_contents_in_unusual_fields_are_left_to_protobuf_unless_they_are_too_long():
    loose = b"\x10\5" * 40_000  # each number in a field of its own
    request, _ = decode(long_input(loose))
    assert np.frombuffer(request.inputs[0].data, np.int32).tolist() == [5] * 40_000
    twice = long_input(packed(2, b"\1" * 70_000), more=delimited(0x2A, packed(2, b"\2")))
    request, _ = decode(twice)
    assert len(request.inputs[0].data) == 70_001 * 4
    assert "neither packed nor all strings" in refusal(long_input(b"\x10\5" * UNPACKED), Internal)


@pytest.mark.parametrize(
    "message",
    [
        long_input(packed(2, b"\1" * 70_000 + b"\x80")),
        long_input(packed(2, b"\x80" * 70_000)),
        long_input(packed(2, b"\1" * 65_530 + b"\x80" * 10 + b"\1")),
        long_input(packed(2, b"\x80" * 11 + b"\1" * 70_000)),
        long_input(packed(6, bytes(70_001)), datatype="FP32"),
        long_input(packed(2, b"\1" * 70_000) + b"\x12\5"),
        long_input(packed(8, bytes(4 * UNPACKED)) + b"\x42\5", datatype="BYTES"),
        long_input(packed(8, bytes(4 * UNPACKED)) + b"\x42", datatype="BYTES"),
        long_input(packed(8, bytes(4 * UNPACKED)) + packed(2, b"\1"), datatype="BYTES"),
        long_input(b"", shape=[1] * 70_000),
        long_input(b"", more=b"\x22\0" * 40_000),
        delimited(0x32, b"\x12\0" * 40_000),
    ],
    ids=lambda message: "",
)
def test_long_messages_that_hold_together_badly_are_refused(message):
    assert "failed to parse" in refusal(message, Internal)


def test_typed_contents_differ_from_request_to_request():
    decoder = InferDecoder()
    for value in (1, 2, 3):
        request, _ = decode(typed("INT32", int_contents=[value, value]), decoder=decoder)
        assert request.inputs[0].as_numpy().tolist() == [value, value]


def test_the_work_that_a_target_holds_is_known_beforehand():
    decoder = InferDecoder()
    strings = typed("BYTES", (5000,), bytes_contents=[b"x" * 16] * 5000).SerializeToString()
    assert decoder.peek(strings).unread_size > 300_000
    floats = typed("FP32", (5000,), fp32_contents=[0.5] * 5000).SerializeToString()
    assert 0 < decoder.peek(floats).unread_size < 100  # they are views of the message
    raw = make(bytes(20_000)).SerializeToString()
    assert 0 < decoder.peek(raw).unread_size < 100
    decode(raw, decoder=decoder)
    assert decoder.peek(raw).unread_size == 0


def test_contents_without_elements_are_an_empty_tensor():
    message = make(inputs=[("A", "FP16", (0,))])
    message.inputs[0].contents.SetInParent()
    request, _ = decode(message)
    assert bytes(request.inputs[0].data) == b""


def test_an_input_without_data_is_refused():
    inputs = [("A", "INT32", (2,)), ("B", "FP32", (1,))]
    text = "unable to find data for input tensor 'B' for model 'm' in request."
    assert refusal(make(b"\1" * 8, inputs=inputs)) == text
    decoder = InferDecoder()
    decode(make(b"\1" * 8, b"\1" * 4, inputs=inputs), decoder=decoder)
    with pytest.raises(InvalidArgument, match=text):
        decode(make(b"\1" * 8, inputs=inputs), decoder=decoder)


# Outputs and shared memory


def with_output(**parameters):
    message = make(b"\1" * 8)
    output = message.outputs.add(name="S")
    for key, (kind, value) in parameters.items():
        setattr(output.parameters[key], kind, value)
    return message


def test_classification_is_planned():
    decoder = InferDecoder()
    for _ in range(2):
        request, plan = decode(with_output(classification=("int64_param", 3)), decoder=decoder)
        assert request.requested_outputs == ("S",)
        assert plan.classes == {"S": 3}


REGION = {"shared_memory_region": ("string_param", "R"), "shared_memory_byte_size": ("int64_param", 8)}


def shared_input(message=None, **parameters):
    message = message or make()
    for key, (kind, value) in parameters.items():
        setattr(message.inputs[0].parameters[key], kind, value)
    return message


@pytest.mark.parametrize("holder", [shared_input, with_output])
def test_a_region_must_be_registered(holder):
    assert refusal(holder(**REGION), NotFound) == "Unable to find shared memory region: 'R'"


@pytest.mark.parametrize("holder", [shared_input, with_output])
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {**REGION, "shared_memory_region": ("int64_param", 1)},
            "invalid value type for 'shared_memory_region' parameter for tensor '{}', expected string_param.",
        ),
        (
            {**REGION, "shared_memory_offset": ("string_param", "1")},
            "invalid value type for 'shared_memory_offset' parameter for tensor '{}', expected int64_param.",
        ),
        (
            {**REGION, "shared_memory_byte_size": ("uint64_param", 1)},
            "invalid value type for 'shared_memory_byte_size' parameter for tensor '{}', expected int64_param.",
        ),
        (
            {"shared_memory_offset": ("int64_param", 1)},
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor '{}'",
        ),
        (
            {"shared_memory_byte_size": ("int64_param", 1)},
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor '{}'",
        ),
        (
            {"shared_memory_region": ("string_param", "R")},
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{}'",
        ),
    ],
)
def test_shared_memory_parameters_that_make_no_sense_are_refused(holder, parameters, text):
    assert refusal(holder(**parameters)) == text.format("A" if holder is shared_input else "S")


OF_TYPE = (
    "unexpected explicit tensor data for input tensor 'A' for model 'm' of type '{}', expected datatype '{}'"
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (with_parameter("priority", int64_param=-1), "invalid value for 'priority', expected value >= 0."),
        (
            with_parameter("triton_x", int64_param=1),
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            "with 'triton_' are allowed: triton_enable_empty_final_response",
        ),
        # Contents
        (typed("INT64", int_contents=[1, 2]), OF_TYPE.format("INT32", "INT64")),
        (typed("FP16", fp32_contents=[1, 2]), OF_TYPE.format("FP32", "FP16")),
        (typed("FP8", fp32_contents=[1, 2]), OF_TYPE.format("FP32", "<invalid>")),
        (
            typed("INT32", int_contents=[1, 2], int64_contents=[1]),
            "unexpected explicit tensor data for input tensor 'A' for model 'm', binary data was already supplied.",
        ),
        (
            typed("INT32", raw=[b"x"], int_contents=[1, 2]),
            "contents field must not be specified when using raw_input_contents for 'A' for model 'm'",
        ),
        (
            shared_input(typed("INT32", int_contents=[1]), **REGION),
            "unexpected 'content' provided when using shared memory for input tensor 'A' for model 'm'",
        ),
        # Datatypes that do not exist, as the core refuses them
        (
            make(b"\1" * 8, inputs=[("A", "FP8", (2,))]),
            "[request id: r] inference input 'A' data-type is '<invalid>', but model 'm' expects 'INT32'",
        ),
        (
            make(b"\1" * 8, inputs=[("Z", "FP8", (2,))]),
            "unexpected inference input 'Z' for model 'm'",
        ),
        # Classification
        *(
            (
                with_output(classification=("int64_param", count)),
                "invalid value for 'classification' parameter, expected >= 0",
            )
            for count in (0, -1)
        ),
        (
            with_output(classification=("uint64_param", 1)),
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
        (
            with_output(**REGION, classification=("int64_param", 1)),
            "output can't set both 'shared_memory_region' and 'classification'",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_tritons_words(message, text):
    assert refusal(message) == text


# Bytes that are no request


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff",
        b"\x0a\x02\xff\xff",  # a model's name that is not UTF-8
        b"\x1a\x02\xff\xff",  # an id that is not
        b"\x1a\x03\xed\xa0\x80",  # half a surrogate pair
        b"\x3a\x05abc",
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x3a" + b"\x80" * 10 + b"\x00",
        b"\xba\x80\x80\x80\x10\x00",
        b"\x00\x00",  # field number 0
        b"\x0c",  # a group that ends before it began
        b"\x0b",  # a group without an end
        b"\x0b\x14",  # a group with another's end
        b"\x0b" * 200 + b"\x0c" * 200,  # groups without a bottom
        b"\x0e\x00",  # no such wire type
        b"\x09\1\2\3",
        b"\x0d\1\2\3",
        b"\x08" + b"\xff" * 10,
        b"\x2a\x02\x0a\x05",  # an input that is no message
        b"\xff" * 20,
    ],
)
def test_bytes_that_are_no_request_are_refused(message):
    with pytest.raises(DecodeError):
        ModelInferRequest.FromString(message)
    for after in (b"", ModelInferRequest(model_name="m", model_version="1", id="a").SerializeToString()):
        with pytest.raises(Internal, match="bytes received as inference"):
            InferDecoder().peek(after + message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xba\x80\x00\x01a",  # a raw entry's tag in three bytes,
        b"\x9a\x00\x01a",  # an id's in two
        b"\x3a\x81\x80\x80\x80\x00a",  # and lengths in five
        b"\x3a\x81" + b"\x80" * 8 + b"\x02a",  # and ten
        b"\x08\x05",  # a field that protobuf does not know: a name that is a number
        b"\x0b\x0b\x08\x01\x12\x01a\x0c\x0c",  # groups
        b"\xf8\xff\xff\xff\x0f\x01",  # the greatest field number
        b"\x49\1\2\3\4\5\6\7\x08\x4d\1\2\3\x04",
    ],
)
def test_unusual_messages_are_read_as_protobuf_reads_them(message):
    same_as_protobuf(message, InferDecoder())


def test_a_message_of_too_many_fields_is_refused():
    assert f"more than {MAX_FIELDS} fields" in refusal(b"\x3a\x00" * (MAX_FIELDS + 1), Internal)
    assert "a group has more than 1024 fields" in refusal(
        b"\x0b" + b"\x08\x00" * MAX_FIELDS + b"\x0c", Internal
    )
    assert len(InferDecoder().peek(b"\x3a\x00" * MAX_FIELDS).raw) == MAX_FIELDS


def test_a_message_of_too_many_raw_tensors_is_refused_after_one_like_it():
    decoder = InferDecoder()
    message = make(b"\1" * 8).SerializeToString()
    decode(message, decoder=decoder)
    decode(message + b"\x3a\0" * (MAX_FIELDS - 1), decoder=decoder)
    with pytest.raises(Internal, match=f"more than {MAX_FIELDS} fields"):
        decode(message + b"\x3a\0" * MAX_FIELDS, decoder=decoder)


def test_groups_are_skipped_in_slices_and_may_not_have_too_many_fields_together():
    group = b"\x0b" + b"\x08\0" * 1000 + b"\x0c"
    steps = InferDecoder().begin_peek(NAMED + group * 8)
    assert isinstance(steps, Generator)
    assert sum(1 for _ in steps) >= 8 - 2
    assert f"more than {MAX_FIELDS} fields" in refusal(NAMED + group * 9, Internal)


NAMED = b"\x0a\x01m"  # the model's name


def entry(key, value=b"\x10\x01"):
    """A parameter as the field of a map."""
    return delimited(0x0A, key) + delimited(0x12, value)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (long_input(b"", shape=[1] * 33), "input 'A' has 33 dimensions, and a shape may have 32 at most"),
        (
            NAMED + b"".join(delimited(0x22, entry(b"%d" % key)) for key in range(1025)),
            "the request has 1025 parameters, and may have 1024 at most",
        ),
        (NAMED + b"\x2a\0" * 100, "the request names 100 inputs, and model 'm' has"),
        (NAMED + b"\x32\0" * 100, "the request names 100 outputs, and model 'm' has"),
        (NAMED + delimited(0x32, delimited(0x0A, b"n" * 5000)), "the name of an output has 5000 characters"),
        (NAMED + delimited(0x22, entry(b"n" * 5000)), "the name of a parameter has 5000 characters"),
    ],
    ids=["dimensions", "parameters", "inputs", "outputs", "name of an output", "name of a parameter"],
)
def test_more_than_any_model_needs_is_refused(message, told):
    assert told in refusal(message)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (NAMED + delimited(0x2A, delimited(0x1A, b"\1" * 16_000_000)), "has 16000000 bytes, over 320"),
        (NAMED + delimited(0x22, delimited(0x12, b"\x10\1" * 30_000)), "or one of them more than 4200"),
        (NAMED + delimited(0x2A, delimited(0x22, b"\x12\0" * 2_000_000)), "or one of them more than 4200"),
        (NAMED + delimited(0x32, delimited(0x12, b"\x12\0" * 4000)) * 5, "more than 16384 fields together"),
        (NAMED + delimited(0x22, entry(b"k", delimited(0x1A, bytes(MOST_REST)))), "bytes beside its tensors"),
        (NAMED + delimited(0x1A, b"i" * (MOST_REST + 1)), "its id has"),
        (NAMED + delimited(0x2A, delimited(0x2A, b"\x10\1" * 100_000)) * 2, "neither packed nor all strings"),
        (NAMED + delimited(0x2A, delimited(0x2A, b"\x42\0" * 500)) * 300, "neither packed nor all strings"),
    ],
    ids=[
        "dimensions",
        "fields of a parameter",
        "fields of an input's parameter",
        "fields of outputs",
        "a parameter",
        "an id",
        "loose numbers of several inputs",
        "short contents of many inputs",
    ],
)
def test_what_protobuf_would_make_too_much_of_never_gets_there(message, told):
    assert told in refusal(message, Internal)


def test_long_messages_are_taken_apart_in_slices():
    """Between two stops lie at most some thousand fields, or some KiB of strings or numbers."""
    strings = typed("BYTES", (200_000,), bytes_contents=[b""] * 200_000).SerializeToString()
    numbers = typed("INT32", (200_000,), int_contents=[5] * 200_000).SerializeToString()
    for message, least in ((strings, 2 * 200_000 // (32 * 1024)), (numbers, 2 * 200_000 // (16 * 1024))):
        target = InferDecoder().peek(message)
        assert sum(1 for _ in InferDecoder().learning(target, SPEC, None)) >= least
    raws = InferDecoder().begin_peek(NAMED + b"\x3a\0" * 8000)
    assert isinstance(raws, Generator)
    assert sum(1 for _ in raws) >= 8000 // 256 - 2


def same_as_protobuf(message, decoder):
    """Check that `decoder` takes what protobuf takes, and finds in it what protobuf finds."""
    try:
        expected = ModelInferRequest.FromString(message)
    except DecodeError:
        expected = None
    try:
        target = decoder.peek(message)
    except Internal:
        assert expected is None
        return
    assert expected is not None
    assert (target.model_name, target.model_version) == (expected.model_name, expected.model_version)
    assert target.id == expected.id
    assert [bytes(part) for part in target.raw] == list(expected.raw_input_contents)
    try:
        request, plan = decoder.decode(target, SPEC, requested_version=-1, reply=Port(), accepted_at=0.0)
    except (InvalidArgument, Unsupported):
        return
    assert [(t.name, str(t.datatype), list(t.shape)) for t in request.inputs] == [
        (declared.name, declared.datatype, list(declared.shape)) for declared in expected.inputs
    ]
    if expected.raw_input_contents:
        data = [bytes(tensor.data) for tensor in request.inputs]
        assert data == list(expected.raw_input_contents)[: len(data)]
    assert list(request.requested_outputs) == [output.name for output in expected.outputs]
    assert plan.empty_final == expected.parameters["triton_enable_empty_final_response"].bool_param


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_written_as_protobuf_writes_them(value):
    written = InferParameter(int64_param=value).SerializeToString()
    assert b"\x10" + varint(value) == written


# The official client


def test_what_tritons_client_sends_is_understood():
    array = np.arange(4, dtype=np.float32).reshape(1, 4)
    words = np.array([b"a", b"bc"], dtype=object)
    inputs = [triton.InferInput("B", [1, 4], "FP32"), triton.InferInput("W", [2], "BYTES")]
    inputs[0].set_data_from_numpy(array)
    inputs[1].set_data_from_numpy(words)
    outputs = [triton.InferRequestedOutput("S", class_count=2), triton.InferRequestedOutput("D")]
    message = _get_inference_request(
        model_name="m",
        inputs=inputs,
        model_version="2",
        request_id="r9",
        outputs=outputs,
        sequence_id="s",
        sequence_start=True,
        sequence_end=False,
        priority=3,
        timeout=2_000_000,
        parameters={"a": 1, "b": 0.5, "c": True, "d": "x"},
    ).SerializeToString()
    decoder = InferDecoder()
    for _ in range(2):
        request, plan = decode(message, decoder=decoder)
        assert request.id == "r9"
        assert request.inputs[0].as_numpy().tolist() == array.tolist()
        assert request.inputs[1].as_numpy().tolist() == words.tolist()
        assert request.requested_outputs == ("S", "D")
        assert plan.classes == {"S": 2, "D": 0}
        assert (request.correlation_id, request.flags) == ("s", FLAG_SEQUENCE_START)
        assert (request.priority, request.timeout) == (3, 2.0)
        assert request.parameters == {"a": 1, "b": 0.5, "c": True, "d": "x"}
