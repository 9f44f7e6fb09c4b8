"""GPU metrics, by a library that is played: machines without GPUs, drivers that fail, and what is told."""

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from actors.seams import threads
from actors.supervision.supervisor import Supervisor
from actors.values.events import Event
from chaos.simulation.world.virtual import InlineThreads
from engine.observability.gpus import (
    GpuMetrics,
    GpuSample,
    gpu_blocks,
    open_nvml,
)
from engine.observability.metrics import Exposition
from engine.processes.gpus.nvml import NoGpus
from engine.settings.reporting import MetricsSettings
from tests.support.logged import Logged
from tests.support.nvml import UUIDS, PlayedNvml
from tests.support.trees import serving


def opened(library, **environ):
    return open_nvml(environ, lambda name: library)


def refused(library, **environ):
    with pytest.raises(NoGpus) as caught:
        opened(library, **environ)
    return str(caught.value)


# -- the library


def test_each_gpu_tells_what_it_can():
    gpus = opened(PlayedNvml())
    assert gpus.uuids == list(UUIDS)
    assert gpus.read() == [
        GpuSample(
            uuid=UUIDS[0],
            utilization=0.25,
            memory_total=1000,
            memory_used=100,
            power_usage=71.5,
            power_limit=300.0,
            energy=0.0,
        ),
        GpuSample(uuid=UUIDS[1], utilization=0.5, memory_total=1000, memory_used=101),
    ]


def test_energy_is_counted_since_the_start_and_survives_another_driver():
    library = PlayedNvml(UUIDS[:1])
    gpus = opened(library)
    told = []
    for energy in (5_000_000, 5_250_000, 1_000, 3_000):
        library.energy = energy
        told.append(gpus.read()[0].energy)
    assert told == [0.0, 250.0, 1.0, 3.0]


def test_without_the_library_the_reason_is_the_gpu_or_the_library(monkeypatch):
    def load(name):
        raise ImportError(name)

    monkeypatch.setattr("engine.processes.gpus.nvml.gpu_nodes", lambda: 0)
    with pytest.raises(NoGpus, match="there is no NVIDIA GPU here"):
        open_nvml({}, load)
    monkeypatch.setattr("engine.processes.gpus.nvml.gpu_nodes", lambda: 1)
    with pytest.raises(NoGpus, match=r"nvidia-ml-py is not installed: pip install .*\[gpu\]'"):
        open_nvml({}, load)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (0, "there is no NVIDIA GPU here"),
        (1, "NVIDIA's driver can't be asked: NVML Shared Library Not Found"),
    ],
)
def test_a_driver_that_is_not_there_is_the_reason_where_there_is_a_gpu(monkeypatch, nodes, why):
    monkeypatch.setattr("engine.processes.gpus.nvml.gpu_nodes", lambda: nodes)
    assert refused(PlayedNvml(failing={"nvmlInit": "NVML Shared Library Not Found"})) == why


def test_a_driver_that_tells_no_gpus_is_let_go():
    library = PlayedNvml(failing={"nvmlDeviceGetCount": "Unknown Error"})
    assert refused(library) == "NVIDIA's driver does not tell its GPUs: Unknown Error"
    assert library.open == 0


def test_gpus_that_the_environment_hides_are_not_told():
    library = PlayedNvml()
    assert opened(library, CUDA_VISIBLE_DEVICES="1").uuids == [UUIDS[1]]
    assert refused(library, CUDA_VISIBLE_DEVICES="-1") == "CUDA_VISIBLE_DEVICES leaves no GPU"
    assert refused(PlayedNvml(())) == "there is no NVIDIA GPU here"


def test_parts_of_a_divided_gpu_are_told_by_their_own_names():
    library = PlayedNvml(
        [{"uuid": "GPU-a", "parts": [{"uuid": "MIG-a-0", "total": 10}, {"uuid": "MIG-a-1"}]}]
    )
    gpus = opened(library)
    assert gpus.uuids == ["MIG-a-0", "MIG-a-1"]
    first = gpus.read()[0]
    assert (first.memory_total, first.utilization, first.power_usage) == (10, None, None)


# -- the families


def test_each_family_has_a_series_for_each_gpu_that_can_tell_it():
    text = Exposition(lambda: gpu_blocks(opened(PlayedNvml()).read())).text()
    found = {
        (sample.name, sample.labels["gpu_uuid"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    first, second = UUIDS
    assert found == {
        ("nv_gpu_utilization", first): 0.25,
        ("nv_gpu_utilization", second): 0.5,
        ("nv_gpu_memory_total_bytes", first): 1000,
        ("nv_gpu_memory_total_bytes", second): 1000,
        ("nv_gpu_memory_used_bytes", first): 100,
        ("nv_gpu_memory_used_bytes", second): 101,
        ("nv_gpu_power_usage", first): 71.5,
        ("nv_gpu_power_limit", first): 300,
        ("nv_energy_consumption_total", first): 0,
    }
    assert "\nnv_energy_consumption{" in text
    assert Exposition(lambda: gpu_blocks(())).text() == ""


# -- the actor


@pytest.fixture
def log():
    return Logged()


def metrics(opening, log, *, shown=True, **settings):
    return GpuMetrics(MetricsSettings(**settings), shown=shown, opening=opening, log=log)


async def test_gpus_are_read_twice_an_interval(autojump_clock, log):
    threads.give(InlineThreads(1))
    library = PlayedNvml(UUIDS[:1])
    found = metrics(lambda: opened(library), log, interval=2.0)
    assert (found.standing, found.samples, found.uuid_of(0)) == ("not looked for yet", (), "")
    async with serving(Supervisor(found.specs())):
        await found.known.wait()
        await trio.sleep(0.5)
        assert (found.standing, found.uuid_of(0), found.uuid_of(1)) == ("1 GPU", UUIDS[0], "")
        assert found.samples[0].energy == 0
        library.energy += 9_000
        await trio.sleep(1.0)
        assert found.samples[0].energy == 9
    assert not log


async def test_without_gpus_one_line_tells_why_and_the_actor_stays(autojump_clock, log):
    threads.give(InlineThreads(1))

    def opening():
        raise NoGpus("there is no NVIDIA GPU here")

    found = metrics(opening, log)
    async with serving(Supervisor(found.specs())) as tree:
        await trio.sleep(100)
        tree.check({"gpus": "running"})
        assert found.standing == "off: there is no NVIDIA GPU here"
    assert log.of(Event.GPUS_UNAVAILABLE) == [{"reason": "there is no NVIDIA GPU here"}]


async def test_a_gpu_that_falls_off_the_bus_has_no_series_until_it_is_back(autojump_clock, log):
    threads.give(InlineThreads(1))
    library = PlayedNvml()
    found = metrics(lambda: opened(library), log, interval=2.0)
    async with serving(Supervisor(found.specs())) as tree:
        await trio.sleep(0.5)
        assert len(found.samples) == 2
        library.failing["nvmlDeviceGetUtilizationRates"] = "GPU is lost"
        await trio.sleep(10)
        assert found.samples == ()
        assert log.of(Event.GPUS_UNAVAILABLE) == [{"reason": "GPU is lost"}]
        library.failing.clear()
        await trio.sleep(1)
        assert len(found.samples) == 2
        tree.check({"gpus": "running"})


async def test_a_bug_in_the_library_costs_its_actor_only(autojump_clock, log):
    threads.give(InlineThreads(1))

    def opening():
        raise RuntimeError("a bug")

    found = metrics(opening, log)
    async with serving(Supervisor(found.specs())):
        await trio.sleep(100)
    assert found.samples == ()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"gpu": False}, "--allow-gpu-metrics=false"),
        ({"cpu_only": True}, "TRITON_SERVER_CPU_ONLY is set"),
        ({"shown": False}, "--allow-metrics=false"),
    ],
)
def test_settings_can_leave_the_gpus_alone(log, options, why):
    found = metrics(lambda: pytest.fail("looked"), log, **options)
    assert found.specs() == []
    assert found.known.is_set()
    assert found.standing == f"off: {why}"
