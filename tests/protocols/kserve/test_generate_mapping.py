"""The generate extension's JSON and what it means to a model."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.seams.steps import at_once
from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, TritiumError, Unsupported
from actors.values.requests import InferResponse
from actors.values.tensors import Tensor, element_count
from protocols.kserve.generate import (
    decode_generate,
    decode_long_generate,
    deduce_shape,
    encode_generated,
    event,
)
from protocols.kserve.requests import DEFAULT_MAX_INPUT_SIZE
from tests.protocols.fakes import make_spec, tensor
from tests.support.examples import examples
from tests.support.ports import Port

TEXT = ("text_input", DataType.BYTES, (1,))


def llm(*extra, max_batch_size=8, name="llm"):
    return make_spec(name, inputs=[TEXT, *extra], outputs=[], max_batch_size=max_batch_size)


def decode(document, spec=None, *, limit=DEFAULT_MAX_INPUT_SIZE, decoding=decode_generate):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decoding(
        body,
        spec or llm(),
        max_input_size=limit,
        requested_version=-1,
        reply=Port(),
        accepted_at=0.0,
    )


def in_slices(body, spec, **options):
    return at_once(decode_long_generate(body, spec, **options))


def refused(document, spec=None, **options):
    """How `document` is refused, which is the same in slices."""
    with pytest.raises(TritiumError) as caught:
        decode(document, spec, **options)
    with pytest.raises(type(caught.value)) as sliced:
        decode(document, spec, decoding=in_slices, **options)
    assert sliced.value.message == caught.value.message
    return type(caught.value), caught.value.message


def answer(outputs=(), **fields):
    return InferResponse(model_name="llm", model_version=3, outputs=outputs, **fields)


# Requests


def test_the_name_of_an_input_makes_a_tensor_and_any_other_name_a_parameter():
    request = decode({"text_input": "hi", "stream": True, "top_k": 3, "temperature": 0.5, "stop": "."})
    (text,) = request.inputs
    assert (text.name, text.datatype, text.shape) == ("text_input", DataType.BYTES, (1, 1))
    assert text.as_numpy().tolist() == [[b"hi"]]
    assert request.parameters == {"stream": True, "top_k": 3, "temperature": 0.5, "stop": "."}
    assert request.requested_outputs == ()


def test_parameters_may_stand_in_an_object_of_their_own_and_so_may_inputs():
    request = decode({"parameters": {"text_input": "hi", "n": 2}, "m": 1})
    assert request.inputs[0].as_numpy().tolist() == [[b"hi"]]
    assert request.parameters == {"n": 2, "m": 1}


def test_without_parameters_there_are_none():
    assert decode({"text_input": "hi"}).parameters is None


def test_the_id_names_the_request_and_is_a_parameter_too():
    request = decode({"id": "r1", "text_input": "hi"})
    assert (request.id, request.parameters) == ("r1", {"id": "r1"})


def test_an_input_called_id_is_no_parameter():
    request = decode({"id": "r1", "text_input": "hi"}, llm(("id", DataType.BYTES, (1,))))
    assert (request.id, request.parameters) == ("r1", None)
    assert [each.name for each in request.inputs] == ["id", "text_input"]


def test_what_means_something_to_infer_is_a_parameter_like_any_other():
    given = {"sequence_id": 7, "priority": 2, "timeout": 5, "sequence_start": True, "triton_x": "y"}
    request = decode({"text_input": "hi", **given})
    assert request.parameters == given
    assert (request.correlation_id, request.priority, request.timeout, request.flags) == (0, 0, 0.0, 0)


@pytest.mark.parametrize(
    ("dims", "count", "shape"),
    [
        ((-1, 1), 1, (1, 1)),
        ((-1, 16), 32, (2, 16)),
        ((-1, -1), 3, (1, 3)),
        ((-1, -1, 2, -1), 6, (1, 1, 2, 3)),
        ((-1, 16), 17, None),
        ((2,), 2, (2,)),
        ((2,), 4, None),
        ((1,), 0, None),
        ((), 1, ()),
        ((), 2, None),
        ((-1, 4), 0, (0, 4)),
    ],
)
def test_a_shape_is_deduced_from_the_number_of_elements(dims, count, shape):
    assert deduce_shape(dims, count) == shape


@given(st.lists(st.sampled_from([-1, 1, 2, 3, 5]), max_size=4), st.integers(0, 200))
def test_a_deduced_shape_holds_all_elements_and_is_one_that_the_model_declares(dims, count):
    shape = deduce_shape(dims, count)
    fixed = math.prod(dim for dim in dims if dim > 0)
    if shape is None:
        assert count % fixed or (-1 not in dims and count != fixed)
    else:
        assert element_count(shape) == count
        assert len(shape) == len(dims)
        assert all(want in (-1, got) for want, got in zip(dims, shape, strict=True))


VALUES = {
    DataType.BOOL: st.booleans(),
    DataType.UINT8: st.integers(0, 255),
    DataType.INT16: st.integers(-(2**15), 2**15 - 1),
    DataType.INT64: st.integers(-(2**63), 2**63 - 1),
    DataType.UINT64: st.integers(0, 2**64 - 1),
    DataType.FP32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    DataType.FP64: st.floats(allow_nan=False, allow_infinity=False),
    DataType.BYTES: st.text(),
}


@settings(max_examples=examples(40))
@given(st.data(), st.sampled_from(list(VALUES)))
def test_what_went_in_as_json_comes_out_as_the_same_json(data, datatype):
    values = data.draw(st.lists(VALUES[datatype], max_size=5))
    spec = make_spec(inputs=[("X", datatype, (-1,))], outputs=[])
    (went_in,) = decode({"X": values}, spec).inputs
    document = json.loads(encode_generated(answer([Tensor("Y", datatype, went_in.shape, went_in.data)])))
    assert document["Y"] == (values[0] if len(values) == 1 else values)


@settings(max_examples=examples(30))
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["text_input", "id", "parameters", "N", "x"]), inner)
        ),
    )
)
def test_any_json_is_a_request_or_is_refused_in_words(document):
    spec = llm(("N", DataType.INT32, (-1, 2)))
    body = json.dumps(document).encode()
    try:
        inputs = decode(body, spec).inputs
    except (Internal, InvalidArgument):
        return
    for each in inputs:
        each.as_numpy()


def test_a_key_that_is_no_input_may_come_twice():
    for decoding in (decode_generate, in_slices):
        request = decode(
            b'{"text_input":"a","text_inputs":["text_input"],"x":1,"x":2}',
            decoding=decoding,
            spec=llm(("text_inputs", DataType.BYTES, (-1,))),
        )
        assert request.parameters == {"x": 2}


def test_a_long_input_is_read_in_slices():
    spec = llm(("N", DataType.INT32, (-1,)))
    request = decode(
        {"N": list(range(30_000)), "text_input": "a" * 100_000, "x": "N"}, spec, decoding=in_slices
    )
    numbers, text = request.inputs
    assert numbers.as_numpy().tolist() == [list(range(30_000))]
    assert text.as_numpy().tolist() == [[b"a" * 100_000]]
    assert request.parameters == {"x": "N"}


@pytest.mark.parametrize(
    ("document", "kind", "message"),
    [
        (b"", Internal, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"{} x", Internal, "failed to parse the request JSON buffer: The document root must not be followed by other values. at 3"),
        ([1], Internal, "attempt to get members for non-object"),
        ({"id": 1}, Internal, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"a": {}}, InvalidArgument, "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"a": None}, InvalidArgument, "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (
            {"parameters": {"a": []}},
            InvalidArgument,
            "Converting keyword: 'parameters': parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"parameters": {"parameters": {}}},
            InvalidArgument,
            "Converting keyword: 'parameters': parameter 'parameters' has invalid type. It should be either 'int', 'bool', or "
            "'string'.",
        ),
        (
            {"parameters": 1},
            Internal,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        ({"text_input": 1}, Internal, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"text_input": {"a": 1}}, Internal, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"N": "1"}, Internal, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (
            {"parameters": {"N": 1.5}},
            Internal,
            "Converting keyword: 'parameters': Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        ({"PAIR": [1, 2, 3]}, InvalidArgument, "The schema can not convert input 'PAIR' to tensor with proper shape"),
        (
            {"HALF": 1.0},
            InvalidArgument,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input HALF",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(document, kind, message):
    spec = llm(("N", DataType.INT32, (1,)), ("PAIR", DataType.FP32, (2,)), ("HALF", DataType.FP16, (1,)))
    assert refused(document, spec) == (kind, message)


def test_an_array_within_an_array_is_one_element():
    spec = llm(("N", DataType.INT32, (1,)))
    assert decode({"N": [[1], [2]]}, spec).inputs[0].shape == (2, 1)
    with pytest.raises(Internal, match="Shape does not match true shape of 'data' field"):
        decode({"N": [[1, 2]]}, spec)


@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.FP64, DataType.BYTES])
@pytest.mark.parametrize(
    "shape",
    [
        "[]",
        "[{0}]",
        "[[{0}]]",
        "[{0},{1}]",
        "[[{0},{1}]]",
        "[[{0}],{1},[[{0}]]]",
        "[[],[{0},{0}]]",
        "[[],{0}]",
        "[[{0},{0}],{1},{0}]",
        "[[{0},{1},{0}],[],[]]",
        "[[{1},{0}],{0}]",
        "[[[],[[]],{0},{0}]]",
        "[[{0}],[{0}],[],[]]",
    ],
)
@pytest.mark.parametrize(
    ("many", "before"), [(1, "nowhere"), (350, "nowhere"), (1, "["), (1, ","), (1, "]"), (200, ",")], ids=str
)
def test_elements_of_arrays_are_counted_in_slices_as_at_once(datatype, shape, many, before):
    """Much space `before` the first bracket or comma, or `many` values, have a text read in pieces."""
    spec = llm(("N", datatype, (-1,)))
    outcomes = set()
    values = ("7", '"text"', "1.5", str(2**70), "null")
    for value, other in itertools.product(values, repeat=2):
        elements = shape.format(",".join([value] * many), other)
        body = f'{{"N":{elements.replace(before, " " * 17_000 + before, 1)}}}'.encode()
        both = [outcome(body, spec, decoding) for decoding in (decode_generate, in_slices)]
        assert both[0] == both[1], (value, other)
        outcomes.add(both[0])
    assert len(outcomes) > 1 or "{" not in shape


def outcome(body, spec, decoding):
    """What `body` comes to: shape and bytes of its input, or the words in which it is refused."""
    try:
        (found,) = decode(body, spec, decoding=decoding).inputs
    except TritiumError as error:
        return type(error), error.message
    return found.shape, bytes(found.data)


def test_the_first_mistake_in_the_text_is_the_one_that_is_told():
    spec = llm(("flag", DataType.BOOL, (1,)))
    assert "non-string" in refused(b'{"text_input":true,"flag":1}', spec)[1]
    assert "non-boolean" in refused(b'{"flag":1,"text_input":true}', spec)[1]


def test_an_input_called_parameters_can_not_be_told_from_the_object():
    assert refused({"parameters": {}}, llm(("parameters", DataType.BYTES, (1,)))) == (
        InvalidArgument,
        "Keyword 'parameters' for nested schema also given as input tensor name",
    )


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"text_input":"a","flag":true,"text_input":"b","flag":true}', "text_input"),
        (b'{"text_input":"a","flag":true,"flag":true,"text_input":"b"}', "flag"),
        (b'{"text_input":"a","parameters":{"flag":true,"flag":false}}', "flag"),
        (b'{"text_input":"a","flag":true,"flag":NaN}', "flag"),
    ],
)
def test_an_input_that_is_given_twice_is_refused(body, name):
    spec = llm(("flag", DataType.BOOL, (1,)))
    assert refused(body, spec) == (
        InvalidArgument,
        f"[request id: <id_unknown>] input '{name}' already exists in request",
    )


def test_the_quoted_name_of_an_input_may_stand_in_a_text():
    prompt = 'say "text_input" and "text_input"'
    request = decode({"text_input": prompt, "x": "text_input", "id": "text_input"})
    assert request.inputs[0].as_numpy().item() == prompt.encode()
    raw = b'{"text_input":"a","x":"text_input"}'
    assert decode(raw).inputs[0].as_numpy().item() == b"a"


def test_the_text_and_all_tensors_together_are_limited():
    body = json.dumps({"text_input": "hi"}).encode()
    assert refused(body, limit=5)[1] == (
        f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of 5 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    spec = make_spec(inputs=[("X", DataType.FP64, (-1,)), ("Y", DataType.FP64, (-1,))], outputs=[])
    body = json.dumps({"X": [1] * 10, "Y": [1] * 10}).encode()
    assert refused(body, spec, limit=100) == (
        InvalidArgument,
        "request size of 160 bytes with input 'Y' of size 80 bytes exceeds the maximum allowed input size of 100. "
        "Use --http-max-input-size to increase the limit.",
    )
    spec = make_spec(inputs=[("X", DataType.BYTES, (-1,))], outputs=[])
    assert "with input 'X' of size 100 bytes" in refused(b'{"X":[%b""]}' % (b'"",' * 24), spec, limit=99)[1]


# Responses


def test_a_response_is_one_object_in_alphabetical_order():
    response = answer(
        [
            tensor("text", np.array([["hé\n"]], object)),
            tensor("A", np.arange(3)),
            tensor("none", np.zeros((0,), "f4")),
        ],
        id="r1",
        parameters={"score": 0.5, "done": True},
    )
    assert (
        encode_generated(response)
        == (
            '{"A":[0,1,2],"done":true,"id":"r1","model_name":"llm","model_version":"3","none":[],"score":0.5,'
            '"text":"hé\\n"}'
        ).encode()
    )


def test_numbers_that_json_does_not_have_are_written_as_words():
    response = answer([tensor("Y", np.float32(np.nan)), tensor("Z", np.array([np.inf, 1]))])
    assert (
        encode_generated(response) == b'{"Y":NaN,"Z":[Infinity,1.0],"model_name":"llm","model_version":"3"}'
    )


def test_strings_pass_through_whatever_their_bytes_are():
    response = answer([tensor("Y", np.array([b"\xff\n"], object))])
    assert b'"Y":"\xff\\n"' in encode_generated(response)


def test_an_id_is_left_out_where_there_is_none():
    assert encode_generated(answer()) == b'{"model_name":"llm","model_version":"3"}'


def test_outputs_that_json_can_not_carry_are_refused():
    with pytest.raises(InvalidArgument, match="sending FP16 data via JSON is not supported"):
        encode_generated(answer([tensor("Y", np.float16(1))]))
    with pytest.raises(Unsupported):
        encode_generated(answer(parameters={"x": b"y"}))
    with pytest.raises(Internal, match="output tensor shape does not match size of output for 'Y'"):
        encode_generated(answer([Tensor("Y", DataType.INT32, (2,), b"1234")]))


@given(st.text())
def test_an_event_is_one_line_and_an_empty_one(text):
    written = b"".join(event([encode_generated(answer([tensor("Y", np.array([text], object))]))]))
    assert written.startswith(b"data: {")
    assert written.endswith(b"}\n\n")
    assert written.count(b"\n") == 2
    assert b"\r" not in written
    assert json.loads(written[6:])["Y"] == text
