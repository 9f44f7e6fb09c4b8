"""TLS of a real server, as its clients see it, and certificates that change under load."""

import datetime
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.certificates import Authority
from tests.support.operators import serving, write_model
from tests.support.triton_inputs import inputs

pytestmark = [pytest.mark.slow, pytest.mark.system]

MiB = 1024 * 1024
PATIENCE = 60.0
VALUES = np.arange(4, dtype=np.float32)


class Pem:
    """The files of a server, whose content can be exchanged, and what its clients trust."""

    def __init__(self, folder):
        self.authority = Authority(folder)
        self.certificate, self.key = folder / "tls.pem", folder / "tls.key"
        self._numbers = itertools.count(1)
        self.exchange()

    def exchange(self):
        """Put the files of a new certificate in place, one after the other; return its name."""
        return self.put(f"server-{next(self._numbers)}")

    def put(self, name, **options):
        signed = self.authority.sign(name, **options)
        for source, place in ((signed.certificate, self.certificate), (signed.key, self.key)):
            shutil.copy(source, place.with_suffix(".new"))
            os.replace(place.with_suffix(".new"), place)
        return name

    def flags(self, *listeners):
        for listener in listeners:
            yield f"--{listener}-use-ssl=true"
        for listener in {"grpc" if listener == "grpc" else "http" for listener in listeners}:
            yield f"--{listener}-server-cert={self.certificate}"
            yield f"--{listener}-server-key={self.key}"

    def context(self, client=None):
        context = ssl.create_default_context(cafile=self.authority.root)
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context


@pytest.fixture
def pem(tmp_path):
    (tmp_path / "pem").mkdir()
    return Pem(tmp_path / "pem")


@pytest.fixture
def serve(tmp_path):
    """Start `tritium serve` over a model that doubles."""
    write_model(tmp_path / "models")
    with ExitStack() as stack:

        def serve(*flags):
            server = stack.enter_context(
                serving(tmp_path / "server", f"--model-repository={tmp_path / 'models'}", *flags)
            )
            server.wait_ready()
            return server

        yield serve


def name_shown(address, context):
    """The common name of the certificate that a new connection is shown."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as raw:
        with context.wrap_socket(raw, server_hostname="localhost") as sock:
            subject = dict(part[0] for part in sock.getpeercert()["subject"])
            return subject["commonName"]


def until(condition, within=PATIENCE):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


# -- the clients in use


def by_http(address, pem, client=None, **options):
    mine = {"certfile": str(client.certificate), "keyfile": str(client.key)} if client else {}
    return tritonclient.http.InferenceServerClient(
        address, ssl=True, ssl_options={"ca_certs": str(pem.authority.root), **mine}, **options
    )


def by_grpc(address, pem, client=None):
    mine = {"private_key": str(client.key), "certificate_chain": str(client.certificate)} if client else {}
    return tritonclient.grpc.InferenceServerClient(
        address, ssl=True, root_certificates=str(pem.authority.root), **mine
    )


def doubled(library, client, values=VALUES):
    answer = client.infer("double", inputs(library, X=values)).as_numpy("Y")
    return np.array_equal(answer, values * 2)


def test_the_clients_in_use_are_served(serve, pem):
    server = serve(*pem.flags("http", "metrics", "grpc"))
    http, metrics, grpc = map(server.address, ("HTTPService", "Metrics Service", "GRPCInferenceService"))
    with by_http(http, pem) as client:
        assert doubled(tritonclient.http, client)
    with by_grpc(grpc, pem) as client:
        assert doubled(tritonclient.grpc, client)
    with httpx.Client(verify=pem.context()) as client:
        assert client.get(f"https://{http}/v2/health/ready").status_code == 200
        scraped = client.get(f"https://{metrics}/metrics").text
    soon = datetime.datetime.now(datetime.UTC).timestamp() + 24 * 3600
    for listener in ("http", "metrics", "grpc"):
        name = f'tritium_tls_certificate_expiry_timestamp_seconds{{listener="{listener}"}}'
        (value,) = [line.split()[-1] for line in scraped.splitlines() if line.startswith(name)]
        assert abs(float(value) - soon) < 600
    curl = ["curl", "-sS", "--cacert", str(pem.authority.root), "-w", "%{http_version} %{http_code}"]
    assert subprocess.check_output([*curl, f"https://{http}/v2/health/live"]) == b"1.1 200"


@pytest.mark.parametrize("listener", ["http", "grpc"])
def test_mutual_tls_serves_clients_that_the_roots_vouch_for_and_no_others(serve, pem, tmp_path, listener):
    stranger = Authority(tmp_path, "elsewhere").sign("stranger")
    expired = pem.authority.sign("expired", lifetime=-datetime.timedelta(hours=1))
    server = serve(
        *pem.flags(listener),
        f"--{listener}-use-ssl-mutual=true",
        f"--{listener}-root-cert={pem.authority.root}",
    )
    service, library, connect = {
        "http": ("HTTPService", tritonclient.http, by_http),
        "grpc": ("GRPCInferenceService", tritonclient.grpc, by_grpc),
    }[listener]
    address = server.address(service)
    with connect(address, pem, pem.authority.sign("client")) as client:
        assert doubled(library, client)
    for unwelcome in (None, stranger, expired):
        with connect(address, pem, unwelcome) as client:
            with pytest.raises((InferenceServerException, OSError)):
                client.is_server_live()


def test_a_client_that_trusts_another_authority_refuses_the_server(serve, pem, tmp_path):
    address = serve(*pem.flags("http")).address()
    elsewhere = ssl.create_default_context(cafile=Authority(tmp_path, "elsewhere").root)
    with pytest.raises(ssl.SSLCertVerificationError):
        name_shown(address, elsewhere)
    assert name_shown(address, pem.context()) == "server-1"


# -- bytes


@pytest.mark.long
def test_large_bodies_go_up_and_come_down(serve, pem):
    values = np.arange(100 * MiB // 4, dtype=np.float32)
    server = serve(*pem.flags("http"))
    with by_http(server.address(), pem, network_timeout=PATIENCE, connection_timeout=PATIENCE) as client:
        assert doubled(tritonclient.http, client, values)


# -- clients that try to weaken it


def handshake(address, context, name="localhost"):
    """The version that a client and the server agree on."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as raw:
        with context.wrap_socket(raw, server_hostname=name) as sock:
            return sock.version()


@pytest.mark.long
def test_old_versions_are_refused_and_any_server_name_is_told_the_same_certificate(serve, pem):
    server = serve(*pem.flags("http", "metrics", "grpc"))
    for service in ("HTTPService", "Metrics Service", "GRPCInferenceService"):
        address = server.address(service)
        for version, agreed in (("TLSv1_1", None), ("TLSv1_2", "TLSv1.2"), ("TLSv1_3", "TLSv1.3")):
            context = pem.context()
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.set_alpn_protocols(["h2"] if service.startswith("GRPC") else ["http/1.1"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
            if agreed is None:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    handshake(address, context)
            else:
                assert handshake(address, context) == agreed
        context = pem.context()
        context.check_hostname = False
        for name in ("elsewhere.example", "x" * 63 + ".example", "127.0.0.1"):
            assert handshake(address, context, name) in {"TLSv1.2", "TLSv1.3"}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_a_client_can_not_negotiate_again(serve, pem):
    server = serve(*pem.flags("http"))
    command = [
        "openssl",
        "s_client",
        "-connect",
        server.address(),
        "-tls1_2",
        "-CAfile",
        str(pem.authority.root),
    ]
    asked = subprocess.run(
        command, input="R\n", capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert "RENEGOTIATING" in asked.stdout + asked.stderr
    assert "no renegotiation" in asked.stderr
    with by_http(server.address(), pem) as client:
        assert client.is_server_ready()


# -- certificates that change


class Load:
    """Clients that ask all the time, by kept and by fresh connections, and count their errors."""

    def __init__(self, server, pem):
        self._http, self._grpc = server.address(), server.address("GRPCInferenceService")
        self._pem = pem
        self._over = threading.Event()
        self.answers = dict.fromkeys(("kept http", "fresh http", "kept grpc", "fresh grpc", "httpx"), 0)
        self.errors = []

    def __enter__(self):
        self._pool = ThreadPoolExecutor(len(self.answers))
        asks = (self._kept_http, self._fresh_http, self._kept_grpc, self._fresh_grpc, self._httpx)
        self._running = [self._pool.submit(self._ask, *pair) for pair in zip(self.answers, asks, strict=True)]
        return self

    def __exit__(self, *failure):
        self._over.set()
        self._pool.shutdown()

    def _ask(self, kind, ask):
        try:
            with closing(ask()) as answers:
                for good in answers:
                    assert good
                    self.answers[kind] += 1
                    if self._over.is_set():
                        return
        except Exception as error:  # noqa: BLE001
            self.errors.append((kind, repr(error)))

    def _kept_http(self):
        host, port = self._http.split(":")
        context = self._pem.context()
        body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [2]}]})
        with closing(http.client.HTTPSConnection(host, int(port), timeout=PATIENCE, context=context)) as kept:
            kept.connect()
            sock = kept.sock
            while True:
                kept.request("POST", "/v2/models/double/infer", body)
                answer = json.loads(kept.getresponse().read())
                yield answer["outputs"][0]["data"] == [4] and kept.sock is sock

    def _fresh_http(self):
        while True:
            with httpx.Client(verify=self._pem.context(), timeout=PATIENCE) as client:
                yield client.get(f"https://{self._http}/v2/health/ready").status_code == 200

    def _httpx(self):
        with httpx.Client(verify=self._pem.context(), timeout=PATIENCE) as client:
            while True:
                yield client.get(f"https://{self._http}/v2").status_code == 200

    def _kept_grpc(self):
        with by_grpc(self._grpc, self._pem) as client:
            while True:
                yield doubled(tritonclient.grpc, client)

    def _fresh_grpc(self):
        while True:
            with by_grpc(self._grpc, self._pem) as client:
                yield doubled(tritonclient.grpc, client)

    def wait_for_more(self, count=3):
        """Wait until each client has had so many more answers, or one has failed."""
        owed = {kind: answers + count for kind, answers in self.answers.items()}
        until(lambda: self.errors or all(self.answers[kind] >= least for kind, least in owed.items()))


@pytest.mark.parametrize(
    ("times", "told"),
    [(3, True), pytest.param(1, False, marks=pytest.mark.long)],
    ids=["by SIGHUP", "when they change"],
)
def test_new_certificates_cost_no_client_an_error(serve, pem, times, told):
    server = serve(*pem.flags("http", "metrics", "grpc"))
    addresses = [server.address(), server.address("Metrics Service")]
    context = pem.context()
    with Load(server, pem) as load:
        for _ in range(times):
            load.wait_for_more()
            name = pem.exchange()
            if told:
                server.signal(signal.SIGHUP)
            for address in addresses:
                until(lambda address=address, name=name: name_shown(address, context) == name)
        load.wait_for_more()
    assert load.errors == []
    assert server.said.count("files_reloaded what=tls-grpc") == times
    assert "reload_failed" not in server.said


def test_files_that_cannot_be_used_leave_the_certificate_before_in_place(serve, pem):
    server = serve(*pem.flags("http"))
    address, context = server.address(), pem.context()
    pem.key.write_text("no key at all")
    server.signal(signal.SIGHUP)
    server.wait_said("reload_failed what=tls-http .*--http-server-key: '.*' holds no PEM private key")
    assert name_shown(address, context) == "server-1"
    pem.put("expired", lifetime=-datetime.timedelta(hours=1))
    server.signal(signal.SIGHUP)
    server.wait_said("certificate_doubtful listener=http .*the certificate in '.*' has expired")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        name_shown(address, context)
    pem.put("mended", lifetime=datetime.timedelta(days=90))
    server.signal(signal.SIGHUP)
    until(lambda: server.said.count("files_reloaded") == 2)
    assert name_shown(address, context) == "mended"
    assert server.said.count("certificate_doubtful") == 2  # of one day at the start, and of the expired one
