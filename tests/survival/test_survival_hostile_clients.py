"""Clients that break HTTP's rules, against `tritium serve`: each gets its answer; others do not notice."""

import numpy as np
import pytest
import trio

from tests.survival.repository import WIDTH, Repository
from tests.survival.server import standing
from tests.survival.wire import inference

pytestmark = pytest.mark.slow

ROW = np.ones((1, WIDTH), np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server: none of these clients may leave anything behind."""
    folder = tmp_path_factory.mktemp("hostile-clients")
    repository = Repository(folder / "models")
    repository.python_add_sub()
    with standing(repository.path, files=folder / "server") as server:
        yield server


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, id="TLS"),
        pytest.param(b"NONSENSE\r\n\r\n", 400, id="no request line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost h\r\n\r\n", 400, id="a header without a colon"),
        pytest.param(
            b"POST /v2/models/python_add_sub/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            id="two lengths at once",
        ),
        pytest.param(
            b"POST /v2/models/python_add_sub/infer HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
            400,
            id="a negative length",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 2_000_000, 431, id="a header without an end"),
    ],
)
async def test_malformed_requests_are_refused_and_the_connection_closed(server, sent, status):
    async with await server.connect() as connection:
        await connection.send(sent)
        assert (await connection.receive()).status == status
        await connection.wait_closed()
    assert (await server.get("/v2/health/ready")).status == 200


async def test_pipelined_requests_are_answered_in_order(server):
    paths = [b"/v2/health/live", b"/v2/models/nope", b"/v2", b"/nowhere"] * 8
    stream = await trio.open_tcp_stream("127.0.0.1", server.http_port)
    async with stream:
        await stream.send_all(b"".join(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % path for path in paths))
        answers = b""
        with trio.fail_after(60):
            while answers.count(b"HTTP/1.1 ") < len(paths):
                answers += await stream.receive_some()
    statuses = [int(answer[:3]) for answer in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 200, 404] * 8


async def test_a_request_in_single_bytes_is_answered_like_any_other(server):
    async with await server.connect() as connection:
        for byte in inference("python_add_sub", {"A": ROW, "B": ROW}):
            await connection.send(bytes((byte,)))
            await trio.lowlevel.checkpoint()
        assert (await connection.receive()).status == 200


async def test_thousands_of_chunks_are_answered_and_more_than_65536_refused(server):
    head = b"POST /v2/models/python_add_sub/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with await server.connect() as connection:
        await connection.send(head + b"1\r\n \r\n" * 65537)
        answer = await connection.receive()
        assert answer.status == 400
        assert answer.error.startswith("Chunked request body exceeds maximum of 65536 non-empty chunks.")
        await connection.wait_closed()
    assert (await server.get("/v2/health/ready")).status == 200


async def test_clients_that_leave_in_mid_request_cost_nobody_anything(server):
    message = inference("python_add_sub", {"A": ROW, "B": ROW})
    for cut in range(1, len(message), 23):
        connection = await server.connect()
        await connection.send(message[:cut])
        connection.close()
    async with await server.connect() as connection:
        await connection.send(message)
        assert (await connection.receive()).status == 200
    assert await server.metric("tritium_reply_violations_total", model="python_add_sub") == 0
