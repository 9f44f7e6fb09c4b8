"""What a scrape tells about memory and about models that are loaded on demand."""

from prometheus_client.parser import text_string_to_metric_families

from actors.residency.families import residency_blocks
from actors.residency.residents import ModelResidency, OnDemandCounts, ResidencySample
from actors.values.specs import ModelKey
from engine.observability.metrics import Exposition


def scraped(*models):
    text = Exposition(lambda: residency_blocks(ResidencySample(budget=1000, models=models))).text()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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
