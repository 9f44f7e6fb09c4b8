"""gRPC calls without a connection: the real `Call` and `ServerStream` on a wire that keeps all output."""

import math
from typing import Any

import trio

from actors.values.callers import Peer
from actors.values.errors import TritiumError
from actors.values.requests import InferResponse
from protocols.grpc.call import Call, CallReader, CallWriter, ServerStream
from protocols.grpc.codec.heads import CallHead
from protocols.grpc.codec.messages import Message
from protocols.http2.streams import Stream
from protocols.kserve.proto import grpc_service_pb2 as pb


class UnboundedReader(CallReader):
    """The tests' clients never run into a window. A compressed message is unfolded by raising `broken`."""

    broken = AssertionError("the tests' clients do not compress")

    def taken(self, call):
        """Nothing has to be given back."""

    async def unfolded(self, call, message):
        raise self.broken


class KeptWire(CallWriter):
    """Keeps a unary call's answer, a streaming call's messages, and the work that a call wants run."""

    client = Peer("127.0.0.1", port=1)

    def __init__(self):
        self.threads = trio.CapacityLimiter(1)
        self.writer = self
        self.reader = UnboundedReader()
        self.answers = []
        self.started = []
        self.messages = []
        self.leases = []
        self.denied = []  # (error, model)
        self.wake = trio.Event()

    @property
    def now(self):
        return trio.current_time()

    def tell_denied(self, call, error, model=""):
        self.denied.append((error, model))

    def put(self, call, outcome):
        self.answers.append(outcome)

    def run(self, call, body):
        self.started.append(body)

    def send_part(self, call, buffers, size, lease):
        message = b"".join(buffers)
        assert len(message) == size
        self.messages.append(message)
        if lease is not None:
            self.leases.append(lease)
            lease.release()
        self.wake.set()
        self.wake = trio.Event()

    def send_status(self, call, status, message, metadata):
        raise AssertionError("methods here end by returning or raising")


def make_call(wire=None, *, metadata=None, deadline=math.inf):
    """Return a call whose `metadata` is given as text."""
    fields = tuple((name.encode(), value.encode()) for name, value in (metadata or {}).items())
    wire = wire or KeptWire()
    call = Call(wire, Stream(1, 0, 0, -1), CallHead(path="/a/b", fields=fields))
    call.deadline = deadline
    return call


async def infer(method, request, **kwargs):
    """Have a unary method answer `request`: return the response as a message, or raise the error."""
    call = make_call(**kwargs)
    method.begin(call, request.SerializeToString())
    for body in call.wire.started:
        await body()
    (outcome,) = call.wire.answers
    if isinstance(outcome, TritiumError):
        method.finished(call, outcome)
        raise outcome
    assert isinstance(outcome, InferResponse)
    try:
        buffers, size = method.encode(call, outcome)
        message = b"".join(buffers)
        assert len(message) == size
        method.finished(call, outcome)
    finally:
        outcome.release()
    return pb.ModelInferResponse.FromString(message)


class Client:
    """The other side of a ModelStreamInfer call that `serve` runs."""

    def __init__(self, service, *, metadata=None, deadline=math.inf):
        self.wire = KeptWire()
        self.call = make_call(self.wire, metadata=metadata, deadline=deadline)
        self.stream: ServerStream[Any, Any] = ServerStream(
            self.call, pb.ModelInferRequest, unary_request=False, unary_reply=False
        )
        self._service = service
        self._read = 0

    async def serve(self):
        await self._service.ModelStreamInfer(self.stream)

    def send(self, *requests):
        for request in requests:
            self.send_raw(request.SerializeToString())

    def send_raw(self, message):
        self.stream.feed(Message(message, compressed=False))

    def half_close(self):
        self.stream.end()

    @property
    def received(self):
        """All that came so far."""
        return [pb.ModelStreamInferResponse.FromString(message) for message in self.wire.messages]

    async def receive(self):
        """Return the next message, when it has come."""
        while len(self.wire.messages) <= self._read:
            await self.wire.wake.wait()
        self._read += 1
        return pb.ModelStreamInferResponse.FromString(self.wire.messages[self._read - 1])


def infer_request(model="add", arrays=(), *, version="", id="", parameters=None):  # noqa: A002
    """Return a request with raw inputs, given as (name, datatype, array)."""
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name, datatype, array in arrays:
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for key, value in (parameters or {}).items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[
            type(value)
        ]
        setattr(request.parameters[key], field, value)
    return request
