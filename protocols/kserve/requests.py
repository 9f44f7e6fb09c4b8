"""Turns bodies of the infer endpoint, as bytes, into `InferRequest`s.

A body is one of three things: a JSON text; a JSON text of a stated length with the bytes of its binary inputs
behind it; or (length 0) the bytes of the model's only input. Binary tensors stay views of the body; nothing
is copied.

Clients repeat themselves: between the requests of one client the JSON text in front of binary inputs is often
the same byte for byte. `InferDecoder` keeps what such texts meant, so that most requests only cost the
slicing.

Contract: http.md sections 6 and 7; texts and codes are exact. Errors come in the order in which Triton reads.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from actors.values.callers import Caller
from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.errors import InvalidArgument
from actors.values.interfaces import NoRegions, Regions
from actors.values.requests import InferRequest, ReplyPort
from actors.values.specs import InputSpec, ModelSpec
from actors.values.tensors import MAX_DIMS, Buffer, Tensor, element_count
from protocols.kserve.caps import RAISE_LIMIT, check_json_size
from protocols.kserve.documents import read_short
from protocols.kserve.elements import Packing, can_pack
from protocols.kserve.forwarding import with_forwarded
from protocols.kserve.long_texts import LongArray, LongText
from protocols.kserve.meanings import BINARY_OUTPUTS, InputMeaning, Meaning, OutputPlan, read_meaning
from protocols.kserve.permitted import attach
from protocols.memo import MEANING_FACTOR, MEANINGS_BYTES, Memo


def raw_tensor(body: Buffer, spec: ModelSpec, prefix: str) -> Tensor:
    """Return the model's single input made of a whole body, its shape deduced. Raises InvalidArgument."""
    if len(spec.inputs) != 1:
        raise InvalidArgument(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got {len(spec.inputs)} inputs "
            f"in '{spec.name}' model configuration"
        )
    (declared,) = spec.inputs
    leading = (1,) if spec.batches else ()
    if declared.datatype is DataType.BYTES:
        if declared.dims != (1,):
            raise InvalidArgument(
                f"{prefix}For BYTE datatype raw input '{declared.name}', the model must have input shape [1]"
            )
        packed = len(body).to_bytes(4, "little") + bytes(body)
        return Tensor(declared.name, DataType.BYTES, (*leading, 1), packed)
    dims = _deduce(declared, len(body), prefix)
    return Tensor(declared.name, declared.datatype, (*leading, *dims), memoryview(body))


def _deduce(declared: InputSpec, nbytes: int, prefix: str) -> tuple[int, ...]:
    dims = declared.dims
    if dims.count(-1) == 0:
        return dims
    if dims.count(-1) > 1:
        raise InvalidArgument(
            f"{prefix}The shape of the raw input '{declared.name}' can not be deduced because there are more than "
            "one variable-sized dimension"
        )
    fixed = declared.datatype.size
    for dim in dims:
        fixed *= 1 if dim == -1 else dim
    deduced = nbytes // fixed if fixed else 0
    return tuple(deduced if dim == -1 else dim for dim in dims)


DEFAULT_MAX_INPUT_SIZE: Final = 64 * 1024 * 1024

_KEPT_TEXTS: Final = 512  # JSON texts that a decoder remembers
_KEPT_LENGTH: Final = 4096  # bytes of the longest text that is remembered
# The root, `inputs`, an input: its members are values of the third level.
_DEPTH_OF_INPUT: Final = 3


class Arrival(NamedTuple):
    """What a request is apart from its body. `forwarded` are headers that become parameters.

    `caller`, if the server tells identities apart, may use shared memory or not.
    """

    requested_version: int
    reply: ReplyPort
    accepted_at: float
    forwarded: Mapping[str, str] | None = None
    caller: Caller | None = None


class InferDecoder:
    """Decode infer bodies under one size limit, remembering the JSON texts of binary requests."""

    def __init__(
        self, *, max_input_size: int = DEFAULT_MAX_INPUT_SIZE, regions: Regions | None = None
    ) -> None:
        """`regions` are those of clients' shared memory. Without it, there are none."""
        self._max_input_size = max_input_size
        self._regions = NoRegions() if regions is None else regions
        # Whether a text without binary tensors is worth looking up: only one with regions is remembered.
        self._regions_seen = False
        self._meanings: Memo[bytes, Meaning] = Memo(_KEPT_TEXTS, MEANINGS_BYTES)

    def decode(
        self, body: Buffer, json_size: int | None, spec: ModelSpec, arrival: Arrival
    ) -> tuple[InferRequest, OutputPlan]:
        """Return the request in `body` and how its answer is to be written.

        `json_size` is the value of the Inference-Header-Content-Length header, None where it was not sent.
        The request's tensors view `body`. A request that names regions of shared memory holds them: the
        caller ends that (`InferRequest.regions`).
        Raises InvalidArgument, Internal, NotFound, Unsupported and PermissionDenied, and TooLong where
        `decode_long` must do it.
        """
        if json_size == 0:
            return self._decode_raw(body, spec, arrival)
        size = len(body) if json_size is None else json_size
        meaning = self._meaning(body, size, spec, framed=json_size is not None)
        decoded = _request(meaning, body, size, spec, arrival)
        if meaning.regions is not None:
            attach(self._regions, decoded[0], meaning.regions, arrival.caller)
        return decoded

    def decode_long(
        self, body: Buffer, json_size: int | None, spec: ModelSpec, arrival: Arrival
    ) -> Generator[None, None, tuple[InferRequest, OutputPlan]]:
        """Do as `decode` does, in slices."""
        size = len(body) if json_size is None else json_size
        check_json_size(size, self._max_input_size)
        limit = self._max_input_size

        def taker_for(depth: int, members: Mapping[str, Any], key: str) -> Packing | None:
            return _packing(members, limit, size) if depth == _DEPTH_OF_INPUT and key == "data" else None

        document = yield from LongText(memoryview(body)[:size], taker_for).document()
        inputs = document.get("inputs") if type(document) is dict else None
        for element in inputs if type(inputs) is list else ():
            data = element.get("data") if type(element) is dict else None
            if type(data) is LongArray:
                yield from _pack_anew(data, _packing(element, limit, size))
        framed = json_size is not None
        meaning = read_meaning(document, len(body) - size, spec, limit=limit, framed=framed)
        decoded = _request(meaning, body, size, spec, arrival)
        if meaning.regions is not None:
            attach(self._regions, decoded[0], meaning.regions, arrival.caller)
        return decoded

    def _meaning(self, body: Buffer, size: int, spec: ModelSpec, *, framed: bool) -> Meaning:
        if size <= _KEPT_LENGTH and (framed or self._regions_seen):
            key = bytes(body[:size])
            kept = self._meanings.get(key)
            if kept is not None and kept.binary_size == len(body) - size:
                return kept
            text: Buffer = key
        else:
            text = body if size == len(body) else memoryview(body)[:size]
        check_json_size(size, self._max_input_size)
        document = read_short(text)
        meaning = read_meaning(document, len(body) - size, spec, limit=self._max_input_size, framed=framed)
        shared = meaning.regions is not None
        if (
            (meaning.binary_size or shared)
            and size <= _KEPT_LENGTH
            and not any(part.data for part in meaning.inputs)
        ):
            self._regions_seen |= shared
            self._meanings.remember(bytes(text), meaning, MEANING_FACTOR * size)
        return meaning

    def _decode_raw(self, body: Buffer, spec: ModelSpec, arrival: Arrival) -> tuple[InferRequest, OutputPlan]:
        if len(body) > self._max_input_size:
            raise InvalidArgument(
                f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of "
                f"{self._max_input_size} bytes. {RAISE_LIMIT}"
            )
        request = InferRequest(
            model_name=spec.name,
            requested_version=arrival.requested_version,
            parameters=arrival.forwarded,
            reply=arrival.reply,
            accepted_at=arrival.accepted_at,
        )
        request.inputs = (raw_tensor(body, spec, request.prefix),)
        return request, BINARY_OUTPUTS


def _request(
    meaning: Meaning, body: Buffer, size: int, spec: ModelSpec, arrival: Arrival
) -> tuple[InferRequest, OutputPlan]:
    parameters = meaning.parameters
    if arrival.forwarded is not None:
        parameters = with_forwarded(parameters, arrival.forwarded)
    request = InferRequest(
        model_name=spec.name,
        requested_version=arrival.requested_version,
        id=meaning.id,
        inputs=_tensors(meaning.inputs, memoryview(body), size),
        requested_outputs=meaning.requested_outputs,
        parameters=parameters,
        priority=meaning.priority,
        timeout=meaning.timeout,
        correlation_id=meaning.correlation_id,
        flags=meaning.flags,
        reply=arrival.reply,
        accepted_at=arrival.accepted_at,
    )
    return request, meaning.outputs


def _packing(members: Mapping[str, Any], limit: int, text_size: int) -> Packing | None:
    """Return the taker of the data of the input that has `members`.

    None where the members don't describe an input, or are wrong.
    """
    name, shape = members.get("name"), members.get("shape")
    datatype_name = members.get("datatype")
    datatype = BY_PROTOCOL_NAME.get(datatype_name) if type(datatype_name) is str else None
    if type(name) is not str or datatype is None or not can_pack(datatype) or type(shape) is not list:
        return None
    if len(shape) > MAX_DIMS or not all(type(dim) is int and dim > 0 for dim in shape) or not shape:
        return None
    count = element_count(shape)
    return Packing(name, datatype, count, limit, text_size) if count * datatype.size <= limit else None


def _pack_anew(data: LongArray, packing: Packing | None) -> Generator[None, None, None]:
    """Give `data` to `packing` where it was read before everything that it depends on was known."""
    taker = data.taker
    if packing is None:
        return
    if isinstance(taker, Packing) and taker.datatype is packing.datatype and taker.count == packing.count:
        return
    yield from data.give(packing)


def _tensors(parts: Sequence[InputMeaning], body: memoryview, at: int) -> list[Tensor]:
    tensors = []
    for name, datatype, shape, size, data in parts:
        if data is None:
            end = at + size
            data = body[at:end]
            at = end
        tensors.append(Tensor(name, datatype, shape, data))
    return tensors
