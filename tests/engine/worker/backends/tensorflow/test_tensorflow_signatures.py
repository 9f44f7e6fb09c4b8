"""A SavedModel's signature completes a configuration and is compared with it. TensorFlow is not needed."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.tensorflow.backend import TensorFlowBackend
from engine.worker.backends.tensorflow.signatures import NotASavedModel, read_graphs
from engine.worker.backends.testing import model_info
from tests.support.foreign_models import saved_model, tagged_graphs

FLOAT, INT32, STRING, COMPLEX, BFLOAT16 = 1, 3, 7, 8, 14
FP32 = DataType.FP32
CONFIG = {"platform": "tensorflow_savedmodel"}
X, Y = ("x", "X:0", FLOAT, [-1, 4]), ("y", "Y:0", FLOAT, [-1, 3])
SERVING = "serving_default"


def write(version, inputs=(X,), outputs=(Y,), *, tags=("serve",), signature=SERVING):
    tagged_graphs(version / "model.savedmodel", {tags: {signature: (inputs, outputs)}})


def complete(version, config=CONFIG, **told):
    info = model_info(version, inputs=[], outputs=[], config=config, **told)
    completed = TensorFlowBackend.complete_config(info)
    assert completed is not None
    return completed


def load(version, inputs, outputs, config=CONFIG, **told):
    """Load as far as that is possible without TensorFlow."""
    sides = [[TensorInfo(*each) for each in side] for side in (inputs, outputs)]
    TensorFlowBackend().load(model_info(version, inputs=sides[0], outputs=sides[1], config=config, **told))


# -- completion


def test_a_signature_whose_tensors_begin_with_any_size_batches(version):
    write(version, [X, ("text", "T:0", STRING, [-1])], [Y])
    assert complete(version) == {
        "platform": "tensorflow_savedmodel",
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [
            {"name": "text", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []}},
            {"name": "x", "data_type": "TYPE_FP32", "dims": [4]},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
    }
    assert complete(version, settings={"default-max-batch-size": "1"})["max_batch_size"] == 1


def test_a_signature_of_fixed_sizes_does_not_batch_and_a_scalar_has_one_element(version):
    write(version, [("n", "N:0", INT32, [])], [("y", "Y:0", FLOAT, [2, -1])])
    found = complete(version)
    assert found["max_batch_size"] == 0
    assert "dynamic_batching" not in found
    assert (found["input"][0]["dims"], found["output"][0]["dims"]) == ([1], [2, -1])


def test_what_is_written_is_kept_and_merged_by_name(version):
    write(version, [X, ("other", "O:0", INT32, [-1, -1])], [Y])
    written: dict[str, Any] = {
        **CONFIG,
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2, 2], "reshape": {"shape": [4]}}],
        "output": [{"name": "y", "label_filename": "labels.txt", "data_type": "TYPE_INVALID", "dims": []}],
    }
    found = complete(version, written)
    assert found["max_batch_size"] == 8
    assert found["input"] == [
        written["input"][0],
        {"name": "other", "data_type": "TYPE_INT32", "dims": [-1]},
    ]
    assert found["output"] == [
        {"name": "y", "label_filename": "labels.txt", "data_type": "TYPE_FP32", "dims": [3]}
    ]


def test_controls_and_states_of_sequences_are_no_inputs_of_clients(version):
    write(
        version,
        [X, ("start", "S:0", FLOAT, [-1, 1]), ("before", "B:0", FLOAT, [-1, 2])],
        [Y, ("after", "A:0", FLOAT, [-1, 2])],
    )
    sequences = {
        "control_input": [{"name": "start"}],
        "state": [{"input_name": "before", "output_name": "after"}],
    }
    found = complete(version, {**CONFIG, "sequence_batching": sequences})
    assert [each["name"] for each in found["input"]] == ["x"]
    assert [each["name"] for each in found["output"]] == ["y"]
    assert "dynamic_batching" not in found


def test_a_batch_size_for_a_signature_that_does_not_batch_is_refused(version):
    write(version, [("x", "X:0", FLOAT, [1, 4])])
    with pytest.raises(LoadError) as refused:
        complete(version, {**CONFIG, "max_batch_size": 8})
    assert str(refused.value) == (
        "unable to autofill for 'model', configuration specified max-batch 8 but model signature does not"
        " support batching"
    )


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (("x", "X:0", COMPLEX, [-1]), "TensorFlow's type complex64, which requests can't carry"),
        (("x", "", FLOAT, [-1]), "sparse or composed of several tensors, which requests can't carry"),
        (("x", "X:0", FLOAT, None), "gives no shape for input 'x'; write its dims into config.pbtxt"),
    ],
)
def test_a_tensor_that_can_not_be_completed_is_told(version, tensor, text):
    write(version, [tensor])
    with pytest.raises(LoadError, match=text):
        complete(version)


def test_a_graph_def_tells_nothing(version):
    with pytest.raises(LoadError, match="a GraphDef does not say which of its tensors are inputs"):
        complete(version, {"platform": "tensorflow_graphdef"})


def test_completion_needs_no_tensorflow(version):
    saved_model(version / "model.savedmodel")
    here = "tensorflow" in sys.modules
    assert complete(version)["input"][0]["name"] == "features"
    assert ("tensorflow" in sys.modules) == here


# -- graphs and signatures


def test_the_graph_with_the_tag_alone_is_taken(version):
    tagged_graphs(
        version / "model.savedmodel",
        {("serve", "tpu"): {SERVING: ([X], [])}, ("serve",): {SERVING: ([X], [Y])}},
    )
    assert complete(version)["output"]


def test_a_signature_of_another_name_is_taken_with_a_warning_unless_one_is_named(version):
    signatures = {"__saved_model_init_op": ([], []), "predict": ([X], [Y])}
    tagged_graphs(version / "model.savedmodel", {("serve",): signatures})
    logged = []
    assert complete(version, log=lambda *each: logged.append(each))["input"]
    assert logged[0][0] == "warning"
    assert "using signature 'predict'" in logged[0][1]
    with pytest.raises(LoadError, match="expected 'serving_default' signature; its signatures are: predict"):
        complete(version, parameters={"TF_SIGNATURE_DEF": SERVING})


def test_a_model_without_a_signature_is_refused(version):
    tagged_graphs(version / "model.savedmodel", {("serve",): {"__saved_model_init_op": ([], [])}})
    with pytest.raises(LoadError, match="expected 'serving_default' signature; its signatures are: none"):
        complete(version)


def test_a_tag_that_is_not_there_is_refused(version):
    write(version, tags=("train",))
    with pytest.raises(
        LoadError, match="unable to load model 'model', expected 'serve' tag; its tags are: train"
    ):
        load(version, [("x", FP32, [4])], [("y", FP32, [3])])


# -- the configuration against the model


@pytest.mark.parametrize(
    ("inputs", "outputs", "told", "text"),
    [
        ([("z", FP32, [4])], [], {}, "unexpected inference input 'z', allowed inputs are: x"),
        (
            [("x", FP32, [4])],
            [("z", FP32, [3])],
            {},
            "unexpected inference output 'z', allowed outputs are: y",
        ),
        ([], [], {}, "configuration expects 0 inputs, model provides 1: x"),
        (
            [("x", DataType.INT32, [4])],
            [],
            {},
            "configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
        ),
        (
            [("x", DataType.BF16, [4])],
            [],
            {},
            "unsupported datatype TYPE_BF16 for input 'x' for model 'model'",
        ),
        (
            [("x", FP32, [5])],
            [],
            {},
            "model 'model', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model"
            " configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0"
            " followed by the explicit tensor shape, making complete shape [-1,5])",
        ),
        (
            [("x", FP32, [4])],
            [],
            {"max_batch_size": 0},
            "model 'model', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model"
            " configuration specifies 1 dimensions (shape [4])",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(version, inputs, outputs, told, text):
    write(version)
    with pytest.raises(LoadError) as refused:
        load(version, inputs, outputs, **{"max_batch_size": 8, **told})
    assert text in str(refused.value)


def test_batches_need_a_first_dimension_of_any_size(version):
    write(version, [("x", "X:0", FLOAT, [8, 4])])
    with pytest.raises(LoadError) as refused:
        load(version, [("x", FP32, [4])], [("y", FP32, [3])], max_batch_size=8)
    assert str(refused.value) == (
        "model 'model', tensor 'x': for the model to support batching the shape should have at least 1"
        " dimension and the first dimension must be -1; but shape expected by the model is [8,4]"
    )


def test_a_control_that_the_model_does_not_take_is_told(version):
    write(version)
    sequences = {"sequence_batching": {"control_input": [{"name": "start"}]}}
    with pytest.raises(
        LoadError,
        match="configuration specified sequence control 'start', but model does not provide that input",
    ):
        load(version, [("x", FP32, [4])], [("y", FP32, [3])], {**CONFIG, **sequences}, max_batch_size=8)


def test_an_optional_input_is_refused(version):
    write(version)
    x = TensorInfo("x", FP32, [4], optional=True)
    with pytest.raises(LoadError, match="optional input 'x' is not supported"):
        TensorFlowBackend().load(model_info(version, inputs=[x], outputs=[], config=CONFIG))


# -- files


def test_a_missing_model_is_told_by_its_path(version):
    with pytest.raises(LoadError) as refused:
        complete(version)
    path = version / "model.savedmodel"
    assert str(refused.value) == f"unable to find '{path}' for model instance 'model_0_0'"


@pytest.mark.parametrize(
    ("platform", "hint"),
    [("tensorflow_savedmodel", "tensorflow_graphdef"), ("tensorflow_graphdef", "tensorflow_savedmodel")],
)
def test_the_other_kind_of_artifact_is_told(version, platform, hint):
    (version / "file").touch()
    (version / "folder").mkdir()
    artifact = "file" if platform == "tensorflow_savedmodel" else "folder"
    with pytest.raises(LoadError, match=f"did you mean platform '{hint}'"):
        load(version, [], [], {"platform": platform}, artifact=artifact)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "has no saved_model.pb; it holds nothing"),
        (b"", "it is empty"),
        (b"\x08\x01", "it holds no graph"),
        (b"<html><body>404</body></html>", "it has a field of wire type 4"),
        (b"\xff" * 40, "it has no number at byte 0"),
        (b"\x12\xff", "it ends within a number"),
        (b"\x10\x01", "it has a number where there should be more"),
    ],
)
def test_a_damaged_file_is_told(version, content, text):
    (version / "model.savedmodel").mkdir()
    if content is not None:
        (version / "model.savedmodel/saved_model.pb").write_bytes(content)
    with pytest.raises(LoadError) as refused:
        complete(version)
    assert str(refused.value).startswith(
        "unable to auto-complete model configuration for 'model', failed to load model: "
    )
    assert text in str(refused.value)


def test_a_file_cut_short_says_by_how_much(version):
    saved_model(version / "model.savedmodel")
    path = version / "model.savedmodel/saved_model.pb"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(LoadError, match="it ends 7 bytes too early"):
        complete(version)


@given(content=st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    (folder / "saved_model.pb").write_bytes(content)
    try:
        graphs = read_graphs(str(folder))
    except NotASavedModel:
        return
    assert graphs
