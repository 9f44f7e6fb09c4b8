"""A limit of an instance's memory on its GPU, as frameworks are told."""

import json
import sys
from types import SimpleNamespace

import onnxruntime
import pytest

from engine.worker.backends import torch_loading
from engine.worker.backends.base import LoadError
from engine.worker.backends.language import of_vllm
from engine.worker.backends.onnxruntime import OnnxRuntimeBackend
from engine.worker.backends.tensorflow.parameters import TensorFlowOptions
from engine.worker.backends.tensorflow.reading import configured
from engine.worker.backends.testing import model_info
from engine.worker.devices.limits import is_limited, limit_as_share, limit_in_bytes
from tests.support.fake_gpu import built, in_this_process

pytestmark = pytest.mark.system  # a compiler is started for the stand-in

GIB = 2**30


def info(**changes):
    return model_info(inputs=[], outputs=[], kind="GPU", **changes)


@pytest.fixture
def driver(tmp_path):
    folder = tmp_path / "gpu"
    folder.mkdir()
    with in_this_process({**built(folder), "CUDA_VISIBLE_DEVICES": "0"}):
        yield


def test_a_limit_is_bytes_or_a_share():
    assert not is_limited(info())
    assert (limit_in_bytes(info(gpu_memory=5), 10), limit_as_share(info(gpu_memory=5), 10)) == (5, 0.5)
    assert (limit_in_bytes(info(gpu_share=0.5), 10), limit_as_share(info(gpu_share=0.5), 10)) == (5, 0.5)


def test_more_than_there_is_can_t_be_loaded():
    with pytest.raises(LoadError, match="is 11 bytes, and the GPU of instance 'model_0_0' has 10"):
        limit_in_bytes(info(gpu_memory=11), 10)


class Torch:
    """Stands for `torch` and `torch.cuda`, with two devices of 1000 bytes."""

    def __init__(self):
        self.cuda = self
        self.limits = []

    @staticmethod
    def device(kind, index=0):
        return kind, index

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def device_count():
        return 2

    @staticmethod
    def get_device_properties(device):
        return SimpleNamespace(total_memory=1000)

    def set_per_process_memory_fraction(self, fraction, device):
        self.limits.append((fraction, device))


@pytest.mark.parametrize("limit", [{"gpu_memory": 250}, {"gpu_share": 0.25}])
def test_torch_keeps_a_limit(limit):
    torch = Torch()
    assert torch_loading.device_of(torch, info(device_id=1, **limit)) == ("cuda", 1)
    assert torch.limits == [(0.25, ("cuda", 1))]


def test_torch_without_a_limit_is_told_none():
    torch = Torch()
    torch_loading.device_of(torch, info())
    assert torch.limits == []


# -- ONNX Runtime: an option of the provider


@pytest.fixture
def asked(monkeypatch):
    """What ONNX Runtime is asked for: its providers, with their options."""
    found = []

    def session(path, options, *, providers, **_):
        found.extend(providers)
        raise RuntimeError("enough")

    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    return found


def load_onnx(folder, **changes):
    (folder / "model.onnx").touch()
    model = model_info(folder, inputs=[], outputs=[], kind="GPU", **changes)
    with pytest.raises(LoadError) as refused:
        OnnxRuntimeBackend().load(model)
    return str(refused.value)


@pytest.mark.parametrize("limit", [{"gpu_memory": GIB // 4}, {"gpu_share": 0.25}])
def test_onnx_runtime_keeps_a_limit(driver, asked, tmp_path, limit):
    assert "enough" in load_onnx(tmp_path, **limit)
    assert asked[0] == ("CUDAExecutionProvider", {"gpu_mem_limit": str(GIB // 4), "device_id": "0"})


def test_onnx_runtime_is_not_told_two_limits(asked, tmp_path):
    said = load_onnx(tmp_path, gpu_share=0.5, parameters={"gpu_mem_limit": "5"})
    assert "both 'tritium.gpu_memory' and 'gpu_mem_limit' (a parameter of the model) limit its memory" in said


def test_without_a_driver_a_share_is_of_nothing(asked, tmp_path):
    assert "GPU memory can't be reached" in load_onnx(tmp_path, gpu_share=0.5)


# -- TensorFlow: an option of the sessions


class TensorFlow:
    """Stands for `tensorflow`, its `compat.v1`, `config`, and the protocol buffers of a session's options."""

    def __init__(self):
        self.compat = SimpleNamespace(v1=SimpleNamespace(ConfigProto=self.options))
        self.config = SimpleNamespace(list_physical_devices=lambda kind: [kind])

    @staticmethod
    def options(**given):
        optimizer = SimpleNamespace(GlobalJitLevel=SimpleNamespace(Value=str))
        return SimpleNamespace(
            experimental=SimpleNamespace(),
            graph_options=SimpleNamespace(optimizer_options=optimizer),
            gpu_options=SimpleNamespace(),
            device_count={},
            **given,
        )


def gpu_options(**changes):
    config = {"platform": "tensorflow_savedmodel"}
    model = model_info(inputs=[], outputs=[], config=config, **{"kind": "GPU", **changes})
    return vars(configured(TensorFlow(), model, TensorFlowOptions(model)).gpu_options)


@pytest.mark.parametrize("limit", [{"gpu_memory": GIB // 4}, {"gpu_share": 0.25}])
def test_tensorflow_takes_what_it_needs_up_to_a_limit(driver, limit):
    assert gpu_options(**limit) == {
        "visible_device_list": "0",
        "allow_growth": True,
        "per_process_gpu_memory_fraction": 0.25,
    }
    assert gpu_options(kind="CPU", **limit) == {}


def test_tensorflow_without_a_limit_takes_what_it_needs():
    assert gpu_options()["per_process_gpu_memory_fraction"] == 0
    told = gpu_options(settings={"gpu-memory-fraction": "0.5"})
    assert told == {"visible_device_list": "0", "per_process_gpu_memory_fraction": 0.5}


def test_tensorflow_is_not_told_two_limits():
    with pytest.raises(LoadError, match=r"both 'tritium\.gpu_memory' and 'gpu-memory-fraction'"):
        gpu_options(gpu_share=0.5, settings={"gpu-memory-fraction": "0.5"})


def test_without_a_driver_tensorflow_has_no_size_to_keep():
    with pytest.raises(LoadError, match="GPU memory can't be reached"):
        gpu_options(gpu_memory=5)


# -- vLLM: an argument of the engine


def load_vllm(monkeypatch, folder, *, written=(), **changes):
    """Return the arguments that vLLM's engine would get, or why it would get none."""

    def engine(arguments, *_, **__):
        raise LoadError(json.dumps(arguments.get("gpu_memory_utilization")))

    monkeypatch.setattr(of_vllm, "VllmEngine", engine)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    for name in ("CUDA_VISIBLE_DEVICES", "VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "0")
    (folder / "model.json").write_text(json.dumps({"model": "some/model", **dict(written)}))
    with pytest.raises(LoadError) as refused:
        of_vllm.VllmBackend().make_engine(model_info(folder, inputs=[], outputs=[], **changes))
    return str(refused.value)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"kind": "GPU"}, "null"),
        ({"kind": "GPU", "gpu_share": 0.25}, "0.25"),
        ({"kind": "GPU", "gpu_memory": GIB // 2}, "0.5"),
        ({"kind": "MODEL", "gpu_share": 0.25}, "0.25"),
        ({"kind": "CPU", "gpu_share": 0.25}, "null"),
    ],
)
def test_vllm_keeps_a_limit(driver, monkeypatch, tmp_path, changes, share):
    assert load_vllm(monkeypatch, tmp_path, **changes) == share


def test_vllm_is_not_told_two_limits(monkeypatch, tmp_path):
    written = {"gpu_memory_utilization": 0.5}
    said = load_vllm(monkeypatch, tmp_path, written=written, kind="GPU", gpu_share=0.25)
    assert "both 'tritium.gpu_memory' and 'gpu_memory_utilization' (model.json)" in said


def test_a_size_is_of_one_gpu(monkeypatch, tmp_path):
    assert "write a share, such as '50%'" in load_vllm(monkeypatch, tmp_path, kind="MODEL", gpu_memory=5)
