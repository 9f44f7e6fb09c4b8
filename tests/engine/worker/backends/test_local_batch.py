"""The in-memory batch keeps the worker's rules."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, Unavailable
from engine.worker.backends.base import Backend, TensorInfo
from engine.worker.backends.testing import LocalBatch, LocalRequest, model_info, run

FP32 = DataType.FP32
MODEL = model_info(
    inputs=[TensorInfo("X", FP32, [2])],
    outputs=[TensorInfo("Y", FP32, [2]), TensorInfo("Z", FP32, [2])],
    max_batch_size=8,
)


def rows(*values):
    return LocalRequest({"X": np.array([[value, value] for value in values], "f4")})


class Scripted(Backend):
    """Does in `execute` what the test says."""

    def __init__(self, act):
        self._act = act

    def load(self, model):
        pass

    def execute(self, batch):
        self._act(batch)


def test_a_batch_stacks_its_requests_in_order():
    batch = LocalBatch(MODEL, [rows(1), rows(2, 3)])
    assert batch.rows == 3
    assert batch.stacked("X")[:, 0].tolist() == [1, 2, 3]


def test_a_stacked_answer_is_cut_into_each_requests_rows():
    def double(batch):
        batch.respond([("Y", FP32, batch.stacked("X") * 2)])

    first, second = run(Scripted(double), MODEL, [rows(1), rows(2, 3)])
    assert first.outputs["Y"].tolist() == [[2, 2]]
    assert second.outputs["Y"].tolist() == [[4, 4], [6, 6]]


def test_outputs_nobody_asked_for_are_dropped():
    request = rows(1)
    request.requested_outputs = ["Z"]

    def both(batch):
        assert batch.wanted_outputs == {"Z"}
        batch.respond([("Y", FP32, batch.stacked("X")), ("Z", FP32, batch.stacked("X"))])

    [answer] = run(Scripted(both), MODEL, [request])
    assert list(answer.outputs) == ["Z"]


def test_the_wanted_outputs_are_those_of_all_requests():
    first, second = rows(1), rows(2)
    first.requested_outputs = ["Y"]
    second.requested_outputs = ["Z"]
    assert LocalBatch(MODEL, [first, second]).wanted_outputs == {"Y", "Z"}


def test_answers_are_copies():
    kept = np.zeros((1, 2), "f4")

    def reuse(batch):
        batch.respond([("Y", FP32, kept)])
        kept[:] = 7

    [answer] = run(Scripted(reuse), MODEL, [rows(1)])
    assert answer.outputs["Y"].tolist() == [[0, 0]]


def test_a_wrong_number_of_rows_fails_the_batch():
    def short(batch):
        batch.respond([("Y", FP32, np.zeros((1, 2), "f4"))])

    answers = run(Scripted(short), MODEL, [rows(1), rows(2)])
    assert [answer.code for answer in answers] == [ErrorCode.INTERNAL] * 2
    assert "a batch of 2 rows needs [2, ...]" in answers[0].message


def test_a_second_answer_is_refused():
    def twice(batch):
        batch.requests[0].respond([])
        with pytest.raises(RuntimeError):
            batch.requests[0].fail(ErrorCode.INTERNAL, "late")

    [answer] = run(Scripted(twice), MODEL, [rows(1)])
    assert answer.code is None


def test_an_exception_fails_only_what_is_unanswered():
    def half(batch):
        batch.requests[0].respond([("Y", FP32, batch.requests[0].input("X"))])
        raise Unavailable("no more")

    first, second = run(Scripted(half), MODEL, [rows(1), rows(2)])
    assert first.code is None
    assert (second.code, second.message) == (ErrorCode.UNAVAILABLE, "no more")


def test_a_request_left_without_an_answer_is_failed():
    [answer] = run(Scripted(lambda batch: None), MODEL, [rows(1)])
    assert answer.code is ErrorCode.INTERNAL


def test_a_request_knows_its_datatypes_and_what_is_absent():
    batch = LocalBatch(MODEL, [rows(1)])
    assert batch.requests[0].input_datatype("X") is FP32
    with pytest.raises(KeyError):
        batch.requests[0].input_datatype("W")


def test_bytes_can_not_be_allocated():
    with pytest.raises(ValueError, match="no fixed size"):
        LocalBatch(MODEL, [rows(1)]).allocate("Y", DataType.BYTES, [1])


def test_a_model_without_batching_takes_one_request_at_a_time():
    single = model_info(inputs=[TensorInfo("X", FP32, [2])], outputs=[TensorInfo("Y", FP32, [2])])
    with pytest.raises(ValueError, match="one request at a time"):
        LocalBatch(single, [rows(1), rows(2)])
    with pytest.raises(ValueError, match="same inputs"):
        LocalBatch(MODEL, [rows(1), LocalRequest({})])


# -- the backend in `docs/backends.md` passes the test that is printed beside it


DOCUMENT = Path(__file__).parents[4] / "docs" / "backends.md"


def test_the_printed_backend_passes_the_printed_test(monkeypatch, tmp_path):
    backend, test = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    for name in ("polynomial", "polynomial.backend"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    exec(backend, sys.modules["polynomial.backend"].__dict__)
    namespace: dict[str, Any] = {}
    exec(test, namespace)
    namespace["test_a_polynomial_is_evaluated"](tmp_path)
