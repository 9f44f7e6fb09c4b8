"""Turns ModelInferRequest bytes into `InferRequest`s.

For the commonest messages, no protobuf object is built: those that differ from an earlier one only in their
id and their raw tensors. Such a message is recognised by the rest of its bytes, whose meaning is kept. Raw
tensors stay views of the message; nothing is copied.

Contract: grpc.md section 7; texts and codes are exact, and errors come in the order in which Triton looks.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from actors.seams.steps import at_once
from actors.values.callers import Caller
from actors.values.errors import Internal
from actors.values.interfaces import NoRegions, Regions
from actors.values.regions import RegionPlace
from actors.values.requests import InferRequest, ReplyPort
from actors.values.specs import ModelSpec
from actors.values.tensors import Buffer, Tensor
from protocols.grpc.codec.infer_meaning import (
    AnswerPlan,
    Forwarded,
    Lifted,
    Meaning,
    accepted,
    no_data,
    reading,
)
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
from protocols.grpc.codec.typed_contents import STRINGS, Piece, lifting
from protocols.kserve.forwarding import with_forwarded
from protocols.kserve.permitted import attach
from protocols.kserve.proto.grpc_service_pb2 import ModelInferRequest
from protocols.memo import MEANING_FACTOR, MEANINGS_BYTES, Memo

READ_AT_ONCE: Final = 64 * 1024
"""The largest request that is decoded in one go, in bytes as `Target.unread_size` counts them."""

_KEPT: Final = 512  # meanings that a decoder remembers
_KEPT_LENGTH: Final = 4096  # bytes of the longest message whose meaning is remembered
# Raw tensors beyond those that a request names; they are looked at and left out.
_SURPLUS: Final = 64
_WORK: Final = {STRINGS: 4, 6: 0, 7: 0}


class _Unread(NamedTuple):
    """A request that was parsed and not yet checked.

    The fields that name its model are the first `front` bytes of `rest`. `lifted` are typed contents that
    were too long to be parsed, by the places of their inputs. `size` is that of all that is to be read.
    """

    document: ModelInferRequest
    rest: bytes
    front: int
    lifted: Lifted
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

    def __init__(self, regions: Regions | None = None) -> None:
        """`regions` are those of clients' shared memory. Without it, there are none."""
        self._regions = NoRegions() if regions is None else regions
        self._meanings: Memo[bytes, Meaning] = Memo(_KEPT, MEANINGS_BYTES)
        # By the bytes of a model's name and version: the bytes that
        # last followed (behind the id), and the meaning.
        self._latest: dict[bytes, tuple[bytes, Meaning]] = {}

    def peek(self, message: Buffer) -> Target:
        """Return whose request `message` is. Raises Internal where it is no ModelInferRequest."""
        target = self.begin_peek(message)
        return target if isinstance(target, Target) else at_once(target)

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
        lifted: Lifted = {}
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
        caller: Caller | None = None,
    ) -> tuple[InferRequest, AnswerPlan]:
        """Return the request that `target` holds and how its answer is to be written.

        `deadline` is absolute, on the clock of `accepted_at`. The request's tensors view the message. A
        request that names regions of shared memory holds them: the caller ends that
        (`InferRequest.regions`), if its `caller` may. Raises InvalidArgument, NotFound, Unsupported and
        PermissionDenied.
        """
        meaning = target.meaning or at_once(self.learning(target, spec, forwarded))
        parameters = meaning.parameters
        if forwarded is not None:
            parameters = with_forwarded(parameters, accepted(forwarded))
        names = meaning.names
        data: Sequence[Buffer] = target.raw if meaning.data is None else meaning.data
        regions = meaning.regions
        if regions is not None:
            data = _with_gaps(data, regions.inputs)
        if len(data) < len(names):
            raise no_data(names[len(data)], spec)
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
        if regions is not None:
            attach(self._regions, request, regions, caller)
        return request, meaning.plan

    def learning(
        self, target: Target, spec: ModelSpec, forwarded: Forwarded
    ) -> Generator[None, None, Meaning]:
        """Find out what `target` means, and keep that in it, so that `decode` is short.

        Raises as `decode` does. Stops now and then, some tenths of a millisecond apart.
        """
        assert target.unread is not None, "a target has a meaning or is unread"
        document, rest, front, lifted, _ = target.unread
        meaning = yield from reading(document, target.id, len(target.raw), lifted, spec, forwarded)
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


def _with_gaps(data: Sequence[Buffer], places: Sequence[RegionPlace | None]) -> list[Buffer]:
    """Return `data` with nothing in place of inputs in shared memory, up to the first input without data."""
    filled: list[Buffer] = []
    taken = 0
    for place in places:
        if place is not None:
            filled.append(b"")
        elif taken < len(data):
            filled.append(data[taken])
            taken += 1
        else:
            break
    return filled


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
