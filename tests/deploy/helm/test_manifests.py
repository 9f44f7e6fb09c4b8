"""What the chart makes, as it is kept in `golden/`: promises to Kubernetes, Prometheus and the server."""

import json
import shutil
import subprocess
import tomllib

import pytest
import yaml

from engine.cli.fleet.options import fleet_parser
from engine.fleet.document.reading import read_wanted
from engine.settings.scanning import scan_argv
from engine.settings.settings import BY_NAME
from tests.deploy.helm.charts import BOARD, CHART, ROOT, SETS, container, golden, one, servers, values_of
from tests.house.board.declared import families
from tests.house.board.panels import BOARD as BOARD_FILE
from tests.house.board.panels import RULES
from tests.house.board.promql import family_of, labels_in, metrics_in

GOLDEN = {name: golden(name) for name in SETS}
PODS = [
    (name, each["metadata"]["name"], each["spec"]["template"]["spec"])
    for name, every in GOLDEN.items()
    for each in every
    if each["kind"] == "Deployment"
]
SCALED = [(name, each) for name, every in GOLDEN.items() for each in every if each["kind"] == "ScaledObject"]
AT_PODS = {"namespace", "app_kubernetes_io_instance"}
"""Labels that the PodMonitor adds to every series."""


def args_of(name):
    return container(GOLDEN[name])["args"]


def test_there_are_ten_sets_and_each_has_its_manifests():
    assert len(SETS) >= 10
    assert all(GOLDEN.values())


def test_the_chart_has_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize(("_set", "_name", "pod"), PODS, ids=[f"{s} {n}" for s, n, _ in PODS])
def test_every_pod_may_do_as_little_as_it_can(_set, _name, pod):
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in pod["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert each["resources"]["limits"]["memory"]
        mounted = {mount["name"]: mount for mount in each["volumeMounts"]}
        assert set(mounted) <= {volume["name"] for volume in pod["volumes"]}
        assert {name for name, mount in mounted.items() if not mount.get("readOnly")} <= {
            "tmp",
            "cache",
            "shm",
        }
        assert mounted["tmp"]["mountPath"] == "/tmp"


@pytest.mark.parametrize("name", [name for name in SETS if name != "openshift"])
def test_pods_run_as_the_user_of_the_image(name):
    context = servers(GOLDEN[name])["spec"]["template"]["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (1000, 1000, 1000)


def test_openshift_chooses_the_user():
    context = servers(GOLDEN["openshift"])["spec"]["template"]["spec"]["securityContext"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context)


@pytest.mark.parametrize("name", SETS)
def test_probes_ask_whether_it_lives_and_whether_it_is_ready(name):
    server = container(GOLDEN[name])
    asked = {probe: server[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
    assert [each["path"] for each in asked.values()] == [
        "/v2/health/live",
        "/v2/health/live",
        "/v2/health/ready",
    ]
    assert {each["port"] for each in asked.values()} == {"http"}
    secure = "--http-use-ssl=true" in server["args"]
    assert {each.get("scheme", "HTTP") for each in asked.values()} == {"HTTPS" if secure else "HTTP"}


@pytest.mark.parametrize("name", SETS)
def test_a_pod_has_time_for_its_drain(name):
    pod = servers(GOLDEN[name])["spec"]["template"]["spec"]
    command, *flags = args_of(name)
    words = scan_argv(flags, BY_NAME)
    delay, timeout = (float(words[flag][-1]) for flag in ("drain-delay-secs", "exit-timeout-secs"))
    slept = container(GOLDEN[name]).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert command == "tritonserver"
    assert pod["terminationGracePeriodSeconds"] == max(60, slept + delay + timeout + 12)
    assert (slept > 0) != (delay > 0)


@pytest.mark.parametrize("name", SETS)
def test_selectors_find_the_servers_and_nothing_else(name):
    every = GOLDEN[name]
    labels = servers(every)["spec"]["template"]["metadata"]["labels"]
    fleet = [each for each in every if each["metadata"].get("name", "").endswith("-fleet")]
    others = [
        each["spec"]["template"]["metadata"]["labels"] for each in fleet if each["kind"] == "Deployment"
    ]
    selectors = [each["spec"]["selector"] for each in every if each["kind"] == "Service"]
    for kind in ("PodDisruptionBudget", "PodMonitor", "InferencePool"):
        selectors += [each["spec"]["selector"]["matchLabels"] for each in every if each["kind"] == kind]
    selectors += [
        each["spec"]["podSelector"]["matchLabels"] for each in every if each["kind"] == "NetworkPolicy"
    ]
    selectors.append(servers(every)["spec"]["selector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not any(selector.items() <= other.items() for other in others)


@pytest.mark.parametrize("name", SETS)
def test_services_name_ports_of_the_container(name):
    ports = {port["name"]: port["containerPort"] for port in container(GOLDEN[name])["ports"]}
    for service in (each["spec"] for each in GOLDEN[name] if each["kind"] == "Service"):
        assert {port["targetPort"]: port["port"] for port in service["ports"]}.items() <= ports.items()
    assert one(GOLDEN[name], "Service", "-headless")["spec"]["clusterIP"] == "None"


def test_models_on_volumes_are_where_the_server_looks():
    for name in ("claim", "nfs", "monitored", "routed"):
        assert "--model-repository=/models" in args_of(name)
        assert "models" in {mount["name"] for mount in container(GOLDEN[name])["volumeMounts"]}


@pytest.mark.parametrize(
    ("name", "variables", "flags"),
    [
        ("s3", {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_DEFAULT_REGION": "eu-west-1"}, []),
        ("google", {"GOOGLE_APPLICATION_CREDENTIALS": "key.json"}, []),
        (
            "azure",
            {"TRITON_CLOUD_CREDENTIAL_PATH": "credentials.json"},
            ["--model-repository-file=/etc/tritium/storage/repositories"],
        ),
        ("openshift", {"TRITON_CLOUD_CREDENTIAL_PATH": "credentials.json"}, []),
    ],
)
def test_keys_of_storage_are_files_of_a_secret(name, variables, flags):
    environ = {each["name"]: each.get("value") for each in container(GOLDEN[name])["env"]}
    for variable, key in variables.items():
        secret = variable != "AWS_DEFAULT_REGION"
        assert environ[variable] == (f"/etc/tritium/storage/{key}" if secret else key)
    assert set(flags) <= set(args_of(name))
    assert not [
        each for each in container(GOLDEN[name])["env"] if "secretKeyRef" in each.get("valueFrom", {})
    ]


def test_each_server_has_the_name_of_its_pod():
    for every in GOLDEN.values():
        named = {each["name"]: each for each in container(every)["env"]}
        assert named["TRITIUM_REPLICA_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_an_autoscaler_alone_says_how_many_there_are():
    for every in GOLDEN.values():
        scaled = [each for each in every if each["kind"] in {"HorizontalPodAutoscaler", "ScaledObject"}]
        assert ("replicas" in servers(every)["spec"]) == (not scaled)
        for each in scaled:
            assert each["spec"]["scaleTargetRef"]["name"] == servers(every)["metadata"]["name"]


def test_scaling_is_by_waiting_requests_and_queue_time():
    metrics = one(GOLDEN["openshift"], "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert [each.get("pods", {}).get("metric", {}).get("name") for each in metrics] == [
        "tritium_requests_pending",
        "avg_time_queue_us",
        None,
    ]


@pytest.mark.parametrize(("_name", "scaled"), SCALED)
def test_queries_of_keda_read_metrics_that_exist(_name, scaled):
    known = families()
    for trigger in scaled["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        assert {each for each in metrics_in(query) if family_of(each, known) is None} == set()
        assert labels_in(query) == AT_PODS
        assert 'namespace="models",app_kubernetes_io_instance="demo"' in query


def test_prometheus_calls_the_servers_as_the_rules_and_the_board_do():
    (endpoint,) = one(GOLDEN["monitored"], "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert {"targetLabel": "job", "replacement": "tritium"} in endpoint["relabelings"]
    assert "instance" in {each["targetLabel"] for each in endpoint["relabelings"]}


def test_the_alert_rules_are_those_of_prometheus():
    rule = one(GOLDEN["monitored"], "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_the_chart_packs_the_rules_and_the_board_themselves():
    for name, source in (("alerts.yml", RULES), ("board.json", BOARD_FILE)):
        assert (CHART / "files" / name).is_symlink()
        assert (CHART / "files" / name).resolve() == source
    assert one(GOLDEN["monitored"], "ConfigMap")["data"]["tritium.json"] == BOARD
    assert json.loads(BOARD_FILE.read_text())


def test_the_fleet_has_one_controller_that_reads_endpoints():
    every = GOLDEN["fleet"]
    controller = one(every, "Deployment", "-fleet")["spec"]
    (fleet,) = controller["template"]["spec"]["containers"]
    (role,) = one(every, "Role")["rules"]
    assert (controller["replicas"], controller["strategy"]) == (1, {"type": "Recreate"})
    command, *words = fleet["args"]
    options = fleet_parser().parse_args(words[1:])
    assert (command, words[0], options.what) == ("tritium", "fleet", "run")
    assert options.file == "/etc/tritium/fleet/fleet.yaml"
    assert options.name == one(every, "Deployment", "-fleet")["metadata"]["name"]
    assert role == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    wanted = read_wanted("fleet.yaml", one(every, "ConfigMap", "-fleet")["data"]["fleet.yaml"])
    assert wanted.discovery == {"endpointslices": {"service": "demo-tritium-headless"}}
    assert {each.model for each in wanted.wishes} == set(values_of("fleet")["fleet"]["wanted"]["models"])
    assert {"--model-control-mode=explicit", "--await-fleet=true"} <= set(args_of("fleet"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here (Debian: prometheus)")
@pytest.mark.system
def test_promtool_takes_the_rules_of_the_chart_and_the_queries_of_keda(tmp_path):
    groups = one(GOLDEN["monitored"], "PrometheusRule")["spec"]["groups"]
    queries = [trigger["metadata"]["query"] for _, each in SCALED for trigger in each["spec"]["triggers"]]
    asked = [{"record": f"keda:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [*groups, {"name": "keda", "rules": asked}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", "rules.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
