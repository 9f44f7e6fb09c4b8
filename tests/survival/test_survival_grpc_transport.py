"""The transport below gRPC's calls, with ordinary clients: windows, GOAWAY, keepalive, age, loaded ends."""

import re
import shutil
import signal
import threading
from contextlib import contextmanager
from functools import partial

import grpc
import numpy as np
import pytest
import trio

from chaos.subject.server import PATIENCE
from tests.fuzz import h2wire as wire
from tests.support.certificates import Authority
from tests.survival.grpc_wire import (
    INFER,
    UNAVAILABLE,
    Unary,
    channel_to,
    inference,
    message,
    offending,
    pb,
)
from tests.survival.repository import WIDTH, instances
from tests.survival.server import eventually
from tests.survival.storm import Storm
from tests.survival.wire import Lost

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
ROW = np.ones((1, WIDTH), np.float32)
SUM = inference("onnx_add_sub", {"A": ROW, "B": ROW})
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@contextmanager
def grpcio(address, options=(), *, credentials=None):
    """Yield ModelInfer of a channel of grpcio's, bytes in and a message out."""
    options = [*UNLIMITED, *options]
    if credentials is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, credentials, options)
    with channel:
        call = channel.unary_unary(INFER, None, pb.ModelInferResponse.FromString)
        yield partial(call, timeout=PATIENCE, wait_for_ready=False)


# -- other people's clients, and windows


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
async def test_h2load_finds_nothing_to_complain_of_with_a_thousand_streams(
    tritium_server, repository, tmp_path
):
    repository.onnx_add_sub(config=instances(1))
    body = tmp_path / "body"
    body.write_bytes(message(SUM))
    count = 5000
    command = ["h2load", f"-n{count}", "-c10", "-m100", "-t1", "-d", str(body)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    async with tritium_server() as server:
        async with channel_to(server.grpc_port) as channel:
            answer = await channel.infer("onnx_add_sub", inputs={"A": ROW, "B": ROW})
        run = await trio.run_process([*command, f"http://{server.grpc_url}{INFER}"], capture_stdout=True)
        said = run.stdout.decode()
        done = re.search(r"^requests: .*$", said, re.MULTILINE)
        assert done is not None, said
        assert f"{count} succeeded, 0 failed, 0 errored, 0 timeout" in done[0]
        # It looks at no status of gRPC, but it counts: every answer has its message.
        whole = count * len(message(answer.response.SerializeToString()))
        assert f"({whole}) data" in said
        assert (
            await server.metric("nv_inference_request_success", model="onnx_add_sub", version="1")
            == count + 1
        )


SMALLEST = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 0),
    ("grpc.http2.max_frame_size", 16_384),
    ("grpc.optimization_target", "latency"),
]


async def assert_moves(address, size, credentials=None):
    """Check that a message of this size goes to the identity model and comes back unchanged."""
    array = np.arange(size // 4, dtype=np.float32)

    def move():
        with grpcio(address, SMALLEST, credentials=credentials) as infer:
            return infer(inference("onnx_identity", {"X": array})).raw_output_contents[0]

    assert await trio.to_thread.run_sync(move) == array.tobytes()


async def test_so_it_does_over_tls_and_a_unix_socket(tritium_server, repository, tmp_path):
    repository.onnx_identity()
    authority = Authority(tmp_path)
    files = authority.sign("server")
    flags = [f"--grpc-server-cert={files.certificate}", f"--grpc-server-key={files.key}"]
    path = tmp_path / "grpc.sock"
    async with tritium_server("--grpc-use-ssl=true", *flags, f"--grpc-unix-socket={path}") as server:
        trusting = grpc.ssl_channel_credentials(authority.root.read_bytes())
        await assert_moves(server.grpc_url, 16 * MIB, trusting)
        await assert_moves(f"unix:{path}", 16 * MIB)


# -- the end, under load


async def test_ended_under_load_every_call_it_took_has_an_answer(tritium_server, repository):
    repository.onnx_add_sub()
    async with tritium_server("--log-requests=true") as server:
        storm = Storm(server)
        refused = []

        def ask_by_grpcio():
            with grpcio(server.grpc_url) as infer:
                while True:
                    try:
                        infer(SUM)
                    except grpc.RpcError as error:
                        refused.append(error.code())
                        return

        async def ask(asking):
            async def connect():
                return asking

            # The connection sends GOAWAY at some time. It names the calls that it did not take, and answers
            # the others.
            with pytest.raises(Lost, match=r"goodbye"):
                await storm.client("onnx_add_sub", reconnect=False, connect=connect)

        async with (
            channel_to(server.grpc_port) as one,
            channel_to(server.grpc_port) as other,
            trio.open_nursery() as nursery,
        ):
            for number in range(12):
                nursery.start_soon(ask, Unary((one, other)[number % 2]))
            for _ in range(4):
                nursery.start_soon(trio.to_thread.run_sync, ask_by_grpcio)
            await server.until_metric_above(500, "nv_inference_request_success", model="onnx_add_sub")
            server.signal(signal.SIGTERM)
        assert await server.wait_ended() == 0
        tally = storm.tallies["onnx_add_sub"]
        assert not tally.wrong
        assert set(tally.errors) <= {UNAVAILABLE}
        assert set(refused) == {grpc.StatusCode.UNAVAILABLE}
        assert tally.answered + len(tally.lost) == tally.sent
        assert not server.logged("request_failed")


# -- a crash of the listener


# -- keepalive and age


@pytest.mark.long
async def test_clients_that_ping_too_often_are_told_so_and_sent_away(tritium_server, repository, gates):
    repository.gated(gates.directory)
    impatient = [
        ("grpc.keepalive_time_ms", 50),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]

    def wait(url):
        with grpcio(url, impatient) as infer, pytest.raises(grpc.RpcError) as caught:
            infer(inference("gated", {"TICKET": np.array([[1]], np.int32)}))
        return caught.value

    async with tritium_server() as server:
        async with offending(server.grpc_port) as offender:
            await offender.begin()
            await offender.send(wire.frame(wire.PING, 0, 0, b"12345678") * 4)
            goodbye = await offender.wait_for(wire.GOAWAY)
            assert goodbye.number(4) == wire.ENHANCE_YOUR_CALM
            assert goodbye.payload[8:] == b"too_many_pings"
            await offender.wait_ended()
        error = await trio.to_thread.run_sync(wait, server.grpc_url)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert re.search("too_many_pings|Too many pings", error.details())
        gates.open()


@pytest.mark.long
async def test_old_connections_are_replaced_and_no_call_is_lost(tritium_server, repository):
    repository.onnx_add_sub(config=instances(1))
    enough = threading.Event()

    def ask(url):
        with grpcio(url) as infer:
            while not enough.is_set():
                assert infer(SUM).model_name == "onnx_add_sub"

    async with tritium_server("--grpc-max-connection-age=200") as server:

        async def replaced():
            children = (await server.node("frontends/grpc/connections"))["children"]
            # Each client has its third connection.
            return any(int(child["name"].rpartition("-")[2]) > 12 for child in children)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(trio.to_thread.run_sync, ask, server.grpc_url)
            try:
                await eventually(replaced)
            finally:
                enough.set()
        async with offending(server.grpc_port) as old:
            await old.begin()
            goodbye = await old.wait_for(wire.GOAWAY)
            assert goodbye.number(4) == wire.NO_ERROR
            assert goodbye.payload[8:] == b"max_age"
            await old.send(wire.frame(wire.PING, wire.ACK, 0, (await old.wait_for(wire.PING)).payload))
            await old.wait_ended()
