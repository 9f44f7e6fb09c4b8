"""The logging extension's settings: http.md section 5.2 and grpc.md section 6, row by row."""

import pytest

from actors.values.errors import ErrorCode, TritiumError
from actors.values.interfaces import LogState
from protocols.kserve.extensions.log_settings import KEYS, described, json_steps, known, message_steps

FORMATS = ("default", "ISO8601")
START = LogState(file="server.log")


def last_of(document):
    """The states, and the error that ended them, if one did."""
    states = [START]
    try:
        states.extend(json_steps(START, document, FORMATS))
    except TritiumError as error:
        return states[-1], (error.code, error.message)
    return states[-1], None


def last_of_message(**given):
    states = [START]
    try:
        states.extend(message_steps(START, given, lambda value: value, FORMATS))
    except TritiumError as error:
        return states[-1], (error.code, error.message)
    return states[-1], None


def test_settings_are_told_by_tritons_names_in_its_order():
    assert described(START) == {
        "log_file": "server.log",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    assert tuple(described(START)) == KEYS


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("log_info", False, "info"),
        ("log_warning", False, "warning"),
        ("log_error", False, "error"),
        ("log_verbose_level", 2, "verbose_level"),
        ("log_verbose_level", 2**32 - 1, "verbose_level"),
        ("log_format", "ISO8601", "format"),
    ],
)
def test_each_setting_can_be_changed_alone(key, value, field):
    state, error = last_of({key: value})
    assert error is None
    assert getattr(state, field) == value
    changed = {name for name in described(START) if described(START)[name] != described(state)[name]}
    assert changed == {key}


@pytest.mark.parametrize("key", KEYS)
def test_null_changes_nothing(key):
    assert last_of({key: None}) == (START, None)


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        (
            {"log_file": "other.log"},
            ErrorCode.UNSUPPORTED,
            "log file location can not be updated through network protocol",
        ),
        (
            {"log_file": 1},
            ErrorCode.UNSUPPORTED,
            "log file location can not be updated through network protocol",
        ),
        (
            {"log_format": "xml"},
            ErrorCode.UNAVAILABLE,
            "invalid argument for --log_format, got: xml",
        ),
        *(
            (
                {key: value},
                ErrorCode.INTERNAL,
                f"Unable to parse '{key}': attempt to access JSON non-boolean as boolean",
            )
            for key in ("log_info", "log_warning", "log_error")
            for value in (1, "true", ["true"])
        ),
        *(
            (
                {"log_verbose_level": value},
                ErrorCode.INTERNAL,
                "Unable to parse 'log_verbose_level': attempt to access JSON non-unsigned-integer as unsigned-integer",
            )
            for value in (-1, 1.0, "1", True, ["1"])
        ),
        (
            {"log_format": 1},
            ErrorCode.INTERNAL,
            "Unable to parse 'log_format': attempt to access JSON non-string as string",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(document, code, text):
    assert last_of(document) == (START, (code, text))


def test_a_level_that_the_grpc_message_can_not_hold_is_refused():
    _, (code, text) = last_of({"log_verbose_level": 2**32})
    assert code is ErrorCode.INTERNAL
    assert text.endswith("at most 4294967295")


def test_a_format_is_not_echoed_without_bound():
    _, (_, text) = last_of({"log_format": "x" * 100_000})
    assert len(text) < 300


def test_keys_are_applied_in_tritons_order_and_those_before_a_wrong_one_stand():
    state, (code, _) = last_of(
        {"log_format": "ISO8601", "log_verbose_level": "one", "log_error": False, "log_info": False}
    )
    assert code is ErrorCode.INTERNAL
    assert (state.info, state.error, state.format) == (False, False, "default")


def test_a_file_is_refused_before_anything_is_changed():
    state, (code, _) = last_of({"log_info": False, "log_file": "x"})
    assert (state, code) == (START, ErrorCode.UNSUPPORTED)


def test_unknown_keys_are_ignored():
    assert last_of({"log_colour": "red", "log_info": True}) == (START, None)
    assert last_of_message(log_colour=("string_param", "red")) == (START, None)


@pytest.mark.parametrize(
    ("key", "given", "field"),
    [
        ("log_info", ("bool_param", False), "info"),
        ("log_warning", ("bool_param", False), "warning"),
        ("log_error", ("bool_param", False), "error"),
        ("log_verbose_level", ("uint32_param", 7), "verbose_level"),
        ("log_format", ("string_param", "ISO8601"), "format"),
    ],
)
def test_each_setting_can_be_changed_by_a_message(key, given, field):
    state, error = last_of_message(**{key: given})
    assert (error, getattr(state, field)) == (None, given[1])


@pytest.mark.parametrize(
    ("key", "given", "text"),
    [
        ("log_info", ("string_param", "true"), "expect boolean for 'log_info'"),
        ("log_warning", ("uint32_param", 1), "expect boolean for 'log_warning'"),
        ("log_error", (None, None), "expect boolean for 'log_error'"),
        ("log_verbose_level", ("bool_param", True), "expect int32 for 'log_verbose_level'"),
        ("log_format", ("uint32_param", 1), "expect string for 'log_format'"),
        ("log_format", ("string_param", "xml"), "invalid argument for log_format, got: xml"),
    ],
)
def test_a_message_with_a_value_that_makes_no_sense_is_refused(key, given, text):
    assert last_of_message(**{key: given}) == (START, (ErrorCode.INVALID_ARG, text))


def test_a_message_can_not_name_another_file():
    assert last_of_message(log_file=("string_param", ""), log_info=("bool_param", False)) == (
        START,
        (ErrorCode.UNSUPPORTED, "log file location can not be updated through network protocol"),
    )


def test_an_audit_log_is_told_what_has_a_meaning():
    assert known({"log_info": False, "log_file": None, "other": 1}) == {"log_info": False}
