"""Tensors in a device's memory: their properties without a device; with one, the way there and back."""

import ctypes
import gc
import json
import weakref
from typing import Any

import numpy as np
import pytest

from actors.values.datatypes import DataType
from engine.worker.backends.python import triton_python_backend_utils as pb_utils
from engine.worker.backends.python.host import Host, attach
from engine.worker.backends.testing import LocalRequest, run
from engine.worker.devices import dlpack
from engine.worker.devices.arrays import DeviceArray
from engine.worker.devices.cuda import CudaError, driver


class Exporter:
    """An object that exports memory as if it lay on a device."""

    def __init__(self, array, device):
        self.array = array
        self.device = device
        self.memory = DeviceArray(
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
        used: Any = dlpack.consume(capsule)[0] if consume else None
        del exporter, capsule
        gc.collect()
        if consume:
            assert alive() is not None
            assert used.sum() == 6
        del used
        gc.collect()
        assert alive() is None


def test_without_a_driver_an_output_on_a_device_fails_its_own_request_only(python_model, monkeypatch):
    if _has_device():
        pytest.skip("the driver may be loaded already")

    def missing(name):
        raise OSError("no driver")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    ports = {"inputs": [("X", DataType.FP32, [1])], "outputs": [("Y", DataType.FP32, [3])]}
    backend, info = python_model(
        """
import tests.engine.worker.backends.test_python_objects as here
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
        self.memory = DeviceArray(self, self.address, array.shape, DataType.FP32, device_id=0)

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


# -- what `triton_python_backend_utils` offers beside requests: constants, tables, errors and responses


TABLE = {
    "TYPE_BOOL": (1, bool),
    "TYPE_UINT8": (2, np.uint8),
    "TYPE_UINT16": (3, np.uint16),
    "TYPE_UINT32": (4, np.uint32),
    "TYPE_UINT64": (5, np.uint64),
    "TYPE_INT8": (6, np.int8),
    "TYPE_INT16": (7, np.int16),
    "TYPE_INT32": (8, np.int32),
    "TYPE_INT64": (9, np.int64),
    "TYPE_FP16": (10, np.float16),
    "TYPE_FP32": (11, np.float32),
    "TYPE_FP64": (12, np.float64),
    "TYPE_STRING": (13, np.object_),
}


@pytest.mark.parametrize(("name", "number", "numpy"), [(name, *row) for name, row in TABLE.items()])
def test_each_datatype_has_its_number_and_its_numpy_type(name, number, numpy):
    assert pb_utils.triton_string_to_numpy(name) is numpy
    assert pb_utils.triton_to_numpy_type(number) is numpy
    assert pb_utils.numpy_to_triton_type(numpy) == number
    assert pb_utils.Tensor("T", np.zeros(1, numpy)).triton_dtype() == number


def test_fixed_width_bytes_are_strings_and_byte_order_does_not_matter():
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.Tensor("T", np.array([b"ab"])).triton_dtype() == 13
    assert pb_utils.Tensor("T", np.zeros(1, ">f4")).triton_dtype() == DataType.FP32.number


def test_constants_are_tritons():
    numbers = {
        "REQUEST_FLAG_SEQUENCE_START": 1,
        "REQUEST_FLAG_SEQUENCE_END": 2,
        "RESPONSE_COMPLETE_FINAL": 1,
        "REQUEST_RELEASE_ALL": 1,
        "REQUEST_RELEASE_RESCHEDULE": 2,
        "MEMORY_CPU": pb_utils.MemoryType.TRITONSERVER_MEMORY_CPU,
        "MEMORY_GPU": pb_utils.MemoryType.TRITONSERVER_MEMORY_GPU,
    }
    assert {name: getattr(pb_utils, f"TRITONSERVER_{name}") for name in numbers} == numbers
    assert issubclass(pb_utils.TritonModelException, Exception)


@pytest.mark.parametrize(
    "code",
    [
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "CANCELLED",
    ],
)
def test_an_error_keeps_its_text_and_its_code(code):
    error = pb_utils.TritonError("why", getattr(pb_utils.TritonError, code))
    assert (error.message(), error.code().name) == ("why", code)


def test_a_response_shows_what_it_was_given():
    tensor = pb_utils.Tensor("Y", np.ones(1))
    response = pb_utils.InferenceResponse([tensor], parameters={"i": 1, "b": True, "s": "x"})
    assert response.output_tensors() == [tensor]
    assert json.loads(response.parameters()) == {"i": 1, "b": True, "s": "x"}
    assert (response.has_error(), response.error()) == (False, None)
    assert pb_utils.InferenceResponse().parameters() == "{}"
    failed: Any = pb_utils.InferenceResponse([tensor], error=pb_utils.TritonError("no"))
    assert failed.has_error()
    assert failed.error().message() == "no"
    assert failed.error().code() == pb_utils.TritonError.INTERNAL


def test_a_request_of_the_models_own_shows_what_it_was_given():
    tensor = pb_utils.Tensor("X", np.ones(1))
    request = pb_utils.InferenceRequest(
        request_id="i",
        correlation_id="seq",
        inputs=[tensor],
        requested_output_names=["Y"],
        model_name="m",
        flags=1,
        timeout=5,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
        parameters={"a": 1},
    )
    shown = (request.request_id(), request.correlation_id(), request.flags(), request.timeout())
    assert shown == ("i", "seq", 1, 5)
    assert (request.inputs(), request.requested_output_names()) == ([tensor], ["Y"])
    assert json.loads(request.parameters()) == {"a": 1}
    assert not request.is_cancelled()


def test_only_elements_of_bytes_are_serialised():
    assert pb_utils.serialize_byte_tensor(np.array([b"ab", b"c"])) == b"\x02\0\0\0ab\x01\0\0\0c"
    assert pb_utils.serialize_byte_tensor(np.array([1, 2])) is None
    in_columns = np.array([["a", "b"], ["c", "d"]], object).T
    assert pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(in_columns)).tolist() == [
        b"a",
        b"c",
        b"b",
        b"d",
    ]


def test_a_log_line_says_where_it_comes_from():
    said = []
    attach(Host("/models/m/1", lambda level, text: said.append((level, text))))
    pb_utils.Logger.log("here", pb_utils.Logger.WARNING)
    [(level, text)] = said
    assert level == "warning"
    assert text.startswith("test_python_objects.py:")
    assert text.endswith("] here")


# -- what Triton takes and offers as well


def test_bytes_are_taken_for_text():
    tensor = pb_utils.Tensor(b"caf\xc3\xa9", np.zeros(1, "f4"))
    assert tensor.name() == "café"
    assert pb_utils.Tensor.from_dlpack(b"X", tensor).name() == "X"
    assert pb_utils.TritonError(b"no").message() == "no"
    request = pb_utils.InferenceRequest(
        request_id=b"r", inputs=[tensor], requested_output_names=[b"O", "P"], model_name=b"m"
    )
    assert (request.request_id(), request.requested_output_names()) == ("r", ["O", "P"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: pb_utils.Tensor(b"\xff", np.zeros(1)), "is bytes that are no UTF-8"),
        (lambda: pb_utils.TritonError(b"\xff"), "is bytes that are no UTF-8"),
        (
            lambda: pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name=b"\xff"),
            "is bytes that are no UTF-8",
        ),
        (
            lambda: pb_utils.InferenceRequest(inputs=[], requested_output_names=[b""], model_name="m"),
            "Requested output name",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters=[("a", 1)]),  # type: ignore[arg-type]
            "Expect parameters to have type dict, found type",
        ),
        (
            lambda: pb_utils.InferenceRequest(
                inputs=[],
                requested_output_names=[],
                model_name="m",
                parameters="a",  # type: ignore[arg-type]
            ),
            "Expect parameters to have type dict, found type",
        ),
    ],
)
def test_bytes_that_are_no_text_and_other_types_are_refused(given, message):
    with pytest.raises(pb_utils.TritonModelException, match=message):
        given()


def test_the_table_of_types_is_there_to_be_read():
    assert {name: numpy for name, (_, numpy) in TABLE.items()} == pb_utils.TRITON_STRING_TO_NUMPY


def test_the_compiled_part_has_the_same_objects(python_model):
    backend, _ = python_model(
        """
        import c_python_backend_utils as compiled
        class TritonPythonModel:
            pass
        assert all(getattr(pb_utils, name) is getattr(compiled, name) for name in compiled.__all__ if hasattr(pb_utils, name))
        assert compiled.MetricFamily.COUNTER is compiled.MetricKind.COUNTER
        assert compiled.Logger.LogLevel.INFO is compiled.Logger.INFO
        compiled.Metric, compiled.ResponseIterator
        """
    )
    assert backend is not None
