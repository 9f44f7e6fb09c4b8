"""`tritium.recycle` and `tritium.cores`: what they may say, and which instances get which cores."""

from pathlib import Path

import pytest

from actors.values.specs import Recycle
from engine.config.settings import read_settings
from engine.config.translate import instances
from engine.processes.backends import BackendTraits
from engine.processes.placement import place
from engine.settings.parameters import TritiumSettings
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup
from tests.support.model_doubles import make_spec

PURE = BackendTraits(name="onnxruntime")


def grouped(*counts):
    groups = [
        ModelInstanceGroup(name=f"g{number}", kind=ModelInstanceGroup.KIND_CPU, count=count)
        for number, count in enumerate(counts)
    ]
    return ModelConfig(name="model", instance_group=groups)


def cores_of(text, config):
    settings, problems = read_settings({"tritium.cores": text}, PURE)
    assert problems == ()
    return [each.cores for each in instances(config, PURE, settings, frozenset())]


def test_ceilings_are_read():
    settings, problems = read_settings({"tritium.recycle": '{"requests": 5, "seconds": 60}'}, PURE)
    assert problems == ()
    assert settings.recycle == Recycle(requests=5, seconds=60.0)
    assert read_settings({}, PURE)[0].recycle is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("5", "'the value' is no JSON object"),
        ("{}", "'the value' has no ceiling"),
        ('{"request": 5}', "'request' is unknown"),
        ('{"seconds": 0}', "'seconds' is 0"),
    ],
)
def test_ceilings_that_make_no_sense_are_told_with_their_place(text, told):
    _, (problem,) = read_settings({"tritium.recycle": text}, PURE)
    assert problem.key == 'parameters["tritium.recycle"]'
    assert told in problem.message


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"sequence_batching": {}}, "a model of sequences"),
        ({"ensemble_scheduling": {}}, "an ensemble"),
    ],
)
def test_what_lives_in_a_worker_or_has_none_is_not_recycled(config, what):
    _, (problem,) = read_settings({"tritium.recycle": '{"requests": 5}'}, PURE, None, ModelConfig(**config))
    assert what in problem.message


def test_threads_of_the_server_are_not_recycled():
    given = {"tritium.recycle": '{"requests": 5}', "tritium.isolation": "thread"}
    _, (problem,) = read_settings(given, PURE, None, ModelConfig())
    assert "on a thread of the server" in problem.message


@pytest.mark.parametrize(("limit", "refused"), [("100", True), ("101", False)])
def test_a_ceiling_of_memory_is_below_the_limit_that_kills(limit, refused):
    given = {"tritium.recycle": '{"memory_mb": 100}', "tritium.memory_limit_mb": limit}
    _, problems = read_settings(given, PURE, None, ModelConfig())
    assert bool(problems) is refused


def test_all_instances_of_a_model_are_bound_to_its_cores():
    assert cores_of("0-2,5", grouped(2)) == [(0, 1, 2, 5)] * 2


def test_several_sets_of_cores_go_to_the_instances_of_all_groups_in_turn():
    assert cores_of("0-1;2-3", grouped(2, 1)) == [(0, 1), (2, 3), (0, 1)]


def test_without_the_setting_no_instance_is_bound():
    assert [each.cores for each in instances(grouped(1), PURE, TritiumSettings(), frozenset())] == [()]


@pytest.mark.parametrize("text", ["", "a", "3-1", "0;", "-1", "0-99999"])
def test_what_are_no_cores_is_refused_with_an_example(text):
    _, (problem,) = read_settings({"tritium.cores": text}, PURE)
    assert "'0-1;2-3'" in problem.hint


def test_a_models_own_cores_go_before_those_of_its_host_policy():
    settings, _ = read_settings({"tritium.cores": "1"}, PURE)
    own = make_spec(instances=instances(grouped(1), PURE, settings, frozenset()))
    bare = make_spec(
        instances=instances(grouped(1), PURE, TritiumSettings(), frozenset()), version_directory=Path("/2")
    )
    assert [place(spec, {"cpu": (7,)}).instances[0].cores for spec in (own, bare)] == [(1,), (7,)]
