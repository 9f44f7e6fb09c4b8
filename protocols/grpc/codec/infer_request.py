"""Turns ModelInferRequest bytes into `InferRequest`s.

For the commonest messages, no protobuf object is built: those that differ from an earlier one only in their
id and their raw tensors. Such a message is recognised by the rest of its bytes, whose meaning is kept. Raw
tensors stay views of the message; nothing is copied.

Contract: grpc.md section 7; texts and codes are exact, and errors come in the order in which Triton looks.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.errors import Internal, InvalidArgument, Unsupported
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor
from protocols.grpc.codec.protobuf import (
    ID,
    MAX_FIELDS,
    MODEL_NAME,
    MODEL_VERSION,
    RAW,
    Malformed,
    long_size,
    splitting,
)
from protocols.grpc.codec.typed_contents import STRINGS, Piece, lifting, packing, packing_lifted
from protocols.kserve.caps import check_count, check_dims, check_name, check_parameters
from protocols.kserve.compression import finish
from protocols.kserve.forwarding import with_forwarded
from protocols.kserve.proto.grpc_service_pb2 import ModelInferRequest
from protocols.kserve.requests import NO_SHARED_MEMORY, unknown_datatype
from protocols.memo import MEANING_FACTOR, MEANINGS_BYTES, Memo

if TYPE_CHECKING:
    from actors.values.requests import Parameter, ReplyPort
    from actors.values.tensors import Buffer

Forwarded = Mapping[str, str] | InvalidArgument | None
"""Metadata that becomes parameters, None for none, or the error in it, raised when its turn comes."""

READ_AT_ONCE: Final = 64 * 1024
"""The largest request that is decoded in one go, in bytes as `Target.unread_size` counts them."""

_KEPT: Final = 512  # meanings that a decoder remembers
_KEPT_LENGTH: Final = 4096  # bytes of the longest message whose meaning is remembered
# Raw tensors beyond those that a request names; they are looked at and left out.
_SURPLUS: Final = 64
_WORK: Final = {STRINGS: 4, 6: 0, 7: 0}
_UINT64_MAX: Final = 2**64 - 1
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_CUSTOM: Final = frozenset(("bool_param", "int64_param", "string_param", "double_param"))
_FLAGS: Final = {"sequence_start": FLAG_SEQUENCE_START, "sequence_end": FLAG_SEQUENCE_END}


@dataclass(frozen=True, slots=True, eq=False)
class AnswerPlan:
    """How a client wants its answer.

    `classes` maps each output that the client named to how many best classes it wants of it (0: the output as
    it is). It is None where the client named none and wants all outputs. `empty_final` asks for a last
    streamed answer without outputs, where a model gives no outputs with its last answer.
    """

    classes: Mapping[str, int] | None = None
    empty_final: bool = False


ALL_OUTPUTS: Final = AnswerPlan()


@dataclass(slots=True, eq=False)
class Meaning:
    """What a request says, apart from its id and, where `data` is None, its tensors' bytes."""

    model_name: str
    model_version: str
    parameters: Mapping[str, Parameter] | None = None
    priority: int = 0
    timeout: float = 0.0
    correlation_id: int | str = 0
    flags: int = 0
    names: Sequence[str] = ()
    datatypes: Sequence[DataType] = ()
    shapes: Sequence[tuple[int, ...]] = ()
    data: Sequence[Buffer] | None = None
    requested_outputs: tuple[str, ...] = ()
    plan: AnswerPlan = ALL_OUTPUTS


class _Unread(NamedTuple):
    """A request that was parsed and not yet checked.

    The fields that name its model are the first `front` bytes of `rest`. `lifted` are typed contents that
    were too long to be parsed, by the places of their inputs. `size` is that of all that is to be read.
    """

    document: ModelInferRequest
    rest: bytes
    front: int
    lifted: Mapping[int, Sequence[Piece]]
    size: int


class Target:
    """A request whose model is known. `InferDecoder.decode` reads the rest, given that model."""

    __slots__ = ("id", "meaning", "model_name", "model_version", "raw", "unread")

    def __init__(
        self,
        request_id: str,
        raw: list[memoryview],
        names: Meaning | ModelInferRequest,
        meaning: Meaning | None,
        unread: _Unread | None,
    ) -> None:
        self.id = request_id
        self.raw = raw
        self.model_name: str = names.model_name
        self.model_version: str = names.model_version
        self.meaning = meaning
        self.unread = unread

    @property
    def unread_size(self) -> int:
        """Bytes that `decode` has to work through.

        With typed contents that can be a second's work (`InferDecoder.learning`).
        """
        return 0 if self.unread is None else self.unread.size


Steps = Generator[None, None, Target]
"""The remaining steps of a long peek: they stop now and then, and return the target."""


class InferDecoder:
    """Decodes ModelInferRequests in two steps.

    It remembers what messages mean apart from their ids and raw tensors.
    """

    def __init__(self) -> None:
        self._meanings: Memo[bytes, Meaning] = Memo(_KEPT, MEANINGS_BYTES)
        # By the bytes of a model's name and version: the bytes that
        # last followed (behind the id), and the meaning.
        self._latest: dict[bytes, tuple[bytes, Meaning]] = {}

    def peek(self, message: Buffer) -> Target:
        """Return whose request `message` is. Raises Internal where it is no ModelInferRequest."""
        target = self.begin_peek(message)
        return target if isinstance(target, Target) else finish(target)

    def begin_peek(self, message: Buffer) -> Target | Steps:
        """Do as `peek` does; where that takes long, return the steps that are left. Both raise as it does."""
        front = 0
        if type(message) is bytes:
            try:
                # Nearly every message is [name][version][id][the same as last time][raw tensors].
                at = 0
                if message[0] == MODEL_NAME and (size := message[1]) < 0x80:
                    at = size + 2
                if message[at] == MODEL_VERSION and (size := message[at + 1]) < 0x80:
                    at += size + 2
                front = at
                latest = self._latest.get(message[:at])
                if latest is not None:
                    repeated, meaning = latest
                    request_id = ""
                    if message[at] == ID and (size := message[at + 1]) < 0x80:
                        start = at + 2
                        at = start + size
                        request_id = message[start:at].decode()
                    end = at + len(repeated)
                    if not message.startswith(repeated, at):
                        # Bytes of another length would not be known. Of the same length, they may be what
                        # other messages said before.
                        known = self._meanings.get(message[:front] + message[at:end])
                        if known is None:
                            return _begun(self._peeking(message, front))
                        meaning = known
                    raw = _raw_only(message, end, len(meaning.names) + _SURPLUS)
                    if raw is not None:
                        return Target(request_id, raw, meaning, meaning, None)
            except (IndexError, ValueError):
                pass  # unusual or broken: the code below tells which
        return _begun(self._peeking(message, front))

    def _peeking(self, message: Buffer, front: int) -> Steps:
        lifted: Mapping[int, Sequence[Piece]] = {}
        try:
            pieces, request_id, raw = yield from splitting(message)
            if sum(map(len, pieces)) > _KEPT_LENGTH:
                rest, lifted = yield from lifting(pieces)
            else:
                rest = b"".join(pieces)
            meaning = self._meanings.get(rest) if len(rest) <= _KEPT_LENGTH else None
            if meaning is not None:
                self._latest[rest[:front]] = (rest[front:], meaning)
                return Target(request_id, raw, meaning, meaning, None)
            document = ModelInferRequest.FromString(rest)
        except (Malformed, DecodeError) as error:
            raise Internal(
                f"failed to parse the {len(message)} bytes received as inference.ModelInferRequest: {error}"
            ) from error
        size = len(rest) + sum(map(_work, lifted.values()))
        return Target(request_id, raw, document, None, _Unread(document, rest, front, lifted, size))

    def decode(
        self,
        target: Target,
        spec: ModelSpec,
        *,
        requested_version: int,
        reply: ReplyPort,
        accepted_at: float,
        deadline: float = math.inf,
        forwarded: Forwarded = None,
    ) -> tuple[InferRequest, AnswerPlan]:
        """Return the request that `target` holds and how its answer is to be written.

        `deadline` is absolute, on the clock of `accepted_at`. The request's tensors view the message.
        Raises InvalidArgument and Unsupported.
        """
        meaning = target.meaning or finish(self.learning(target, spec, forwarded))
        parameters = meaning.parameters
        if forwarded is not None:
            parameters = with_forwarded(parameters, _accepted(forwarded))
        names = meaning.names
        data = target.raw if meaning.data is None else meaning.data
        if len(data) < len(names):
            raise _no_data(names[len(data)], spec)
        request = InferRequest(
            model_name=spec.name,
            requested_version=requested_version,
            id=target.id,
            inputs=list(map(Tensor, names, meaning.datatypes, meaning.shapes, data)),
            requested_outputs=meaning.requested_outputs,
            parameters=parameters,
            priority=meaning.priority,
            timeout=meaning.timeout,
            deadline=deadline,
            correlation_id=meaning.correlation_id,
            flags=meaning.flags,
            reply=reply,
            accepted_at=accepted_at,
        )
        return request, meaning.plan

    def learning(
        self, target: Target, spec: ModelSpec, forwarded: Forwarded
    ) -> Generator[None, None, Meaning]:
        """Find out what `target` means, and keep that in it, so that `decode` is short.

        Raises as `decode` does. Stops now and then, some tenths of a millisecond apart.
        """
        assert target.unread is not None, "a target has a meaning or is unread"
        document, rest, front, _, _ = target.unread
        meaning = yield from _reading(document, target, spec, forwarded)
        if meaning.data is None and len(rest) <= _KEPT_LENGTH:
            self._meanings.remember(rest, meaning, MEANING_FACTOR * len(rest))
            if len(self._meanings) <= 1:  # the others were forgotten
                self._latest.clear()
            self._latest[rest[:front]] = (rest[front:], meaning)
        target.meaning, target.unread = meaning, None  # the document may be many times as long as its tensors
        return meaning


def _begun(steps: Steps) -> Target | Steps:
    """Take the first two steps; most messages need no more. Raises as the steps do."""
    try:
        next(steps)
        next(steps)
    except StopIteration as end:
        target: Target = end.value
        return target
    return steps


def _work(pieces: Sequence[Piece]) -> int:
    """Return how long contents take to be packed, in bytes of others.

    Strings take long, and floats no time at all.
    """
    return sum(_WORK.get(piece.field, 1) * len(piece.content) for piece in pieces)


def _raw_only(message: bytes, at: int, most: int) -> list[memoryview] | None:
    """Return the first `most` raw tensors of a `message` with nothing else from `at` on; otherwise None."""
    view = memoryview(message)
    end = len(message)
    raw: list[memoryview] = []
    for _ in range(MAX_FIELDS):
        if at >= end:
            break
        if message[at] != RAW:
            return None
        size = message[at + 1]
        if size < 0x80:
            at += 2
        else:
            size, at = long_size(message, at + 1)
        content = at
        at += size
        if len(raw) < most:
            raw.append(view[content:at])
    return raw if at == end else None


def _accepted(forwarded: Mapping[str, str] | InvalidArgument) -> Mapping[str, str]:
    if isinstance(forwarded, InvalidArgument):
        raise InvalidArgument(forwarded.message)  # anew: this one is raised for many requests
    return forwarded


def _no_data(name: str, spec: ModelSpec) -> InvalidArgument:
    return InvalidArgument(
        f"unable to find data for input tensor '{name}' for model '{spec.name}' in request."
    )


def _reading(
    document: ModelInferRequest, target: Target, spec: ModelSpec, forwarded: Forwarded
) -> Generator[None, None, Meaning]:
    _check_counts(document, spec)
    meaning = Meaning(document.model_name, document.model_version)
    empty_final = _read_parameters(document.parameters, meaning)
    meaning.names = tuple(declared.name for declared in document.inputs)
    meaning.shapes = tuple(tuple(declared.shape) for declared in document.inputs)
    meaning.requested_outputs = tuple(output.name for output in document.outputs)
    if forwarded is not None:
        _accepted(forwarded)
    assert target.unread is not None, "its document is read"
    meaning.data = yield from _reading_data(document.inputs, len(target.raw), target.unread.lifted, spec)
    classes = {output.name: _classes(output) for output in document.outputs}
    if classes or empty_final:
        meaning.plan = AnswerPlan(classes or None, empty_final)
    # The core checks datatypes after everything else. Later code could not carry one that does not exist.
    meaning.datatypes = tuple(
        BY_PROTOCOL_NAME.get(declared.datatype) or _refuse_datatype(declared.name, target.id, spec)
        for declared in document.inputs
    )
    return meaning


def _check_counts(document: ModelInferRequest, spec: ModelSpec) -> None:
    """Raise InvalidArgument where a request has more of anything than it may (`protocols.kserve.caps`)."""
    check_parameters(len(document.parameters))
    check_count(len(document.inputs), len(spec.inputs), "input", spec.name)
    check_count(len(document.outputs), len(spec.outputs), "output", spec.name)
    for key in document.parameters:
        check_name(key, "a parameter")
    for declared in document.inputs:
        check_name(declared.name, "an input")
        check_name(declared.datatype, "a datatype")
        check_dims(declared.name, len(declared.shape))
        check_parameters(len(declared.parameters))
    for output in document.outputs:
        check_name(output.name, "an output")
        check_parameters(len(output.parameters))


def _refuse_datatype(name: str, request_id: str, spec: ModelSpec) -> DataType:
    raise unknown_datatype(name, request_id, spec)


# Parameters


def _read_parameters(parameters: Mapping[str, Any], meaning: Meaning) -> bool:
    """Set what `parameters` mean, in their keys' order; return whether a last empty answer is wanted."""
    custom: dict[str, Parameter] = {}
    empty_final = False
    for key in sorted(parameters):
        choice = parameters[key]
        kind: str | None = choice.WhichOneof("parameter_choice")
        value: Any = None if kind is None else getattr(choice, kind)
        match key:
            case "sequence_id":
                _expect(key, kind, "int64_param", "string_param")
                meaning.correlation_id = value if kind == "string_param" else value & _UINT64_MAX
            case "sequence_start" | "sequence_end":
                _expect(key, kind, "bool_param")
                if value:
                    meaning.flags |= _FLAGS[key]
            case "priority":
                _expect(key, kind, "int64_param", "uint64_param")
                if value < 0:
                    raise InvalidArgument("invalid value for 'priority', expected value >= 0.")
                meaning.priority = value
            case "timeout":
                _expect(key, kind, "int64_param")
                meaning.timeout = (value & _UINT64_MAX) / 1_000_000
            case "triton_enable_empty_final_response":
                _expect(key, kind, "bool_param")
                empty_final = value
            case _:
                custom[key] = _custom_parameter(key, kind, value)
    meaning.parameters = custom or None
    return empty_final


def _expect(key: str, kind: str | None, *expected: str) -> None:
    if kind not in expected:
        raise InvalidArgument(f"invalid value type for '{key}' parameter, expected {' or '.join(expected)}.")


def _custom_parameter(key: str, kind: str | None, value: Any) -> Parameter:
    if key.startswith("triton_"):
        raise InvalidArgument(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            f"with 'triton_' are allowed: {_EMPTY_FINAL}"
        )
    if kind not in _CUSTOM:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
        )
    parameter: Parameter = value
    return parameter


# Tensors


def _reading_data(
    inputs: Sequence[Any], raw_count: int, lifted: Mapping[int, Sequence[Piece]], spec: ModelSpec
) -> Generator[None, None, list[Buffer] | None]:
    """Return typed contents, packed; None where the inputs' data is among the raw tensors."""
    typed: list[Buffer] = []
    taken = 0
    for place, declared in enumerate(inputs):
        name = declared.name
        shared = _names_region(declared)
        typed_here = declared.HasField("contents")
        if shared and typed_here:
            raise InvalidArgument(
                f"unexpected 'content' provided when using shared memory for input tensor '{name}' "
                f"for model '{spec.name}'"
            )
        if shared:
            raise Unsupported(NO_SHARED_MEMORY)
        if typed_here and raw_count:
            raise InvalidArgument(
                f"contents field must not be specified when using raw_input_contents for '{name}' "
                f"for model '{spec.name}'"
            )
        if typed_here:
            datatype = BY_PROTOCOL_NAME.get(declared.datatype)
            if place in lifted:
                typed.append((yield from _packing(lifted[place], datatype, name, spec)))
            else:
                contents = declared.contents
                typed.append((yield from packing(contents, datatype, name=name, model=spec.name)))
        elif taken < raw_count:
            taken += 1
        else:
            raise _no_data(name, spec)
    return typed or None


def _packing(
    pieces: Sequence[Piece], datatype: DataType | None, name: str, spec: ModelSpec
) -> Generator[None, None, Buffer]:
    try:
        return (yield from packing_lifted(pieces, datatype, name=name, model=spec.name))
    except Malformed as error:
        raise Internal(f"failed to parse the contents of input tensor '{name}': {error}") from error


def _names_region(tensor: Any) -> bool:
    """Return whether `tensor` lies in shared memory, once its parameters about that are checked.

    Contract: shared_memory.md section 5.
    """
    parameters = tensor.parameters
    if not parameters:
        return False
    region = "shared_memory_region" in parameters
    if region:
        _expect_kind(tensor, "shared_memory_region", "string_param")
    for key in ("shared_memory_offset", "shared_memory_byte_size"):
        if key not in parameters:
            continue
        if not region:
            raise InvalidArgument(
                f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
            )
        _expect_kind(tensor, key, "int64_param")
    if region and "shared_memory_byte_size" not in parameters:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    return region


def _expect_kind(tensor: Any, key: str, expected: str) -> None:
    if tensor.parameters[key].WhichOneof("parameter_choice") != expected:
        raise InvalidArgument(
            f"invalid value type for '{key}' parameter for tensor '{tensor.name}', expected {expected}."
        )


def _classes(output: Any) -> int:
    """Return how many best classes the client wants of an output; 0 means the output as it is."""
    shared = _names_region(output)
    classes = 0
    if "classification" in output.parameters:
        choice = output.parameters["classification"]
        if choice.WhichOneof("parameter_choice") != "int64_param":
            raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
        classes = choice.int64_param
        if classes <= 0:
            raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
        if shared:
            raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
    if shared:
        raise Unsupported(NO_SHARED_MEMORY)
    return classes
