"""ONNX models: results equal those of ONNX Runtime alone, and a model that cannot be loaded says why."""

import ctypes
import shutil
import subprocess
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.onnxruntime import OnnxRuntimeBackend, loses_device
from engine.worker.backends.testing import LocalBatch, LocalRequest, model_info, run

FP32 = DataType.FP32
RNG = np.random.default_rng(0)


def load(directory, inputs, outputs, **options):
    info = model_info(
        directory,
        inputs=[TensorInfo(*tensor) if isinstance(tensor, tuple) else tensor for tensor in inputs],
        outputs=[TensorInfo(*tensor) if isinstance(tensor, tuple) else tensor for tensor in outputs],
        **options,
    )
    backend = OnnxRuntimeBackend()
    backend.load(info)
    return backend, info


@pytest.fixture
def two_outputs(onnx_model):
    """Load Y = relu(X), Z = X + 1, any number of rows of 4."""
    one = numpy_helper.from_array(np.array(1, "f4"), "one")
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"]), ("Add", ["X", "one"], ["Z"])],
        [("X", "FLOAT", ["n", 4])],
        [("Y", "FLOAT", ["n", 4]), ("Z", "FLOAT", ["n", 4])],
        initializers=[one],
    )
    return partial(load, directory, [("X", FP32, [4])], [("Y", FP32, [4]), ("Z", FP32, [4])])


@pytest.mark.parametrize("rows", [1, 3, 40_000])
def test_small_and_bound_outputs_equal_a_direct_run(two_outputs, rows):
    backend, model = two_outputs(max_batch_size=100_000)
    requests = [RNG.normal(size=(count, 4)).astype("f4") for count in (rows, 2, 1)]
    answers = run(backend, model, [LocalRequest({"X": x}) for x in requests])
    session = onnxruntime.InferenceSession(Path(model.version_directory, "model.onnx"))
    for x, answer in zip(requests, answers, strict=True):
        expected = session.run(["Y", "Z"], {"X": x})
        np.testing.assert_array_equal(answer.outputs["Y"], expected[0])
        np.testing.assert_array_equal(answer.outputs["Z"], expected[1])


class Counting(LocalBatch):
    """Counts what is computed straight into the batch's memory."""

    allocated: tuple[str, ...] = ()

    def allocate(self, name, datatype, shape):
        self.allocated = (*self.allocated, name)
        return super().allocate(name, datatype, shape)


@pytest.mark.parametrize(("rows", "bound"), [(1, ()), (40_000, ("Y", "Z"))])
def test_only_large_outputs_are_bound(two_outputs, rows, bound):
    backend, model = two_outputs(max_batch_size=100_000)
    batch = Counting(model, [LocalRequest({"X": np.ones((rows, 4), "f4")})])
    backend.execute(batch)
    assert batch.allocated == bound


def test_an_output_that_nobody_wants_is_not_computed(two_outputs):
    backend, model = two_outputs(max_batch_size=100_000)
    batch = Counting(model, [LocalRequest({"X": np.ones((70_000, 4), "f4")}, requested_outputs=["Z"])])
    backend.execute(batch)
    assert batch.allocated == ("Z",)
    assert list(getattr(batch.requests[0].answer, "outputs", ())) == ["Z"]


def test_an_output_larger_than_configured_is_still_returned(onnx_model):
    directory = onnx_model.save(
        [("Concat", ["X", "X"], ["Y"], {"axis": 1})],
        [("X", "FLOAT", ["n", "k"])],
        [("Y", "FLOAT", ["n", "m"])],
    )
    backend, model = load(directory, [("X", FP32, [-1])], [("Y", FP32, [1024])], max_batch_size=128)
    x = np.ones((128, 1024), "f4")
    for _ in range(2):
        [answer] = run(backend, model, [LocalRequest({"X": x})])
        assert answer.message == ""
        assert answer.outputs["Y"].shape == (128, 2048)


def test_one_request_at_fault_fails_alone(onnx_model):
    directory = onnx_model.save(
        [("GatherElements", ["D", "I"], ["Y"], {"axis": 1})],
        [("D", "FLOAT", ["n", 3]), ("I", "INT64", ["n", 3])],
        [("Y", "FLOAT", ["n", 3])],
    )
    backend, model = load(
        directory, [("D", FP32, [3]), ("I", DataType.INT64, [3])], [("Y", FP32, [3])], max_batch_size=8
    )
    data = np.array([[5, 6, 7]], "f4")
    good, bad, last = run(
        backend,
        model,
        [LocalRequest({"D": data, "I": np.array([index])}) for index in ([2, 1, 0], [0, 99, 0], [1, 1, 1])],
    )
    assert good.outputs["Y"].tolist() == [[7, 6, 5]]
    assert last.outputs["Y"].tolist() == [[6, 6, 6]]
    assert bad.code is ErrorCode.INTERNAL
    assert bad.message.startswith("onnx runtime error 1: ")


def text_model(onnx_model):
    """Y = X + X."""
    directory = onnx_model.save(
        [("StringConcat", ["X", "X"], ["Y"])], [("X", "STRING", ["n"])], [("Y", "STRING", ["n"])]
    )
    return load(
        directory,
        [TensorInfo("X", DataType.BYTES, [1], reshape=[])],
        [TensorInfo("Y", DataType.BYTES, [1], reshape=[])],
        max_batch_size=8,
    )


def test_text_goes_through_as_utf8(onnx_model):
    backend, model = text_model(onnx_model)
    texts = [np.array([b"abc", "zo\u00eb".encode()], object), np.array([b""], object)]
    first, second = run(backend, model, [LocalRequest({"X": text}) for text in texts])
    assert first.outputs["Y"].tolist() == [b"abcabc", "zo\u00ebzo\u00eb".encode()]
    assert second.outputs["Y"].tolist() == [b""]


def test_a_nul_in_a_text_is_kept(onnx_model):
    backend, model = text_model(onnx_model)
    [answer] = run(backend, model, [LocalRequest({"X": np.array([b"a\0b\0"], object)})])
    assert answer.outputs["Y"].tolist() == [b"a\0b\0a\0b\0"]


def test_bytes_that_are_not_utf8_fail_their_own_request(onnx_model):
    backend, model = text_model(onnx_model)
    bad, good = run(
        backend, model, [LocalRequest({"X": np.array([text], object)}) for text in (b"\xff", b"x")]
    )
    assert bad.code is ErrorCode.INVALID_ARG
    assert "input 'X' holds an element that is not UTF-8" in bad.message
    assert good.outputs["Y"].tolist() == [b"xx"]


def test_bfloat16_keeps_its_bits(onnx_model):
    directory = onnx_model.save(
        [
            ("Cast", ["X"], ["W"], {"to": TensorProto.FLOAT}),
            ("Add", ["W", "F"], ["S"]),
            ("Cast", ["S"], ["Y"], {"to": TensorProto.BFLOAT16}),
        ],
        [("X", "BFLOAT16", ["n", 3]), ("F", "FLOAT", ["n", 3])],
        [("Y", "BFLOAT16", ["n", 3]), ("S", "FLOAT", ["n", 3])],
    )
    backend, model = load(
        directory,
        [("X", DataType.BF16, [3]), ("F", FP32, [3])],
        [("Y", DataType.BF16, [3]), ("S", FP32, [3])],
        max_batch_size=4,
    )
    x = np.array([[1.5, -2, 0.25]], ml_dtypes.bfloat16)
    [answer] = run(backend, model, [LocalRequest({"X": x.view(np.uint16), "F": np.ones((1, 3), "f4")})])
    assert answer.outputs["Y"].view(ml_dtypes.bfloat16).tolist() == [[2.5, -1, 1.25]]
    assert answer.outputs["S"].tolist() == [[2.5, -1, 1.25]]


@pytest.mark.parametrize("kind", ["FLOAT", "BFLOAT16"])
def test_a_scalar_is_one_element_to_the_client(onnx_model, kind):
    directory = onnx_model.save([("Identity", ["X"], ["Y"])], [("X", kind, [])], [("Y", kind, [])])
    datatype = FP32 if kind == "FLOAT" else DataType.BF16
    backend, model = load(directory, [("X", datatype, [1])], [("Y", datatype, [1])])
    [answer] = run(backend, model, [LocalRequest({"X": np.array([3], datatype.numpy)})])
    assert answer.outputs["Y"].tolist() == [3]


def test_reshaped_tensors_have_the_models_dims(onnx_model):
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 2, 2])], [("Y", "FLOAT", ["n", 2, 2])]
    )
    tensors = [TensorInfo(name, FP32, [4], reshape=[2, 2]) for name in "XY"]
    backend, model = load(directory, tensors[:1], tensors[1:], max_batch_size=4)
    [answer] = run(backend, model, [LocalRequest({"X": np.ones((1, 2, 2), "f4")})])
    assert answer.outputs["Y"].shape == (1, 2, 2)


def test_an_input_with_a_default_may_be_left_out(onnx_model):
    default = numpy_helper.from_array(np.array([10, 20], "f4"), "B")
    directory = onnx_model.save(
        [("Add", ["A", "B"], ["Y"])],
        [("A", "FLOAT", [2]), ("B", "FLOAT", [2])],
        [("Y", "FLOAT", [2])],
        initializers=[default],
    )
    inputs = [("A", FP32, [2]), TensorInfo("B", FP32, [2], optional=True)]
    backend, model = load(directory, inputs, [("Y", FP32, [2])])
    ones = np.ones(2, "f4")
    assert run(backend, model, [LocalRequest({"A": ones})])[0].outputs["Y"].tolist() == [11, 21]
    assert run(backend, model, [LocalRequest({"A": ones, "B": ones})])[0].outputs["Y"].tolist() == [2, 2]


def test_a_missing_required_input_is_named(two_outputs):
    backend, model = two_outputs(max_batch_size=4)
    [answer] = run(backend, model, [LocalRequest({})])
    assert answer.code is ErrorCode.INTERNAL
    assert "X" in answer.message


@pytest.mark.parametrize("opset", [7, 13, 21])
def test_old_and_new_opsets_load(onnx_model, opset):
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 4])], [("Y", "FLOAT", ["n", 4])], opset=opset
    )
    backend, model = load(directory, [("X", FP32, [4])], [("Y", FP32, [4])], max_batch_size=4)
    assert run(backend, model, [LocalRequest({"X": np.ones((1, 4), "f4")})])[0].code is None


def test_a_model_directory_with_external_data_loads(onnx_model, version_directory):
    onnx_model.save(
        [("Add", ["X", "W"], ["Y"])],
        [("X", "FLOAT", ["n", 4])],
        [("Y", "FLOAT", ["n", 4])],
        initializers=[numpy_helper.from_array(np.arange(4, dtype="f4"), "W")],
        filename="plain.onnx",
    )
    (version_directory / "model.onnx").mkdir()
    onnx.save(
        onnx.load(version_directory / "plain.onnx"),
        version_directory / "model.onnx" / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    backend, model = load(version_directory, [("X", FP32, [4])], [("Y", FP32, [4])], max_batch_size=4)
    [answer] = run(backend, model, [LocalRequest({"X": np.zeros((1, 4), "f4")})])
    assert answer.outputs["Y"].tolist() == [[0, 1, 2, 3]]


def with_weights_at(onnx_model, folder, location, rows):
    """Write a model that adds weights, [rows, 4] of ones, which are at `location` by what its file says."""
    onnx_model.save(
        [("Add", ["X", "W"], ["Y"])],
        [("X", "FLOAT", [rows, 4])],
        [("Y", "FLOAT", [rows, 4])],
        initializers=[numpy_helper.from_array(np.ones((rows, 4), "f4"), "W")],
        filename="plain.onnx",
    )
    model = onnx.load(folder / "plain.onnx")
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    (folder / "plain.onnx").unlink()
    (folder / "model.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("rows", [4, 100_000])
@pytest.mark.parametrize(
    ("location", "linked"), [("weights", "weights"), ("./weights", "weights"), ("deep/er/weights", "deep")]
)
def test_weights_that_are_linked_from_elsewhere_are_found(
    onnx_model, version_directory, tmp_path, location, linked, rows
):
    with_weights_at(onnx_model, version_directory, location, rows)
    elsewhere = tmp_path / "elsewhere"
    target = elsewhere / location
    target.parent.mkdir(parents=True)
    (version_directory / "weights").rename(target)
    (version_directory / linked).symlink_to(elsewhere / linked)
    (elsewhere / "round").symlink_to(version_directory)  # links may lead in circles
    (version_directory / "round").symlink_to(elsewhere)
    backend, model = load(version_directory, [("X", FP32, [rows, 4])], [("Y", FP32, [rows, 4])])
    [answer] = run(backend, model, [LocalRequest({"X": np.ones((rows, 4), "f4")})])
    assert (answer.outputs["Y"] == 2).all()


@pytest.mark.parametrize("location", ["../secret", "deep/../../secret", "/etc/hostname", "missing"])
def test_weights_out_of_the_folder_by_name_are_refused(onnx_model, version_directory, location):
    with_weights_at(onnx_model, version_directory, location, 4)
    (version_directory / "weights").rename(version_directory.parent / "secret")
    with pytest.raises(LoadError, match="onnx runtime error 1: External data path"):
        load(version_directory, [("X", FP32, [4, 4])], [("Y", FP32, [4, 4])])


X, Y = ("X", FP32, [4]), ("Y", FP32, [4])


@pytest.mark.parametrize(
    ("inputs", "options", "reason"),
    [
        (
            [X, ("W", FP32, [4])],
            {},
            "unable to load model 'model', configuration expects 2 inputs, model provides 1",
        ),
        (
            [("X", DataType.INT32, [4])],
            {},
            "unable to load model 'model', configuration expects datatype TYPE_INT32 for input 'X', model"
            " provides TYPE_FP32",
        ),
        (
            [TensorInfo("X", FP32, [4], optional=True)],
            {},
            "unable to load model 'model', optional input 'X' is not supported for models that support"
            " batching",
        ),
        (
            [("W", FP32, [4])],
            {},
            "unable to load model 'model', unexpected inference input 'W', allowed inputs are: X",
        ),
        (
            [("X", FP32, [5])],
            {},
            "model 'model', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model"
            " configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0"
            " followed by the"
            " explicit tensor shape, making complete shape [-1,5])",
        ),
        (
            [X],
            {"max_batch_size": 0},
            "model 'model', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model"
            " configuration specifies 1 dimensions (shape [4])",
        ),
        (
            [X],
            {"parameters": {"intra_op_thread_count": "many"}},
            "model 'model': parameter 'intra_op_thread_count' must be an integer, got 'many'",
        ),
        (
            [X],
            {"parameters": {"enable_mem_arena": "2"}},
            "model 'model': parameter 'enable_mem_arena': failed to convert '2' to boolean",
        ),
        (
            [X],
            {"parameters": {"execution_mode": "2"}},
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got"
            " 2 .",
        ),
        (
            [X],
            {"config": {"sequence_batching": {"control_input": [{"name": "START"}]}}},
            "configuration specified sequence control 'START', but model does not provide that input",
        ),
        (
            [X],
            {"config": {"sequence_batching": {"control_input": [{"name": "X"}]}}},
            "unable to load model 'model', sequence control 'X' in model has dims [4] but dims [1] is"
            " expected",
        ),
        (
            [X],
            {"config": {"optimization": {"graph": {"level": 5}}}},
            "model 'model': optimization.graph.level must be -1, 0, 1 or 2, got 5",
        ),
        (
            [X],
            {"config": {"model_operations": {"op_library_filename": ["../../ops.so"]}}},
            "model 'model': no operator library '../../ops.so' in the model directory",
        ),
    ],
)
def test_what_can_not_be_loaded_says_why(onnx_model, inputs, options, reason):
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 4])], [("Y", "FLOAT", ["n", 4])]
    )
    with pytest.raises(LoadError) as caught:
        load(directory, inputs, [Y], **{"max_batch_size": 4, **options})
    assert str(caught.value) == reason


def test_an_output_of_another_datatype_is_refused(onnx_model):
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 4])], [("Y", "FLOAT", ["n", 4])]
    )
    with pytest.raises(LoadError, match="datatype TYPE_FP64 for output 'Y', model provides TYPE_FP32"):
        load(directory, [X], [("Y", DataType.FP64, [4])], max_batch_size=4)


def test_a_missing_file_is_named(version_directory):
    with pytest.raises(LoadError) as caught:
        load(version_directory, [X], [Y], max_batch_size=4)
    assert str(caught.value) == f"unable to find '{version_directory}/model.onnx' for model 'model'"


def test_a_broken_file_gives_onnx_runtimes_reason(version_directory):
    (version_directory / "model.onnx").write_bytes(b"no model")
    with pytest.raises(LoadError, match=r"unable to load model 'model', onnx runtime error 7: .*"):
        load(version_directory, [X], [Y], max_batch_size=4)


def test_a_gpu_instance_without_a_cuda_provider_is_refused(two_outputs):
    with pytest.raises(LoadError, match="no CUDA provider"):
        two_outputs(max_batch_size=4, kind="GPU")


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 2},
        {"parameters": {"intra_op_thread_count": "0", "inter_op_thread_count": "1", "execution_mode": "1"}},
        {"parameters": {"enable_mem_arena": "0", "enable_mem_pattern": "0"}},
        {"parameters": {"memory.enable_memory_arena_shrinkage": "cpu:0"}},
        {"parameters": {"session.intra_op.allow_spinning": "1"}},
        {"parameters": {"session.use_device_allocator_for_initializers": "1"}},
        {"settings": {"intra_op_thread_count": "1", "enable-global-threadpool": "1"}},
        *({"config": {"optimization": {"graph": {"level": level}}}} for level in (-1, 0, 1, 2)),
    ],
)
def test_options_are_accepted_by_the_runtime(two_outputs, options):
    backend, model = two_outputs(max_batch_size=4, **options)
    [answer] = run(backend, model, [LocalRequest({"X": -np.ones((1, 4), "f4")})])
    assert answer.outputs["Z"].tolist() == [[0, 0, 0, 0]]
    backend.unload()


def test_a_non_tensor_output_is_refused_only_if_it_is_configured(onnx_model):
    directory = onnx_model.save(
        [("Relu", ["X"], ["Y"]), ("SequenceConstruct", ["X"], ["S"])],
        [("X", "FLOAT", ["n", 4])],
        [("Y", "FLOAT", ["n", 4])],
    )
    path = directory / "model.onnx"
    model = onnx.load(path)
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 4])
    model.graph.output.append(helper.make_value_info("S", helper.make_sequence_type_proto(element)))
    onnx.save(model, path)
    load(directory, [X], [Y], max_batch_size=4)
    with pytest.raises(LoadError, match="Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'S', expected"):
        load(directory, [X], [Y, ("S", FP32, [4])], max_batch_size=4)


@pytest.fixture
def operators(onnx_model, version_directory):
    """Compile C into `ops.so` in the directory of a model Y = relu(X)."""
    onnx_model.save([("Relu", ["X"], ["Y"])], [("X", "FLOAT", ["n", 4])], [("Y", "FLOAT", ["n", 4])])

    def compiled(source):
        library = version_directory.parent / "ops.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return library

    return compiled


OPERATORS = {"max_batch_size": 4, "config": {"model_operations": {"op_library_filename": ["ops.so"]}}}


@pytest.mark.system
@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiling a library of operators needs gcc")
def test_a_library_of_operators_registers_them_with_the_session(operators, version_directory):
    # ONNX Runtime calls this with the session's options and its API; NULL is success.
    library = operators("int calls; void *RegisterCustomOps(void *o, void *a) { calls += o && a; return 0; }")
    backend, model = load(version_directory, [X], [Y], **OPERATORS)
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "calls").value == 1
    [answer] = run(backend, model, [LocalRequest({"X": -np.ones((1, 4), "f4")})])
    assert answer.outputs["Y"].tolist() == [[0, 0, 0, 0]]


@pytest.mark.system
@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiling a library of operators needs gcc")
def test_a_library_without_operators_is_refused(operators, version_directory):
    operators("int nothing;")
    with pytest.raises(
        LoadError, match=r"^unable to load model 'model', onnx runtime error.*RegisterCustomOps"
    ):
        load(version_directory, [X], [Y], **OPERATORS)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; expr=…", True),
        ("CUDA failure 719: unspecified launch failure ; GPU=1", True),
        ("Status Message: CUDA error cudaErrorAssert:device-side assert triggered", True),
        ("CUDA failure 2: out of memory ; GPU=0", False),
        ("CUDA failure 712: part or all of the requested memory range is already mapped", False),
        ("CUDA error cudaErrorMemoryAllocation:out of memory", False),
        ("Got invalid dimensions for input: X", False),
    ],
)
def test_errors_that_cost_the_process_its_device_are_told_from_others(text, lost):
    assert loses_device(text) is lost


ACCELERATED = {
    "optimization": {
        "execution_accelerators": {
            "cpu_execution_accelerator": [{"name": "openvino", "parameters": {"precision": "FP16"}}]
        }
    }
}


def test_an_accelerator_that_is_not_installed_is_refused_with_what_to_install(two_outputs):
    if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("the installed onnxruntime has OpenVINO's provider")
    with pytest.raises(LoadError, match=r"accelerator 'openvino' needs .* the package onnxruntime-openvino"):
        two_outputs(max_batch_size=8, config=ACCELERATED)


def test_an_accelerator_that_is_installed_goes_before_the_cpu(two_outputs, monkeypatch):
    session, asked = onnxruntime.InferenceSession, []

    def make(path, options, *, providers, enable_fallback):
        asked.extend(providers)
        return session(path, options, providers=["CPUExecutionProvider"], enable_fallback=enable_fallback)

    there = ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    two_outputs(max_batch_size=8, config=ACCELERATED, threads=3)
    openvino = {"device_type": "CPU", "precision": "FP32", "num_of_threads": "3"}
    assert asked == [("OpenVINOExecutionProvider", openvino), "CPUExecutionProvider"]
