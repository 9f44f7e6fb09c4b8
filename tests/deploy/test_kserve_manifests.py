"""The manifests for KServe: what the server needs of them, and that the page on KServe shows no others.

`tests/conformance/test_kserve_clients.py` holds them against the models of KServe's own package.
"""

import re
from pathlib import Path

import pytest

from engine.settings.settings import Settings
from tests.support.kserve_runtime import MANIFESTS, RUNTIME, container, document

PAGE = Path(__file__).parents[2] / "docs/kserve.md"
ALL = sorted(MANIFESTS.glob("*.yaml"))
RUNTIMES = [path for path in ALL if document(path)["kind"].endswith("ServingRuntime")]
SERVICES = [path for path in ALL if document(path)["kind"] == "InferenceService"]
HTTP = [path for path in RUNTIMES if not document(path)["spec"].get("multiModel")]


def name(path):
    return path.stem


def predictors(path):
    spec = document(path)["spec"]
    return [spec["predictor"], *(canary["predictor"] for canary in spec.get("canary", ()))]


@pytest.mark.parametrize("path", HTTP, ids=name)
def test_a_runtime_is_what_kserve_takes_for_triton(path):
    read = document(path)
    assert read["metadata"]["annotations"]["serving.kserve.io/server-type"] == "tritonserver"
    assert read["spec"]["annotations"] == {
        "prometheus.kserve.io/port": "8002",
        "prometheus.kserve.io/path": "/metrics",
    }
    assert read["spec"]["protocolVersions"] == ["v2", "grpc-v2"]
    [found] = read["spec"]["containers"]
    assert found["name"] == "kserve-container"
    assert found["args"] == [
        "tritonserver",
        "--model-store=/mnt/models",
        "--grpc-port=9000",
        "--http-port=8080",
        "--allow-grpc=true",
        "--allow-http=true",
    ]


@pytest.mark.parametrize("path", HTTP, ids=name)
def test_probes_ask_the_server_and_only_readiness_asks_for_models(path):
    [found] = document(path)["spec"]["containers"]
    asked = {each: found[each]["httpGet"] for each in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in asked.values()} == {8080}
    assert [probe["path"].rpartition("/")[2] for probe in asked.values()] == ["live", "live", "ready"]


@pytest.mark.parametrize("path", HTTP, ids=name)
def test_what_a_runtime_may_write_is_a_volume_of_its_own(path):
    read = document(path)["spec"]
    [found] = read["containers"]
    assert found["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {mount["name"]: mount["mountPath"] for mount in found["volumeMounts"]}
    assert {volume["name"] for volume in read["volumes"] if "emptyDir" in volume} == mounted.keys()
    written = {variable["name"]: variable["value"] for variable in found["env"]}
    assert set(written.values()) <= set(mounted.values())


@pytest.mark.parametrize("path", SERVICES, ids=name)
def test_a_service_names_a_runtime_that_is_here_and_waits_for_its_end(path):
    named = {document(each)["metadata"]["name"] for each in RUNTIMES}
    for predictor in predictors(path):
        assert predictor["model"]["runtime"] in named
        # Knative waits by itself.
        if document(path)["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard":
            assert predictor["terminationGracePeriodSeconds"] >= 60
            assert predictor["enableServiceLinks"] is False


@pytest.mark.parametrize("path", SERVICES, ids=name)
def test_the_server_takes_the_flags_of_a_service(path):
    for predictor in predictors(path):
        flags = [*container()["args"][1:], *predictor["model"].get("args", ())]
        assert Settings.from_argv(flags).http_port == 8080


def test_the_autoscaler_asks_for_a_metric_that_there_is():
    text = (MANIFESTS / "autoscaling-keda.yaml").read_text()
    metrics = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    [asked] = re.findall(r"sum\((\w+)", text)
    assert f"`{asked}`" in metrics


def test_every_manifest_on_the_page_is_one_of_these_files_or_a_part_of_one():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    files = {path.name: path.read_text(encoding="utf-8") for path in ALL}
    assert blocks
    for block in blocks:
        assert any(block in text for text in files.values()), block


def test_the_page_names_every_file():
    page = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in ALL if f"examples/kserve/{path.name}" not in page] == []
    assert RUNTIME in ALL
