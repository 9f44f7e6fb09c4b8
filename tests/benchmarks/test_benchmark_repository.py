"""The models the benchmarks write: what is in them, and what happens where one can't be had."""

import pytest

from benchmarks import repository

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
