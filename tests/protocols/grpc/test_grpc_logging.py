"""LogSettings: what is logged, told and changed over gRPC (contract, grpc.md section 6)."""

import pytest

from actors.values.errors import ErrorCode, TritiumError
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.inference import InferenceService
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.protocols.fakes import FakeServer
from tests.protocols.scripted_stream import ScriptedStream
from tests.support.auditing import KeptAuditor

AT_FIRST = {
    "log_file": ("string_param", "server.log"),
    "log_info": ("bool_param", True),
    "log_warning": ("bool_param", True),
    "log_error": ("bool_param", True),
    "log_verbose_level": ("uint32_param", 0),
    "log_format": ("string_param", "default"),
}


@pytest.fixture
def server():
    return FakeServer()


async def ask(server, options=None, **settings):
    """Return the settings as they are afterwards, or the error."""
    request = pb.LogSettingsRequest()
    for key, choice in settings.items():
        request.settings[key].CopyFrom(pb.LogSettingsRequest.SettingValue(**choice))
    stream = ScriptedStream(request)
    try:
        await InferenceService(server.server, options).LogSettings(stream)
    except TritiumError as error:
        return error.code, error.message
    (answer,) = stream.sent
    return {
        key: (member := value.WhichOneof("parameter_choice"), getattr(value, member))
        for key, value in answer.settings.items()
    }


async def test_a_message_without_settings_reads(server):
    assert await ask(server) == AT_FIRST


async def test_a_change_answers_with_the_settings_as_they_are_then(server):
    changed = {
        **AT_FIRST,
        "log_warning": ("bool_param", False),
        "log_verbose_level": ("uint32_param", 2),
        "log_format": ("string_param", "ISO8601"),
    }
    settings = {
        "log_warning": {"bool_param": False},
        "log_verbose_level": {"uint32_param": 2},
        "log_format": {"string_param": "ISO8601"},
    }
    assert await ask(server, **settings) == changed
    assert await ask(server) == changed


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        (
            {"log_file": {"string_param": "x"}},
            ErrorCode.UNSUPPORTED,
            "log file location can not be updated through network protocol",
        ),
        (
            {"log_error": {"string_param": "true"}},
            ErrorCode.INVALID_ARG,
            "expect boolean for 'log_error'",
        ),
        ({"log_info": {}}, ErrorCode.INVALID_ARG, "expect boolean for 'log_info'"),
        (
            {"log_format": {"string_param": "xml"}},
            ErrorCode.INVALID_ARG,
            "invalid argument for log_format, got: xml",
        ),
    ],
)
async def test_settings_that_make_no_sense_are_refused(server, settings, code, text):
    assert await ask(server, **settings) == (code, text)
    assert await ask(server) == AT_FIRST


async def test_what_stands_before_a_wrong_setting_is_applied(server):
    settings = {"log_format": {"bool_param": True}, "log_info": {"bool_param": False}}
    assert await ask(server, **settings) == (ErrorCode.INVALID_ARG, "expect string for 'log_format'")
    assert await ask(server) == {**AT_FIRST, "log_info": ("bool_param", False)}


async def test_changes_are_told_to_the_audit_log_and_reading_is_not(server):
    auditor = KeptAuditor()
    await ask(server, GrpcOptions(auditor=auditor), log_info={"bool_param": False})
    await ask(server, GrpcOptions(auditor=auditor))
    assert [(outcome, action) for outcome, action, *_ in auditor.told] == [
        ("asked", "logging"),
        ("done", "logging"),
    ]
    assert auditor.changes[0].facts == {"settings": {"log_info": False}}
