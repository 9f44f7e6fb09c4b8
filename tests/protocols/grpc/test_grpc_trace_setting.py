"""TraceSetting: trace settings told and changed over gRPC (contract, grpc.md section 6)."""

import pytest

from actors.values.callers import Action
from actors.values.errors import ErrorCode, TritiumError
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.inference import InferenceService
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.protocols.fakes import FakeServer
from tests.protocols.scripted_stream import ScriptedStream
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller

AT_FIRST = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": ["t.json"],
    "trace_mode": ["triton"],
}


@pytest.fixture
def server():
    return FakeServer()


async def ask(server, model="", options=None, caller=None, **settings):
    """Return the settings as they are afterwards, or the error."""
    request = pb.TraceSettingRequest(model_name=model)
    for key, values in settings.items():
        request.settings[key].value.extend(values)
    stream = ScriptedStream(request)
    stream.call.caller = caller
    try:
        await InferenceService(server.server, options).TraceSetting(stream)
    except TritiumError as error:
        return error.code, error.message
    (answer,) = stream.sent
    return {key: list(setting.value) for key, setting in answer.settings.items()}


@pytest.mark.parametrize("model", ["", "add"])
async def test_a_message_without_settings_reads(server, model):
    assert await ask(server, model) == AT_FIRST


async def test_a_change_of_a_model_is_its_own_and_no_value_clears_it(server):
    changed = {**AT_FIRST, "trace_rate": ["5"], "trace_level": ["TENSORS"]}
    assert await ask(server, "add", trace_rate=["5"], trace_level=["TENSORS"]) == changed
    assert await ask(server) == AT_FIRST
    assert await ask(server, "add", trace_rate=[], trace_level=[]) == AT_FIRST


async def test_of_an_unknown_model_nothing_is_told_and_nothing_changes(server):
    assert await ask(server, "nope", trace_rate=["5"]) == {}
    assert await ask(server) == AT_FIRST


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"trace_rate": ["1", "2"]}, ErrorCode.INVALID_ARG, "expect only 1 value for 'trace_rate'"),
        (
            {"trace_file": ["x"]},
            ErrorCode.UNSUPPORTED,
            "trace file location can not be updated through network protocol",
        ),
        (
            {"trace_rate": ["0"]},
            ErrorCode.INVALID_ARG,
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
    ],
)
async def test_settings_that_make_no_sense_are_refused(server, settings, code, text):
    assert await ask(server, **settings) == (code, text)
    assert await ask(server) == AT_FIRST


async def test_reading_is_one_permission_changing_another_and_changing_all_a_third(server):
    owner = KnownCaller("owner", {(Action.TRACE, ""), (Action.SETTINGS, "add")})
    code, _ = await ask(server, caller=KnownCaller("reader", {(Action.TRACE, "")}), trace_rate=["5"])
    assert code is ErrorCode.PERMISSION_DENIED
    assert (await ask(server, "add", caller=owner, trace_rate=["5"]))["trace_rate"] == ["5"]
    code, text = await ask(server, caller=owner, trace_rate=["5"])
    assert code is ErrorCode.PERMISSION_DENIED
    assert text.startswith("this changes the traces of all models")
    assert await ask(server, caller=owner) == AT_FIRST


async def test_changes_are_told_to_the_audit_log_and_reading_is_not(server):
    auditor = KeptAuditor()
    options = GrpcOptions(auditor=auditor)
    await ask(server, "add", options, trace_rate=["5"])
    await ask(server, "add", options)
    assert [(outcome, action) for outcome, action, *_ in auditor.told] == [
        ("asked", "trace"),
        ("done", "trace"),
    ]
    (change,) = auditor.changes
    assert (change.model, change.facts) == ("add", {"settings": {"trace_rate": ["5"]}})
