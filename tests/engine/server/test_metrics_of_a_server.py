"""The metrics port of a real server: promtool reads it, and no client can make it grow."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2, service_pb2_grpc

from actors.serving.families import MOST_FAILED
from actors.serving.policy.tallies import SHOWN
from engine.observability.gpus import FAMILIES as OF_GPUS
from tests.house.metrics import SECTIONS, SPLIT
from tests.support.operators import DOUBLE_CONFIG, clean_environ, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

CACHED = DOUBLE_CONFIG + "response_cache { enable: true }\n"
SHARED = (
    DOUBLE_CONFIG
    + """
metric_tags { key: "team" value: "vision" }
parameters { key: "tritium.fairness" value { string_value: '{"tenant": {"header": "x-tenant"}}' } }
model_metrics { metric_control: [ {
  metric_identifier { family: "nv_inference_first_response_histogram_ms" }
  histogram_options { buckets: [ 1, 1000 ] } } ] }
"""
)
TENANT_FAMILIES = 4
HUNDRED = range(100)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    write_model(folder / "models", "cached", config=CACHED)
    write_model(folder / "models", "shared", config=SHARED)
    flags = (
        f"--model-repository={folder / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--cache-config=local,size=1048576",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=histogram_latencies=true",
        "--allow-gpu-metrics=True",
    )
    with serving(folder, *flags) as server:
        server.wait_ready()
        yield server


def infer(server, model, value, **headers):
    with tritonclient.http.InferenceServerClient(server.address()) as client:
        given = tritonclient.http.InferInput("X", [1], "FP32")
        given.set_data_from_numpy(np.array([value], np.float32))
        client.infer(model, [given], headers=headers)


def scrape(server):
    return server.get("/metrics", service="Metrics Service")[2].decode()


def series(text):
    """The name and the labels of each series, but of those that begin whenever the server finds the time."""
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name not in {"tritium_events", "tritium_model_resident_bytes"}
    }


def families(text):
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


@pytest.fixture(scope="module")
def warm(server):
    """The server once every model has answered, so that its series are all there."""
    infer(server, "cached", 1)
    infer(server, "cached", 1)
    infer(server, "shared", 1)
    return server


def test_promtool_finds_nothing_but_tritons_names_without_suffix(warm):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=scrape(warm).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    complaints = (done.stdout + done.stderr).decode().splitlines()
    # The style of Triton's names is Triton's.
    assert [line for line in complaints if not re.match(r"nv_\w+ ", line)] == []
    assert done.returncode in {0, 3}  # 3: read, with remarks on style


def test_every_family_is_on_the_page_of_metrics(warm):
    listed = {family.name: family.kind for section in SECTIONS for family in section.families}
    told = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape(warm), re.MULTILINE))
    assert {name: kind for name, kind in told.items() if listed.get(name) != kind} == {}


def test_each_series_has_the_labels_that_the_page_tells(warm):
    found: dict[str, set[str]] = {}
    for name, labels in series(scrape(warm)):
        found.setdefault(name, set()).update(key for key, _ in labels)
    for section in SECTIONS:
        for family in section.families:
            known = {each for each in f"{section.labels}, {SPLIT.get(family.name, '')}".split(", ") if each}
            for suffix in ("", "_total", "_bucket"):
                told = found.get(f"{family.name}{suffix}", known) - {"_team"}
                assert told - {"quantile"} == known, family.name


def test_every_answer_is_in_the_durations(warm):
    counts = dict(
        re.findall(
            r'^tritium_request_duration_seconds_count{model="cached",phase="(\w+)",version="1"} (\d+)$',
            scrape(warm),
            re.MULTILINE,
        )
    )
    assert counts == {
        "queue": "2",
        "compute_input": "1",
        "infer": "1",
        "output": "1",
        "first_response": "2",
        "request": "2",
    }


def test_the_phases_of_a_load_are_told(warm):
    told = re.findall(
        r'^tritium_model_load_phase_seconds{model="cached",phase="(\w+)",version="1"} \d\S*$',
        scrape(warm),
        re.MULTILINE,
    )
    assert told == ["loading", "probing", "reading", "starting", "waiting", "warming_up"]


def test_a_model_has_the_buckets_of_its_configuration(warm):
    bounds = re.findall(
        r'^nv_inference_first_response_histogram_ms_bucket{_team="vision",le="(\S+)",model="shared"',
        scrape(warm),
        re.MULTILINE,
    )
    assert bounds == ["1", "1000", "+Inf"]


def test_without_a_gpu_the_server_serves_and_says_why_it_tells_of_none(warm):
    told = families(scrape(warm)) & {family.name for family in OF_GPUS}
    if told:
        pytest.skip("there is a GPU here")
    reason = warm.wait_said(r'gpus_unavailable reason=\'(.+?)\'"')[1]
    assert re.search(rf"gpu_metrics +off: {re.escape(reason)}\n", warm.said)


def test_triton_server_cpu_only_is_heard(tmp_path):
    write_model(tmp_path / "models")
    environ = clean_environ(TRITON_SERVER_CPU_ONLY="1")
    flags = (f"--model-repository={tmp_path / 'models'}", "--allow-cpu-metrics=false")
    with serving(tmp_path / "server", *flags, environ=environ) as server:
        server.wait_ready()
        server.wait_said(r"gpu_metrics +off: TRITON_SERVER_CPU_ONLY is set\n")
        assert "gpus_unavailable" not in server.said
        text = scrape(server)
        assert "nv_cpu" not in text
        assert "nv_pinned_memory_pool_total_bytes 0\n" in text


# -- what clients send


def ask(server, path, body=None, **headers):
    request = urllib.request.Request(f"http://{server.address()}{path}", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def attack_over_http(server):
    body = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
    for number in HUNDRED:
        assert ask(server, f"/v2/models/unknown{number}/infer", body) == 404
        assert ask(server, f"/v2/models/shared/versions/{number + 2}/infer", body) == 404
        assert ask(server, f"/v2/nowhere/{number}") == 404
        assert ask(server, f"/v2/repository/models/missing{number}/load", b"{}") >= 400
        wrong = body.replace(b"FP32", b"FX%d" % number)
        assert ask(server, "/v2/models/shared/infer", wrong) >= 400
        credentials = {"authorization": f"Bearer {number}", "x-request-id": str(number)}
        assert ask(server, "/v2/models/shared/infer", body, **credentials) == 200
        odd = {"id": f"r{number}", "parameters": {f"p{number}": number}}
        named = json.dumps({**json.loads(body), **odd}).encode()
        assert ask(server, "/v2/models/cached/infer", named) == 200


def attack_over_grpc(server):
    with grpc.insecure_channel(server.address("GRPCInferenceService")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for number in HUNDRED:
            for request in (
                service_pb2.ModelInferRequest(model_name=f"none{number}"),
                service_pb2.ModelInferRequest(model_name="shared", model_version=str(number + 2)),
                service_pb2.ModelInferRequest(model_name="shared", id=f"r{number}"),
            ):
                with pytest.raises(grpc.RpcError):
                    stub.ModelInfer(request, metadata=[("x-odd", str(number))], timeout=20)
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/inference.GRPCInferenceService/Odd{number}")(b"", timeout=20)


def test_names_that_clients_make_up_are_in_no_label(warm):
    before = series(scrape(warm))
    attack_over_http(warm)
    attack_over_grpc(warm)
    after = series(scrape(warm))
    made_up = re.compile(r"(unknown|missing|none|odd|Odd|r|p|Bearer )\d+|nowhere")
    assert not {labels for _, labels in after for _, value in labels if made_up.fullmatch(value)}
    grown = {name for name, labels in after - before}
    assert not grown


@pytest.mark.long
def test_uploads_that_fail_are_told_by_name_up_to_a_bound(warm):
    before = series(scrape(warm))
    body = json.dumps({"parameters": {"config": json.dumps({"backend": "nonesuch"}), "file:1/model.py": ""}})
    for number in range(MOST_FAILED + 20):
        assert ask(warm, f"/v2/repository/models/upload{number}/load", body.encode()) >= 400
    grown = series(scrape(warm)) - before
    assert {name for name, _ in grown} == {"tritium_model_load_failures_total"}
    assert len(grown) == MOST_FAILED + 1


def test_of_tenants_some_are_told_by_name_and_the_rest_together(warm):
    before = series(scrape(warm))
    for number in range(5 * SHOWN):
        infer(warm, "shared", 1, **{"x-tenant": f"tenant{number}"})
    grown = series(scrape(warm)) - before
    names = {dict(labels)["tenant"] for _, labels in grown}
    assert len(names) <= SHOWN + 1
    assert len(grown) <= TENANT_FAMILIES * (SHOWN + 1)
