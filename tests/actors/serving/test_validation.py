"""`actors.serving.validation` against contract http.md section 9: texts, order, and what an accepted request gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.validation import Validator
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, InvalidArgument
from actors.values.padding import Buckets, Padded
from actors.values.requests import InferRequest
from actors.values.specs import Direct, InputSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor, element_count, pack_bytes
from tests.support.ports import NoPort

INT64_MAX = 9223372036854775807
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def model(*inputs, max_batch_size=8, outputs=("S", "T")):
    return ModelSpec(
        name="add",
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=inputs,
        outputs=tuple(OutputSpec(name=name, datatype=DataType.FP32, dims=(4,)) for name in outputs),
        scheduling=Direct(),
        instances=(),
        model_directory=Path("add"),
        version_directory=Path("add/1"),
        artifact="model.onnx",
        config_json=b"{}",
    )


def fp32(name, *dims, **more):
    return InputSpec(name=name, datatype=DataType.FP32, dims=dims, **more)


def strings(name, *dims, **more):
    return InputSpec(name=name, datatype=DataType.BYTES, dims=dims, **more)


def tensor(name, *shape, datatype=DataType.FP32, data=None):
    if data is None:
        count = element_count(shape)
        data = pack_bytes([b"ab"] * count) if datatype is DataType.BYTES else bytes(count * datatype.size)
    return Tensor(name, datatype, shape, data)


def request_of(*inputs, outputs=(), request_id=""):
    return InferRequest(
        model_name="add",
        id=request_id,
        inputs=inputs,
        requested_outputs=outputs,
        reply=NoPort(),
        accepted_at=0.0,
    )


def refusal(spec, *inputs, outputs=(), request_id="r1"):
    with pytest.raises(InvalidArgument) as caught:
        Validator(spec)(request_of(*inputs, outputs=outputs, request_id=request_id))
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


ADD = model(fp32("A", 4), fp32("B", 4))
GROWING = model(fp32("A", -1, 4), fp32("B", 4))
OPTIONAL = model(fp32("A", 4), fp32("B", 4), fp32("C", 4, optional=True), fp32("D", -1, optional=True))
UNBATCHED = model(fp32("A", 4), fp32("B", -1), max_batch_size=0)
TEXT = model(strings("A", 2))
LONG_TEXT = model(strings("A", -1))


# What an accepted request is given


@pytest.mark.parametrize(
    ("spec", "inputs", "rows", "nbytes"),
    [
        (ADD, (tensor("A", 3, 4), tensor("B", 3, 4)), 3, 96),
        (
            ADD,
            (
                Tensor("B", DataType.FP32, [2, 4], memoryview(bytes(32))),
                Tensor("A", DataType.FP32, [2, 4], bytearray(32)),
            ),
            2,
            64,
        ),
        (UNBATCHED, (tensor("A", 4), tensor("B", 7)), 1, 44),
        (ADD, (tensor("A", 0, 4), tensor("B", 0, 4)), 0, 0),
        (model(fp32("A", 4, optional=True)), (), 1, 0),
        (GROWING, (tensor("A", 2, 0, 4), tensor("B", 2, 4)), 2, 32),
        # The contract's quirk: within [required, total] only the count is checked.
        (OPTIONAL, (tensor("A", 1, 4), tensor("C", 1, 4)), 1, 32),
        (LONG_TEXT, (tensor("A", 1, 0, datatype=DataType.BYTES, data=b""),), 1, 0),
    ],
    ids=[
        "as declared",
        "in any order, with shapes as lists",
        "a model without batch dimension counts one row",
        "a batch of no rows",
        "no required inputs",
        "a variable dimension of zero",
        "a required input behind an optional one",
        "no strings take no bytes",
    ],
)
def test_an_accepted_request_knows_its_rows_and_bytes(spec, inputs, rows, nbytes):
    request = request_of(*inputs)
    Validator(spec)(request)
    assert (request.rows, request.nbytes) == (rows, nbytes)


def test_a_request_that_names_no_outputs_gets_all_of_them():
    request = request_of(tensor("A", 1, 4), tensor("B", 1, 4))
    Validator(ADD)(request)
    assert request.requested_outputs == ("S", "T")


def test_named_outputs_stay_as_they_are():
    request = request_of(tensor("A", 1, 4), tensor("B", 1, 4), outputs=["T"])
    Validator(ADD)(request)
    assert request.requested_outputs == ["T"]


def test_a_usual_request_is_recognised_again_with_all_outputs():
    """It is validated once more where it runs again, and then wants all outputs by their own list."""
    request = request_of(tensor("A", 1, 4), tensor("B", 1, 4))
    check = Validator(ADD)
    assert check.is_usual(request)
    everything = request.requested_outputs
    assert check.is_usual(request)
    assert request.requested_outputs is everything


def test_validating_twice_changes_nothing():
    request = request_of(tensor("A", 2, 3, 4), tensor("B", 2, 4))
    check = Validator(GROWING)
    check(request)
    before = (request.rows, request.nbytes, request.batch_key, request.requested_outputs)
    check(request)
    assert (request.rows, request.nbytes, request.batch_key, request.requested_outputs) == before


# Outputs and input names


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ("AB", "SX", "unexpected inference output 'X' for model 'add'"),
        ("AB", "STS", "[request id: r1] output 'S' already exists in request"),
        ("ABB", "", "[request id: r1] input 'B' already exists in request"),
        ("AX", "", "unexpected inference input 'X' for model 'add'"),
    ],
)
def test_an_unknown_or_repeated_name_is_refused(inputs, outputs, message):
    assert refusal(ADD, *(tensor(name, 1, 4) for name in inputs), outputs=list(outputs)) == message


@pytest.mark.parametrize(
    ("spec", "names", "text"),
    [
        (
            ADD,
            "A",
            "expected 2 inputs but got 1 inputs for model 'add'. Got input(s) ['A'], but missing required input(s) ['B'].",
        ),
        (
            ADD,
            "",
            "expected 2 inputs but got 0 inputs for model 'add'. Got input(s) [], but missing required input(s) ['A','B'].",
        ),
        (
            ADD,
            "ABX",
            "expected 2 inputs but got 3 inputs for model 'add'. Got input(s) ['A','B','X'], "
            "but missing required input(s) ].",
        ),
        (
            OPTIONAL,
            "C",
            "expected number of inputs between 2 and 4 but got 1 inputs for model 'add'. Got input(s) ['C'], "
            "but missing required input(s) ['A','B'].",
        ),
    ],
)
def test_a_wrong_number_of_inputs_names_what_came_and_what_is_missing(spec, names, text):
    message = refusal(spec, *(tensor(name, 1, 4) for name in names))
    assert message == f"[request id: r1] {text} Please provide all required input(s)."


# The batch dimension


OVER = "inference request batch-size must be <= 8 for 'add'"


@pytest.mark.parametrize(
    ("first", "second", "request_id", "message"),
    [
        (tensor("A", 9, 4), tensor("B", 9, 4), "r1", f"[request id: r1] {OVER}"),
        (tensor("A", 9, 4), tensor("B", 9, 4), "", f"[request id: <id_unknown>] {OVER}"),
        (
            tensor("A", data=bytes(4)),
            tensor("B", 1, 4),
            "r1",
            "[request id: r1] input 'A' has no shape but model requires batch dimension for 'add'",
        ),
        (
            tensor("A", 1, 4),
            tensor("B", 1, 4, datatype=DataType.BYTES),
            "r1",
            "[request id: r1] inference input 'B' data-type is 'BYTES', but model 'add' expects 'FP32'",
        ),
    ],
    ids=["over the maximum", "a request without id", "a scalar", "a wrong datatype"],
)
def test_inputs_that_the_model_does_not_take_are_refused(first, second, request_id, message):
    assert refusal(ADD, first, second, request_id=request_id) == message


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 0), (0, 3), (1, -1)])
def test_inputs_of_different_batch_sizes_are_refused(first, second):
    # 0 before 3 passes in Triton, where 0 means "not yet known". It would let a model read another request's
    # rows.
    message = refusal(ADD, tensor("A", first, 4, data=b""), tensor("B", second, 4, data=b""))
    assert message == "[request id: r1] input 'B' batch size does not match other inputs for 'add'"


# Shape, size


@pytest.mark.parametrize(
    ("spec", "shape", "text"),
    [
        (ADD, (1, 5), f"Expected [-1,4], got [1,5]. {NOTE}"),
        (ADD, (1,), f"Expected [-1,4], got [1]. {NOTE}"),
        (ADD, (1, 2, 2), f"Expected [-1,4], got [1,2,2]. {NOTE}"),
        (ADD, (1, -2), f"Expected [-1,4], got [1,-2]. {NOTE}"),
        (GROWING, (1, 3, 5), f"Expected [-1,-1,4], got [1,3,5]. {NOTE}"),
        (UNBATCHED, (5,), "Expected [4], got [5]. "),
        (UNBATCHED, (), "Expected [4], got []. "),
    ],
)
def test_a_wrong_shape_says_what_was_expected(spec, shape, text):
    other = tensor("B", 4) if spec is UNBATCHED else tensor("B", 1, 4)
    message = refusal(spec, tensor("A", *shape, data=b""), other)
    assert message == f"[request id: r1] unexpected shape for input 'A' for model 'add'. {text}"


OPEN = "All input dimensions should be specified for input 'A' for model 'add', got"
INVALID = "tensor 'A' contains an invalid dimension in shape"


@pytest.mark.parametrize(
    ("spec", "shape", "text"),
    [
        (ADD, (1, -1), f"{OPEN} [1,-1]"),
        (ADD, (-1, 4), f"{OPEN} [-1,4]"),
        (GROWING, (1, -2, 4), f"{INVALID} [1,-2,4]"),
        (GROWING, (-2, 1, 4), f"{INVALID} [-2,1,4]"),
    ],
)
def test_a_dimension_left_open_or_below_that_is_refused(spec, shape, text):
    message = refusal(spec, tensor("A", *shape, data=bytes(16)), tensor("B", shape[0], 4, data=bytes(16)))
    assert message == f"[request id: r1] {text}"


@pytest.mark.parametrize("shape", [(1, 2**62, 4), (0, 2**62, 4), (1, 0, 2**63)])
def test_an_element_count_past_64_bits_is_refused(shape):
    # With a zero among the dimensions there is nothing to hold, but a framework may multiply the others
    # first.
    message = refusal(model(fp32("A", -1, -1)), tensor("A", *shape, data=b""))
    assert message == f"[request id: r1] element count for tensor 'A' exceeds maximum size of {INT64_MAX}"


def test_a_byte_size_past_64_bits_is_refused():
    message = refusal(GROWING, tensor("A", 1, 2**60, 4, data=b""), tensor("B", 1, 4))
    assert message == f"[request id: r1] byte size for tensor 'A' exceeds maximum size of {INT64_MAX}"


@pytest.mark.parametrize(
    ("spec", "shape", "size", "expected"),
    [
        (ADD, (2, 4), 31, 32),
        (ADD, (2, 4), 33, 32),
        (GROWING, (2, 3, 4), 0, 96),
        (GROWING, (2, 0, 4), 1, 0),
    ],
)
def test_a_wrong_number_of_bytes_is_refused(spec, shape, size, expected):
    message = refusal(spec, tensor("A", *shape, data=bytes(size)), tensor("B", 2, 4))
    assert (
        message
        == f"[request id: r1] input byte size mismatch for input 'A' for model 'add'. Expected {expected}, got {size}"
    )


# Packed BYTES


def test_strings_of_any_length_are_accepted():
    data = pack_bytes([b"", b"a", b"bc" * 300, b"d"])
    request = request_of(tensor("A", 2, 2, datatype=DataType.BYTES, data=data))
    Validator(TEXT)(request)
    assert (request.rows, request.nbytes) == (2, len(data))


@pytest.mark.parametrize("lengths", [[3] * 40, [0] * 40, [3, 5] * 20, list(range(40))])
def test_many_strings_are_accepted_whether_or_not_they_are_alike(lengths):
    data = pack_bytes([b"x" * length for length in lengths])
    request = request_of(tensor("A", 1, 40, datatype=DataType.BYTES, data=data))
    Validator(LONG_TEXT)(request)
    assert request.nbytes == len(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            pack_bytes([b"ab"]) + b"\x01\x00",
            "incomplete string length indicator for inference input 'A' for model 'add', expecting 4 bytes but only 2 "
            "bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            pack_bytes([b"ab", b"cd"]) + b"\x01",
            "incomplete string length indicator for inference input 'A' for model 'add', expecting 4 bytes but only 1 "
            "bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            pack_bytes([b"ab", b"cd", b"ef", b"gh"]),
            "unexpected number of string elements 3 for inference input 'A' for model 'add', expecting 2",
        ),
        (
            pack_bytes([b"ab"]),
            "expected 2 string elements for inference input 'A' for model 'add', got 1",
        ),
        (b"", "expected 2 string elements for inference input 'A' for model 'add', got 0"),
        (
            pack_bytes([b"ab", b"abcde"])[:-2],
            "string element 1 of inference input 'A' for model 'add' is cut short: its length says 5 bytes, 3 are there",
        ),
    ],
)
def test_strings_that_do_not_fit_are_refused(data, text):
    message = refusal(TEXT, tensor("A", 1, 2, datatype=DataType.BYTES, data=data))
    assert message == f"[request id: r1] {text}"


def test_an_even_size_is_not_proof_of_even_strings():
    data = bytearray(pack_bytes([b"abcd"] * 20))
    data[8] = 200  # the second length
    message = refusal(LONG_TEXT, tensor("A", 1, 20, datatype=DataType.BYTES, data=data))
    assert "is cut short" in message


def test_strings_are_missing_where_there_are_fewer_bytes_than_lengths_would_take():
    message = refusal(LONG_TEXT, tensor("A", 1, 40, datatype=DataType.BYTES, data=bytes(40)))
    assert message.endswith("expected 40 string elements for inference input 'A' for model 'add', got 10")


@given(
    lengths=st.lists(st.integers(0, 5), max_size=40),
    more=st.integers(-2, 2),
    cut=st.integers(0, 3),
)
def test_strings_are_accepted_exactly_when_they_can_be_unpacked(lengths, more, cut):
    data = pack_bytes([b"x" * length for length in lengths])
    data = data[: len(data) - cut]
    given_tensor = tensor("A", 1, max(0, len(lengths) + more), datatype=DataType.BYTES, data=data)
    try:
        given_tensor.as_numpy()
    except InvalidArgument:
        refusal(LONG_TEXT, given_tensor)
    else:
        Validator(LONG_TEXT)(request_of(given_tensor))


# Long packed BYTES


@pytest.fixture
def many_strings():
    """Return a request of 4,000 strings that are said to be `count`, cut short by `cut` bytes."""

    def make(count=4_000, cut=0):
        data = pack_bytes([b"", b"a"] * 2_000)
        words = tensor("A", 1, count, datatype=DataType.BYTES, data=data[: len(data) - cut])
        return request_of(words, tensor("B", 1, 1, datatype=DataType.BYTES))

    return make


TWO_TEXTS = model(strings("A", -1), strings("B", -1))


def test_long_strings_are_walked_in_slices_before_they_are_checked(many_strings):
    validator, request = Validator(TWO_TEXTS), many_strings()
    assert validator.must_walk(request)
    assert len(list(validator.walk_strings(request))) >= 2
    assert not validator.must_walk(request)
    walked, short = request.strings
    assert (walked.elements, walked.whole, short) == (4_000, True, None)
    validator(request)
    assert (request.rows, request.nbytes) == (1, sum(len(each.data) for each in request.inputs))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ADD, tensor("A", 1, 40_000)),
        (LONG_TEXT, tensor("A", 1, 10, datatype=DataType.BYTES)),
        (LONG_TEXT, tensor("A", 1, 40_000)),
    ],
    ids=["a model without strings", "short strings", "what are no strings"],
)
def test_other_inputs_need_no_walk(spec, words):
    assert not Validator(spec).must_walk(request_of(words))


@pytest.mark.parametrize(
    ("count", "cut", "text"),
    [
        (3_999, 0, "unexpected number of string elements 4000 for inference input 'A'"),
        (4_001, 0, "expected 4001 string elements for inference input 'A' for model 'add', got 4000"),
        (4_000, 1, "string element 3999 of inference input 'A' for model 'add' is cut short: its length"),
        (4_000, 2, "incomplete string length indicator for inference input 'A' for model 'add', expecting"),
        (-1, 0, "All input dimensions should be specified for input 'A'"),
    ],
)
def test_what_is_wrong_with_many_strings_is_told_as_of_few(many_strings, count, cut, text):
    validator, request = Validator(TWO_TEXTS), many_strings(count, cut)
    for _ in validator.walk_strings(request):
        assert request.strings is None
    with pytest.raises(InvalidArgument) as refused:
        validator(request)
    assert refused.value.message.removeprefix("[request id: <id_unknown>] ").startswith(text)


# The order of checks


def test_checks_come_in_the_contracts_order():
    """Each request breaks this rule and every later one, and gets the error of this one."""
    wrong = {"datatype": DataType.INT32, "data": b"1"}
    cases = [
        (refusal(ADD, tensor("A"), tensor("A"), outputs=["S", "S", "X"]), "input 'A' already exists"),
        (refusal(ADD, tensor("X"), outputs=["S", "S", "X"]), "output 'S' already exists"),
        (refusal(ADD, tensor("X"), outputs=["X"]), "unexpected inference output 'X'"),
        (refusal(ADD, tensor("X")), "expected 2 inputs"),
        (refusal(ADD, tensor("A"), tensor("X")), "unexpected inference input 'X'"),
        (refusal(ADD, tensor("A", **wrong), tensor("B", 9, **wrong)), "has no shape"),
        (refusal(ADD, tensor("A", 9, **wrong), tensor("B", 8, **wrong)), "does not match other inputs"),
        (refusal(ADD, tensor("A", 9, **wrong), tensor("B", 9, **wrong)), "batch-size must be"),
        (refusal(ADD, tensor("A", 8, **wrong), tensor("B", 8, **wrong)), "data-type is 'INT32'"),
        (refusal(ADD, tensor("A", 8, data=b"1"), tensor("B", 8, **wrong)), "unexpected shape for input 'A'"),
        (refusal(ADD, tensor("A", 8, -1, data=b"1"), tensor("B", 8, **wrong)), "should be specified"),
        (refusal(ADD, tensor("A", 8, 4, data=b"1"), tensor("B", 8, **wrong)), "byte size mismatch"),
    ]
    for message, expected in cases:
        assert expected in message


# Batch keys


def key(spec, *inputs):
    request = request_of(*inputs)
    Validator(spec)(request)
    hash(request.batch_key)
    return request.batch_key


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        (ADD, (tensor("A", 1, 4), tensor("B", 1, 4))),
        (model(fp32("A", -1, ragged=True)), (tensor("A", 1, 4),)),
    ],
    ids=["fixed", "ragged"],
)
def test_fixed_and_ragged_inputs_need_no_key(spec, inputs):
    assert key(spec, *inputs) is None


def test_variable_inputs_batch_with_their_own_shape_whatever_the_rows_and_the_order():
    first = key(GROWING, tensor("A", 1, 3, 4), tensor("B", 1, 4))
    assert first == key(GROWING, tensor("B", 5, 4), tensor("A", 5, 3, 4))
    assert first != key(GROWING, tensor("A", 1, 2, 4), tensor("B", 1, 4))


def test_padded_inputs_batch_within_their_bucket():
    padded = model(fp32("A", -1, 2, padded=Padded({1: Buckets((4, 8))})))
    assert key(padded, tensor("A", 1, 1, 2)) == key(padded, tensor("A", 3, 4, 2))
    assert key(padded, tensor("A", 1, 4, 2)) != key(padded, tensor("A", 1, 5, 2))


def test_an_input_longer_than_its_largest_bucket_is_refused_unless_it_may_be():
    for longer in (False, True):
        spec = model(fp32("A", -1, padded=Padded({1: Buckets((4, 8), longer)})))
        if longer:
            assert key(spec, tensor("A", 1, 9)) == ((9,),)
            continue
        assert refusal(spec, tensor("A", 1, 9)) == (
            "[request id: r1] dimension 1 of input 'A' for model 'add' is 9, more than the 8 that it is"
            " padded to"
            " (tritium.pad_to). Send at most 8."
        )


def test_the_shape_of_an_unbatched_model_is_whole():
    assert key(UNBATCHED, tensor("A", 4), tensor("B", 7)) != key(UNBATCHED, tensor("A", 4), tensor("B", 6))


def test_two_variable_inputs_do_not_stand_in_for_each_other():
    both = model(fp32("A", -1), fp32("B", -1))
    assert key(both, tensor("A", 1, 2), tensor("B", 1, 3)) != key(both, tensor("A", 1, 3), tensor("B", 1, 2))


def test_with_optional_inputs_only_equal_sets_batch_together():
    a, b, c = tensor("A", 1, 4), tensor("B", 1, 4), tensor("C", 1, 4)
    assert key(OPTIONAL, a, b) == key(OPTIONAL, b, a)
    assert key(OPTIONAL, a, b) != key(OPTIONAL, a, b, c)
    assert key(OPTIONAL, a, b) != key(OPTIONAL, a, c)
    assert key(OPTIONAL, a, b, tensor("D", 1, 2)) != key(OPTIONAL, a, b, tensor("D", 1, 3))


@st.composite
def specs_and_inputs(draw):
    """A model, and the tensors of a request that may or may not fit it."""
    batches = draw(st.booleans())
    declared = [
        InputSpec(
            name=name,
            datatype=draw(st.sampled_from([DataType.INT8, DataType.FP16, DataType.BYTES])),
            dims=tuple(draw(st.lists(st.sampled_from([-1, 1, 2]), min_size=1, max_size=2))),
            optional=draw(st.booleans()),
        )
        for name in draw(st.sampled_from(["A", "AB", "ABC"]))
    ]
    rows = draw(st.integers(0, 3))
    tensors = []
    for spec in declared:
        if spec.optional and draw(st.booleans()):
            continue
        dims = [draw(st.integers(0, 3)) if dim == -1 else dim for dim in spec.dims]
        tensors.append(tensor(spec.name, *([rows] if batches else []), *dims, datatype=spec.datatype))
    return model(*declared, max_batch_size=3 if batches else 0), tensors


@given(specs_and_inputs())
def test_whatever_fits_its_declaration_is_accepted_with_exact_figures(case):
    spec, tensors = case
    request = request_of(*tensors)
    Validator(spec)(request)
    assert request.nbytes == sum(len(tensor.data) for tensor in tensors)
    assert request.rows == (tensors[0].shape[0] if tensors and spec.batches else 1)


@pytest.mark.slow
@given(specs_and_inputs(), st.data())
def test_spoiling_one_dimension_or_the_data_of_one_input_is_noticed(case, data):
    spec, tensors = case
    if not tensors:
        return
    spoilt = data.draw(st.sampled_from(tensors))
    at = data.draw(st.integers(0, len(spoilt.shape)))
    if at == len(spoilt.shape):
        spoilt.data = bytes(spoilt.data) + b"\x00"
    else:
        spoilt.shape = (*spoilt.shape[:at], spoilt.shape[at] + 4, *spoilt.shape[at + 1 :])
        if 0 in spoilt.shape:
            return  # as empty as before
    refusal(spec, *tensors)


@given(
    st.lists(st.sampled_from((0, 1, 3, 8, 9)), min_size=2, max_size=2),
    st.sampled_from(((4,), (2, 2), (5,), ())),
    st.sampled_from((DataType.FP32, DataType.INT64)),
    st.sampled_from((0, -4, 4)),
)
def test_a_request_in_the_configurations_order_is_judged_as_one_in_another_order(rows, dims, datatype, more):
    spec = model(fp32("A", 4), fp32("B", 2, 2))
    first = tensor("A", rows[0], *dims, datatype=datatype)
    first.data = bytes(max(0, len(first.data) + more))
    inputs = (first, tensor("B", rows[1], 2, 2))
    outcomes: list[Any] = []
    for order in (inputs, inputs[::-1]):
        request = request_of(*order)
        try:
            Validator(spec)(request)
        except InvalidArgument:
            outcomes.append(None)
        else:
            outcomes.append((request.rows, request.nbytes, request.batch_key, request.requested_outputs))
    assert outcomes[0] == outcomes[1]
