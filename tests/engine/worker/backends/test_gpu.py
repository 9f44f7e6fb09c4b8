"""What the backends compute on a CUDA device equals what the same models compute on the CPU.

    python -m pytest -m gpu

Without a device every test here is skipped. docs/gpu.md says what they prove and what they don't.
"""

import json
import shutil
import threading
from typing import Any, cast

import httpx
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch
import trio
from onnx import numpy_helper

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.server.tree import open_server
from engine.settings.settings import Settings
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.onnxruntime import OnnxRuntimeBackend
from engine.worker.backends.pytorch import PyTorchBackend
from engine.worker.backends.testing import LocalRequest, model_info, run
from engine.worker.devices.arrays import DeviceArray

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers have their own opinions
]
needs_onnxruntime_gpu = pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="the installed onnxruntime has no CUDA provider; onnxruntime-gpu has",
)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="compiling a package needs g++")
on_each_device = pytest.mark.parametrize("device", sorted({0, max(0, torch.cuda.device_count() - 1)}))

KIND = "GPU"
FP32 = DataType.FP32
SIZE = 256
X, Y = [("INPUT__0", FP32, [SIZE])], [("OUTPUT__0", FP32, [SIZE])]
TOLERANCE: Any = {"rtol": 1e-3, "atol": 1e-3}  # sums are taken in another order
TF32 = {"rtol": 3e-2, "atol": 3e-2}  # ONNX Runtime multiplies with 10 bits of mantissa where the device can
RNG = np.random.default_rng(0)
WEIGHT = (RNG.normal(size=(SIZE, SIZE)) * (2 / SIZE) ** 0.5).astype("f4")  # keeps the scale through ReLU


class Network(torch.nn.Module):
    """Three layers: long enough for kernels to be running when the call returns."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(WEIGHT.copy()))

    def forward(self, x):
        for _ in range(3):
            x = torch.relu(x @ self.weight)
        return x


class Select(torch.nn.Module):
    """Y[row] = A[row, I[row]]; the kernel fails where an index is out of range."""

    def forward(self, data: torch.Tensor, index: torch.Tensor):
        return torch.gather(data, 1, index)


class WhereItsWeightIs(torch.nn.Module):
    """Chooses its own device, as models of KIND_MODEL do, and leaves its result there."""

    def __init__(self, device):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(WEIGHT.copy()).to(device))

    def forward(self, x: torch.Tensor):
        x = x.to(self.weight.device)
        for _ in range(50):
            x = torch.relu(x @ self.weight)
        return x


def computed(x, layers=3):
    """Return on the CPU what `Network` makes of `x`."""
    for _ in range(layers):
        x = np.maximum(x @ WEIGHT, 0)
    return x


def rows(count):
    return RNG.normal(size=(count, SIZE)).astype("f4")


def load(make, directory, inputs, outputs, **options):
    info = model_info(
        directory,
        inputs=[TensorInfo(*tensor) for tensor in inputs],
        outputs=[TensorInfo(*tensor) for tensor in outputs],
        **{"kind": KIND, "max_batch_size": 4096, **options},
    )
    backend = make()
    backend.load(info)
    return backend, info


def check(backend, model, *parts, tolerance=TOLERANCE):
    """Run one batch of requests with these inputs, and compare each answer."""
    name = model.inputs[0].name
    answers = run(backend, model, [LocalRequest({name: part}) for part in parts])
    for part, answer in zip(parts, answers, strict=True):
        assert answer.code is None, answer.message
        np.testing.assert_allclose(answer.outputs[model.outputs[0].name], computed(part), **tolerance)


@pytest.fixture
def script(version_directory):
    """Save a module as TorchScript."""

    def save(module, *examples):
        scripted = torch.jit.trace(module, examples) if examples else torch.jit.script(module)
        scripted.save(version_directory / "model.pt")
        return version_directory

    return save


def exported(device="cpu"):
    batch = torch.export.Dim("batch", min=1)
    example = (torch.zeros(2, SIZE, device=device),)
    return torch.export.export(Network().to(device).eval(), example, dynamic_shapes=({0: batch},))


# -- PyTorch


@on_each_device
@pytest.mark.parametrize(
    "parameters",
    [{}, {"INFERENCE_MODE": "false"}, {"ENABLE_CACHE_CLEANING": "true", "DISABLE_CUDNN": "true"}],
)
def test_torchscript_equals_the_cpu(script, device, parameters):
    directory = script(Network(), torch.zeros(2, SIZE))
    backend, model = load(PyTorchBackend, directory, X, Y, device_id=device, parameters=parameters)
    check(backend, model, rows(1), rows(7))
    backend.unload()


@on_each_device
def test_an_exported_program_is_moved_to_its_device(version_directory, device):
    torch.export.save(exported(), version_directory / "model.pt2")
    backend, model = load(PyTorchBackend, version_directory, X, Y, device_id=device)
    check(backend, model, rows(1), rows(7))
    backend.unload()


@needs_compiler
@on_each_device
def test_a_compiled_package_equals_the_cpu(version_directory, device):
    path = str(version_directory / "model.pt2")
    torch._inductor.aoti_compile_and_package(exported(KIND.lower().replace("gpu", "cuda")), package_path=path)
    backend, model = load(PyTorchBackend, version_directory, X, Y, device_id=device)
    check(backend, model, rows(1), rows(7))
    backend.unload()


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_autocast_answers_in_the_configured_type(script, amp):
    directory = script(Network(), torch.zeros(2, SIZE))
    backend, model = load(PyTorchBackend, directory, X, Y, parameters={"tritium.amp": amp})
    x = rows(4)
    [answer] = run(backend, model, [LocalRequest({"INPUT__0": x})])
    assert answer.outputs["OUTPUT__0"].dtype == np.float32
    np.testing.assert_allclose(answer.outputs["OUTPUT__0"], computed(x), rtol=0.1, atol=0.1)


def test_bfloat16_keeps_its_bits(script):
    directory = script(torch.nn.Identity(), torch.zeros(2, 3))
    ports = [("x", DataType.BF16, [3])], [("y", DataType.BF16, [3])]
    backend, model = load(PyTorchBackend, directory, *ports)
    x = np.array([[1.5, -0.25, 3e38]], ml_dtypes.bfloat16).view(np.uint16)
    [answer] = run(backend, model, [LocalRequest({"x": x})])
    assert answer.outputs["y"].tolist() == x.tolist()


def test_an_empty_tensor_goes_through(script):
    directory = script(torch.nn.Identity(), torch.zeros(2, 0))
    backend, model = load(PyTorchBackend, directory, [("x", FP32, [-1])], [("y", FP32, [-1])])
    [answer] = run(backend, model, [LocalRequest({"x": np.zeros((1, 0), "f4")})])
    assert answer.outputs["y"].shape == (1, 0)


def test_pinned_memory_is_not_used_again_before_it_was_read(script):
    backend, model = load(PyTorchBackend, script(Network(), torch.zeros(2, SIZE)), X, Y)
    for count in (1, 512, 3, 2048) * 10:  # the same few buffers, over and over
        check(backend, model, rows(count))


def test_lanes_run_at_once_on_streams_of_their_own(script):
    backend, model = load(PyTorchBackend, script(Network(), torch.zeros(2, SIZE)), X, Y, lanes=2)
    together(lambda: check(backend, model, rows_of_a_thread(512)), times=40)


def test_lanes_do_not_share_what_autocast_made(script):
    directory = script(Network(), torch.zeros(2, SIZE))
    backend, model = load(PyTorchBackend, directory, X, Y, lanes=2, parameters={"tritium.amp": "bf16"})

    def once():
        x = rows_of_a_thread(512)
        [answer] = run(backend, model, [LocalRequest({"INPUT__0": x})])
        np.testing.assert_allclose(answer.outputs["OUTPUT__0"], computed(x), rtol=0.1, atol=0.1)

    together(once, times=40)


def rows_of_a_thread(count):
    return np.random.default_rng(threading.get_ident()).normal(size=(count, SIZE)).astype("f4")


def together(work, *, times):
    """Do `work` on two threads, each time starting together; raise what failed."""
    barrier = threading.Barrier(2)
    failures = []

    def lane():
        try:
            for _ in range(times):
                barrier.wait(60)
                work()
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test must see it
            barrier.abort()
            failures.append(error)

    threads = [threading.Thread(target=lane) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


def test_a_model_that_chooses_its_device_has_its_results_awaited(script):
    directory = script(WhereItsWeightIs(KIND.lower().replace("gpu", "cuda")))
    backend, model = load(PyTorchBackend, directory, X, Y, kind="MODEL")
    x = rows(2048)
    [answer] = run(backend, model, [LocalRequest({"INPUT__0": x})])
    np.testing.assert_allclose(answer.outputs["OUTPUT__0"], computed(x, layers=50), **TOLERANCE)


def test_a_request_that_the_model_refuses_fails_alone(script):
    directory = script(Network(), torch.zeros(2, SIZE))
    backend, model = load(PyTorchBackend, directory, [("INPUT__0", FP32, [-1])], Y)
    [answer] = run(backend, model, [LocalRequest({"INPUT__0": np.zeros((1, 3), "f4")})])
    assert answer.code is ErrorCode.INTERNAL
    check(backend, model, rows(2))


def test_a_gpu_that_is_not_there_is_refused(script):
    directory = script(Network(), torch.zeros(2, SIZE))
    with pytest.raises(LoadError, match="is for GPU 99 but the installed torch sees"):
        load(PyTorchBackend, directory, X, Y, device_id=99)


# -- PyTorch, with tensors that lie on the device before and after


def lying_there(tensor, datatype=FP32):
    """Return an array over a tensor on a device, once it is written."""
    torch.cuda.synchronize(tensor.device)
    return DeviceArray(
        tensor, tensor.data_ptr(), tuple(tensor.shape), datatype, device_id=tensor.device.index
    )


class Given(LocalRequest):
    """Notes what its outputs were when they were given, copied by the driver alone; its inputs stay there."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.given = {}

    def settle(self, outputs, parameters=None):
        for name, _, array in outputs:
            assert isinstance(array, DeviceArray)
            self.given[name] = array.device_id, array.to_host()
        super().settle(outputs, parameters)

    def own(self, name):
        raise AssertionError(f"{name} was copied to the host")


@on_each_device
@pytest.mark.parametrize("parameters", [{}, {"INFERENCE_MODE": "false"}, {"ENABLE_CACHE_CLEANING": "true"}])
def test_tensors_stay_on_the_device(script, device, parameters):
    directory = script(Network(), torch.zeros(2, SIZE))
    backend, model = load(PyTorchBackend, directory, X, Y, device_id=device, parameters=parameters)
    for counts in ([2048], [1, 7, 300]) * 5:
        parts = [rows(count) for count in counts]
        there = [torch.from_numpy(part).to(f"cuda:{device}") for part in parts]
        requests = [Given({"INPUT__0": lying_there(part)}, device_outputs=["OUTPUT__0"]) for part in there]
        for part, request, answer in zip(parts, requests, run(backend, model, requests), strict=True):
            assert (answer.message, answer.on_device) == ("", {"OUTPUT__0"})
            given_on, given = request.given["OUTPUT__0"]
            assert given_on == device
            np.testing.assert_allclose(given, computed(part), **TOLERANCE)
        assert all(
            torch.equal(kept.cpu(), torch.from_numpy(part)) for kept, part in zip(there, parts, strict=True)
        )
    backend.unload()


def test_inputs_lie_on_the_device_beside_others_of_the_host(script):
    directory = script(Select())
    ports = [("data", FP32, [3]), ("index", DataType.INT64, [1])], [("OUTPUT__0", FP32, [1])]
    backend, model = load(PyTorchBackend, directory, *ports)
    data = np.array([[5, 6, 7]], "f4")
    requests = [
        LocalRequest(
            {"data": lying_there(torch.from_numpy(data * scale).cuda()), "index": np.array([[at]])},
            device_outputs=["OUTPUT__0"],
        )
        for scale, at in ((1, 2), (10, 0))
    ]
    answers = run(backend, model, requests)
    assert [answer.outputs["OUTPUT__0"].tolist() for answer in answers] == [[[7]], [[50]]]
    assert all(answer.on_device for answer in answers)


def test_bfloat16_keeps_its_bits_on_the_device(script):
    directory = script(torch.nn.Identity(), torch.zeros(2, 3))
    ports = [("x", DataType.BF16, [3])], [("y", DataType.BF16, [3])]
    backend, model = load(PyTorchBackend, directory, *ports)
    x = torch.tensor([[1.5, -0.25, 3e38]], dtype=torch.bfloat16, device="cuda")
    [answer] = run(backend, model, [Given({"x": lying_there(x, DataType.BF16)}, device_outputs=["y"])])
    assert answer.outputs["y"].tolist() == x.cpu().view(torch.int16).numpy().view(np.uint16).tolist()


def test_lanes_keep_tensors_on_the_device_at_once(script):
    backend, model = load(PyTorchBackend, script(Network(), torch.zeros(2, SIZE)), X, Y, lanes=2)

    def once():
        x = rows_of_a_thread(512)
        request = Given({"INPUT__0": lying_there(torch.from_numpy(x).cuda())}, device_outputs=["OUTPUT__0"])
        [answer] = run(backend, model, [request])
        assert answer.message == ""
        np.testing.assert_allclose(request.given["OUTPUT__0"][1], computed(x), **TOLERANCE)

    together(once, times=40)


# -- ONNX Runtime


@pytest.fixture
def onnx_network(onnx_model):
    weight = numpy_helper.from_array(WEIGHT, "w")
    layers = [("h0", "X"), ("h1", "r0"), ("h2", "r1")]
    nodes = [
        node
        for at, (hidden, before) in enumerate(layers)
        for node in (
            ("MatMul", [before, "w"], [hidden]),
            ("Relu", [hidden], ["Y" if at == 2 else f"r{at}"]),
        )
    ]
    return onnx_model.save(
        nodes, [("X", "FLOAT", ["n", SIZE])], [("Y", "FLOAT", ["n", SIZE])], initializers=[weight]
    )


ONNX = [("X", FP32, [SIZE])], [("Y", FP32, [SIZE])]


@needs_onnxruntime_gpu
@on_each_device
@pytest.mark.parametrize("count", [1, 2048])  # small outputs are copied, large ones written in place
def test_onnx_equals_the_cpu(onnx_network, device, count):
    backend, model = load(OnnxRuntimeBackend, onnx_network, *ONNX, device_id=device)
    for _ in range(5):
        check(backend, model, rows(count), rows(2), tolerance=TF32)
    backend.unload()


@needs_onnxruntime_gpu
def test_onnx_takes_the_cuda_providers_options(onnx_network):
    parameters = {
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": str(2**30),
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
    }
    backend, model = load(OnnxRuntimeBackend, onnx_network, *ONNX, parameters=parameters)
    check(backend, model, rows(4), tolerance=TF32)


def accelerated(name, **parameters):
    accelerator = {"name": name, "parameters": parameters}
    return {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}}


@needs_onnxruntime_gpu
def test_onnx_takes_the_options_of_the_accelerator_for_cuda(onnx_network):
    config = accelerated("cuda", cudnn_conv_algo_search="1", use_ep_level_unified_stream="1")
    backend, model = load(OnnxRuntimeBackend, onnx_network, *ONNX, config=config)
    check(backend, model, rows(4), tolerance=TF32)


@pytest.mark.skipif(
    "TensorrtExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="the installed onnxruntime has no provider for TensorRT",
)
@pytest.mark.parametrize("mode", ["FP32", "FP16"])
def test_onnx_through_tensorrt_equals_the_cpu(onnx_network, tmp_path, mode):
    cache = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(tmp_path)}
    config = accelerated("tensorrt", precision_mode=mode, **cache)
    backend, model = load(OnnxRuntimeBackend, onnx_network, *ONNX, config=config)
    check(backend, model, rows(4), rows(1), tolerance=TF32)
    assert list(tmp_path.iterdir())


@needs_onnxruntime_gpu
def test_onnx_bfloat16_keeps_its_bits(onnx_model):
    shape = ["n", 3]
    directory = onnx_model.save(
        [("Identity", ["X"], ["Y"])], [("X", "BFLOAT16", shape)], [("Y", "BFLOAT16", shape)]
    )
    ports = [("X", DataType.BF16, [3])], [("Y", DataType.BF16, [3])]
    backend, model = load(OnnxRuntimeBackend, directory, *ports)
    x = np.array([[1.5, -0.25, 3e38]], ml_dtypes.bfloat16).view(np.uint16)
    [answer] = run(backend, model, [LocalRequest({"X": x})])
    assert answer.outputs["Y"].tolist() == x.tolist()


@needs_onnxruntime_gpu
def test_onnx_lanes_run_at_once(onnx_network):
    backend, model = load(OnnxRuntimeBackend, onnx_network, *ONNX, lanes=2)
    together(lambda: check(backend, model, rows_of_a_thread(512), tolerance=TF32), times=40)


# -- Python


@on_each_device
def test_a_python_model_is_told_its_device_and_may_use_it(python_model, device):
    backend, model = python_model(
        """
        import torch

        class TritonPythonModel:
            def initialize(self, args):
                assert args["model_instance_kind"] == "KIND"
                self.device = torch.device("cuda", int(args["model_instance_device_id"]))

            def execute(self, requests):
                x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
                doubled = torch.from_numpy(x.copy()).to(self.device) * 2
                number = np.array([doubled.device.index], np.int32)
                return [pb_utils.InferenceResponse([
                    pb_utils.Tensor.from_dlpack("Y", doubled.cpu()), pb_utils.Tensor("DEVICE", number),
                ])]
        """.replace('"KIND"', f'"{KIND}"'),
        inputs=[("X", FP32, [2])],
        outputs=[("Y", FP32, [2]), ("DEVICE", DataType.INT32, [1])],
        kind=KIND,
        device_id=device,
    )
    [answer] = run(backend, model, [LocalRequest({"X": np.array([1, 2], "f4")})])
    assert answer.code is None, answer.message
    assert answer.outputs["Y"].tolist() == [2, 4]
    assert answer.outputs["DEVICE"].tolist() == [device]


def test_a_tensor_on_the_device_is_copied_when_it_is_an_output(python_model):
    backend, model = python_model(
        """
        import torch

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", torch.ones(2, device="cuda"))])]
        """,
        outputs=[("Y", FP32, [2])],
        kind=KIND,
    )
    [answer] = run(backend, model, [LocalRequest({})])
    assert answer.outputs["Y"].tolist() == [1, 1]


@on_each_device
def test_a_python_models_tensors_stay_on_its_device(python_model, device):
    """Its kernels are still running when it answers, on a stream of its own."""
    backend, model = python_model(
        """
        import torch

        class TritonPythonModel:
            def initialize(self, args):
                self.stream = torch.cuda.Stream(int(args["model_instance_device_id"]))

            def execute(self, requests):
                responses = []
                with torch.cuda.stream(self.stream):
                    for request in requests:
                        [x] = request.inputs()
                        assert not x.is_cpu()
                        y = torch.from_dlpack(x)
                        for _ in range(200):
                            y = y + 1
                        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", y)]))
                return responses
        """,
        inputs=[("X", FP32, [1024, 1024])],
        outputs=[("Y", FP32, [1024, 1024])],
        kind=KIND,
        device_id=device,
        max_batch_size=8,
        parameters={"FORCE_CPU_ONLY_INPUT_TENSORS": "no"},
    )
    parts = [torch.full((1, 1024, 1024), float(at), device=f"cuda:{device}") for at in range(3)]
    requests = [Given({"X": lying_there(part)}, device_outputs=["Y"]) for part in parts]
    for at, (request, answer) in enumerate(zip(requests, run(backend, model, requests), strict=True)):
        assert (answer.message, answer.on_device) == ("", {"Y"})
        given_on, given = request.given["Y"]
        assert given_on == device
        assert given.min() == given.max() == at + 200


# -- the whole server

NETWORK = f"""
backend: "pytorch"
max_batch_size: 64
input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: {SIZE} }}
output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: {SIZE} }}
dynamic_batching {{ }}
"""
SELECT = """
backend: "pytorch"
max_batch_size: 8
input [
  { name: "data" data_type: TYPE_FP32 dims: 3 },
  { name: "index" data_type: TYPE_INT64 dims: 1 }
]
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_GPU gpus: 0 }
"""


def write(directory, config, module):
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    module.save(directory / "1" / "model.pt")


def settings(repository):
    return Settings(
        model_repositories=(str(repository),),
        http_address="127.0.0.1",
        http_port=0,
        allow_grpc=False,
        allow_metrics=False,
    )


def tensor(name, datatype, array):
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.ravel().tolist(),
    }


async def infer(client, model, *tensors):
    return await client.post(f"/v2/models/{model}/infer", json={"inputs": tensors})


async def test_a_server_serves_from_the_gpu(tmp_path):
    write(tmp_path / "network", NETWORK, torch.jit.trace(Network(), torch.zeros(2, SIZE)))
    with trio.fail_after(120):
        async with open_server(settings(tmp_path)) as server:
            await server.wait_loaded()
            async with httpx.AsyncClient(base_url=f"http://{cast('Any', server.http).address}") as client:
                config = (await client.get("/v2/models/network/config")).json()
                assert {group["kind"] for group in config["instance_group"]} == {f"KIND_{KIND}"}
                parts = [rows(count) for count in (1, 3, 2)]
                answers = {}

                async def ask(at):
                    answers[at] = await infer(client, "network", tensor("INPUT__0", "FP32", parts[at]))

                async with trio.open_nursery() as nursery:
                    for at in range(len(parts)):
                        nursery.start_soon(ask, at)
                for at, part in enumerate(parts):
                    [output] = answers[at].json()["outputs"]
                    got = np.array(output["data"], "f4").reshape(output["shape"])
                    np.testing.assert_allclose(got, computed(part), **TOLERANCE)


async def test_a_request_that_kills_the_device_costs_the_others_nothing(tmp_path):
    write(tmp_path / "select", SELECT, torch.jit.script(Select()))
    data = tensor("data", "FP32", np.array([[10, 20, 30]], "f4"))
    good, bad = (tensor("index", "INT64", np.array([[index]])) for index in (1, 7))
    with trio.fail_after(240):
        async with open_server(settings(tmp_path)) as server:
            await server.wait_loaded()
            async with httpx.AsyncClient(
                base_url=f"http://{cast('Any', server.http).address}", timeout=120
            ) as client:
                assert (await infer(client, "select", data, good)).json()["outputs"][0]["data"] == [20]
                refused = await infer(client, "select", data, bad)
                assert refused.status_code == 422, refused.text
                again = await infer(client, "select", data, good)
                assert again.status_code == 200, again.text
                assert again.json()["outputs"][0]["data"] == [20]
                assert "restarts" in json.dumps((await client.get("/v2/tritium/tree")).json())
