"""The gRPC listener of a real server, as tritonclient.grpc sees it: addresses, certificates, and its end."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import trio
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.certificates import Authority
from tests.survival.repository import WIDTH
from tests.survival.server import until

pytestmark = pytest.mark.slow

PATIENCE = 60.0  # seconds


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


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
    inputs = []
    for name, row in rows.items():
        tensor = tritonclient.grpc.InferInput(name, [1, WIDTH], "FP32")
        tensor.set_data_from_numpy(row)
        inputs.append(tensor)
    with client_of(url, **options) as client:
        return client.infer("python_add_sub", inputs, client_timeout=PATIENCE).as_numpy("SUM")


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


async def test_switched_off_it_does_not_listen(tritium_server, repository):
    repository.python_add_sub()
    async with tritium_server("--allow-grpc=false") as server:
        services = {line["service"] for line in server.logged("listener_opened")}
        assert services == {"HTTPService", "Metrics Service"}
        names = [child["name"] for child in (await server.node("frontends"))["children"]]
        assert names == ["http", "metrics"]


async def test_it_serves_without_http(tritium_server, repository):
    repository.python_add_sub()
    async with tritium_server("--allow-http=false", ready=False) as server:
        await until(lambda: bool(server.logged("server_ready")))
        (address,) = (
            line["address"]
            for line in server.logged("listener_opened")
            if line["service"] == "GRPCInferenceService"
        )
        await assert_serves(address)


# -- TLS


def tls_flags(files, **more):
    flags = [f"--grpc-server-cert={files.certificate}", f"--grpc-server-key={files.key}"]
    return [*flags, *(f"--{name.replace('_', '-')}={value}" for name, value in more.items())]


async def test_with_tls_it_serves_those_who_trust_its_authority(tritium_server, repository, authority):
    repository.python_add_sub()
    flags = tls_flags(authority.sign("server"), grpc_use_ssl="true")
    async with tritium_server(*flags) as server:
        await assert_serves(server.grpc_url, ssl=True, root_certificates=str(authority.root))
        await assert_turns_away(server.grpc_url)  # in the clear
        await assert_serves(server.grpc_url, ssl=True, root_certificates=str(authority.root))


async def test_with_mutual_tls_it_serves_those_whom_it_trusts(tritium_server, repository, authority):
    repository.python_add_sub()
    flags = tls_flags(
        authority.sign("server"), grpc_use_ssl_mutual="true", grpc_root_cert=str(authority.root)
    )
    mine = authority.sign("client")
    mutual = {"private_key": str(mine.key), "certificate_chain": str(mine.certificate)}
    async with tritium_server(*flags) as server:
        trusting = {"ssl": True, "root_certificates": str(authority.root)}
        await assert_turns_away(server.grpc_url, **trusting)
        await assert_serves(server.grpc_url, **trusting, **mutual)


async def test_tls_files_that_do_not_belong_together_end_the_start(tritium_server, repository, authority):
    repository.python_add_sub()
    ours, other = authority.sign("server"), authority.sign("other")
    flags = (
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={ours.certificate}",
        f"--grpc-server-key={other.key}",
    )
    async with tritium_server(*flags, ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        assert server.failures[0].startswith(
            f"--grpc-server-key: the key in '{other.key}' does not belong to the certificate in "
        )
        assert not server.logged("worker_started")


# -- a Unix socket


async def test_it_serves_on_a_unix_socket_and_removes_it(tritium_server, repository, tmp_path):
    repository.python_add_sub()
    path = tmp_path / "grpc.sock"
    async with tritium_server(f"--grpc-unix-socket={path}") as server:
        await assert_serves(f"unix:{path}")
        await assert_serves(server.grpc_url)
        listener = await server.node("frontends/grpc-unix/listener")
        assert listener["info"]["address"] == f"unix:{path}"
        await server.wait_loaded()
        (configured,) = server.logged("server_configured")
        assert configured["options"]["grpc_unix_socket"] == str(path)
    assert not path.exists()


async def test_a_server_that_was_killed_leaves_its_unix_socket_to_the_next(
    tritium_server, repository, tmp_path
):
    repository.python_add_sub()
    path = tmp_path / "grpc.sock"
    async with tritium_server(f"--grpc-unix-socket={path}", exit_status=-signal.SIGKILL) as server:
        server.signal(signal.SIGKILL)
        await server.wait_ended()
    assert path.exists()
    async with tritium_server(f"--grpc-unix-socket={path}"):
        await assert_serves(f"unix:{path}")


# -- two servers, and the end of one


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
