"""A gRPC connection without a socket: a transport in memory, and a client of `h2` at the other end."""

# ruff: noqa: ASYNC110  # threads do part of the work, and have no event to wait for

import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    PingAckReceived,
    PingReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from protocols.grpc.calls import Environment
from protocols.grpc.connection import GrpcConnection
from protocols.grpc.listener import CallDeadlines, http2_limits
from protocols.grpc.methods import HeadReader
from protocols.grpc.policy import GrpcOptions
from protocols.http2.frames import GOAWAY
from protocols.transport.buffers import behind
from protocols.transport.receiving import ReceivingRoom
from protocols.transport.sockets import ConnectionLost, Transport
from tests.protocols.grpc_serving import INFER, Service


class MemoryTransport(Transport):
    """What the client has `sent`, and what the server has `written`, of which it takes `room` bytes."""

    def __init__(self):
        self.peer = "memory:"
        self.client_names = ()
        self.secured = False
        self.watch = None
        self.sent = bytearray()
        self.ended = False
        self.written = bytearray()
        self.room = float("inf")
        self.finished = False
        self.aborted = False
        self._bell = trio.lowlevel.ParkingLot()

    # The server's side

    async def handshake(self):
        await trio.lowlevel.checkpoint()

    def receive_into(self, buffer):
        count = min(len(buffer), len(self.sent))
        buffer[:count] = self.sent[:count]
        del self.sent[:count]
        if not count and not self.ended:
            raise BlockingIOError
        return count

    def exhausted(self, count, size):
        return count < size

    def send(self, buffers):
        if self.ended:
            raise ConnectionLost("the client is gone")
        data = b"".join(buffers)
        count = int(min(len(data), self.room))
        self.room -= count
        self.written += data[:count]
        return behind([data], count) if count < len(data) else []

    async def wait_readable(self):
        await trio.lowlevel.checkpoint()
        while not self.sent and not self.ended:
            await self._bell.park()

    async def wait_writable(self):
        await trio.lowlevel.checkpoint()
        while not self.room and not self.ended:
            await self._bell.park()

    def endpoints(self):
        return None, None

    def rouse(self):
        raise AssertionError("gRPC connections do not need it")

    def stop_reading(self):
        raise AssertionError("gRPC connections do not need it")

    def finish(self):
        self.finished = True

    def shut(self, *, abort=False):
        self.aborted = self.aborted or abort
        self.leave()

    def close(self):
        self.leave()

    # The client's side

    def deliver(self, data):
        self.sent += data
        self._bell.unpark_all()

    def leave(self):
        self.ended = True
        self._bell.unpark_all()

    def make_room(self, count):
        self.room += count
        self._bell.unpark_all()


@dataclass
class Answer:
    """What came on one stream."""

    head: dict = field(default_factory=dict)
    data: bytes = b""
    trailers: dict = field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self):
        return int({**self.head, **self.trailers}.get(b"grpc-status", -1))

    @property
    def message(self):
        return {**self.head, **self.trailers}.get(b"grpc-message", b"").decode()


class Client:
    """Speaks HTTP/2 in memory. `exchange` carries bytes both ways until both sides have nothing to say."""

    def __init__(self, transport, *, window=65_535):
        self.transport = transport
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.answers = {}
        self.pings = []
        self.pongs = []
        self.goodbyes = []
        self.acknowledges = True
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._partial = b""

    def open(self, path=INFER, **headers):
        stream = self.h2.get_next_available_stream_id()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "memory"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        self.h2.send_headers(
            stream, fields + [(key.replace("_", "-"), value) for key, value in headers.items()]
        )
        self.answers[stream] = Answer()
        return stream

    def send(self, stream, message, *, end=True, flag=0):
        self.send_bytes(stream, bytes((flag,)) + len(message).to_bytes(4, "big") + message, end=end)

    def send_bytes(self, stream, data, *, end=False, padding=None):
        for start in range(0, len(data), 16_000):
            part = data[start : start + 16_000]
            last = end and start + 16_000 >= len(data)
            self.h2.send_data(stream, part, end_stream=last, pad_length=padding)

    def ask(self, message, path=INFER, **headers):
        stream = self.open(path, **headers)
        self.send(stream, message)
        return stream

    async def begin(self, message, path=INFER, **headers):
        """Ask, carry bytes until neither side has any, and return the stream."""
        stream = self.ask(message, path, **headers)
        await self.exchange()
        return stream

    async def answer(self, message, path=INFER, **headers):
        """Ask, and return what has come on the stream once neither side has anything to say."""
        return self.answers[await self.begin(message, path, **headers)]

    async def exchange(self):
        """Carry bytes until neither side has any, and return the answers."""
        while True:
            self.transport.deliver(self.h2.data_to_send())
            await trio.testing.wait_all_tasks_blocked()
            if not self.transport.written:
                return self.answers
            written = self._partial + bytes(self.transport.written)
            self.transport.written.clear()
            for event in self.h2.receive_data(self._without_goodbyes(written)):
                self._take(event)

    async def until_ended(self, stream):
        """Carry bytes until a stream that threads work for has ended."""
        with trio.fail_after(10):
            while not (await self.exchange())[stream].ended:
                await trio.sleep(0.001)

    def _without_goodbyes(self, written):
        """Take GOAWAY out of whole frames: h2 holds it for the end of the connection."""
        others, at = b"", 0
        while len(written) - at >= 9:
            end = at + 9 + int.from_bytes(written[at : at + 3], "big")
            if end > len(written):
                break
            if written[at + 3] == GOAWAY:
                last, code = struct.unpack_from("!LL", written, at + 9)
                self.goodbyes.append((ErrorCodes(code), last, written[at + 17 : end]))
            else:
                others += written[at:end]
            at = end
        self._partial = written[at:]
        return others

    def _take(self, event):
        match event:
            case ResponseReceived():
                self.answers[event.stream_id].head = dict(event.headers)
            case DataReceived():
                self.answers[event.stream_id].data += event.data
                if self.acknowledges and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case TrailersReceived():
                self.answers[event.stream_id].trailers = dict(event.headers)
            case StreamEnded():
                self.answers[event.stream_id].ended = True
            case StreamReset():
                self.answers[event.stream_id].reset = event.error_code
            case PingReceived():
                self.pings.append(event.ping_data)
            case PingAckReceived():
                self.pongs.append(event.ping_data)


class Connected:
    def __init__(self, connection, client, service, crashes, violations):
        self.connection = connection
        self.client = client
        self.service = service
        self.echo = service.echo
        self.crashes = crashes
        self.violations = violations
        self.over = trio.Event()

    def sweep(self):
        self.connection.sweep(trio.current_time())

    async def sweep_after(self, seconds):
        await trio.sleep(seconds)
        self.sweep()


@asynccontextmanager
async def connect(options=None, service=None, *, window=65_535, jitter=0.0, speaks=True, room=None):
    """Serve one client in memory. The connection's own failures come out here."""
    options = options or GrpcOptions()
    service = service or Service()
    crashes: list[Any] = []
    violations: list[Any] = []
    deadlines = CallDeadlines()
    environment = Environment(
        options=options,
        heads=HeadReader([service], options),
        limits=http2_limits(options.connection_bytes),
        scratch=memoryview(bytearray(64 * 1024)),
        threads=trio.CapacityLimiter(2),
        deadlines=deadlines,
        room=room or ReceivingRoom(),
        on_crash=lambda path, bug: crashes.append((path, bug)),
        on_violation=lambda peer, code, message: violations.append((peer, code.name, message)),
        on_unsecured=lambda peer, reason: violations.append((peer, reason)),
    )
    transport = MemoryTransport()
    connection = GrpcConnection(transport, environment, now=trio.current_time(), jitter=jitter)
    connected = Connected(connection, Client(transport, window=window), service, crashes, violations)

    async def serve():
        try:
            await connection.serve()
        finally:
            connection.close()
            connected.over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.watch)
        nursery.start_soon(serve)
        if speaks:
            await connected.client.exchange()
        yield connected
        nursery.cancel_scope.cancel()
