"""Padding to buckets: how it is written, which shapes it makes, and how much of a batch it is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.padding.observing import FAMILIES, PaddingObserver, counts_of, pads
from actors.padding.policy import fits, read_buckets, read_cuts, read_values
from actors.serving.ports import BatchObserver
from actors.values.datatypes import DataType
from actors.values.families import Labels, blocks
from actors.values.padding import Buckets, CutBack, Padded
from actors.values.requests import InferRequest
from actors.values.specs import InputSpec
from actors.values.tensors import Tensor
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True).map(sorted)


@given(SIZES, st.booleans(), st.integers(0, 60))
def test_a_size_goes_into_the_least_bucket_that_holds_it(sizes, longer, size):
    buckets = Buckets(sizes, longer)
    padded = buckets.fit(size)
    holding = [each for each in sizes if each >= size]
    assert padded == (holding[0] if holding else size)
    assert buckets.refuses(size) is (not holding and not longer)
    assert buckets.fit(padded) == padded


@given(st.dictionaries(st.integers(0, 2), SIZES, min_size=1), st.tuples(*[st.integers(0, 60)] * 3))
def test_only_the_named_dimensions_are_padded(sizes, shape):
    padded = Padded({axis: Buckets(each) for axis, each in sizes.items()}).shape(shape)
    for axis, (own, made) in enumerate(zip(shape, padded, strict=True)):
        assert made == (Buckets(sizes[axis]).fit(own) if axis in sizes else own)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["X", "input ids", "a:b", "x=y"]), st.integers(0, 9)),
        st.tuples(SIZES, st.booleans()),
        min_size=1,
    )
)
def test_buckets_are_read_as_they_are_written(written):
    text = "; ".join(
        f"{name}:{axis}={','.join(map(str, sizes))}{',*' if longer else ''}"
        for (name, axis), (sizes, longer) in written.items()
    )
    read = {(name, axis): each for name, axes in read_buckets(text).items() for axis, each in axes.items()}
    assert read == {key: Buckets(tuple(sizes), longer) for key, (sizes, longer) in written.items()}


def test_cuts_and_values_are_read_as_they_are_written():
    assert read_cuts("Y:1=X:1;Y:2=Z:1 ; W:1 = X:2") == {
        "Y": (CutBack(1, "X", 1), CutBack(2, "Z", 1)),
        "W": (CutBack(1, "X", 2),),
    }
    values = read_values("A=-1; B=0.5; C=true; D=false; E=-inf")
    assert values == {"A": -1, "B": 0.5, "C": 1, "D": 0, "E": -math.inf}
    assert isinstance(values["A"], int)


SIZED = (
    "give 'X:1' sizes from 1 to 2147483647 that grow, such as 'X:1=64,128,256'; a '*' behind them lets longer"
    " requests run in their own size"
)
NO_SIZES = ["*", "8,4", "4,4", "0,4", "4,,8", "a", "2147483648", "*,4"]
WRONG = [
    (read_buckets, "", "write 'INPUT_IDS:1=64,128,256', with ';' between several"),
    (read_buckets, "X:1=4;", "write 'INPUT_IDS:1=64,128,256', with ';' between several"),
    (read_buckets, "X=4", "'X' is to name a tensor and its dimension, as in 'INPUT_IDS:1=64,128,256'"),
    (read_buckets, "X:-1=4", "'X:-1' is to name a tensor and its dimension, as in 'INPUT_IDS:1=64,128,256'"),
    (read_buckets, "X:1=4; X:1=8", "give 'X:1' once"),
    *[(read_buckets, f"X:1={sizes}", SIZED) for sizes in NO_SIZES],
    (read_values, "X", "write 'INPUT_IDS=50256', with ';' between several"),
    (read_values, "X=1;X=2", "give 'X' once"),
    (read_values, "X=nothing", "give 'X' a number, such as 'X=0', or true or false"),
    (read_cuts, "Y=X:1", "'Y' is to name a tensor and its dimension, as in 'LOGITS:1=INPUT_IDS:1'"),
    (read_cuts, "Y:1=X", "'X' is to name a tensor and its dimension, as in 'LOGITS:1=INPUT_IDS:1'"),
    (read_cuts, "Y:1=X:1;Y:1=Z:1", "give 'Y:1' once"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "text", "said"), WRONG)
def test_a_mistake_says_what_is_to_be_written(read, text, said):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # its text is compared
        read(text)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("value", "datatype", "held"),
    [
        (0, DataType.BOOL, True),
        (2, DataType.BOOL, False),
        (-1, DataType.UINT8, False),
        (255, DataType.UINT8, True),
        (256, DataType.UINT8, False),
        (-128, DataType.INT8, True),
        (0.5, DataType.INT64, False),
        (2**63 - 1, DataType.INT64, True),
        (2**63, DataType.INT64, False),
        (2**64 - 1, DataType.UINT64, True),
        (65504, DataType.FP16, True),
        (65536, DataType.FP16, False),
        (-math.inf, DataType.FP16, True),
        (1e39, DataType.FP32, False),
        (1e39, DataType.FP64, True),
        (0.5, DataType.BF16, True),
        (3.4e38, DataType.BF16, False),
    ],
)
def test_a_value_must_be_one_of_the_tensors_type(value, datatype, held):
    assert fits(value, datatype) is held


def request_of(*tensors, padding=False):
    kind = type("Row", (InferRequest,), {"padding": True}) if padding else InferRequest
    return kind(model_name="m", reply=NoPort(), accepted_at=0.0, inputs=tensors)


def test_the_padding_of_a_batch_is_counted():
    padded = Padded({1: Buckets((4, 8))})
    spec = make_spec(
        inputs=(
            InputSpec(name="X", datatype=DataType.FP32, dims=(-1,), padded=padded),
            InputSpec(name="T", datatype=DataType.BYTES, dims=(-1,), padded=padded),
            InputSpec(name="N", datatype=DataType.FP32, dims=(-1,)),
        )
    )
    assert pads(spec)
    assert not pads(make_spec())
    observer = PaddingObserver(spec)
    x = Tensor("X", DataType.FP32, (2, 3), bytes(24))
    batch = [
        request_of(x, Tensor("N", DataType.FP32, (2, 3), bytes(24))),
        request_of(
            Tensor("T", DataType.BYTES, (1, 4), bytes(16)), Tensor("X", DataType.FP32, (1, 5), bytes(20))
        ),
        request_of(x, padding=True),
    ]
    observer.dispatched(type("Batch", (), {"requests": batch})(), None)  # type: ignore[arg-type]
    counts = counts_of([BatchObserver(), observer])
    assert counts is observer.counts
    assert (counts.own, counts.added) == (24 + 16 + 20, 2 * 4 + 3 * 4)
    assert counts_of([BatchObserver()]) is None
    told = {block.name: block.series[0].value for block in blocks(FAMILIES, [(Labels({}), counts)])}
    assert told == {"tritium_padding_bytes_total": 20, "tritium_padded_input_bytes_total": 60}
