"""Replicas asked over TLS: found by name, trusted by a file, and certificates that are renewed."""

import os
import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from chaos.subject.certificates import Authority
from engine.fleet.asking import Access, HttpReplica
from engine.fleet.discovery.addresses import member
from engine.fleet.discovery.finding import Discovery
from engine.fleet.discovery.slices import found_in
from engine.fleet.ports import Member, Unreachable
from engine.fleet.trust import BadFile, Clients
from engine.fleet.wanted import Tls, Wanted

BODY = b'{"boot":"b","epoch":3,"sequence":0,"document_epoch":3,"held":false,"document":null}'
ANSWER = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def over_tls(listener, certified, roots):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certified.certificate, certified.key)
    if roots is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(roots)
    return trio.SSLListener(listener, context, https_compatible=True)


@asynccontextmanager
async def served(certified=None, roots=None):
    """Serve the register at a port of this machine; over TLS with a certificate."""

    async def handle(stream):
        async with stream:
            try:
                await stream.receive_some()
                await stream.send_all(ANSWER)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async with trio.open_nursery() as nursery:
        plain = await trio.open_tcp_listeners(0, host="127.0.0.1")
        secret = [] if certified is None else [over_tls(each, certified, roots) for each in plain]
        nursery.start_soon(partial(trio.serve_listeners, handle, secret or plain))
        yield plain[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def asked(port, tls, *, scheme="https", said=None):
    """Give the server at a port as the fleet asks it."""
    clients = Clients(tls, lambda event, **keys: said.append((event, keys["reason"])))
    there = Member(name="r0", url=f"{scheme}://127.0.0.1:{port}")
    replica = HttpReplica(there, clients.client, lambda: Access(server_name=tls().server_name))
    try:
        yield replica
    finally:
        await clients.close()


async def test_a_certificate_is_trusted_by_the_file_and_for_the_name_that_it_has(authority):
    tls = Tls(ca_file=str(authority.root))
    async with served(authority.sign("server")) as port:
        async with asked(port, lambda: tls) as replica:
            assert (await replica.write(3, 0, None)).epoch == 3
        async with asked(port, lambda: Tls(ca_file=tls.ca_file, server_name="localhost")) as replica:
            assert (await replica.write(3, 0, None)).epoch == 3
        async with asked(port, lambda: Tls(ca_file=tls.ca_file, server_name="elsewhere")) as replica:
            with pytest.raises(Unreachable, match="its certificate is not trusted: Hostname mismatch"):
                await replica.look({}, plans=(), deep=False)
        async with asked(port, Tls) as replica:
            with pytest.raises(
                Unreachable, match="its certificate is not trusted: unable to get local issuer"
            ):
                await replica.write(3, 0, None)
        async with asked(port, Tls, scheme="http") as replica:
            with pytest.raises(Unreachable):
                await replica.look({}, plans=(), deep=False)
    async with served() as port, asked(port, Tls) as replica:
        with pytest.raises(
            Unreachable, match=r"TLS fails \(WRONG_VERSION_NUMBER\); is its address http://\?"
        ):
            await replica.look({}, plans=(), deep=False)


async def test_a_certificate_is_shown_to_servers_that_ask_for_one_and_renewed(authority, tmp_path):
    shown = authority.sign("controller")
    paths = {"certificate_file": str(shown.certificate), "key_file": str(shown.key)}
    tls = Tls(ca_file=str(authority.root), **paths)
    said: list[tuple[str, str]] = []
    async with served(authority.sign("server"), authority.root) as port:
        async with asked(port, lambda: Tls(ca_file=tls.ca_file)) as replica:
            with pytest.raises(Unreachable, match=r"it asks for `tls.certificate_file`|Server disconnected"):
                await replica.look({}, plans=(), deep=False)
        async with asked(port, lambda: tls, said=said) as replica:
            await replica.write(3, 0, None)
            for _ in range(3):  # in place, under the same names
                renewed = authority.sign("controller")
                os.utime(renewed.certificate, ns=(0, renewed.certificate.stat().st_mtime_ns + 1))
                await replica.write(3, 0, None)
            renewed.key.write_text("half of a key")
            await replica.write(3, 0, None)  # with what was good before
            await replica.write(3, 0, None)
    ((event, reason),) = said
    assert event == "fleet_tls_refused"
    assert reason.startswith("tls: ")


@pytest.mark.parametrize("content", ["", "no certificate", None])
def test_a_file_that_can_not_be_used_is_told_at_the_start(tmp_path, content):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadFile, match=r"tls.ca_file: \S+ca.pem can't be used: "):
        Clients(lambda: Tls(ca_file=str(file)), print)


def test_a_key_with_a_password_is_refused_and_asks_no_one_for_it(authority):
    locked = authority.sign("locked", password=b"secret")
    with pytest.raises(BadFile, match=r"tls: \S+locked.pem with \S+locked.key can't be used"):
        Clients(lambda: Tls(certificate_file=str(locked.certificate), key_file=str(locked.key)), print)


def test_replicas_that_are_found_are_asked_as_the_file_says():
    assert member("a:b", "fd00::7", {}) == Member(
        name="a-b",
        url="http://[fd00::7]:8000",
        grpc="[fd00::7]:8001",
        metrics="http://[fd00::7]:8002/metrics",
    )
    options = {"scheme": "https", "metrics_scheme": "http", "port": 1, "grpc_port": 2, "metrics_port": 3}
    slices = {
        "items": [
            {"endpoints": None},
            {"endpoints": [{"addresses": ["10.0.0.7"], "targetRef": {"name": "pod-0"}}]},
            {"endpoints": [{"addresses": ["10.0.0.8"], "conditions": {"terminating": True}}]},
        ]
    }
    assert found_in(slices, options) == [
        Member(name="pod-0", url="https://10.0.0.7:1", grpc="10.0.0.7:2", metrics="http://10.0.0.7:3/metrics")
    ]
    assert member("a", "a", {"scheme": "https"}).metrics == "https://a:8002/metrics"


async def test_a_name_is_looked_up_and_one_that_can_not_be_is_told():
    discovery = Discovery()
    (found,) = await discovery.discover(Wanted(discovery={"dns": {"name": "127.0.0.1", "scheme": "https"}}))
    assert found.url == "https://127.0.0.1:8000"
    with pytest.raises(Unreachable, match="has no address"):
        await discovery.discover(Wanted(discovery={"dns": {"name": "a." + "b" * 64}}))
    discovery.close()
