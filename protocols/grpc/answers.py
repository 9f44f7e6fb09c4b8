"""Answers of unary calls as frames, and what an answer on its way still holds: a model's memory, and its call.

The memory that an answer views is given back after each write. That is at once where the socket and the
client's windows took everything. Otherwise the rest is copied first, so that a slow reader costs memory of
this connection and not of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from grpclib.exceptions import GRPCError

from actors.seams.slices import in_slices, in_threads
from actors.values.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    TooManyRequests,
    TritiumError,
    Unauthenticated,
    Unavailable,
)
from actors.values.requests import InferResponse
from actors.values.tensors import Buffer
from protocols.grpc.call import Call, Metadata
from protocols.grpc.call_states import SEND
from protocols.grpc.codec import heads, messages
from protocols.grpc.codec.heads import Refusal
from protocols.grpc.methods import BUG, CallTasks
from protocols.grpc.policy import AnswerRoom, GrpcOptions
from protocols.http2.sending import StreamSender
from protocols.http2.streams import Stream
from protocols.kserve.compression import compress, compressing
from protocols.status import grpc_status, retry_seconds

# Bytes of an answer that are copied in one piece. A longer one is copied in slices.
_OWNED_AT_ONCE: Final = 1024 * 1024
FOLDED_HERE: Final = 64 * 1024
"""Bytes of the largest message that is compressed on the loop. Larger ones of unary calls are in a thread."""

# Bytes compressed on the loop before other tasks get a turn.
_FOLDED_A_TURN: Final = 256 * 1024

_OK: Final = heads.trailers()
_pack_prefix = messages.PREFIX.pack


class Folded:
    """An answer that was compressed in a thread, and the response that it was made of."""

    __slots__ = ("message", "response")

    def __init__(self, response: InferResponse, message: bytes) -> None:
        self.response = response
        self.message = message


Outcome = InferResponse | TritiumError | GRPCError | Refusal | Folded


class Departures:
    """Answers on their way. `over` is called for each call once nothing of it waits here any more."""

    __slots__ = ("_done", "_leases", "_long", "_over", "_sender", "_slow", "_speakers")

    def __init__(self, sender: StreamSender, over: Callable[[Call], None]) -> None:
        self._sender = sender
        self._over = over
        self._leases: list[tuple[Stream, InferResponse]] = []
        self._long: list[tuple[Stream, InferResponse]] = []  # the rest of these is to be copied in slices
        self._done: list[Call] = []  # ended since the last write
        self._slow: dict[Call, None] = {}  # ended, but the client's windows are shut
        self._speakers: dict[Call, None] = {}  # calls of coroutines whose answers wait

    def lend(self, stream: Stream, response: InferResponse) -> None:
        """Give back the memory of `response` once the frames of `stream` no longer view it."""
        self._leases.append((stream, response))

    def end(self, call: Call) -> None:
        """End a call with the next write: all of its answer is among the frames, or is not wanted."""
        self._done.append(call)

    def watch(self, call: Call) -> None:
        """Tell the coroutine of a call as its answers leave."""
        self._speakers[call] = None

    def settle(self) -> None:
        """Give back the memory of answers that were written or copied, and end calls that are complete."""
        for stream, response in self._leases:
            if stream.pending > _OWNED_AT_ONCE:
                self._long.append((stream, response))
                continue
            if stream.pending:
                self._sender.own(stream)
            response.release()
        self._leases.clear()
        over = self._over
        for call in self._done:
            if call.stream.pending:
                self._slow[call] = None
            else:
                over(call)
        self._done.clear()
        if self._slow:
            for call in [call for call in self._slow if not call.stream.pending]:
                del self._slow[call]
                over(call)
        if self._speakers:
            self._tell_speakers()

    def _tell_speakers(self) -> None:
        for call in list(self._speakers):
            if not call.stream.pending:
                del self._speakers[call]
            if call.server_stream is not None:
                call.server_stream.departed()

    @property
    def long(self) -> bool:
        """Whether there is memory left that is to be given back by `own`."""
        return bool(self._long)

    async def own(self) -> None:
        """Copy the rest of long answers, and give back their memory."""
        while self._long:
            stream, response = self._long[-1]
            await in_slices(self._sender.owning(stream))
            self._long.pop()
            response.release()

    def forget(self, call: Call) -> bool:
        """Forget a call that is gone.

        Returns whether it was answered and only waited for the client to make room.
        """
        self._speakers.pop(call, None)
        if call not in self._slow:
            return False
        del self._slow[call]
        return True

    def drop(self) -> None:
        """The connection is gone: give back all memory."""
        for _, response in (*self._leases, *self._long):
            response.release()
        self._leases.clear()
        self._long.clear()


class UnaryAnswers:
    """Makes frames of the outcomes of unary calls, and tells methods that they were sent or dropped.

    `put` is given an outcome that took a thread to be compressed, to be sent in its turn.
    """

    def __init__(
        self,
        sender: StreamSender,
        departures: Departures,
        tasks: CallTasks,
        options: GrpcOptions,
        room: AnswerRoom,
        put: Callable[[Call, Outcome], None],
    ) -> None:
        self._sender = sender
        self._departures = departures
        self._tasks = tasks
        self._room = room
        self._replica = options.replica
        self._head = heads.initial(b"", options.replica)
        self._most = options.max_send_message
        self._level = messages.LEVELS.get(options.compression, 0)
        self._put = put

    def encode(self, outbox: Sequence[tuple[Call, Outcome]]) -> int:
        """Send the outcomes, until compressing them takes too long for one turn; return how many were sent."""
        folded = 0
        for index, (call, outcome) in enumerate(outbox):
            if folded > _FOLDED_A_TURN:
                return index
            if call.state.gone:
                self.drop(call, outcome)
                continue
            try:
                if isinstance(outcome, InferResponse):
                    folded += self._send(call, outcome)
                elif isinstance(outcome, Folded):
                    self._send_folded(call, outcome)
                else:
                    self._send_error(call, outcome)
            except TritiumError as error:
                self._send_error(call, error)
                self._let_go(call, outcome)
            except Exception as bug:  # noqa: BLE001  # a protocol's outer edge: a bug costs no other call
                self._tasks.crashed(call, bug)
                self._send_error(call, Internal(BUG))
                self._let_go(call, outcome)
        return len(outbox)

    def _send(self, call: Call, response: InferResponse) -> int:
        """Send a response; return how many bytes were compressed for it here and now."""
        unary = call.unary
        assert unary is not None, "only unary methods put responses"
        buffers, size = unary.encode(call, response)
        if size > self._most:
            raise too_large(size, self._most)
        coding = call.head.answer_coding
        if not coding or not size:
            head = self._head
            prefix = _pack_prefix(0, size)
            here = 0
        elif size > FOLDED_HERE:
            self._tasks.run_always(call, partial(self._fold, call, response, buffers, coding))
            return 0
        else:
            here = size
            folded = compress(buffers, coding, self._level)
            buffers, size = (folded,), len(folded)
            head, prefix = heads.initial(coding, self._replica), messages.prefix(size, compressed=True)
        self._sender.answer(call.stream, head, (prefix, *buffers), size + messages.PREFIX_SIZE, _OK)
        self._room.answered(size)
        call.state = call.state.after[SEND]
        unary.finished(call, response)
        if response.leased:
            self._departures.lend(call.stream, response)
        self._departures.end(call)
        return here

    async def _fold(
        self, call: Call, response: InferResponse, buffers: Sequence[Buffer], coding: bytes
    ) -> None:
        """Compress a large answer in a thread, which reads the response's memory until it is done."""
        try:
            message = await in_slices(in_threads(compressing(buffers, coding, self._level)))
        except Exception as bug:  # noqa: BLE001  # such as lack of memory: it costs no other call
            response.release()
            self._tasks.crashed(call, bug)
            self._put(call, Internal(BUG))
        except BaseException:
            # The client is gone, so this is not sent. It is dropped in its turn.
            self._put(call, Folded(response, b""))
            raise
        else:
            self._put(call, Folded(response, message))

    def _send_folded(self, call: Call, folded: Folded) -> None:
        message = folded.message
        head = heads.initial(call.head.answer_coding, self._replica)
        prefix = messages.prefix(len(message), compressed=True)
        self._sender.answer(call.stream, head, (prefix, message), len(message) + len(prefix), _OK)
        self._conclude(call, folded.response, len(message))
        folded.response.release()

    def _send_error(self, call: Call, error: TritiumError | GRPCError | Refusal) -> None:
        if isinstance(error, Refusal):
            block = heads.refused(error)
        else:
            block = heads.trailers_only(*status_of(error), trailing_metadata(error))
        self._sender.head(call.stream, block, end=True)
        self._conclude(call, error)

    def drop(self, call: Call, outcome: Outcome) -> None:
        """The client left before its answer was sent."""
        told = outcome.response if isinstance(outcome, Folded) else outcome
        self._conclude(call, told)
        release_outcome(outcome)

    def _let_go(self, call: Call, outcome: Outcome) -> None:
        """Give back an answer's memory, some of which may be on its way."""
        self._sender.own(call.stream)
        release_outcome(outcome)

    def _conclude(
        self, call: Call, outcome: InferResponse | TritiumError | GRPCError | Refusal, size: int = 0
    ) -> None:
        """End a call, and tell its method the outcome if it began."""
        told = call.state.told
        call.state = call.state.after[SEND]
        if not told:
            self._room.answered(size)
            if not isinstance(outcome, (InferResponse, TritiumError)):
                outcome = Cancelled("the call was refused")
            self._tasks.finished(call, outcome)
        self._departures.end(call)


def status_of(error: TritiumError | GRPCError) -> tuple[int, str]:
    """Return the number of the status that `error` stands for, and its message."""
    if isinstance(error, TritiumError):
        return grpc_status(error.code), error.message
    return error.status.value, error.message or ""


def trailing_metadata(error: TritiumError | GRPCError) -> Metadata | None:
    """Return the metadata that tells a client when to try again, or which credentials are wanted."""
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": error.challenge}
    if not isinstance(error, (Unavailable, TooManyRequests)):
        return None
    return heads.try_again(retry_seconds(error), known=error.retry_after > 0)


def release_outcome(outcome: Outcome) -> None:
    """Give back the memory of an answer."""
    if isinstance(outcome, Folded):
        outcome.response.release()
    elif isinstance(outcome, InferResponse):
        outcome.release()


def too_large(size: int, most: int) -> TritiumError:
    """Contract, grpc.md section 1."""
    return InvalidArgument(f"Response has byte size {size} which exceeds gRPC's byte size limit {most}.")
