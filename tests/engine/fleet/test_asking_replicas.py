"""What stands at a replica's address may be anything: each answer is read, or told with a reason, in time."""

import json
import ssl
from contextlib import suppress
from functools import partial

import httpx
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fleet.asking import Access, HttpReplica
from engine.fleet.policy.values import Release
from engine.fleet.ports import Member, Superseded, Unreachable
from tests.engine.fleet.simulated_fleet import in_virtual_time
from tests.support.examples import examples

REGISTER = {"boot": "b", "epoch": 3, "sequence": 2, "document_epoch": 3, "held": False, "document": {}}
INDEX = [{"name": "m", "version": "1", "state": "READY"}]
MEMBER = Member(name="r0", url="http://r0:8000", metrics="http://r0:8002/metrics")
RELEASE = Release((1,), '{"a":1}')
TRAFFIC = {"plan": {"weights": {"1": 1}}, "versions": [{"version": "1", "recent": None}]}
SANE = {
    "/v2/tritium/fleet": REGISTER,
    "/v2/repository/index": INDEX,
    "/v2/health/ready": {"parts": []},
    "/v2/models/m/config": {},
    "/v2/tritium/models/m/traffic": TRAFFIC,
}


class Wire(httpx.AsyncBaseTransport):
    """Brings what `answer` returns, as it comes from a server: unread."""

    def __init__(self, answer):
        self.answer = answer

    async def handle_async_request(self, request):
        answer = await self.answer(request)
        if answer.is_stream_consumed:
            return httpx.Response(answer.status_code, headers=answer.headers, stream=Body(answer.content))
        return answer


class Body(httpx.AsyncByteStream):
    def __init__(self, content):
        self.content = content

    async def __aiter__(self):
        yield self.content


def replica(answer):
    """Return a replica that answers as `answer` does, and is asked within two seconds."""
    client = httpx.AsyncClient(transport=Wire(answer))

    async def given():
        return client

    return HttpReplica(MEMBER, given, lambda: Access(request=2, load=5))


def sane(**changes):
    """Return answers of a server, some of them changed: by path, JSON or a response."""
    answers = SANE | {f"/{path}": change for path, change in changes.items()}

    async def answer(request):
        found = answers.get(request.url.path, "")
        if found is None:
            return httpx.Response(200, content=b"null")
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    return answer


def looked(answer):
    """Return what a look shows, in virtual time."""
    found = []

    async def look():
        found.append(await replica(answer).look({"m": [RELEASE]}, plans=["m"], deep=True))

    in_virtual_time(look)
    return found[0]


def refused(answer):
    with pytest.raises(Unreachable) as caught:
        looked(answer)
    return str(caught.value)


def test_a_look_shows_what_a_server_tells():
    metrics = (
        'nv_inference_request_success{model="m",version="1"} 7\n'
        'nv_inference_request_failure{model="m",version="1",reason="OTHER"} NaN\n'
        "tritium_requests_pending many\ntritium_requests_running 2\n"
    )
    parts = {"parts": [{"part": "model m version 1", "ready": False, "reason": "it is ill"}, {"ready": True}]}
    told = {
        "metrics": httpx.Response(200, text=metrics),
        "v2/health/ready": httpx.Response(503, json=parts),
    }
    look = looked(sane(**told))
    served = look.seen.served("m")
    assert (look.register.epoch, look.seen.ready, look.seen.waiting) == (3, False, 2)
    assert (served.ready.versions, served.answers, served.errors, served.ill) == ((1,), 7, 0, "it is ill")
    assert served.traffic == {
        "plan": {"weights": {"1": 1}},
        "versions": [{"version": 1, "recent": {"answers": 0, "errors": 0}}],
    }


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        (
            "v2/tritium/fleet",
            httpx.Response(200, html="<h1>\x1b[2JHi"),
            "but with '<h1>\\x1b[2JHi': that is no",
        ),
        (
            "v2/tritium/fleet",
            httpx.Response(404, text="no"),
            "404 when asked for the fleet's register: no; is it",
        ),
        ("v2/tritium/fleet", httpx.Response(302, headers={"location": "http://x/"}), "302 when asked for"),
        ("v2/tritium/fleet", httpx.Response(409, text="no"), "409 when asked for the fleet's register"),
        (
            "v2/tritium/fleet",
            httpx.Response(401),
            "401 when asked for the fleet's register: it says no more; keys",
        ),
        ("v2/tritium/fleet", httpx.Response(200, content=b"[" * 200_000), "that is no JSON"),
        ("v2/tritium/fleet", httpx.Response(200, content=b"9" * 10_000), "that is no JSON"),
        ("v2/tritium/fleet", [], "it has another form; is it Tritium"),
        ("v2/tritium/fleet", {"epoch": 1}, "'boot' is missing"),
        ("v2/tritium/fleet", REGISTER | {"epoch": "x"}, "invalid literal"),
        ("v2/tritium/fleet", REGISTER | {"epoch": float("inf")}, "it has another form"),
        ("v2/tritium/fleet", REGISTER | {"epoch": 2**63 - 1}, "epoch 9223372036854775807, sequence 2: start"),
        ("v2/tritium/fleet", REGISTER | {"sequence": -1}, "epoch 3, sequence -1: start the server anew"),
        ("v2/repository/index", None, "did not answer with the index of its repository, but with 'null'"),
        ("v2/repository/index", [{"version": "1", "state": "READY"}], "'name' is missing"),
        ("v2/health/ready", ["x"], "did not answer with its readiness"),
        ("v2/models/m/config", {"parameters": None}, "did not answer with the configuration of m"),
        (
            "v2/tritium/models/m/traffic",
            {"plan": {}, "versions": [{"version": "x"}]},
            "with the traffic of m",
        ),
        ("metrics", httpx.Response(500, text="a\n b"), "500 when asked for its metrics: a b"),
    ],
)
def test_an_answer_that_is_no_replicas_is_told(path, answer, said):
    if isinstance(answer, dict) and answer.get("epoch") == float("inf"):
        answer = httpx.Response(200, content=json.dumps(answer).encode())
    assert said in refused(sane(**{path: answer}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*REGISTER, "name", "parts"]), inner)
    ),
    max_leaves=8,
)


@given(st.sampled_from([*SANE]), JSON)
@settings(max_examples=examples(60))
def test_whatever_json_comes_it_is_read_or_told(path, document):
    answer = httpx.Response(200, content=json.dumps(document).encode())
    with suppress(Unreachable):
        looked(sane(**{path[1:]: answer}))


async def pieces(piece, pause):
    while True:
        await trio.sleep(pause)
        yield piece


@pytest.mark.parametrize(
    ("piece", "pause", "said"),
    [
        (b"[", 0.2, "http://r0:8000/v2/tritium/fleet: no answer within 2 s"),
        (b" " * 2**20, 0, "its answer has more than 33554432 bytes"),
    ],
)
def test_an_answer_without_an_end_is_given_up(piece, pause, said):
    async def answer(request):
        return httpx.Response(200, content=pieces(piece, pause))

    assert said in refused(answer)


def test_an_answer_that_is_packed_is_not_unpacked():
    async def answer(request):
        assert request.headers["accept-encoding"] == "identity"
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Body(b"\x1f\x8b"))

    assert "that is no JSON" in refused(answer)


def tls(kind, **told):
    """Return an error as OpenSSL raises it."""
    error = kind(1, "it failed")
    for name, value in told.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            tls(ssl.SSLError, reason="WRONG_VERSION_NUMBER"),
            "TLS fails (WRONG_VERSION_NUMBER); is its address http",
        ),
        (
            tls(ssl.SSLCertVerificationError, verify_message="self-signed"),
            "is not trusted: self-signed; `tls.ca_file` says",
        ),
        (tls(ssl.SSLError, reason="TLSV13_ALERT_CERTIFICATE_REQUIRED"), "it asks for `tls.certificate_file`"),
        (OSError("gone"), "could not connect"),
    ],
)
def test_why_a_server_is_not_reached(cause, said):
    async def answer(request):
        raise httpx.ConnectError("could not connect") from cause

    assert said in refused(answer)


def test_a_conflict_is_another_controller_only_where_a_change_was_asked_for():
    async def conflict(request):
        return httpx.Response(409, json={"error": "this server has seen epoch 4"})

    async def ask():
        server = replica(conflict)
        for change in (
            partial(server.write, 1, 0, None),
            partial(server.load, "m", RELEASE, 1),
            partial(server.unload, "m", 1),
        ):
            with pytest.raises(Superseded, match="this server has seen epoch 4"):
                await change()

    in_virtual_time(ask)
