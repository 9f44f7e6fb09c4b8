"""KServe's own Python client asks a server that has the arguments of the runtime in examples/kserve.

In the long tier, with the environment that `TRITIUM_TESTS_KSERVE` names (`python -m tests.long kserve`).
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.environments import KSERVE
from tests.support.kserve_runtime import MANIFESTS, arguments
from tests.support.operators import serving, write_model

pytestmark = [pytest.mark.long, pytest.mark.system]

SUPPORT = Path(__file__).parents[1] / "support"
DOUBLED = {"Y": ["FP32", [0.0, 2.0, 4.0, 6.0]]}


def by_kserve(script, *given):
    """Run a script on the Python that has `kserve`; return its status and what it printed."""
    if not KSERVE.named:
        pytest.skip(f"{KSERVE.variable} names no environment that has KServe's client")
    command = [f"{KSERVE.named}/bin/python", str(SUPPORT / script), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert not done.stderr.startswith("Traceback"), done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the client was told, by protocol."""
    folder = tmp_path_factory.mktemp("kserve")
    repository = folder / "models"
    write_model(repository)
    with serving(folder / "server", *arguments(repository)) as server:
        server.wait_ready()
        http, grpc = server.address(), server.address("GRPCInferenceService")
        status, printed = by_kserve("kserve_calls.py", f"http://{http}", grpc, "double")
    assert status == 0, printed
    return json.loads(printed)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_health_and_models_are_told(told, protocol):
    assert [told[protocol][each] for each in ("live", "ready", "model")] == [True, True, True]


def test_a_body_of_health_comes_to_who_asks_for_json(told):
    assert told["http"]["ready without a header"] == "no JSON"
    assert told["http"]["other model"] is False


@pytest.mark.parametrize(
    ("protocol", "way"),
    [("http", "json"), ("http", "binary"), ("http", "mapping"), ("grpc", "json"), ("grpc", "binary")],
)
def test_tensors_travel_either_way(told, protocol, way):
    answer = told[protocol][way]
    assert (answer["model"], answer["outputs"]) == ("double", DOUBLED)
    assert way == "mapping" or answer["id"] == "by kserve"


def test_what_is_wrong_is_told(told):
    assert told["http"]["wrong"].startswith("400 ")
    assert "unexpected inference input 'Z'" in told["http"]["wrong"]
    assert told["http"]["unknown"].startswith("404 ")
    assert told["grpc"]["unknown"].startswith("NOT_FOUND ")


def test_metadata_fits_kserve_s_messages(told):
    found = told["grpc"]
    assert (found["server"], found["versions"]) == ("triton", ["1"])
    assert found["inputs"] == [["X", "FP32", [-1]]]
    assert "model_repository" in found["extensions"]


def test_every_manifest_fits_kserve_s_own_models():
    manifests = sorted(MANIFESTS.glob("*.yaml"))
    assert by_kserve("kserve_models.py", *manifests) == (0, f"{len(manifests)} files fit\n")


def test_a_manifest_that_does_not_fit_is_noticed(tmp_path):
    text = (MANIFESTS / "cluster-serving-runtime.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        text.replace("readinessProbe", "readyProbe").replace("periodSeconds: 2", "periodSeconds: '2'")
    )
    status, printed = by_kserve("kserve_models.py", wrong)
    assert status == 1
    assert "has no field readyProbe" in printed
    assert "startupProbe.periodSeconds is '2', and no int" in printed
