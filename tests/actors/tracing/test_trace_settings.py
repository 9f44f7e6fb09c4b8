"""Which trace setting holds for which model (contract, observability.md section 3.1)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.tracing.policy.settings import FIELDS, TraceSettings, samples, why_invalid
from actors.values.errors import InvalidArgument
from actors.values.tracing.settings import (
    OPENTELEMETRY,
    TENSORS,
    TIMESTAMPS,
    Given,
    SettingChange,
    TraceSetting,
)

STARTED = TraceSetting(levels=(TIMESTAMPS,), rate=1000, file="t.json")
ALL_SET = SettingChange(levels=(TENSORS,), rate=1, count=2, log_frequency=3)
CLEARED = SettingChange(levels=Given.CLEAR, rate=Given.CLEAR, count=Given.CLEAR, log_frequency=Given.CLEAR)


def settings(**changes):
    return TraceSettings.of(replace(STARTED, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"levels": ()}, "tracing is disabled"),
        ({"rate": 0}, "sample rate must be non-zero"),
        ({"file": ""}, "trace file name is not given"),
        ({"file": "", "mode": OPENTELEMETRY}, ""),
        ({"levels": (), "rate": 0, "file": ""}, "tracing is disabled"),
    ],
)
def test_a_setting_by_which_nothing_can_be_traced_has_a_reason(changes, reason):
    assert why_invalid(replace(STARTED, **changes)) == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (SettingChange(rate=0), "sample rate must be non-zero"),
        (SettingChange(levels=(TIMESTAMPS,)), "trace file name is not given"),
    ],
)
def test_a_change_to_an_invalid_setting_is_refused_with_the_reason(change, reason):
    before = settings(file="") if "file" in reason else settings()
    with pytest.raises(InvalidArgument) as caught:
        before.changed("", change)
    assert caught.value.message == f"Attempting to set invalid trace setting :{reason}"


def test_turning_tracing_off_is_allowed_whatever_the_rest():
    after, new = settings(file="").changed("", SettingChange(levels=(), rate=0))
    assert after.setting("").levels == ()
    assert new == {""}


def test_a_model_inherits_what_it_has_not_set_itself():
    after, _ = settings().changed("m", SettingChange(rate=5))
    after, new = after.changed("", SettingChange(count=7, rate=9))
    assert (after.setting("m").rate, after.setting("m").count) == (5, 7)
    assert (after.setting("other").rate, after.setting("other").count) == (9, 7)
    assert new == {"", "m"}, "a setting whose fields are partly inherited is new as well"


def test_a_model_that_has_set_everything_keeps_its_setting():
    after, _ = settings().changed("m", ALL_SET)
    _, new = after.changed("", SettingChange(rate=9))
    assert new == {""}


def test_clearing_all_removes_the_setting_of_a_model():
    after, _ = settings().changed("m", ALL_SET)
    after, new = after.changed("m", CLEARED)
    assert after.own == {}
    assert new == frozenset()
    assert after.setting("m") == STARTED


def test_clearing_the_setting_of_all_models_goes_back_to_the_command_line():
    after, _ = settings().changed("", ALL_SET)
    after, _ = after.changed("", CLEARED)
    assert after.setting("") == STARTED


def test_a_change_of_all_models_that_would_spoil_one_of_them_changes_nothing():
    before, _ = settings(levels=()).changed("m", SettingChange(levels=(TIMESTAMPS,)))
    with pytest.raises(InvalidArgument, match="non-zero"):
        before.changed("", SettingChange(rate=0))
    assert before.setting("m").rate == 1000


def test_by_the_command_line_alone_the_rate_may_be_0_where_clients_bring_contexts():
    assert samples(replace(STARTED, rate=0, mode=OPENTELEMETRY))
    assert not samples(replace(STARTED, rate=0))
    assert not samples(replace(STARTED, rate=0, mode=OPENTELEMETRY, levels=()))


VALUES = {
    "levels": st.sampled_from([(), (TIMESTAMPS,), (TENSORS,), (TIMESTAMPS, TENSORS)]),
    "rate": st.integers(1, 5),
    "count": st.integers(-1, 5),
    "log_frequency": st.integers(0, 5),
}
CHANGES = st.builds(
    SettingChange,
    **{name: st.one_of(st.sampled_from(list(Given)), values) for name, values in VALUES.items()},
)


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), CHANGES), max_size=12))
def test_settings_are_what_a_plain_model_of_layers_says(changes):
    """Each layer is a dictionary: what a model has set, else what all have, else the command line's."""
    now = settings()
    layers: dict[str, dict[str, object]] = {"": {}, "a": {}, "b": {}}
    for name, change in changes:
        now, new = now.changed(name, change)
        for field in FIELDS:
            value = getattr(change, field)
            if value is Given.CLEAR:
                layers[name].pop(field, None)
            elif value is not Given.KEEP:
                layers[name][field] = value
        for model in ("a", "b", "c", ""):
            said = {
                **{field: getattr(STARTED, field) for field in FIELDS},
                **layers[""],
                **layers.get(model, {}),
            }
            told = now.setting(model)
            assert {field: getattr(told, field) for field in FIELDS} == said
        assert new <= {"", "a", "b"}
        assert ("" in new) == (name == "")
