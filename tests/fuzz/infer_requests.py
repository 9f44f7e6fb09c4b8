"""ModelInferRequest bytes: a decoder with a memory, against protobuf and against a decoder without one.

An input is a series of messages to one decoder; the byte before each says in what sort of buffer it comes.
"""

from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, Unsupported
from actors.values.requests import InferRequest
from protocols.grpc.codec.infer_meaning import AnswerPlan
from protocols.grpc.codec.infer_request import InferDecoder, Target
from protocols.kserve.proto.grpc_service_pb2 import ModelInferRequest
from tests.fuzz.mutation import damaged
from tests.fuzz.series import parts_of, series
from tests.protocols.fakes import make_spec
from tests.support.ports import Port

_SPEC = make_spec("simple", inputs=[("INPUT0", DataType.INT32, (-1,)), ("S", DataType.BYTES, (-1,))])
_BUFFERS = (bytes, bytes, bytearray, memoryview)
_PORT = Port()


class InferRequests:
    """Decodes each message twice and compares the results.

    A decoder that has seen others reads it as it comes; a fresh one reads it as protobuf writes it.
    """

    name = "requests"
    prefix = "request"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Return one request and variants of it: another id, other tensors, damage."""
        message = _drawn(chance) if chance.random() < 0.5 else chance.choice(corpus)
        sent = []
        for _ in range(chance.randrange(1, 7)):
            sent.append((chance.randrange(256), message[:60_000]))
            if chance.random() < 0.75:
                message = _varied(message, chance, corpus)
        return series(sent)

    def check(self, octets: bytes) -> str:
        """Compare message by message."""
        decoder = InferDecoder()
        outcome = "nothing"
        for tag, message in parts_of(octets):
            outcome = _compare(decoder, message, _BUFFERS[tag % len(_BUFFERS)])
        return outcome


def _compare(decoder: InferDecoder, message: bytes, buffer: type[Any]) -> str:
    document = _parsed(message)
    try:
        target = decoder.peek(buffer(message))
    except Internal:
        assert document is None, "protobuf reads it"
        return "no request"
    assert document is not None, "protobuf does not read it"
    _compare_target(target, document)
    said = _decoded(decoder, target)
    plain = InferDecoder()
    wanted = _decoded(plain, plain.peek(document.SerializeToString()))
    assert said == wanted
    if isinstance(said, str):
        return said.split(":")[0]
    return "request"


def _parsed(message: bytes) -> ModelInferRequest | None:
    try:
        return ModelInferRequest.FromString(message)
    except DecodeError:
        return None


def _compare_target(target: Target, document: ModelInferRequest) -> None:
    assert target.id == document.id
    assert target.model_name == document.model_name
    assert target.model_version == document.model_version


def _decoded(decoder: InferDecoder, target: Target) -> object:
    try:
        request, plan = decoder.decode(target, _SPEC, requested_version=-1, reply=_PORT, accepted_at=1.0)
    except (InvalidArgument, Unsupported) as error:
        return f"{type(error).__name__}: {error.message}"
    return _as_values(request, plan)


def _as_values(request: InferRequest, plan: AnswerPlan) -> tuple[object, ...]:
    inputs = [(one.name, one.datatype, tuple(one.shape), bytes(one.data)) for one in request.inputs]
    parameters = {key: repr(value) for key, value in (request.parameters or {}).items()}
    return (
        request.id,
        inputs,
        tuple(request.requested_outputs),
        parameters,
        request.priority,
        request.timeout,
        request.correlation_id,
        request.flags,
        dict(plan.classes or {}),
        plan.classes is None,
        plan.empty_final,
    )


def _varied(message: bytes, chance: Random, corpus: list[bytes]) -> bytes:
    if chance.random() < 0.35:
        return damaged(message, chance, corpus)
    document = _parsed(message)
    if document is None:
        return _drawn(chance)
    match chance.randrange(4):
        case 0:
            document.id = chance.choice(("", "a", "b" * 200, "é"))
        case 1:
            del document.raw_input_contents[:]
            document.raw_input_contents.extend(_tensors(chance))
        case 2:
            document.model_version = chance.choice(("", "1", "2"))
        case _:
            return message + damaged(message, chance, corpus)[: chance.randrange(40)]
    return document.SerializeToString()


def _tensors(chance: Random) -> list[bytes]:
    return [chance.randbytes(chance.choice((0, 4, 64, 127, 128, 300))) for _ in range(chance.randrange(4))]


def _drawn(chance: Random) -> bytes:
    """A request with a little of everything."""
    document = ModelInferRequest(
        model_name=chance.choice(("simple", "", "n" * 130)),
        model_version=chance.choice(("", "1")),
        id=chance.choice(("", "42", "i" * 130)),
    )
    for _ in range(chance.randrange(3)):
        _add_input(document, chance)
    for _ in range(chance.randrange(2)):
        output = document.outputs.add(name=chance.choice(("OUTPUT0", "X")))
        if chance.random() < 0.3:
            output.parameters["classification"].int64_param = chance.randrange(-1, 3)
    for _ in range(chance.randrange(2)):
        _set_parameter(document.parameters, chance)
    if chance.random() < 0.7:
        document.raw_input_contents.extend(_tensors(chance))
    return document.SerializeToString()


def _add_input(document: ModelInferRequest, chance: Random) -> None:
    declared = document.inputs.add(
        name=chance.choice(("INPUT0", "S", "unknown")),
        datatype=chance.choice(("INT32", "BYTES", "FP32", "BOOL", "UINT8", "FP16", "nonsense")),
        shape=[chance.choice((-1, 0, 1, 16, 2**40)) for _ in range(chance.randrange(3))],
    )
    match chance.randrange(10):
        case 0:
            declared.contents.int_contents.extend((1, -1, 2**31 - 1))
        case 1:
            declared.contents.fp32_contents.extend((1.5, float("nan")))
        case 2:
            declared.contents.bytes_contents.extend((b"", b"abc"))
        case 3:
            declared.contents.bool_contents.extend((True, False))
        case 4:
            declared.parameters["shared_memory_region"].string_param = "r"
        case 5:
            _set_parameter(declared.parameters, chance)
        case _:
            pass


def _set_parameter(parameters: Any, chance: Random) -> None:
    names = ("sequence_id", "sequence_start", "priority", "timeout", "triton_x", "custom", "")
    choice = parameters[chance.choice((*names, "triton_enable_empty_final_response", "headers"))]
    match chance.randrange(6):
        case 0:
            choice.bool_param = chance.random() < 0.5
        case 1:
            choice.int64_param = chance.choice((0, -1, 5, 2**63 - 1, -(2**63)))
        case 2:
            choice.string_param = "text"
        case 3:
            choice.double_param = 1.5
        case 4:
            choice.uint64_param = 2**64 - 1
        case _:
            pass
