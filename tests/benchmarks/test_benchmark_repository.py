"""The models the benchmarks write: what is in them, and what happens where one can't be had."""

import pytest

from actors.values.hardware.gpus import Gpu
from benchmarks import repository
from engine.config.load import load_model_config
from engine.processes.backends import discover

onnx = pytest.importorskip("onnx")


def test_copies_are_models_of_their_own(tmp_path):
    repository.write_copies(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["add_sub_0", "add_sub_1", "add_sub_2"]
    onnx.checker.check_model(str(tmp_path / "add_sub_2" / "1" / "model.onnx"), full_check=True)


def test_the_identity_takes_any_length(tmp_path):
    repository.write(tmp_path, {"onnx_identity": "onnx_identity"})
    model = onnx.load(tmp_path / "onnx_identity" / "1" / "model.onnx")
    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "size"


def test_an_example_that_is_not_there_is_left_out_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "EXAMPLES", tmp_path / "nowhere")
    left_out = repository.write(tmp_path / "models", {"digits_onnx": "digits_onnx"})
    assert left_out == {"digits_onnx": "examples/models/digits_onnx holds no model"}
    assert list((tmp_path / "models").iterdir()) == []


def test_an_example_is_copied_whole(tmp_path, monkeypatch):
    source = tmp_path / "examples" / "digits_onnx"
    (source / "1").mkdir(parents=True)
    (source / "1" / "model.onnx").write_bytes(b"x")
    (source / "config.pbtxt").write_text("")
    monkeypatch.setattr(repository, "EXAMPLES", tmp_path / "examples")
    assert repository.write(tmp_path / "models", {"digits_onnx": "digits_onnx"}) == {}
    assert (tmp_path / "models" / "digits_onnx" / "1" / "model.onnx").read_bytes() == b"x"
    assert (tmp_path / "models" / "digits_onnx" / "config.pbtxt").is_file()


GPU_MODELS = {"torch_identity_gpu": "torch_identity_gpu", "digits_torchscript_gpu": "digits_torchscript_gpu"}


def test_models_for_a_gpu_are_left_out_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "find_gpus", lambda environ: ())
    assert repository.write(tmp_path, GPU_MODELS) == dict.fromkeys(GPU_MODELS, "no GPU")
    assert list(tmp_path.iterdir()) == []


def test_models_for_a_gpu_are_for_gpus_only(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(repository, "find_gpus", lambda environ: (Gpu(name="0"),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert repository.write(tmp_path, GPU_MODELS) == {}
    for name in GPU_MODELS:
        loaded = load_model_config(tmp_path / name, backends=discover(), gpus=1)
        assert loaded.problems == ()
        assert [each.kind for each in loaded.specs[0].instances] == ["GPU"]
        assert (loaded.specs[0].version_directory / "model.pt").is_file()
