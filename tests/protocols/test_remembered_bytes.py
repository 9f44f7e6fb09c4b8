"""What is remembered of requests stays within a bound of bytes, whatever clients send."""

import json
import tracemalloc
from contextlib import contextmanager
from typing import Any

import pytest
from hpack import Encoder

from actors.values.datatypes import DataType
from actors.values.requests import InferResponse
from protocols.grpc.codec.infer_meaning import ALL_OUTPUTS
from protocols.grpc.codec.infer_request import InferDecoder as GrpcDecoder
from protocols.grpc.codec.infer_response import encode
from protocols.http.app import V2App
from protocols.http2.header_blocks import HeaderDecoder
from protocols.kserve.proto.grpc_service_pb2 import ModelInferRequest
from protocols.kserve.requests import Arrival, InferDecoder
from protocols.memo import Memo
from tests.protocols.fakes import FakeServer, make_spec
from tests.support.ports import Port

MIB = 1024 * 1024
SPEC = make_spec("m", inputs=[("A", DataType.INT32, (-1,))])


@contextmanager
def growth_below(most):
    """Fail if the block leaves behind more than `most` bytes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < most, f"{grown:,} bytes are kept"


async def get(app, path):
    answers = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        answers.append(message["status"])

    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": path,
        "query_string": b"",
        "headers": [],
        "extensions": {"tritium.response": {}},
    }
    await app(scope, receive, send)
    return answers[0]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "count"), [(60_000, 1100), (500, 5000)])
async def test_paths(length, count):
    app = V2App(FakeServer().server)
    with growth_below(4 * MIB):
        for number in range(count):
            model = b"%d" % number + b"m" * length
            assert await get(app, b"/v2/models/%b/ready" % model) == 404
    assert await get(app, b"/v2/models/add/ready") == 200


def parameters(number):
    """Return as many parameters as fit into a remembered text, different for each number."""
    return {f"{number:x}.{each:x}": each for each in range(300)}


@pytest.mark.slow
def test_json_texts():
    decoder = InferDecoder()
    declared = {"name": "A", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}}
    with growth_below(8 * MIB):
        for number in range(510):
            text = json.dumps({"inputs": [declared], "parameters": parameters(number)}, separators=(",", ":"))
            assert len(text) <= 4096
            decoder.decode(
                text.encode() + bytes(4),
                len(text),
                SPEC,
                Arrival(-1, Port(), 0.0),
            )


@pytest.mark.slow
def test_messages():
    decoder = GrpcDecoder()
    with growth_below(8 * MIB):
        for number in range(510):
            request = ModelInferRequest(model_name="m", raw_input_contents=[bytes(4)])
            declared = request.inputs.add(name="A", datatype="INT32")
            declared.shape.append(1)
            for name, value in list(parameters(number).items())[:200]:
                request.parameters[name].int64_param = value
            target = decoder.peek(request.SerializeToString())
            decoder.decode(target, SPEC, requested_version=-1, reply=Port(), accepted_at=0.0)


def test_fields_that_header_blocks_begin_with():
    decoder = HeaderDecoder(
        lambda fields: fields, lambda head, more: [*head, *more], max_header_list=16384, cached_heads=256
    )
    encoder = Encoder()
    with growth_below(128 * 1024):
        for number in range(100):
            fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/%04d" % number * 300)]
            decoder.skip(encoder.encode(fields, huffman=False))
            head, _ = decoder.request(encoder.encode(fields) + b"\x00\x01a\x011")
            assert head == [*fields, (b"a", b"1")]


def test_heads_of_answers_over_grpc():
    with growth_below(4 * MIB):
        for number in range(4_000):
            name = f"model {number}" + "x" * 1000
            encode(InferResponse(model_name=name, model_version=1), ALL_OUTPUTS, SPEC)


def test_header_blocks():
    def literal(name, value):
        return b"\x00" + bytes((len(name),)) + name + b"\x7f" + integer(len(value) - 127) + value

    def integer(value):
        return bytes((value & 127 | 128, value >> 7)) if value > 127 else bytes((value,))

    def request(number):
        # :method POST, :scheme http and :path / are in the static table.
        return b"\x83\x86\x84" + literal(b"x-id", b"%04d" % number * 400)

    decoder = HeaderDecoder(
        lambda fields: fields, lambda head, more: [*head, *more], max_header_list=16384, cached_heads=256
    )
    with growth_below(128 * 1024):
        for number in range(256):
            decoder.request(request(number))
    assert list(decoder.heads)[-1] == request(255), "the last one is there"
    decoder.request(b"\x83\x86\x84")
    assert b"\x83\x86\x84" in decoder.heads


def test_a_memo_forgets_everything_once_entries_or_bytes_are_used_up():
    memo: Memo[Any, Any] = Memo(3, 2000)
    for number in range(3):
        assert memo.remember(number, "x", 100)
    assert sorted(memo) == [0, 1, 2]
    assert memo.remember(3, "x", 100)
    assert sorted(memo) == [3]
    assert memo.remember(4, "x", 1700)
    assert sorted(memo) == [4], "the two would have been too much"
    assert not memo.remember(5, "x", 2000), "that alone is too much"
    assert sorted(memo) == [4]
    memo.forget()
    assert memo.charged == 0


def test_a_memo_charges_for_what_takes_the_place_of_another():
    memo: Memo[Any, Any] = Memo(3, 2000)
    memo.remember("a", 1, 100)
    memo.remember("a", 2, 300)
    assert memo["a"] == 2
    assert memo.charged >= 400
