"""What the listener decides on a request's head, and what it keeps of bodies."""

# ruff: noqa: ASYNC110  # the kernel does part of the work, and has no event to wait for

import json
import tracemalloc

import pytest
import trio

from actors.values.callers import Action
from protocols.http.admission import SMALL_BODY
from protocols.http.app import V2App
from protocols.http.options import V2Options
from protocols.http.patience import Phase
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_listener import HEALTH, LIVE, serve_on_loopback

MIB = 1024 * 1024
LONG = 500 * MIB


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture
def app(backend):
    restricted = {Action.MODEL_REPOSITORY: ("admin-key", "s3cret")}
    return V2App(backend.server, options=V2Options(restricted=restricted))


@pytest.fixture
async def served(app):
    with trio.fail_after(30):
        async with serve_on_loopback(app, None) as served:
            yield served


def head(method, path, length=LONG, **fields):
    lines = [f"{method} {path} HTTP/1.1", "Host: h"]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


KEY = {"admin_key": "s3cret"}
FRAMED = {"Inference_Header_Content_Length": 100}


@pytest.mark.parametrize(
    ("sent", "status", "told"),
    [
        (head("POST", "/nowhere"), 404, "Not Found"),
        (head("PUT", "/v2/models/add/infer"), 405, "Method Not Allowed"),
        (head("POST", "/v2/models/nope/infer"), 404, "Request for unknown model: 'nope' is not found"),
        (head("POST", "/v2/models/add/versions/9/infer"), 404, "version 9 is not found"),
        (head("POST", "/v2/models/nope/infer", None), 404, "Request for unknown model: 'nope' is not found"),
        (head("POST", "/v2/models/streams/infer"), 501, "decoupled transaction policy"),
        (head("POST", "/v2/models/nope/generate"), 404, "Request for unknown model: 'nope' is not found"),
        (head("POST", "/v2/models/add/infer", Content_Encoding="br"), 501, "Unsupported compression type"),
        (head("POST", "/v2/models/add/generate", Content_Encoding="gzip"), 400, "only 'identity'"),
        (head("POST", "/v2/repository/models/add/load"), 403, "expecting header 'admin-key'"),
        # What is too long for its route
        (head("POST", "/v2/models/add/infer"), 400, f"request JSON size of {LONG} bytes exceeds"),
        (head("POST", "/v2/models/add/generate"), 400, f"request JSON size of {LONG} bytes exceeds"),
        (head("POST", "/v2/repository/models/add/load", **KEY), 400, f"request JSON size of {LONG} bytes"),
        (head("POST", "/v2/repository/models/add/unload", **KEY), 413, "65536 bytes that this endpoint"),
        (head("POST", "/v2/repository/index", 65537, **KEY), 413, "65536 bytes that this endpoint takes"),
        (head("POST", "/v2/tritium/models/add/traffic", **KEY), 413, "65536 bytes that this endpoint takes"),
        (head("GET", "/v2/health/live"), 413, "65536 bytes that this endpoint takes"),
        (head("GET", "/v2/models/add"), 413, "65536 bytes that this endpoint takes"),
        (head("GET", "/v2/models/stats"), 413, "65536 bytes that this endpoint takes"),
    ],
)
async def test_what_the_head_tells_is_answered_before_the_body_comes(served, sent, status, told):
    async with served.connect() as client:
        await client.send(sent + b"a\r\n" + b"x" * 10)
        answered, _, body = await client.response()
        assert answered == status
        assert told in json.loads(body)["error"]


@pytest.mark.parametrize(
    "sent",
    [
        head("POST", "/v2/models/add/infer", 60 * MIB),
        head("POST", "/v2/models/add/infer", LONG, **FRAMED),
        head("POST", "/v2/models/add/infer", LONG, Content_Encoding="gzip"),
        head("POST", "/v2/models/add/generate", 60 * MIB),
        head("POST", "/v2/repository/models/add/load", 60 * MIB, **KEY),
        head("POST", "/v2/repository/index", SMALL_BODY, **KEY),
        head("GET", "/v2/health/live", SMALL_BODY),
    ],
)
async def test_a_client_whose_body_may_come_is_told_to_go_on(served, sent):
    async with served.connect() as client:
        await client.send(sent.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert (await client.receive(25)) == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_a_client_that_asks_first_is_told_at_once_and_the_connection_closed(served):
    async with served.connect() as client:
        await client.send(head("POST", "/v2/models/nope/infer", 100_000, Expect="100-continue"))
        status, fields, _ = await client.response()
        assert (status, fields["Connection"]) == (404, "close")
        assert await client.closed()


async def test_a_chunked_body_is_refused_once_it_is_too_long_for_its_route(served):
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    async with served.connect() as client:
        await client.send(head("POST", "/v2/repository/index", None, **KEY) + chunk * 200)
        status, fields, body = await client.response()
        assert (status, fields["Connection"]) == (413, "close")
        assert "65536 bytes that this endpoint takes" in json.loads(body)["error"]


async def test_requests_behind_a_short_body_that_was_refused_are_answered(served):
    async with served.connect() as client:
        refused = head("POST", "/v2/models/nope/infer", 200_000)
        await client.send(HEALTH + refused + b"x" * 200_000 + HEALTH + refused)
        assert await client.receive(len(LIVE)) == LIVE
        assert (await client.response())[0] == 404
        assert await client.receive(len(LIVE)) == LIVE
        status, fields, _ = await client.response()
        assert status == 404
        assert "Connection" not in fields
        await client.send(b"x" * 200_000 + HEALTH)
        assert await client.receive(len(LIVE)) == LIVE


async def test_a_long_body_that_was_refused_is_read_so_that_the_client_comes_to_its_answer(served):
    async with served.connect() as client:
        await client.send(head("POST", "/v2/models/nope/infer", 40 * MIB))
        for _ in range(40):
            await client.send(bytes(MIB))
        status, fields, _ = await client.response()
        assert (status, fields["Connection"]) == (404, "close")
        assert await client.closed()


async def test_a_client_that_pauses_while_its_body_is_dropped_is_not_waited_for(served, autojump_clock):
    async with served.connect() as client:
        await client.send(head("POST", "/v2/models/nope/infer", LONG) + bytes(1000))
        assert (await client.response())[0] == 404
        while any(served.listener.statistics().phases.values()):
            await trio.sleep(0.5)
        assert trio.current_time() < 10


async def test_uploads_to_nowhere_take_no_memory(served):
    async def upload():
        async with served.connect() as client:
            await client.send(head("POST", "/v2/models/nope/infer", 30 * MIB))
            piece = bytes(MIB)
            for _ in range(30):
                await client.send(piece)
            assert (await client.response())[0] == 404

    tracemalloc.start()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(upload)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB, f"{peak:,} bytes at once"


async def test_an_idle_connection_keeps_nothing_of_its_last_body(served, backend):
    count = 900_000  # a classification takes no more
    shape = {
        "name": "X",
        "datatype": "FP32",
        "shape": [1, count],
        "parameters": {"binary_data_size": count * 4},
    }
    text = json.dumps(
        {"inputs": [shape], "outputs": [{"name": "Y", "parameters": {"classification": 1}}]}
    ).encode()
    sent = head(
        "POST", "/v2/models/scores/infer", len(text) + count * 4, Inference_Header_Content_Length=len(text)
    )
    tracemalloc.start()
    try:
        async with served.connect() as client:
            await client.send(sent + text + bytes(count * 4))
            assert (await client.response())[0] == 200
            backend.model("scores").submitted.clear()  # the double keeps them
            while served.listener.statistics().phases != {Phase.IDLE: 1}:
                await trio.lowlevel.checkpoint()
            kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < MIB, f"{kept:,} bytes are kept"


async def test_bodies_that_nobody_takes_are_not_kept_either(served):
    tracemalloc.start()
    try:
        async with served.connect() as client:
            await client.send(head("GET", "/v2/health/live", SMALL_BODY) + bytes(SMALL_BODY))
            await client.receive(len(LIVE))
            while served.listener.statistics().phases != {Phase.IDLE: 1}:
                await trio.lowlevel.checkpoint()
            held = [line for line in tracemalloc.take_snapshot().traces if line.size >= SMALL_BODY // 2]
    finally:
        tracemalloc.stop()
    assert not [line for line in held if "parser.py" in str(line.traceback)]
