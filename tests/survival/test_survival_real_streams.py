"""The gRPC clients that people use, in unary calls and on streams, for long: not one answer is lost.

Ten minutes with `-m long`, or TRITIUM_SURVIVAL_SECONDS where that is set. The fault `real_grpc_streams` of the
chaos campaigns adds streams that last as long as their connection, decoupled answers, and pings.
"""

import os
import sys
import time
from collections import Counter

import numpy as np
import pytest
import trio

from tests.support.grpc_clients import CLIENTS, Answer, Ask, Tensor


def ask_of(size):
    return Ask(model="onnx_identity", inputs={"X": Tensor("FP32", np.ones(size, np.float32))})


def talk(kind, address, seconds, most=100):
    """Ask by one client in every way until the time is up; return the number of answers, by their size."""
    came: Counter[int] = Counter()
    client = CLIENTS[kind](address)
    until = time.monotonic() + seconds
    while not came or time.monotonic() < until:
        for size, count in ((4, most), (75_000, 10)):
            ask = ask_of(size)
            answers = [client.infer(ask), *client.many([ask] * 8), *client.stream([ask] * count)]
            assert all(isinstance(each, Answer) and each.outputs["Y"].all() for each in answers)
            assert len(answers) == 9 + count
            came[size] += len(answers)
    client.close()
    return came


async def test_a_stream_of_small_answers_is_not_taken_for_a_flood(tritium_server, repository):
    """Its client answers each message with window updates and pings, the frames that a flood consists of."""
    repository.onnx_identity()
    async with tritium_server() as server:
        came = await trio.to_thread.run_sync(talk, "grpcio", server.grpc_url, 0, 4000)
        assert await server.metric("tritium_grpc_floods_total") == 0
    assert came[4] > 4000


@pytest.mark.long
async def test_no_answer_to_a_real_client_is_lost(tritium_server, repository):
    seconds = float(os.environ.get("TRITIUM_SURVIVAL_SECONDS", "600"))
    repository.onnx_identity()

    async def ask(kind):
        came = await trio.to_thread.run_sync(talk, kind, server.grpc_url, seconds)
        print(f"{kind}: {dict(came)} answers, by their elements", file=sys.stderr)

    async with tritium_server() as server:
        async with trio.open_nursery() as nursery:
            for kind in CLIENTS:
                nursery.start_soon(ask, kind)
        assert await server.metric("tritium_grpc_floods_total") == 0
