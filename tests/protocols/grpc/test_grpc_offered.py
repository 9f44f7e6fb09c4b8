"""Health and reflection over gRPC."""

import pytest
import trio
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from actors.values.errors import ErrorCode, TritiumError
from protocols.grpc.services.offered import (
    HealthService,
    ReflectionAlphaService,
    ReflectionService,
    Reflector,
)
from protocols.kserve.proto import grpc_service_pb2, health_pb2, reflection_v1_pb2, reflection_v1alpha_pb2
from protocols.kserve.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.protocols.fakes import FakeHealth
from tests.protocols.scripted_stream import ScriptedStream


def Probed(*, ready=True, exiting=False):
    health = FakeHealth()
    health.is_ready, health.exiting = ready, exiting
    return health


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "nobody.knows.It"])
async def test_a_ready_server_is_serving_whatever_service_is_named(service):
    stream = ScriptedStream(HealthCheckRequest(service=service))
    await HealthService(Probed()).Check(stream)
    assert stream.sent == [HealthCheckResponse(status=HealthCheckResponse.SERVING)]


async def test_a_server_that_is_not_ready_is_not_serving():
    stream = ScriptedStream(HealthCheckRequest(service="nobody.knows.It"))
    await HealthService(Probed(ready=False)).Check(stream)
    assert stream.sent == [HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)]


async def test_while_the_server_exits_the_call_itself_fails():
    stream = ScriptedStream(HealthCheckRequest())
    with pytest.raises(TritiumError) as refusal:
        await HealthService(Probed(exiting=True)).Check(stream)
    assert (refusal.value.code, refusal.value.message) == (ErrorCode.UNAVAILABLE, "Server exiting")
    assert stream.sent == []


async def test_who_watches_is_told_at_once_and_again_at_each_change_until_the_server_exits(nursery):
    health = Probed()
    stream = ScriptedStream(HealthCheckRequest())
    refusals = []

    async def watch():
        with pytest.raises(TritiumError) as refusal:
            await HealthService(health).Watch(stream)
        refusals.append((refusal.value.code, refusal.value.message))

    nursery.start_soon(watch)
    await wait_all_tasks_blocked()
    assert [answer.status for answer in stream.sent] == [HealthCheckResponse.SERVING]
    health.turn(is_ready=True)  # nothing new
    await wait_all_tasks_blocked()
    health.turn(is_ready=False)
    await wait_all_tasks_blocked()
    health.turn(is_ready=True)
    await wait_all_tasks_blocked()
    serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
    assert [answer.status for answer in stream.sent] == [serving, not_serving, serving]
    assert refusals == []
    health.turn(exiting=True)
    await wait_all_tasks_blocked()
    assert [answer.status for answer in stream.sent[3:]] == [not_serving]
    assert refusals == [(ErrorCode.UNAVAILABLE, "Server exiting")]


def test_the_paths_are_the_standard_ones():
    assert set(HealthService(Probed()).__mapping__()) == {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }


NOT_FOUND, INVALID_ARGUMENT = 5, 3
INFERENCE = "inference.GRPCInferenceService"
SERVICES = [INFERENCE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]
VERSIONS = [
    pytest.param(ReflectionService, reflection_v1_pb2, id="v1"),
    pytest.param(ReflectionAlphaService, reflection_v1alpha_pb2, id="v1alpha"),
]


async def ask(service, messages, *, reflector=None, **question):
    stream = ScriptedStream(messages.ServerReflectionRequest(**question))
    await service(reflector or Reflector(SERVICES)).ServerReflectionInfo(stream)
    [answer] = stream.sent
    return answer


def file_names(answer):
    return [
        FileDescriptorProto.FromString(each).name
        for each in answer.file_descriptor_response.file_descriptor_proto
    ]


@pytest.fixture
def extended():
    """A pool with a message, and in another file its extension number 126."""
    pool = DescriptorPool()
    base = FileDescriptorProto(name="base.proto", package="old")
    base.message_type.add(name="Open").extension_range.add(start=100, end=200)
    more = FileDescriptorProto(name="more.proto", package="old", dependency=["base.proto"])
    more.extension.add(
        name="extra",
        number=126,
        extendee=".old.Open",
        type=FieldDescriptorProto.TYPE_INT32,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool.Add(base)
    pool.Add(more)
    return Reflector([], pool)


@pytest.mark.parametrize(("service", "messages"), VERSIONS)
async def test_the_services_listed_are_the_ones_given_in_their_order(service, messages):
    answer = await ask(service, messages, list_services="*")
    assert [each.name for each in answer.list_services_response.service] == SERVICES


@pytest.mark.parametrize(("service", "messages"), VERSIONS)
async def test_a_file_comes_with_what_it_imports(service, messages):
    answer = await ask(service, messages, file_by_filename="grpc_service.proto")
    assert file_names(answer) == ["grpc_service.proto", "model_config.proto"]


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        (INFERENCE, "grpc_service.proto"),
        (f"{INFERENCE}.ModelInfer", "grpc_service.proto"),
        ("inference.ModelInferRequest", "grpc_service.proto"),
        ("inference.ModelInferRequest.InferInputTensor", "grpc_service.proto"),
        ("inference.ModelInferRequest.id", "grpc_service.proto"),
        ("inference.ModelConfig", "model_config.proto"),
        ("inference.DataType", "model_config.proto"),
        ("grpc.health.v1.Health", "health.proto"),
        ("grpc.health.v1.HealthCheckResponse.ServingStatus", "health.proto"),
        ("grpc.reflection.v1.ServerReflection", "reflection_v1.proto"),
        ("grpc.reflection.v1alpha.ServerReflection", "reflection_v1alpha.proto"),
    ],
)
async def test_a_symbol_s_file_is_found(symbol, file):
    answer = await ask(ReflectionService, reflection_v1_pb2, file_containing_symbol=symbol)
    assert file_names(answer)[0] == file


@pytest.mark.parametrize(("service", "messages"), VERSIONS)
@pytest.mark.parametrize(
    "question",
    [
        {"file_by_filename": "nothing.proto"},
        {"file_containing_symbol": "inference.Nothing"},
        {"file_containing_symbol": f"{INFERENCE}.Nothing"},
        {"file_containing_symbol": ""},
        {"all_extension_numbers_of_type": "inference.Nothing"},
        {"file_containing_extension": {"containing_type": "inference.Nothing", "extension_number": 1}},
        {"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": 1}},
    ],
    ids=str,
)
async def test_what_does_not_exist_is_answered_not_found(service, messages, question):
    answer = await ask(service, messages, **question)
    assert answer.error_response.error_code == NOT_FOUND
    assert "no " in answer.error_response.error_message


@pytest.mark.parametrize(("service", "messages"), VERSIONS)
async def test_a_request_for_nothing_is_answered_with_what_could_be_asked(service, messages):
    answer = await ask(service, messages, host="here")
    assert answer.error_response.error_code == INVALID_ARGUMENT
    assert "list_services" in answer.error_response.error_message


async def test_a_message_without_extensions_has_none():
    answer = await ask(
        ReflectionService, reflection_v1_pb2, all_extension_numbers_of_type="inference.ModelInferRequest"
    )
    numbers = answer.all_extension_numbers_response
    assert numbers.base_type_name == "inference.ModelInferRequest"
    assert list(numbers.extension_number) == []


@pytest.mark.parametrize(("service", "messages"), VERSIONS)
async def test_extensions_are_found_by_message_and_number(service, messages, extended):
    numbers = await ask(service, messages, reflector=extended, all_extension_numbers_of_type="old.Open")
    assert list(numbers.all_extension_numbers_response.extension_number) == [126]
    question = {"containing_type": "old.Open", "extension_number": 126}
    answer = await ask(service, messages, reflector=extended, file_containing_extension=question)
    assert file_names(answer) == ["more.proto", "base.proto"]


@pytest.mark.parametrize(("service", "messages"), VERSIONS)
async def test_every_answer_carries_its_question_in_the_order_asked(service, messages):
    questions = [
        messages.ServerReflectionRequest(host="a", list_services=""),
        messages.ServerReflectionRequest(host="b", file_by_filename="nothing.proto"),
        messages.ServerReflectionRequest(host="c", file_by_filename="health.proto"),
    ]
    stream = ScriptedStream(*questions)
    await service(Reflector(SERVICES)).ServerReflectionInfo(stream)
    assert [each.original_request for each in stream.sent] == questions
    assert [each.valid_host for each in stream.sent] == ["a", "b", "c"]


async def test_the_descriptors_make_messages_in_a_pool_that_has_never_seen_them():
    answer = await ask(ReflectionService, reflection_v1_pb2, file_containing_symbol=INFERENCE)
    pool = DescriptorPool()
    for each in reversed(answer.file_descriptor_response.file_descriptor_proto):
        pool.AddSerializedFile(each)
    request = GetMessageClass(pool.FindMessageTypeByName("inference.ModelInferRequest"))
    ours = grpc_service_pb2.ModelInferRequest.FromString(request(id="seven").SerializeToString())
    assert ours.id == "seven"


_text = st.text(st.characters(codec="utf-8"))
_number = st.integers(-(2**31), 2**31 - 1)


@given(
    question=st.one_of(
        [
            st.fixed_dictionaries({name: _text})
            for name in ("file_by_filename", "file_containing_symbol", "all_extension_numbers_of_type")
        ]
    )
    | st.fixed_dictionaries(
        {
            "file_containing_extension": st.fixed_dictionaries(
                {
                    "containing_type": _text | st.just("inference.ModelInferRequest"),
                    "extension_number": _number,
                }
            )
        }
    )
)
def test_no_text_and_no_number_breaks_it(question):
    answer = Reflector(SERVICES).answer(reflection_v1_pb2.ServerReflectionRequest(**question))
    assert answer.error_response.error_code == NOT_FOUND


class DirectChannel:
    """A grpcio channel as far as reflection's client needs one: bytes go straight to our service."""

    def __init__(self, service):
        self._methods = service.__mapping__()

    def stream_stream(self, path, request_serializer, response_deserializer, **_):
        method = self._methods[path]

        def call(requests):
            stream = ScriptedStream(
                *(method.request_type.FromString(request_serializer(r)) for r in requests)
            )
            trio.run(method.func, stream)
            return iter([response_deserializer(each.SerializeToString()) for each in stream.sent])

        return call


@pytest.mark.slow
def test_grpcio_s_own_reflection_client_reads_the_whole_api():
    database = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")
    source = database.ProtoReflectionDescriptorDatabase(
        DirectChannel(ReflectionAlphaService(Reflector(SERVICES)))
    )
    assert source.get_services() == SERVICES
    pool = DescriptorPool(source)
    for ours in (grpc_service_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR):
        for name, service in ours.services_by_name.items():
            theirs = pool.FindServiceByName(service.full_name)
            assert theirs.name == name
            assert list(theirs.methods_by_name) == list(service.methods_by_name)
    infer = pool.FindServiceByName(INFERENCE).methods_by_name["ModelInfer"]
    assert [field.name for field in infer.input_type.fields] == [
        field.name for field in grpc_service_pb2.ModelInferRequest.DESCRIPTOR.fields
    ]
    assert pool.FindMessageTypeByName("inference.ModelConfig").fields_by_name["max_batch_size"].number == 4
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("inference.Nothing")
