"""Plans of the real TensorRT-RTX, which builds engines without a GPU, and runs them where there is one.

    pip install 'tritium[tensorrt-rtx]'
    python -m pytest -m long tests/engine/worker/backends/test_tensorrt_rtx.py
    python -m pytest -m gpu tests/engine/worker/backends/test_tensorrt_rtx.py

An engine can't be opened without a driver. So what is compared here without one is the file, and what the
backend says.
"""

import threading
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from actors.values.datatypes import DataType
from engine.repository.bare.policy import formats
from engine.repository.bare.policy.recognition import Glimpse, recognise
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.tensorrt import plans
from engine.worker.backends.tensorrt.backend import TensorRtBackend
from engine.worker.backends.tensorrt.parameters import Options
from engine.worker.backends.tensorrt.reading import open_engine
from engine.worker.backends.testing import LocalRequest, model_info, run
from engine.worker.devices import cuda

trt: Any = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed: tritium[tensorrt-rtx]")

X, Y = (TensorInfo(name, DataType.FP32, [4]) for name in "XY")


def on_device():
    try:
        return cuda.driver().device_count() > 0
    except cuda.CudaError:
        return False


needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not on_device(), reason="the CUDA driver has no device")]
on_gpu = [pytest.param(number, marks=needs_gpu) for number in (1, 3)]


class Said(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.errors = []

    def log(self, severity, message):
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self.errors.append(message)


def built():
    """Build Y = relu(X), for 1 to 8 rows."""
    x, y = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4])] for name in "XY")
    graph = helper.make_graph([helper.make_node("Relu", ["X"], ["Y"])], "g", x, y)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    said = Said()
    builder = trt.Builder(said)
    network = builder.create_network(0)
    assert trt.OnnxParser(network, said).parse(model.SerializeToString()), said.errors
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("X", (1, 4), (4, 4), (8, 4))
    config.add_optimization_profile(profile)
    return bytes(builder.build_serialized_network(network, config))


@pytest.fixture(scope="module")
def plan():
    return built()


def info(directory, plan, **options):
    (directory / "model.plan").write_bytes(plan)
    return model_info(directory, inputs=[X], outputs=[Y], max_batch_size=8, kind="GPU", **options)


@pytest.mark.long
def test_a_plan_tells_its_runtime_and_its_version(plan):
    family = plans.family_of(plan)
    assert family is not None
    assert family.modules == ("tensorrt_rtx",)
    assert plans.version_of(plan) == trt.__version__


@pytest.mark.long
def test_a_plan_is_recognised_by_its_first_bytes(plan):
    seen = recognise(Glimpse(head=plan[:64], size=len(plan)))
    assert seen is not None
    assert seen.form is formats.TENSORRT


@pytest.mark.long
@pytest.mark.skipif(on_device(), reason="there is a GPU")
def test_without_a_driver_the_package_is_not_touched(plan, version_directory):
    with pytest.raises(LoadError, match="TensorRT needs a GPU"):
        TensorRtBackend().load(info(version_directory, plan))


class NoDevice:
    """In the driver's place, so that the package is touched all the same."""

    def compute_capability(self, device):
        return "9.0"


@pytest.mark.long
@pytest.mark.skipif(on_device(), reason="there is a GPU")
def test_what_the_package_says_of_an_engine_that_it_can_not_open_is_told(plan, version_directory):
    logged = []
    driver: Any = NoDevice()
    model = info(version_directory, plan, log=lambda level, message: logged.append((level, message)))
    with pytest.raises(LoadError) as caught:
        open_engine(model, driver, Options(model))
    assert "unable to create TensorRT engine: IRuntime::deserializeCudaEngine: Error Code" in str(
        caught.value
    )
    assert f"TensorRT-RTX {trt.__version__} has built the plan" in str(caught.value)
    assert ("verbose", "TensorRT: Loaded engine size: 0 MiB") in logged


@pytest.mark.long
def test_all_calls_that_the_backend_makes_are_there():
    engine = (
        "create_execution_context get_tensor_components_per_element get_tensor_dtype get_tensor_format"
        " get_tensor_location get_tensor_mode get_tensor_name get_tensor_profile_shape"
        " get_tensor_profile_values get_tensor_shape get_tensor_vectorized_dim is_shape_inference_io"
        " num_io_tensors num_optimization_profiles"
    )
    context = (
        "execute_async_v3 get_tensor_shape infer_shapes is_stream_capturable set_input_shape"
        " set_optimization_profile_async set_output_allocator set_tensor_address"
    )
    assert [name for name in engine.split() if not hasattr(trt.ICudaEngine, name)] == []
    assert [name for name in context.split() if not hasattr(trt.IExecutionContext, name)] == []
    assert {"STATIC", "ON_PROFILE_CHANGE"} <= set(dir(trt.ExecutionContextAllocationStrategy))
    assert hasattr(trt.Runtime, "engine_host_code_allowed")


def _answers(backend, model, start):
    x = np.arange(start, start + 12, dtype="f4").reshape(3, 4) - 6
    [answer] = run(backend, model, [LocalRequest({"X": x})])
    np.testing.assert_array_equal(answer.outputs["Y"], np.maximum(x, 0))


@pytest.mark.parametrize("lanes", on_gpu)
@pytest.mark.parametrize("graphs", [False, True])
def test_an_engine_computes_what_it_was_built_for(plan, version_directory, lanes, graphs):
    config = {"optimization": {"cuda": {"graphs": graphs}}}
    model, backend = info(version_directory, plan, lanes=lanes, config=config), TensorRtBackend()
    backend.load(model)
    try:
        threads = [threading.Thread(target=_answers, args=(backend, model, at)) for at in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _answers(backend, model, 2)
    finally:
        backend.unload()
