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
from engine.worker.devices.arrays import DeviceArray

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


# -- inputs and outputs on a device, which is host memory here


def on_device(array, datatype=FP32):
    return DeviceArray(array, array.ctypes.data, array.shape, datatype, device=1, device_id=0)


def there(*values, **options):
    return LocalRequest({"X": on_device(rows(*values).inputs["X"])}, **options)


class Taking(Scripted):
    device_tensors = True


def test_inputs_on_a_device_are_given_there_and_copied_for_who_wants_them_here():
    batch = LocalBatch(MODEL, [there(1), there(2, 3)])
    assert (batch.device_inputs, batch.rows) == ({"X"}, 3)
    assert batch.stacked("X")[:, 0].tolist() == batch.feeds()["X"][:, 0].tolist() == [1, 2, 3]
    for request, expected in zip(batch.requests, ([1], [2, 3]), strict=True):
        array = request.device_input("X")
        assert array is not None
        assert array.shape == (len(expected), 2)
        for copied in (array.to_host(), request.input("X"), request.feeds()["X"]):
            assert copied[:, 0].tolist() == expected
    assert LocalBatch(MODEL, [rows(1)]).device_inputs == frozenset()
    assert rows(1).device_input("X") is None


def test_a_stacked_answer_on_a_device_is_cut_into_each_requests_rows():
    result = np.arange(6, dtype="f4").reshape(3, 2)

    def give(batch):
        assert batch.device_outputs == {"Y"}
        batch.respond([("Y", FP32, on_device(result)), ("Z", FP32, on_device(result))])
        result[:] = 7

    requests = [there(1, device_outputs=["Y", "Z"]), there(2, 3, device_outputs=["Y"])]
    requests[1].requested_outputs = ["Y"]
    first, second = run(Taking(give), MODEL, requests)
    assert (first.on_device, second.on_device) == ({"Y", "Z"}, {"Y"})
    assert first.outputs["Y"].tolist() == first.outputs["Z"].tolist() == [[0, 1]]
    assert {name: array.tolist() for name, array in second.outputs.items()} == {"Y": [[2, 3], [4, 5]]}


def test_outputs_that_nobody_reads_on_the_device_are_copied():
    def give(batch):
        batch.requests[0].respond([("Y", FP32, on_device(np.ones((1, 2), "f4")))])

    [answer] = run(Taking(give), MODEL, [there(1)])
    assert (answer.on_device, answer.outputs["Y"].tolist()) == (set(), [[1, 1]])


def test_an_array_on_a_device_must_be_of_the_outputs_datatype_and_rows():
    half = on_device(np.ones((1, 2), "f2"), DataType.FP16)
    [answer] = run(Taking(lambda batch: batch.respond([("Y", FP32, half)])), MODEL, [there(1)])
    assert "output 'Y' is FP16 on the device, not FP32" in answer.message
    [answer] = run(Taking(lambda batch: batch.respond([("Y", FP32, half)])), MODEL, [there(1, 2)])
    assert "a batch of 2 rows needs [2, ...]" in answer.message


def test_what_a_worker_would_never_give_is_refused():
    with pytest.raises(ValueError, match="for all of its requests, or for none"):
        LocalBatch(MODEL, [there(1), rows(2)])
    with pytest.raises(ValueError, match="has `device_tensors = False`"):
        run(Scripted(lambda batch: None), MODEL, [there(1)])


@pytest.mark.parametrize("device", [1, 3])
def test_an_array_without_elements_is_copied_without_its_address(device):
    empty = DeviceArray(None, 0, (0, 3), DataType.BF16, device=device, device_id=0)
    assert (empty.to_host().shape, empty.to_host().dtype) == ((0, 3), np.uint16)


# -- each backend in `docs/backends.md` passes the test that is printed behind it


DOCUMENT = Path(__file__).parents[4] / "docs" / "backends.md"


@pytest.mark.parametrize(
    ("at", "package", "name"),
    [
        (0, "polynomial", "test_a_polynomial_is_evaluated"),
        (2, "doubling", "test_an_input_on_the_device_is_doubled_there"),
    ],
)
def test_a_printed_backend_passes_the_printed_test(monkeypatch, tmp_path, at, package, name):
    printed = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(printed) == 4
    for module in (package, f"{package}.backend"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    exec(printed[at], sys.modules[f"{package}.backend"].__dict__)
    namespace: dict[str, Any] = {}
    exec(printed[at + 1], namespace)
    namespace[name](tmp_path)
