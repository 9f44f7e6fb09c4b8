"""GPUs of this machine, shared between workers: what is found, which limits hold, and what is lost.

    python -m pytest -m gpu

Without a device every test here is skipped, those of MIG and MPS as well where there is none.
"""

import json
import os

import numpy as np
import pytest
import torch
import tritonclient.http
from tritonclient.utils import InferenceServerException

from actors.values.datatypes import DataType
from engine.processes.gpus.nvml import NoGpus, find_gpus, open_library, read_room
from engine.processes.gpus.sharing import mps_pipes
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.pytorch import PyTorchBackend
from engine.worker.backends.testing import LocalRequest, model_info, run
from engine.worker.devices.cuda import driver
from engine.worker.devices.losing import is_short, why_lost
from tests.support.gpu_server import serving_as_it_is

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.filterwarnings("default"),  # drivers have their own opinions
]
needs_mps = pytest.mark.skipif(mps_pipes(os.environ) is None, reason="no MPS control daemon runs here")
LAST = max(0, torch.cuda.device_count() - 1)
MODEL = """
import json, os
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.device = torch.device("cuda", int(args["model_instance_device_id"]))
        self.kept = torch.ones(4, device=self.device)

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "X").as_numpy()[0]) for each in requests]

    def answer(self, asked):
        if asked < 0:  # a kernel that fails
            self.kept[torch.tensor([10**6], device=self.device)].sum().item()
        if asked > 1:
            self.last = torch.empty(int(asked), dtype=torch.uint8, device=self.device)
        uuid = str(torch.cuda.get_device_properties(self.device).uuid)
        told = {"pid": os.getpid(), "uuid": uuid, "count": torch.cuda.device_count()}
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([json.dumps(told)], object))])
"""


def config(gpus=LAST, **parameters):
    told = "".join(
        f' parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items()
    )
    return (
        'backend: "python" input { name: "X" data_type: TYPE_FP64 dims: 1 }'
        ' output { name: "TOLD" data_type: TYPE_STRING dims: 1 }'
        f" instance_group {{ kind: KIND_GPU count: 1 gpus: {gpus} }}{told}"
    )


@pytest.fixture
def serving(tmp_path):
    """Serve the model with parameters; yields what asks it."""

    def serve(**parameters):
        version = tmp_path / "models" / "m" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config(**parameters))
        (version / "model.py").write_text(MODEL)
        return serving_as_it_is(tmp_path / "models", tmp_path / "server", environ={})

    return serve


def ask(server, number=0.0):
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=120) as triton:
        given = tritonclient.http.InferInput("X", [1], "FP64")
        given.set_data_from_numpy(np.array([number]))
        return json.loads(triton.infer("m", [given]).as_numpy("TOLD")[0])


def needs_nvml():
    try:
        return open_library(os.environ)
    except NoGpus as no:
        pytest.skip(str(no))


def test_the_library_and_the_driver_tell_of_the_same_gpus():
    needs_nvml().close()
    found = find_gpus(os.environ)
    if any(each.is_part for each in found):
        pytest.skip("a process sees one part of a GPU only")
    assert len(found) == driver().device_count()
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(found) == 1:
        assert [each.uuid for each in found] == [driver().uuid(number) for number in range(len(found))]
    rooms = read_room(os.environ)
    for each in found:
        assert 0 < rooms[each.uuid].free <= rooms[each.uuid].total == each.total


def test_the_driver_tells_a_gpu_s_memory():
    total = torch.cuda.get_device_properties(0).total_memory
    assert driver().total_memory(0) == pytest.approx(total, rel=0.05)


class Filled(torch.nn.Module):
    """Takes as many times 4 MiB as its input says."""

    def forward(self, x):
        return torch.ones([int(x[0, 0].item()), 1024, 1024], device=x.device).sum().reshape(1, 1)


def test_torch_keeps_to_a_limit_and_lives_on(tmp_path):
    (tmp_path / "1").mkdir()
    torch.jit.script(Filled()).save(tmp_path / "1" / "model.pt")
    inputs, outputs = (
        [TensorInfo("INPUT__0", DataType.FP32, [1])],
        [TensorInfo("OUTPUT__0", DataType.FP32, [1])],
    )
    version = tmp_path / "1"
    info = model_info(version, inputs=inputs, outputs=outputs, kind="GPU", max_batch_size=8, gpu_memory=2**28)
    backend = PyTorchBackend()
    backend.load(info)
    try:
        [small] = run(backend, info, [LocalRequest({"INPUT__0": np.array([[8.0]], "f4")})])
        assert small.message == ""
        [large] = run(backend, info, [LocalRequest({"INPUT__0": np.array([[512.0]], "f4")})])
        assert is_short(large.message)
        assert why_lost(0) == ""
    finally:
        backend.unload()
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


def test_a_worker_may_see_its_own_gpu_only(serving):
    with serving(**{"tritium.gpus_seen": "own"}) as server:
        assert ask(server)["count"] == 1


def test_a_python_model_that_loses_its_gpu_is_started_again(serving):
    with serving() as server:
        before = ask(server)
        with pytest.raises(InferenceServerException, match="died"):
            ask(server, -1.0)
        assert ask(server)["pid"] != before["pid"]


def test_a_model_goes_where_memory_is_free(serving):
    needs_nvml().close()
    gpus = ", ".join(map(str, range(len(find_gpus(os.environ)))))
    with serving(
        gpus=f"[ {gpus} ]", **{"tritium.gpu_placement": "free_memory", "tritium.gpus_seen": "own"}
    ) as server:
        assert ask(server)["count"] == 1


@needs_mps
def test_the_driver_keeps_a_python_model_to_its_limit_under_mps(serving):
    with serving(**{"tritium.gpu_memory": "2GiB", "tritium.gpu_compute": "50"}) as server:
        before = ask(server, float(2**20))
        with pytest.raises(InferenceServerException, match="out of memory"):
            ask(server, float(2**32))
        assert ask(server)["pid"] == before["pid"]


def test_each_worker_has_one_part_of_a_divided_gpu(serving):
    needs_nvml().close()
    found = find_gpus(os.environ)
    if not any(each.is_part for each in found):
        pytest.skip("no GPU here is divided (MIG)")
    with serving(gpus=str(len(found) - 1)) as server:
        assert ask(server)["count"] == 1
