"""Answers name the server, requests of another server's sequence are refused, and connections grow old."""

import json
import math

import pytest
import trio

from actors.values.errors import OtherReplica
from actors.values.requests import InferRequest
from protocols.http.app import V2App
from protocols.http.listener import ListenerLimits
from protocols.http.options import V2Options
from protocols.http.patience import ConnectionLimits, status_lines
from protocols.kserve.steering import check_replica
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_app import Client, add_body
from tests.protocols.http.test_http_direct import Watched, post, until_submitted
from tests.protocols.http.test_http_listener import HEALTH, LIVE, LIVE_LAST, serve_on_loopback
from tests.support.ports import Port


def sequence(correlation_id, *, start=False, end=False):
    parameters = {"sequence_id": correlation_id, "sequence_start": start, "sequence_end": end}
    return add_body(id="r1", parameters=parameters)


def named(name):
    return b"Tritium-Replica: %b\r\n" % name if name else b""


@pytest.fixture
def backend():
    return FakeServer()


# -- what answers say


async def test_every_answer_of_a_listener_names_the_server(backend):
    app = V2App(backend.server, options=V2Options(replica="a"))
    limits = ListenerLimits(
        connection=ConnectionLimits(status_lines=status_lines((b"tritium-replica", b"a")))
    )
    asked = (
        (HEALTH, 200),
        (post(add_body()), 200),
        (post(add_body(), "missing"), 404),
        (post(b"{}", "missing").replace(b"/infer", b"/generate_stream"), 404),
        (b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    )
    with trio.fail_after(20):
        async with serve_on_loopback(app, limits) as served, served.connect() as client:
            for request, status in asked:
                await client.send(request)
                answered, fields, _ = await client.response()
                assert (answered, fields["tritium-replica"]) == (status, "a"), request


async def test_under_another_server_the_application_names_itself(backend):
    client = Client(V2App(backend.server, options=V2Options(replica="a")), native=False)
    for path, body in (("/v2/models/add/infer", add_body()), ("/v2/health/live", b"")):
        method = "POST" if body else "GET"
        _, fields, _ = await client.ask(method, path, body)
        assert fields["tritium-replica"] == "a"


async def test_a_server_without_a_name_says_none(backend):
    for native in (False, True):
        _, fields, _ = await Client(V2App(backend.server), native=native).ask("GET", "/v2")
        assert "tritium-replica" not in fields


# -- sequences of others


@pytest.fixture(params=["direct", "native", "foreign"])
def ask(request, backend):
    """Asks the replica `own` with the name that the client has; returns status and JSON."""

    async def ask(body, shown, own="b"):
        app = V2App(backend.server, options=V2Options(replica=own))
        if request.param != "direct":
            client = Client(app, native=request.param == "native")
            headers = {"Tritium-Replica": shown} if shown else {}
            status, _, answer = await client.ask("POST", "/v2/models/add/infer", body, headers)
            return status, json.loads(answer)
        with trio.fail_after(20):
            async with serve_on_loopback(app, None) as served, served.connect() as client:
                await client.send(post(body, more=named(shown.encode())))
                status, _, answer = await client.response()
                return status, json.loads(answer)

    return ask


@pytest.mark.parametrize("correlation_id", [7, "seven"])
@pytest.mark.parametrize("end", [False, True])
async def test_a_request_that_goes_on_with_another_servers_sequence_is_refused(
    ask, backend, correlation_id, end
):
    status, answer = await ask(sequence(correlation_id, end=end), "a")
    assert (status, answer["error"]) == (
        412,
        f"[request id: r1] the sequence {correlation_id} to model 'add' began on the replica 'a', and this is"
        " 'b': begin it anew, with the START flag",
    )
    assert backend.model().submitted == []


async def test_a_server_without_a_name_refuses_it_as_well(ask, backend):
    status, answer = await ask(sequence(7), "a", own="")
    assert (status, "and this is a server without --replica-name" in answer["error"]) == (412, True)
    assert backend.model().submitted == []


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (sequence(7, start=True), "a"),
        (sequence(7, start=True), "b"),
        (sequence(7), "b"),
        (sequence(7), ""),
        (add_body(), "a"),
        (add_body(), "b"),
    ],
)
async def test_all_others_are_served(ask, backend, body, shown):
    assert (await ask(body, shown))[0] == 200
    assert len(backend.model().submitted) == 1


@pytest.mark.parametrize(("shown", "apps"), [(b"", 0), (b"b", 0), (b"a", 2)])
async def test_only_a_request_that_shows_another_name_costs_the_application(backend, shown, apps):
    app = Watched(V2App(backend.server, options=V2Options(replica="b")))
    with trio.fail_after(20):
        async with serve_on_loopback(app, None) as served, served.connect() as client:
            for _ in range(2):
                await client.send(post(sequence(7, start=True), more=named(shown)))
                assert (await client.response())[0] == 200
    assert len(app.asked) == apps


def test_a_long_name_is_cut_in_the_refusal():
    request = InferRequest(model_name="m", reply=Port(), accepted_at=0.0, correlation_id=1)
    with pytest.raises(OtherReplica) as caught:
        check_replica(request, "x" * 5000, "b")
    assert len(caught.value.message) < 500


# -- old connections


@pytest.fixture
def aged(backend):
    """Serves with connections of this age."""
    limits = ListenerLimits(connection=ConnectionLimits(max_age=100.0, idle_timeout=math.inf))

    def serve(chance):
        return serve_on_loopback(V2App(backend.server), limits, uniform=lambda: chance)

    return serve


@pytest.mark.parametrize(("chance", "age"), [(0.0, 90), (0.5, 100), (1.0, 110)])
async def test_a_connection_ends_with_the_first_answer_after_its_age(autojump_clock, aged, chance, age):
    async with aged(chance) as served, served.connect() as client:
        for pause, expected in ((0, LIVE), (age - 2, LIVE), (4, LIVE_LAST)):
            await trio.sleep(pause)
            await client.send(HEALTH)
            assert await client.receive(len(expected)) == expected
        assert await client.closed()


async def test_an_old_connection_that_rests_is_left_until_its_next_answer(autojump_clock, aged):
    async with aged(0.5) as served, served.connect() as client:
        await trio.sleep(1000)
        await client.send(post(add_body()))
        status, fields, _ = await client.response()
        assert (status, fields["Connection"]) == (200, "close")
        assert await client.closed()


async def test_an_inference_under_way_is_answered_before_its_connection_ends(autojump_clock, aged, backend):
    async with aged(0.5) as served, served.connect() as client:
        held = backend.model("held")
        x = {"name": "X", "datatype": "INT64", "shape": [1, 1], "data": [5]}
        await client.send(post(json.dumps({"inputs": [x]}).encode(), "held"))
        await until_submitted(held)
        await trio.sleep(1000)
        held.submitted[0].reply.put(held.respond(held.submitted[0], held.submitted[0].inputs), final=True)
        status, fields, _ = await client.response()
        assert (status, fields["Connection"]) == (200, "close")
        assert await client.closed()
