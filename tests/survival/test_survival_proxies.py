"""A real server behind real proxies: each client has a share of its own, and no client another's.

An address may make one request here, and the next one in hours. Proxies connect from 127.0.0.9, which is
trusted, and clients from other addresses of the loopback network. Ports of inference read what proxies write
into heads; those of management want the PROXY protocol.
"""

import json
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import trio
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from chaos.subject.ports import free_ports
from tests.survival.repository import Repository
from tests.survival.server import standing, until

pytestmark = pytest.mark.slow

PROXY = "127.0.0.9"
INFER = "/v2/models/onnx_add_sub/infer"
BODY = {
    "inputs": [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16} for name in ("A", "B")
    ]
}
NGINX_MODULES = (
    "/usr/lib/nginx/modules/ngx_stream_module.so",
    "/usr/lib64/nginx/modules/ngx_stream_module.so",
)

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxies")
    repository = Repository(folder / "models")
    repository.onnx_add_sub()
    flags = (
        f"--trusted-proxies={PROXY}",
        "--proxy-protocol=management",
        "--max-requests-per-second-per-address=0.00005",
        "--management-address=127.0.0.1",
        "--management-http-port=0",
        "--management-grpc-port=0",
        "--log-requests=true",
        "--log-verbose=1",
    )
    with standing(repository.path, *flags, files=folder / "server") as server:
        yield server


@pytest.fixture(scope="module")
def introduced(server):
    """The ports that want the PROXY protocol, by protocol."""
    opened = {line["service"]: line["address"] for line in server.logged("listener_opened")}
    return {
        kind: int(opened[f"{kind.upper()}ManagementService"].rpartition(":")[2]) for kind in ("http", "grpc")
    }


numbers = iter(range(1, 250))


@pytest.fixture
def addresses():
    """Addresses of clients that no other test has."""
    return (f"127.0.1.{number}" for number in numbers)


def ask(url, address, **options):
    """The status of an inference that a client at `address` asks for."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=30) as client:
        return client.post(f"http://{url}{INFER}", json=BODY, **options).status_code


def healthy(url, address):
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=30) as client:
        return all(client.get(f"http://{url}/v2/health/ready").status_code == 200 for _ in range(3))


def grpc_status(url, **headers):
    given = []
    for name in ("A", "B"):
        tensor = tritonclient.grpc.InferInput(name, [1, 16], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
        given.append(tensor)
    with tritonclient.grpc.InferenceServerClient(url) as client:
        try:
            client.infer("onnx_add_sub", given, headers=headers or None, client_timeout=30)
        except InferenceServerException as error:
            assert client.is_server_ready()
            return str(error.status()), str(error.message())
    return "ok", ""


def peers(server):
    """The addresses of the clients whose requests were answered, as the log has them."""
    return [line["peer"].split(":")[1].strip("[]") for line in server.logged("request_completed")]


def wait_logged(server, *addresses):
    """Wait until each of `addresses` stands in the log once."""
    trio.run(until, lambda: all(peers(server).count(address) == 1 for address in addresses))


def check_shares(server, url, addresses, **options):
    """Each of two clients behind the proxy at `url` makes one request, and is told that it was one."""
    two = [next(addresses), next(addresses)]
    assert [ask(url, address, **options) for address in two] == [200, 200]
    assert [ask(url, address, **options) for address in two] == [429, 429]
    assert all(healthy(url, address) for address in two)
    wait_logged(server, *two)


def test_each_client_of_one_connection_of_a_proxy_has_a_share_of_its_own(server):
    transport = httpx.HTTPTransport(local_address=PROXY)
    with httpx.Client(transport=transport, timeout=30) as proxy:

        def send(**fields):
            fields = {name.replace("_", "-"): value for name, value in fields.items()}
            return proxy.post(f"http://{server.url}{INFER}", json=BODY, headers=fields)

        for number in (1, 2):
            assert send(x_forwarded_for=f"198.51.100.66, 203.0.113.{number}").status_code == 200
        told = send(forwarded='for=198.51.100.66, for="203.0.113.1:4711";proto=https')
        assert told.status_code == 429
        assert told.json()["error"].startswith("'203.0.113.1' may make 5e-05 requests a second")
        assert int(told.headers["retry-after"]) > 3600
        assert send(forwarded="for=203.0.113.3").status_code == 200


def test_a_stranger_has_its_own_share_whatever_it_says(server, addresses):
    address = next(addresses)
    assert ask(server.url, address, headers={"x-forwarded-for": "203.0.113.50"}) == 200
    for number in range(51, 54):
        for field in (f"203.0.113.{number}", PROXY):
            assert ask(server.url, address, headers={"x-forwarded-for": field}) == 429
        assert ask(server.url, address, headers={"forwarded": f"for=203.0.113.{number}"}) == 429


def curl(*arguments):
    done = subprocess.run(
        [
            "curl",
            "-s",
            "-m",
            "30",
            "-o",
            os.devnull,
            "-w",
            "%{http_code}",
            *arguments,
            "-d",
            json.dumps(BODY),
        ],
        capture_output=True,
        text=True,
    )
    if "unknown" in done.stderr:
        pytest.skip(f"this curl does not know it: {done.stderr.splitlines()[0]}")
    return done.stdout


@needs_curl
def test_curl_introduces_itself(server, introduced, addresses):
    url = f"http://127.0.0.1:{introduced['http']}{INFER}"
    assert curl("--interface", PROXY, "--haproxy-protocol", url) == "200"
    assert curl("--interface", PROXY, "--haproxy-protocol", url) == "429"
    wait_logged(server, PROXY)
    stranger = next(addresses)
    assert curl("--interface", stranger, "--haproxy-protocol", url) == "400"
    assert curl("--interface", stranger, url) == "200"
    assert curl("--interface", PROXY, url) == "000"


@needs_curl
def test_curl_introduces_a_client(server, introduced):
    url = f"http://127.0.0.1:{introduced['http']}{INFER}"
    for address in ("203.0.113.60", "2001:db8:60::1"):
        asked = [curl("--interface", PROXY, "--haproxy-clientip", address, url) for _ in range(2)]
        assert asked == ["200", "429"]


def listening(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(command, ports, log):
    """Run a proxy in the foreground until the end of the block, from when it listens to all `ports`."""
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            trio.run(until, lambda: process.poll() is not None or all(map(listening, ports)))
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()


@needs_nginx
def test_clients_behind_nginx(server, introduced, addresses, tmp_path):
    stream = next((module for module in NGINX_MODULES if Path(module).exists()), None)
    http, grpc, plain, plain_grpc = ports = free_ports(4)
    config = tmp_path / "nginx.conf"
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    forwarded = "X-Forwarded-For $proxy_add_x_forwarded_for"
    streams = f"""
stream {{
    proxy_bind {PROXY}; proxy_protocol on;
    server {{ listen 127.0.0.1:{plain}; proxy_pass 127.0.0.1:{introduced["http"]}; }}
    server {{ listen 127.0.0.1:{plain_grpc}; proxy_pass 127.0.0.1:{introduced["grpc"]}; }}
}}
"""
    config.write_text(f"""
{f"load_module {stream};" if stream else ""}
daemon off; master_process off; pid {tmp_path}/pid; error_log stderr;
events {{}}
http {{
    access_log off;
    {temporary}
    upstream tritium {{ server {server.url}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{http};
        location / {{
            proxy_pass http://tritium; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_bind {PROXY}; proxy_set_header Host $http_host; proxy_set_header {forwarded};
        }}
    }}
    server {{
        listen 127.0.0.1:{grpc} http2;
        location / {{ grpc_pass grpc://{server.grpc_url}; grpc_bind {PROXY}; grpc_set_header {forwarded}; }}
    }}
}}
{streams if stream else ""}
""")
    command = ["nginx", "-p", str(tmp_path), "-e", "stderr", "-c", str(config)]
    with running(command, ports if stream else ports[:2], tmp_path / "log"):
        url = f"127.0.0.1:{http}"
        check_shares(server, url, addresses)
        check_shares(server, url, addresses, headers={"x-forwarded-for": f"203.0.113.70, {PROXY}"})
        # nginx passes on a field that it does not write, so the client counts as the proxy.
        spoofing, other = next(addresses), next(addresses)
        asked = [ask(url, spoofing, headers={"forwarded": f"for=203.0.113.{n}"}) for n in (71, 72, 73)]
        assert asked[1:] == [429, 429]
        assert ask(url, other, headers={"forwarded": "for=203.0.113.74"}) == 429
        told = grpc_status(f"127.0.0.1:{grpc}", **{"x-forwarded-for": "203.0.113.74"})
        assert told == ("ok", "")
        told = grpc_status(f"127.0.0.1:{grpc}", **{"x-forwarded-for": "203.0.113.75"})
        assert told[0] == "StatusCode.RESOURCE_EXHAUSTED"
        assert told[1].startswith("'127.0.0.1' may make")
        if stream:
            check_shares(server, f"127.0.0.1:{plain}", addresses)
            # The same address over the other protocol: its request was made.
            assert grpc_status(f"127.0.0.1:{plain_grpc}")[1].startswith("'127.0.0.1' may make")
            wait_logged(server, "127.0.0.1")


@needs_haproxy
def test_clients_behind_haproxy(server, introduced, addresses, tmp_path):
    forward, first, second, over_grpc = ports = free_ports(4)
    config = tmp_path / "haproxy.cfg"
    config.write_text(f"""
defaults
    timeout connect 10s
    timeout client 30s
    timeout server 30s
    source {PROXY}
listen forwarding
    mode http
    bind 127.0.0.1:{forward}
    option forwardfor
    server tritium {server.url}
listen introducing
    mode tcp
    bind 127.0.0.1:{first}
    server tritium 127.0.0.1:{introduced["http"]} send-proxy
listen introducing-in-binary
    mode tcp
    bind 127.0.0.1:{second}
    server tritium 127.0.0.1:{introduced["http"]} send-proxy-v2 check inter 100ms
listen introducing-grpc
    mode tcp
    bind 127.0.0.1:{over_grpc}
    server tritium 127.0.0.1:{introduced["grpc"]} send-proxy-v2
""")
    with running(["haproxy", "-db", "-f", str(config)], ports, tmp_path / "log"):
        check_shares(server, f"127.0.0.1:{forward}", addresses, headers={"x-forwarded-for": "203.0.113.80"})
        for port in (first, second):
            check_shares(server, f"127.0.0.1:{port}", addresses)
            check_shares(server, f"127.0.0.1:{port}", addresses, headers={"x-forwarded-for": "203.0.113.81"})
        assert grpc_status(f"127.0.0.1:{over_grpc}", **{"x-forwarded-for": "203.0.113.82"})[0] in {
            "ok",
            "StatusCode.RESOURCE_EXHAUSTED",
        }
        told = grpc_status(f"127.0.0.1:{over_grpc}", **{"x-forwarded-for": "203.0.113.83"})
        assert told[0] == "StatusCode.RESOURCE_EXHAUSTED"
        assert told[1].startswith("'127.0.0.1' may make")
