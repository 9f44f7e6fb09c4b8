"""What a worker on a GPU is started with: which devices it sees, and what MPS holds it to."""

import os
import re

import pytest

from actors.serving.instances.launching import model_fields
from actors.values.confinement import Confinement, Sandbox
from actors.values.hardware.gpus import Gpu, GpuMemory
from actors.values.specs import InstanceSpec
from engine.processes.backends import BackendTraits
from engine.processes.gpus.sharing import CannotShare, mps_pipes, variables
from engine.processes.launch import WorkerLauncher
from engine.processes.placement import seat
from tests.support.model_doubles import make_spec

WHOLE = (Gpu(name="GPU-a", uuid="GPU-a", total=8 << 30), Gpu(name="GPU-b", uuid="GPU-b", total=16 << 30))
PARTS = (Gpu(name="MIG-a", is_part=True, total=1 << 30), Gpu(name="MIG-b", is_part=True, total=1 << 30))
NO_LIMIT = GpuMemory()


def on_gpu(device=0, **changes):
    return InstanceSpec(name="m_0", kind="GPU", device_id=device, **changes)


def seated(instance, gpus, **changes):
    return seat(make_spec(instances=(instance,), **changes), gpus)


def told(spec, environ=(), *, keeps_limit=True, usual):
    return variables(spec, spec.instances[0], dict(environ), keeps_limit=keeps_limit, usual=usual)


@pytest.fixture
def no_mps(tmp_path):
    return tmp_path / "missing"


@pytest.fixture
def mps(tmp_path):
    folder = tmp_path / "mps"
    folder.mkdir()
    (folder / "control").touch()
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    return folder


# -- which devices


def test_a_worker_sees_what_the_server_does_unless_its_model_wants_otherwise(no_mps):
    spec = seated(on_gpu(1), WHOLE)
    assert told(spec, usual=no_mps) == {}
    assert model_fields(spec, spec.instances[0])["device_id"] == 1
    own = seated(on_gpu(1, own_gpu=True), WHOLE)
    assert told(own, usual=no_mps) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert model_fields(own, own.instances[0])["device_id"] == 0  # as the worker counts


def test_a_worker_on_a_part_of_a_gpu_sees_that_part_only(no_mps):
    spec = seated(on_gpu(1), PARTS)
    assert told(spec, usual=no_mps) == {"CUDA_VISIBLE_DEVICES": "MIG-b"}
    assert (spec.instances[0].device_id, spec.instances[0].ordinal) == (1, 0)


def test_a_whole_gpu_beside_parts_is_seen_alone_as_well(no_mps):
    assert told(seated(on_gpu(0), (WHOLE[0], *PARTS)), usual=no_mps) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}


def test_instances_without_a_gpu_are_left_alone(mps):
    cpu = InstanceSpec(name="m_0", own_gpu=True)
    spec = seated(cpu, PARTS, gpu_memory=GpuMemory(nbytes=1), gpu_compute=5)
    assert spec.instances == (cpu,)
    assert told(spec, usual=mps) == {}


def test_the_launcher_puts_it_into_the_worker_s_environment():
    backends = {"fake": BackendTraits(name="fake", target="a:B")}
    launcher = WorkerLauncher(backends, environ={"CUDA_VISIBLE_DEVICES": "0,1", "PATH": "/bin"})
    spec = seated(on_gpu(1, own_gpu=True), WHOLE)
    seen = dict(launcher.environment(spec, spec.instances[0]).variables)
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    plain = seated(on_gpu(1), WHOLE)
    seen = dict(launcher.environment(plain, plain.instances[0]).variables)
    assert seen["CUDA_VISIBLE_DEVICES"] == "0,1"


# -- MPS


def test_mps_is_found_where_its_daemon_lives(mps, no_mps):
    assert mps_pipes({}, mps) == mps
    assert mps_pipes({}, no_mps) is None
    (mps / "nvidia-cuda-mps-control.pid").write_text("no number")
    assert mps_pipes({}, mps) == mps  # it can't be told
    (mps / "nvidia-cuda-mps-control.pid").write_text(str(2**22 + 1))  # above all process ids
    assert mps_pipes({}, mps) is None


def test_a_folder_that_the_environment_names_is_believed(mps, no_mps):
    (mps / "nvidia-cuda-mps-control.pid").write_text(str(2**22 + 1))  # another container's
    assert mps_pipes({"CUDA_MPS_PIPE_DIRECTORY": str(mps)}, no_mps) == mps
    (mps / "control").unlink()
    assert mps_pipes({"CUDA_MPS_PIPE_DIRECTORY": str(mps)}, no_mps) is None


@pytest.mark.parametrize(
    ("instance", "memory", "limit"),
    [
        (on_gpu(1), GpuMemory(nbytes=3 << 30), "1=3072M"),
        (on_gpu(1), GpuMemory(share=0.25), "1=4096M"),
        (on_gpu(1, own_gpu=True), GpuMemory(share=0.5), "0=8192M"),
        (on_gpu(0), GpuMemory(nbytes=1), "0=1M"),
    ],
)
def test_under_mps_the_driver_keeps_the_limit_of_memory(mps, instance, memory, limit):
    found = told(seated(instance, WHOLE, gpu_memory=memory), usual=mps)
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == limit
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in found


def test_under_mps_the_driver_keeps_the_share_of_threads(mps):
    assert told(seated(on_gpu(), WHOLE, gpu_compute=30), usual=mps) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"
    }


def test_without_mps_a_framework_keeps_the_limit_of_memory_itself(no_mps):
    spec = seated(on_gpu(), WHOLE, gpu_memory=GpuMemory(share=0.5))
    assert told(spec, usual=no_mps) == {}
    fields = model_fields(spec, spec.instances[0])
    assert (fields["gpu_memory"], fields["gpu_share"]) == (0, 0.5)


def test_what_nothing_would_keep_is_refused(mps, no_mps):
    def why(**changes):
        usual, keeps = changes.pop("usual"), changes.pop("keeps_limit", True)
        spec = seated(on_gpu(), changes.pop("gpus", WHOLE), **changes)
        with pytest.raises(CannotShare) as refused:
            told(spec, keeps_limit=keeps, usual=usual)
        return str(refused.value)

    assert re.match("'tritium.gpu_compute' is 30, which only MPS keeps", why(gpu_compute=30, usual=no_mps))
    strict = Confinement(sandbox=Sandbox.STRICT)
    assert "and no MPS is in reach" in why(gpu_compute=30, confinement=strict, usual=mps)
    half = GpuMemory(share=0.5)
    assert "which backend 'fake' has no means to keep" in why(
        gpu_memory=half, keeps_limit=False, usual=no_mps
    )
    unknown = [Gpu(name="0")]
    assert "a GPU whose memory is not known here" in why(
        gpu_memory=half, gpus=unknown, keeps_limit=False, usual=mps
    )
