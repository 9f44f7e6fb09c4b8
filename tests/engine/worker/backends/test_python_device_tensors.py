"""Tensors in a device's memory: their properties without a device; with one, the way there and back."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

from actors.values.datatypes import DataType
from engine.worker.backends.python import dlpack
from engine.worker.backends.python import triton_python_backend_utils as pb_utils
from engine.worker.backends.python.cuda import CudaError, driver
from engine.worker.backends.testing import LocalRequest, run


class Exporter:
    """An object that exports memory as if it lay on a device."""

    def __init__(self, array, device):
        self.array = array
        self.device = device
        self.memory = dlpack.DeviceMemory(
            self, array.ctypes.data, array.shape, DataType.FP32, device_id=device[1], device=device[0]
        )

    def __dlpack__(self, stream=None):
        return dlpack.share(self.memory)

    def __dlpack_device__(self):
        return self.device


def on_device(shape=(2, 3)):
    return Exporter(np.ones(shape, "f4"), (dlpack.CUDA_DEVICES[0], 3))


def test_a_tensor_in_device_memory_says_so():
    for exported in (on_device(), on_device().__dlpack__()):
        tensor = pb_utils.Tensor.from_dlpack("T", exported)
        assert not tensor.is_cpu()
        assert (tensor.name(), tensor.shape(), tensor.triton_dtype()) == ("T", [2, 3], 11)
        assert tensor.__dlpack_device__() == (2, 3)
        with pytest.raises(pb_utils.TritonModelException) as caught:
            tensor.as_numpy()
        assert str(caught.value) == "Tensor is stored in GPU and cannot be converted to NumPy."


def test_a_device_tensor_must_be_contiguous():
    memory = on_device().memory
    capsule = dlpack.share(memory)
    held = dlpack.held(capsule)
    assert held is not None
    assert (held.address, held.shape, held.nbytes) == (memory.address, (2, 3), 24)
    turned = np.ones((2, 3), "f4").T.__dlpack__()
    assert dlpack.held(turned) is None


def test_elements_that_no_datatype_has_are_refused():
    with pytest.raises(BufferError, match="64 bits are not supported"):
        dlpack.held(np.ones(2, "c8").__dlpack__())


def test_other_devices_are_refused():
    with pytest.raises(pb_utils.TritonModelException, match="a device of DLPack's type 7"):
        pb_utils.Tensor.from_dlpack("T", Exporter(np.ones(1, "f4"), (7, 0)))


def test_memory_lives_as_long_as_somebody_uses_it():
    """This holds whether its capsule is consumed or thrown away."""
    for consume in (True, False):
        exporter = Exporter(np.ones((2, 3), "f4"), (dlpack.CPU, 0))
        alive = weakref.ref(exporter)
        capsule = exporter.__dlpack__()
        used = dlpack.consume(capsule)[0] if consume else None
        del exporter, capsule
        gc.collect()
        if consume:
            assert alive() is not None
            assert used.sum() == 6
        del used
        gc.collect()
        assert alive() is None


def test_without_a_driver_an_output_on_a_device_fails_its_own_request_only(python_model, monkeypatch):
    def missing():
        raise CudaError("GPU memory can't be reached: no driver")

    monkeypatch.setattr("engine.worker.backends.python.cuda.driver", missing)
    ports = {"inputs": [("X", DataType.FP32, [1])], "outputs": [("Y", DataType.FP32, [3])]}
    backend, info = python_model(
        """
import tests.engine.worker.backends.test_python_device_tensors as here
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", here.on_device((1, 3)))]),
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 3), "f4"))]),
        ]
""",
        **ports,
        max_batch_size=2,
    )
    first, second = run(backend, info, [LocalRequest({"X": np.ones((1, 1), "f4")}) for _ in range(2)])
    assert "tensor 'Y': GPU memory can't be reached: no driver" in first.message
    assert second.outputs["Y"].tolist() == [[1, 1, 1]]


# --- with a device ------------------------------------------------------------------------------------------


def _has_device():
    try:
        driver().synchronize(0)
    except CudaError:
        return False
    return True


needs_device = pytest.mark.skipif(not _has_device(), reason="there is no CUDA device")


class Allocated:
    """Device memory with the content of an array, exported by DLPack."""

    def __init__(self, array):
        self.address = driver().allocate(0, array.nbytes)
        driver().copy_to_device(0, array.ctypes.data, self.address, array.nbytes)
        self.memory = dlpack.DeviceMemory(self, self.address, array.shape, DataType.FP32, device_id=0)

    def __del__(self):
        driver().free(0, self.address)

    def __dlpack__(self, stream=None):
        return dlpack.share(self.memory)

    def __dlpack_device__(self):
        return dlpack.CUDA_DEVICES[0], 0


@pytest.mark.gpu
@needs_device
def test_an_output_in_device_memory_reaches_the_client():
    array = np.random.default_rng(0).normal(size=(3, 5)).astype("f4")
    tensor = pb_utils.Tensor.from_dlpack("T", Allocated(array))
    gc.collect()
    name, datatype, copied = tensor.as_output()
    assert (name, datatype) == ("T", DataType.FP32)
    assert copied.tolist() == array.tolist()
    again = pb_utils.Tensor.from_dlpack("T", tensor)
    assert again.as_output()[2].tolist() == array.tolist()


@pytest.mark.gpu
@needs_device
@pytest.mark.filterwarnings("default")  # frameworks have their own opinions
@pytest.mark.parametrize("framework", ["torch", "cupy", "jax"])
def test_frameworks_share_device_memory_both_ways(framework):
    module = pytest.importorskip(framework)
    array = np.arange(6, dtype="f4").reshape(2, 3)
    match framework:
        case "torch":
            theirs, back = module.from_numpy(array).cuda(), lambda x: module.from_dlpack(x).cpu().numpy()
        case "cupy":
            theirs, back = module.asarray(array), lambda x: module.from_dlpack(x).get()
        case _:
            theirs, back = module.numpy.asarray(array), lambda x: np.asarray(module.dlpack.from_dlpack(x))
    tensor = pb_utils.Tensor.from_dlpack("T", theirs)
    assert not tensor.is_cpu()
    assert tensor.as_output()[2].tolist() == array.tolist()
    assert back(tensor).tolist() == array.tolist()


@pytest.mark.gpu
@needs_device
@pytest.mark.filterwarnings("default")
def test_bfloat16_on_a_device_keeps_its_bits():
    torch = pytest.importorskip("torch")
    theirs = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, device="cuda")
    tensor = pb_utils.Tensor.from_dlpack("T", torch.utils.dlpack.to_dlpack(theirs))
    assert tensor.triton_dtype() == 14
    assert tensor.as_output()[2].tolist() == [0x3FC0, 0xC000]
    assert torch.equal(torch.from_dlpack(tensor), theirs)


def test_the_header_is_dlpacks():
    """The layout of DLTensor in dlpack.h, on 64-bit machines."""
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    array = np.arange(6, dtype="i2").reshape(2, 3)[1:]
    held = dlpack.held(array.__dlpack__())
    assert held is not None
    assert (held.address, held.shape, held.datatype) == (array.ctypes.data, (1, 3), DataType.INT16)
