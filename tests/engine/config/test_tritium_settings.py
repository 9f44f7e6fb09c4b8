"""The `tritium.*` parameters of a model."""

import pytest

from actors.specs import QueueBounds, Retry
from engine.config.backends import BackendTraits
from engine.config.settings import read_settings

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
