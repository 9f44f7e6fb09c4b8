"""The direct path over real sockets: what it answers without the application, and what it leaves to that."""

import json
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing

from actors.values.callers import Action
from actors.values.datatypes import DataType
from actors.values.errors import NotFound
from actors.values.tensors import Tensor
from actors.values.versions import parse_version
from protocols.http.app import V2App
from protocols.http.options import V2Options
from protocols.transport.readiness import DIRECT
from protocols.transport.sockets import ConnectionLost, PlainTransport
from tests.protocols.fakes import FakeModel, FakeServer, hold, make_spec
from tests.protocols.http.test_http_app import add_body
from tests.protocols.http.test_http_listener import HEALTH, LIVE, serve_on_loopback
from tests.support.callers import KnownCaller, ListedGate
from tests.support.cores import python_only
from tests.support.shared_memory import PAGE, an_object

BATCH = [("X", DataType.INT64, (1,))]
SCRATCH = 64 * 1024  # bytes that a connection reads at once
WIDE = make_spec("wide", inputs=[("X", DataType.UINT8, (-1,))], outputs=[("Y", DataType.UINT8, (-1,))])
HELD = make_spec("held", inputs=BATCH, outputs=[("Y", DataType.UINT8, (-1,))])


class Watched:
    """The v2 API, which notes what it is asked as an application."""

    def __init__(self, app):
        self._app = app
        self.direct = app.direct
        self.admit = app.admit
        self.asked = []

    async def __call__(self, scope, receive, send):
        self.asked.append(scope["path"])
        await self._app(scope, receive, send)


@pytest.fixture
def backend():
    backend = FakeServer()
    backend.models.by_name["held"] = FakeModel(HELD, hold)
    return backend


@pytest.fixture
def held(backend):
    return backend.models.by_name["held"]


@asynccontextmanager
async def serving(backend, **options):
    """Yield the application, the server, and a client's connection."""
    app = Watched(V2App(backend.server, options=V2Options(**options)))
    with trio.fail_after(20):
        async with serve_on_loopback(app, None) as served, served.connect() as client:
            yield app, served, client


def post(body, model="add", more=b""):
    return b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%b\r\n%b" % (
        model.encode(),
        len(body),
        more,
        body,
    )


def ask(value=5, **parameters):
    document = {
        "inputs": [{"name": "X", "datatype": "INT64", "shape": [1, 1], "data": [value]}],
        "parameters": {"binary_data_output": True, **parameters},
    }
    return post(json.dumps(document).encode(), "held")


@contextmanager
def traced():
    """Yield what tells how many bytes more are in use than at first."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def wide(size):
    """Return a request of `size` bytes, most of which are its tensor."""

    def made(count):
        tensor = {
            "name": "X",
            "datatype": "UINT8",
            "shape": [1, count],
            "parameters": {"binary_data_size": count},
        }
        text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        more = b"Inference-Header-Content-Length: %d\r\n" % len(text)
        return post(text + bytes(count), "wide", more)

    return made(size - (len(made(size)) - size))


async def until_submitted(model, count=1):
    while len(model.submitted) < count:
        await trio.lowlevel.checkpoint()


def answer(model, number=0, count=1):
    request = model.submitted[number]
    outputs = [Tensor("Y", DataType.UINT8, (1, count), memoryview(bytearray(count)))]
    request.reply.put(model.respond(request, outputs), final=True)


async def test_plain_inferences_are_answered_without_the_application(backend):
    async with serving(backend) as (app, _, client):
        for _ in range(3):
            await client.send(post(add_body()))
            status, fields, body = await client.response()
            assert (status, fields["Content-Type"]) == (200, "application/json")
            assert json.loads(body)["outputs"][0]["name"] == "S"
        assert app.asked == []
        await client.send(HEALTH)
        assert await client.receive(len(LIVE)) == LIVE
        assert app.asked == ["/v2/health/live"]


class Steps(trio.abc.Instrument):
    """The names of the tasks that run."""

    def __init__(self):
        self.names = set()

    def before_task_step(self, task):
        self.names.add(task.name)


async def test_answers_that_are_there_at_once_wake_no_task(backend):
    async with serving(backend) as (_, _, client):
        steps = Steps()
        for number in range(3):
            if number == 2:
                await trio.testing.wait_all_tasks_blocked()
                trio.lowlevel.add_instrument(steps)
            await client.send(post(add_body()))
            assert (await client.response())[0] == 200
        trio.lowlevel.remove_instrument(steps)
        assert not [name for name in steps.names if name.startswith("connection-")]


async def test_errors_are_answered_without_the_application(backend):
    async with serving(backend) as (app, _, client):
        for request, status in (
            (post(b"{", "unknown"), 404),
            (post(b"{}", "streams"), 501),
            (post(b'{"inputs":[{"name":"Z","datatype":"FP32","shape":[1],"data":[1]}]}'), 400),
        ):
            await client.send(request)
            assert (await client.response())[0] == status
        assert app.asked == []


@pytest.mark.parametrize("zero", [b"9", b"0"], ids=["too large", "padded"])
async def test_a_version_of_very_many_digits_is_refused(backend, zero):
    def resolve(name, version=""):
        raise NotFound(str(parse_version(version)))

    backend.models.resolve = resolve
    async with serving(backend) as (_, _, client):
        path = b"/versions/%b1/infer" % (zero * 5000)
        await client.send(post(add_body()).replace(b"/infer", path))
        status, _, _ = await client.response()
        assert status in {400, 404}
        await client.send(HEALTH)
        assert await client.receive(len(LIVE)) == LIVE


async def test_a_long_body_that_was_refused_is_not_kept(backend):
    backend.models.by_name["wide"] = FakeModel(WIDE, hold)
    size = 8 * 1024 * 1024
    async with serving(backend) as (app, _, client):
        with traced() as grown:
            await client.send(post(bytes(size), "wide", b"Inference-Header-Content-Length: 99999999\r\n"))
            assert (await client.response())[0] == 400
            await trio.testing.wait_all_tasks_blocked()
            assert grown() < size // 2
        assert app.asked == []


@pytest.mark.parametrize(
    "more",
    [b"Content-Encoding: gzip\r\n", b"Accept-Encoding: gzip\r\n", b"Sec-Fetch-Site: same-origin\r\n"],
    ids=["packed", "to be packed", "of a page"],
)
async def test_what_needs_more_is_put_to_the_application(backend, more):
    async with serving(backend) as (app, _, client):
        await client.send(post(add_body(), more=more))
        await client.response()
        assert app.asked == ["/v2/models/add/infer"]


async def test_a_full_queue_is_waited_for_by_the_application(backend, held):
    room = trio.Event()

    class Full(FakeModel):
        def submit_nowait(self, request):
            if not room.is_set():
                raise trio.WouldBlock
            super().submit_nowait(request)

        async def submit(self, request):
            await room.wait()
            super().submit_nowait(request)

    backend.models.by_name["held"] = full = Full(HELD, hold)
    alice = KnownCaller("alice", {(Action.INFERENCE, "held")})
    alice.most = 1
    async with serving(backend, gate=ListedGate({b"": alice})) as (app, _, client):
        await client.send(ask())
        while not app.asked:
            await trio.lowlevel.checkpoint()
        room.set()
        await until_submitted(full)
        answer(full)
        assert (await client.response())[0] == 200
        assert len(alice.bytes) == 1  # its admission was not paid for twice
        assert alice.running == 0


async def test_regions_in_a_request_need_the_right_to_shared_memory(backend):
    alice = KnownCaller("alice", {(Action.INFERENCE, "add")})
    with an_object(PAGE) as memory:
        await backend.regions.register_system("R", memory.key, offset=0, byte_size=PAGE)
        place = {"shared_memory_region": "R", "shared_memory_byte_size": 64}
        inputs = [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": place} for name in ("A", "B")
        ]
        request = post(json.dumps({"inputs": inputs}).encode())
        async with serving(backend, gate=ListedGate({b"": alice})) as (app, _, client):
            await client.send(request)
            assert (await client.response())[0] == 403
            alice.allowed = {(Action.INFERENCE, "add"), (Action.SHARED_MEMORY, "")}
            await client.send(request)
            assert (await client.response())[0] == 200
            assert app.asked == []
        assert (alice.running, backend.regions.table.find("R").users) == (0, 0)


async def test_requests_behind_one_under_way_are_answered_behind_it(backend, held):
    async with serving(backend) as (_, _, client):
        await client.send(ask())
        await until_submitted(held)
        await client.send(HEALTH + ask(6))
        await trio.testing.wait_all_tasks_blocked()
        assert len(held.submitted) == 1
        answer(held)
        assert (await client.response())[0] == 200
        assert await client.receive(len(LIVE)) == LIVE
        await until_submitted(held, 2)
        answer(held, 1)
        assert (await client.response())[0] == 200


@pytest.mark.parametrize("others", [0, DIRECT], ids=["oldest", "one of a crowd"])
@pytest.mark.parametrize("size", [SCRATCH, 60_000], ids=["as long as a read", "read past the parser"])
async def test_a_request_in_the_socket_behind_one_that_was_read_is_answered(backend, held, others, size):
    backend.models.by_name["wide"] = model = FakeModel(WIDE, hold)
    async with serving(backend) as (app, served, _), AsyncExitStack() as stack:
        for _ in range(others):
            await stack.enter_async_context(served.connect())
        client = await stack.enter_async_context(served.connect())
        # First a small one, so that turns are taken here.
        await client.send(ask())
        await until_submitted(held)
        answer(held)
        assert (await client.response())[0] == 200
        await trio.testing.wait_all_tasks_blocked()
        request = wide(size)
        assert len(request) == size
        if size != SCRATCH:
            await client.send(request[:1000])
            await trio.testing.wait_all_tasks_blocked()
            request = request[1000:]
        await client.send(request + HEALTH)
        await until_submitted(model)
        await trio.testing.wait_all_tasks_blocked()
        answer(model)
        assert (await client.response())[0] == 200
        assert await client.receive(len(LIVE)) == LIVE
        assert app.asked == ["/v2/health/live"]


async def test_a_client_that_leaves_has_its_request_cancelled(backend, held):
    async with serving(backend) as (_, served, client):
        await client.send(ask())
        await until_submitted(held)
        client.socket.close()
        await served.until(lambda now: not any(now.phases.values()))
        assert held.cancelled == held.submitted
        answer(held)
        assert held.released == 1


@python_only  # compiled code calls the method that is replaced past the class
async def test_a_connection_that_cannot_be_read_ends_without_an_answer(backend, monkeypatch):
    def lost(transport, buffer):
        raise ConnectionLost("no route to host")

    monkeypatch.setattr(PlainTransport, "receive_into", lost)
    async with serving(backend) as (_, _, client):
        await client.send(HEALTH)
        assert await client.closed()


async def test_a_server_that_stops_answers_what_is_under_way(backend, held):
    async with serving(backend) as (_, served, client):
        await client.send(ask())
        await until_submitted(held)
        served.listener.drain()
        answer(held)
        status, fields, _ = await client.response()
        assert (status, fields["Connection"]) == (200, "close")
        assert await client.closed()


async def test_a_server_that_ends_tells_clients_that_wait(backend, held):
    async with serving(backend) as (_, served, client):
        await client.send(ask())
        await until_submitted(held)
        served.listener.give_up()
        assert (await client.response())[0] == 503
        answer(held)
        assert held.released == 1
        assert await client.closed()


@pytest.mark.parametrize("count", [100, 200_000, 30_000_000])
async def test_answers_of_any_size_arrive_and_are_released_once(backend, held, count):
    async with serving(backend) as (app, _, client):
        for number in range(2):
            await client.send(ask())
            await until_submitted(held, number + 1)
            answer(held, number, count)
            status, fields, body = await client.response()
            assert (status, len(body)) == (200, int(fields["Inference-Header-Content-Length"]) + count)
            await client.send(HEALTH)
            assert await client.receive(len(LIVE)) == LIVE
        assert held.released == 2
        assert app.asked == ["/v2/health/live"] * 2


async def test_long_texts_are_written_by_the_task(backend, held):
    async with serving(backend) as (app, _, client):
        await client.send(ask(binary_data_output=False))
        await until_submitted(held)
        answer(held, 0, 100_000)
        assert json.loads((await client.response())[2])["outputs"][0]["shape"] == [1, 100_000]
        assert (held.released, app.asked) == (1, [])


@pytest.mark.parametrize("size", [1, 100_000], ids=["short", "long"])
async def test_a_bug_in_encoding_costs_its_connection_alone(backend, held, size):
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with serving(backend) as (_, _, client):
            await client.send(ask(binary_data_output=size == 1))
            await until_submitted(held)
            request = held.submitted[0]
            wrong = Tensor("Y", DataType.UINT8, (1, size), memoryview(bytearray(size)))
            setattr(wrong, "datatype", None)  # noqa: B010  # as only a bug would
            request.reply.put(held.respond(request, [wrong]), final=True)  # does not raise
            status, fields, body = await client.response()
            assert (status, json.loads(body)) == (500, {"error": "internal server error"})
            assert fields["Connection"] == "close"
    (failure,) = caught.value.exceptions
    assert isinstance(failure, AttributeError)
    assert held.released == 1


async def test_a_bug_in_decoding_costs_its_connection_alone(backend):
    def broken(name, version=""):
        raise ZeroDivisionError

    backend.models.resolve = broken
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with serving(backend) as (_, _, client):
            await client.send(post(add_body()))
            assert (await client.response())[0] == 500
    (failure,) = caught.value.exceptions
    assert isinstance(failure, ZeroDivisionError)
