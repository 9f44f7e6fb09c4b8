"""What a worker makes of errors on a GPU: no memory is left, or the GPU is lost to the process."""

import os

import pytest

from engine.worker.devices import cuda
from engine.worker.devices.losing import is_short, why_lost
from tests.support.fake_gpu import built, in_this_process, lose

pytestmark = pytest.mark.system  # a compiler is started for the stand-in


@pytest.mark.parametrize(
    "said",
    [
        "PyTorch execute failure: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …",
        "OutOfMemoryError: Out of memory allocating 4,000,000,000 bytes (allocated so far: …)",  # CuPy
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.",  # JAX
        "the CUDA driver answers CUDA_ERROR_OUT_OF_MEMORY to cuMemAlloc_v2",
        "CUDA error cudaErrorMemoryAllocation:out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "onnx runtime error 6: Failed to allocate memory for requested buffer of size 16777216",
        "BFCArena::AllocateRawInternal Available memory of 100 is smaller than requested bytes of 200",
    ],
)
def test_frameworks_say_in_many_ways_that_memory_is_short(said):
    assert is_short(said)


@pytest.mark.parametrize(
    "said", ["", "CUDA error: device-side assert triggered", "index out of range in self"]
)
def test_other_errors_say_nothing_of_memory(said):
    assert not is_short(said)


@pytest.fixture
def environ(tmp_path):
    with in_this_process(built(tmp_path)) as environ:
        yield environ


def test_a_process_that_has_no_driver_has_lost_nothing():
    assert why_lost(0) == ""


def test_a_process_that_does_not_use_the_gpu_has_lost_nothing(environ):
    lose(environ)
    assert why_lost(0) == ""
    driver = cuda.driver()
    driver.free(1, driver.allocate(1, 8))
    assert why_lost(0) == ""


def test_a_lost_gpu_is_told_by_the_driver(environ):
    driver = cuda.driver()
    driver.free(0, driver.allocate(0, 8))
    assert why_lost(0) == ""
    found = lose(environ)
    assert why_lost(0) == "the CUDA driver answers CUDA_ERROR_ILLEGAL_ADDRESS to cuCtxSynchronize"
    assert why_lost(1) == ""
    found()


def test_a_number_that_no_gpu_has_is_not_lost(environ):
    cuda.driver()
    assert why_lost(9) == ""
    assert os.environ["FAKE_CUDA_DEVICES"] == "2"
