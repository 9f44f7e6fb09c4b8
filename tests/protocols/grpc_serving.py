"""Toy gRPC services, a listener for them on loopback, and grpcio clients driven from threads."""

# ruff: noqa: ASYNC110  # the kernel and grpcio do part of the work, and have no event to wait for

import socket
from contextlib import asynccontextmanager
from functools import partial

import grpc
import numpy as np
import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument, NotFound
from actors.values.requests import InferResponse
from actors.values.tensors import Tensor
from protocols.grpc.call import UnaryMethod
from protocols.grpc.listener import GrpcListener

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"


class Raw:
    """A message type that is its own bytes."""

    def __init__(self, data=b""):
        self.data = data

    @classmethod
    def FromString(cls, data):
        return cls(data)

    def SerializeToString(self):
        return self.data


class Echo(UnaryMethod):
    """A unary method that answers with the message it got, at once unless `held` is a list."""

    def __init__(self):
        self.held = None
        self.cancelled = []
        self.finished_with = []
        self.leases = 0
        self.released = 0
        self.begun = 0

    def begin(self, call, message):
        self.begun += 1
        call.context = message
        if bytes(message[:5]) == b"error":
            raise NotFound(f"no such thing: {bytes(message[5:]).decode()}")
        if bytes(message[:3]) == b"bug":
            raise ZeroDivisionError("a bug in begin")
        if self.held is not None:
            self.held.append(call)
        else:
            self.answer(call)

    def answer(self, call, message=None):
        self.respond(call, call.context if message is None else message)

    def respond(self, call, message):
        data = np.frombuffer(message, np.uint8)
        tensor = Tensor("Y", DataType.UINT8, (len(data),), data.data)
        response = InferResponse(model_name="echo", model_version=1, outputs=[tensor])
        response.on_release(self._release)
        self.leases += 1
        call.put(response, final=True)

    def _release(self):
        self.released += 1

    def encode(self, call, response):
        data = response.outputs[0].data
        if bytes(data[:6]) == b"encode":
            raise ZeroDivisionError("a bug in encode")
        if bytes(data[:6]) == b"untold":
            raise InvalidArgument("that can't be told")
        return (data,), len(data)

    def cancel(self, call):
        self.cancelled.append(call)

    def finished(self, call, outcome):
        self.finished_with.append(outcome)


class Service:
    """Echoes in every way that a call can have."""

    def __init__(self):
        self.echo = Echo()
        self.unary_methods = {INFER: self.echo}
        self.received = []
        self.cancelled = trio.Event()
        self.proceed = trio.Event()
        self.methods = {
            INFER: (self.unreached, Cardinality.UNARY_UNARY),
            LIVE: (self.upper, Cardinality.UNARY_UNARY),
            STREAM: (self.each, Cardinality.STREAM_STREAM),
            "/toy.Toy/Count": (self.count, Cardinality.UNARY_STREAM),
            "/toy.Toy/Gather": (self.gather, Cardinality.STREAM_UNARY),
            "/toy.Toy/Wait": (self.wait, Cardinality.UNARY_UNARY),
            "/toy.Toy/Fail": (self.fail, Cardinality.UNARY_UNARY),
            "/toy.Toy/Silent": (self.silent, Cardinality.UNARY_UNARY),
            "/toy.Toy/Idle": (self.idle, Cardinality.STREAM_STREAM),
        }

    def __mapping__(self):
        return {path: Handler(func, kind, Raw, Raw) for path, (func, kind) in self.methods.items()}

    async def unreached(self, stream):
        raise AssertionError("answered without a task")

    async def upper(self, stream):
        message = await stream.recv_message()
        await stream.send_message(Raw(message.data.upper()))
        metadata = {"seen": str(stream.metadata.get("told")), "peer": stream.peer, "blob-bin": b"\x00\xff"}
        stream.call.wire.writer.send_status(stream.call, 0, "", metadata)

    async def each(self, stream):
        async for message in stream:
            await stream.send_message(message)

    async def count(self, stream):
        message = await stream.recv_message()
        for number in range(int(message.data)):
            await stream.send_message(Raw(b"%d" % number))

    async def gather(self, stream):
        parts = [message.data async for message in stream]
        await stream.send_message(Raw(b"".join(parts)))

    async def wait(self, stream):
        await stream.recv_message()
        try:
            await self.proceed.wait()
            await stream.send_message(Raw(b"done"))
        except trio.Cancelled:
            self.cancelled.set()
            raise

    async def fail(self, stream):
        message = await stream.recv_message()
        match message.data:
            case b"known":
                raise NotFound("not found: näht")
            case b"grpc":
                raise GRPCError(Status.ALREADY_EXISTS, "there is one")
            case _:
                raise ZeroDivisionError("a bug in a method")

    async def silent(self, stream):
        await stream.recv_message()

    async def idle(self, stream):
        """Read nothing until the test says so; then gather what came."""
        await self.proceed.wait()
        async for message in stream:
            self.received.append(message.data)
        await stream.send_message(Raw(b"%d" % len(self.received)))


class Served:
    def __init__(self, listener, service, sock, crashes):
        self.listener = listener
        self.service = service
        self.socket = sock
        self.crashes = crashes
        name = sock.getsockname()
        self.target = f"unix:{name}" if isinstance(name, str) else "{}:{}".format(*name[:2])

    def channel(self, **options):
        return grpc.insecure_channel(
            self.target, options=[(f"grpc.{key}", value) for key, value in options.items()]
        )

    async def until(self, condition):
        """Let everything work until `condition()` holds."""
        with trio.fail_after(60):
            while not condition():
                await trio.sleep(0.002)


@asynccontextmanager
async def serve(service=None, options=None, *, tls=None, sock=None, **listener_options):
    service = service or Service()
    crashes = []
    listener = GrpcListener(
        [service],
        options,
        on_crash=lambda path, bug: crashes.append((path, bug)),
        tls=tls,
        **listener_options,
    )
    with sock or socket.create_server(("127.0.0.1", 0)) as listening:
        async with trio.open_nursery() as nursery:

            def spawn(name, run):
                nursery.start_soon(run, name=name)

            await nursery.start(listener.serve, listening, spawn)
            yield Served(listener, service, listening, crashes)
            nursery.cancel_scope.cancel()
    listener.close()


def identity(data):
    return data


def unary(channel, path=INFER):
    return channel.unary_unary(path, request_serializer=identity, response_deserializer=identity)


def bidi(channel, path=STREAM):
    return channel.stream_stream(path, request_serializer=identity, response_deserializer=identity)


async def in_thread(func, *args, **kwargs):
    """Run a client's blocking call in a thread of its own."""
    return await trio.to_thread.run_sync(
        partial(func, *args, **kwargs), limiter=trio.CapacityLimiter(1), abandon_on_cancel=True
    )
