"""What a worker says to the server is understood or a FrameError, and no request is answered twice.

An input's first byte tells whether the model is decoupled; packets follow, each behind two bytes of length.
The worker holds two batches when the first one arrives, of two requests and of one.
"""

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import trio

from actors.serving.instances.batches import InFlight
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.worker import LiveWorker
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.regions import Region, RegionSlice, WrittenTensor
from actors.values.requests import InferRequest
from actors.values.specs import Direct, InputSpec, InstanceSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor
from actors.wire import frames
from actors.wire.arena import OUTPUT
from actors.wire.batch_frames import Answer, Part, Placed, Result, join_parts
from actors.wire.frames import FrameError
from actors.wire.gathering import Cut
from actors.wire.parts import Arrived
from tests.fuzz.campaign import chance_of
from tests.fuzz.mutation import damaged
from tests.support.ports import Port

_ROWS = ((1, 2), (1,))  # of the requests in each batch
_WIDTH = 2  # elements of a row, four bytes each
_ROOM = 40  # bytes for an output in a region, which requests of one row have
_BATCHES = tuple(enumerate(_ROWS, start=1))  # by the number that the server gives them
_KINDS = (
    *(frames.READY, frames.LOAD_FAILED, frames.RESULT, frames.ROOM, frames.LOG, frames.PROBED, frames.SHORT),
    *(frames.PART, frames.PARTS, frames.MORE, frames.SPILLED, frames.LOAD, frames.STOP, 0, 21, 64, 255),
)


class WorkerFrames:
    """Plays a worker to a `LiveWorker`, one packet after the other, until one is refused."""

    name = "worker"
    prefix = "worker"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """What an honest worker may say, in any order, partly damaged; or noise behind a valid kind."""
        decoupled = chance.random() < 0.4
        packets = [_honest(chance, decoupled=decoupled) for _ in range(1 + int(chance.random() ** 2 * 8))]
        for at, packet in enumerate(packets):
            match chance.randrange(6):
                case 0:
                    packets[at] = packet[:1] + damaged(packet[1:], chance, [*corpus, *packets])
                case 1:
                    packets[at] = bytes((chance.choice(_KINDS),)) + chance.randbytes(chance.randrange(60))
                case 2:
                    packets[at] = bytes((chance.choice(_KINDS),)) + packet[1:]
                case _:
                    pass
        octets = bytes((255 * decoupled,)) + b"".join(map(_wrapped, packets))
        return octets if chance.random() < 0.9 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Play the packets. Raises anything but FrameError where the server would have."""
        return trio.run(_play, octets)


async def _play(octets: bytes) -> str:
    heard = _Heard()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    spec = _spec(decoupled=octets[:1] > b"\x7f")
    worker = LiveWorker(Pipe(ours), spec, spec.instances[0], heard, prefetch=True)
    with theirs:
        theirs.setblocking(False)
        worker.load("module:Class", {}, {})
        batches = [worker.dispatch([_request(rows) for rows in each], now=0.0) for each in _ROWS]
        while (handed := worker.held.next_handed_nowait()) is not None:
            worker.sender.forward(handed)
        _scribble(batches, chance_of(octets))
        outcome = "all understood"
        for packet in _packets(octets[1:]):
            _read_all(theirs)
            try:
                worker.on_packet(packet)
            except FrameError:
                outcome = "refused"
                break
        heard.check(batches)
        assert worker.pipe.backlog <= frames.WINDOW_PARTS + len(worker.outstanding) + 8
        worker.close()
    return f"{outcome}, {heard.ended} of {sum(map(len, _ROWS))} answered"


def _scribble(batches: Sequence[InFlight], chance: Random) -> None:
    """Write into the outputs: sound BYTES elements, or anything."""
    for batch in batches:
        view = batch.slot.segments[OUTPUT].view
        view[:64] = b"\x04\0\0\0word" * 8 if chance.random() < 0.5 else chance.randbytes(64)


def _read_all(sock: socket.socket) -> None:
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(sock, frames.MAX_FRAME, 4)
        except BlockingIOError:
            return
        for descriptor in descriptors:
            socket.close(descriptor)


class _Heard:
    """Notes what the worker has said. Implements `actors.serving.instances.worker.WorkerEvents`."""

    def __init__(self) -> None:
        self.finals: list[InferRequest] = []

    @property
    def ended(self) -> int:
        return len(self.finals)

    def check(self, batches: Sequence[InFlight]) -> None:
        """Check that no request is answered twice, and that only requests of the batches are answered."""
        asked = {id(request) for batch in batches for request in batch.requests}
        answered = [id(request) for request in self.finals]
        assert len(set(answered)) == len(answered)
        assert asked.issuperset(answered)

    def ready(self) -> None:
        """Nothing to note."""

    def unconfined(self, missing: Sequence[str]) -> None:
        """It is text, and not much."""
        assert sum(map(len, missing)) < frames.MAX_FRAME

    def load_failed(self, message: str, traceback: str) -> None:
        """It can be written to any log."""
        (message + traceback).encode()

    def finished(self, batch: InFlight, result: Result, answers: Sequence[Cut], *, borrowed: bool) -> None:
        """Take every answer apart as a frontend would."""
        for request, outputs, answer in answers:
            written = [tensor for tensor in outputs if isinstance(tensor, WrittenTensor)]
            assert not written or (request.output_regions and max(each.nbytes for each in written) <= _ROOM)
            _take_apart([tensor for tensor in outputs if tensor not in written])
            if answer is None or not (answer.open or answer.rescheduled):
                self.finals.append(request)

    def unsent(self, batch: InFlight, error: Exception) -> None:
        raise error

    def short(self, batch: InFlight) -> None:
        """It is a batch that was asked for."""
        assert batch.requests

    def part(self, batch: InFlight, arrived: Arrived) -> None:
        """The same of a part; its window is opened again at once."""
        _take_apart(arrived.outputs)
        if arrived.final:
            self.finals.append(arrived.stream.request)
        if arrived.costs:
            arrived.taken()

    def entered(self, phase: str) -> None:
        """It can be written to any log."""
        phase.encode()

    def logged(self, level: str, message: str) -> None:
        """It can be written to any log."""
        message.encode()

    def slot_freed(self) -> None:
        """Nothing to note."""

    def hung(self, limit: float) -> None:
        """Nothing here looks whether it hangs."""


def _take_apart(outputs: Sequence[Tensor]) -> None:
    for tensor in outputs:
        assert tensor.as_numpy().shape == tuple(tensor.shape)


def _request(rows: int) -> InferRequest:
    tensors = [Tensor.from_numpy("INPUT", np.ones((rows, _WIDTH), np.float32))]
    request = InferRequest(
        model_name="model",
        inputs=tensors,
        requested_outputs=("OUTPUT",),
        reply=Port(),
        accepted_at=0.0,
    )
    request.rows = rows
    if rows == 1:
        request.output_regions = {"OUTPUT": RegionSlice(Region("region", "/region", 0, 4096, -1), 0, _ROOM)}
    return request


def _spec(*, decoupled: bool) -> ModelSpec:
    here = Path("/models")
    return ModelSpec(
        name="model",
        version=1,
        platform="",
        backend="fake",
        max_batch_size=8,
        inputs=(InputSpec(name="INPUT", datatype=DataType.FP32, dims=(_WIDTH,)),),
        outputs=(OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,)),),
        scheduling=Direct(),
        instances=(InstanceSpec(name="model_0_0"),),
        model_directory=here,
        version_directory=here,
        artifact="",
        config_json=b"{}",
        decoupled=decoupled,
    )


# -- what an honest worker says ------------------------------------------------------------------------------


def _honest(chance: Random, *, decoupled: bool) -> bytes:
    number, rows = chance.choice(_BATCHES)
    kinds = [_result, _result, _room, _spilled, _cold]
    if decoupled:
        kinds += [_part, _part, _more]
    return chance.choice(kinds)(number, rows, chance)


def _result(number: int, rows: Sequence[int], chance: Random) -> bytes:
    if chance.random() < 0.5:
        datatype = chance.choice((DataType.FP32, DataType.FP32, DataType.BYTES))
        shape = (sum(rows), _WIDTH)
        sizes = [each * _WIDTH * 8 for each in rows]
        placed = (
            Placed("OUTPUT", datatype, shape, 0, sum(sizes), sizes)
            if datatype is DataType.BYTES
            else Placed("OUTPUT", datatype, shape, chance.choice((0, 8)), sum(rows) * _WIDTH * 4)
        )
        return Result(number, number - 1, len(rows), (1, 2, 3), [placed]).encode()
    return Result(
        number, number - 1, len(rows), (1, 2, 3), None, [_answer(each, chance) for each in rows]
    ).encode()


def _answer(rows: int, chance: Random) -> Answer:
    match chance.randrange(4):
        case 0:
            return Answer(code=chance.choice(list(ErrorCode)), message="it did not work")
        case 1:
            return Answer(open=True)
        case _:
            written = chance.random() < 0.2
            placed = Placed("OUTPUT", DataType.FP32, (rows, _WIDTH), 0, rows * _WIDTH * 4, written=written)
            return Answer([placed], {"a": 1, "b": "c"} if chance.random() < 0.5 else None)


def _room(number: int, rows: Sequence[int], chance: Random) -> bytes:
    return frames.encode_room(number - 1, number, chance.choice((0, 1, 70_000, 300_000)))


def _spilled(number: int, rows: Sequence[int], chance: Random) -> bytes:
    return frames.encode_spilled(number - 1, OUTPUT, chance.choice((0, 64)), chance.choice((1, 60, 60_000)))


def _cold(number: int, rows: Sequence[int], chance: Random) -> bytes:
    match chance.randrange(4):
        case 0:
            return frames.encode_json(frames.LOG, {"level": "info", "message": "héllo"})
        case 1:
            return frames.encode_json(frames.READY, {"asks": True, "unapplied": ["a filter"]})
        case 2:
            return frames.encode_probed(ready=chance.random() < 0.5)
        case _:
            return frames.encode_json(frames.LOAD_FAILED, {"message": "no file", "traceback": "line 1"})


def _part(number: int, rows: Sequence[int], chance: Random) -> bytes:
    index = chance.randrange(len(rows))
    if chance.random() < 0.3:
        return next(iter(Part(number, index, None, b"", 0, final=True).packets()))
    nbytes = rows[index] * _WIDTH * 4
    placed = Placed("OUTPUT", DataType.FP32, (rows[index], _WIDTH), 0, nbytes)
    part = Part(number, index, Answer([placed]), bytes(nbytes), nbytes, final=chance.random() < 0.3)
    packet = next(iter(part.packets()))
    return join_parts([packet] * chance.randrange(1, 70)) if chance.random() < 0.3 else packet


def _more(number: int, rows: Sequence[int], chance: Random) -> bytes:
    nbytes = 100_000
    placed = Placed("OUTPUT", DataType.FP32, (nbytes // 8, _WIDTH), 0, nbytes)
    packets = list(Part(number, 0, Answer([placed]), bytes(nbytes), nbytes, final=False).packets())
    return chance.choice(packets)[: chance.choice((2_000, frames.MAX_FRAME))]


def _wrapped(packet: bytes) -> bytes:
    packet = packet[:0xFFFF]
    return len(packet).to_bytes(2, "little") + packet


def _packets(octets: bytes) -> Iterator[bytes]:
    """Yield the packets, none of them empty.

    An empty one is the end of a connection, which is detected before frames are read.
    """
    at = 0
    while at + 2 < len(octets):
        size = int.from_bytes(octets[at : at + 2], "little")
        if size:
            yield octets[at + 2 : at + 2 + size]
        at += 2 + size
