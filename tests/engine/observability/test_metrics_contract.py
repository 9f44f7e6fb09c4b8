"""Every family of Triton's, row by row: contract, observability.md section 1.

Its name, its type, its text, the labels that its series have, and when it is there.
"""

import re

import pytest

from actors.caching.cache import ResponseCache
from actors.caching.families import cache_blocks
from actors.caching.policy.cache import LruCache
from actors.serving.durations import DEFAULT_BOUNDS
from actors.serving.statistics import FailureReason
from actors.values.families import once
from engine.observability import system
from engine.observability.gpus import GpuSample, gpu_blocks
from engine.observability.metrics import Exposition
from engine.observability.models import ModelSample, model_blocks, new_statistics
from engine.observability.system import MachineSample
from engine.settings.reporting import MetricsSettings
from tests.support.logged import Logged

ALL_ON = MetricsSettings(histogram_latencies=True, summary_latencies=True)
MODEL = frozenset({"model", "version"})
NONE: frozenset[str] = frozenset()
GPU = frozenset({"gpu_uuid"})

# Section 1.2
COUNTERS = [
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes"),
    ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes"),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)"),
    ("nv_inference_exec_count", "Number of model executions performed (does not include cached requests)"),
]
DURATIONS = [
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
]
OF_CACHED = [
    ("nv_cache_num_hits_per_model", "Number of cache hits per model"),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model"),
    ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds"),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
    ),
]
# Section 1.3
GAUGES = [
    (
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
    ),
    ("nv_model_load_duration_secs", "Model load time in seconds"),
]
HISTOGRAM = (
    "nv_inference_first_response_histogram_ms",
    "Duration from request to first response in milliseconds",
)
REQUEST_SUMMARY = (
    "nv_inference_request_summary_us",
    "Summary of inference request duration in microseconds (includes cached requests)",
)
SUMMARIES = [
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
]
CACHED_SUMMARIES = [
    ("nv_cache_hit_summary_per_model", "Summary of cache hit counts/durations per model, in microseconds."),
    ("nv_cache_miss_summary_per_model", "Summary of cache miss counts/durations per model, in microseconds."),
]
# Section 1.5
SYSTEM = [
    ("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", NONE),
    ("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", NONE),
    ("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", NONE),
    ("nv_pinned_memory_pool_total_bytes", "gauge", "Pinned memory pool total memory size, in bytes", NONE),
    ("nv_pinned_memory_pool_used_bytes", "gauge", "Pinned memory pool used memory size, in bytes", NONE),
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", GPU),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", GPU),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", GPU),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", GPU),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", GPU),
    (
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the Triton Server started",
        GPU,
    ),
]
# Section 1.6
CACHE = [
    ("nv_cache_util", "Cache utilization [0.0 - 1.0]"),
    ("nv_cache_num_entries", "Number of responses stored in response cache"),
    ("nv_cache_num_hits", "Number of cache hits in response cache"),
    ("nv_cache_num_misses", "Number of cache misses in response cache"),
    ("nv_cache_num_lookups", "Number of cache lookups in response cache"),
    ("nv_cache_num_evictions", "Number of cache evictions in response cache"),
    ("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds"),
    ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds"),
]
TABLE = [
    *(
        (name, "counter", text, MODEL | ({"reason"} if "failure" in name else NONE))
        for name, text in COUNTERS
    ),
    *((name, "counter", text, MODEL) for name, text in [*DURATIONS, *OF_CACHED]),
    *((name, "gauge", text, MODEL) for name, text in GAUGES),
    (HISTOGRAM[0], "histogram", HISTOGRAM[1], MODEL | {"le"}),
    *(
        (name, "summary", text, MODEL | {"quantile"})
        for name, text in [REQUEST_SUMMARY, *SUMMARIES, *CACHED_SUMMARIES]
    ),
    *SYSTEM,
    *((name, "gauge", text, NONE) for name, text in CACHE),
]


def sample(name, settings=ALL_ON, **options):
    return ModelSample(name=name, version=1, statistics=new_statistics(settings), **options)


def told(*models, settings=ALL_ON):
    return Exposition(
        lambda: model_blocks(models or (sample("kept", cached=True), sample("plain")), settings, lambda: 0)
    ).text()


def whole():
    """All that a server tells that has a cache, a GPU, and everything on."""
    machine = MachineSample(cpu_utilization=0.5, memory_total=2, memory_used=1)
    gpu = GpuSample(
        uuid="GPU-1",
        utilization=0.1,
        memory_total=2,
        memory_used=1,
        power_usage=1.0,
        power_limit=2.0,
        energy=3.0,
    )
    cache = ResponseCache(near=LruCache(1 << 20), log=Logged())
    return (
        told()
        + Exposition(
            lambda: cache_blocks(cache, None),
            lambda: once(system.MACHINE, machine),
            lambda: once(system.POOLS, None),
            lambda: gpu_blocks([gpu]),
        ).text()
    )


def families(text):
    """Each family of a text: (type, help, the label sets of its series)."""
    found = {}
    for block in re.split(r"^(?=# HELP )", text, flags=re.MULTILINE)[1:]:
        head, kind, *series = block.splitlines()
        name, _, explanation = head.removeprefix("# HELP ").partition(" ")
        labels = {frozenset(re.findall(r'(\w+)="', line.rpartition(" ")[0])) for line in series}
        assert kind.startswith(f"# TYPE {name} ")
        assert name not in found
        found[name] = (kind.rpartition(" ")[2], explanation, labels)
    return found


@pytest.fixture(scope="module")
def found():
    return families(whole())


@pytest.mark.parametrize(("name", "kind", "explanation", "labels"), TABLE, ids=[row[0] for row in TABLE])
def test_a_row_of_the_contract(found, name, kind, explanation, labels):
    told_kind, told_text, told_labels = found[name]
    assert (told_kind, told_text) == (kind, explanation)
    # The sum and the count of a histogram or a summary lack its own label.
    own = {"histogram": {"le"}, "summary": {"quantile"}}.get(kind, set())
    assert told_labels == ({labels, labels - own} if own else {labels})


def test_there_is_no_other_family_of_that_prefix(found):
    assert {name for name in found if name.startswith("nv_")} == {row[0] for row in TABLE}


def models_of(text, name):
    return set(re.findall(rf'^{name}(?:_count|_bucket)?{{.*model="(\w+)"', text, re.MULTILINE))


@pytest.mark.parametrize("name", [name for name, _ in [*OF_CACHED, *CACHED_SUMMARIES]])
def test_what_is_counted_of_kept_answers_is_there_for_models_that_keep_them(name):
    assert models_of(whole(), name) == {"kept"}


def test_models_that_keep_answers_have_no_summary_of_requests():
    text = whole()
    assert models_of(text, REQUEST_SUMMARY[0]) == {"plain"}
    assert models_of(text, SUMMARIES[0][0]) == {"plain", "kept"}


@pytest.mark.parametrize("reason", [reason.value for reason in FailureReason])
def test_all_reasons_of_failures_are_there_from_the_load_on(reason):
    assert f'nv_inference_request_failure{{model="plain",reason="{reason}",version="1"}} 0\n' in told()


@pytest.mark.parametrize(
    ("option", "gone"),
    [
        ({"counter_latencies": False}, [*DURATIONS, *OF_CACHED]),
        ({"histogram_latencies": False}, [HISTOGRAM]),
        ({"summary_latencies": False}, [REQUEST_SUMMARY, *SUMMARIES, *CACHED_SUMMARIES]),
    ],
    ids=["counters", "histogram", "summaries"],
)
def test_a_setting_takes_its_families_away_and_no_others(option, gone):
    settings = MetricsSettings(**{"histogram_latencies": True, "summary_latencies": True, **option})
    models = [sample("kept", settings, cached=True), sample("plain", settings)]
    present = {name for name in families(told(*models, settings=settings)) if name.startswith("nv_")}
    of_models = {row[0] for row in TABLE if "model" in row[3]}
    assert of_models - present == {name for name, _ in gone}


def test_labels_of_a_gpu_of_tags_and_of_a_namespace_stand_in_alphabetical_order():
    tagged = sample("m", gpu_uuid="GPU-1", tags={"team": "a", "Zone": "b"}, namespace="/models")
    labels = '{_Zone="b",_team="a",gpu_uuid="GPU-1",model="m",namespace="/models",version="1"}'
    assert f"nv_inference_count{labels} 0\n" in told(tagged)


def test_the_default_bounds_of_the_histogram_are_tritons_and_a_model_may_have_its_own():
    own = ModelSample(name="own", version=1, statistics=new_statistics(ALL_ON, (0.5, 20.0)))
    text = told(own, sample("plain"))

    def bounds(model):
        pattern = rf'^{HISTOGRAM[0]}_bucket{{le="([^"]+)",model="{model}"'
        return re.findall(pattern, text, re.MULTILINE)

    assert bounds("own") == ["0.5", "20", "+Inf"]
    assert bounds("plain") == ["100", "500", "2000", "5000", "+Inf"]


# -- ours


DURATION = "tritium_request_duration_seconds"
PHASES = ("queue", "compute_input", "infer", "output", "first_response", "request")


def observed(settings=ALL_ON, name="m"):
    statistics = new_statistics(settings)
    statistics.succeeded(1, 1_000_000, 500_000, 5_000_000, 100_000, 6_600_000)
    statistics.computed(1, 500_000, 5_000_000, 100_000)
    return ModelSample(name=name, version=1, statistics=statistics)


def test_durations_are_a_histogram_by_phase_in_one_block():
    text = told(observed(name="a"), observed(name="b"))
    kind, _, labels = families(text)[DURATION]
    assert kind == "histogram"
    assert labels == {MODEL | {"phase"}, MODEL | {"phase", "le"}}
    assert models_of(text, DURATION) == {"a", "b"}


@pytest.mark.parametrize(
    ("phase", "seconds", "bound"),
    [
        ("queue", 0.001, "0.001"),
        ("compute_input", 0.0005, "0.001"),
        ("infer", 0.005, "0.005"),
        ("output", 0.0001, "0.001"),
        ("first_response", 0.0066, "0.01"),
        ("request", 0.0066, "0.01"),
    ],
)
def test_each_phase_has_its_buckets_its_sum_and_its_count(phase, seconds, bound):
    text = told(observed())
    rows = dict(
        re.findall(
            rf'^{DURATION}_bucket{{le="(.+)",model="m",phase="{phase}",version="1"}} (\d+)$',
            text,
            re.MULTILINE,
        )
    )
    assert list(rows) == [f"{each:g}" for each in DEFAULT_BOUNDS] + ["+Inf"]
    assert next(le for le, count in rows.items() if count == "1") == bound
    assert f'{DURATION}_sum{{model="m",phase="{phase}",version="1"}} {seconds}\n' in text
    assert f'{DURATION}_count{{model="m",phase="{phase}",version="1"}} 1\n' in text


def test_a_model_without_requests_has_no_durations():
    assert DURATION not in told(sample("m"))


def test_a_phase_that_no_request_has_had_is_absent():
    kept = sample("kept", cached=True)
    kept.statistics.cache_hit(10, 10, 30)
    phases = set(re.findall(rf'^{DURATION}_count{{.*phase="(\w+)"', told(kept), re.MULTILINE))
    assert phases == {"queue", "first_response", "request"}


def test_the_time_of_keeping_an_answer_is_no_part_of_its_request():
    kept = sample("kept", cached=True)
    kept.statistics.succeeded(1, 0, 0, 0, 0, 1_000_000)
    kept.statistics.cache_miss(7_000_000)
    assert f'{DURATION}_sum{{model="kept",phase="request",version="1"}} 0.001\n' in told(kept)


def test_durations_can_be_switched_off_and_have_other_bounds():
    assert DURATION not in told(observed(MetricsSettings(duration_buckets=())))
    text = told(observed(MetricsSettings(duration_buckets=(0.01, 1.0))))
    assert re.findall(rf'^{DURATION}_bucket{{le="(.+)",model="m",phase="queue"', text, re.MULTILINE) == [
        "0.01",
        "1",
        "+Inf",
    ]


def test_phases_are_told_as_documented():
    found = re.findall(rf'^{DURATION}_count{{model="m",phase="(\w+)"', told(observed()), re.MULTILINE)
    assert tuple(found) == PHASES
