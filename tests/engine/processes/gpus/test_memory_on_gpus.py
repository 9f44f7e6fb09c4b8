"""What the processes of models take on GPUs, as the library tells it."""

import pytest
import trio

from actors.values.hardware.gpus import Gpu
from engine.processes.gpus.nvml import NoGpus, read_room, read_use
from engine.server.residency import TOLD_WITHIN, Memory
from tests.support.nvml import PlayedNvml

GPUS = [Gpu(name="GPU-a", uuid="GPU-a", total=100), Gpu(name="GPU-b", uuid="GPU-b", total=100)]
LIBRARY = PlayedNvml(
    [
        {"uuid": "GPU-a", "total": 100, "used": 60, "processes": [(7, 20), (8, None), (9, 40)]},
        {"uuid": "GPU-b"},
    ]
)


def test_processes_are_told_by_device_and_those_without_a_figure_left_out():
    assert read_use({}, lambda name: LIBRARY) == {"GPU-a": {7: 20, 9: 40}, "GPU-b": {}}
    assert read_room({}, lambda name: LIBRARY)["GPU-a"] == (100, 40)
    assert LIBRARY.open == 0


async def test_memory_is_told_of_the_processes_that_are_asked_for():
    memory = Memory(gpus=GPUS, read_use=lambda: read_use({}, lambda name: LIBRARY))
    assert await memory.of_gpus([7, 8]) == {0: {7: 20}, 1: {}}


async def test_without_gpus_there_is_nothing_to_tell():
    assert await Memory().of_gpus([7]) == {}


async def test_a_driver_that_fails_or_hangs_tells_nothing(autojump_clock, monkeypatch):
    def failing():
        raise NoGpus("no driver")

    assert await Memory(gpus=GPUS, read_use=failing).of_gpus([7]) == {0: {}, 1: {}}

    async def never(function, **_):
        await trio.sleep_forever()

    monkeypatch.setattr("engine.server.residency.in_thread", never)
    began = trio.current_time()
    assert await Memory(gpus=GPUS, read_use=dict).of_gpus([7]) == {0: {}, 1: {}}
    assert trio.current_time() - began == pytest.approx(TOLD_WITHIN)
