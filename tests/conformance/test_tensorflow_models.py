"""TensorFlow's models on a real server that has no TensorFlow: its workers run in another environment.

In the long tier, with the environment that `TRITIUM_TESTS_TENSORFLOW` names (`python -m tests.long tensorflow`).
"""

import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.support import foreign_models
from tests.support.environments import TENSORFLOW
from tests.support.flavours import process
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.long,
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SERVE = process(
    "engine", "serve", "--exit-on-error=false", "--strict-readiness=false", "--exit-timeout-secs=5"
)
WRITER = Path(__file__).parents[1] / "support/tensorflow_models.py"
SAVED = 'platform: "tensorflow_savedmodel"'
CONFIGURATIONS = {
    "scores": SAVED + " instance_group { kind: KIND_CPU count: 1 } optimization { graph { level: 1 } }",
    "text": 'backend: "tensorflow" ' + SAVED + " instance_group { count: 1 }",
    "running": SAVED
    + """ instance_group { count: 1 } max_batch_size: 4
    sequence_batching {
      control_input { name: "start"
        control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
      state { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [ 1 ] }
    }""",
    "graph": """platform: "tensorflow_graphdef" max_batch_size: 8 instance_group { count: 1 }
    input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }""",
    "cut": SAVED,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    environment = TENSORFLOW.named
    if not environment:
        pytest.skip(f"{TENSORFLOW.variable} names no environment that has TensorFlow")
    folder = tmp_path_factory.mktemp("tensorflow")
    subprocess.run([f"{environment}/bin/python", str(WRITER), str(folder)], check=True, capture_output=True)
    (folder / "cut/1").mkdir(parents=True)
    foreign_models.saved_model(folder / "cut/1/model.savedmodel")
    file = folder / "cut/1/model.savedmodel/saved_model.pb"
    file.write_bytes(file.read_bytes()[:-7])
    place = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    for name, text in CONFIGURATIONS.items():
        (folder / name / "config.pbtxt").write_text(f"{text}\n{place}")
    with SERVE(folder) as addresses, grpc_client.InferenceServerClient(addresses.grpc) as connected:
        yield connected


def answer(client, model, given, /, **arrays):
    return client.infer(model, inputs(grpc_client, **arrays)).as_numpy(given)


def test_a_signature_completes_the_configuration_and_serves(client):
    x = np.arange(8, dtype="f4").reshape(2, 4)
    np.testing.assert_array_equal(answer(client, "scores", "scores", features=x), x * 2 + 1)
    config = client.get_model_config("scores", as_json=True)["config"]
    assert (config["max_batch_size"], config["backend"]) == (4, "tensorflow")
    assert "dynamic_batching" in config


def test_text_is_bytes(client):
    words = np.array([[b"\xff", b"\x00b"], [b"", "é".encode()]], object)
    assert answer(client, "text", "joined", words=words).tolist() == [[b"\xff\x00b"], ["é".encode()]]


def test_a_graph_def_serves(client):
    x = np.array([[-1, 2, -3, 4]], "f4")
    assert answer(client, "graph", "y", x=x).tolist() == [[0, 2, 0, 4]]


def test_a_sequence_has_its_controls_and_its_state(client):
    sums = []
    for at, x in enumerate((1, 2, 4)):
        told = {"sequence_id": 7, "sequence_start": at == 0, "sequence_end": at == 2}
        result = client.infer("running", inputs(grpc_client, x=np.array([[x]], "f4")), **told)
        sums.append(result.as_numpy("sum").item())
    assert sums == [1, 3, 7]


def test_a_damaged_model_says_why_and_the_others_serve(client):
    [row] = [
        each for each in client.get_model_repository_index(as_json=True)["models"] if each["name"] == "cut"
    ]
    assert row["state"] == "UNAVAILABLE"
    assert "unable to auto-complete model configuration for 'cut', failed to load model: " in row["reason"]
    with pytest.raises(InferenceServerException):
        answer(client, "cut", "positive", features=np.ones((1, 3), "f4"))
