"""Manifests against the schemas of Kubernetes, and of what is installed into it.

In the long tier, with `kubernetes-validate` (`python -m tests.long chart`). Definitions of custom resources
are read from the YAML in the folder that `TRITIUM_TESTS_CRDS` names; without it, those are not checked.
"""

import os
from pathlib import Path

import pytest
import yaml

from tests.deploy.helm.charts import CHART, SETS, golden
from tests.deploy.helm.pages import blocks

kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
jsonschema = pytest.importorskip("jsonschema")

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.slow]

NEWEST, OLDEST = "1.37.0", "1.27.0"
SLEEPS = {"openshift"}
"""Sets with `drain.preStopSleepSecs`, which wants 1.30."""
CUSTOM = {
    "DestinationRule", "GRPCRoute", "HTTPRoute", "InferencePool", "PodMonitor", "PrometheusRule",
    "ScaledObject",
}  # fmt: skip
FILES = {"EndpointPickerConfig"}
"""Kinds of files that no cluster takes, and that have no schema."""

FOLDER = os.environ.get("TRITIUM_TESTS_CRDS", "")


def closed(schema):
    """Return a schema of Kubernetes that refuses fields which it does not name, as `kubectl` does."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: closed(each) for name, each in schema.items()}
    if result.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
        result.pop("anyOf", None)
    if str(result.get("pattern", "")).startswith("^(?i)"):  # Go takes flags anywhere
        result["pattern"] = "(?i)^" + result["pattern"].removeprefix("^(?i)")
    if "properties" in result and not result.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


def definitions():
    """Return the schemas in the folder, by API version and kind."""
    found = {}
    for path in sorted(Path(FOLDER).glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            if each and each.get("kind") == "CustomResourceDefinition":
                spec = each["spec"]
                for version in spec["versions"]:
                    schema = closed(version["schema"]["openAPIV3Schema"])
                    schema["properties"] = {
                        "apiVersion": {}, "kind": {}, "metadata": {}, **schema.get("properties", {}),
                    }  # fmt: skip
                    schema["properties"]["metadata"] = {}
                    found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def check(document, custom, version=NEWEST):
    """Check a manifest. Raises what the validators raise."""
    if document["kind"] in FILES:
        return
    if document["kind"] not in CUSTOM:
        kubernetes.validate(document, version, strict=True)
    elif FOLDER:
        jsonschema.validate(document, custom[document["apiVersion"], document["kind"]])


@pytest.fixture(scope="module")
def custom():
    return definitions()


@pytest.mark.parametrize("name", SETS)
def test_kubernetes_takes_every_manifest(name, custom):
    for document in golden(name):
        check(document, custom)


@pytest.mark.parametrize("name", [name for name in SETS if name not in SLEEPS])
def test_the_oldest_kubernetes_that_the_chart_takes_takes_every_manifest(name, custom):
    oldest = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert oldest == f">={OLDEST}-0"
    for document in golden(name):
        check(document, custom, OLDEST)


@pytest.mark.parametrize("block", [each for each in blocks() if not each.chart], ids=lambda b: str(b.line))
def test_kubernetes_takes_the_manifests_of_the_page(block, custom):
    for document in block.documents:
        check(document, custom)


@pytest.mark.skipif(not FOLDER, reason="TRITIUM_TESTS_CRDS names no folder with definitions")
def test_every_kind_that_is_no_kubernetes_own_is_checked(custom):
    made = {(each["apiVersion"], each["kind"]) for name in SETS for each in golden(name)}
    assert {each for each in made if each[1] in CUSTOM} <= set(custom)
    assert {kind for _, kind in made} >= CUSTOM


def test_a_field_that_is_not_there_is_found(custom):
    (document, *_) = (each for each in golden("claim") if each["kind"] == "Deployment")
    document["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes.ValidationError, match="livenessprobe"):
        check(document, custom)


@pytest.mark.skipif(not FOLDER, reason="TRITIUM_TESTS_CRDS names no folder with definitions")
def test_a_field_that_a_custom_resource_does_not_have_is_found(custom):
    (document, *_) = (each for each in golden("monitored") if each["kind"] == "PodMonitor")
    document["spec"]["podMetricsEndpoints"][0]["intervall"] = "1s"
    with pytest.raises(jsonschema.ValidationError, match="intervall"):
        check(document, custom)
