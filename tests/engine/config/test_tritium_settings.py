"""The `tritium.*` parameters of a model."""

import pytest

from actors.values.specs import (
    Fairness,
    Probe,
    QueueBounds,
    Residency,
    Retry,
    Slo,
)
from actors.values.traffic import Mirror, Rollback, TrafficPlan
from engine.config.settings import read_settings
from engine.processes.backends import BackendTraits
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelVersionPolicy

PURE = BackendTraits(name="onnxruntime")
PYTORCH = BackendTraits(name="pytorch")
PYTHON = BackendTraits(name="python", pure=False, concurrent=False)


def test_defaults_contain_and_never_time_out():
    settings, problems = read_settings({"other": "x"}, PURE)
    assert problems == ()
    assert settings.isolation == "process"
    assert settings.execution_timeout == 0.0
    assert settings.worker is None
    assert settings.queue_bounds == QueueBounds()
    assert settings.threads == 0
    assert settings.load_timeout == settings.probe_interval == 0.0
    assert settings.drain_timeout == 30.0
    assert settings.probe is Probe.COMPARE
    assert settings.essential
    assert settings.residency is Residency.ALWAYS
    assert settings.traffic is None


@pytest.mark.parametrize(("traits", "retry"), [(PURE, Retry.ALWAYS), (PYTHON, Retry.NEVER)])
def test_only_backends_without_side_effects_retry_by_default(traits, retry):
    assert read_settings({}, traits)[0].retry is retry


# Each: a key, its text, the attribute it sets, the value.
ACCEPTED = [
    ("tritium.isolation", "thread", "isolation", "thread"),
    ("tritium.isolation", "process", "isolation", "process"),
    ("tritium.retry", "never", "retry", Retry.NEVER),
    ("tritium.retry", "always", "retry", Retry.ALWAYS),
    ("tritium.execution_timeout", "0.5", "execution_timeout", 0.5),
    ("tritium.execution_timeout", "0", "execution_timeout", 0.0),
    ("tritium.worker", "model", "worker", "model"),
    ("tritium.worker", "instance", "worker", "instance"),
    ("tritium.queue.max_requests", "7", "queue_bounds", QueueBounds(requests=7)),
    ("tritium.queue.max_bytes", "1000", "queue_bounds", QueueBounds(nbytes=1000)),
    ("tritium.threads", "3", "threads", 3),
    ("tritium.load_timeout", "90", "load_timeout", 90.0),
    ("tritium.drain_timeout", "0", "drain_timeout", 0.0),
    ("tritium.drain_timeout", "2.5", "drain_timeout", 2.5),
    ("tritium.probe", "compare", "probe", Probe.COMPARE),
    ("tritium.probe", "required", "probe", Probe.REQUIRED),
    ("tritium.probe", "off", "probe", Probe.OFF),
    ("tritium.probe_interval", "1e1", "probe_interval", 10.0),
    ("tritium.essential", "true", "essential", True),
    ("tritium.essential", "false", "essential", False),
    ("tritium.residency", "always", "residency", Residency.ALWAYS),
    ("tritium.residency", "on_demand", "residency", Residency.ON_DEMAND),
    ("tritium.residency", "pinned", "residency", Residency.PINNED),
    (
        "tritium.traffic",
        '{"weights": {"1": 9, "2": 1}, "sticky": {"parameter": "user"}, "mirror": {"version": 3},'
        ' "rollback": {"max_error_rate": 0.1}}',
        "traffic",
        TrafficPlan(
            weights={1: 9.0, 2: 1.0},
            sticky_parameter="user",
            mirror=Mirror(version=3),
            rollback=Rollback(max_error_rate=0.1),
        ),
    ),
]


ACCEPTED += [
    (
        "tritium.fairness",
        '{"tenant": "address", "weights": {"a": 2}}',
        "fairness",
        Fairness(tenant_address=True, weights={"a": 2.0}),
    ),
    ("tritium.slo", '{"p99": 0.05}', "slo", Slo(p99=0.05)),
]


@pytest.mark.parametrize(("key", "text", "attribute", "value"), ACCEPTED)
def test_a_setting_is_read(key, text, attribute, value):
    settings, problems = read_settings({key: text}, PURE)
    assert problems == ()
    assert getattr(settings, attribute) == value


@pytest.mark.parametrize("value", ["bf16", "fp16", "off"])
def test_mixed_precision_is_left_to_the_pytorch_backend(value):
    assert read_settings({"tritium.amp": value}, PYTORCH)[1] == ()


# Each: a key, its text, the hint.
REFUSED = [
    ("tritium.isolation", "fork", "use 'process' or 'thread'"),
    ("tritium.retry", "", "use 'always' or 'never'"),
    ("tritium.execution_timeout", "-1", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.execution_timeout", "nan", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.execution_timeout", "inf", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.execution_timeout", "5s", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.worker", "group", "use 'instance' or 'model'"),
    ("tritium.queue.max_requests", "0", "use a whole number, at least 1"),
    ("tritium.queue.max_bytes", "1e6", "use a whole number, at least 1"),
    ("tritium.threads", "-1", "use a whole number, at least 0"),
    ("tritium.threads", "9" * 30, "use a whole number, at least 0"),
    ("tritium.threads", "²", "use a whole number, at least 0"),
    ("tritium.amp", "int8", "use 'bf16' or 'fp16' or 'off'"),
    ("tritium.load_timeout", "1m", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.drain_timeout", "-1", "use seconds, such as '30'; '0' waits for nothing"),
    ("tritium.probe", "on", "use 'compare' or 'required' or 'off'"),
    ("tritium.probe_interval", "", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.essential", "yes", "use 'true' or 'false'"),
    ("tritium.residency", "lazy", "use 'always' or 'on_demand' or 'pinned'"),
    (
        "tritium.traffic",
        "90/10",
        "use a JSON object: Extra data: line 1 column 3 (char 2)",
    ),
    ("tritium.traffic", '{"weights": {"1": 9, "1": 1}}', "give '1' once"),
]


@pytest.mark.parametrize(("key", "text", "hint"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused(key, text, hint):
    _, (problem,) = read_settings({key: text}, PYTORCH)
    assert problem.message == f"'{key}' is '{text}', which is no valid value"
    assert problem.key == f'parameters["{key}"]'
    assert problem.hint == hint


def test_an_unknown_setting_is_refused_with_the_nearest():
    _, (problem,) = read_settings({"tritium.execution_timout": "1"}, PURE)
    assert problem.message == "unknown setting 'tritium.execution_timout'"
    assert problem.hint == "did you mean 'tritium.execution_timeout'?"


def test_every_mistake_is_told():
    _, problems = read_settings({"tritium.retry": "x", "tritium.threads": "y", "tritium.zzz": ""}, PURE)
    assert len(problems) == 3


def test_mixed_precision_is_refused_for_other_backends():
    _, (problem,) = read_settings({"tritium.amp": "bf16"}, PURE)
    assert problem.message == "'tritium.amp' is a setting of pytorch models, not of 'onnxruntime'"


def test_a_backend_of_one_execution_can_t_share_a_worker():
    _, (problem,) = read_settings({"tritium.worker": "model"}, PYTHON)
    assert problem.message == (
        "'tritium.worker' is 'model', but backend 'python' runs one execution at a time in a worker"
    )


def test_every_mistake_in_a_traffic_plan_is_told():
    _, problems = read_settings({"tritium.traffic": '{"weights": {"1": -1}, "mirrors": {}}'}, PURE)
    assert [(problem.message, problem.hint) for problem in problems] == [
        ("'tritium.traffic': 'mirrors' is unknown", "did you mean 'mirror'?"),
        ("'tritium.traffic': 'weights.1' is -1", "use a number of at least 0"),
    ]
    assert {problem.key for problem in problems} == {'parameters["tritium.traffic"]'}


SPLIT = '{"weights": {"1": 9, "2": 1, "4": 0}, "mirror": {"version": 3}}'


@pytest.mark.parametrize(
    "policy",
    [
        ModelVersionPolicy(all=ModelVersionPolicy.All()),
        ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=[3, 2, 1])),
        ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=3)),
        ModelVersionPolicy(),
    ],
)
def test_traffic_goes_to_versions_that_are_served(policy):
    settings, problems = read_settings({"tritium.traffic": SPLIT}, PURE, policy)
    assert problems == ()
    assert settings.traffic is not None


def test_traffic_for_versions_that_the_policy_leaves_out_is_refused():
    policy = ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=[2]))
    _, problems = read_settings({"tritium.traffic": SPLIT}, PURE, policy)
    assert [problem.message for problem in problems] == [
        "'tritium.traffic' names version 1, which 'version_policy' leaves out",
        "'tritium.traffic' names version 3, which 'version_policy' leaves out",
    ]
    assert problems[0].hint == "add them to 'version_policy': specific { versions: [ 1, 2, 3 ] }"


def test_traffic_for_more_versions_than_are_served_is_refused():
    policy = ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=1))
    _, (problem,) = read_settings({"tritium.traffic": SPLIT}, PURE, policy)
    assert (
        problem.message == "'tritium.traffic' needs 3 versions, but 'version_policy' serves the latest 1 only"
    )
    assert problem.hint == "write version_policy { specific { versions: [ 1, 2, 3 ] } }"


def test_memory_of_the_server_process_can_t_be_given_back_on_demand():
    settings = {"tritium.isolation": "thread", "tritium.residency": "on_demand"}
    _, (problem,) = read_settings(settings, PURE)
    assert problem.key == 'parameters["tritium.residency"]'
    assert problem.hint == "use isolation 'process', or residency 'pinned'"
    assert read_settings({**settings, "tritium.residency": "pinned"}, PURE)[1] == ()


def test_every_mistake_about_fairness_is_told_with_its_place():
    _, (problem,) = read_settings({"tritium.fairness": '{"tenant": "header"}'}, PURE)
    assert problem.message == "'tritium.fairness': 'tenant' is \"header\""
    assert problem.key == 'parameters["tritium.fairness"]'
    _, (problem,) = read_settings({"tritium.slo": "{}"}, PURE)
    assert problem.message == "'tritium.slo': 'the value' asks for nothing"


QUEUES = {"tritium.fairness": '{"tenant": "address"}', "tritium.slo": '{"p99": 0.05}'}


@pytest.mark.parametrize(
    ("config", "keys", "what"),
    [
        ({"ensemble_scheduling": {}}, [*QUEUES], "an ensemble, whose steps wait in other models' queues"),
        ({"sequence_batching": {}}, [*QUEUES], "a model of sequences, whose order decides who goes next"),
        (
            {"model_transaction_policy": {"decoupled": True}},
            ["tritium.slo"],
            "a decoupled model, whose answers have no one time",
        ),
        ({"dynamic_batching": {}}, [], ""),
    ],
)
def test_queues_that_another_scheduler_rules_are_not_shared_out(config, keys, what):
    _, problems = read_settings(QUEUES, PURE, None, ModelConfig(**config))
    assert [problem.message for problem in problems] == [f"'{key}' is set for {what}" for key in keys]


def test_ageing_needs_levels_to_rise_in():
    ageing = {"tritium.fairness": '{"age": 2}'}
    _, (problem,) = read_settings(ageing, PURE, None, ModelConfig())
    assert problem.message == "'tritium.fairness': 'age' raises requests by a level, and there is one only"
    levels = ModelConfig(dynamic_batching={"priority_levels": 2, "default_priority_level": 1})
    assert read_settings(ageing, PURE, None, levels)[1] == ()
