"""Which devices a server has, by what the library tells and what the environment leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.gpus.visible import FoundGpu, FoundPart, needs_names, unnamed, visible
from actors.values.hardware.gpus import Gpu, GpuMemory

TWO = (FoundGpu(uuid="GPU-aaaa-1", total=80), FoundGpu(uuid="GPU-bbbb-2", total=40))
DIVIDED = FoundGpu(
    uuid="GPU-cccc-3",
    total=80,
    is_divided=True,
    parts=(
        FoundPart(uuid="MIG-1111", total=40, gpu_instance=1),
        FoundPart(uuid="MIG-1222", total=20, gpu_instance=5),
    ),
)
MIXED = (TWO[0], DIVIDED)


def names(devices):
    return [each.name for each in devices]


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (None, [0, 1]),
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("0,2,1", [0]),
        ("0,0", [0]),
        ("GPU-bbbb", [1]),
        ("GPU-bbbb-2,GPU-aaaa-1", [1, 0]),
        ("GPU-", []),  # of two
        ("GPU-cccc,0", []),
        ("NoDevFiles", []),
    ],
)
def test_the_environment_is_read_as_the_driver_reads_it(wanted, indices):
    assert names(visible(TWO, wanted)) == [TWO[index].uuid for index in indices]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, ["GPU-aaaa-1", "MIG-1111", "MIG-1222"]),
        ("1", ["MIG-1111", "MIG-1222"]),  # a divided GPU stands for its parts
        ("GPU-cccc", ["MIG-1111", "MIG-1222"]),
        ("MIG-1222", ["MIG-1222"]),
        ("MIG-1222,MIG-11", ["MIG-1222", "MIG-1111"]),
        ("MIG-1", []),  # of two
        ("MIG-1222,1", ["MIG-1222"]),  # that part again
        ("MIG-GPU-cccc-3/5/0", ["MIG-1222"]),  # as drivers before R470 name it
        ("MIG-GPU-cccc-3/6/0", []),
    ],
)
def test_parts_of_gpus_are_devices(wanted, found):
    assert names(visible(MIXED, wanted)) == found


def test_a_divided_gpu_without_parts_is_none():
    assert visible([FoundGpu(uuid="GPU-a", is_divided=True)], None) == []


def test_a_worker_sees_its_device_only_where_there_are_parts():
    assert needs_names(visible(MIXED, None))
    assert not needs_names(visible(TWO, None))
    assert not needs_names(visible(MIXED, "0"))


def test_memory_and_names_are_the_devices_own():
    assert visible(MIXED, "MIG-1222") == [Gpu(name="MIG-1222", uuid="MIG-1222", total=20, is_part=True)]
    assert visible(TWO, "1") == [Gpu(name="GPU-bbbb-2", uuid="GPU-bbbb-2", total=40)]


@pytest.mark.parametrize(
    ("nodes", "wanted", "found"),
    [
        (3, None, ["0", "1", "2"]),
        (3, "", []),
        (3, "-1", []),
        (3, "0", ["0"]),
        (3, "2, 1", ["2", "1"]),
        (3, "0,-1,1", ["0"]),
        (3, "0,1,2,3,4", ["0", "1", "2"]),
        (3, "GPU-8f2,GPU-9a1", ["GPU-8f2", "GPU-9a1"]),
        (1, "MIG-8f2,MIG-9a1", ["MIG-8f2", "MIG-9a1"]),  # one GPU has several parts
        (0, "MIG-8f2", []),
        (0, None, []),
    ],
)
def test_without_the_library_nodes_and_entries_are_counted(nodes, wanted, found):
    assert names(unnamed(nodes, wanted)) == found


@given(st.lists(st.sampled_from(["0", "1", "2", "GPU-a", "GPU-cccc", "MIG-1", "MIG-11", "MIG-12", "-1", ""])))
def test_no_device_is_there_twice(entries):
    found = names(visible(MIXED, ",".join(entries)))
    assert len(found) == len(set(found))


def test_a_limit_is_a_size_or_a_share():
    assert GpuMemory(nbytes=5).of(100) == 5
    assert GpuMemory(share=0.25).of(100) == 25
    assert not GpuMemory()
    assert GpuMemory().of(100) == 0
