"""The inference service's RPCs except the stream: their answers, and every refusal with its text."""

import gc
import json
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from actors.values.callers import RESTRICTABLE, Action
from actors.values.errors import Cancelled, ErrorCode, Internal, InvalidArgument, TritiumError
from actors.values.interfaces import IndexEntry
from actors.values.marks import ClientMarks
from actors.values.requests import Endings, InferResponse
from protocols.grpc.call import ServerStream
from protocols.grpc.codec.messages import Message
from protocols.grpc.codec.protobuf import delimited
from protocols.grpc.methods import CATEGORIES, method_table, restriction
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.inference import InferenceService
from protocols.grpc.services.offered import services
from protocols.kserve.proto import grpc_service_pb2 as pb
from protocols.kserve.proto import model_config_pb2
from tests.protocols.fakes import FakeModel, FakeServer, hold, make_spec
from tests.protocols.grpc_calls import infer, infer_request, make_call
from tests.protocols.scripted_stream import ScriptedStream
from tests.support.auditing import KeptAuditor

INFER = "/inference.GRPCInferenceService/ModelInfer"
A, B = np.arange(16, dtype=np.float32).reshape(1, 16), np.ones((1, 16), np.float32)
SUM = infer_request(arrays=[("A", "FP32", A), ("B", "FP32", B)], id="7")
NUMBER = np.array([[5]], np.int64)


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def service(server):
    return InferenceService(server.server)


async def ask(service, rpc, request):
    """Return the one answer to a unary RPC that runs as a coroutine."""
    stream = ScriptedStream(request)
    await getattr(service, rpc)(stream)
    (answer,) = stream.sent
    return answer


async def refusal(asked):
    with pytest.raises(TritiumError) as caught:
        await asked
    return caught.value.code, caught.value.message


LOAD, UNLOAD = pb.RepositoryModelLoadRequest, pb.RepositoryModelUnloadRequest
NO_VERSION = {
    "x": "failed to get model version from specified version string 'x' (details: stoll), "
    "version should be an integral value > 0",
    "0": "invalid model version specified '0' , version should be an integral value > 0",
}


def request_of(rpc, **fields):
    return getattr(pb, f"{rpc}Request")(**fields)


def with_parameter(request_type, key, **choice):
    request = request_type(model_name="add")
    request.parameters[key].CopyFrom(pb.ModelRepositoryParameter(**choice))
    return request


@pytest.mark.parametrize(
    ("rpc", "request_", "code", "text"),
    [
        *(
            (rpc, request_of(rpc, name=name, version=version), ErrorCode.NOT_FOUND, text)
            for rpc in ("ModelMetadata", "ModelConfig")
            for name, version, text in (
                ("nobody", "", "Request for unknown model: 'nobody' is not found"),
                ("add", "9", "Request for unknown model: 'add' version 9 is not found"),
            )
        ),
        # Before the model is looked up
        *(
            (rpc, request_of(rpc, name="nobody", version=version), ErrorCode.INVALID_ARG, text)
            for rpc in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
            for version, text in NO_VERSION.items()
        ),
        (
            "ModelStatistics",
            pb.ModelStatisticsRequest(name="nobody"),
            ErrorCode.INVALID_ARG,
            "requested model 'nobody' is not available",
        ),
        *(
            (
                rpc,
                request_of(rpc, repository_name="mine"),
                ErrorCode.UNSUPPORTED,
                "'repository_name' specification is not supported",
            )
            for rpc in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
        ),
        *(
            ("RepositoryModelLoad", with_parameter(LOAD, key, **choice), ErrorCode.INVALID_ARG, text)
            for key, choice, text in (
                (
                    "config",
                    {"bytes_param": b"{}"},
                    "invalid value type for load parameter 'config', expected string_param.",
                ),
                ("config", {}, "invalid value type for load parameter 'config', expected string_param."),
                (
                    "file:1/m",
                    {"string_param": ""},
                    "invalid value type for load parameter 'file:1/m', expected bytes_param.",
                ),
                ("colour", {"string_param": ""}, "unrecognized load parameter 'colour'."),
            )
        ),
        (
            "RepositoryModelUnload",
            with_parameter(UNLOAD, "unload_dependents", int64_param=1),
            ErrorCode.INVALID_ARG,
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
        *(
            (
                rpc,
                request_of(rpc, model_name="m" * 5000),
                ErrorCode.INVALID_ARG,
                f"the name of a model has 5000 characters, and may have 4096 at most: '{'m' * 80}...'",
            )
            for rpc in ("RepositoryModelLoad", "RepositoryModelUnload")
        ),
    ],
)
async def test_what_is_refused_has_its_code_and_text(server, service, rpc, request_, code, text):
    server.repository.explicit = True
    assert await refusal(ask(service, rpc, request_)) == (code, text)
    assert server.repository.loaded == server.repository.unloaded == []


# Health and metadata


@pytest.mark.parametrize(
    ("rpc", "fields", "known", "told"),
    [
        ("ServerLive", {}, "is_live", "live"),
        ("ServerReady", {}, "is_ready", "ready"),
        ("ModelReady", {"name": "add", "version": "1"}, "is_model_ready", "ready"),
    ],
)
@pytest.mark.parametrize("value", [True, False])
async def test_a_probe_is_a_boolean_in_an_ok_answer(server, service, rpc, fields, known, told, value):
    setattr(server.health, known, value)
    answer = await ask(service, rpc, request_of(rpc, **fields))
    assert answer == getattr(pb, f"{rpc}Response")(**{told: value})


@pytest.mark.parametrize("rpc", ["ServerLive", "ServerReady"])
async def test_while_the_server_exits_both_probes_fail(server, service, rpc):
    server.health.exiting = True
    asked = ask(service, rpc, request_of(rpc))
    assert await refusal(asked) == (ErrorCode.UNAVAILABLE, "Server exiting")


@pytest.mark.parametrize("state", ["exiting", "starting"])
@pytest.mark.parametrize(
    "rpc", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex"]
)
async def test_what_is_asked_about_models_needs_a_running_server(server, service, rpc, state):
    server.health.exiting, server.health.is_live = state == "exiting", state != "starting"
    asked = ask(service, rpc, request_of(rpc))
    assert await refusal(asked) == (ErrorCode.UNAVAILABLE, "Server not ready")


async def test_the_server_tells_its_name_version_and_extensions(service):
    assert await ask(service, "ServerMetadata", pb.ServerMetadataRequest()) == pb.ServerMetadataResponse(
        name="tritium", version="0.1.0", extensions=["classification", "statistics"]
    )


async def test_a_batching_models_metadata_has_a_leading_dimension(service):
    answer = await ask(service, "ModelMetadata", pb.ModelMetadataRequest(name="add"))
    assert (answer.name, list(answer.versions), answer.platform) == ("add", ["1"], "onnxruntime_onnx")
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.inputs] == [
        ("A", "FP32", [-1, 16]),
        ("B", "FP32", [-1, 16]),
    ]
    assert [each.name for each in answer.outputs] == ["S", "D"]


async def test_without_batching_a_models_shapes_are_its_dims(service):
    answer = await ask(service, "ModelMetadata", pb.ModelMetadataRequest(name="zeros", version="1"))
    assert [list(each.shape) for each in answer.inputs] == [[1]]


@pytest.mark.parametrize(("name", "version"), [("nobody", ""), ("add", "9")])
async def test_a_model_or_version_that_is_not_known_is_not_ready(service, name, version):
    """The `is_model_ready` of clients would raise at an error."""
    answer = await ask(service, "ModelReady", pb.ModelReadyRequest(name=name, version=version))
    assert answer == pb.ModelReadyResponse(ready=False)


async def test_a_configuration_is_the_message_whose_json_form_http_answers():
    config = (
        b'{"name":"add","platform":"onnxruntime_onnx","max_batch_size":8,"input":[{"name":"A","data_type":"TYPE_FP32",'
        b'"dims":[16]}],"instance_group":[{"name":"add","kind":"KIND_CPU","count":2,"gpus":[]}],'
        b'"dynamic_batching":{"max_queue_delay_microseconds":100,"priority_queue_policy":{"1":{"max_queue_size":4}}},'
        b'"parameters":{"k":{"string_value":"v"}}}'
    )
    model = FakeModel(replace(make_spec(), config_json=config), hold)
    service = InferenceService(FakeServer([model]).server)
    answer = (await ask(service, "ModelConfig", pb.ModelConfigRequest(name="add"))).config
    assert (answer.name, answer.max_batch_size, answer.parameters["k"].string_value) == ("add", 8, "v")
    assert answer.input[0].data_type == model_config_pb2.TYPE_FP32
    assert answer.dynamic_batching.priority_queue_policy[1].max_queue_size == 4
    assert answer.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU


async def test_a_long_configuration_is_converted_in_a_thread(server, service):
    model = server.model()
    inputs = [{"name": f"input {number}", "dims": [16]} for number in range(1000)]
    model.spec = replace(model.spec, config_json=json.dumps({"name": "add", "input": inputs}).encode())
    stream = ScriptedStream(pb.ModelConfigRequest(name="add"))
    stream.call = make_call()
    async with trio.open_nursery() as nursery:
        async with stream.call.wire.threads:  # it has room for one
            nursery.start_soon(service.ModelConfig, stream)
            await trio.testing.wait_all_tasks_blocked()
            assert stream.sent == []
    (answer,) = stream.sent
    assert [declared.name for declared in answer.config.input] == [declared["name"] for declared in inputs]


async def test_a_reloaded_models_configuration_is_the_new_one(server, service):
    model = server.model()
    await ask(service, "ModelConfig", pb.ModelConfigRequest(name="add"))
    model.spec = replace(model.spec, config_json=b'{"name":"add","max_batch_size":3}')
    answer = await ask(service, "ModelConfig", pb.ModelConfigRequest(name="add"))
    assert answer.config.max_batch_size == 3


async def test_statistics_have_the_fields_that_http_has(server, service):
    duration = {"count": 2, "ns": 10}
    server.models.statistics = lambda name, version: [
        {
            "name": "add",
            "version": "1",
            "last_inference": 1_700_000_000_000,
            "inference_count": 9,
            "execution_count": 2,
            "inference_stats": dict.fromkeys(
                (
                    "success",
                    "fail",
                    "queue",
                    "compute_input",
                    "compute_infer",
                    "compute_output",
                    "cache_hit",
                    "cache_miss",
                ),
                duration,
            ),
            "response_stats": {"0": {"compute_infer": duration}},
            "batch_stats": [{"batch_size": 4, "compute_infer": duration}],
            "memory_usage": [{"type": "GPU", "id": 1, "byte_size": 5}],
        }
    ]
    answer = await ask(service, "ModelStatistics", pb.ModelStatisticsRequest(name="add", version="1"))
    (element,) = answer.model_stats
    assert (element.last_inference, element.inference_count) == (1_700_000_000_000, 9)
    assert element.inference_stats.cache_miss == pb.StatisticDuration(count=2, ns=10)
    assert element.response_stats["0"].compute_infer.ns == 10
    assert element.batch_stats[0].batch_size == 4
    assert element.memory_usage[0].byte_size == 5


async def test_without_a_name_statistics_are_of_all_models(service, server):
    answer = await ask(service, "ModelStatistics", pb.ModelStatisticsRequest())
    assert [element.name for element in answer.model_stats] == list(server.models.by_name)


async def test_a_unary_call_without_a_message_is_refused(service):
    with pytest.raises(TritiumError) as caught:
        await service.ServerLive(ScriptedStream())
    assert caught.value.code is ErrorCode.UNSUPPORTED


# Repository


async def test_the_index_lists_models_and_leaves_empty_what_is_not_known(service):
    answer = await ask(service, "RepositoryIndex", pb.RepositoryIndexRequest())
    assert [(each.name, each.version, each.state, each.reason) for each in answer.models] == [
        ("add", "1", "READY", ""),
        ("broken", "2", "UNAVAILABLE", "no such file"),
        ("resting", "", "", ""),
    ]


async def test_the_index_may_be_of_what_is_ready(service):
    answer = await ask(service, "RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
    assert [each.name for each in answer.models] == ["add"]


async def test_a_reason_with_bytes_that_are_no_text_does_not_hide_the_index(server, service):
    server.repository.entries = [IndexEntry(name="add", version=1, state="UNAVAILABLE", reason="bad \udcff")]
    answer = await ask(service, "RepositoryIndex", pb.RepositoryIndexRequest())
    assert answer.models[0].reason == "bad ?"


@pytest.mark.parametrize("rpc", ["RepositoryModelLoad", "RepositoryModelUnload"])
async def test_loading_needs_the_explicit_mode(service, rpc):
    asked = ask(service, rpc, request_of(rpc, model_name="add"))
    text = "explicit model load / unload is not allowed if polling is enabled"
    assert await refusal(asked) == (ErrorCode.UNAVAILABLE, text)


async def test_a_load_may_bring_a_configuration_and_files(server, service):
    server.repository.explicit = True
    request = pb.RepositoryModelLoadRequest(model_name="add")
    request.parameters["config"].string_param = "{}"
    request.parameters["file:1/model.onnx"].bytes_param = b"\x00\xff"
    await ask(service, "RepositoryModelLoad", request)
    assert server.repository.loaded == [("add", {"config": "{}", "file:1/model.onnx": b"\x00\xff"})]


async def test_loads_and_unloads_are_told_to_the_audit_log_and_need_it(server):
    auditor = KeptAuditor()
    service = InferenceService(server.server, GrpcOptions(auditor=auditor))
    server.repository.explicit = True
    request = pb.RepositoryModelLoadRequest(model_name="add")
    request.parameters["file:1/model.onnx"].bytes_param = b"\x00\xff"
    await ask(service, "RepositoryModelLoad", request)
    await ask(service, "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="add"))
    assert auditor.told == [
        (outcome, action, "add", "")
        for action in ("model_load", "model_unload")
        for outcome in ("asked", "done")
    ]
    assert set(auditor.addresses) == {"192.0.2.7"}
    assert auditor.changes[0].files == {"file:1/model.onnx": b"\x00\xff"}
    auditor.unwritable = "the audit log can't be written: No space left on device"
    for rpc in ("RepositoryModelLoad", "RepositoryModelUnload"):
        asked = ask(service, rpc, request_of(rpc, model_name="add"))
        assert await refusal(asked) == (ErrorCode.UNAVAILABLE, auditor.unwritable)
    assert len(server.repository.loaded) == len(server.repository.unloaded) == 1


def whole(message, request_type=pb.RepositoryModelLoadRequest):
    """Return the stream of a unary call that sent `message`."""
    stream: ServerStream[Any, Any] = ServerStream(
        make_call(), request_type, unary_request=True, unary_reply=True
    )
    stream.feed(Message(message, compressed=False))
    stream.end()
    return stream


async def test_a_load_may_bring_large_files(server, service):
    server.repository.explicit = True
    request = pb.RepositoryModelLoadRequest(model_name="add")
    request.parameters["file:1/model.onnx"].bytes_param = bytes(3_000_000)
    stream = whole(bytearray(request.SerializeToString()))
    await service.RepositoryModelLoad(stream)
    assert server.repository.loaded == [("add", {"file:1/model.onnx": bytes(3_000_000)})]
    assert len(stream.call.wire.messages) == 1


@pytest.mark.parametrize(
    ("request_type", "message"),
    [
        (pb.RepositoryModelLoadRequest, b"\x1a\0" * 10_000),
        (pb.RepositoryModelLoadRequest, delimited(0x1A, b"\x12\0" * 10_000)),
        (pb.RepositoryModelLoadRequest, delimited(0x1A, delimited(0x12, b"\x08\1" * 10_000))),
        (pb.TraceSettingRequest, delimited(0x0A, delimited(0x12, b"\x0a\0" * 1000)) * 30),
        (pb.ServerLiveRequest, b"\x78\1" * 10_000),
        (pb.ServerLiveRequest, b"\x12\x7f" + bytes(20_000)),
    ],
    ids=["parameters", "of one", "of its value", "values of settings", "unknown ones", "no protobuf"],
)
async def test_a_request_of_more_fields_than_clients_send_is_not_parsed(request_type, message):
    with pytest.raises(Internal, match=r"^Exception deserializing request! "):
        await whole(message, request_type).recv_message()


async def test_a_question_is_short(server, service):
    message = pb.ModelReadyRequest(name="m" * 70_000).SerializeToString()
    with pytest.raises(Internal, match=r"ModelReadyRequest has 70004 bytes, and may have 65536 at most$"):
        await whole(message, pb.ModelReadyRequest).recv_message()


@pytest.mark.parametrize("dependents", [None, False, True])
async def test_an_unload_takes_dependents_along_where_asked_to(server, service, dependents):
    server.repository.explicit = True
    request = pb.RepositoryModelUnloadRequest(model_name="add")
    if dependents is not None:
        request.parameters["unload_dependents"].bool_param = dependents
    await ask(service, "RepositoryModelUnload", request)
    assert server.repository.unloaded == [("add", bool(dependents))]


# Restrictions and the table of methods


def test_every_rpc_of_the_inference_service_and_of_health_checks_can_be_restricted(service, server):
    health = (f"/grpc.health.v1.Health/{rpc}" for rpc in ("Check", "Watch"))
    paths = {*service.__mapping__(), *health}
    assert paths == set(CATEGORIES)
    assert set(CATEGORIES.values()) == set(RESTRICTABLE)
    assert paths <= set(method_table(services(server.server)))


@pytest.mark.parametrize("path", sorted(CATEGORIES))
def test_a_restricted_rpc_names_the_metadata_that_it_expects(path):
    closed = restriction(path, {CATEGORIES[path]: ("Admin-Key", "secret")})
    assert closed is not None
    assert (closed.key, closed.value) == ("triton-grpc-protocol-admin-key", "secret")
    assert closed.refusal == (
        "This protocol is restricted, expecting header 'triton-grpc-protocol-Admin-Key'"
    )


@pytest.mark.parametrize(
    ("shown", "opens"),
    [("gehéim", True), ("geheim", False), ("", False), (None, False), ("gehéim".encode(), False)],
)
def test_a_restricted_rpc_opens_for_its_value_alone(shown, opens):
    closed = restriction(INFER, {Action.INFERENCE: ("k", "gehéim")})
    assert closed is not None
    assert closed.opened_by(shown) is opens


def test_reflection_is_never_restricted():
    everything = dict.fromkeys(Action, ("k", "v"))
    assert restriction("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", everything) is None


def test_an_rpc_outside_the_restricted_categories_is_open():
    assert restriction(INFER, {Action.HEALTH: ("k", "v")}) is None


async def test_inference_is_answered_without_a_task(service):
    assert set(service.unary_methods) == {INFER}
    with pytest.raises(RuntimeError, match="unary_methods"):
        await service.ModelInfer(whole(b""))


# ModelInfer


@pytest.fixture
def method(service):
    return service.unary_methods[INFER]


async def test_an_inference_is_answered_with_raw_tensors_and_its_id(server, method):
    answer = await infer(method, SUM)
    assert (answer.model_name, answer.model_version, answer.id) == ("add", "1", "7")
    assert [each.name for each in answer.outputs] == ["S", "D"]
    assert [np.frombuffer(raw, np.float32).tolist() for raw in answer.raw_output_contents] == [
        (A + B).ravel().tolist(),
        (A - B).ravel().tolist(),
    ]
    assert server.model().released == 1
    assert server.model().submitted[0].requested_version == -1


async def test_a_request_remembers_the_version_that_it_names(server, method):
    request = pb.ModelInferRequest()
    request.CopyFrom(SUM)
    request.model_version = "1"
    await infer(method, request)
    assert server.model().submitted[0].requested_version == 1


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (
            infer_request("nobody"),
            ErrorCode.NOT_FOUND,
            "Request for unknown model: 'nobody' is not found",
        ),
        (
            infer_request("add", version="3"),
            ErrorCode.NOT_FOUND,
            "Request for unknown model: 'add' version 3 is not found",
        ),
        (
            infer_request("nobody", version="two"),
            ErrorCode.INVALID_ARG,
            "failed to get model version from specified version string 'two' (details: stoll), "
            "version should be an integral value > 0",
        ),
        (
            infer_request("nobody", version="-1"),
            ErrorCode.INVALID_ARG,
            "invalid model version specified '-1' , version should be an integral value > 0",
        ),
        (
            infer_request("streams", parameters={"sequence_start": 1}),
            ErrorCode.UNSUPPORTED,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        (
            infer_request("add", [("X", "FP32", A)], parameters={"sequence_start": 1}),
            ErrorCode.INVALID_ARG,
            "invalid value type for 'sequence_start' parameter, expected bool_param.",
        ),
        (
            infer_request("add", [("X", "FP32", A)]),
            ErrorCode.INVALID_ARG,
            "unexpected inference input 'X' for model 'add'",
        ),
        (
            infer_request("full", [("X", "INT64", NUMBER)]),
            ErrorCode.UNAVAILABLE,
            "Exceeds maximum queue size",
        ),
    ],
)
async def test_refusals_come_in_the_contracts_order(method, request_, code, text):
    assert await refusal(infer(method, request_)) == (code, text)


async def test_during_shutdown_no_inference_is_begun(server, method):
    server.health.exiting = True
    asked = infer(method, infer_request("nobody", version="two"))
    text = "GRPC server is shutting down and has stopped accepting new requests."
    assert await refusal(asked) == (ErrorCode.UNAVAILABLE, text)


async def test_a_message_that_is_no_request_is_refused(method):
    with pytest.raises(TritiumError) as caught:
        method.begin(make_call(), b"\x0a\xff\xff")
    assert caught.value.code is ErrorCode.INTERNAL


async def test_the_deadline_of_the_call_is_the_requests(server, method):
    await infer(method, SUM, deadline=1234.5)
    assert server.model().submitted[0].deadline == 1234.5


async def test_a_model_whose_queue_is_full_is_waited_for_in_a_task(server, method):
    model = server.model()
    at_once = model.submit_nowait
    admitted = []

    def full(request):
        raise trio.WouldBlock

    async def later(request):
        await trio.lowlevel.checkpoint()
        admitted.append(request)
        at_once(request)

    model.submit_nowait, model.submit = full, later
    answer = await infer(method, SUM)
    assert answer.id == "7"
    assert len(admitted) == 1


async def test_a_client_that_leaves_has_its_request_cancelled(server, method):
    call = make_call()
    method.begin(call, infer_request("held", [("X", "INT64", NUMBER)]).SerializeToString())
    method.cancel(call)
    assert server.model("held").cancelled == server.model("held").submitted != []


async def test_cancelling_a_call_that_was_refused_is_nothing(method):
    call = make_call()
    with pytest.raises(TritiumError):
        method.begin(call, infer_request("nobody").SerializeToString())
    method.cancel(call)


async def test_metadata_that_the_pattern_picks_becomes_parameters(server):
    options = GrpcOptions(header_forward_pattern=re.compile("my_", re.IGNORECASE))
    method = InferenceService(server.server, options).unary_methods[INFER]
    await infer(method, SUM, metadata={"my_header": "value", "my_bytes-bin": "cmF3", "other": "x"})
    assert server.model().submitted[0].parameters == {"my_header": "value", "my_bytes-bin": "raw"}


async def test_reserved_metadata_can_not_be_forwarded(server):
    options = GrpcOptions(header_forward_pattern=re.compile(".*"))
    method = InferenceService(server.server, options).unary_methods[INFER]
    asked = infer(method, SUM, metadata={"sequence_id": "9"})
    text = "Header 'sequence_id' is reserved for Triton usage and cannot be forwarded."
    assert await refusal(asked) == (ErrorCode.INVALID_ARG, text)


async def test_without_a_pattern_no_metadata_is_forwarded(server, method):
    await infer(method, SUM, metadata={"sequence_id": "9"})
    assert server.model().submitted[0].parameters is None


async def test_the_affinity_header_is_taken_from_the_metadata(server, method):
    server.model().marks = ClientMarks(affinity_header="x-user")
    await infer(method, SUM, metadata={"x-user": "ada"})
    await infer(method, SUM, metadata={})
    assert [request.affinity for request in server.model().submitted] == ["ada", ""]


async def test_the_hook_learns_what_came_of_each_request_that_could_be_read(server):
    told = []
    options = GrpcOptions(endings=Endings(lambda request, outcome, _: told.append((request.id, outcome))))
    method = InferenceService(server.server, options).unary_methods[INFER]
    await infer(method, SUM)
    (id_, outcome) = told.pop()
    assert id_ == "7"
    assert isinstance(outcome, InferResponse)
    assert outcome.model_version == 1
    call = make_call()
    method.begin(call, infer_request("held", [("X", "INT64", NUMBER)], id="8").SerializeToString())
    method.finished(call, Cancelled(""))
    assert told.pop()[0] == "8"
    refused = make_call()
    with pytest.raises(TritiumError):
        method.begin(refused, infer_request("nobody").SerializeToString())
    method.finished(refused, InvalidArgument(""))
    assert told == []


def typed_request(count):
    """Return a request whose tensor is `count` empty strings as typed contents."""
    request = infer_request("strings", id="typed")
    request.inputs.add(name="X", datatype="BYTES", shape=[1, count]).contents.bytes_contents.extend(
        [b""] * count
    )
    return request


async def test_long_typed_contents_are_read_in_slices_while_others_are_served(server, method):
    call = make_call()
    method.begin(call, typed_request(100_000).SerializeToString())
    (body,) = call.wire.started
    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await trio.lowlevel.checkpoint()
        for _ in range(3):
            assert (await infer(method, SUM)).id == "7"
            await trio.lowlevel.checkpoint()
            assert server.model("strings").submitted == []
    (outcome,) = call.wire.answers
    assert (outcome.id, len(outcome.outputs[0].data)) == ("typed", 400_000)
    outcome.release()


async def test_a_message_of_many_fields_is_taken_apart_in_slices(server, method):
    call = make_call()
    message = infer_request("held", id="many").SerializeToString() + b"\x3a\0" * 8000
    method.begin(call, message)
    (body,) = call.wire.started
    assert call.wire.answers == []
    await body()
    assert [request.id for request in server.model("held").submitted] == ["many"]


async def test_a_call_that_is_given_up_while_its_contents_are_read_never_reaches_the_model(server, method):
    call = make_call()
    method.begin(call, typed_request(100_000).SerializeToString())
    (body,) = call.wire.started
    async with trio.open_nursery() as nursery:
        nursery.start_soon(body)
        await trio.lowlevel.checkpoint()
        method.cancel(call)
        nursery.cancel_scope.cancel()
    method.finished(call, Cancelled(""))
    assert server.model("strings").submitted == []
    assert call.wire.answers == []


async def test_what_is_wrong_with_long_typed_contents_is_the_answer(method):
    request = typed_request(20_000)
    request.inputs[0].datatype = "INT32"
    with pytest.raises(InvalidArgument, match="of type 'BYTES', expected datatype 'INT32'"):
        await infer(method, request)


async def test_a_finished_call_holds_nothing_of_its_request(server, method):
    message = infer_request("full", [("X", "INT64", NUMBER)]).SerializeToString()
    call = make_call()
    gc.disable()  # what it would have to find is held too long
    try:
        before = sys.getrefcount(message)
        method.begin(call, message)
        (outcome,) = call.wire.answers
        method.finished(call, outcome)
        server.model("full").submitted.clear()
        assert sys.getrefcount(message) == before
    finally:
        gc.enable()


async def test_an_answer_is_written_as_the_version_that_gave_it_would(server, method):
    other = FakeModel(
        make_spec(
            "scores",
            inputs=[("X", server.model("scores").spec.inputs[0].datatype, (-1,))],
            outputs=[("Y", server.model("scores").spec.outputs[0].datatype, (-1,))],
            labels=("one", "two"),
        ),
        hold,
    )
    model = server.model("scores")
    answer_as_before = model.execute

    def pass_on(self, request):
        request.routed_to = other
        return answer_as_before(self, request)

    model.execute = pass_on
    request = infer_request("scores", [("X", "FP32", np.array([[0.25, 0.75]], np.float32))])
    request.outputs.add(name="Y").parameters["classification"].int64_param = 1
    answer = await infer(method, request)
    assert answer.raw_output_contents[0][4:].endswith(b":1:two")
