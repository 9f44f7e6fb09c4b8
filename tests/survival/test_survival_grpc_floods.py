"""Clients that break gRPC's rules, or keep them to do harm: each is cut off or stalls; others go on."""

import sys
from contextlib import asynccontextmanager

import numpy as np
import psutil
import pytest
import trio

from tests.fuzz import h2wire as wire
from tests.survival.grpc_floods import FLOODS
from tests.survival.grpc_wire import (
    INFER,
    STREAM_INFER,
    Unary,
    channel_to,
    inference,
    message,
    offending,
    request_fields,
)
from tests.survival.repository import instances
from tests.survival.server import eventually
from tests.survival.storm import Storm

MIB = 1024 * 1024


def memory_of(server):
    """The server's own memory in bytes, without what it shares with its workers."""
    return psutil.Process(server.pid).memory_full_info().uss


@asynccontextmanager
async def neighbour_of(server):
    """A well-behaved client around the block, whose every call must be answered rightly."""
    storm = Storm(server)
    async with channel_to(server.grpc_port) as channel:

        async def connect():
            return Unary(channel)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: storm.client("onnx_add_sub", connect=connect))
            await server.until_metric_above(10, "nv_inference_request_success", model="onnx_add_sub")
            yield
            storm.stopping = True
    tally = storm.tallies["onnx_add_sub"]
    tally.check()
    assert not tally.errors, tally.messages


# -- what costs the connection


@pytest.mark.parametrize(
    "floods",
    [
        # One of each sort: of frames that cost an answer, of header blocks, of empty frames.
        [each for each in FLOODS if each.name in {"PING", "header bombs", "empty DATA"}],
        pytest.param(FLOODS, marks=pytest.mark.long),
    ],
    ids=["short", "full"],
)
@pytest.mark.usefixtures("own_interpreter")
async def test_floods_are_ended_by_the_right_goodbye_and_neighbours_notice_nothing(
    tritium_server, repository, floods
):
    repository.onnx_add_sub(config=instances(1))
    async with tritium_server() as server, neighbour_of(server):
        before = memory_of(server)
        for flood in floods:
            async with offending(server.grpc_port) as offender:
                await offender.send(flood.opening)
                await offender.flood(flood.piece)
                assert offender.goaways == [wire.ENHANCE_YOUR_CALM], flood.name
        assert await server.metric("tritium_grpc_floods_total") == len(floods)
        assert memory_of(server) - before < 16 * MIB


# -- what costs the offender only


@asynccontextmanager
async def many(server, count, *, receive_buffer=None):
    """Hold `count` connections of offenders for the length of the block; yields the offenders."""
    async with trio.open_nursery() as nursery:
        offenders = []

        async def hold(*, task_status):
            async with offending(server.grpc_port, receive_buffer=receive_buffer) as offender:
                offenders.append(offender)
                task_status.started()
                await trio.sleep_forever()

        for _ in range(count):
            await nursery.start(hold)
        yield offenders
        nursery.cancel_scope.cancel()


async def connections_of(server):
    return len((await server.node("frontends/grpc/connections"))["children"])


@pytest.mark.long
@pytest.mark.usefixtures("own_interpreter")
async def test_clients_that_stall_hold_up_nobody_and_leave_nothing_behind(tritium_server, repository):
    repository.onnx_add_sub(config=instances(1))
    repository.onnx_identity()
    flag = "--grpc-connection-bytes=4MiB"
    async with tritium_server(flag) as server, neighbour_of(server):
        before = memory_of(server)
        for stall in (half_a_handshake, one_byte_at_a_time, unary_without_a_window, a_socket_never_read):
            await stall(server)
            await until_connections(server, 1)
        # Each kind of stall had its connections at the same time. None may cost more than its limits, and
        # none may leave that cost behind.
        assert memory_of(server) - before < 64 * MIB


async def until_connections(server, count):
    async def reached():
        return await connections_of(server) == count

    await eventually(reached)


async def half_a_handshake(server):
    """Connections that say nothing, half a preface, a preface and half of the SETTINGS."""
    beginnings = (b"", wire.PREFACE[:12], wire.PREFACE, (wire.PREFACE + wire.settings())[:-4])
    async with many(server, 100) as offenders:
        for number, offender in enumerate(offenders):
            await offender.send(beginnings[number % len(beginnings)])
        await until_connections(server, 101)


async def one_byte_at_a_time(server):
    """Calls whose messages come by single bytes, and never to their end."""
    async with many(server, 10) as offenders:
        for offender in offenders:
            await offender.begin()
            await offender.send(wire.headers(1, request_fields(INFER)))
            await offender.send(wire.data(1, b"\0" + (60_000).to_bytes(4, "big")))
        for _ in range(100):
            for offender in offenders:
                await offender.send(wire.data(1, b"\x0a") * 20)
        assert not any(offender.broke for offender in offenders)


async def unary_without_a_window(server):
    """Calls whose answers may not be sent: the server takes what it may hold of them, and no more."""
    large = message(inference("onnx_identity", {"X": np.ones(15_000, np.float32)}))
    frames = [large[at : at + 16_000] for at in range(0, len(large), 16_000)]
    async with offending(server.grpc_port) as offender:
        await offender.begin((wire.INITIAL_WINDOW_SIZE, 0))
        await offender.wait_for(wire.WINDOW_UPDATE)
        calls = 4 * MIB // len(large)  # the connection's window: no client may send more
        for stream in range(1, 1 + 2 * calls, 2):
            await offender.send(wire.headers(stream, request_fields(INFER)))
            for frame in frames[:-1]:
                await offender.send(wire.data(stream, frame))
            await offender.send(wire.data(stream, frames[-1], wire.END_STREAM))
        await offender.wait_for(wire.HEADERS)
        assert not offender.goaways


async def a_socket_never_read(server):
    """A stream with large answers whose client has windows without end, and reads nothing."""
    large = message(inference("onnx_identity", {"X": np.ones(4000, np.float32)}))
    async with offending(server.grpc_port, receive_buffer=4096) as offender:
        await offender.begin((wire.INITIAL_WINDOW_SIZE, 2**31 - 1))
        await offender.send(wire.window_update(0, 2**30))
        await offender.send(wire.headers(1, request_fields(STREAM_INFER)))
        for _ in range(4):
            await offender.send(wire.data(1, large[:16_000]) + wire.data(1, large[16_000:]))
        await server.until_metric_above(0, "nv_inference_request_success", model="onnx_identity")


# -- what a stalled stream costs


@pytest.mark.parametrize(
    "size",
    [16 * 1024, *(pytest.param(each, marks=pytest.mark.long) for each in (256 * 1024, MIB))],
    ids=lambda size: f"{size} bytes",
)
@pytest.mark.usefixtures("own_interpreter")
async def test_a_stream_that_is_never_read_costs_a_mebibyte_and_a_message(tritium_server, repository, size):
    stalled = 20
    repository.onnx_identity()
    array = np.ones(size // 4, np.float32)
    async with tritium_server() as server:
        async with channel_to(server.grpc_port) as channel:
            for _ in range(50):  # what is allocated once and for all is not a stream's
                assert (await channel.infer("onnx_identity", inputs={"X": array})).ok
        before = memory_of(server)
        for _ in range(2):
            async with stalled_streams(server, stalled, inference("onnx_identity", {"X": array})):
                # A tenth is the allocator's.
                cost = await until_cost(server, before, stalled, 1.1 * MIB + size)
                print(f"\nstalled, messages of {size}: {cost / MIB:.2f} MiB for each", file=sys.stderr)
            await until_connections(server, 0)


async def until_cost(server, before, streams, limit):
    """Return what each of `streams` costs in bytes, once that is at most `limit`.

    The server gives free memory back every ten seconds.
    """
    cost = memory_of(server) - before
    for _ in range(120):
        if cost <= limit * streams:
            break
        await trio.sleep(0.5)
        cost = memory_of(server) - before
    assert cost <= limit * streams
    return cost / streams


@asynccontextmanager
async def stalled_streams(server, count, body):
    """Hold `count` streams, each on its own connection, that have sent all they may and read nothing."""
    sent = 0

    async def stall():
        nonlocal sent
        async with channel_to(server.grpc_port, window=0) as channel:
            call = await channel.call(STREAM_INFER)
            while True:
                await call.send(body)
                sent += 1
                assert sent < count * 10_000, "the server takes without end"

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(stall)
        seen = -1
        while seen != sent or not sent:
            seen = sent
            await trio.sleep(0.3)
        yield
        nursery.cancel_scope.cancel()
