"""What a scrape tells of readiness and of its probes."""

from actors.health.readiness import ProbeCounts
from actors.serving.roster import LoadCounts
from engine.observability.metrics import Exposition
from engine.observability.system import ProcessSample
from engine.settings.reporting import MetricsSettings


class NoModels:
    def models(self):
        return ()


class Readiness:
    def __init__(self, *counts, is_ready=True):
        self.is_ready = is_ready
        self.counts = counts

    def probes(self):
        return self.counts


def text_of(readiness):
    process = ProcessSample(cpu_seconds=1.5, resident_bytes=4096, open_descriptors=7, most_descriptors=1024)
    return Exposition(
        NoModels(), MetricsSettings(), wall_ms=lambda: 0, process=lambda: process, readiness=readiness
    ).text()


def test_whether_the_server_is_ready_is_a_gauge():
    assert "# TYPE tritium_ready gauge\ntritium_ready 1\n" in text_of(Readiness())
    assert "\ntritium_ready 0\n" in text_of(Readiness(is_ready=False))
    assert "tritium_probe" not in text_of(Readiness())
    assert "tritium_ready" not in text_of(None)


def test_probes_are_counted_by_model_and_version():
    text = text_of(Readiness(ProbeCounts("add", 2, probes=7, failures=3, seconds=0.25)))
    assert 'tritium_probes_total{model="add",version="2"} 7\n' in text
    assert 'tritium_probe_failures_total{model="add",version="2"} 3\n' in text
    assert 'tritium_probe_seconds{model="add",version="2"} 0.25\n' in text


def test_reloads_that_failed_are_told_by_model_and_version():
    class Loads:
        def loads(self):
            yield LoadCounts("add", "", failures=3, reload_failed={1: False, 2: True})
            yield LoadCounts("sub", "/models", failures=0, reload_failed={})

    process = ProcessSample(cpu_seconds=1.5, resident_bytes=4096, open_descriptors=7, most_descriptors=1024)
    text = Exposition(
        NoModels(), MetricsSettings(), wall_ms=lambda: 0, process=lambda: process, loads=Loads()
    ).text()
    assert 'tritium_model_load_failures_total{model="add"} 3\n' in text
    assert 'tritium_model_load_failures_total{model="sub",namespace="/models"} 0\n' in text
    assert 'tritium_model_reload_failed{model="add",version="1"} 0\n' in text
    assert 'tritium_model_reload_failed{model="add",version="2"} 1\n' in text
