"""The example models load and tell digits apart; what the clients send is what they show."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from actors.values.datatypes import BY_CONFIG_NAME
from actors.values.errors import ErrorCode
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.onnxruntime import OnnxRuntimeBackend
from engine.worker.backends.python.backend import PythonBackend
from engine.worker.backends.pytorch import PyTorchBackend
from engine.worker.backends.testing import LocalRequest, model_info, run

EXAMPLES = Path(__file__).parents[4] / "examples"
TENSOR = re.compile(r'name: "(\w+)"\s+data_type: (\w+)\s+dims: \[ (-?\d+) \]')


def found(pattern, text):
    """The group of a pattern that is there."""
    return re.findall(pattern, text)[0]


@pytest.fixture
def load():
    """Load an example by name, as its configuration says."""
    loaded = []

    def do(name):
        text = (EXAMPLES / "models" / name / "config.pbtxt").read_text()
        before, after = text.split("output [")
        filename: Any = re.search(r'default_model_filename: "(.*)"', text)
        model = model_info(
            EXAMPLES / "models" / name / "1",
            name=name,
            artifact=filename[1] if filename else "",
            max_batch_size=int(found(r"max_batch_size: (\d+)", text)),
            decoupled="decoupled: true" in text,
            inputs=[TensorInfo(n, BY_CONFIG_NAME[d], [int(dim)]) for n, d, dim in TENSOR.findall(before)],
            outputs=[TensorInfo(n, BY_CONFIG_NAME[d], [int(dim)]) for n, d, dim in TENSOR.findall(after)],
        )
        kinds: dict[str, Any] = {
            "python": PythonBackend,
            "pytorch": PyTorchBackend,
            "onnxruntime": OnnxRuntimeBackend,
        }
        backend = kinds[found(r'(?:backend|platform): "([a-z]+)', text)]()
        backend.load(model)
        loaded.append(backend)
        return backend, model

    yield do
    for backend in loaded:
        backend.unload()


@pytest.fixture(scope="module")
def unseen():
    """The digits that the network was not trained on."""
    pixels, labels = load_digits(return_X_y=True)
    _, x, _, y = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    return x.astype(np.float32), y


SLOW = pytest.mark.slow  # torch.export takes seconds to import


@pytest.mark.parametrize(
    "name", ["digits_onnx", "digits_torchscript", pytest.param("digits_pt2", marks=SLOW)]
)
def test_unseen_digits_are_recognised(load, unseen, name):
    backend, model = load(name)
    x, y = unseen
    found = []
    for rows in np.array_split(x, 8):
        [answer] = run(backend, model, [LocalRequest({model.inputs[0].name: rows})])
        found += answer.outputs[model.outputs[0].name].argmax(1).tolist()
    assert np.mean(found == y) >= 0.95


@pytest.mark.parametrize("name", ["digits_torchscript", pytest.param("digits_pt2", marks=SLOW)])
def test_the_digits_models_agree(load, unseen, name):
    scores = []
    for each in ("digits_onnx", name):
        backend, model = load(each)
        [answer] = run(backend, model, [LocalRequest({model.inputs[0].name: unseen[0][:16]})])
        scores.append(answer.outputs[model.outputs[0].name])
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


def test_every_digits_model_has_its_labels():
    for name in ("digits_onnx", "digits_torchscript", "digits_pt2"):
        labels = (EXAMPLES / "models" / name / "labels.txt").read_text().split()
        assert labels == [str(digit) for digit in range(10)]


def image_bytes(filename):
    return np.frombuffer((EXAMPLES / "clients" / filename).read_bytes(), np.uint8)


@pytest.mark.parametrize("filename", ["digit.pgm", "digit.png"])
def test_the_pipeline_reads_image_files(load, filename):
    backend, model = load("digits_pipeline")
    [answer] = run(backend, model, [LocalRequest({"IMAGE": image_bytes(filename)})])
    assert answer.outputs["LABEL"].tolist() == [b"7"]
    assert answer.outputs["PROBABILITIES"].shape == (10,)
    assert answer.outputs["PROBABILITIES"].sum() == pytest.approx(1)


def test_the_pipeline_reads_raw_and_larger_images(load):
    backend, model = load("digits_pipeline")
    pixels = image_bytes("digit.pgm")[-64:]
    large = np.kron(pixels.reshape(8, 8), np.ones((5, 5), np.uint8))
    for image in (pixels, np.frombuffer(b"P5\n40 40\n255\n" + large.tobytes(), np.uint8)):
        [answer] = run(backend, model, [LocalRequest({"IMAGE": image})])
        assert answer.outputs["LABEL"].tolist() == [b"7"]


@pytest.mark.parametrize(
    "data",
    [b"", b"nothing", b"P5 9 9 255\n", b"P5 99999 99999 255\n", b"P5 2 2 255\nabcd", b"\x89PNG\r\n\x1a\n"],
)
def test_the_pipeline_refuses_what_is_no_image(load, data):
    backend, model = load("digits_pipeline")
    [answer] = run(backend, model, [LocalRequest({"IMAGE": np.frombuffer(data, np.uint8)})])
    assert answer.code is ErrorCode.INVALID_ARG
    assert answer.message.startswith("IMAGE: ")


def test_repeat_answers_once_for_each_element(load):
    backend, model = load("repeat_int32")
    for delays in ({}, {"DELAY": np.zeros(3, np.uint32)}):
        request = LocalRequest({"IN": np.array([7, 8, 9], np.int32), **delays})
        assert run(backend, model, [request]) == []
        assert request.ended.wait(20)
        assert [part.outputs["OUT"].tolist() for part in request.parts] == [[7], [8], [9]]
        assert [part.outputs["IDX"].tolist() for part in request.parts] == [[0], [1], [2]]


@pytest.mark.parametrize("name", ["add_sub", "add_sub_onnx"])
def test_add_sub_adds_and_subtracts(load, name):
    backend, model = load(name)
    a, b = np.arange(32, dtype="f4").reshape(2, 16), np.ones((2, 16), "f4")
    [answer] = run(backend, model, [LocalRequest({"INPUT0": a, "INPUT1": b})])
    np.testing.assert_array_equal(answer.outputs["OUTPUT0"], a + b)
    np.testing.assert_array_equal(answer.outputs["OUTPUT1"], a - b)


def test_identity_gives_back_any_length(load):
    backend, model = load("identity_fp32")
    for length in (1, 1000):
        x = np.arange(length, dtype="f4").reshape(1, -1)
        [answer] = run(backend, model, [LocalRequest({"INPUT0": x})])
        np.testing.assert_array_equal(answer.outputs["OUTPUT0"], x)


def test_strings_are_put_into_upper_case_one_request_at_a_time(load):
    backend, model = load("strings")
    texts = [np.array([["zo\u00eb".encode()]], object), np.array([[b"\xff"]], object)]
    good, bad = run(backend, model, [LocalRequest({"TEXT": text}) for text in texts])
    assert good.outputs["UPPER"].tolist() == [["ZO\u00cb".encode()]]
    assert bad.code is ErrorCode.INVALID_ARG


def test_the_json_request_shows_a_seven(load):
    backend, model = load("digits_onnx")
    [tensor] = json.loads((EXAMPLES / "clients" / "digit.json").read_text())["inputs"]
    x = np.array(tensor["data"], "f4").reshape(tensor["shape"])
    [answer] = run(backend, model, [LocalRequest({tensor["name"]: x})])
    assert answer.outputs["SCORES"].argmax() == 7


def test_the_examples_are_small():
    assert sum(path.stat().st_size for path in EXAMPLES.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.parametrize("path", ["digits_torchscript/1/model.pt", "digits_pt2/1/model.pt2"])
def test_the_model_files_name_no_file_of_the_machine_that_built_them(path):
    with zipfile.ZipFile(EXAMPLES / "models" / path) as archive:
        assert not any(
            b".py" in archive.read(name) for name in archive.namelist() if "code/__torch__.py" not in name
        )
