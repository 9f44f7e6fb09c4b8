"""Do two versions answer alike? What is kept of answers, and where they are said to differ."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.traffic.policy.comparison import KEPT_BYTES, Difference, compare, keep, kept_bytes
from actors.values.datatypes import DataType
from actors.values.tensors import Tensor

TOLERANCE = 1e-5


def tensor(values, datatype=None, name="OUT"):
    return Tensor.from_numpy(name, np.asarray(values), datatype)


def fp32(*values):
    return tensor(np.array(values, np.float32))


def compared(client, mirror, tolerance=TOLERANCE):
    """Compare two answers, each a list of tensors; return the difference as an API client sees it."""
    found = compare(keep(client, borrowed=False), keep(mirror, borrowed=True), tolerance)
    return None if found is None else found.as_dict()


def test_equal_answers_are_alike_in_any_order_of_outputs():
    a, b = tensor(np.arange(6), name="A"), tensor(["x", "yz"], name="B")
    assert compared([a, b], [b, a]) is None


def test_an_output_that_one_of_them_lacks_is_named():
    a, b = tensor([1], name="A"), tensor([1], name="B")
    assert compared([a, b], [a]) == {"what": "output", "output": "B", "client": "there", "mirror": "missing"}
    assert compared([a], [a, b]) == {"what": "output", "output": "B", "client": "missing", "mirror": "there"}


def test_a_difference_of_whole_answers_names_no_output():
    difference = Difference("error", "OK", "INTERNAL: no memory")
    assert difference.as_dict() == {"what": "error", "client": "OK", "mirror": "INTERNAL: no memory"}


def test_datatypes_and_shapes_come_before_values():
    assert compared([fp32(1)], [tensor(np.array([1], np.float16))]) == {
        "what": "datatype",
        "output": "OUT",
        "client": "FP32",
        "mirror": "FP16",
    }
    assert compared([fp32(1, 2)], [fp32(1)]) == {
        "what": "shape",
        "output": "OUT",
        "client": [2],
        "mirror": [1],
    }


def test_the_first_element_that_differs_is_shown_and_all_are_counted():
    client = np.zeros((2, 3), np.int64)
    mirror = client.copy()
    mirror[0, 2], mirror[1, 1] = 7, 8
    assert compared([tensor(client)], [tensor(mirror)]) == {
        "what": "value",
        "output": "OUT",
        "index": [0, 2],
        "elements": 2,
        "client": 0,
        "mirror": 7,
    }


def test_a_scalar_that_differs_has_an_empty_index():
    assert compared([tensor(np.int32(1))], [tensor(np.int32(2))])["index"] == []


@pytest.mark.parametrize(
    ("client", "mirror"),
    [(1.0, 1.0 + 1e-6), (1e6, 1e6 + 5), (0.0, 5e-6), (math.nan, math.nan), (math.inf, math.inf)],
)
def test_floats_within_the_tolerance_are_alike(client, mirror):
    assert compared([tensor(np.array([client]))], [tensor(np.array([mirror]))]) is None


@pytest.mark.parametrize(
    ("client", "mirror", "shown"),
    [
        (1.0, 1.0001, [1.0, 1.0001]),
        (math.inf, 1.0, ["inf", 1.0]),
        (1.0, -math.inf, [1.0, "-inf"]),
        (math.inf, -math.inf, ["inf", "-inf"]),
        (math.nan, 0.0, ["nan", 0.0]),
    ],
)
def test_floats_beyond_the_tolerance_differ(client, mirror, shown):
    found = compared([tensor(np.array([client]))], [tensor(np.array([mirror]))])
    assert [found["client"], found["mirror"]] == shown


def test_no_tolerance_means_equality():
    assert compared([tensor(np.array([1.0]))], [tensor(np.array([1.0 + 1e-15]))], 0.0) is not None
    assert compared([tensor(np.array([-0.0]))], [tensor(np.array([0.0]))], 0.0) is None


def test_half_precision_formats_are_compared_by_value():
    def bf16(value):
        bits = np.array([value], "<f4").view("<u4") >> 16
        return Tensor.from_numpy("OUT", bits.astype("<u2"), DataType.BF16)

    assert compared([bf16(1.5)], [bf16(1.5078125)], 0.01) is None
    assert compared([bf16(1.5)], [bf16(2.0)], 0.01)["mirror"] == 2.0
    halves = [tensor(np.array([value], np.float16)) for value in (1.0, 1.001)]
    assert compared(halves[:1], halves[1:], 0.01) is None


def test_strings_differ_where_they_differ():
    found = compared([tensor(["a", "bcd", "e"])], [tensor(["a", "bc", "ef"])])
    assert found == {"what": "value", "output": "OUT", "index": [1], "client": "bcd", "mirror": "bc"}


def test_long_strings_are_shown_in_part():
    found = compared([tensor(["x" * 1000])], [tensor([b"\xff"])])
    assert found["client"] == "x" * 63 + "…"
    assert found["mirror"] == "\ufffd"


def test_an_output_that_contradicts_itself_is_compared_by_its_bytes():
    broken = Tensor("OUT", DataType.FP32, (2,), b"\0" * 7)
    assert compared([broken], [broken]) is None
    assert compared([broken], [fp32(0, 0)]) == {
        "what": "value",
        "output": "OUT",
        "client": "7 bytes",
        "mirror": "8 bytes",
    }
    packed = Tensor("OUT", DataType.BYTES, (1,), b"\1\0\0\0a\0")
    assert compared([packed], [tensor(["a"])])["client"] == "6 bytes"
    more = Tensor("OUT", DataType.BYTES, (1,), b"\0\0\0\0" * 2)
    other = Tensor("OUT", DataType.BYTES, (1,), b"\0\0\0\0\1\0\0\0a")
    assert compared([more], [other])["index"] == [1]


def test_what_is_borrowed_is_copied():
    memory = bytearray(np.zeros(4, np.float32).tobytes())
    kept = keep([Tensor("OUT", DataType.FP32, (4,), memoryview(memory))], borrowed=True)
    memory[:] = b"\xff" * 16
    assert compare(kept, keep([fp32(0, 0, 0, 0)], borrowed=False), 0.0) is None


# -- large answers


def large(elements, datatype=np.float32):
    return np.arange(elements, dtype=datatype).reshape(2, -1)


def test_of_a_large_answer_a_sample_is_kept():
    answer = [tensor(large(1_000_000)), tensor(large(1_000_000, np.int64), name="IDS")]
    kept = keep(answer, borrowed=True)
    assert kept_bytes(kept) < KEPT_BYTES / 4
    assert compare(kept, keep(answer, borrowed=False), 0.0) is None


def test_a_small_answer_is_kept_whole():
    answer = [tensor(large(KEPT_BYTES // 4))]
    assert kept_bytes(keep(answer, borrowed=False)) == KEPT_BYTES


def test_a_sampled_element_that_differs_is_found_where_it_is():
    other = large(1_000_000)
    other[1] += 1  # the second half
    found = compared([tensor(large(1_000_000))], [tensor(other)], 0.0)
    index = tuple(found["index"])
    assert index[0] == 1
    assert found["client"] == large(1_000_000)[index]
    assert found["mirror"] == other[index]
    assert found["elements"] > 1000


def test_of_large_strings_the_beginning_and_the_length_are_compared():
    words = ["word" * 1000] * 300
    assert compared([tensor(words)], [tensor(words)]) is None
    assert compared([tensor(words)], [tensor(["s" + words[0], *words[1:]])])["index"] == [0]
    assert compared([tensor(words)], [tensor([*words[1:], words[0] + "s"])])["mirror"] == "1201201 bytes"


dims = st.lists(st.integers(0, 4), max_size=3)


@given(dims, st.sampled_from(["f4", "f8", "i8", "u1", "?"]), st.floats(0, 1), st.data())
def test_an_answer_is_like_itself_and_unlike_one_with_another_element(shape, dtype, tolerance, data):
    count = math.prod(shape)
    values = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    array = np.array(values, dtype).reshape(shape)
    assert compared([tensor(array)], [tensor(array)], tolerance) is None
    if count:
        at = data.draw(st.integers(0, count - 1))
        other = array.copy().reshape(-1)
        other[at] = 0 if dtype == "?" and other[at] else other[at] + 3
        found = compared([tensor(array)], [tensor(other.reshape(shape))], tolerance)
        assert found["index"] == [int(each) for each in np.unravel_index(at, shape)]
