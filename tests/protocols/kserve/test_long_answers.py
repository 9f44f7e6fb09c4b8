"""Long answers are made in slices, and are what they would be in one piece."""

import json

import numpy as np
import pytest

from actors.seams.steps import at_once
from actors.values.datatypes import DataType
from actors.values.errors import TritiumError
from actors.values.requests import InferResponse
from actors.values.tensors import Tensor, pack_bytes
from protocols.kserve.generate import encode_generated
from protocols.kserve.long_answers import encode_long, encode_long_generated, is_long, is_long_generated
from protocols.kserve.meanings import BINARY_OUTPUTS, JSON_OUTPUTS, OutputChoice, OutputPlan
from protocols.kserve.responses import encode
from tests.protocols.fakes import make_spec

SPEC = make_spec("m", labels=("cat", "dog"))


def tensor(name, array, datatype=None):
    return Tensor.from_numpy(name, np.asarray(array), datatype)


def strings(name, elements):
    return Tensor(name, DataType.BYTES, (len(elements),), pack_bytes(elements))


def response(*outputs, **more):
    return InferResponse(model_name="m", model_version=3, id="r\xe9", outputs=outputs, **more)


OUTPUTS = {
    "floats": tensor("S", np.linspace(-1, 1, 5000, dtype=np.float32)),
    "doubles": tensor("S", np.linspace(-1, 1, 5000).reshape(50, 100)),
    "not finite": tensor("S", np.array([np.nan, 1.5, np.inf, -np.inf] * 2000, np.float32)),
    "integers": tensor("S", np.arange(-5000, 5000, dtype=np.int64)),
    "booleans": tensor("S", np.arange(9000) % 3 == 0),
    "one": tensor("S", np.array([1.5], np.float32)),
    "none": tensor("S", np.empty((0, 3), np.float32)),
    "strings": strings("S", [b"", b'a"b', "é\n".encode()] * 3000),
    "strings that are not UTF-8": strings("S", [b"\xff\xfe", b"a"] * 3000),
    "long strings": strings("S", [b"a", "é€😀\x07".encode() * 20_000, b"b", b"\xff" * 40_000, b"c"]),
    "short strings": strings("S", [b"%d" % (n * 7919 % 10 ** (n % 7)) for n in range(20_000)]),
    "short strings to be escaped": strings("S", [b"%d" % n + rb"\"" + b"\r\n\t" for n in range(9000)]),
    "short strings, some with rare controls": strings(
        "S", [b"%d" % n + (b"\x07\0\x1f" if n % 3000 == 0 else b"") for n in range(9000)]
    ),
    "short strings, some of them long": strings(
        "S", [b"%d" % n * (300 if n % 200 == 7 else 1) for n in range(9000)]
    ),
    "short strings that are not UTF-8": strings("S", [b"\xff\x80%d" % n for n in range(9000)]),
    "empty and short strings": strings("S", [b"%d" % n if n % 3 else b"" for n in range(9000)]),
    "no strings": strings("S", []),
    "one string": strings("S", ["é😀".encode() * 50_000]),
}


def whole(body):
    assert body.size == sum(map(len, body.buffers))
    return b"".join(body.buffers)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_json_output_is_written_as_in_one_piece(name):
    answer = response(OUTPUTS[name], parameters={"a": 1})
    in_slices = at_once(encode_long(answer, JSON_OUTPUTS, SPEC))
    assert whole(in_slices) == whole(encode(answer, JSON_OUTPUTS, SPEC))
    assert in_slices.json_size is None


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_generated_answer_is_written_as_in_one_piece(name):
    answer = response(OUTPUTS[name], parameters={"zeta": 1, "S": 5, "alpha": "x"})
    assert b"".join(at_once(encode_long_generated(answer))) == encode_generated(answer)


def test_an_answer_without_an_id_is_written_as_in_one_piece():
    answer = InferResponse(model_name="m", model_version=3, outputs=(OUTPUTS["floats"],))
    assert b"".join(at_once(encode_long_generated(answer))) == encode_generated(answer)
    assert whole(at_once(encode_long(answer, JSON_OUTPUTS, SPEC))) == whole(
        encode(answer, JSON_OUTPUTS, SPEC)
    )


def test_a_text_that_fills_its_last_buffer_has_no_empty_one_behind_it():
    def sizes(length):
        answer = InferResponse(model_name="m", model_version=3, id="x" * length, outputs=(OUTPUTS["floats"],))
        return list(map(len, at_once(encode_long(answer, JSON_OUTPUTS, SPEC)).buffers))

    filling = 256 * 1024 - sum(sizes(1)) + 1
    assert sizes(filling) == [256 * 1024]
    assert sizes(filling + 2) == [256 * 1024, 2]


def test_outputs_come_each_in_the_form_that_was_asked_for():
    outputs = [tensor(name, np.arange(9000, dtype=np.float32)) for name in ("S", "D", "extra", "C")]
    choices = {"S": OutputChoice(True, 0), "D": OutputChoice(False, 0), "C": OutputChoice(False, 3)}
    answer, plan = response(*outputs), OutputPlan(False, choices)
    spec = make_spec("m", max_batch_size=0)
    in_slices = at_once(encode_long(answer, plan, spec))
    assert whole(in_slices) == whole(encode(answer, plan, spec))
    assert json.loads(whole(in_slices)[: in_slices.json_size])["outputs"][2]["data"][:3] == [
        "8999.000000:8999",
        "8998.000000:8998",
        "8997.000000:8997",
    ]
    assert in_slices.borrowed


@pytest.mark.parametrize("classes", [1, 7, 20_000, 10**9])
def test_classes_of_long_rows_are_those_of_short_ones(classes):
    values = np.random.default_rng(1).integers(0, 1000, (2, 20_000)).astype(np.int32)
    plan = OutputPlan(False, {"S": OutputChoice(True, classes)})
    answer = response(tensor("S", values))
    batched = make_spec("m", labels=("cat", "dog"), max_batch_size=8)
    assert whole(at_once(encode_long(answer, plan, batched))) == whole(encode(answer, plan, batched))


WRONG = {
    "a shape": Tensor("S", DataType.FP32, (9001,), bytes(36_000)),
    "too few strings": Tensor("S", DataType.BYTES, (3,), pack_bytes([b"a"] * 2)),
    "too many strings": Tensor("S", DataType.BYTES, (1,), pack_bytes([b"a"] * 2)),
    "a string that is cut short": Tensor("S", DataType.BYTES, (2,), pack_bytes([b"a"] * 2)[:-1]),
    "half floats": Tensor("S", DataType.FP16, (4,), bytes(8)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_be_written_is_refused_as_in_one_piece(name):
    answer = response(WRONG[name])
    with pytest.raises(TritiumError) as short:
        encode(answer, JSON_OUTPUTS, SPEC)
    with pytest.raises(type(short.value)) as long:
        at_once(encode_long(answer, JSON_OUTPUTS, SPEC))
    assert long.value.message == short.value.message


@pytest.mark.parametrize("name", ["floats", "strings", "long strings", "not finite"])
def test_work_on_a_long_answer_stops_at_least_once_for_every_4096_elements_or_32_kib(name):
    output = OUTPUTS[name]
    stops = sum(1 for _ in encode_long(response(output), JSON_OUTPUTS, SPEC))
    assert stops >= max(len(output.data) // (32 * 1024), output.shape[0] // 4096)


def test_many_short_strings_are_written_some_thousand_at_a_time():
    output = OUTPUTS["short strings"]
    stops = sum(1 for _ in encode_long(response(output), JSON_OUTPUTS, SPEC))
    assert stops <= len(output.data) // (32 * 1024) + 3


def test_only_what_must_be_written_as_text_makes_an_answer_long():
    big = tensor("S", np.zeros(100_000, np.float32))
    small = tensor("S", np.zeros(10, np.float32))
    assert is_long(response(big), JSON_OUTPUTS)
    assert not is_long(response(small), JSON_OUTPUTS)
    assert not is_long(response(big), BINARY_OUTPUTS)
    assert not is_long(response(big), OutputPlan(False, {"S": OutputChoice(True, 0)}))
    assert not is_long(response(big), OutputPlan(False, {"D": OutputChoice(False, 0)}))
    assert is_long(response(big), OutputPlan(False, {"S": OutputChoice(True, 5)}))
    assert is_long_generated(response(big))
    assert not is_long_generated(response(small))
