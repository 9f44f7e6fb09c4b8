"""What the reference models receive and answer, as the harness and its checker see it."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.record.records import Invoke
from chaos.workload import answers
from chaos.workload.backends.kinds import BACKENDS, harmed_by, left_out
from chaos.workload.onnx_model import add_sub
from tests.chaos.workload_clients import invoke

VALUES = st.integers(-answers.LARGEST, answers.LARGEST)


def computed_by_onnx(session, *invoked: Invoke):
    """What ONNX Runtime makes of these requests in one batch: the values for each."""
    given_inputs = [answers.inputs(each) for each in invoked]
    stacked = {name: np.concatenate([each[name] for each in given_inputs]) for name in ("A", "B")}
    outputs = session.run(list(answers.OUTPUTS["add_sub"]), stacked)
    return [
        answers.values("add_sub", dict(zip(answers.OUTPUTS["add_sub"], rows, strict=True)))
        for rows in zip(*outputs, strict=True)
    ]


@given(VALUES, VALUES)
def test_onnx_runtime_computes_what_is_expected_of_add_sub(one, other):
    session = onnxruntime.InferenceSession(add_sub())
    asked = [invoke("add_sub", one), invoke("add_sub", other)]
    assert computed_by_onnx(session, *asked) == [answers.expected(each) for each in asked]


def test_add_sub_can_be_made_to_divide_by_zero():
    session = onnxruntime.InferenceSession(add_sub())
    with pytest.raises(Exception, match="by zero"):
        computed_by_onnx(session, invoke("add_sub", 1), invoke("add_sub", 2, poison="raise"))


@given(VALUES)
def test_echo_and_slow_answer_with_the_value_itself(value):
    for model in ("echo", "slow"):
        asked = invoke(model, value)
        assert answers.values(model, {"ANSWER": answers.inputs(asked)["VALUE"]}) == answers.expected(asked)


@given(VALUES, VALUES)
def test_no_two_values_have_the_same_answer(one, other):
    for model in ("echo", "add_sub", "slow", "batching", "pipeline", "stream"):
        same = answers.expected(invoke(model, one)) == answers.expected(invoke(model, other))
        assert same is (one == other)


def test_a_counter_answers_with_the_sum_of_what_came_before_in_its_sequence():
    sequence = [invoke("counter", value, sequence=4) for value in (5, -2, 40)]
    sums = [answers.expected(each, sequence[:place]) for place, each in enumerate(sequence)]
    assert sums == [(5,), (3,), (43,)]


def test_a_stream_answers_with_as_many_parts_as_are_asked_for():
    assert answers.expected(invoke("stream", 7, parts=3)) == (7, 8, 9)
    assert answers.inputs(invoke("stream", 7, parts=3)) == {"VALUE": [7], "PARTS": [3]}


def test_poison_is_one_more_input_of_whatever_is_made_in_python():
    for model in ("echo", "slow", "batching", "counter", "pipeline", "stream"):
        poison = answers.inputs(invoke(model, 3, poison="segv"))["POISON"]
        assert poison.dtype == object
        assert poison.ravel().tolist() == [b"segv"]


def test_poison_of_add_sub_is_in_its_numbers():
    for poison, divisor in answers.DIVISORS.items():
        given_inputs = answers.inputs(invoke("add_sub", 3, poison=poison))
        assert given_inputs.keys() == {"A", "B"}
        assert (given_inputs["A"].item(), given_inputs["B"].item()) == (3, divisor)


def test_a_poison_that_add_sub_has_not_is_refused_with_those_it_has():
    with pytest.raises(ValueError, match="'segv', only to raise, fpe, hang"):
        answers.inputs(invoke("add_sub", 3, poison="segv"))


def test_an_output_that_is_missing_makes_an_answer_wrong():
    outputs = {name: np.array([[1]], np.int32) for name in ("SUM", "REMAINDER")}
    assert answers.values("add_sub", outputs) == (1, 1)
    assert answers.values("echo", {"ANSWER": np.array([[4], [5]], np.int32)}) == (4, 5)


def test_a_copy_of_a_model_by_another_name_answers_the_same():
    asked = invoke("batching-churned", 4)
    assert answers.expected(asked) == (13,)
    assert answers.inputs(asked)["VALUE"].item() == 4


def test_a_model_that_is_none_of_the_reference_is_refused():
    with pytest.raises(ValueError, match="kind 'resnet', only echo, slow"):
        answers.kind_of("resnet-2")


@pytest.mark.parametrize("kind", answers.ADDERS)
def test_every_adder_is_asked_and_answers_as_add_sub(kind):
    assert answers.expected(invoke(kind, 50)) == (57, 43, 1)
    assert answers.inputs(invoke(kind, 50)) == {"A": [[50]], "B": [[answers.ADDEND]]}


@given(st.integers(0, answers.LARGEST))
def test_a_forest_is_given_the_bits_of_a_number(value):
    [bits] = answers.inputs(invoke("fil", value))["input__0"]
    assert bits.dtype == np.float32
    assert sum(int(bit) << place for place, bit in enumerate(bits)) == value
    assert answers.expected(invoke("fil", value)) == (value,)


def test_every_backend_without_tensorflow_says_why_it_is_left_out():
    assert {"tensorflow", "tensorrt"} <= left_out("").keys()
    assert "tensorflow" not in left_out("/an/environment")
    assert harmed_by("fpe") == ("exported", "torchscript", "library")
    assert set(BACKENDS) <= set(answers.OUTPUTS)
