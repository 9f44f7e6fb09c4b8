"""Servers that answer as a test says, on ports of their own."""

from concurrent import futures
from contextlib import asynccontextmanager, contextmanager

import grpc
import orjson
import trio

from protocols.kserve.proto import grpc_service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService/"


def answer_to(document: dict, value: int = 5, **more: object) -> bytes:
    """The bytes of a good answer to an HTTP request."""
    output = {"name": "ANSWER", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    return response({"id": document["id"], "model_name": "echo", "outputs": [output], **more})


def response(document: object, status: int = 200, fields: str = "") -> bytes:
    """The bytes of any answer."""
    body = orjson.dumps(document)
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{fields}\r\n".encode() + body


class HttpDouble:
    """Answers each request with the bytes that `answer` makes of its document.

    b"" closes the connection, and None keeps the client waiting.
    """

    def __init__(self, answer):
        self.answer = answer
        self.connections = 0
        self.requests = []

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        buffer = b""
        async with stream:
            while data := await stream.receive_some():
                buffer += data
                head, end, body = buffer.partition(b"\r\n\r\n")
                fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
                if not end or len(body) < int(fields["content-length"]):
                    continue
                buffer = b""
                document = orjson.loads(body[: int(fields.get("inference-header-content-length", len(body)))])
                self.requests.append((fields, document))
                said = self.answer(document)
                if said is None:
                    await trio.sleep_forever()
                if not said:
                    return
                await stream.send_all(said)


@asynccontextmanager
async def http_double(answer):
    """Serve HTTP around the block; gives the double and its port."""
    double = HttpDouble(answer)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, double.serve, 0)
        yield double, listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def grpc_answer(
    request: pb.ModelInferRequest, value: int = 5, *, final: bool | None = None, **parameters: int
):
    """A good answer, or one part of a stream's."""
    answer = pb.ModelInferResponse(id=request.id, model_name=request.model_name)
    answer.outputs.add(name="ANSWER", datatype="INT32", shape=[1])
    answer.raw_output_contents.append(value.to_bytes(4, "little"))
    for name, number in parameters.items():
        answer.parameters[name].int64_param = number
    if final is not None:
        answer.parameters["triton_final_response"].bool_param = final
    return answer


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, infer, stream):
        self.infer, self.stream = infer, stream

    def service(self, details):
        if details.method.endswith("ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(
                self._streamed, pb.ModelInferRequest.FromString, pb.ModelStreamInferResponse.SerializeToString
            )
        return grpc.unary_unary_rpc_method_handler(
            self.infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
        )

    def _streamed(self, requests, context):
        for request in requests:
            for part in self.stream(request, context):
                yield pb.ModelStreamInferResponse(infer_response=part)


@contextmanager
def grpc_double(infer=None, stream=None):
    """Serve gRPC around the block, by functions of (request, context); gives the port."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((_Handlers(infer, stream),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()
