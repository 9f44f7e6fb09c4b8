"""TensorFlow's models: results equal those of the framework, and only the request at fault gets an error.

In the long tier, where TensorFlow is installed (`python -m tests.long tensorflow`).
"""

import json
import threading
import warnings

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.settings.extras import is_missing
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.tensorflow.backend import TensorFlowBackend
from engine.worker.backends.tensorflow.ports import DATATYPES
from engine.worker.backends.testing import LocalBatch, LocalRequest, model_info, run

if is_missing("tensorflow"):
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

FP32, BYTES = DataType.FP32, DataType.BYTES
RNG = np.random.default_rng(0)
X, Y = ("x", FP32, [4]), ("y", FP32, [4])
SAVED, GRAPH = {"platform": "tensorflow_savedmodel"}, {"platform": "tensorflow_graphdef"}
v1 = tf.compat.v1


def save(version, function, *specs, name="serving_default", module=None):
    """Write the SavedModel of a function of tensors."""
    held = module if module is not None else tf.Module()
    held.run = tf.function(function, input_signature=specs)
    tf.saved_model.save(held, str(version / "model.savedmodel"), signatures={name: held.run})


def spec(name, shape=(None, 4), dtype=tf.float32):
    return tf.TensorSpec(shape, dtype, name=name)


def freeze(version, build):
    """Write a GraphDef."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    (version / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


class Loaded:
    """A loaded model, and what it logged."""

    def __init__(self, version, inputs, outputs, config=SAVED, **told):
        self.logged: list[tuple[str, str]] = []
        sides = [
            [each if isinstance(each, TensorInfo) else TensorInfo(*each) for each in side]
            for side in (inputs, outputs)
        ]
        self.info = model_info(version, inputs=sides[0], outputs=sides[1], config=config, **told)
        self.info.log = lambda level, message: self.logged.append((level, message))
        self.backend = TensorFlowBackend()
        self.backend.load(self.info)

    def __call__(self, *requests, **told):
        return run(self.backend, self.info, [LocalRequest(inputs, **told) for inputs in requests])


def rows(count, width=4):
    return RNG.normal(size=(count, width)).astype("f4")


def test_a_batch_is_computed_as_the_framework_computes_its_rows(version):
    class Scores(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(rows(4, 3))

    module = Scores()
    save(version, lambda x: {"y": tf.nn.softmax(x @ module.weights)}, spec("x"), module=module)
    loaded = Loaded(version, [X], [("y", FP32, [3])], max_batch_size=8)
    asked = [rows(1), rows(3), rows(2)]
    for x, answer in zip(asked, loaded(*({"x": x} for x in asked)), strict=True):
        np.testing.assert_allclose(answer.outputs["y"], module.run(x)["y"], rtol=1e-5)
    loaded.backend.unload()


def test_the_inputs_of_a_batch_are_not_written_into(version):
    save(version, lambda x: {"y": tf.nn.relu(x)}, spec("x"))
    loaded = Loaded(version, [X], [Y], max_batch_size=64)
    x = rows(64)
    before = x.copy()
    [answer] = loaded({"x": x})
    np.testing.assert_array_equal(answer.outputs["y"], np.maximum(before, 0))
    np.testing.assert_array_equal(x, before)


def test_text_is_bytes_whatever_they_are(version):
    save(version, lambda t: {"y": tf.strings.join([t, "!"])}, spec("t", (None, None), tf.string))
    loaded = Loaded(version, [("t", BYTES, [-1])], [("y", BYTES, [-1])], max_batch_size=8)
    text = np.array([[b"\xff\x00a", b""], [b"\x00", "é".encode()]], object)
    [answer] = loaded({"t": text})
    assert answer.outputs["y"].tolist() == [[b"\xff\x00a!", b"!"], [b"\x00!", "é!".encode()]]


def test_one_text_is_a_scalar(version):
    save(version, lambda t: {"y": t + b"\x00"}, spec("t", (), tf.string))
    [answer] = Loaded(version, [("t", BYTES, [1])], [("y", BYTES, [1])])({"t": np.array([b"a\x00"], object)})
    assert answer.outputs["y"].tolist() == [b"a\x00\x00"]


@pytest.mark.parametrize("datatype", [each for each in DATATYPES.values() if each is not BYTES], ids=str)
def test_every_type_of_number_goes_through(version, datatype):
    dtype = datatype.numpy
    save(version, lambda x: {"y": tf.identity(x)}, spec("x", (None, 2), tf.as_dtype(dtype)))
    loaded = Loaded(version, [("x", datatype, [2])], [("y", datatype, [2])], max_batch_size=8)
    integer = dtype.kind in "iu"
    whole = np.array([[1, 100 if integer else 0]])
    extreme = [[np.iinfo(dtype).min, np.iinfo(dtype).max]] if integer else whole
    first, second = loaded({"x": whole.astype(dtype)}, {"x": np.array(extreme, dtype)})
    assert first.outputs["y"].dtype == dtype
    np.testing.assert_array_equal(first.outputs["y"], whole.astype(dtype))
    np.testing.assert_array_equal(second.outputs["y"], np.array(extreme, dtype))


def test_dimensions_of_any_size_and_no_rows_at_all(version):
    save(version, lambda x: {"y": tf.reduce_sum(x, 1, keepdims=True)}, spec("x", (None, None)))
    loaded = Loaded(version, [("x", FP32, [-1])], [("y", FP32, [1])], max_batch_size=8)
    for width in (1, 7, 3, 0):
        [answer] = loaded({"x": np.ones((2, width), "f4")})
        assert answer.outputs["y"].tolist() == [[width]] * 2


def test_a_scalar_has_one_element_outside(version):
    save(version, lambda n: {"y": n * 2}, spec("n", (), tf.int32))
    loaded = Loaded(version, [("n", DataType.INT32, [1])], [("y", DataType.INT32, [1])])
    assert loaded({"n": np.array([21], "i4")})[0].outputs["y"].tolist() == [42]


def test_only_the_request_at_fault_fails_and_the_error_is_tensorflows(version):
    save(version, lambda at: {"y": tf.gather(tf.constant([1.0, 2.0]), at)}, spec("at", (None, 1), tf.int32))
    loaded = Loaded(version, [("at", DataType.INT32, [1])], [("y", FP32, [1])], max_batch_size=8)
    good, bad, other = loaded(*({"at": np.array([[at]], "i4")} for at in (0, 9, 1)))
    assert (good.outputs["y"].tolist(), other.outputs["y"].tolist()) == ([[1]], [[2]])
    assert bad.code is ErrorCode.INTERNAL
    assert "9 is not in [0, 2)" in bad.message
    assert "Original stack trace" not in bad.message
    assert loaded({"at": np.array([[1]], "i4")})[0].outputs["y"].tolist() == [[2]]


def test_outputs_that_no_request_wants_are_not_computed(version):
    def function(x):
        with tf.control_dependencies([tf.debugging.assert_positive(x)]):
            return {"y": tf.identity(x), "sum": tf.reduce_sum(x, 1)}

    save(version, function, spec("x"))
    outputs = [Y, ("sum", FP32, [])]
    loaded = Loaded(version, [X], outputs, max_batch_size=8)
    first, second = run(
        loaded.backend,
        loaded.info,
        [LocalRequest({"x": np.ones((1, 4), "f4")}, requested_outputs=[name]) for name in ("y", "sum")],
    )
    assert first.outputs["y"].tolist() == [[1, 1, 1, 1]]
    assert second.outputs["sum"].tolist() == [4]
    [answer] = loaded({"x": np.ones((1, 4), "f4")}, requested_outputs=["sum"])
    assert set(answer.outputs) == {"sum"}


def test_any_choice_of_outputs_is_answered(version):
    names = [f"y{at}" for at in range(6)]
    save(version, lambda x: {name: x + at for at, name in enumerate(names)}, spec("x"))
    loaded = Loaded(version, [X], [(name, FP32, [4]) for name in names], max_batch_size=8)
    for bits in range(1, 64):
        wanted = [name for at, name in enumerate(names) if bits >> at & 1]
        [answer] = loaded({"x": np.zeros((1, 4), "f4")}, requested_outputs=wanted)
        assert {name: array[0, 0] for name, array in answer.outputs.items()} == {
            name: names.index(name) for name in wanted
        }


def test_tables_and_files_of_a_saved_model_are_there(version, tmp_path):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("red\ngreen\nblue\n")

    class Colours(tf.Module):
        def __init__(self):
            super().__init__()
            self.file = tf.saved_model.Asset(str(vocabulary))
            lines = tf.lookup.TextFileInitializer(
                self.file,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            )
            self.table = tf.lookup.StaticHashTable(lines, -1)

    module = Colours()
    save(
        version,
        lambda word: {"at": module.table.lookup(word)},
        spec("word", (None, 1), tf.string),
        module=module,
    )
    vocabulary.unlink()
    loaded = Loaded(version, [("word", BYTES, [1])], [("at", DataType.INT64, [1])], max_batch_size=8)
    [answer] = loaded({"word": np.array([[b"blue"], [b"black"]], object)})
    assert answer.outputs["at"].tolist() == [[2], [-1]]


@pytest.mark.parametrize(
    "parameters",
    [
        {"TF_NUM_INTRA_THREADS": "0", "TF_NUM_INTER_THREADS": "0"},
        {"TF_NUM_INTRA_THREADS": "2", "TF_NUM_INTER_THREADS": "2"},
        {"TF_USE_PER_SESSION_THREADS": "true"},
        {"MAX_SESSION_SHARE_COUNT": "2"},
        {},
    ],
)
def test_instances_run_at_once_whatever_they_share(version, parameters):
    save(version, lambda x: {"y": x * 2}, spec("x"))
    loaded = Loaded(version, [X], [Y], max_batch_size=8, lanes=3, threads=2, parameters=parameters)
    wrong = []

    def ask():
        for _ in range(50):
            x = rows(2)
            [answer] = loaded({"x": x})
            if not np.array_equal(answer.outputs["y"], x * 2):
                wrong.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def counter():
    count = v1.get_variable("count", initializer=0.0, use_resource=False)
    x = v1.placeholder(tf.float32, [None, 1], name="x")
    with tf.control_dependencies([v1.assign_add(count, 1.0)]):
        tf.add(x, count.read_value(), name="y")
    tf.group(count.initializer, name="begin")


@pytest.mark.parametrize(("share", "seen"), [("1", [1, 1, 1]), ("2", [1, 1, 2]), ("3", [1, 2, 3])])
def test_instances_share_a_session_as_said(version, share, seen):
    freeze(version, counter)
    (version / "init.json").write_text(json.dumps({"init_ops": ["begin"]}))
    loaded = Loaded(
        version,
        [("x", FP32, [1])],
        [("y", FP32, [1])],
        GRAPH,
        max_batch_size=8,
        lanes=3,
        parameters={"TF_INIT_OPS_FILE": "init.json", "MAX_SESSION_SHARE_COUNT": share},
    )
    answers, inside, one_by_one = [], threading.Barrier(3), threading.Lock()

    class Waiting(LocalBatch):
        def feeds(self):
            inside.wait()  # each instance has one request
            one_by_one.acquire()
            return super().feeds()

        def respond(self, outputs):
            super().respond(outputs)
            one_by_one.release()

    def ask():
        batch = Waiting(loaded.info, [LocalRequest({"x": np.zeros((1, 1), "f4")})])
        loaded.backend.execute(batch)
        [answer] = [request.answer for request in batch.requests]
        assert answer is not None
        answers.append(answer.outputs["y"].item())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == seen


@pytest.mark.parametrize("level", [-1, 1, 2])
def test_levels_of_xla_compute_the_same(version, level):
    save(version, lambda x: {"y": tf.nn.relu(x * 2 + 1) - tf.tanh(x)}, spec("x"))
    config = {**SAVED, "optimization": {"graph": {"level": level}}}
    loaded = Loaded(version, [X], [Y], config, max_batch_size=8)
    x = rows(3)
    for _ in range(3):
        [answer] = loaded({"x": x})
        expected = np.maximum(x * 2 + 1, 0) - np.tanh(x)
        np.testing.assert_allclose(answer.outputs["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_signature_that_is_named_is_called(version):
    save(version, lambda x: {"y": -x}, spec("x"), name="negate")
    loaded = Loaded(version, [X], [Y], max_batch_size=8, parameters={"TF_SIGNATURE_DEF": "negate"})
    assert loaded({"x": np.ones((1, 4), "f4")})[0].outputs["y"].tolist() == [[-1] * 4]
    assert loaded.logged == []


def test_ragged_requests_are_one_flat_tensor(version):
    save(version, lambda x: {"y": x + 1}, spec("x", (None,)))
    x = TensorInfo("x", FP32, [-1], ragged=True)
    config = {
        **SAVED,
        "batch_output": [
            {"target_name": ["y"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["x"]}
        ],
    }
    loaded = Loaded(version, [x], [("y", FP32, [-1])], config, max_batch_size=8)
    first, second = loaded({"x": np.zeros((1, 2), "f4")}, {"x": np.ones((1, 3), "f4")})
    assert (first.outputs["y"].tolist(), second.outputs["y"].tolist()) == ([[1, 1]], [[2, 2, 2]])


# -- GraphDef


def test_a_frozen_graph_is_served_by_the_names_of_its_operations(version):
    def build():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        tf.nn.relu(x, name="y")

    freeze(version, build)
    loaded = Loaded(version, [X], [Y], GRAPH, max_batch_size=8)
    x = rows(2)
    np.testing.assert_array_equal(loaded({"x": x})[0].outputs["y"], np.maximum(x, 0))


def test_variables_of_a_graph_begin_with_the_operations_of_the_file(version):
    freeze(version, counter)
    told = [("x", FP32, [1])], [("y", FP32, [1])], GRAPH
    [answer] = Loaded(version, *told, max_batch_size=8)({"x": np.zeros((1, 1), "f4")})
    assert answer.code is ErrorCode.INTERNAL
    assert "uninitialized value count" in answer.message
    (version.parent / "init.json").write_text(json.dumps({"init_ops": ["begin"]}))
    told_file = {"TF_INIT_OPS_FILE": "init.json"}
    loaded = Loaded(version, *told, max_batch_size=8, parameters=told_file)
    assert loaded({"x": np.zeros((1, 1), "f4")})[0].outputs["y"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "must hold JSON of the form"),
        ('{"init_ops": "begin"}', "must hold JSON of the form"),
        ('{"init_ops": ["absent"]}', "absent"),
    ],
)
def test_operations_that_are_not_there_are_told(version, content, text):
    freeze(version, counter)
    (version / "init.json").write_text(content)
    with pytest.raises(LoadError, match=text):
        Loaded(
            version,
            [("x", FP32, [1])],
            [("y", FP32, [1])],
            GRAPH,
            max_batch_size=8,
            parameters={"TF_INIT_OPS_FILE": "init.json"},
        )


@pytest.mark.parametrize("content", [b"", b"<html><body>404</body></html>", b"\x0a\xff nonsense" * 9])
def test_a_damaged_graph_is_told(version, content):
    (version / "model.graphdef").write_bytes(content)
    with pytest.raises(LoadError, match=r"model\.graphdef.*damaged, cut short, or no GraphDef"):
        Loaded(version, [X], [Y], GRAPH)


def test_an_operation_that_tensorflow_does_not_know_is_told(version):
    node = v1.GraphDef().node.add(name="y", op="NoSuchOperation")
    definition = v1.GraphDef(node=[node])
    (version / "model.graphdef").write_bytes(definition.SerializeToString())
    with pytest.raises(LoadError, match="NoSuchOperation"):
        Loaded(version, [X], [Y], GRAPH)


def test_inputs_and_outputs_of_a_graph_are_compared_with_the_configuration(version):
    def build():
        tf.nn.relu(v1.placeholder(tf.float32, [None, 4], name="x"), name="y")

    freeze(version, build)
    with pytest.raises(LoadError, match="unexpected inference input 'X', allowed inputs are: x"):
        Loaded(version, [("X", FP32, [4])], [Y], GRAPH, max_batch_size=8)
    with pytest.raises(LoadError, match="unexpected inference output 'z', allowed outputs are: y"):
        Loaded(version, [X], [("z", FP32, [4])], GRAPH, max_batch_size=8)


# -- files and devices


def test_a_saved_model_without_its_weights_is_told(version):
    class Held(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(rows(4))

    module = Held()
    save(version, lambda x: {"y": x @ module.weights}, spec("x"), module=module)
    for path in (version / "model.savedmodel/variables").iterdir():
        path.unlink()
    with pytest.raises(LoadError, match=r"unable to load model 'model', .*variables"):
        Loaded(version, [X], [Y], max_batch_size=8)


def test_a_saved_model_whose_weights_are_cut_is_told(version):
    class Held(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(rows(4))

    module = Held()
    save(version, lambda x: {"y": x @ module.weights}, spec("x"), module=module)
    [data] = (version / "model.savedmodel/variables").glob("*.data-*")
    data.write_bytes(data.read_bytes()[:20])
    with pytest.raises(LoadError, match="unable to load model 'model', "):
        Loaded(version, [X], [Y], max_batch_size=8)


@pytest.mark.parametrize("kind", ["GPU", "MODEL"])
def test_a_gpu_that_is_not_there_is_told(version, kind):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    save(version, lambda x: {"y": x}, spec("x"))
    with pytest.raises(LoadError, match=f"has kind KIND_{kind} and TensorFlow finds no GPUs"):
        Loaded(version, [X], [Y], max_batch_size=8, kind=kind)


def test_a_completed_configuration_loads(version):
    save(version, lambda x, t: {"y": x * 2, "u": t}, spec("x"), spec("t", (None,), tf.string))
    info = model_info(version, inputs=[], outputs=[], config=SAVED)
    completed = TensorFlowBackend.complete_config(info)
    assert completed is not None
    assert completed["max_batch_size"] == 4

    def told(side):
        kinds = {each.config_name: each for each in DataType}
        return [
            TensorInfo(
                each["name"],
                kinds[each["data_type"]],
                each["dims"],
                reshape=each["reshape"]["shape"] if "reshape" in each else None,
            )
            for each in completed[side]
        ]

    loaded = Loaded(version, told("input"), told("output"), completed, max_batch_size=4)
    [answer] = loaded({"x": np.ones((2, 4), "f4"), "t": np.array([b"a", b"b"], object)})
    assert answer.outputs["u"].tolist() == [b"a", b"b"]
