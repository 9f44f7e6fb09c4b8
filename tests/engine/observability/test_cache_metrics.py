"""What metrics tell of kept answers, and of models that keep none."""

import pytest

from actors.caching.cache import ResponseCache
from actors.caching.families import cache_blocks
from actors.caching.far_cache import FarCache
from actors.caching.policy.cache import KeptAnswer, LruCache
from engine.observability.metrics import Exposition
from engine.observability.models import ModelSample, model_blocks, new_statistics
from engine.settings.reporting import MetricsSettings


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
    lines = lines_of(cache_blocks(ResponseCache(near=near, log=print), None))
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


class Silent:
    name = "silent"

    def get(self, key):
        raise AssertionError("nobody is to ask")


async def test_a_cache_elsewhere_tells_whether_it_is_asked():
    far = FarCache(Silent(), threads=1, patience=1.0, log=print)
    lines = lines_of(cache_blocks(ResponseCache(far=far, log=print), far))
    far.look_up(b"k", pytest.fail)
    assert {"tritium_cache_available 0", "tritium_cache_hits_total 0"} <= set(lines)
    assert not [line for line in lines if line.startswith("nv_cache_util")]
    assert far.counts.skipped == 1
