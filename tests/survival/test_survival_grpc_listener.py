"""The gRPC listener of a real server, as tritonclient.grpc sees it: addresses and certificates."""

import signal
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import trio
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.certificates import Authority
from tests.support.triton_inputs import inputs
from tests.survival.repository import WIDTH
from tests.survival.server import until

PATIENCE = 60.0  # seconds


@contextmanager
def client_of(url, **options):
    client = tritonclient.grpc.InferenceServerClient(url, **options)
    try:
        yield client
    finally:
        client.close()


def add_one(url, **options):
    """Have the add/sub model add ones to a row of 0, 1, 2, …; return the sum."""
    rows = {"A": np.arange(WIDTH, dtype=np.float32)[None], "B": np.ones((1, WIDTH), np.float32)}
    with client_of(url, **options) as client:
        given = inputs(tritonclient.grpc, **rows)
        return client.infer("python_add_sub", given, client_timeout=PATIENCE).as_numpy("SUM")


async def assert_serves(url, **options):
    answer = await trio.to_thread.run_sync(partial(add_one, url, **options))
    assert answer.tolist() == [[number + 1 for number in range(WIDTH)]]


async def assert_turns_away(url, **options):
    def ask():
        with client_of(url, **options) as client:
            client.is_server_live(client_timeout=PATIENCE)

    with pytest.raises(InferenceServerException) as caught:
        await trio.to_thread.run_sync(ask)
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


async def test_with_mutual_tls_and_without_http_it_serves_those_whom_it_trusts(
    tritium_server, repository, tmp_path
):
    repository.python_add_sub()
    authority = Authority(tmp_path)
    ours, mine = authority.sign("server"), authority.sign("client")
    path = tmp_path / "grpc.sock"
    flags = (
        "--allow-http=false",
        f"--grpc-unix-socket={path}",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={ours.certificate}",
        f"--grpc-server-key={ours.key}",
        f"--grpc-root-cert={authority.root}",
    )
    trusting = {"ssl": True, "root_certificates": str(authority.root)}
    mutual = {"private_key": str(mine.key), "certificate_chain": str(mine.certificate)}
    async with tritium_server(*flags, ready=False) as server:
        await until(lambda: bool(server.logged("server_ready")))
        opened = [(line["service"], line["address"]) for line in server.logged("listener_opened")]
        assert "HTTPService" not in dict(opened)
        url, local = sorted(address for service, address in opened if service == "GRPCInferenceService")
        assert local == f"unix:{path}"
        await assert_turns_away(url)  # in the clear
        await assert_turns_away(url, **trusting)
        await assert_serves(url, **trusting, **mutual)
        await assert_serves(local)
    assert not path.exists()


async def test_two_servers_share_a_port_where_both_say_so(tritium_server, repository):
    repository.python_add_sub()
    async with tritium_server("--reuse-grpc-port=true") as first:
        shared = ("--reuse-grpc-port=true", f"--grpc-port={first.grpc_port}")
        async with tritium_server(*shared) as second:
            assert second.grpc_port == first.grpc_port
            await assert_serves(second.grpc_url)
            first.signal(signal.SIGTERM)
            assert await first.wait_ended() == 0
            await assert_serves(second.grpc_url)
