"""The chart by Helm's own code: linted, rendered, packed, and what it says of values that don't fit.

In the long tier, in the environment that `TRITIUM_TESTS_HELM` names (`python -m tests.long chart`).
"""

import copy
import json
import tarfile

import pytest
import yaml

from tests.deploy.helm.charts import CHART, GOLDEN, SETS, kept, manifests, one, rendered, servers, values_of
from tests.deploy.helm.pages import blocks
from tests.deploy.helm.triton_values import PUBLIC
from tests.house.board.panels import BOARD, RULES

helm = pytest.importorskip("helm_python.chart", reason="helm-python-sdk is not installed")
errors = pytest.importorskip("helm_python.errors")

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.slow]

LEAST = {"image": {"imageName": "registry.example/tritium:1"}, "modelRepository": {"pvc": {"claimName": "m"}}}


def merged(values, changes):
    """Return values with changes laid over them, as Helm does with two files."""
    result = copy.deepcopy(values)
    for name, change in changes.items():
        within = isinstance(change, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], change) if within else change
    return result


def refusal(values):
    """Return what the chart says of values that don't fit, a line each."""
    with pytest.raises(errors.HelmError) as raised:
        rendered(values)
    text = str(raised.value)
    return [line.removeprefix("  - ") for line in text.splitlines() if line.startswith("  - ")] or [text]


def documents(values, **options):
    return list(
        manifests("\n---\n".join(t for n, t in rendered(values, **options).items() if "NOTES" not in n))
    )


@pytest.mark.parametrize("name", SETS)
def test_helm_finds_nothing_wrong(name):
    report = helm.lint(CHART, values_of(name), strict=True, kube_version="v1.37.0")
    assert report["errors"] == []
    assert {each["error"] for each in report["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("name", SETS)
def test_what_is_kept_is_what_helm_makes(name):
    """If the chart has changed on purpose: `python -m tests.deploy.helm`."""
    assert kept(rendered(values_of(name))) == (GOLDEN / f"{name}.yaml").read_text()


def test_a_package_has_the_rules_and_the_board_themselves(tmp_path):
    with helm.Chart.load(CHART) as chart:
        archive = chart.save(tmp_path)
    with tarfile.open(archive) as packed:
        for name, source in (("alerts.yml", RULES), ("board.json", BOARD)):
            found = packed.extractfile(f"tritium/files/{name}")
            assert found is not None
            assert found.read() == source.read_bytes()
    with helm.Chart.load(archive) as chart:
        every = chart.render(values_of("monitored"), name="demo", namespace="models")
    assert (
        kept({name: text for name, text in every.items() if text.strip()})
        == (GOLDEN / "monitored.yaml").read_text()
    )


def test_the_board_of_the_chart_is_grafanas():
    board = one(documents(values_of("monitored")), "ConfigMap", "-board")
    assert json.loads(board["data"]["tritium.json"]) == json.loads(BOARD.read_text())


@pytest.mark.parametrize("name", PUBLIC)
def test_values_of_tritons_charts_are_taken_or_told_what_to_write(name):
    given, complaints, changes = PUBLIC[name]
    said = refusal(given)
    assert sorted(line.partition(":")[0].partition(". ")[0] for line in said) == sorted(complaints)
    every = documents(merged(given, changes))
    resources = servers(every)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == 1
    assert one(every, "Service", "tritium")["spec"]["type"] == given.get("service", {}).get(
        "type", "ClusterIP"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": {"imageName": ""}}, "there is no image. None of Tritium is published: build"),
        ({"image": {"imageName": "a", "tag": "b"}}, "image.imageName: it is the whole name."),
        ({"image": {"modelRepositoryPath": "s3://m"}}, "modelRepository.pvc: there is also image."),
        ({"modelRepository": {"pvc": {"claimName": ""}}}, "there is no model repository. Write image."),
        (
            {"modelRepository": {"secret": {"credentials": "x"}}},
            "modelRepository.secret: x is a key of a Secret. Write its name",
        ),
        (
            {"modelRepository": {"secret": {"name": "s"}}},
            "modelRepository.secret.name: say which of its keys",
        ),
        (
            {
                "modelRepository": {"pvc": {"claimName": ""}},
                "image": {"modelRepositoryPath": "as://a/b?sv=1&sig=x"},
            },
            "image.modelRepositoryPath: it holds a signature.",
        ),
        ({"serverArgs": ["--http-port=80"]}, "serverArgs: --http-port: the probes and Services ask at 8000"),
        ({"serverArgs": ["--drain-delay-secs=1"]}, "serverArgs: --drain-delay-secs: write drain: {delaySecs"),
        ({"serverArgs": ["--allow-http=false"]}, "serverArgs: --allow-http=false: the probes ask over HTTP."),
        (
            {"serverArgs": ["--http-restricted-api=metadata,health:k=v"]},
            "serverArgs: --http-restricted-api with health: the probes show no key.",
        ),
        (
            {"drain": {"terminationGracePeriodSeconds": 30}},
            "drain.terminationGracePeriodSeconds: 30 s are too short, and requests would be cut off."
            " The drain needs 60: leave it out",
        ),
        (
            {"autoscaling": {"enabled": True}, "keda": {"enabled": True, "serverAddress": "http://p"}},
            "keda.enabled: autoscaling decides already. Two autoscalers fight",
        ),
        (
            {"autoscaling": {"enabled": True, "targetPendingRequests": None}},
            "autoscaling: by what? Write target",
        ),
        (
            {"autoscaling": {"minReplicas": 5}},
            "autoscaling: minReplicas 5 is over maxReplicas 3",
        ),
        ({"keda": {"enabled": True}}, "keda.serverAddress: write where Prometheus is"),
        ({"gateway": {"enabled": True}}, "gateway.parentRefs: name the Gateway"),
        (
            {"inferencePool": {"enabled": True, "endpointPicker": {"name": "p"}}},
            "inferencePool: pickers read requests of the OpenAI API. Write openai: {enabled: true}",
        ),
        (
            {"inferencePool": {"enabled": True}, "openai": {"enabled": True}},
            "inferencePool.endpointPicker.name: name the Service",
        ),
        ({"fleet": {"enabled": True}}, "fleet.wanted: write which models the fleet should serve"),
        (
            {"fleet": {"enabled": True, "wanted": {"a": 1}}, "serverArgs": ["--model-control-mode=poll"]},
            "serverArgs: --model-control-mode=poll: with fleet.enabled servers load what",
        ),
        (
            {"fleet": {"enabled": True, "wanted": {"a": 1}}, "auth": {"secretName": "a"}},
            "fleet.keySecret.name: with auth, the controller must show a key",
        ),
        (
            {"fleet": {"enabled": True, "wanted": {"a": 1}}, "tls": {"secretName": "a"}},
            "tls.http: the controller asks servers that it finds over plain HTTP.",
        ),
        (
            {"fleet": {"enabled": True, "wanted": {"a": 1}}, "service": {"headless": {"enabled": False}}},
            "service.headless.enabled: the controller finds the servers by that Service.",
        ),
        ({"tags": {"openshift": True}}, "tags.openshift: the server runs as any user"),
    ],
)
def test_values_that_contradict_each_other_are_told_what_to_write(changes, said):
    (line,) = refusal(merged(LEAST, changes))
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"replicas": 2}, ["'replicas'"]),
        ({"image": {"imageNmae": "x"}}, ["/image", "'imageNmae'"]),
        ({"image": {"serverCommand": "bash"}}, ["/image/serverCommand", "'tritonserver'"]),
        ({"replicaCount": "two"}, ["/replicaCount", "integer"]),
        ({"service": {"type": "ExternalName"}}, ["/service/type", "'NodePort'"]),
        ({"image": {"digest": "latest"}}, ["/image/digest", "sha256"]),
        ({"keda": {"minReplicas": 0}}, ["/keda/minReplicas"]),
    ],
)
def test_names_and_types_that_are_not_there_are_refused_by_their_place(changes, named):
    (said,) = refusal(merged(LEAST, changes))
    assert all(each in said for each in named), said


def test_the_schema_knows_every_value_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    triton = {
        name for name, each in schema["properties"].items() if "Triton's" in each.get("description", "")
    }
    assert set(schema["properties"]) == set(values) | triton | {"global"}
    for name, value in values.items():
        if schema["properties"][name].get("additionalProperties") is False:
            assert set(schema["properties"][name]["properties"]) >= set(value), name


@pytest.mark.parametrize(
    "block", [each for each in blocks() if each.chart == "tritium"], ids=lambda b: str(b.line)
)
def test_values_of_the_page_are_taken(block):
    assert servers(documents(merged(LEAST, block.values)))


def test_a_release_called_tritium_is_called_so_once():
    assert servers(documents(LEAST, release="tritium"))["metadata"]["name"] == "tritium"


def test_notes_say_where_it_serves():
    notes = next(text for name, text in rendered(values_of("routed")).items() if name.endswith("NOTES.txt"))
    assert "https://demo-tritium.models:8000" in notes
    assert "dns:///demo-tritium-headless.models:8001" in notes
