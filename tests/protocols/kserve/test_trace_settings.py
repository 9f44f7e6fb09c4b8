"""What the trace extension takes, and what it says of what it does not (contract, http.md 5.1, grpc.md 6)."""

import pytest

from actors.values.errors import ErrorCode, TritiumError, Unavailable
from actors.values.tracing.settings import TENSORS, TIMESTAMPS, Given, SettingChange
from protocols.kserve.extensions.trace_settings import (
    check_ready,
    control_of,
    is_known,
    json_change,
    known,
    message_change,
    told_values,
)
from tests.protocols.fakes import FakeModels, FakeServer

TOO_LARGE = "4294967296"
FILE = "trace file location can not be updated through network protocol"


@pytest.mark.parametrize(
    ("document", "change"),
    [
        ({}, {}),
        ({"unknown": 1}, {}),
        ({"trace_level": ["TIMESTAMPS"]}, {"levels": (TIMESTAMPS,)}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS", "TENSORS"]}, {"levels": (TIMESTAMPS, TENSORS)}),
        ({"trace_level": ["OFF"]}, {"levels": ()}),
        ({"trace_level": ["LOUD"]}, {"levels": Given.KEEP}),
        ({"trace_level": ["LOUD", "TENSORS"]}, {"levels": (TENSORS,)}),
        ({"trace_level": []}, {"levels": Given.KEEP}),
        ({"trace_level": None}, {"levels": Given.CLEAR}),
        ({"trace_rate": "5"}, {"rate": 5}),
        ({"trace_rate": " +5"}, {"rate": 5}),
        ({"trace_rate": 5}, {"rate": 5}),
        ({"trace_rate": "4294967295"}, {"rate": 4294967295}),
        ({"trace_rate": None}, {"rate": Given.CLEAR}),
        ({"trace_count": "-1"}, {"count": -1}),
        ({"trace_count": None}, {"count": Given.CLEAR}),
        ({"log_frequency": "0"}, {"log_frequency": 0}),
        ({"log_frequency": None}, {"log_frequency": Given.CLEAR}),
    ],
)
def test_a_document_is_a_change(document, change):
    assert json_change(document) == SettingChange(**change)


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        ({"trace_file": "x"}, ErrorCode.UNSUPPORTED, FILE),
        ({"trace_file": None, "trace_rate": "1"}, ErrorCode.UNSUPPORTED, FILE),
        (
            {"trace_level": ["OFF", "TENSORS"]},
            ErrorCode.INVALID_ARG,
            "Expect only one trace level 'OFF' is specified",
        ),
        ({"trace_rate": "x"}, ErrorCode.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": ""}, ErrorCode.INVALID_ARG, "Unable to parse 'trace_rate', got: "),
        ({"trace_rate": "5x"}, ErrorCode.INVALID_ARG, "Unable to parse 'trace_rate', got: 5x"),
        (
            {"trace_rate": TOO_LARGE},
            ErrorCode.INVALID_ARG,
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        (
            {"trace_rate": "-1"},
            ErrorCode.INVALID_ARG,
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1",
        ),
        (
            {"trace_count": "-2"},
            ErrorCode.INVALID_ARG,
            "Unable to parse 'trace_count'. Expecting value >= -1, got:-2",
        ),
        ({"trace_count": "many"}, ErrorCode.INVALID_ARG, "Unable to parse 'trace_count', got: many"),
        (
            {"trace_count": "2147483648"},
            ErrorCode.INVALID_ARG,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648",
        ),
        (
            {"trace_count": "-2147483649"},
            ErrorCode.INVALID_ARG,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -2147483649",
        ),
        ({"log_frequency": "x"}, ErrorCode.INVALID_ARG, "Unable to parse 'log_frequency', got: x"),
        (
            {"log_frequency": TOO_LARGE},
            ErrorCode.INVALID_ARG,
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        (
            {"trace_rate": 1.5},
            ErrorCode.INTERNAL,
            "Unable to parse 'trace_rate': attempt to access JSON non-string as string",
        ),
        (
            {"trace_level": "TENSORS"},
            ErrorCode.INTERNAL,
            "Unable to parse 'trace_level': attempt to access JSON non-array as array",
        ),
        ([], ErrorCode.INTERNAL, "attempt to access non-existing object member 'trace_level'"),
    ],
)
def test_a_document_that_makes_no_sense_is_refused_in_tritons_words(document, code, text):
    with pytest.raises(TritiumError) as caught:
        json_change(document)
    assert (caught.value.code, caught.value.message) == (code, text)


def test_a_long_value_is_repeated_in_part():
    with pytest.raises(TritiumError) as caught:
        json_change({"trace_rate": "x" * 10_000})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({}, {}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, {"levels": (TIMESTAMPS, TENSORS)}),
        ({"trace_level": ["OFF"]}, {"levels": ()}),
        ({"trace_level": []}, {"levels": Given.CLEAR}),
        ({"trace_rate": ["7"], "trace_count": []}, {"rate": 7, "count": Given.CLEAR}),
        ({"log_frequency": ["2"]}, {"log_frequency": 2}),
    ],
)
def test_a_message_is_a_change(settings, change):
    assert message_change(settings) == SettingChange(**change)


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"trace_file": []}, ErrorCode.UNSUPPORTED, FILE),
        *(
            ({key: ["1", "2"]}, ErrorCode.INVALID_ARG, f"expect only 1 value for '{key}'")
            for key in ("trace_rate", "trace_count", "log_frequency")
        ),
        (
            {"trace_level": ["OFF", "OFF"]},
            ErrorCode.INVALID_ARG,
            "Expect only one trace level 'OFF' is specified",
        ),
        ({"trace_rate": ["x"]}, ErrorCode.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
        (
            {"trace_count": ["-2"]},
            ErrorCode.INVALID_ARG,
            "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
        ),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_in_tritons_words(settings, code, text):
    with pytest.raises(TritiumError) as caught:
        message_change(settings)
    assert (caught.value.code, caught.value.message) == (code, text)


def test_a_message_tells_lists():
    told = told_values({"trace_level": ["TIMESTAMPS"], "trace_rate": "5"})
    assert list(told) == [("trace_level", ["TIMESTAMPS"]), ("trace_rate", ("5",))]


def test_an_audit_log_is_told_what_has_a_meaning():
    assert known({"trace_rate": "5", "other": 1, "trace_level": None}) == {
        "trace_level": None,
        "trace_rate": "5",
    }


def test_a_server_with_traces_has_its_settings_changed():
    traces = FakeServer([]).traces
    assert control_of(traces) is traces


def test_a_server_without_traces_says_so():
    with pytest.raises(Unavailable, match="the server does not support tracing"):
        control_of(None)


class Models(FakeModels):
    """A model that is loading, one that is not ready, and a ready one."""

    def versions(self, name):
        if name == "loading":
            raise Unavailable("it loads")
        if name == "failed":
            return []
        return [1] if name == "ready" else super().versions(name)


@pytest.mark.parametrize("name", ["loading", "failed"])
def test_a_model_that_is_not_ready_has_no_setting(name):
    for ask in (check_ready, is_known):
        with pytest.raises(TritiumError) as caught:
            ask(Models([]), name)
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert caught.value.message == f"Request for unknown model : {name}"


def test_a_model_is_known_or_not():
    assert is_known(Models([]), "")
    assert is_known(Models([]), "ready")
    assert not is_known(Models([]), "nope")
    with pytest.raises(TritiumError) as caught:
        check_ready(Models([]), "nope")
    assert caught.value.code is ErrorCode.NOT_FOUND
