"""Versions are placed by the GPUs' memory as it is when they are loaded."""

from pathlib import Path

import pytest
import trio

from actors.serving.policy.gpus.placing import Room
from actors.values.errors import Unavailable
from actors.values.hardware.gpus import Gpu, GpuMemory
from actors.values.specs import InstanceSpec
from engine.processes.gpus.nvml import NoGpus
from engine.processes.gpus.placing import READ_WITHIN, GpuPlacing
from tests.support.model_doubles import make_spec

TABLE = [Gpu(name=f"GPU-{number}", uuid=f"GPU-{number}", total=100) for number in range(2)]


class Memory:
    """Two GPUs of 100 bytes, and models of 10."""

    def __init__(self, *free):
        self.free = list(free)
        self.why = ""
        self.looked = []

    def read(self):
        if self.why:
            raise NoGpus(self.why)
        return {gpu.uuid: Room(100, free) for gpu, free in zip(TABLE, self.free, strict=True)}

    async def bytes_of_files(self, directory):
        self.looked.append(directory)
        return 10

    def placing(self, **limits):
        return GpuPlacing(
            TABLE,
            read=self.read,
            bytes_of_files=self.bytes_of_files,
            limits={int(name[1:]): share for name, share in limits.items()},
        )


def open_spec(count=1, **changes):
    own = changes.pop("own_gpu", False)
    return make_spec(
        instances=tuple(
            InstanceSpec(name=f"m_{number}", kind="GPU", candidates=(0, 1), own_gpu=own)
            for number in range(count)
        ),
        **changes,
    )


def devices(spec):
    return [each.device_id for each in spec.instances]


async def test_a_version_goes_where_most_is_free_and_sees_that_gpu():
    placing = Memory(20, 30).placing()
    placed = await placing.place(open_spec(own_gpu=True))
    (instance,) = placed.instances
    assert (instance.device_id, instance.gpu, instance.visible) == (1, TABLE[1], "GPU-1")
    assert instance.unplaced == open_spec(own_gpu=True).instances[0]


async def test_versions_that_load_at_once_count_each_other():
    memory = Memory(20, 25)
    placing = memory.placing()
    first = await placing.place(open_spec())
    second = await placing.place(open_spec())
    assert (devices(first), devices(second)) == ([1], [0])
    placing.settled(first)  # its memory is in what the driver tells
    placing.settled(first)
    memory.free = [20, 25]
    assert devices(await placing.place(open_spec())) == [1]


async def test_a_limit_is_what_an_instance_needs():
    memory = Memory(60, 100)
    placed = await memory.placing().place(open_spec(3, gpu_memory=GpuMemory(share=0.5)))
    assert devices(placed) == [1, 0, 1]
    assert memory.looked == []


async def test_one_that_is_there_stays():
    before = (InstanceSpec(name="m_0", kind="GPU", device_id=0),)
    assert devices(await Memory(20, 90).placing().place(open_spec(2), before)) == [0, 1]


async def test_a_version_whose_gpus_are_given_needs_no_reading():
    memory = Memory(0, 0)
    memory.why = "no driver"
    fixed = make_spec(instances=(InstanceSpec(name="m", kind="GPU", device_id=1),))
    assert await memory.placing(_0=0.5).place(fixed) is fixed


async def test_a_gpu_beyond_its_limit_takes_no_model():
    placing = Memory(100, 40).placing(_1=0.5)
    with pytest.raises(
        Unavailable, match="memory limit set for GPU 1 has exceeded, model loading is rejected"
    ):
        await placing.place(make_spec(instances=(InstanceSpec(name="m", kind="GPU", device_id=1),)))


async def test_what_can_t_be_read_is_said():
    memory = Memory(1, 1)
    memory.why = "nvidia-ml-py is not installed"
    with pytest.raises(
        Unavailable, match=r"the memory of GPU 'GPU-0'.* not known: nvidia-ml-py is not installed"
    ):
        await memory.placing().place(open_spec())


async def test_files_are_those_of_the_version():
    memory = Memory(1, 1)
    await memory.placing().place(open_spec(version_directory=Path("/models/m/3")))
    assert memory.looked == [Path("/models/m/3")]


async def test_a_driver_that_hangs_holds_up_one_load_for_a_while(autojump_clock, monkeypatch):
    async def never(function, **_):
        await trio.sleep_forever()

    monkeypatch.setattr("engine.processes.gpus.placing.in_thread", never)
    began = trio.current_time()
    with pytest.raises(Unavailable, match="did not tell it within 10 s"):
        await Memory(1, 1).placing().place(open_spec())
    assert trio.current_time() - began == READ_WITHIN
