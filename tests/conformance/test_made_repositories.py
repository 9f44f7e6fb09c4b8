"""`tritium init` on a folder of several formats, and a real server on what it has made."""

import shutil
from pathlib import Path

import httpx
import numpy as np
import openvino
import pytest
import xgboost

from engine.__main__ import main
from engine.processes.backends import discover
from tests.support.bare_models import (
    DOUBLING,
    EXAMPLES,
    EXPORTED,
    FOREIGN,
    TRITIUM_MODEL,
    TRITON_MODEL,
    onnx_model,
)
from tests.support.flavours import process

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROW = [1.0, 2.0, 3.0, 4.0]
ASKED = {
    "scores": ("X", ROW, "Y", [10.0] * 4),
    "weighty": ("X", ROW, "Y", [10.0] * 4),
    "twice": ("IN", ROW, "OUT", [2.0, 4.0, 6.0, 8.0]),
    "negated": ("positive", ROW, "negative", [-1.0, -2.0, -3.0, -4.0]),
    "digits": ("INPUT__0", [0.0] * 64, "OUTPUT__0", None),
    "filled": ("image", [0.0] * 64, "OUTPUT__0", None),
    "graph": ("X", ROW, "Y", [10.0] * 4),
    "forest": ("input__0", ROW, "output__0", None),
}
"""Of each model: an input, a row of it, an output, and its row if that is known."""


def write(folder: Path) -> None:
    onnx_model(folder / "scores.onnx")
    onnx_model(folder / "weighty.bin", external="weighty.data")
    (folder / "twice.py").write_text(TRITON_MODEL)
    (folder / "doubling.py").write_text(DOUBLING)
    (folder / "negated.py").write_text(TRITIUM_MODEL)
    shutil.copyfile(EXPORTED, folder / "digits.zip")
    shutil.copyfile(EXAMPLES / "digits_torchscript" / "1" / "model.pt", folder / "filled")
    (folder / "chat.gguf").write_bytes(FOREIGN["GGUF"])
    known = discover()
    if "openvino" in known:
        openvino.save_model(openvino.convert_model(folder / "scores.onnx"), folder / "graph.xml")
    if "fil" in known:
        rows = np.random.default_rng(0).random((50, 4), np.float32)
        trained = xgboost.XGBRegressor(n_estimators=2).fit(rows, rows[:, 0])
        trained.save_model(folder / "forest.json")


def fill_in(config: Path) -> None:
    """Do what the configuration of a TorchScript model says."""
    lines = [line.removeprefix("# ") for line in config.read_text().splitlines() if "# Correct" not in line]
    text = "\n".join(lines)
    # The input's are those that it was traced with.
    for told, right in (("dims: [ 2, 64 ]", "dims: [ -1, 64 ]"), ("dims: [ -1 ]", "dims: [ -1, 10 ]")):
        assert text.count(told) == 1
        text = text.replace(told, right)
    config.write_text(text)


def test_each_format_with_a_backend_here_is_served(tmp_path, capsys):
    folder, repository = tmp_path / "exports", tmp_path / "models"
    folder.mkdir()
    write(folder)
    assert main(["init", str(folder), "--to", str(repository)]) == 1
    said = capsys.readouterr().out
    made = {path.name for path in repository.iterdir()}
    assert made == {name for name in ASKED if name in said}
    assert {"scores", "weighty", "twice", "negated", "digits", "filled"} <= made
    fill_in(repository / "filled" / "config.pbtxt")
    assert main(["check", "--quiet", str(repository)]) == 0
    # Models are loaded one after the other: a busy machine takes long to import torch.
    serve = process("engine", "serve", TRITIUM_MODEL_CONTROL_MODE="explicit")
    with serve(repository) as opened, httpx.Client(base_url=f"http://{opened.http}", timeout=120) as client:
        for name in sorted(made):
            loaded = client.post(f"/v2/repository/models/{name}/load")
            assert loaded.status_code == 200, loaded.text
            given, row, taken, expected = ASKED[name]
            tensor = {"name": given, "datatype": "FP32", "shape": [1, len(row)], "data": row}
            answer = client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]}).json()
            assert "outputs" in answer, answer
            assert [output["name"] for output in answer["outputs"]] == [taken]
            if expected is not None:
                assert answer["outputs"][0]["data"] == pytest.approx(expected)
