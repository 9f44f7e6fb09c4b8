"""Requests of different shapes in one batch: joined flat, told apart by batch inputs, padded and cut."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.padding import Buckets, CutBack, Padded
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.onnxruntime import OnnxRuntimeBackend
from engine.worker.backends.pytorch import PyTorchBackend
from engine.worker.backends.testing import LocalBatch, LocalRequest, model_info, run
from tests.support.ragged import summing_onnx

FP32 = DataType.FP32
KINDS = {
    "BATCH_ELEMENT_COUNT": [3, 2, 4],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 5, 9],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 3, 5, 9],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0, 0, 0, 0],
    "BATCH_ITEM_SHAPE": [[3], [1], [1], [4]],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 1, 1, 4],
}


def made(kind, target="made", data_type="TYPE_INT32", source="X"):
    return {"kind": kind, "target_name": [target], "data_type": data_type, "source_input": [source]}


def ragged(**options):
    return model_info(
        inputs=[TensorInfo("X", FP32, [-1], ragged=True)],
        outputs=[TensorInfo("Y", FP32, [-1])],
        max_batch_size=8,
        **options,
    )


def requests(*shapes, name="X", dtype="f4"):
    return [LocalRequest({name: np.arange(np.prod(shape)).reshape(shape).astype(dtype)}) for shape in shapes]


@pytest.mark.parametrize(("kind", "expected"), KINDS.items(), ids=KINDS)
@pytest.mark.parametrize("data_type", ["TYPE_INT32", "TYPE_FP32"])
def test_each_kind_of_batch_input_tells_where_requests_are(kind, expected, data_type):
    model = ragged(config={"batch_input": [made(kind, data_type=data_type)]})
    batch = LocalBatch(model, requests((1, 3), (2, 1), (1, 4)))
    feeds = batch.feeds()
    assert feeds["X"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert feeds["made"].tolist() == expected
    assert feeds["made"].dtype == (np.int32 if data_type == "TYPE_INT32" else np.float32)
    alone = batch.requests[0].feeds()
    assert alone["X"].tolist() == [0, 1, 2]
    assert list(alone) == ["X", "made"]


def test_an_item_has_as_many_numbers_as_the_source_has_dims():
    model = model_info(
        inputs=[TensorInfo("X", FP32, [-1, 2], ragged=True)],
        outputs=[],
        max_batch_size=8,
        config={"batch_input": [made("BATCH_ITEM_SHAPE"), made("BATCH_ITEM_SHAPE_FLATTEN", "flat")]},
    )
    feeds = LocalBatch(model, requests((2, 3, 2), (1, 1, 2))).feeds()
    assert feeds["made"].tolist() == [[3, 2], [3, 2], [1, 2]]
    assert feeds["flat"].tolist() == [3, 2, 3, 2, 1, 2]


def test_what_is_made_of_an_absent_input_is_absent():
    model = model_info(
        inputs=[TensorInfo("X", FP32, [-1], ragged=True, optional=True), TensorInfo("Z", FP32, [1])],
        outputs=[],
        max_batch_size=8,
        config={"batch_input": [made("BATCH_ELEMENT_COUNT")]},
    )
    assert list(LocalBatch(model, requests((1, 1), name="Z")).feeds()) == ["Z"]


def test_one_batch_input_may_have_several_names():
    written = {**made("BATCH_ELEMENT_COUNT"), "target_name": ["a", "b"]}
    feeds = LocalBatch(ragged(config={"batch_input": [written]}), requests((1, 2))).feeds()
    assert (feeds["a"].tolist(), feeds["b"].tolist()) == ([2], [2])


def test_a_python_model_takes_its_requests_one_by_one():
    config = {"backend": "python", "batch_input": [made("BATCH_ELEMENT_COUNT")]}
    batch = LocalBatch(ragged(config=config), requests((1, 2), (1, 3)))
    assert [request.input("X").shape for request in batch.requests] == [(1, 2), (1, 3)]
    assert list(batch.feeds()) == ["X"]


def test_without_batches_a_request_is_one_item_of_its_whole_shape():
    model = model_info(
        inputs=[TensorInfo("X", FP32, [-1, 2], ragged=True)],
        outputs=[],
        config={"batch_input": [made("BATCH_ITEM_SHAPE"), made("BATCH_ELEMENT_COUNT", "count")]},
    )
    feeds = LocalBatch(model, requests((3, 2))).feeds()
    assert feeds["X"].shape == (6,)
    assert feeds["made"].tolist() == [[3, 2]]
    assert feeds["count"].tolist() == [6]


def test_without_batches_an_input_is_padded_whole_and_an_output_cut():
    buckets = {0: Buckets((4,))}
    model = model_info(
        inputs=[TensorInfo("X", FP32, [-1, 2], padded=Padded(buckets, 7))],
        outputs=[TensorInfo("Y", FP32, [-1, 2], cuts=(CutBack(0, "X", 0),))],
    )
    [answer] = run(Echo(), model, requests((1, 2)))
    assert answer.outputs["Y"].tolist() == [[0, 1]]
    padded = LocalBatch(model, requests((1, 2))).feeds()["X"]
    assert padded.tolist() == [[0, 1], [7, 7], [7, 7], [7, 7]]


def test_a_request_that_is_run_by_itself_must_fit_its_shape_too():
    model = ragged(config={"batch_output": [{"target_name": ["Y"], "kind": "", "source_input": ["X"]}]})
    [request] = LocalBatch(model, requests((1, 3))).requests
    with pytest.raises(
        ValueError, match=r"output 'Y' has 2 elements; for input 'X' of shape \[1, 3\] it must"
    ):
        request.respond([("Y", FP32, np.zeros(2, "f4"))])
    request.respond([("Y", FP32, np.zeros(3, "f4"))])
    assert request.answer is not None
    assert request.answer.outputs["Y"].shape == (1, 3)


# -- an ONNX model that sums the elements of each request, and doubles each element


@pytest.fixture(scope="module")
def summing(tmp_path_factory):
    """SUM[i] = the sum of request i, DOUBLE = 2 X, of a flat X and the counts of its requests."""
    directory = tmp_path_factory.mktemp("summing") / "1"
    directory.mkdir()
    (directory / "model.onnx").write_bytes(summing_onnx())
    return directory


def summing_model(directory, *, kind="BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", ragged=True, **changed):
    return model_info(
        directory,
        inputs=[TensorInfo("X", FP32, [-1], ragged=ragged)],
        outputs=[TensorInfo("SUM", FP32, [1]), TensorInfo("DOUBLE", FP32, [-1])],
        max_batch_size=8,
        config={
            "batch_input": [made(kind, "ENDS")],
            "batch_output": [
                {
                    "target_name": ["DOUBLE"],
                    "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
                    "source_input": ["X"],
                }
            ],
            **changed,
        },
    )


@pytest.fixture(scope="module")
def loaded(summing):
    backend, model = OnnxRuntimeBackend(), summing_model(summing)
    backend.load(model)
    return backend, model


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9), min_size=0, max_size=5), min_size=1, max_size=8))
def test_an_onnx_model_answers_a_batch_as_it_answers_each_request(loaded, rows):
    backend, model = loaded
    arrays = [np.array(row, "f4").reshape(1, -1) for row in rows]
    answers = run(backend, model, [LocalRequest({"X": x}) for x in arrays])
    for x, answer in zip(arrays, answers, strict=True):
        [alone] = run(backend, model, [LocalRequest({"X": x})])
        assert answer.outputs["SUM"].tolist() == alone.outputs["SUM"].tolist() == [[x.sum()]]
        assert answer.outputs["DOUBLE"].tolist() == alone.outputs["DOUBLE"].tolist() == (2 * x).tolist()


def test_one_request_at_fault_fails_alone(onnx_model):
    directory = onnx_model.save(
        [("Gather", ["T", "X"], ["Y"])],
        [("X", "INT64", ["n"])],
        [("Y", "FLOAT", ["n"])],
        initializers=[numpy_helper.from_array(np.array([5, 6, 7], "f4"), "T")],
    )
    model = model_info(
        directory,
        inputs=[TensorInfo("X", DataType.INT64, [-1], ragged=True)],
        outputs=[TensorInfo("Y", FP32, [-1])],
        max_batch_size=8,
        config={"batch_output": [{"target_name": ["Y"], "kind": "", "source_input": ["X"]}]},
    )
    backend = OnnxRuntimeBackend()
    backend.load(model)
    good, bad, last = run(
        backend, model, [LocalRequest({"X": np.array([row])}) for row in ([2, 1], [99], [0, 0, 1])]
    )
    assert good.outputs["Y"].tolist() == [[7, 6]]
    assert last.outputs["Y"].tolist() == [[5, 5, 6]]
    assert bad.code is ErrorCode.INTERNAL


def test_a_request_gets_only_what_it_asked_for(loaded):
    backend, model = loaded
    first, second = requests((1, 3), (1, 2))
    first.requested_outputs = ["DOUBLE"]
    answers = run(backend, model, [first, second])
    assert [list(answer.outputs) for answer in answers] == [["DOUBLE"], ["SUM", "DOUBLE"]]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"batch_input": []}, "configuration expects 1 inputs, model provides 2"),
        (
            {"batch_input": [made("BATCH_ELEMENT_COUNT", "ELSE")]},
            "unexpected inference input 'ELSE', allowed inputs are: ENDS, X",
        ),
        (
            {"batch_input": [made("BATCH_ELEMENT_COUNT", "ENDS", "TYPE_FP32")]},
            "configuration expects datatype TYPE_FP32 for input 'ENDS', model provides TYPE_INT32",
        ),
        (
            {"batch_input": [made("BATCH_ITEM_SHAPE", "ENDS")]},
            "tensor 'ENDS': the model expects 1 dimensions (shape [-1]) but the model configuration specifies"
            " 2 dimensions (shape [-1,1])",
        ),
    ],
)
def test_a_graph_without_such_a_batch_input_is_not_loaded(summing, changed, text):
    with pytest.raises(LoadError) as error:
        OnnxRuntimeBackend().load(summing_model(summing, **changed))
    assert str(error.value).removeprefix("unable to load ") == f"model 'model', {text}"


def test_a_graph_input_that_is_not_flat_takes_no_ragged_batch(onnx_model):
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 4])], [("Y", "FLOAT", ["n", 4])]
    )
    model = model_info(
        directory,
        inputs=[TensorInfo("X", FP32, [4], ragged=True)],
        outputs=[TensorInfo("Y", FP32, [4])],
        max_batch_size=8,
    )
    with pytest.raises(LoadError) as error:
        OnnxRuntimeBackend().load(model)
    assert str(error.value) == (
        "unable to load model 'model', configuration expects model provides input with shape [-1]  for"
        " ragged input 'X',"
        " model provides [-1,4]"
    )


def test_an_optional_input_of_an_onnx_model_is_not_ragged(onnx_model):
    directory = onnx_model.save([("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n"])], [("Y", "FLOAT", ["n"])])
    model = model_info(
        directory,
        inputs=[TensorInfo("X", FP32, [-1], ragged=True, optional=True)],
        outputs=[TensorInfo("Y", FP32, [-1])],
    )
    with pytest.raises(LoadError, match="ragged input 'X', which is not supported for optional input"):
        OnnxRuntimeBackend().load(model)


def test_ragged_text_is_one_list(onnx_model):
    directory = onnx_model.save(
        [("StringConcat", ["X", "X"], ["Y"])], [("X", "STRING", ["n"])], [("Y", "STRING", ["n"])]
    )
    model = model_info(
        directory,
        inputs=[TensorInfo("X", DataType.BYTES, [-1], ragged=True)],
        outputs=[TensorInfo("Y", DataType.BYTES, [-1])],
        max_batch_size=8,
        config={"batch_output": [{"target_name": ["Y"], "kind": "", "source_input": ["X"]}]},
    )
    backend = OnnxRuntimeBackend()
    backend.load(model)
    texts = [np.array([row], object) for row in ([b"a", b"bc"], [b""], [b"d"])]
    answers = run(backend, model, [LocalRequest({"X": text}) for text in texts])
    assert [answer.outputs["Y"].tolist() for answer in answers] == [[[b"aa", b"bcbc"]], [[b""]], [[b"dd"]]]


# -- PyTorch: the sum of each request's elements, and twice each element


class Segments(torch.nn.Module):
    def forward(self, X: torch.Tensor, N: torch.Tensor):
        sizes: list[int] = N.to(torch.int64).tolist()
        sums = [part.sum() for part in torch.split(X, sizes)]
        return torch.stack(sums).reshape(-1, 1), X * 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_torchscript_model_answers_a_batch_as_it_answers_each_request(version_directory):
    torch.jit.script(Segments()).save(version_directory / "model.pt")
    model = model_info(
        version_directory,
        inputs=[TensorInfo("X", FP32, [-1], ragged=True)],
        outputs=[TensorInfo("SUM", FP32, [1]), TensorInfo("DOUBLE", FP32, [-1])],
        max_batch_size=8,
        config={
            "batch_input": [made("BATCH_ELEMENT_COUNT", "N")],
            "batch_output": [{"target_name": ["DOUBLE"], "kind": "", "source_input": ["X"]}],
        },
    )
    backend = PyTorchBackend()
    backend.load(model)
    arrays = [np.arange(size, dtype="f4").reshape(1, -1) for size in (3, 1, 7)]
    answers = run(backend, model, [LocalRequest({"X": x}) for x in arrays])
    assert [answer.outputs["SUM"].tolist() for answer in answers] == [[[3]], [[0]], [[21]]]
    assert [answer.outputs["DOUBLE"].tolist() for answer in answers] == [(2 * x).tolist() for x in arrays]


# -- padding


def padding(sizes, *, outputs=(), datatype=FP32, value=0, longer=False, dims=(-1,), **options):
    buckets = {axis: Buckets(each, longer) for axis, each in sizes.items()}
    return model_info(
        inputs=[TensorInfo("X", datatype, dims, padded=Padded(buckets, value))],
        outputs=[TensorInfo(name, datatype, dims, cuts=cuts) for name, cuts in outputs],
        max_batch_size=8,
        **options,
    )


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=4),
    st.integers(-3, 3),
)
def test_a_padded_batch_holds_each_request_and_nothing_else(shapes, value):
    model = padding({1: [4], 2: [6]}, dims=(-1, -1), value=value)
    arrays = [np.random.default_rng(0).integers(5, 9, shape).astype("f4") for shape in shapes]
    batch = LocalBatch(model, [LocalRequest({"X": x}) for x in arrays])
    padded = batch.feeds()["X"]
    assert padded.shape == (sum(len(x) for x in arrays), 4, 6)
    start = 0
    for x, request in zip(arrays, batch.requests, strict=True):
        share = padded[start : start + len(x)]
        assert (share[:, : x.shape[1], : x.shape[2]] == x).all()
        assert (share == value).sum() == share.size - x.size
        assert (request.input("X") == share).all()
        start += len(x)


@pytest.mark.parametrize(
    ("datatype", "array", "value", "element"),
    [
        (DataType.BYTES, np.array([[b"a"]], object), 0, b""),
        (DataType.BOOL, np.array([[True]]), 1, True),
        (DataType.BF16, np.array([[1]], "u2"), 1.0, 0x3F80),
        (DataType.BF16, np.array([[1]], "u2"), -float("inf"), 0xFF80),
        (DataType.INT64, np.array([[1]]), -(2**63), -(2**63)),
        (FP32, np.array([[1]], "f4"), float("-inf"), float("-inf")),
    ],
)
def test_padding_is_of_the_tensors_type(datatype, array, value, element):
    model = padding({1: [3]}, datatype=datatype, value=value)
    padded = LocalBatch(model, [LocalRequest({"X": array})]).feeds()["X"]
    assert padded.tolist() == [[array[0, 0], element, element]]


def test_requests_of_the_buckets_size_are_not_padded():
    model = padding({1: [3]})
    batch = LocalBatch(model, requests((1, 3), (2, 3)))
    assert batch.feeds()["X"].shape == (3, 3)
    assert LocalBatch(padding({1: [3]}, longer=True), requests((1, 5))).feeds()["X"].shape == (1, 5)


class Echo(OnnxRuntimeBackend):
    """Y = X, or what `answer` says."""

    answer: Any = None

    def load(self, model):
        pass

    def execute(self, batch):
        batch.respond([("Y", FP32, batch.feeds()["X"] if self.answer is None else self.answer)])


def test_outputs_are_cut_back_to_each_requests_own_size():
    model = padding({1: [4, 8]}, outputs=[("Y", (CutBack(1, "X", 1),))])
    answers = run(Echo(), model, requests((1, 3), (2, 4), (1, 1)))
    assert [answer.outputs["Y"].tolist() for answer in answers] == [
        [[0, 1, 2]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0]],
    ]


def test_an_output_that_is_not_of_the_padded_size_is_no_answer():
    backend = Echo()
    backend.answer = np.zeros((2, 5), "f4")
    model = padding({1: [4]}, outputs=[("Y", (CutBack(1, "X", 1),))])
    first, second = run(backend, model, requests((1, 3), (1, 2)))
    assert first.code is second.code is ErrorCode.INTERNAL
    assert first.message == (
        "ValueError: output 'Y' has shape [1, 5]; 'tritium.pad_outputs' cuts its dimension 1 like dimension"
        " 1 of input 'X',"
        " which was padded to 4"
    )


def test_a_flat_output_of_another_size_is_no_answer():
    backend = Echo()
    backend.answer = np.zeros(4, "f4")
    model = ragged(config={"batch_output": [{"target_name": ["Y"], "kind": "", "source_input": ["X"]}]})
    first, _ = run(backend, model, requests((1, 3), (1, 2)))
    assert first.message == (
        "ValueError: output 'Y' has 4 elements; the shapes of input 'X' of this batch make 5"
    )


def test_a_graph_of_one_size_takes_what_is_padded_to_it(onnx_model):
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 4])], [("Y", "FLOAT", ["n", "m"])]
    )
    backend = OnnxRuntimeBackend()
    for sizes in ([4, 8], [5]):
        with pytest.raises(LoadError, match="the model expects 2 dimensions"):
            backend.load(_on(directory, padding({1: sizes})))
    model = _on(directory, padding({1: [4]}, outputs=[("Y", (CutBack(1, "X", 1),))]))
    backend.load(model)
    [answer] = run(backend, model, requests((1, 3)))
    assert answer.outputs["Y"].tolist() == [[0, 1, 2]]


def _on(directory, model):
    model.version_directory = str(directory)
    return model
