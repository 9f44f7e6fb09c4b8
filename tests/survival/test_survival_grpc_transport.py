"""The transport below gRPC's calls, with ordinary clients: a thousand streams, and an end under load."""

import re
import shutil
import signal

import grpc
import numpy as np
import pytest
import trio

from chaos.subject.server import PATIENCE
from tests.survival.grpc_wire import (
    INFER,
    UNAVAILABLE,
    Unary,
    channel_to,
    inference,
    message,
    pb,
)
from tests.survival.repository import WIDTH, instances
from tests.survival.storm import Storm
from tests.survival.wire import Lost

ROW = np.ones((1, WIDTH), np.float32)
SUM = inference("onnx_add_sub", {"A": ROW, "B": ROW})

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


# -- the end, under load


async def test_ended_under_load_every_call_it_took_has_an_answer(tritium_server, repository):
    repository.onnx_add_sub()
    async with tritium_server("--log-requests=true") as server:
        storm = Storm(server)
        refused = []

        def ask_by_grpcio():
            with grpc.insecure_channel(server.grpc_url) as channel:
                infer = channel.unary_unary(INFER, None, pb.ModelInferResponse.FromString)
                while True:
                    try:
                        infer(SUM, timeout=PATIENCE)
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
