"""A client makes the server hold bounded memory only, given back when it leaves, without a collection."""

import gc
import tracemalloc
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocols.grpc.call import STREAM_LIMIT, ServerStream
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.protocols.grpc_calls import make_call
from tests.protocols.grpc_memory import connect
from tests.protocols.grpc_serving import INFER, STREAM

LARGE = b"x" * 400_000


@contextmanager
def traced():
    """Yield a function that returns the bytes allocated since, with the collector off."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_answers_that_waited_for_a_client_that_left_are_let_go_of(path):
    with traced() as allocated:
        async with connect(window=0) as connected:
            client = connected.client
            stream = client.open(path)
            for start in range(0, len(LARGE) + 5, 30_000):
                framed = b"\0" + len(LARGE).to_bytes(4, "big") + LARGE
                client.send_bytes(stream, framed[start : start + 30_000], end=start + 30_000 >= len(framed))
                await client.exchange()
            assert connected.connection.pending > len(LARGE)
            held = allocated()
            client.transport.leave()
            await connected.over.wait()
            assert connected.connection.pending == 0
            assert connected.connection.streams == 0
            assert allocated() < held - len(LARGE) / 2


async def test_no_request_begins_while_answers_wait_even_where_none_is_in_flight():
    call = make_call()
    stream: ServerStream[Any, Any] = ServerStream(
        call, pb.ModelInferRequest, unary_request=False, unary_reply=False
    )
    stream.send_raw_nowait((b"answer",), 6)
    call.stream.pending = STREAM_LIMIT
    admitted = trio.Event()

    async def wait():
        await stream.wait_admissible()
        admitted.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not admitted.is_set()
        call.stream.pending = 0
        stream.departed()
        await wait_all_tasks_blocked()
        assert admitted.is_set()


async def test_an_answer_that_is_alone_may_be_larger_than_the_limit():
    stream: ServerStream[Any, Any] = ServerStream(
        make_call(), pb.ModelInferRequest, unary_request=False, unary_reply=False
    )
    stream.send_raw_nowait((b"x" * 2 * STREAM_LIMIT,), 2 * STREAM_LIMIT)
    with trio.fail_after(10):
        await stream.wait_admissible()
