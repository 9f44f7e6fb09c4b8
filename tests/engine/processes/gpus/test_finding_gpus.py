"""Which GPUs a machine has: device nodes, and what NVIDIA's library tells of them."""

import pytest

from actors.values.hardware.gpus import Gpu
from engine.processes.gpus.nvml import NoGpus, find_gpus, open_library
from tests.support.nvml import PlayedNvml

PARTS = [{"uuid": "MIG-a-0", "total": 10}, {"uuid": "MIG-a-1", "total": 20}]


def absent(name):
    raise ImportError(name)


@pytest.fixture
def nodes(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def found(nodes, library=None, **environ):
    return find_gpus(environ, nodes, load=absent if library is None else lambda name: library)


def test_without_device_nodes_there_are_no_gpus_and_the_library_is_not_asked(tmp_path):
    library = PlayedNvml()
    assert found(tmp_path / "missing", library) == ()
    assert found(tmp_path, library, CUDA_VISIBLE_DEVICES="0") == ()


def test_without_the_library_the_nodes_are_counted(nodes):
    assert found(nodes) == (Gpu(name="0"), Gpu(name="1"), Gpu(name="2"))
    assert found(nodes, CUDA_VISIBLE_DEVICES="MIG-x") == (Gpu(name="MIG-x", is_part=True),)
    assert found(nodes, PlayedNvml(failing={"nvmlInit": "no driver"})) == found(nodes)


def test_the_library_tells_names_and_memory(nodes):
    library = PlayedNvml([{"uuid": "GPU-a", "parts": PARTS}, {"uuid": "GPU-b", "total": 30}])
    assert found(nodes, library) == (
        Gpu(name="MIG-a-0", uuid="MIG-a-0", total=10, is_part=True),
        Gpu(name="MIG-a-1", uuid="MIG-a-1", total=20, is_part=True),
        Gpu(name="GPU-b", uuid="GPU-b", total=30),
    )
    assert library.open == 0
    assert [each.name for each in found(nodes, library, CUDA_VISIBLE_DEVICES="MIG-GPU-a/2/0")] == ["MIG-a-1"]


def test_where_the_library_says_that_there_is_none_nodes_say_nothing(nodes):
    assert found(nodes, PlayedNvml(), CUDA_VISIBLE_DEVICES="GPU-other") == ()


def test_a_gpu_that_does_not_tell_its_memory_is_one_all_the_same(nodes):
    library = PlayedNvml(["GPU-a"], failing={"nvmlDeviceGetMemoryInfo": "Unknown Error"})
    assert found(nodes, library) == (Gpu(name="GPU-a", uuid="GPU-a"),)


def test_gpus_in_mig_mode_without_parts_are_told_apart_from_none():
    with pytest.raises(NoGpus, match="every GPU here is in MIG mode, and none has a MIG device"):
        open_library({}, lambda name: PlayedNvml([{"uuid": "GPU-a", "parts": []}]))
