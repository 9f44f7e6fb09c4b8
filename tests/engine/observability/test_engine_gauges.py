"""What engines tell of themselves, as a scrape shows it."""

from collections import Counter
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.calls.subjects import CallingWorker, Subjects
from actors.values.specs import ModelKey
from actors.wire.call_fields import Attached
from actors.wire.frames import FrameError
from engine.observability.engines import SUBJECT, EngineGauges
from engine.observability.metrics import Exposition
from engine.worker.backends.language.backend import GAUGES
from engine.worker.backends.language.engine import Gauges
from tests.house.metrics import SECTIONS
from tests.support.model_doubles import make_spec


@pytest.fixture
def told():
    """A server's table of subjects, and what it shows."""
    subjects, gauges = Subjects(), EngineGauges()
    gauges.answer(subjects)
    return subjects, gauges


def tell(subjects, caller, numbers):
    """Have a worker tell its engine's numbers."""
    subjects.tell(Attached(GAUGES, numbers, {}), caller)


def shown(gauges):
    """Return every sample by name and the values of its labels, in the order of their names."""
    text = Exposition(gauges.blocks).text()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_an_engine_s_numbers_are_shown_until_its_worker_ends(told):
    """The last ones count; another instance has series of its own."""
    subjects, gauges = told
    assert shown(gauges) == {}
    first, second = (CallingWorker(make_spec(name="tide"), f"tide_{number}") for number in (0, 1))
    assert GAUGES == SUBJECT
    tell(subjects, first, Gauges(9, 9, 0.9, 9, 9, 9)._asdict())
    tell(subjects, first, Gauges(3, 2, 0.25, 40, 100, 1)._asdict())
    tell(subjects, second, Gauges()._asdict())
    seen = shown(gauges)
    assert seen["tritium_llm_engine_requests_running", "tide_0", "tide", "1"] == 3
    assert seen["tritium_llm_engine_requests_waiting", "tide_0", "tide", "1"] == 2
    assert seen["tritium_llm_cache_usage_ratio", "tide_0", "tide", "1"] == 0.25
    assert seen["tritium_llm_prefix_cache_hits_total", "tide_0", "tide", "1"] == 40
    assert seen["tritium_llm_prefix_cache_queries_total", "tide_0", "tide", "1"] == 100
    assert seen["tritium_llm_preemptions_total", "tide_0", "tide", "1"] == 1
    assert gauges.cache_used(ModelKey("tide"), 1) == 0.125  # the mean of both
    assert gauges.cache_used(ModelKey("tide"), 2) is None
    subjects.ended(first)
    assert {key[1] for key in shown(gauges)} == {"tide_1"}


def test_steps_are_a_worker_s_sign_of_life(told):
    subjects, gauges = told
    worker = SimpleNamespace(steps=0)
    caller = CallingWorker(make_spec(name="tide"), "tide_0", worker)
    tell(subjects, caller, Gauges(steps=17)._asdict())
    assert worker.steps == 17
    assert shown(gauges)["tritium_llm_engine_steps_total", "tide_0", "tide", "1"] == 17


def test_no_two_families_have_one_name():
    """A scrape with two of a name is refused by Prometheus's own parser."""
    names = Counter(family.name for section in SECTIONS for family in section.families)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    "wrong",
    [{"running": "3"}, {"running": 1.5}, {"waiting": -1}, {"cache_used": float("nan")}, {"waiting": True}],
)
def test_what_no_worker_of_ours_says_ends_the_worker(told, wrong):
    """It is no number, or none that can be."""
    subjects, _ = told
    caller = CallingWorker(make_spec(name="tide"), "tide_0")
    with pytest.raises(FrameError):
        tell(subjects, caller, {**Gauges()._asdict(), **wrong})
