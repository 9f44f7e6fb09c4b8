"""The endpoint of events, on both kinds of server: what is sent, who may follow, and how it ends."""

import json

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.values.callers import Action
from actors.values.errors import Unavailable
from actors.values.events import Portion, ToldEvent, WantedEvents
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeServer
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate

PATH = "/v2/tritium/events"
EVERYTHING = {(Action.STATISTICS, "*"), (Action.STATISTICS, "")}
KEY = {"authorization": "Bearer alice"}


def portion(number, **more):
    text = json.dumps({"level": "info", "event": "model_ready", "n": number}).encode()
    told = ToldEvent(event="model_ready", level="info", text=text)
    return Portion(events=[(f"b-{number}", told)], upto=f"b-{number}", **more)


class Hook:
    disconnected = False
    on_disconnect = None


class Client:
    """Asks for events as a server would, and keeps the messages of the answer."""

    def __init__(self, backend, *, native, **options):
        self.app = V2App(backend.server, options=V2Options(**options))
        self.native = native
        self.hook = Hook()
        self.leave = trio.Event()
        self.on_part = lambda _: None
        self.sent = []

    async def ask(self, path=PATH, headers=(), method="GET"):
        path, _, query = path.partition("?")

        async def receive():
            await self.leave.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            self.sent.append(message)
            if message["type"] == "http.response.body" and message.get("more_body"):
                self.on_part(message["body"])
            await trio.lowlevel.checkpoint()

        await self.app(
            {
                "type": "http",
                "method": method,
                "path": path,
                "raw_path": path.encode(),
                "query_string": query.encode(),
                "headers": [(name.encode(), value.encode()) for name, value in dict(headers).items()],
                "extensions": {"tritium.response": {}, "tritium.disconnect": self.hook}
                if self.native
                else {},
            },
            receive,
            send,
        )

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def fields(self):
        return dict(self.sent[0]["headers"])

    @property
    def body(self):
        if self.sent[0]["type"] == "tritium.response":
            return b"".join(self.sent[0]["body"])
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def data(self):
        lines = self.body.decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture(params=["native", "foreign"])
def native(request):
    return request.param == "native"


async def test_events_are_streamed_until_they_end(backend, native):
    backend.events.portions = [portion(1), portion(2), Portion(upto="b-3")]
    client = Client(backend, native=native)
    await client.ask()
    assert client.status == 200
    assert client.fields[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert client.fields[b"cache-control"] == b"no-store"
    assert client.body.startswith(b"retry: 1000\nid: b-1\n")
    assert [each["n"] for each in client.data] == [1, 2]
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert backend.events.open == 0


async def test_the_request_says_which_events_and_behind_which(backend, native):
    client = Client(backend, native=native)
    await client.ask(f"{PATH}?model=m&level=error&follow=false", {"last-event-id": "b-7"})
    wanted = WantedEvents(models=["m"], events=(), level="error")
    assert backend.events.asked == [(wanted, "b-7", False, False)]


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        (f"{PATH}?levels=info", 400, "unknown field 'levels'"),
        (f"{PATH}?after=never", 400, "no id of an event"),
    ],
)
async def test_what_makes_no_sense_is_an_ordinary_error(backend, native, path, status, told):
    client = Client(backend, native=native)
    await client.ask(path)
    assert client.status == status
    assert told in json.loads(client.body)["error"]
    assert backend.events.open == 0


async def test_where_no_more_may_follow_the_client_is_told(backend, native):
    backend.events.refusal = Unavailable("16 clients follow")
    client = Client(backend, native=native)
    await client.ask()
    assert (client.status, json.loads(client.body)) == (503, {"error": "16 clients follow"})


async def test_only_get_is_answered(backend, native):
    client = Client(backend, native=native)
    await client.ask(method="POST")
    assert client.status == 405


async def test_a_client_that_leaves_gives_its_place_up(backend, native, autojump_clock):
    client = Client(backend, native=native)
    backend.events.portions = [portion(number) for number in range(1, 1000)]

    def leave(_):
        client.leave.set()
        client.hook.disconnected = True
        if client.hook.on_disconnect is not None:
            client.hook.on_disconnect()

    client.on_part = leave
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.ask)
        await wait_all_tasks_blocked()
    assert backend.events.open == 0
    assert len(backend.events.portions) > 900


async def test_a_client_that_left_before_gets_nothing(backend):
    client = Client(backend, native=True)
    client.hook.disconnected = True
    backend.events.portions = [portion(1)]
    await client.ask()
    assert (client.sent, backend.events.open) == ([], 0)


async def test_a_stream_at_a_management_port_outlives_draining(backend):
    client = Client(backend, native=True, outlives_draining=True)
    backend.health.exiting = True
    backend.events.portions = [portion(1)]
    await client.ask()
    assert (client.status, backend.events.asked[0][3]) == (200, True)


async def test_a_confined_caller_sees_no_events_as_it_sees_no_tree(backend, native):
    alice = KnownCaller("alice", {(Action.STATISTICS, "add"), (Action.STATISTICS, "")})
    auditor = KeptAuditor()
    client = Client(backend, native=native, gate=ListedGate({b"Bearer alice": alice}), auditor=auditor)
    await client.ask(f"{PATH}?model=add", KEY)
    assert client.status == 403
    assert (
        "the events are of all models, and 'alice' may use 'statistics' on some only" in client.body.decode()
    )
    assert auditor.told == [("denied", "events", "", "alice")]
    assert backend.events.asked == []


async def test_a_stream_ends_before_the_next_event_when_its_key_is_revoked(backend, native):
    gate = ListedGate({b"Bearer alice": KnownCaller("alice", EVERYTHING)})
    client = Client(backend, native=native, gate=gate)
    backend.events.portions = [portion(1), portion(2), portion(3)]

    def revoke(part):
        if b'"n": 2' in part:
            gate.callers.clear()

    client.on_part = revoke
    await client.ask(headers=KEY)
    assert [each["n"] for each in client.data] == [1, 2]
    assert backend.events.open == 0


async def test_a_stream_ends_before_the_next_event_when_its_caller_is_confined(backend, native):
    alice = KnownCaller("alice", EVERYTHING)
    client = Client(backend, native=native, gate=ListedGate({b"Bearer alice": alice}))
    backend.events.portions = [portion(1), portion(2)]

    def confine(_):
        alice.allowed = {(Action.STATISTICS, "add")}

    client.on_part = confine
    await client.ask(headers=KEY)
    assert [each["n"] for each in client.data] == [1]


async def test_the_header_of_a_restricted_api_opens_the_events(backend, native):
    client = Client(backend, native=native, restricted={Action.STATISTICS: ("key", "x")})
    await client.ask()
    assert client.status == 403
    client.sent.clear()
    await client.ask(headers={"key": "x"})
    assert client.status == 200
