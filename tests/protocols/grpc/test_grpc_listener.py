"""The gRPC listener over real loopback sockets, against grpcio's clients."""

from __future__ import annotations

import asyncio  # noqa: TID251  # grpclib's client runs on nothing else
import errno
import socket
import threading
from functools import partial
from typing import Any

import grpc
import pytest
import trio
from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from protocols.grpc.listener import GrpcListener
from protocols.grpc.policy import GrpcOptions
from protocols.kserve.categories import Category
from tests.fuzz import h2wire as wire
from tests.protocols.flaky_sockets import Flaky
from tests.protocols.grpc_serving import INFER, LIVE, STREAM, Raw, Service, bidi, in_thread, serve, unary

MiB = 1024 * 1024


async def failure_of(call, *args, **kwargs):
    """Return status and details with which `call` fails."""
    with pytest.raises(grpc.RpcError) as caught:
        await in_thread(call, *args, timeout=10, **kwargs)
    return caught.value.code(), caught.value.details()


def serving(**kwargs):
    """Have the listener of a test made in another way than usual."""
    return pytest.mark.parametrize("served", [kwargs], indirect=True, ids=[""])


@pytest.fixture
async def served(request):
    async with serve(**getattr(request, "param", {})) as served:
        yield served


@pytest.fixture
def channel(served):
    with served.channel(max_receive_message_length=-1, max_send_message_length=-1) as channel:
        yield channel


async def test_a_unary_call_is_answered(channel):
    assert await in_thread(unary(channel), b"hello", timeout=5) == b"hello"


async def test_an_empty_message_is_a_message(channel):
    assert await in_thread(unary(channel), b"", timeout=5) == b""


async def test_many_calls_at_once_are_each_answered_with_their_own(served):
    with served.channel() as channel:
        echo = unary(channel)

        def ask():
            messages = [b"%d" % number * (number % 700) for number in range(2000)]
            futures = [echo.future(message, timeout=20) for message in messages]
            return [future.result() for future in futures] == messages

        assert await in_thread(ask)
    assert served.service.echo.released == served.service.echo.leases == 2000
    assert len(served.service.echo.finished_with) == 2000


@pytest.mark.parametrize("size", [65_530, 65_531, 70_000, 16 * MiB])
async def test_large_messages_pass_both_ways(size, served):
    with served.channel(max_receive_message_length=-1, max_send_message_length=-1) as channel:
        message = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
        assert await in_thread(unary(channel), message, timeout=20) == message
    assert served.service.echo.released == 1


@serving(options=GrpcOptions(connection_bytes=256 * 1024))
async def test_a_message_larger_than_all_that_a_connection_may_hold_passes_alone(channel):
    echo = unary(channel)

    def ask():
        futures = [echo.future(bytes([number]) * 4 * MiB, timeout=30) for number in range(8)]
        return [future.result()[:1] for future in futures]

    assert await in_thread(ask) == [bytes([number]) for number in range(8)]


async def test_errors_reach_the_client_with_status_and_text(served):
    with served.channel() as channel:
        assert await failure_of(unary(channel), "error at 5 % or näht".encode()) == (
            grpc.StatusCode.NOT_FOUND,
            "no such thing:  at 5 % or näht",
        )
        assert await failure_of(unary(channel), b"untold") == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "that can't be told",
        )
        fail = unary(channel, "/toy.Toy/Fail")
        assert await failure_of(fail, b"known") == (grpc.StatusCode.NOT_FOUND, "not found: näht")
        assert await failure_of(fail, b"grpc") == (grpc.StatusCode.ALREADY_EXISTS, "there is one")
    assert served.crashes == []


async def test_a_bug_in_a_method_costs_one_call_and_is_reported(served):
    with served.channel() as channel:
        bug = (grpc.StatusCode.INTERNAL, "internal server error")
        assert await failure_of(unary(channel), b"bug") == bug
        assert await failure_of(unary(channel), b"encode") == bug
        assert await failure_of(unary(channel, "/toy.Toy/Fail"), b"") == bug
        assert await failure_of(unary(channel, "/toy.Toy/Silent"), b"") == bug
        assert await in_thread(unary(channel), b"on", timeout=5) == b"on"
    assert [(path.split("/")[-1], type(bug)) for path, bug in served.crashes] == [
        ("ModelInfer", ZeroDivisionError),
        ("ModelInfer", ZeroDivisionError),
        ("Fail", ZeroDivisionError),
        ("Silent", RuntimeError),
    ]
    assert served.service.echo.released == served.service.echo.leases
    assert len(served.service.echo.finished_with) == 3
    assert served.listener.statistics().accepted == 1


async def test_an_unknown_method_is_unimplemented(channel):
    code, _ = await failure_of(unary(channel, "/toy.Toy/Absent"), b"")
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_unary_method_takes_exactly_one_message(served):
    with served.channel() as channel:
        for messages in ([], [b"a", b"b"]):
            call = channel.stream_unary(
                "/inference.GRPCInferenceService/ModelInfer", lambda data: data, lambda data: data
            )
            code, _ = await failure_of(call, iter(messages))
            assert code is grpc.StatusCode.UNIMPLEMENTED
    assert served.service.echo.begun == 0


@serving(options=GrpcOptions(restricted={Category.HEALTH: ("secret", "v1")}))
async def test_a_restricted_method_wants_its_key(channel):
    assert await failure_of(unary(channel, LIVE), b"") == (
        grpc.StatusCode.UNAVAILABLE,
        "This protocol is restricted, expecting header 'triton-grpc-protocol-secret'",
    )
    opened = (("triton-grpc-protocol-secret", "v1"),)
    assert await in_thread(unary(channel, LIVE), b"on", metadata=opened, timeout=5) == b"ON"
    assert await in_thread(unary(channel), b"open", timeout=5) == b"open"


async def test_metadata_passes_both_ways(channel):
    reply, call = await in_thread(
        unary(channel, LIVE).with_call, b"x", metadata=(("told", "this"),), timeout=5
    )
    assert reply == b"X"
    trailing = dict(call.trailing_metadata())
    assert trailing["seen"] == "this"
    assert trailing["blob-bin"] == b"\x00\xff"
    assert trailing["peer"].startswith("ipv4:127.0.0.1:")


async def test_every_kind_of_coroutine_method_works(channel):
    count = channel.unary_stream("/toy.Toy/Count", lambda data: data, lambda data: data)
    assert await in_thread(lambda: list(count(b"3", timeout=5))) == [b"0", b"1", b"2"]
    gather = channel.stream_unary("/toy.Toy/Gather", lambda data: data, lambda data: data)
    assert await in_thread(gather, iter([b"a", b"bc", b""]), timeout=5) == b"abc"
    messages = [b"%d" % number * number for number in range(300)]
    each = bidi(channel)
    assert await in_thread(lambda: list(each(iter(messages), timeout=10))) == messages


async def test_large_messages_pass_through_a_stream(channel):
    messages = [
        bytes([number]) * size for number, size in enumerate([8 * MiB, 1, 65_526, 70_000, 3 * MiB, 9])
    ]
    each = bidi(channel)
    assert await in_thread(lambda: list(each(iter(messages), timeout=20))) == messages


async def test_a_client_that_cancels_is_heard_by_its_method_and_by_no_other(served):
    echo = served.service.echo
    echo.held = []
    with served.channel() as channel:
        first, second = unary(channel).future(b"first"), unary(channel).future(b"second")
        await served.until(lambda: len(echo.held) == 2)
        gone = next(call for call in echo.held if call.context == b"first")
        other = next(call for call in echo.held if call.context == b"second")
        first.cancel()
        await served.until(lambda: echo.cancelled)
        assert echo.cancelled == [gone]
        echo.respond(gone, b"too late")
        assert echo.released == 1
        echo.answer(other)
        assert await in_thread(second.result, 5) == b"second"
        waiting = unary(channel, "/toy.Toy/Wait").future(b"")
        await served.until(lambda: served.listener.statistics().streams == 1)
        waiting.cancel()
        with trio.fail_after(5):
            await served.service.cancelled.wait()
    assert [type(outcome).__name__ for outcome in echo.finished_with] == ["Cancelled", "InferResponse"]


async def test_a_client_that_disconnects_cancels_all_of_its_calls(served):
    echo = served.service.echo
    echo.held = []
    channel = served.channel()
    futures = [unary(channel).future(b"held"), unary(channel, "/toy.Toy/Wait").future(b"")]
    await served.until(lambda: echo.held and served.listener.statistics().streams == 2)
    channel.close()
    await served.until(lambda: not served.listener.statistics().connections)
    assert all(future.done() for future in futures)
    assert echo.cancelled == echo.held
    assert served.service.cancelled.is_set()
    assert len(echo.finished_with) == 1


@pytest.mark.slow
async def test_a_deadline_ends_a_call_and_its_method_hears_of_it(served):
    echo = served.service.echo
    echo.held = []
    with served.channel() as channel:
        too_late = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        for path in ("/inference.GRPCInferenceService/ModelInfer", "/toy.Toy/Wait"):
            with pytest.raises(grpc.RpcError) as caught:
                await in_thread(unary(channel, path), b"held", timeout=0.2)
            assert (caught.value.code(), caught.value.details()) == too_late
        await served.until(lambda: not served.listener.statistics().streams)
    assert echo.cancelled == echo.held
    assert served.service.cancelled.is_set()


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@serving(options=GrpcOptions(compression="low"))
async def test_compressed_messages_are_read_and_answers_compressed(algorithm, served):
    with served.channel(max_receive_message_length=-1, max_send_message_length=-1) as channel:
        for size in (100, 50_000, 5 * MiB):
            message = b"abcdefgh" * (size // 8)
            asked = in_thread(unary(channel), message, timeout=20, compression=algorithm)
            assert await asked == message
        messages = [b"ab" * 50, b"cd" * 100_000, b"ef"]
        each = bidi(channel)
        answers = await in_thread(lambda: list(each(iter(messages), timeout=20, compression=algorithm)))
        assert answers == messages
    assert served.service.echo.released == served.service.echo.leases == 3


async def test_a_stalled_stream_stops_nobody_and_holds_little(served, channel):
    stalled = served.service
    sent = 0

    def chunks():
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b"x" * 100_000

    call = channel.stream_unary("/toy.Toy/Idle", lambda data: data, lambda data: data).future(chunks())
    await served.until(lambda: served.listener.statistics().streams == 1)
    assert await in_thread(unary(channel), b"still here", timeout=5) == b"still here"
    assert sent < 100
    stalled.proceed.set()
    assert await in_thread(call.result, 10) == b"100"


async def test_a_large_answer_passes_through_small_windows_and_its_memory_is_given_back_at_once(served):
    echo = served.service.echo
    small = {"http2.lookahead_bytes": 16 * 1024, "http2.bdp_probe": 0, "max_receive_message_length": -1}
    with served.channel(**small) as channel:
        message = bytes(range(256)) * (8 * MiB // 256)
        assert await in_thread(unary(channel), message, timeout=20) == message
    assert echo.released == echo.leases == 1


async def test_a_stream_of_answers_waits_for_its_reader(channel):
    call = channel.unary_stream("/toy.Toy/Count", lambda data: data, lambda data: data)(b"20000")
    assert await in_thread(next, call) == b"0"
    assert await in_thread(unary(channel), b"meanwhile", timeout=5) == b"meanwhile"
    assert len(await in_thread(list, call)) == 19_999


def test_sizes_and_times_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="connection_bytes"):
        GrpcOptions(connection_bytes=0)
    with pytest.raises(ValueError, match="keepalive_time"):
        GrpcOptions(keepalive_time=0)
    with pytest.raises(ValueError, match="max_connection_age"):
        GrpcOptions(max_connection_age=0)


def test_two_services_can_not_claim_one_path():
    with pytest.raises(ValueError, match="two services claim"):
        GrpcListener([Service(), Service()], on_crash=lambda path, bug: None)


@pytest.mark.slow
async def test_a_drained_listener_finishes_what_was_begun_and_refuses_the_rest(served):
    listener, echo = served.listener, served.service.echo
    echo.held = []
    with served.channel() as channel, served.channel(use_local_subchannel_pool=1) as idle:
        assert await in_thread(unary(idle, LIVE), b"", timeout=5) == b""
        begun = unary(channel).future(b"begun")
        await served.until(lambda: echo.held)
        listener.drain()
        assert listener.statistics().draining
        served.socket.close()
        code, _ = await failure_of(unary(channel), b"too late")
        assert code is grpc.StatusCode.UNAVAILABLE
        await served.until(lambda: listener.statistics().connections == 1)
        echo.answer(echo.held[0])
        assert await in_thread(begun.result, 5) == b"begun"
        with trio.fail_after(5):
            await listener.wait_drained()


@pytest.mark.slow
async def test_a_call_on_a_connection_that_nobody_had_accepted_is_refused_and_not_reset(served):
    with socket.create_connection(served.socket.getsockname()) as client:
        client.settimeout(10)
        client.sendall(wire.PREFACE + wire.settings())
        served.listener.drain()
        served.socket.close()
        answer = b"".join(await in_thread(list, iter(partial(client.recv, 65536), b"")))
        with trio.fail_after(10):
            await served.listener.wait_drained()
    assert wire.frame(wire.GOAWAY, 0, 0, bytes.fromhex("7fffffff00000000")) in answer


@pytest.mark.slow
@serving(options=GrpcOptions(last_call=0.3))
async def test_a_request_that_ceased_to_come_does_not_hold_up_the_end(served):
    with socket.create_connection(served.socket.getsockname()) as client:
        client.settimeout(10)
        half = b"\0" + (100).to_bytes(4, "big") + bytes(50)
        client.sendall(wire.PREFACE + wire.settings() + wire.headers(1) + wire.data(1, half))
        await served.until(lambda: served.listener.statistics().streams == 1)
        served.listener.drain()
        served.socket.close()
        answer = b"".join(await in_thread(list, iter(partial(client.recv, 65536), b"")))
        with trio.fail_after(10):
            await served.listener.wait_drained()
    assert any(each.kind == wire.HEADERS and each.stream == 1 for each in wire.split(answer))


@pytest.mark.slow
@serving(options=GrpcOptions(max_connection_age=0.2, max_connection_age_grace=1), uniform=lambda: 0.5)
async def test_connections_are_retired_with_age_and_clients_do_not_notice(served, channel):
    echo = unary(channel)

    def ask_for_a_while():
        return [echo(b"%d" % number, timeout=5) for number in range(1500)]

    assert len(await in_thread(ask_for_a_while)) == 1500
    await served.until(lambda: served.listener.statistics().accepted >= 2)


@pytest.mark.slow
@serving(options=GrpcOptions(idle_timeout=0.2))
async def test_idle_connections_are_ended_and_clients_do_not_notice(served):
    with served.channel(keepalive_time_ms=100, keepalive_permit_without_calls=1) as channel:
        echo = unary(channel)
        for number in range(3):
            assert await in_thread(echo, b"%d" % number, timeout=5) == b"%d" % number
            await served.until(lambda: not served.listener.statistics().connections)
        assert served.listener.statistics().accepted == 3
        assert served.listener.statistics().violations == 0


@pytest.mark.slow
@serving(options=GrpcOptions(idle_timeout=0.2))
async def test_a_connection_with_an_open_stream_is_not_idle(served, channel):
    proceed = threading.Event()

    def requests():
        yield b"first"
        proceed.wait(20)
        yield b"last"

    answers = bidi(channel)(requests(), timeout=20)
    assert await in_thread(next, answers) == b"first"
    await trio.sleep(1)
    proceed.set()
    assert await in_thread(list, answers) == [b"last"]
    assert served.listener.statistics().accepted == 1


@pytest.mark.slow
@serving(
    options=GrpcOptions(
        keepalive_time=0.1,
        keepalive_timeout=0.5,
        keepalive_permit_without_calls=True,
        max_pings_without_data=0,
    )
)
async def test_clients_that_ping_as_they_should_are_kept_and_answer_pings(served, channel):
    assert await in_thread(unary(channel), b"first", timeout=5) == b"first"
    await trio.sleep(1)
    assert await in_thread(unary(channel), b"second", timeout=5) == b"second"
    assert served.listener.statistics().accepted == 1


async def test_exhaustion_is_told_and_waited_out():
    failures = [OSError(errno.EMFILE, "no"), OSError(errno.ECONNABORTED, "gone"), OSError(errno.ENFILE, "no")]
    told: list[Any] = []
    listener = GrpcListener([Service()], on_crash=lambda path, bug: None)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        async with trio.open_nursery() as nursery:
            serving = partial(listener.serve, on_exhausted=told.append)
            await nursery.start(
                serving, Flaky(sock, list(failures)), lambda name, run: nursery.start_soon(run)
            )
            with grpc.insecure_channel(f"127.0.0.1:{sock.getsockname()[1]}") as channel:
                assert await in_thread(unary(channel), b"hello", timeout=10) == b"hello"
            nursery.cancel_scope.cancel()
    assert told == failures[:1]


async def test_a_client_that_is_sent_away_is_told_of_with_its_address_and_why():
    refused = []
    async with serve(on_refused=lambda *words: refused.append(words)) as served:
        async with await trio.open_tcp_stream(*served.socket.getsockname()) as client:
            host, port = client.socket.getsockname()
            await client.send_all(wire.PREFACE + wire.settings() + wire.headers(1, raw=bytes(40_000)))
            with trio.fail_after(5):
                said = b"".join([part async for part in client])
            await client.send_eof()
        with served.channel() as channel:
            assert await in_thread(unary(channel), b"hello", timeout=5) == b"hello"
        statistics = served.listener.statistics()
    text = "40000 bytes of metadata, more than the 32768 taken"
    assert [one.payload[8:].decode() for one in wire.split(said) if one.kind == wire.GOAWAY] == [text]
    assert refused == [(f"ipv4:{host}:{port}", f"{text} (ENHANCE_YOUR_CALM)")]
    assert (statistics.violations, statistics.floods) == (1, 1)


async def test_a_listener_that_crashed_goes_on_with_its_connections():
    service = Service()
    listener = GrpcListener([service], on_crash=lambda path, bug: None)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        async with trio.open_nursery() as connections:

            def spawn(name, run):
                connections.start_soon(run, name=name)

            with grpc.insecure_channel(f"127.0.0.1:{sock.getsockname()[1]}") as channel:
                for message in (b"before", b"after"):
                    async with trio.open_nursery() as serving:
                        await serving.start(listener.serve, sock, spawn)
                        assert await in_thread(unary(channel), message, timeout=5) == message
                        serving.cancel_scope.cancel()
                assert listener.statistics().accepted == 1
            connections.cancel_scope.cancel()


@pytest.mark.slow
async def test_grpclibs_client_is_served(served):
    """grpclib runs on asyncio only, so it has a thread and a loop of its own."""
    host, port = served.socket.getsockname()

    async def ask():
        async with Channel(host, port) as channel:
            echo = UnaryUnaryMethod(channel, INFER, Raw, Raw)
            replies = [(await echo(Raw(b"%d" % number * 1000))).data for number in range(20)]
            with pytest.raises(GRPCError) as caught:
                await echo(Raw(b"error of grpclib"))
            assert caught.value.status is Status.NOT_FOUND
            async with StreamStreamMethod(channel, STREAM, Raw, Raw).open() as stream:
                for number in range(20):
                    await stream.send_message(Raw(b"%d" % number))
                await stream.end()
                return replies, [message.data async for message in stream]

    replies, streamed = await in_thread(asyncio.run, ask())
    assert replies == [b"%d" % number * 1000 for number in range(20)]
    assert streamed == [b"%d" % number for number in range(20)]
