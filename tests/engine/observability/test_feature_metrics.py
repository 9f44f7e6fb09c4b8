"""Traffic between versions, as a scrape shows it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.caching.cache import ResponseCache
from actors.caching.families import cache_blocks
from actors.caching.far_cache import FarCache
from actors.caching.policy.cache import KeptAnswer, LruCache
from actors.generation.families import (
    AdapterUse,
    CacheSize,
    GenerationCounts,
    GenerationSample,
    RequestSizes,
)
from actors.health.families import readiness_blocks
from actors.health.probes import ProbeCounts
from actors.padding.policy import PaddingCounts
from actors.residency.residents import (
    ModelResidency,
    OnDemandCounts,
    ResidencySample,
    SleepCounts,
    residency_blocks,
)
from actors.serving.families import load_blocks
from actors.serving.routing.roster import LoadCounts
from actors.traffic.families import traffic_blocks
from actors.traffic.mirror import MirrorCounts
from actors.traffic.traffic import TrafficSample
from actors.values.specs import ModelKey
from engine.observability.gateways import gateway_blocks
from engine.observability.metrics import Exposition
from engine.observability.models import ModelSample, model_blocks, new_statistics
from engine.settings.reporting import MetricsSettings
from tests.support.doubles import Double
from tests.support.logged import Logged
from tests.support.model_doubles import make_spec


def series_of(blocks):
    text = Exposition(lambda: blocks).text()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(*samples):
    """Every series about traffic as {(name, label, ...): value}; labels in the order of their names."""
    return series_of(traffic_blocks(samples))


def test_shares_requests_mirrored_copies_and_rollbacks_are_told_by_version():
    sample = TrafficSample(
        name="resnet",
        shares={1: 1.0},
        requests={1: 90, 2: 10},
        mirrored={3: MirrorCounts(sent=9, same=4, different=3, errors=2, uncompared=1, skipped=5)},
        rollbacks={2: 1},
    )
    assert series(sample) == {
        ("tritium_traffic_share", "resnet", "1"): 1.0,
        ("tritium_traffic_requests_total", "resnet", "1"): 90,
        ("tritium_traffic_requests_total", "resnet", "2"): 10,
        ("tritium_traffic_mirrored_total", "resnet", "same", "3"): 4,
        ("tritium_traffic_mirrored_total", "resnet", "different", "3"): 3,
        ("tritium_traffic_mirrored_total", "resnet", "error", "3"): 2,
        ("tritium_traffic_mirrored_total", "resnet", "uncompared", "3"): 1,
        ("tritium_traffic_mirrored_total", "resnet", "skipped", "3"): 5,
        ("tritium_traffic_rollbacks_total", "resnet", "2"): 1,
    }


def test_models_of_one_name_are_told_apart_by_their_namespace():
    samples = [
        TrafficSample(name="m", namespace=where, shares={1: 1.0}, requests={}, mirrored={}, rollbacks={})
        for where in ("/a", "/b")
    ]
    assert set(series(*samples)) == {
        ("tritium_traffic_share", "m", "/a", "1"),
        ("tritium_traffic_share", "m", "/b", "1"),
    }


def test_a_server_without_plans_shows_nothing_of_traffic():
    assert series() == {}
    assert series(TrafficSample(name="m", shares={}, requests={}, mirrored={}, rollbacks={})) == {}


def test_of_models_that_serve_nothing_only_so_many_are_told_by_name():
    serving = [LoadCounts(f"zebra{number}", "", 1, {1: False}) for number in range(300)]
    failed = [LoadCounts(f"made-up{number:04}", "", 2, {}) for number in range(1000)]
    found = series_of(load_blocks([*failed, *serving]))
    named = {model for name, model, *_ in found if name == "tritium_model_load_failures_total"}
    assert {each.name for each in serving} <= named
    assert len(named) == 300 + 200 + 1
    assert found["tritium_model_load_failures_total", "other"] == 800 * 2
    few = series_of(load_blocks(failed[:200]))
    assert ("tritium_model_load_failures_total", "other") not in few


# -- what metrics tell of kept answers, and of models that keep none


def sample(name, settings, *, cached):
    statistics = new_statistics(settings)
    statistics.succeeded(1, 1000, 1000, 1000, 1000, 10_000)
    if cached:
        statistics.cache_hit(0, 3_000, 5_000)
        statistics.cache_miss(2_000)
    return ModelSample(name=name, version=1, statistics=statistics, cached=cached)


def exposed(settings):
    models = [sample("kept", settings, cached=True), sample("computed", settings, cached=False)]
    return lines_of(model_blocks(models, settings, lambda: 0))


def lines_of(blocks):
    text = Exposition(lambda: blocks).text()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_models_whose_answers_are_kept_tell_of_hits_and_misses():
    lines = exposed(MetricsSettings())
    labels = '{model="kept",version="1"}'
    assert [line for line in lines if line.startswith("nv_cache_")] == [
        f"nv_cache_num_hits_per_model{labels} 1",
        f"nv_cache_num_misses_per_model{labels} 1",
        f"nv_cache_hit_duration_per_model{labels} 3",
        f"nv_cache_miss_duration_per_model{labels} 2",
    ]


def test_models_that_pad_tell_what_they_add():
    models = [
        ModelSample(name=name, version=1, statistics=new_statistics(MetricsSettings()), padding=padding)
        for name, padding in (("padded", PaddingCounts(own=60, added=20)), ("plain", None))
    ]
    labels = '{model="padded",version="1"}'
    lines = lines_of(model_blocks(models, MetricsSettings(), lambda: 0))
    assert [line for line in lines if "padd" in line.partition("{")[0]] == [
        f"tritium_padding_bytes_total{labels} 20",
        f"tritium_padded_input_bytes_total{labels} 60",
    ]


def test_without_counters_of_latencies_there_are_none():
    assert not [line for line in exposed(MetricsSettings(counter_latencies=False)) if "nv_cache" in line]


def test_summaries_are_of_look_ups_and_not_of_requests_where_answers_are_kept():
    lines = exposed(MetricsSettings(summary_latencies=True))
    models = {
        name: {
            model
            for model in ("kept", "computed")
            for line in lines
            if line.startswith(f'{name}_count{{model="{model}"')
        }
        for name in (
            "nv_inference_request_summary_us",
            "nv_inference_queue_summary_us",
            "nv_cache_hit_summary_per_model",
            "nv_cache_miss_summary_per_model",
        )
    }
    assert models == {
        "nv_inference_request_summary_us": {"computed"},
        "nv_inference_queue_summary_us": {"kept", "computed"},
        "nv_cache_hit_summary_per_model": {"kept"},
        "nv_cache_miss_summary_per_model": {"kept"},
    }


async def test_a_local_cache_tells_what_it_holds():
    near = LruCache(1000)
    near.insert(b"k", KeptAnswer((), 250))
    near.lookup(b"k")
    near.lookup(b"other")
    near.counts.lookup_seconds = 0.002
    lines = lines_of(cache_blocks(ResponseCache(near=near, log=Logged()), None))
    assert {
        "nv_cache_util 0.25",
        "nv_cache_num_entries 1",
        "nv_cache_num_hits 1",
        "nv_cache_num_misses 1",
        "nv_cache_num_lookups 2",
        "nv_cache_num_evictions 0",
        "nv_cache_lookup_duration 2000",
        "nv_cache_insertion_duration 0",
        "tritium_cache_shared_total 0",
        "tritium_cache_bugs_total 0",
    } <= set(lines)


class Silent(Double):
    name = "silent"

    def get(self, key):
        raise AssertionError("nobody is to ask")


async def test_a_cache_elsewhere_tells_whether_it_is_asked():
    far = FarCache(Silent(), threads=1, patience=1.0, log=Logged())
    lines = lines_of(cache_blocks(ResponseCache(far=far, log=Logged()), far))
    far.look_up(b"k", lambda kept: pytest.fail(str(kept)))
    assert {"tritium_cache_available 0", "tritium_cache_hits_total 0"} <= set(lines)
    assert not [line for line in lines if line.startswith("nv_cache_util")]
    assert far.counts.skipped == 1


# -- what a scrape tells of readiness and of its probes


def text_of(*counts, ready=True):
    return Exposition(lambda: readiness_blocks(ready=ready, probes=counts)).text()


def test_whether_the_server_is_ready_is_a_gauge():
    assert "# TYPE tritium_ready gauge\ntritium_ready 1\n" in text_of()
    assert "\ntritium_ready 0\n" in text_of(ready=False)
    assert "tritium_probe" not in text_of()


def test_probes_are_counted_by_model_and_version():
    text = text_of(ProbeCounts("add", 2, probes=7, failures=3, seconds=0.25))
    assert set(text.splitlines()) >= {
        'tritium_probes_total{model="add",version="2"} 7',
        'tritium_probe_failures_total{model="add",version="2"} 3',
        'tritium_probe_seconds{model="add",version="2"} 0.25',
    }


def test_reloads_that_failed_are_told_by_model_and_version():
    counts = [
        LoadCounts("add", "", failures=3, reload_failed={1: False, 2: True}),
        LoadCounts("sub", "/models", failures=0, reload_failed={}),
    ]
    assert set(lines_of(load_blocks(counts))) >= {
        'tritium_model_load_failures_total{model="add"} 3',
        'tritium_model_load_failures_total{model="sub",namespace="/models"} 0',
        'tritium_model_reload_failed{model="add",version="1"} 0',
        'tritium_model_reload_failed{model="add",version="2"} 1',
    }


# -- what a scrape tells about memory and about models that are loaded on demand


def scraped(*models):
    return series_of(residency_blocks(ResidencySample(budget=1000, models=models)))


def test_memory_is_told_by_model_in_all_and_beside_the_budget():
    big = ModelResidency(key=ModelKey("big"), resident=300, counters=None)
    small = ModelResidency(key=ModelKey("small"), resident=20, counters=None)
    asleep = ModelResidency(key=ModelKey("asleep"), resident=0, counters=None)
    assert scraped(asleep, big, small) == {
        ("tritium_model_resident_bytes", "big"): 300,
        ("tritium_model_resident_bytes", "small"): 20,
        ("tritium_resident_bytes",): 320,
        ("tritium_resident_budget_bytes",): 1000,
    }


def test_the_sleep_of_models_that_may_sleep_is_counted():
    sleep = SleepCounts(asleep=True, sleeps=4, awakenings=3, awakening_seconds=1.5)
    counters = OnDemandCounts(waiting=0, loads=1, evictions=0, wakes=1, wake_seconds=9.0, sleep=sleep)
    found = scraped(ModelResidency(key=ModelKey("m", ""), resident=5, counters=counters))
    assert {name[0]: value for name, value in found.items() if "sleep" in name[0]} == {
        "tritium_model_asleep": 1,
        "tritium_model_sleeps_total": 4,
        "tritium_sleeper_wake_seconds_sum": 1.5,
        "tritium_sleeper_wake_seconds_count": 3,
    }


def test_models_on_demand_are_counted_whether_or_not_they_are_loaded():
    counters = OnDemandCounts(waiting=3, loads=7, evictions=6, wakes=5, wake_seconds=2.5)
    found = scraped(ModelResidency(key=ModelKey("m", "/models"), resident=0, counters=counters))
    assert found == {
        ("tritium_resident_bytes",): 0,
        ("tritium_resident_budget_bytes",): 1000,
        ("tritium_model_loads_on_demand_total", "m", "/models"): 7,
        ("tritium_model_evictions_total", "m", "/models"): 6,
        ("tritium_wake_waiting_requests", "m", "/models"): 3,
        ("tritium_wake_seconds_sum", "m", "/models"): 2.5,
        ("tritium_wake_seconds_count", "m", "/models"): 5,
    }


def told_to_a_gateway(**options):
    """Return the lines of a scrape for one language model."""
    told = GenerationSample(counts=GenerationCounts(), running=2, waiting=1, texts_restored=0, **options)
    spec = make_spec(name="llama")
    return lines_of(gateway_blocks([(spec, told)], lambda key, version: 0.25, 12.5))


def test_a_gateway_is_told_of_each_version_once():
    labels = '{engine="1",model_name="llama"}'
    lines = [line for line in told_to_a_gateway() if not line.startswith("#")]
    assert lines == [
        f"vllm:num_requests_running{labels} 2",
        f"vllm:num_requests_waiting{labels} 1",
        f"vllm:kv_cache_usage_perc{labels} 0.25",
    ]


def test_a_gateway_is_told_of_adapters_and_of_the_cache():
    lines = told_to_a_gateway(adapters=AdapterUse(2, ["a", "b"], ["c"]), cache=CacheSize(16, 1000))
    own = 'max_lora="2",model_name="llama",running_lora_adapters="a,b",waiting_lora_adapters="c"'
    assert f'vllm:lora_requests_info{{engine="1",{own}}} 12.5' in lines
    own = 'block_size="16",engine="1",model_name="llama",num_gpu_blocks="1000"'
    assert f"vllm:cache_config_info{{{own}}} 1" in lines


def test_vllms_names_are_told_where_that_is_asked_for():
    counts = GenerationCounts(RequestSizes())
    counts.prompt_tokens = 7
    for vllm in (True, False):
        told = GenerationSample(counts=counts, running=0, waiting=0, texts_restored=0, vllm=vllm)
        model = ModelSample(
            name="llama", version=1, statistics=new_statistics(MetricsSettings()), generation=told
        )
        lines = lines_of(model_blocks([model], MetricsSettings(), lambda: 0))
        assert ('vllm:prompt_tokens_total{model="llama",version="1"} 7' in lines) == vllm
        assert ('vllm:request_params_n_count{model="llama",version="1"} 0' in lines) == vllm


def test_only_language_models_tell_of_tokens():
    counts = GenerationCounts()
    counts.prompt_tokens = 7
    told = GenerationSample(counts=counts, running=2, waiting=1, texts_restored=0)
    models = [
        ModelSample(name=name, version=1, statistics=new_statistics(MetricsSettings()), generation=each)
        for name, each in (("llama", told), ("plain", None))
    ]
    lines = [
        line
        for line in lines_of(model_blocks(models, MetricsSettings(), lambda: 0))
        if line.startswith("tritium_llm_")
    ]
    labels = '{model="llama",version="1"}'
    assert f"tritium_llm_requests_running{labels} 2" in lines
    assert f"tritium_llm_prompt_tokens_total{labels} 7" in lines
    assert not [line for line in lines if "plain" in line]
