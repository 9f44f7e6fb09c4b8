"""What a scrape tells of readiness and of its probes."""

from actors.health.families import readiness_blocks
from actors.health.probes import ProbeCounts
from actors.serving.families import load_blocks
from actors.serving.routing.roster import LoadCounts
from engine.observability.metrics import Exposition


def text_of(*counts, ready=True):
    return Exposition(lambda: readiness_blocks(ready=ready, probes=counts)).text()


def test_whether_the_server_is_ready_is_a_gauge():
    assert "# TYPE tritium_ready gauge\ntritium_ready 1\n" in text_of()
    assert "\ntritium_ready 0\n" in text_of(ready=False)
    assert "tritium_probe" not in text_of()


def test_probes_are_counted_by_model_and_version():
    text = text_of(ProbeCounts("add", 2, probes=7, failures=3, seconds=0.25))
    assert 'tritium_probes_total{model="add",version="2"} 7\n' in text
    assert 'tritium_probe_failures_total{model="add",version="2"} 3\n' in text
    assert 'tritium_probe_seconds{model="add",version="2"} 0.25\n' in text


def test_reloads_that_failed_are_told_by_model_and_version():
    counts = [
        LoadCounts("add", "", failures=3, reload_failed={1: False, 2: True}),
        LoadCounts("sub", "/models", failures=0, reload_failed={}),
    ]
    text = Exposition(lambda: load_blocks(counts)).text()
    assert 'tritium_model_load_failures_total{model="add"} 3\n' in text
    assert 'tritium_model_load_failures_total{model="sub",namespace="/models"} 0\n' in text
    assert 'tritium_model_reload_failed{model="add",version="1"} 0\n' in text
    assert 'tritium_model_reload_failed{model="add",version="2"} 1\n' in text
