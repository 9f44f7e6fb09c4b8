"""Real clients that upload to a path that refuses it: each reads its answer, on every way to serve."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.protocols.fakes import FakeServer
from tests.support.flavours import PROCESSES, listeners_alone, write_common_models
from tests.support.tiers import mostly_long
from tests.support.triton_inputs import inputs

FLAVOURS = {"listener": lambda _: listeners_alone(FakeServer()), **PROCESSES}
LONG = 24 * 1024 * 1024
NOWHERE = "Request for unknown model: 'nowhere' is not found"


@pytest.fixture(
    scope="module", params=mostly_long(FLAVOURS, "listener", "tritium-serve", "hypercorn-asyncio")
)
def served(request, tmp_path_factory) -> Iterator[tuple[str, str]]:
    """The flavour, and `host:port` of a running server."""
    folder = tmp_path_factory.mktemp("repository")
    write_common_models(folder)
    with FLAVOURS[request.param](folder) as addresses:
        yield request.param, addresses.http


@pytest.fixture
def base_url(served):
    return served[1]


@pytest.fixture
def long_file(tmp_path) -> Path:
    path = tmp_path / "body"
    path.touch()
    os.truncate(path, LONG)
    return path


def test_tritonclient_reads_why(base_url):
    client = triton.InferenceServerClient(base_url)
    given = inputs(triton, A=np.zeros((1, LONG // 4), np.float32))
    for _ in range(2):
        with pytest.raises(InferenceServerException) as caught:
            client.infer("nowhere", given)
        assert caught.value.message() == NOWHERE
    assert client.is_server_live()
    client.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_requests_reads_why(base_url, long_file, chunked):
    with requests.Session() as session:
        for _ in range(2):
            with long_file.open("rb") as body:
                data = iter(lambda: body.read(1 << 20), b"") if chunked else body
                answer = session.post(f"http://{base_url}/v2/models/nowhere/infer", data=data)
            assert (answer.status_code, answer.json()) == (404, {"error": NOWHERE})
        assert session.get(f"http://{base_url}/v2/health/live").status_code == 200


def test_httpx_reads_why(base_url):
    with httpx.Client(base_url=f"http://{base_url}") as session:
        answer = session.post("/v2/repository/index", content=bytes(LONG))
        assert answer.status_code == 413
        assert "65536 bytes that this endpoint takes" in answer.json()["error"]
        assert session.put("/v2/models/add/infer", content=bytes(LONG)).status_code == 405
        assert session.get("/v2/health/live").status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("expecting", [True, False])
def test_curl_reads_why_and_sends_nothing_where_it_asks_first(served, long_file, expecting):
    flavour, base_url = served
    expect = "Expect: 100-continue" if expecting else "Expect:"
    command = ["curl", "-s", "-S", "-w", "\n%{http_code} %{size_upload}", "-H", expect, "-X", "POST"]
    url = f"http://{base_url}/v2/models/nowhere/infer"
    ran = subprocess.run([*command, "-T", str(long_file), url], capture_output=True, text=True, timeout=60)
    body, _, told = ran.stdout.rpartition("\n")
    status, sent = told.split()
    assert (json.loads(body), status) == ({"error": NOWHERE}, "404"), ran.stderr
    if expecting and not re.match("hypercorn", flavour):  # hypercorn itself asks every client to go on
        assert int(sent) == 0


def test_a_connection_lives_on_behind_a_short_body_that_was_refused(base_url):
    with requests.Session() as session:
        answer = session.post(f"http://{base_url}/v2/models/nowhere/infer", data=bytes(300_000))
        assert answer.status_code == 404
        assert answer.headers.get("Connection", "").lower() != "close"
        assert session.get(f"http://{base_url}/v2/health/live").status_code == 200
