"""Whole servers that share GPUs between models: parts of GPUs, and MPS. The driver is played."""

import json
import os
import shutil
import urllib.request

import numpy as np
import pytest
import trio
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.conformance.test_tensors_on_gpus import KERNELS, MAKER, MAKING, READER, READING, ensemble, model
from tests.support.fake_gpu import built, copies
from tests.support.gpu_server import serving
from tests.survival.server import until

pytestmark = pytest.mark.slow

PARTS = [{"uuid": f"MIG-aaaa-000{number}", "total": 2**30} for number in range(2)]

TELLER = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        told = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
        self.told = json.dumps({**told, "device": args["model_instance_device_id"]})

    def execute(self, requests):
        told = pb_utils.Tensor("TOLD", np.array([self.told], object))
        return [pb_utils.InferenceResponse([told]) for _ in requests]
"""


PID = TELLER.replace('{**told, "device": args["model_instance_device_id"]}', "os.getpid()")


def teller(group, **parameters):
    told = "".join(
        f' parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items()
    )
    return (
        'backend: "python" input { name: "X" data_type: TYPE_FP32 dims: 4 }'
        f' output {{ name: "TOLD" data_type: TYPE_STRING dims: 1 }} instance_group {{ {group} }}{told}'
    )


def lay(repository, name, config, code=None):
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if code is not None:
        (version / "model.py").write_text(code)
        shutil.copy(KERNELS, version)


def ask(server, name, x=None):
    x = np.ones((1, 4) if name == "whole" else 4, np.float32) if x is None else x
    with tritonclient.http.InferenceServerClient(server.url) as triton:
        given = tritonclient.http.InferInput("X", x.shape, "FP32")
        given.set_data_from_numpy(x)
        return triton.infer(name, [given])


def told(server, name):
    return json.loads(ask(server, name).as_numpy("TOLD")[0])


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """A server on a GPU that is divided into two parts, and models on the second."""
    folder = tmp_path_factory.mktemp("divided")
    facts = folder / "nvml.json"
    facts.write_text(json.dumps([{"uuid": "GPU-aaaa", "parts": PARTS}]))
    environ = {**built(folder), "FAKE_NVML": str(facts)}
    repository = folder / "models"
    lay(repository, "teller", teller("kind: KIND_GPU gpus: 1"), TELLER)
    lay(repository, "everywhere", teller("kind: KIND_GPU"), TELLER)
    for name, ports, code in (("maker", MAKING, MAKER), ("reader", READING, READER)):
        lay(repository, name, model(*ports).replace("gpus: 0", "gpus: 1"), code)
    lay(repository, "whole", ensemble("maker", "reader", gpu_tensors=True))
    with serving(repository, folder / "server", environ=environ) as server:
        server.environ = environ
        yield server


def test_each_worker_sees_the_part_that_is_its_own(divided):
    assert told(divided, "teller") == {"CUDA_VISIBLE_DEVICES": "MIG-aaaa-0001", "device": "0"}
    seen = {told(divided, "everywhere")["CUDA_VISIBLE_DEVICES"] for _ in range(4)}
    assert seen == {each["uuid"] for each in PARTS}


def test_tensors_between_steps_stay_on_a_part(divided):
    before = len(copies(divided.environ))
    answer = ask(divided, "whole")
    assert answer.as_numpy("WHERE").tolist() == [[1]]
    np.testing.assert_array_equal(answer.as_numpy("Y"), [[4, 4, 4, 4]])
    between = [each.kind for each in copies(divided.environ)[before:] if each.nbytes == 4 * 1024]
    assert between == ["DtoD"]


def test_limits_under_mps_and_a_view_of_one_gpu(tmp_path):
    pipes = tmp_path / "mps"
    pipes.mkdir()
    (pipes / "control").touch()
    facts = tmp_path / "nvml.json"
    facts.write_text(json.dumps([{"uuid": f"GPU-aaaa-000{number}", "total": 2**33} for number in range(2)]))
    environ = {**built(tmp_path), "FAKE_NVML": str(facts), "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    limits = {"tritium.gpu_memory": "25%", "tritium.gpu_compute": "40"}
    repository = tmp_path / "models"
    lay(repository, "limited", teller("kind: KIND_GPU gpus: 1", **limits), TELLER)
    own = {"tritium.gpus_seen": "own", **limits}
    lay(repository, "apart", teller("kind: KIND_GPU gpus: 1", **own), TELLER)
    with serving(repository, tmp_path / "server", environ=environ) as server:
        mps = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
        assert told(server, "limited") == {
            **mps,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=2048M",
            "device": "1",
        }
        assert told(server, "apart") == {
            **mps,
            "CUDA_VISIBLE_DEVICES": "GPU-aaaa-0001",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
            "device": "0",
        }
    assert sorted(os.listdir(pipes)) == ["control"]


def test_models_go_where_memory_is_free_and_none_where_the_limit_is_reached(tmp_path):
    facts = tmp_path / "nvml.json"

    def use(*used):
        told = [{"uuid": f"GPU-aaaa-000{at}", "total": 2**33, "used": each} for at, each in enumerate(used)]
        facts.write_text(json.dumps(told))

    use(2**30, 2**32)
    environ = {**built(tmp_path), "FAKE_NVML": str(facts)}
    repository = tmp_path / "models"
    free = {"tritium.gpu_placement": "free_memory", "tritium.gpu_memory": "1GiB", "tritium.gpus_seen": "own"}
    mps = tmp_path / "mps"
    mps.mkdir()
    (mps / "control").touch()
    environ["CUDA_MPS_PIPE_DIRECTORY"] = str(mps)
    for name in ("first", "second"):
        lay(repository, name, teller("kind: KIND_GPU", **free), TELLER)
    flags = "--model-control-mode=explicit", "--load-model=first", "--model-load-gpu-limit=0:0.9"
    with serving(repository, tmp_path / "server", *flags, environ=environ) as server:
        assert told(server, "first")["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa-0000"
        with urllib.request.urlopen(f"http://{server.url}/v2/tritium/tree") as answer:
            assert b'"gpu":0' in answer.read().replace(b": ", b":")
        with tritonclient.http.InferenceServerClient(server.url) as triton:
            use(2**32, 2**30)
            triton.load_model("second")
            assert told(server, "second")["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa-0001"
            triton.unload_model("second")
            use(2**33 - 2**28, 2**33)
            with pytest.raises(InferenceServerException, match="memory limit set for GPU 0 has exceeded"):
                triton.load_model("second")
        assert told(server, "first")["device"] == "0"


BREAKING = """
import ctypes, os
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils
from kernels import DRIVER, context, sent

LOST = Path(os.environ["FAKE_CUDA"], "lost.0")

class TritonPythonModel:
    def initialize(self, args):
        LOST.unlink(missing_ok=True)  # a fresh context knows nothing of the last one

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "X").as_numpy()) for each in requests]

    def answer(self, x):
        sent(0, x)
        if x.flat[0] == 13:
            LOST.touch()
            raise RuntimeError("an illegal memory access was encountered")
        if x.flat[0] == 14:
            raise RuntimeError("an illegal memory access was encountered, says a model")
        if len(x) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        told = f"{os.getpid()}".encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([[told]] * len(x), object))])
"""


@pytest.fixture(scope="module")
def breaking(tmp_path_factory):
    folder = tmp_path_factory.mktemp("breaking")
    repository = folder / "models"
    for name, told in (
        ("breaking", ""),
        ("retried", 'parameters { key: "tritium.retry" value { string_value: "always" } }'),
    ):
        config = teller("kind: KIND_GPU count: 1 gpus: 0").replace(
            "backend", "max_batch_size: 8 dynamic_batching { } backend"
        )
        lay(repository, name, config + told, BREAKING)
    with serving(repository, folder / "server", environ=built(folder)) as server:
        yield server


def rows(first, count=1):
    return np.full((count, 4), first, np.float32)


def test_a_worker_that_has_lost_its_gpu_ends_and_another_serves(breaking):
    before = ask(breaking, "breaking", rows(1)).as_numpy("TOLD")[0, 0]
    with pytest.raises(InferenceServerException) as failed:
        ask(breaking, "breaking", rows(13))
    assert "died" in str(failed.value)
    after = ask(breaking, "breaking", rows(1)).as_numpy("TOLD")[0, 0]
    assert after != before
    lines = "GPU 0 is lost to this process: the CUDA driver answers CUDA_ERROR_ILLEGAL_ADDRESS"
    trio.run(until, lambda: any(lines in str(each) for each in breaking.logged("worker_output")))


def test_a_request_that_costs_a_gpu_twice_is_refused(breaking):
    with pytest.raises(InferenceServerException) as failed:
        ask(breaking, "retried", rows(13))
    assert failed.value.status() == "422"
    ask(breaking, "retried", rows(1))


def test_an_error_that_only_sounds_like_it_costs_no_worker(breaking):
    before = ask(breaking, "breaking", rows(1)).as_numpy("TOLD")[0, 0]
    with pytest.raises(InferenceServerException, match="says a model"):
        ask(breaking, "breaking", rows(14))
    assert ask(breaking, "breaking", rows(1)).as_numpy("TOLD")[0, 0] == before


def test_memory_that_is_short_fails_requests_and_makes_batches_smaller(breaking):
    before = ask(breaking, "breaking", rows(1)).as_numpy("TOLD")[0, 0]
    with pytest.raises(InferenceServerException, match="CUDA out of memory"):
        ask(breaking, "breaking", rows(1, 4))
    assert ask(breaking, "breaking", rows(1)).as_numpy("TOLD")[0, 0] == before
    trio.run(until, lambda: breaking.logged("batches_eased"))
    (eased,) = breaking.logged("batches_eased")
    assert (eased["rows"], eased["at_most"]) == (4, 2)
    with tritonclient.http.InferenceServerClient(breaking.url) as triton:
        (found,) = triton.get_inference_statistics("breaking")["model_stats"]
    assert found["tritium"]["gpu_shortages"] == {"count": 1, "most_rows": 2}


@pytest.mark.long
def test_models_on_demand_make_way_for_each_other_on_a_gpu(tmp_path):
    facts = tmp_path / "nvml.json"

    def take(*pids):
        gpu = {"uuid": "GPU-aaaa-0000", "total": 2**31, "processes": [(pid, 2**30) for pid in pids]}
        facts.write_text(json.dumps([gpu]))

    take()
    environ = {**built(tmp_path), "FAKE_CUDA_DEVICES": "1", "FAKE_NVML": str(facts)}
    repository = tmp_path / "models"
    for name in ("first", "second"):
        lay(repository, name, teller("kind: KIND_GPU", **{"tritium.residency": "on_demand"}), PID)
    with serving(
        repository, tmp_path / "server", "--resident-gpu-memory-limit=60%", environ=environ
    ) as server:
        first = told(server, "first")
        take(first)
        second = told(server, "second")  # its files say nothing of what it takes
        take(first, second)
        trio.run(until, lambda: [each["model"] for each in server.logged("model_evicted")] == ["first"])
        take(second)
        again = told(server, "first")  # now it is known
        assert again != first
        trio.run(
            until, lambda: [each["model"] for each in server.logged("model_evicted")] == ["first", "second"]
        )
        take(again)
