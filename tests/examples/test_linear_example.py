"""The example of a backend in Python: two models without code, built, served and asked as its page has it."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.support.flavours import process
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.http as triton

LINEAR = Path(__file__).parents[2] / "examples" / "linear"

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of the family, whose classifiers are told to be twice as unsure."""
    repository = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, LINEAR / "build.py", repository], check=True)
    serve = process(
        "engine",
        "serve",
        TRITIUM_BACKEND_DIRECTORY=str(LINEAR / "backends"),
        TRITIUM_BACKEND_CONFIG="linear,temperature=2",
    )
    with serve(repository) as addresses:
        client = triton.InferenceServerClient(addresses.http)
        yield client
        client.close()


def test_the_weights_complete_the_configuration(client):
    config = client.get_model_config("quadrants")
    assert (config["backend"], config["runtime"]) == ("linear", "model.py")
    assert config["max_batch_size"] == 64
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["output"]] == [
        ("LABEL", "TYPE_STRING", [1]),
        ("PROBABILITIES", "TYPE_FP32", [4]),
    ]


def test_a_regression_predicts(client):
    features = np.array([[3], [10]], np.float32)
    found = client.infer("heights", inputs(triton, FEATURES=features)).as_numpy("PREDICTION")
    np.testing.assert_allclose(found, 77 + 6 * features, atol=1)


def test_a_classifier_names_classes_and_honours_the_setting_of_its_backend(client):
    features = np.array([[1, 1], [-1, 1], [1, -1], [-1, -1]], np.float32)
    found = client.infer("quadrants", inputs(triton, FEATURES=features))
    assert found.as_numpy("LABEL").ravel().tolist() == [b"++", b"-+", b"+-", b"--"]
    probabilities = found.as_numpy("PROBABILITIES")
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert probabilities.max() < 0.7  # 0.91 without the setting
