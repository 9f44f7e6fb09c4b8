"""What a scrape shows, read back by Prometheus' own parser.

The contract is observability.md section 1 and http.md section 11.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from actors.serving.policy.fairness import TenantShare
from actors.serving.policy.slo import SloSample
from actors.serving.routing.router import Router
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.families import Labels, once
from actors.values.requests import InferRequest
from actors.values.specs import Direct, Ensemble, InstanceSpec, ModelSpec
from engine.observability import system
from engine.observability.metrics import Exposition, MetricsApp, number
from engine.observability.models import ModelSample, model_blocks, new_statistics
from engine.observability.system import (
    LoopLag,
    MachineSampler,
    ProcessSample,
    cpu_utilization,
    measure_loop_lag,
    sample_process,
)
from engine.server.version_tree import ModelSubtrees
from engine.settings.reporting import MetricsSettings
from protocols.grpc.listener import GrpcStatistics, grpc_blocks
from protocols.http.origins import OriginPolicy
from protocols.transport.listening import ConnectionCounts, connection_blocks
from tests.support.examples import examples
from tests.support.ports import NoPort

SPEC = ModelSpec(
    name="add",
    version=2,
    platform="python",
    backend="python",
    max_batch_size=0,
    inputs=(),
    outputs=(),
    scheduling=Direct(),
    instances=(),
    model_directory=Path(),
    version_directory=Path(),
    artifact="model.py",
    config_json=b"{}",
)
PROCESS = ProcessSample(cpu_seconds=1.5, resident_bytes=4096, open_descriptors=7, most_descriptors=1024)


def exposition(*models, settings=None):
    return Exposition(
        lambda: model_blocks(models, settings or MetricsSettings(), lambda: 0),
        lambda: once(system.POOLS, None),
        lambda: once(system.PROCESS, PROCESS),
    )


def told(blocks):
    """The text of these blocks."""
    return Exposition(lambda: blocks).text()


def series(text):
    """Every series as {(name, labels): value}; the parser adds the suffix `_total` to counters without it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text, name, **labels):
    found = [v for (n, ls), v in series(text).items() if n == name and set(labels.items()) <= ls]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def served():
    """The contract's example: a batch-1 and a batch-8 request in one batch, and a failure of each kind."""
    statistics = ModelStatistics()
    statistics.succeeded(1, 1_999, 2_000, 3_000, 4_000, 20_000)
    statistics.succeeded(8, 1_999, 2_000, 3_000, 4_000, 20_000)
    statistics.batch_executed(9, 2_000, 3_000, 4_000, 1)
    for reason in FailureReason:
        statistics.failed(reason, 1)
    statistics.pending = 3
    return statistics


def sample(statistics=None, **options):
    return ModelSample(name="add", version=2, statistics=statistics or ModelStatistics(), **options)


# -- families


def test_a_loaded_model_has_all_its_series_at_zero():
    reasons = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    names = ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")
    assert set(exposition(sample()).text().splitlines()) >= {
        *(f'nv_inference_request_failure{{model="add",reason="{each}",version="2"}} 0' for each in reasons),
        *(f'{name}{{model="add",version="2"}} 0' for name in names),
    }


def test_counters_bear_tritons_names_without_suffix():
    text = exposition(sample(served())).text()
    assert (
        '# TYPE nv_inference_request_success counter\nnv_inference_request_success{model="add",version="2"} 2\n'
        in text
    )
    assert "nv_inference_request_success_total" not in text
    assert "_created" not in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nv_inference_request_success_total", 2),
        ("nv_inference_count_total", 9),
        ("nv_inference_exec_count_total", 1),
        ("nv_inference_request_duration_us_total", 40),
        ("nv_inference_queue_duration_us_total", 3),
        ("nv_inference_compute_input_duration_us_total", 4),
        ("nv_inference_compute_infer_duration_us_total", 6),
        ("nv_inference_compute_output_duration_us_total", 8),
        ("nv_inference_pending_request_count", 3),
        ("nv_model_load_duration_secs", 0.25),
        ("tritium_queue_depth", 5),
        ("tritium_queue_age_seconds", 1.5),
    ],
)
def test_each_family_shows_its_own_count(name, expected):
    text = exposition(sample(served(), load_duration=0.25, queue_depth=5, queue_age=1.5)).text()
    assert value(text, name, model="add", version="2") == expected


@pytest.mark.parametrize("reason", [reason.value for reason in FailureReason])
def test_each_failure_reason_is_counted_apart(reason):
    text = exposition(sample(served())).text()
    assert value(text, "nv_inference_request_failure_total", reason=reason) == 1


def test_what_containment_did_is_counted():
    counted = {
        "restarts": "tritium_instance_restarts_total",
        "quarantined": "tritium_requests_quarantined_total",
        "bisected": "tritium_requests_bisected_total",
        "retried": "tritium_requests_retried_total",
        "abandoned_threads": "tritium_threads_abandoned_total",
        "reply_violations": "tritium_reply_violations_total",
    }
    statistics = ModelStatistics()
    for count, field in enumerate(counted, 1):
        setattr(statistics, field, count)
    statistics.deaths.update({"oom": 1, "signal 11": 2})
    text = exposition(sample(statistics, instances={"ready": 1, "restarting": 1})).text()
    assert [value(text, name) for name in counted.values()] == [1, 2, 3, 4, 5, 6]
    assert value(text, "tritium_worker_deaths_total", reason="signal 11") == 2
    assert value(text, "tritium_instances", state="ready") == 1


def test_without_counter_latencies_counters_stay_at_zero_and_durations_vanish():
    text = exposition(sample(served()), settings=MetricsSettings(counter_latencies=False)).text()
    names = ("request_success", "count", "exec_count")
    assert [value(text, f"nv_inference_{name}_total") for name in names] == [0, 0, 0]
    assert value(text, "nv_inference_request_failure_total", reason="BACKEND") == 0
    assert "_duration_us" not in text
    assert value(text, "nv_inference_pending_request_count") == 3


def test_the_histogram_and_summaries_are_off_by_default():
    statistics = new_statistics(MetricsSettings())
    assert (statistics.summaries, statistics.first_response) == (None, None)
    text = exposition(sample(statistics)).text()
    assert not re.search("histogram|summary", text)


def test_the_histogram_counts_up_to_each_bound():
    settings = MetricsSettings(histogram_latencies=True)
    statistics = new_statistics(settings)
    for ms in (50, 100, 400, 9000):
        statistics.succeeded(1, 0, 0, 0, 0, ms * 1_000_000)
    text = exposition(sample(statistics), settings=settings).text()
    buckets = {
        bound: value(text, "nv_inference_first_response_histogram_ms_bucket", le=bound)
        for bound in ("100", "500", "2000", "5000", "+Inf")
    }
    assert buckets == {"100": 2, "500": 3, "2000": 3, "5000": 3, "+Inf": 4}
    assert value(text, "nv_inference_first_response_histogram_ms_count") == 4
    assert value(text, "nv_inference_first_response_histogram_ms_sum") == 9550


def test_summaries_give_the_quantiles_that_were_asked_for():
    settings = MetricsSettings(summary_latencies=True, summary_quantiles={0.5: 0.01, 0.99: 0.001})
    statistics = new_statistics(settings)
    for us in range(1, 101):
        statistics.succeeded(1, us * 1000, 0, 0, 0, us * 2000)
    text = exposition(sample(statistics), settings=settings).text()
    assert value(text, "nv_inference_queue_summary_us", quantile="0.5") == pytest.approx(50, abs=2)
    assert value(text, "nv_inference_request_summary_us", quantile="0.99") == pytest.approx(198, abs=4)
    assert value(text, "nv_inference_request_summary_us_count") == 100
    assert value(text, "nv_inference_queue_summary_us_sum") == 5050


def test_a_summary_without_observations_is_not_a_number():
    settings = MetricsSettings(summary_latencies=True)
    text = exposition(sample(new_statistics(settings)), settings=settings).text()
    assert math.isnan(value(text, "nv_inference_request_summary_us", quantile="0.5"))


def test_every_series_of_a_family_stands_in_one_block():
    text = exposition(sample(served()), ModelSample(name="b", version=1, statistics=served())).text()
    heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads))
    assert re.findall(r"^# HELP (\S+)", text, re.MULTILINE) == heads


def test_grpc_listeners_are_counted_together():
    ports = [
        GrpcStatistics(
            accepted=6 * n,
            connections=5 * n,
            streams=4 * n,
            pending=3 * n,
            violations=2 * n,
            floods=n,
            draining=False,
        )
        for n in (10, 1)
    ]
    text = told(grpc_blocks(ports))
    assert "# TYPE tritium_grpc_connections gauge\ntritium_grpc_connections 55\n" in text
    assert "# TYPE tritium_grpc_accepted_total counter\ntritium_grpc_accepted_total 66\n" in text
    names = ("streams", "pending_bytes", "violations_total", "floods_total")
    assert [value(text, f"tritium_grpc_{name}") for name in names] == [44, 33, 22, 11]


def test_without_grpc_nothing_is_told_of_it():
    assert not told(grpc_blocks([]))


def test_without_models_the_server_still_has_metrics():
    text = exposition().text()
    assert "model=" not in text
    assert value(text, "nv_pinned_memory_pool_total_bytes") == 0
    assert value(text, "process_open_fds") == 7


# -- labels and the format


def test_labels_are_alphabetical_and_tags_bear_an_underscore():
    text = exposition(sample(tags={"team": "vision", "an-odd key": "x"})).text()
    assert 'nv_inference_count{_an_odd_key="x",_team="vision",model="add",version="2"} 0\n' in text


@settings(max_examples=examples(50))
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    )
)
def test_no_tag_can_break_the_format(tags):
    text = exposition(sample(tags=tags)).text()
    expected = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", key).lstrip("_"): word for key, word in tags.items()}
    labels = next(dict(ls) for (name, ls) in series(text) if name == "nv_inference_count_total")
    assert labels == {**expected, "model": "add", "version": "2"}


@pytest.mark.parametrize(
    ("given_value", "text"),
    [(0, "0"), (12345678901234567890, "12345678901234567890"), (0.5, "0.5"), (math.inf, "+Inf"), (-math.inf, "-Inf"),
     (math.nan, "NaN")],
)  # fmt: skip
def test_numbers_are_written_as_prometheus_reads_them(given_value, text):
    assert number(given_value) == text


def test_no_labels_need_no_braces():
    assert not Labels({}).text


# -- the machine


@pytest.fixture
def proc(tmp_path):
    def write(cpu, available=250):
        (tmp_path / "stat").write_text(f"cpu  {' '.join(map(str, cpu))}\ncpu0 1 2 3\n")
        (tmp_path / "meminfo").write_text(f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
        return tmp_path

    return write


def test_cpu_use_is_the_share_not_spent_idle_or_waiting():
    assert cpu_utilization([0] * 8, [10, 0, 10, 60, 20, 0, 0, 0]) == pytest.approx(0.2)
    assert cpu_utilization([5] * 8, [5] * 8) == 0.0


def test_the_machine_is_sampled_at_most_once_an_interval(proc):
    now = 100.0
    sampler = MachineSampler(interval=2.0, clock=lambda: now, proc=proc([0] * 10))
    proc([50, 0, 0, 50, 0, 0, 0, 0, 0, 0])
    first = sampler.sample()
    assert (first.cpu_utilization, first.memory_total, first.memory_used) == (0.5, 1_024_000, 768_000)
    proc([50, 0, 0, 150, 0, 0, 0, 0, 0, 0])
    now = 101.9
    assert sampler.sample() is first
    now = 102.0
    assert sampler.sample().cpu_utilization == 0.0


def test_a_machine_has_its_metrics(proc):
    sampler = MachineSampler(interval=2.0, clock=lambda: 0.0, proc=proc([0] * 10))
    text = told(once(system.MACHINE, sampler.sample()))
    assert value(text, "nv_cpu_memory_total_bytes") == 1_024_000
    assert value(text, "nv_cpu_memory_used_bytes") == 768_000
    assert value(text, "nv_cpu_utilization") == 0


def test_this_kernel_answers_what_is_asked_of_it():
    process = sample_process()
    assert process.resident_bytes > 1_000_000
    assert 0 < process.open_descriptors <= process.most_descriptors
    machine = MachineSampler(interval=2.0, clock=lambda: 0.0).sample()
    assert 0 < machine.memory_used < machine.memory_total


# -- loop lag


def test_loop_lag_remembers_the_worst_of_late():
    lag = LoopLag()
    lag.record(0.5, 100.0)
    lag.record(0.1, 101.0)
    assert (lag.last, lag.highest) == (0.1, 0.5)
    lag.record(0.2, 131.0)
    assert lag.highest == 0.5
    lag.record(0.2, 162.0)
    assert lag.highest == 0.2


def test_loop_lag_has_two_series():
    lag = LoopLag()
    lag.record(0.5, 100.0)
    lag.record(0.25, 101.0)
    text = told(once(system.LAG, lag))
    assert value(text, "tritium_loop_lag_seconds", stat="last") == 0.25
    assert value(text, "tritium_loop_lag_seconds", stat="max") == 0.5


async def test_a_timer_that_fires_late_is_noticed(autojump_clock, nursery):
    lag = LoopLag()
    supervisor = Supervisor([ChildSpec("loop-lag", lambda ctx: measure_loop_lag(ctx, lag, interval=0.1))])
    await nursery.start(supervisor.serve)
    await trio.sleep(1)
    assert lag.highest == pytest.approx(0.0, abs=1e-6)
    autojump_clock.jump(0.75)  # as if something had held the loop for so long
    await trio.sleep(0.1)
    assert lag.highest == pytest.approx(0.75, abs=0.11)
    supervisor.stop()


# -- the port


async def ask(app, method="GET", path="/metrics", headers=()):
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    start, body = sent
    return start["status"], dict(start["headers"]), body["body"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
async def test_get_metrics_answers_with_prometheus_text(path):
    status, headers, body = await ask(MetricsApp(exposition(sample(served()))), path=path)
    assert status == 200
    assert headers[b"content-type"] == b"text/plain; charset=utf-8"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert value(body.decode(), "nv_inference_count_total") == 9


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        *(("GET", path, 200) for path in ("/", "/v2", "/metrics/x")),
        *((method, "/metrics", 405) for method in ("POST", "HEAD", "PUT")),
    ],
)
async def test_any_other_path_is_an_empty_success_and_any_other_method_is_refused(method, path, expected):
    status, _, body = await ask(MetricsApp(exposition()), method=method, path=path)
    assert (status, body) == (expected, b"")


async def test_a_page_reads_the_metrics_at_an_address_or_a_trusted_name_only():
    app = MetricsApp(exposition(), pages=OriginPolicy(trusted_hosts=frozenset({"models.example"})))
    for host, expected in ((b"10.0.0.7:8002", 200), (b"models.example", 200), (b"evil.example", 403)):
        page = [(b"host", host), (b"sec-fetch-site", b"same-origin")]
        assert (await ask(app, headers=page))[0] == expected
        assert (await ask(app, headers=page[:1]))[0] == 200  # Prometheus


async def test_a_scrape_lets_the_loop_go_on(nursery):
    turns = 0

    async def turn():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    nursery.start_soon(turn)
    await ask(MetricsApp(exposition(sample())))
    assert turns > 10
    nursery.cancel_scope.cancel()


async def test_a_name_that_is_no_text_does_not_break_the_scrape():
    model = ModelSample(name="\udcff", version=1, statistics=ModelStatistics())
    status, _, body = await ask(MetricsApp(exposition(model)))
    assert status == 200
    assert b'model="?"' in body


async def test_other_protocols_are_a_bug_of_the_listener():
    with pytest.raises(ValueError, match="websocket"):
        await MetricsApp(exposition())({"type": "websocket"}, None, None)  # type: ignore[arg-type]


def test_a_custom_histogram_is_written_with_its_own_bounds():
    statistics = new_statistics(MetricsSettings(histogram_latencies=True), (0.5, 20.0, 1234567.5))
    text = exposition(sample(statistics)).text()
    assert re.findall(r'histogram_ms_bucket\{le="(.*?)"', text) == ["0.5", "20", "1234567.5", "+Inf"]


def made_subtrees(router, gpu_uuid=lambda _: "", **metrics):
    return ModelSubtrees(
        Supervisor(),
        router,
        cast("Any", None),
        log=lambda event, **keys: None,
        metrics=MetricsSettings(**metrics),
        stop_within=1.0,
        gpu_uuid=gpu_uuid,
    )


@pytest.mark.parametrize(
    ("devices", "uuid"),
    [
        ([("GPU", 1), ("GPU", 1)], "GPU-b"),
        ([("GPU", 0), ("GPU", 1)], ""),
        ([("GPU", 0), ("CPU", 0)], ""),
        ([("GPU", 7)], ""),
        ([("CPU", 0)], ""),
        ([("MODEL", 0)], ""),
        ([], ""),
    ],
)
async def test_a_version_on_one_gpu_is_told_with_its_uuid(devices, uuid):
    router = Router()
    subtrees = made_subtrees(router, lambda device: ("GPU-a", "GPU-b")[device] if device < 2 else "")
    instances = tuple(InstanceSpec(name="i", kind=kind, device_id=device) for kind, device in devices)
    state = subtrees.make_state(replace(SPEC, instances=instances))
    router.roster.serve(state.spec.key, {state.spec.version: state})
    assert [model.gpu_uuid for model in subtrees.models()] == [uuid]


@pytest.mark.parametrize(("wanted", "bounds"), [(True, (5.0, 50.0)), (False, None)])
async def test_a_models_own_buckets_are_used_where_histograms_are_on(wanted, bounds):
    spec = replace(SPEC, first_response_buckets=(5.0, 50.0))
    state = made_subtrees(Router(), histogram_latencies=wanted).make_state(spec)
    histogram = state.statistics.first_response
    assert (histogram and histogram.bounds) == bounds


async def test_what_waits_for_an_ensemble_is_pending_with_its_models_only():
    router = Router()
    subtrees = made_subtrees(router)
    for scheduling, instances in ((Ensemble(steps=()), ()), (Direct(), SPEC.instances)):
        spec = replace(SPEC, name=type(scheduling).__name__, scheduling=scheduling, instances=instances)
        state = subtrees.make_state(spec)
        router.roster.serve(spec.key, {spec.version: state})
        state.queue.push(InferRequest(model_name=spec.name, reply=NoPort(), accepted_at=0.0), 0.0)
    samples = {each.name: each for each in subtrees.models()}
    assert [samples[name].statistics.pending for name in ("Ensemble", "Direct")] == [0, 1]
    assert [samples[name].queue_depth for name in ("Ensemble", "Direct")] == [1, 1]


def test_tenants_and_promises_have_series_where_a_model_has_them():
    tokens = {"prompt": 40, "generated": 2}
    share = TenantShare(requests=3, rows=6, share=0.75, refused=1, queued=2, tokens=tokens)
    slo = SloSample(
        p99=0.05,
        measured=math.nan,
        service=0.01,
        rate=100.0,
        wait=0.02,
        limit=0.045,
        refusing=True,
        delay=0.001,
        size=8,
        refused={"deadline": 0, "timeout": 1, "p99": 2},
    )
    text = exposition(sample(tenants={'a "b"': share}, slo=slo)).text()
    assert set(text.splitlines()) >= {
        'tritium_tenant_rows_total{model="add",tenant="a \\"b\\"",version="2"} 6',
        'tritium_tenant_tokens_total{kind="prompt",model="add",tenant="a \\"b\\"",version="2"} 40',
        'tritium_tenant_refused_total{model="add",tenant="a \\"b\\"",version="2"} 1',
        'tritium_tenant_queued{model="add",tenant="a \\"b\\"",version="2"} 2',
        'tritium_slo_limit_seconds{model="add",version="2"} 0.045',
        'tritium_slo_refusing{model="add",version="2"} 1',
        'tritium_slo_refused_total{model="add",reason="p99",version="2"} 2',
    }
    assert "tritium_slo_measured_p99_seconds" not in text  # nothing is known of it
    assert "tritium_slo" not in exposition(sample()).text()


def test_connections_of_one_protocol_are_counted_together():
    def counts(at):
        return ConnectionCounts(
            open=at, most=8, gave_way=2, crowded_out=3, over_address_limit=4, not_introduced=5
        )

    text = told(connection_blocks({"http": [counts(1)], "grpc": [counts(5), counts(6)]}))
    assert set(text.splitlines()) >= {
        'tritium_connections{protocol="http"} 1',
        'tritium_connections{protocol="grpc"} 11',
        'tritium_connections_limit{protocol="grpc"} 16',
        'tritium_connections_gave_way_total{protocol="http"} 2',
        'tritium_connections_turned_away_total{protocol="http",reason="busy"} 3',
        'tritium_connections_turned_away_total{protocol="grpc",reason="address"} 8',
        'tritium_connections_turned_away_total{protocol="grpc",reason="proxy_header"} 10',
    }
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families["tritium_connections_turned_away"].samples) == 6
