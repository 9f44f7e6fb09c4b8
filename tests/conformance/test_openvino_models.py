"""OpenVINO models on a real server: batches, dynamic shapes, warm-up, damaged files beside others."""

import threading
import warnings
from queue import Queue
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

from tests.support import foreign_models
from tests.support.flavours import process
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SERVE = process(
    "engine", "serve", "--exit-on-error=false", "--strict-readiness=false", "--exit-timeout-secs=5"
)
BATCHING = (
    'backend: "openvino" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 200000 }'
    " instance_group { count: 2 }"
)
WARM = """
model_warmup { name: "zeros" batch_size: 2 inputs {
  key: "X" value { data_type: TYPE_FP32 dims: [ 5 ] zero_data: true }
} }
"""
WRONG_WARM = WARM.replace("dims: [ 5 ]", "dims: [ 4 ]")
DAMAGED = {
    "empty": ("model.xml", b""),
    "foreign": ("model.xml", b"<html><body>404</body></html>"),
    "cut": ("model.xml", None),
    "nonsense": ("model.onnx", b"\x08\x0a\xff\xfe nonsense" * 40),
    "not_tflite": ("model.tflite", b"\x1c\x00\x00\x00TFL3" + b"\xff" * 90),
}


def parameter(shape):
    return ops.parameter(openvino.PartialShape(list(shape)), openvino.Type.f32)


def save(version, node, x, layout):
    version.mkdir(parents=True)
    result = ops.result(node)
    for port, name in ((x, "X"), (result, "Y")):
        port.output(0).get_tensor().set_names({name})
        port.set_layout(openvino.Layout(layout))
    openvino.save_model(openvino.Model([result], [x]), version / "model.xml", False)


def doubling(version, shape=(-1, -1), layout="N..."):
    x = parameter(shape)
    save(version, ops.multiply(x, ops.constant(np.array(2, "f4"))), x, layout)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openvino")
    doubling(folder / "alone/1")  # no configuration at all
    doubling(folder / "batches/1")
    (folder / "batches/config.pbtxt").write_text(BATCHING)
    x = parameter([-1, 5])
    weights = ops.constant(np.arange(25, dtype="f4").reshape(5, 5))
    save(folder / "warm/1", ops.matmul(x, weights, False, False), x, "NC")
    (folder / "warm/config.pbtxt").write_text(WARM)
    x = parameter([-1, 5])
    save(folder / "wrongly_warm/1", ops.matmul(x, weights, False, False), x, "NC")
    (folder / "wrongly_warm/config.pbtxt").write_text(WRONG_WARM)
    version = folder / "tensorflow/1"
    version.mkdir(parents=True)
    foreign_models.saved_model(version / "model.saved_model")
    (folder / "tensorflow/config.pbtxt").write_text(
        'backend: "openvino" default_model_filename: "model.saved_model"'
    )
    for name, (filename, content) in DAMAGED.items():
        version = folder / name / "1"
        if content is None:
            doubling(version)
            whole = (version / filename).read_bytes()
            content = whole[: len(whole) // 2]
        version.mkdir(parents=True, exist_ok=True)
        (version / filename).write_bytes(content)
        config = f'backend: "openvino" default_model_filename: "{filename}"'
        (version.parent / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="module")
def client(repository):
    with SERVE(repository) as addresses, grpc_client.InferenceServerClient(addresses.grpc) as client:
        yield client


def answer(client, model, x, *, taken="X", given="Y"):
    return client.infer(model, inputs(grpc_client, **{taken: x})).as_numpy(given)


def test_a_model_without_a_configuration_serves(client):
    x = np.array([[1, 2, 3]], "f4")
    assert answer(client, "alone", x).tolist() == [[2, 4, 6]]
    assert client.get_model_config("alone", as_json=True)["config"]["max_batch_size"] == 4
    metadata = client.get_model_metadata("alone", as_json=True)
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": ["-1", "-1"]}]


def test_requests_of_several_shapes_at_once_get_their_own(client):
    answers: Queue[Any] = Queue()
    arrays = [np.full((1 + at % 3, 2 + at % 2), at, "f4") for at in range(24)]

    def ask(at):
        answers.put((at, answer(client, "batches", arrays[at])))

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = dict(answers.get_nowait() for _ in arrays)
    for at, array in enumerate(arrays):
        np.testing.assert_array_equal(found[at], 2 * array)
    [stats] = client.get_inference_statistics("batches", as_json=True)["model_stats"]
    assert int(stats["execution_count"]) < int(stats["inference_count"])


def test_a_large_tensor_comes_back_whole(client):
    x = np.arange(3_000_000, dtype="f4").reshape(2, -1)
    np.testing.assert_array_equal(answer(client, "alone", x), 2 * x)
    x = np.arange(12, dtype="f4").reshape(2, -1)
    np.testing.assert_array_equal(answer(client, "alone", x), 2 * x)


def test_a_model_is_warmed_up_before_it_serves(client):
    assert answer(client, "warm", np.ones((1, 5), "f4")).tolist() == [[50, 55, 60, 65, 70]]


def test_a_savedmodel_of_tensorflow_serves(client):
    x = np.array([[-1, 2, 3]], "f4")
    assert answer(client, "tensorflow", x, taken="features", given="positive").tolist() == [[0, 2, 3]]


@pytest.mark.parametrize("name", [*DAMAGED, "wrongly_warm"])
def test_a_model_that_can_not_be_loaded_says_why_and_the_others_serve(client, name):
    index = client.get_model_repository_index(as_json=True)["models"]
    [row] = [each for each in index if each["name"] == name]
    assert row["state"] == "UNAVAILABLE"
    if name in DAMAGED:
        assert "openvino error" in row["reason"]
    with pytest.raises(InferenceServerException, match=r"not ready|unknown model|no available"):
        answer(client, name, np.ones((1, 2), "f4"))
    assert answer(client, "alone", np.ones((1, 1), "f4")).tolist() == [[2]]
