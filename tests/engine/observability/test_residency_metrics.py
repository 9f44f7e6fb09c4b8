"""What a scrape tells about memory and about models that are loaded on demand."""

from prometheus_client.parser import text_string_to_metric_families

from actors.residency.residency import Counters, ModelResidency, ResidencySample
from actors.values.specs import ModelKey
from engine.observability.metrics import Exposition
from engine.observability.system import ProcessSample
from engine.settings.reporting import MetricsSettings

PROCESS = ProcessSample(cpu_seconds=1.5, resident_bytes=4096, open_descriptors=7, most_descriptors=1024)


class Nothing:
    def models(self):
        return []


class Known:
    def __init__(self, *models):
        self._models = models

    def samples(self):
        return ResidencySample(budget=1000, models=self._models)


def scraped(*models):
    text = Exposition(
        Nothing(), MetricsSettings(), wall_ms=lambda: 0, process=lambda: PROCESS, residency=Known(*models)
    ).text()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("tritium_")
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
    counters = Counters(waiting=3, loads=7, evictions=6, wakes=5, wake_seconds=2.5)
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


def test_without_a_residency_nothing_is_told_of_it():
    text = Exposition(Nothing(), MetricsSettings(), wall_ms=lambda: 0, process=lambda: PROCESS).text()
    assert "resident_b" not in text.replace("process_resident", "")
