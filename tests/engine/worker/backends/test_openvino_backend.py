"""OpenVINO models: results equal those of the framework that made them, and errors say what to do."""

from collections import Counter

import numpy as np
import openvino
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openvino import opset13 as ops

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.openvino.backend import OpenVinoBackend
from engine.worker.backends.testing import LocalBatch, LocalRequest, model_info, run
from tests.support import foreign_models

FP32, INT64 = DataType.FP32, DataType.INT64
RNG = np.random.default_rng(0)


def parameter(shape, kind="f32"):
    return ops.parameter(openvino.PartialShape(list(shape)), getattr(openvino.Type, kind))


def save(directory, inputs, outputs, filename="model.xml", *, layout=""):
    """Write a graph; `inputs` and `outputs` are nodes by name."""
    for name, node in {**inputs, **outputs}.items():
        node.output(0).get_tensor().set_names({name})
    results = [ops.result(node) for node in outputs.values()]
    if layout:
        for node in [*inputs.values(), *results]:
            node.set_layout(openvino.Layout(layout))
    openvino.save_model(openvino.Model(results, list(inputs.values())), directory / filename, False)
    return directory


def relu(directory, shape=(-1, 4), kind="f32", **options):
    x = parameter(shape, kind)
    return save(directory, {"X": x}, {"Y": ops.relu(x)}, **options)


class Loaded:
    """A loaded model, what it logged, and how much of its outputs was computed where the batch wants it."""

    def __init__(self, directory, inputs, outputs, **options):
        self.logged: list[tuple[str, str]] = []
        info = model_info(
            directory,
            inputs=[each if isinstance(each, TensorInfo) else TensorInfo(*each) for each in inputs],
            outputs=[TensorInfo(*each) for each in outputs],
            **options,
        )
        info.log = lambda level, message: self.logged.append((level, message))
        self.info, self.backend = info, OpenVinoBackend()
        self.backend.load(info)

    def __call__(self, *requests, **options):
        return run(self.backend, self.info, [LocalRequest(inputs, **options) for inputs in requests])

    def placed(self, *requests, **options):
        """Return the outputs of the batch that were allocated before they were computed."""
        names: Counter[str] = Counter()

        class Counting(LocalBatch):
            def allocate(self, name, datatype, shape):
                names[name] += 1
                return super().allocate(name, datatype, shape)

        batch = Counting(self.info, [LocalRequest(inputs, **options) for inputs in requests])
        self.backend.execute(batch)
        return set(names), [request.answer for request in batch.requests]


def rows(count, width=4):
    return RNG.normal(size=(count, width)).astype("f4")


X, Y = ("X", FP32, [4]), ("Y", FP32, [4])


# -- formats


@pytest.mark.slow
def test_a_torch_module_converted_by_openvino_agrees_with_torch(version_directory):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
            )

        def forward(self, image):
            return torch.softmax(self.layers(image), 1)

    module = Module().eval()
    graph = openvino.convert_model(module, example_input=torch.zeros(1, 3, 8, 8))
    graph.outputs[0].get_tensor().set_names({"scores"})
    openvino.save_model(graph, version_directory / "model.xml", compress_to_fp16=False)
    loaded = Loaded(
        version_directory, [("image", FP32, [3, 8, 8])], [("scores", FP32, [5])], max_batch_size=8
    )
    images = [torch.randn(count, 3, 8, 8) for count in (1, 3)]
    answers = loaded(*({"image": image.numpy()} for image in images))
    for image, answer in zip(images, answers, strict=True):
        np.testing.assert_allclose(answer.outputs["scores"], module(image).detach(), rtol=1e-4, atol=1e-5)


def test_an_onnx_file_is_read(version_directory, onnx_model):
    onnx_model.save(
        [("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 4])], [("Y", "FLOAT", ["n", 4])], filename="a.onnx"
    )
    loaded = Loaded(version_directory, [X], [Y], artifact="a.onnx", max_batch_size=8)
    x = rows(3)
    [answer] = loaded({"X": x})
    np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(x, 0))


@pytest.mark.parametrize(
    ("filename", "write", "taken", "given"),
    [
        ("model.pb", foreign_models.frozen_graph, "X:0", "Y:0"),
        ("model.saved_model", foreign_models.saved_model, "features", "positive"),
        ("model.pdmodel", foreign_models.paddle, "X", "Y"),
        ("model.tflite", foreign_models.tflite, "X", "Y"),
    ],
)
def test_files_of_other_frameworks_are_read(version_directory, filename, write, taken, given):
    write(version_directory / filename)
    loaded = Loaded(
        version_directory,
        [(taken, FP32, [3])],
        [(given, FP32, [3])],
        artifact=filename,
        max_batch_size=8,
    )
    first, second = loaded({taken: np.array([[-1, 2, 3]], "f4")}, {taken: np.array([[4, -5, 6]] * 2, "f4")})
    assert first.outputs[given].tolist() == [[0, 2, 3]]
    assert second.outputs[given].tolist() == [[4, 0, 6]] * 2


@pytest.mark.parametrize(
    ("filename", "content"),
    [
        ("model.xml", b""),
        ("model.xml", b"<net name='a' version='11'><layers>"),
        ("model.xml", b"<html>not found</html>"),
        ("model.onnx", b"\x00\x01\x02 nonsense" * 50),
        ("model.pb", b"\x0a\xff\xff\xff\xff\x0f"),
        ("model.tflite", b"\x1c\x00\x00\x00TFL3" + b"\xff" * 60),
        ("model.pdmodel", b"\x0a\x05abc"),
    ],
)
def test_a_damaged_file_is_told(version_directory, filename, content):
    (version_directory / filename).write_bytes(content)
    with pytest.raises(LoadError, match=r"unable to load model 'model', openvino error: .*"):
        Loaded(version_directory, [X], [Y], artifact=filename)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_weights_that_are_cut_short_are_told(version_directory, kept):
    x = parameter([-1, 64])
    weights = ops.constant(RNG.normal(size=(64, 64)).astype("f4"))
    save(version_directory, {"X": x}, {"Y": ops.matmul(x, weights, False, False)})
    path = version_directory / "model.bin"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(LoadError, match="openvino error"):
        Loaded(version_directory, [("X", FP32, [64])], [("Y", FP32, [64])], max_batch_size=8)


def test_a_missing_file_is_told_with_what_is_there(version_directory):
    foreign_models.tflite(version_directory / "model.tflite")
    with pytest.raises(
        LoadError, match=r"unable to find '.*model\.xml' for model 'model'; there is 'model\.tflite'"
    ):
        Loaded(version_directory, [X], [Y])


# -- names, datatypes and shapes


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "told"),
    [
        ([("Z", FP32, [4])], [Y], {}, "unexpected inference input 'Z', allowed inputs are: X"),
        ([X], [("Z", FP32, [4])], {}, "unexpected inference output 'Z', allowed outputs are: Y"),
        ([("X", INT64, [4])], [Y], {}, "expects datatype TYPE_INT64 for input 'X', model provides TYPE_FP32"),
        ([X, ("W", FP32, [4])], [Y], {}, "configuration expects 2 inputs, model provides 1: X"),
        (
            [("X", FP32, [5])],
            [Y],
            {},
            r"tensor 'X': the model expects 2 dimensions \(shape \[-1,4\]\) but the model configuration specifies 2"
            r" dimensions \(an initial batch dimension .* making complete shape \[-1,5\]\)",
        ),
        (
            [("X", FP32, [-1, 2, 4])],
            [("Y", FP32, [-1, 4])],
            {"max_batch_size": 0},
            r"tensor 'X': the model expects 2 dimensions \(shape \[-1,4\]\) but the model configuration specifies 3"
            r" dimensions \(shape \[-1,2,4\]\)",
        ),
        ([TensorInfo("X", FP32, [4], optional=True)], [Y], {"max_batch_size": 0}, "optional input 'X'"),
        ([TensorInfo("X", FP32, [4], ragged=True)], [Y], {}, "ragged input 'X'"),
        ([X], [Y], {"kind": "GPU"}, "supports only Kind CPU and AUTO"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(version_directory, inputs, outputs, options, told):
    relu(version_directory)
    with pytest.raises(LoadError, match=told):
        Loaded(version_directory, inputs, outputs, **{"max_batch_size": 8, **options})


def test_text_is_refused_by_name(version_directory):
    x = parameter([-1], "string")
    save(version_directory, {"X": x}, {"Y": ops.shape_of(x)})
    with pytest.raises(LoadError, match="TYPE_STRING for input 'X', model provides OpenVINO's type string"):
        Loaded(version_directory, [("X", DataType.BYTES, [-1])], [("Y", INT64, [1])])


def test_a_scalar_is_one_element(version_directory):
    x = parameter([])
    save(version_directory, {"X": x}, {"Y": ops.relu(x)})
    loaded = Loaded(version_directory, [("X", FP32, [1])], [("Y", FP32, [1])])
    [answer] = loaded({"X": np.array([3], "f4")})
    assert answer.outputs["Y"].tolist() == [3]


def test_an_output_without_a_name_goes_by_that_of_its_node(version_directory):
    x = parameter([-1, 4])
    result = ops.result(ops.relu(x))
    x.output(0).get_tensor().set_names({"X"})
    openvino.save_model(openvino.Model([result], [x]), version_directory / "model.xml")
    name = result.get_friendly_name()
    [answer] = Loaded(version_directory, [X], [(name, FP32, [4])], max_batch_size=8)({"X": rows(2)})
    assert answer.outputs[name].shape == (2, 4)


# -- memory


def test_outputs_of_known_size_are_computed_in_the_batchs_memory(version_directory):
    loaded = Loaded(relu(version_directory), [X], [Y], max_batch_size=8)
    parts = [rows(2), rows(1)]
    placed, answers = loaded.placed(*({"X": part} for part in parts))
    assert placed == {"Y"}
    for x, answer in zip(parts, answers, strict=True):
        np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(x, 0))


def test_outputs_of_unknown_size_are_copied_out(version_directory):
    x = parameter([-1, 4])
    save(version_directory, {"X": x}, {"P": ops.non_zero(x)})
    loaded = Loaded(version_directory, [("X", FP32, [-1, 4])], [("P", INT64, [2, -1])])
    placed, [answer] = loaded.placed({"X": np.array([[0, 1, 0, 1]], "f4")})
    assert placed == set()
    assert answer.outputs["P"].tolist() == [[0, 0], [1, 3]]


@pytest.mark.parametrize("size", [4, -1])
def test_an_output_that_is_an_input_is_that_input(version_directory, size):
    x = parameter([-1, size])
    save(version_directory, {"X": x}, {"DOUBLE": ops.add(x, x)})
    core = openvino.Core()
    graph = core.read_model(version_directory / "model.xml")
    graph.add_results([ops.result(graph.inputs[0])])
    openvino.save_model(graph, version_directory / "passing.xml", False)
    outputs = [("X", FP32, [size]), ("DOUBLE", FP32, [size])]
    loaded = Loaded(
        version_directory, [("X", FP32, [size])], outputs, max_batch_size=8, artifact="passing.xml"
    )
    for count in (2, 3, 1):
        parts = [rows(count), rows(1)]
        for part, answer in zip(parts, loaded(*({"X": part} for part in parts)), strict=True):
            np.testing.assert_array_equal(answer.outputs["X"], part)
            np.testing.assert_array_equal(answer.outputs["DOUBLE"], 2 * part)
    placed, _ = loaded.placed({"X": rows(1)})
    assert "X" not in placed


def test_a_scalar_that_is_passed_on_has_one_element(version_directory):
    x = parameter([])
    save(version_directory, {"X": x}, {"X": x})
    loaded = Loaded(version_directory, [("X", FP32, [1])], [("X", FP32, [1])])
    [answer] = loaded({"X": np.array([5], "f4")})
    assert answer.outputs["X"].tolist() == [5]


def test_what_is_passed_on_is_cut_to_the_rows_that_came(version_directory):
    x = parameter([4, 2])
    save(version_directory, {"X": x}, {"X": x})
    settings = {"SKIP_OV_DYNAMIC_BATCHSIZE": "YES", "ENABLE_BATCH_PADDING": "YES"}
    loaded = Loaded(
        version_directory, [("X", FP32, [2])], [("X", FP32, [2])], max_batch_size=4, parameters=settings
    )
    part = rows(3, 2)
    [answer] = loaded({"X": part})
    np.testing.assert_array_equal(answer.outputs["X"], part)


def test_an_answer_is_not_overwritten_by_the_next_batch(version_directory):
    x = parameter([-1, 4])
    save(version_directory, {"X": x}, {"Y": ops.relu(x), "Z": ops.negative(x)})
    loaded = Loaded(version_directory, [X], [Y, ("Z", FP32, [4])], max_batch_size=8)
    data = rows(4)
    [first] = loaded({"X": data})
    loaded({"X": rows(4)}, requested_outputs=["Y"])
    loaded({"X": rows(8)}, requested_outputs=["Z"])
    np.testing.assert_array_equal(first.outputs["Y"], np.maximum(data, 0))
    np.testing.assert_array_equal(first.outputs["Z"], -data)


def test_an_output_that_is_not_of_the_batchs_rows_fails_and_harms_nothing(version_directory):
    x = parameter([-1, 4])
    save(version_directory, {"X": x}, {"Y": ops.relu(x), "T": ops.concat([x, x], 0)})
    loaded = Loaded(version_directory, [X], [Y, ("T", FP32, [4])], max_batch_size=8)
    data = rows(2)
    for _ in range(2):
        [answer] = loaded({"X": data}, requested_outputs=["T"])
        assert (answer.code, "needs [2, ...]" in answer.message) == (ErrorCode.INTERNAL, True)
        [answer] = loaded({"X": data}, requested_outputs=["Y"])
        np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(data, 0))


def test_inputs_that_are_not_writable_or_not_contiguous_are_taken(version_directory):
    loaded = Loaded(relu(version_directory), [X], [Y], max_batch_size=8)
    data = rows(4)
    data.flags.writeable = False
    [answer] = loaded({"X": data})
    np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(data, 0))
    turned = rows(4).T
    [answer] = loaded({"X": turned})
    np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(turned, 0))


# -- batches


def test_a_model_of_one_row_is_made_for_batches(version_directory):
    loaded = Loaded(relu(version_directory, (1, 4)), [X], [Y], max_batch_size=8)
    parts = [rows(2), rows(3)]
    for x, answer in zip(parts, loaded(*({"X": part} for part in parts)), strict=True):
        np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(x, 0))


def test_a_model_that_can_only_be_of_one_row_says_so(version_directory):
    x = parameter([1, 4])
    save(version_directory, {"X": x}, {"Y": ops.reshape(x, ops.constant(np.array([1, 4])), False)})
    with pytest.raises(LoadError, match=r"reshaped to 'X' \[-1,4\]|first dimension must be -1"):
        Loaded(version_directory, [X], [Y], max_batch_size=8)


def test_a_model_of_fixed_batches_takes_only_those(version_directory):
    parameters = {"SKIP_OV_DYNAMIC_BATCHSIZE": "yes"}
    loaded = Loaded(relu(version_directory), [X], [Y], max_batch_size=4, parameters=parameters)
    [answer] = loaded({"X": rows(4)})
    assert answer.outputs["Y"].shape == (4, 4)
    [answer] = loaded({"X": rows(2)})
    assert (answer.code, answer.message.split("...")[0]) == (
        ErrorCode.INTERNAL,
        "expected requests with batch size '4', got '2'",
    )
    together = loaded({"X": rows(2)}, {"X": rows(2)})
    assert [answer.code for answer in together] == [None, None]


def test_a_model_of_fixed_batches_has_smaller_ones_filled_up(version_directory):
    parameters = {"SKIP_OV_DYNAMIC_BATCHSIZE": "YES", "ENABLE_BATCH_PADDING": "YES"}
    loaded = Loaded(relu(version_directory), [X], [Y], max_batch_size=4, parameters=parameters)
    parts = [rows(2), rows(1)]
    for x, answer in zip(parts, loaded(*({"X": part} for part in parts)), strict=True):
        np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(x, 0))


def test_inputs_are_reshaped_to_the_configurations_dims(version_directory):
    relu(version_directory, (2, 4))
    told = {"inputs": [("X", FP32, [6, -1])], "outputs": [("Y", FP32, [6, -1])]}
    with pytest.raises(LoadError, match="the model expects 2 dimensions"):
        Loaded(version_directory, **told)
    loaded = Loaded(version_directory, **told, parameters={"RESHAPE_IO_LAYERS": "YES"})
    x = rows(6, 9)
    [answer] = loaded({"X": x})
    np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(x, 0))


def dependent(directory):
    """Y = X if as many elements of X are positive as N says, which fails in a concatenation otherwise."""
    x, n = parameter([-1]), parameter([-1], "i64")
    zero, first = ops.constant(np.array([0])), ops.constant(np.array(0))
    counted = ops.gather(ops.non_zero(ops.greater(x, ops.constant(np.array(0, "f4")))), zero, first)
    both = ops.concat([ops.unsqueeze(ops.convert(n, "i64"), zero), counted], 0)
    return save(directory, {"X": x, "N": n}, {"Y": ops.gather(both, zero, first)})


def test_a_failed_execution_leaves_nothing_behind(version_directory):
    dependent(version_directory)
    loaded = Loaded(version_directory, [("X", FP32, [-1]), ("N", INT64, [-1])], [("Y", INT64, [1, -1])])
    good, n = np.array([1, -1, 1], "f4"), np.array([7, 8])
    bad = np.array([1, 1, 1], "f4")
    for x, code in (
        (good, None),
        (bad, ErrorCode.INTERNAL),
        (good, None),
        (bad, ErrorCode.INTERNAL),
        (good, None),
    ):
        [answer] = loaded({"X": x, "N": n})
        assert answer.code is code, answer.message
        if code is None:
            assert answer.outputs["Y"].tolist() == [[7, 8]]


@pytest.fixture(scope="module")
def adding(tmp_path_factory):
    """Load Y = A + B of matrices of any size."""
    a, b = parameter([-1, -1]), parameter([-1, -1])
    directory = tmp_path_factory.mktemp("adding")
    save(directory, {"A": a, "B": b}, {"Y": ops.relu(ops.add(ops.relu(a), b))})
    any_size = [-1, -1]
    return Loaded(directory, [("A", FP32, any_size), ("B", FP32, any_size)], [("Y", FP32, any_size)])


SHAPES = st.sampled_from([(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(SHAPES, SHAPES), min_size=1, max_size=8))
def test_after_shapes_that_do_not_go_together_others_do(adding, shapes):
    for first, second in shapes:
        a, b = np.ones(first, "f4"), np.ones(second, "f4")
        [answer] = adding({"A": a, "B": b})
        try:
            expected = a + b
        except ValueError:
            assert answer.code is ErrorCode.INTERNAL
        else:
            np.testing.assert_array_equal(answer.outputs["Y"], expected)


def test_variables_are_reset_between_requests(version_directory):
    x = parameter([1, 4])
    start = ops.constant(np.zeros((1, 4), "f4"))
    state = openvino.opset6.read_value(start, "state", openvino.Type.f32, openvino.PartialShape([1, 4]))
    total = ops.add(x, state)
    assign = openvino.opset6.assign(total, "state")
    x.output(0).get_tensor().set_names({"X"})
    total.output(0).get_tensor().set_names({"Y"})
    graph = openvino.Model([ops.result(total)], [assign], [x], "counting")
    openvino.save_model(graph, version_directory / "model.xml", False)
    loaded = Loaded(version_directory, [("X", FP32, [1, 4])], [("Y", FP32, [1, 4])])
    for _ in range(3):
        [answer] = loaded({"X": np.ones((1, 4), "f4")})
        assert answer.outputs["Y"].tolist() == [[1, 1, 1, 1]]
    assert any("has variables of its own" in message for _, message in loaded.logged)


def test_several_lanes_run_at_once(version_directory):
    loaded = Loaded(relu(version_directory), [X], [Y], max_batch_size=8, lanes=2)
    x = rows(3)
    for _ in range(3):
        [answer] = loaded({"X": x})
        np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(x, 0))


# -- parameters


def compiled_with(monkeypatch, directory, parameters, **options):
    """Return the device and the properties that the model was compiled with, and what it logged."""
    asked = []
    compile_model = openvino.Core.compile_model

    def spy(core, model, device, config):
        asked.append((device, config))
        return compile_model(core, model, device, config)

    monkeypatch.setattr(openvino.Core, "compile_model", spy)
    loaded = Loaded(relu(directory), [X], [Y], max_batch_size=8, parameters=parameters, **options)
    [answer] = loaded({"X": np.ones((1, 4), "f4")})
    assert answer.outputs["Y"].tolist() == [[1] * 4]
    [(device, config)] = asked
    return device, config, [message for level, message in loaded.logged if level == "warning"]


USUAL = {
    "INFERENCE_PRECISION_HINT": "f32",
    "INFERENCE_NUM_THREADS": 1,
    "ENABLE_CPU_PINNING": False,
    "NUM_STREAMS": "0",
}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, USUAL),
        ({"PERFORMANCE_HINT": "latency"}, {**USUAL, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": None}),
        (
            {"PERFORMANCE_HINT": "THROUGHPUT"},
            {**USUAL, "PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": None},
        ),
        ({"NUM_STREAMS": "auto"}, {**USUAL, "NUM_STREAMS": "AUTO"}),
        ({"NUM_STREAMS": "NUMA"}, {**USUAL, "NUM_STREAMS": "NUMA"}),
        (
            {"NUM_STREAMS": "2", "INFERENCE_NUM_THREADS": "2"},
            {**USUAL, "NUM_STREAMS": "2", "INFERENCE_NUM_THREADS": 2},
        ),
        ({"HINT_BF16": "yes"}, {**USUAL, "INFERENCE_PRECISION_HINT": "bf16"}),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, {**USUAL, "INFERENCE_PRECISION_HINT": "bf16"}),
        ({"ENABLE_CPU_PINNING": "YES"}, {**USUAL, "ENABLE_CPU_PINNING": True}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_parameters_become_properties(monkeypatch, version_directory, parameters, expected):
    device, config, _ = compiled_with(monkeypatch, version_directory, parameters)
    assert device == "CPU"
    assert config == {key: value for key, value in expected.items() if value is not None}


def test_threads_are_the_workers_share(monkeypatch, version_directory):
    _, config, _ = compiled_with(monkeypatch, version_directory, {}, lanes=2, threads=3)
    assert (config["INFERENCE_NUM_THREADS"], config["NUM_STREAMS"]) == (6, "2")


def test_several_threads_for_one_execution_are_a_stream(monkeypatch, version_directory):
    _, config, _ = compiled_with(monkeypatch, version_directory, {}, threads=2)
    assert (config["INFERENCE_NUM_THREADS"], config["NUM_STREAMS"]) == (2, "1")
    _, config, _ = compiled_with(monkeypatch, version_directory, {"INFERENCE_NUM_THREADS": "2"})
    assert (config["INFERENCE_NUM_THREADS"], config["NUM_STREAMS"]) == (2, "1")


def test_a_setting_of_the_command_line_is_a_default(monkeypatch, version_directory):
    settings = {"INFERENCE_NUM_THREADS": "2", "PERFORMANCE_HINT": "LATENCY"}
    given = {"PERFORMANCE_HINT": "THROUGHPUT"}
    _, config, _ = compiled_with(monkeypatch, version_directory, given, settings=settings)
    assert (config["INFERENCE_NUM_THREADS"], config["PERFORMANCE_HINT"]) == (2, "THROUGHPUT")


def test_threads_of_compilation_have_no_effect_on_a_cpu_and_that_is_said(monkeypatch, version_directory):
    *_, warnings = compiled_with(monkeypatch, version_directory, {"COMPILATION_NUM_THREADS": "2"})
    assert warnings == [
        "model 'model': parameter 'COMPILATION_NUM_THREADS' has no effect: only OpenVINO's GPU device has it"
    ]


@pytest.mark.parametrize("target", ["AUTO", "auto:cpu", "MULTI:CPU", "HETERO:CPU"])
def test_devices_that_choose_among_devices_are_taken(monkeypatch, version_directory, target):
    device, config, _ = compiled_with(
        monkeypatch, version_directory, {"TARGET_DEVICE": target, "PERFORMANCE_HINT": "LATENCY"}
    )
    assert (device, config) == (target.upper(), {"PERFORMANCE_HINT": "LATENCY"})


def test_compiled_models_are_kept_in_the_cache(monkeypatch, version_directory, tmp_path):
    cache = tmp_path / "cache"
    compiled_with(monkeypatch, version_directory, {"CACHE_DIR": str(cache)})
    assert [path.suffix for path in cache.iterdir()] == [".blob"]


BAD = [
    ("PERFORMANCE_HINT", "Fast", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
    ("INFERENCE_NUM_THREADS", "-1", "'INFERENCE_NUM_THREADS' to be a non-negative number, got -1"),
    ("COMPILATION_NUM_THREADS", "Two", "'COMPILATION_NUM_THREADS' to be a non-negative number, got two"),
    ("HINT_BF16", "Maybe", "'HINT_BF16' to be YES, got maybe"),
    ("NUM_STREAMS", "Some", "'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got some"),
    ("INFERENCE_PRECISION_HINT", "f8", "to be F32/F16/BF16, got f8"),
    ("SKIP_OV_DYNAMIC_BATCHSIZE", "maybe", "'SKIP_OV_DYNAMIC_BATCHSIZE' must be YES or NO, got 'maybe'"),
    ("ENABLE_BATCH_PADDING", "maybe", "must be YES or NO"),
    ("RESHAPE_IO_LAYERS", "maybe", "must be YES or NO"),
    ("ENABLE_CPU_PINNING", "maybe", "must be YES or NO"),
    ("CPU_EXTENSION_PATH", "ops.so", "absolute path of a library that exists, got 'ops.so'"),
    ("CACHE_DIR", "cache", "absolute path outside the model's folder, got 'cache'"),
    ("TARGET_DEVICE", "gpu", r"'TARGET_DEVICE' is GPU, and OpenVINO finds no GPU here: it has CPU"),
    ("TARGET_DEVICE", "NPU", "OpenVINO finds no NPU here"),
    ("TARGET_DEVICE", "AUTO:GPU,CPU", "OpenVINO finds no GPU here"),
    ("TARGET_DEVICE", "FOO", "OpenVINO finds no FOO here"),
    ("TARGET_DEVICE", "CPU.1", r"OpenVINO finds no CPU\.1 here"),
]


@pytest.mark.parametrize(("key", "value", "told"), BAD, ids=lambda value: value.split()[0])
def test_a_parameter_that_can_not_be_honoured_is_refused_by_name(version_directory, key, value, told):
    relu(version_directory)
    with pytest.raises(LoadError, match=told):
        Loaded(version_directory, [X], [Y], max_batch_size=8, parameters={key: value})


def test_a_cache_inside_the_models_folder_is_refused(version_directory):
    relu(version_directory)
    with pytest.raises(LoadError, match="outside the model's folder"):
        Loaded(version_directory, [X], [Y], parameters={"CACHE_DIR": str(version_directory / "cache")})


def test_two_precisions_are_refused(version_directory):
    relu(version_directory)
    parameters = {"HINT_BF16": "YES", "INFERENCE_PRECISION_HINT": "f32"}
    with pytest.raises(LoadError, match="set one of them"):
        Loaded(version_directory, [X], [Y], parameters=parameters)


def test_a_library_that_is_none_is_told(version_directory, tmp_path):
    relu(version_directory)
    library = tmp_path / "ops.so"
    library.write_bytes(b"no library")
    with pytest.raises(LoadError, match="openvino error"):
        Loaded(version_directory, [X], [Y], parameters={"CPU_EXTENSION_PATH": str(library)})


# -- completion


def completed(directory, config=None, **options):
    logged = []
    info = model_info(directory, inputs=[], outputs=[], config=config or {}, **options)
    info.log = lambda level, message: logged.append(message)
    return OpenVinoBackend.complete_config(info), logged


def test_a_file_with_layouts_tells_that_it_batches(version_directory):
    x = parameter([-1, 3, -1])
    save(version_directory, {"X": x}, {"Y": ops.reduce_sum(x, ops.constant(np.array([1, 2])))}, layout="N...")
    config, _ = completed(version_directory, settings={"default-max-batch-size": "16"})
    assert config == {
        "max_batch_size": 16,
        "dynamic_batching": {},
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [3, -1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}],
    }


def test_a_file_without_layouts_does_not_batch_unless_the_configuration_says_so(version_directory):
    relu(version_directory)
    config, logged = completed(version_directory)
    side = {"data_type": "TYPE_FP32", "dims": [-1, 4]}
    assert config == {
        "max_batch_size": 0,
        "input": [{"name": "X", **side}],
        "output": [{"name": "Y", **side}],
    }
    assert logged == []
    config, [said] = completed(version_directory, {"max_batch_size": 8})
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (8, [4])
    assert "no layout in the model's file says" in said


def test_only_a_missing_side_is_completed(version_directory):
    relu(version_directory, layout="NC")
    given = [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}]
    config, _ = completed(
        version_directory, {"input": given, "sequence_batching": {"control_input": [{"name": "X"}]}}
    )
    assert config["input"] is given
    assert [each["name"] for each in config["output"]] == ["Y"]
    assert "dynamic_batching" not in config


def test_controls_of_a_scheduler_are_no_inputs_of_clients(version_directory):
    x, start = parameter([-1, 1]), parameter([-1, 1])
    save(version_directory, {"X": x, "START": start}, {"Y": ops.add(x, start)})
    config, _ = completed(version_directory, {"sequence_batching": {"control_input": [{"name": "START"}]}})
    assert [each["name"] for each in config["input"]] == ["X"]


@pytest.mark.parametrize(
    ("shape", "kind", "settings", "told"),
    [
        ([-1], "string", {}, "unsupported datatype TYPE_INVALID for input 'X' for model 'model'"),
        (None, "f32", {}, "the model file gives no shape for input 'X'"),
    ],
)
def test_what_can_not_be_told_is_said(version_directory, shape, kind, settings, told):
    form = openvino.PartialShape.dynamic() if shape is None else openvino.PartialShape(shape)
    x = ops.parameter(form, getattr(openvino.Type, kind))
    save(version_directory, {"X": x}, {"Y": ops.shape_of(x)})
    with pytest.raises(LoadError, match=told):
        completed(version_directory, settings=settings)


def test_a_default_size_that_is_none_is_said(version_directory):
    relu(version_directory, layout="NC")
    with pytest.raises(LoadError, match="default-max-batch-size is 'many'"):
        completed(version_directory, settings={"default-max-batch-size": "many"})
