"""What a model of vLLM's is: its files, and what keeps one from loading. No vLLM is needed for that."""

import json
import os
import sys

import pytest

from engine.worker.backends.base import LoadError
from engine.worker.backends.language.of_vllm import VllmBackend
from engine.worker.backends.testing import model_info


@pytest.fixture
def version(tmp_path):
    """An empty version's directory."""
    folder = tmp_path / "tide" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The process's variables are as before, and there is no vLLM."""
    for name in list(os.environ):
        if name.startswith(("VLLM_", "CUDA_")):
            monkeypatch.delenv(name)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setitem(sys.modules, "vllm", None)


def _load(version, **options):
    return VllmBackend().make_engine(model_info(version, inputs=[], outputs=[], name="tide", **options))


def _write(version, **arguments):
    (version / "model.json").write_text(json.dumps({"model": "some/model", **arguments}))


def test_the_text_for_a_missing_file_is_triton_s(version):
    """Word for word."""
    with pytest.raises(LoadError) as refused:
        _load(version)
    assert str(refused.value) == f"'model.json' containing vllm engine args must be provided in '{version}'"


def test_one_sentence_says_what_is_missing_and_how_it_is_installed(version):
    """And whose interpreter lacks it."""
    _write(version)
    with pytest.raises(LoadError) as refused:
        _load(version)
    said = str(refused.value)
    assert said.startswith("backend 'vllm' needs the package 'vllm', which ")
    assert sys.executable in said
    assert "pip install vllm" in said
    assert "EXECUTION_ENV_PATH" in said


def test_a_gpu_s_number_counts_those_that_the_server_sees(version, monkeypatch):
    """As everywhere else: GPU 1 of a server that was given the cards 5 and 7 is card 7."""
    _write(version)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-abc")
    with pytest.raises(LoadError, match="needs the package"):
        _load(version, kind="GPU", device_id=1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(LoadError, match="is for GPU 1, but CUDA_VISIBLE_DEVICES is '5', which leaves 1"):
        _load(version, kind="GPU", device_id=1)


def test_a_gpu_instance_sees_its_own_device_only(version, monkeypatch):
    """As with Triton's backend; KIND_MODEL leaves the devices to vLLM."""
    _write(version)
    with pytest.raises(LoadError, match="needs the package"):
        _load(version, kind="MODEL")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(LoadError, match="needs the package"):
        _load(version, kind="GPU", device_id=3)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_threads_sleep_while_they_wait_unless_the_operator_says_otherwise(version, monkeypatch):
    """They would take the cores that server and text worker need."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    _write(version)
    for said, found in (("ACTIVE", "ACTIVE"), (None, "PASSIVE")):
        if said is None:
            monkeypatch.delenv("OMP_WAIT_POLICY")
        with pytest.raises(LoadError, match="needs the package"):
            _load(version)
        assert os.environ["OMP_WAIT_POLICY"] == found


def test_gpus_can_be_named_for_kind_model(version, monkeypatch):
    """By Triton's parameter; in other kinds of instances it says nothing."""
    _write(version, tensor_parallel_size=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with pytest.raises(LoadError, match="needs the package"):
        _load(version, kind="MODEL", parameters={"GPU_DEVICE_IDS": "2, 03"})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(LoadError, match="needs the package"):
        _load(version, kind="MODEL", parameters={"GPU_DEVICE_IDS": "2, 03"})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    with pytest.raises(LoadError, match="needs the package"):
        _load(version, kind="CPU", parameters={"GPU_DEVICE_IDS": "7"})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (
            {},
            {"kind": "MODEL", "parameters": {"GPU_DEVICE_IDS": "0,-1"}},
            "Invalid value for GPU_DEVICE_IDS: '0,-1'. Expected a comma-separated list of integer GPU IDs",
        ),
        ({}, {"kind": "MODEL", "parameters": {"GPU_DEVICE_IDS": "1,1"}}, "names a GPU twice: '1,1'"),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            {"kind": "MODEL", "parameters": {"GPU_DEVICE_IDS": "0,1"}},
            "names 2 GPUs, .* is 4; name as many",
        ),
        (
            {"tensor_parallel_size": 2},
            {"kind": "GPU"},
            "KIND_GPU is currently for single-GPU models, please specify KIND_MODEL in the model's"
            " config.pbtxt"
            " for multi-GPU models",
        ),
        ({"model": 3}, {}, "has no 'model'"),
    ],
)
def test_what_keeps_a_model_from_loading_is_said(version, arguments, options, text):
    """In Triton's words where it has some."""
    _write(version, **arguments)
    with pytest.raises(LoadError, match=text):
        _load(version, **options)


@pytest.mark.parametrize("text", ["[]", "{"])
def test_a_file_that_is_no_object_is_refused(version, text):
    (version / "model.json").write_text(text)
    with pytest.raises(LoadError, match=r"model\.json"):
        _load(version)
