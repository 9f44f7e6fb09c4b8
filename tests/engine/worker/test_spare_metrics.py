"""What an operator sees of spares and of recycled workers, and how many spares there are."""

import pytest

from actors.serving.statistics import ModelStatistics
from actors.values.families import once
from engine.observability.metrics import Exposition
from engine.observability.models import ModelSample, model_blocks
from engine.processes.spares import FAMILIES, SpareCounts
from engine.settings.reporting import MetricsSettings
from engine.settings.settings import Settings, SettingsError

REPOSITORY = "--model-repository=models"


def test_spares_are_counted():
    counts = SpareCounts(waiting=1, used=4, fresh=2)
    lines = Exposition(lambda: once(FAMILIES, counts)).text().splitlines()
    assert "tritium_spare_workers 1" in lines
    assert 'tritium_workers_started_total{spare="true"} 4' in lines
    assert 'tritium_workers_started_total{spare="false"} 2' in lines


def test_recycled_workers_are_counted_by_the_ceiling_that_they_reached():
    statistics = ModelStatistics()
    statistics.recycled["memory"] += 1
    model = ModelSample(name="m", version=3, statistics=statistics)
    lines = Exposition(lambda: model_blocks([model], MetricsSettings(), lambda: 0)).text().splitlines()
    assert 'tritium_workers_recycled_total{ceiling="memory",model="m",version="3"} 1' in lines


def test_there_is_one_spare_unless_the_operator_says_otherwise():
    assert Settings.from_argv([REPOSITORY]).spare_workers == 4
    assert Settings.from_argv([REPOSITORY, "--spare-workers=0"]).spare_workers == 0
    assert (
        Settings.from_environ(
            {"TRITIUM_MODEL_REPOSITORY": "models", "TRITIUM_SPARE_WORKERS": "3"}
        ).spare_workers
        == 3
    )


@pytest.mark.parametrize("value", ["-1", "two", "100000"])
def test_a_number_of_spares_that_makes_no_sense_is_refused(value):
    with pytest.raises(SettingsError):
        Settings.from_argv([REPOSITORY, f"--spare-workers={value}"])
