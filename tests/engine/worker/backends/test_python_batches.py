"""How the answers of a Python model's batch reach their requests: joined if alike, else one by one."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.python.source import Source
from engine.worker.backends.testing import LocalRequest, run
from tests.support.examples import examples

PORTS = {
    "inputs": [("X", DataType.FP32, [2]), ("N", DataType.INT32, [1])],
    "outputs": [("Y", DataType.FP32, [-1]), ("Z", DataType.INT32, [1])],
    "max_batch_size": 64,
}
FORMS = {
    "same": "[y, z]",
    "swapped": "[z, y]",
    "other rank": "[pb_utils.Tensor('Y', y.as_numpy()[..., None]), z]",
    "other width": "[pb_utils.Tensor('Y', np.repeat(y.as_numpy(), 2, axis=1)), z]",
    "other type": "[pb_utils.Tensor('Y', y.as_numpy().astype('f8')), z]",
    "one less": "[y]",
    "undeclared": "[y, z, pb_utils.Tensor('W', np.ones(3))]",
    "none": "[]",
}
SOURCE = f"""
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        form = request.request_id()
        if form == "error":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        n = pb_utils.get_input_tensor_by_name(request, "N").as_numpy()
        y, z = pb_utils.Tensor("Y", x * 2), pb_utils.Tensor("Z", n + 1)
        if form == "parameters":
            return pb_utils.InferenceResponse([y, z], parameters={{"k": 1}})
        if form == "bytes":
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full(n.shape, b"t", object)), z])
        forms = {{{", ".join(f"{name!r}: lambda: {value}" for name, value in FORMS.items())}}}
        return pb_utils.InferenceResponse(forms[form]())
"""


@pytest.fixture
def shaping(python_model):
    """A model whose requests say by their ids what form their responses take."""
    return python_model(SOURCE, **PORTS)


def make(form, rows, number, wanted=()):
    x = np.full((rows, 2), number, "f4")
    n = np.arange(number, number + rows, dtype="i4")[:, None]
    return LocalRequest({"X": x, "N": n}, id=form, requested_outputs=list(wanted))


def expected(request):
    if request.id == "error":
        return {}
    x, n = request.inputs["X"] * 2, request.inputs["N"] + 1
    outputs = {"Y": x, "Z": n}
    match request.id:
        case "other rank":
            outputs["Y"] = x[..., None]
        case "other width":
            outputs["Y"] = np.repeat(x, 2, axis=1)
        case "other type":
            outputs["Y"] = x.astype("f8")
        case "bytes":
            outputs["Y"] = np.full(n.shape, b"t", object)
        case "one less":
            del outputs["Z"]
        case "none":
            outputs = {}
    return {name: array for name, array in outputs.items() if name in request.requested_outputs}


requests = st.builds(
    make,
    st.sampled_from([*FORMS, "same", "same", "same", "error", "parameters", "bytes"]),
    st.integers(1, 4),
    st.integers(0, 100),
    st.sampled_from([(), ("Y",), ("Z", "Y")]),
)


@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(requests, min_size=1, max_size=8))
def test_every_request_gets_its_own_outputs_whatever_its_batchmates_get(shaping, batch):
    backend, info = shaping
    answers = run(backend, info, batch)
    assert len(answers) == len(batch)
    for request, answer in zip(batch, answers, strict=True):
        assert answer.code is (ErrorCode.NOT_FOUND if request.id == "error" else None)
        assert answer.parameters == ({"k": 1} if request.id == "parameters" else {})
        wanted = expected(request)
        assert answer.outputs.keys() == wanted.keys()
        for name, array in wanted.items():
            assert answer.outputs[name].dtype == array.dtype
            assert answer.outputs[name].tolist() == array.tolist()


def test_outputs_that_nobody_asked_for_are_dropped_and_missing_ones_are_absent(shaping):
    backend, info = shaping
    batch = [make("one less", 1, 1, ["Y", "Z"]), make("one less", 1, 2, ["Z"]), make("undeclared", 1, 3)]
    answers = run(backend, info, batch)
    assert [sorted(answer.outputs) for answer in answers] == [["Y"], [], ["Y", "Z"]]


def test_a_model_without_a_batch_dimension_gets_and_gives_whole_tensors(python_model):
    backend, info = python_model(SOURCE, **{**PORTS, "max_batch_size": 0})
    [answer] = run(backend, info, [LocalRequest({"X": np.ones(2, "f4"), "N": np.ones(1, "i4")}, id="same")])
    assert answer.outputs["Y"].tolist() == [2, 2]


def test_a_batch_larger_than_the_model_allows_is_refused(python_model):
    backend, info = python_model(SOURCE, **{**PORTS, "max_batch_size": 2})
    for answer in run(backend, info, [make("same", 2, 1), make("same", 1, 1)]):
        assert (answer.code, answer.message) == (
            ErrorCode.INTERNAL,
            "batch size 3 for 'model_0_0', max allowed is 2",
        )


def test_an_optional_input_that_the_client_left_out_is_missing(python_model):
    source = """
class TritonPythonModel:
    def execute(self, requests):
        assert pb_utils.get_input_tensor_by_name(requests[0], "N") is None
        return [pb_utils.InferenceResponse([], parameters={"inputs": ",".join(t.name() for t in requests[0].inputs())})]
"""
    backend, info = python_model(source, **PORTS)
    [answer] = run(backend, info, [LocalRequest({"X": np.ones((1, 2), "f4")})])
    assert answer.parameters == {"inputs": "X"}


def test_a_sender_that_is_taken_when_the_answers_are_given_is_closed(python_model):
    backend, info = python_model(
        """
class TritonPythonModel:
    def execute(self, requests):
        self.kept = requests
        return [pb_utils.InferenceResponse([]) for _ in requests]
    def is_ready(self):
        assert not self.kept[0].is_cancelled()
        try:
            self.kept[0].get_response_sender().send(pb_utils.InferenceResponse([]), 1)
        except pb_utils.TritonModelException as error:
            return str(error) == "Unable to send response. Response sender has been closed."
""",
        **PORTS,
    )
    request = make("same", 1, 1)
    run(backend, info, [request])
    request.is_cancelled = True
    assert backend.ready()


def test_one_request_may_be_answered_by_its_sender_and_the_others_by_the_list(python_model):
    backend, info = python_model(
        """
class TritonPythonModel:
    def execute(self, requests):
        out = [pb_utils.InferenceResponse([pb_utils.Tensor("Z", r.inputs()[1].as_numpy())]) for r in requests]
        requests[1].get_response_sender().send(out[1], pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        out[1] = None
        return out
""",
        **PORTS,
    )
    answers = run(backend, info, [make("", 1, number) for number in (3, 4, 5)])
    assert [answer.outputs["Z"].tolist() for answer in answers] == [[[3]], [[4]], [[5]]]


# -- a Python model's file: what is imported is what lies there now, and its folder is left as it is


CODE = "class TritonPythonModel:\n    answer = {}\n"


@pytest.fixture
def version(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    return folder


def loaded(folder):
    info: Any = SimpleNamespace(
        artifact="", version=1, version_directory=str(folder), model_directory=str(folder.parent)
    )
    source = Source(info)
    try:
        return source.load().answer
    finally:
        source.forget()


def test_a_file_that_is_written_twice_within_a_second_is_read_twice(version):
    for answer in (1, 2):
        (version / "model.py").write_text(CODE.format(answer))
        os.utime(version / "model.py", (1_700_000_000, 1_700_000_000))
        assert loaded(version) == answer


def test_a_models_folder_is_not_written_to(version):
    (version / "model.py").write_text(CODE.format(1))
    (version / "beside.py").write_text("")
    loaded(version)
    assert sorted(each.name for each in version.iterdir()) == ["beside.py", "model.py"]
