"""The gRPC listener over real loopback sockets, against grpcio's clients."""

import socket
import threading
from functools import partial

import grpc
import pytest
import trio

from protocols.grpc.listener import GrpcListener
from protocols.grpc.policy import GrpcOptions
from tests.fuzz import h2wire as wire
from tests.protocols.grpc_serving import LIVE, Service, bidi, in_thread, serve, unary

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


async def test_metadata_passes_both_ways(channel):
    reply, call = await in_thread(
        unary(channel, LIVE).with_call, b"x", metadata=(("told", "this"),), timeout=5
    )
    assert reply == b"X"
    trailing = dict(call.trailing_metadata())
    assert trailing["seen"] == "this"
    assert trailing["blob-bin"] == b"\x00\xff"
    assert trailing["peer"].startswith("ipv4:127.0.0.1:")


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


@pytest.mark.long
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


@pytest.mark.long
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
@serving(options=GrpcOptions(max_connection_age=0.2, max_connection_age_grace=30), uniform=lambda: 0.5)
async def test_connections_are_retired_with_age_and_clients_do_not_notice(served, channel):
    echo = unary(channel)

    retired = threading.Event()

    def ask_until_retired():
        number = 0
        while not retired.is_set():
            assert echo(b"%d" % number, timeout=30) == b"%d" % number
            number += 1
        assert echo(b"again", timeout=30) == b"again"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, ask_until_retired)
        try:
            await served.until(lambda: served.listener.statistics().accepted >= 2)
        finally:
            retired.set()


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


@pytest.mark.long
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


@pytest.mark.long
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
