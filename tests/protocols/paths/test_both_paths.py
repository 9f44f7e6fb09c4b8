"""What takes the direct path is answered as the application would answer it: byte for byte, step by step."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.protocols.paths.stage import Trace, played
from tests.protocols.paths.steered_models import How
from tests.protocols.paths.steps import (
    Answer,
    Fill,
    Go,
    House,
    Leave,
    Pause,
    Resume,
    Script,
    Shut,
    Take,
    Tell,
    Together,
    Wait,
    Write,
    racing,
    scripts,
)
from tests.protocols.paths.written import KEY, Written, plain

INFER, ECHO = Written(plain("held")), Written(plain("echo"))
IN_JSON = Written(plain("held").replace(b'"binary_data_output": true', b'"binary_data_output":false'))


def by_the_application(_app):
    return {}


def directly(app):
    return {"direct": app.direct}


def differences(script: Script, one: Trace, other: Trace) -> list[str]:
    """Return what is wrong with either trace, and where the two first differ.

    The application does not tell of inferences whose connection is killed; the direct path does.
    """
    found = [f"by the application: {each}" for each in one.wrong]
    found += [f"directly: {each}" for each in other.wrong]
    unlike = {"finished"} if Tell("kill") in script.steps else set()
    for step, (told, here), (_, there) in zip([*script.steps, None, None], one.seen, other.seen, strict=True):
        if step is not None and racing(step, script.house):
            break
        differing = [name for name in here if here[name] != there[name] and name not in unlike]
        if differing:
            found.append(f"behind {told}")
            found += [
                f"{name}: {_where_they_part(repr(here[name]), repr(there[name]))}" for name in differing
            ]
            break
    return found


def _where_they_part(here: str, there: str) -> str:
    """Say of two long texts where they differ."""
    same = next((at for at, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), 0)
    begin = max(0, same - 200)
    return f"…{here[begin : same + 300]} by the application, …{there[begin : same + 300]} directly"


def assert_same(script: Script, other=directly) -> None:
    found = differences(script, played(script, by_the_application), played(script, other))
    assert not found, "\n".join(found)


@pytest.mark.slow
@settings(max_examples=60)
@given(script=scripts)
def test_both_paths_look_the_same(script):
    assert_same(script)


@pytest.mark.long
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(script=scripts)
def test_both_paths_look_the_same_however_long_one_looks(script):
    assert_same(script)


SCRIPTS = {
    "one after the other": [Write(0, (INFER,)), Answer(0, How.RIGHT)] * 3,
    "sent ahead": [Write(0, (INFER, ECHO, INFER)), Answer(0, How.RIGHT), Answer(0, How.BORROWED)],
    "a model that answers at once": [Write(0, (ECHO,)), Write(0, (ECHO, ECHO))],
    "half a request": [Write(0, (INFER,), back=200), Go(0, 190), Go(0, 10), Answer(0, How.RIGHT)],
    "half a request ahead": [Write(0, (INFER, INFER), back=200), Answer(0, How.RIGHT), Go(0, 200)],
    "byte by byte": [Write(0, (INFER,), piece=13, back=3), Go(0, 3), Answer(0, How.RIGHT)],
    "a slow reader": [
        Pause(0),
        Write(0, (INFER, INFER)),
        Answer(0, How.HUGE),
        Take(0, 100_000),
        Answer(0, How.HUGE),
        Resume(0),
    ],
    "a reader that reads nothing": [Pause(0), Write(0, (INFER,)), Answer(0, How.HUGE), Wait(700.0)],
    "a reader that leaves": [Pause(0), Write(0, (INFER,)), Answer(0, How.HUGE), Leave(0)],
    "a client that leaves": [Write(0, (INFER,)), Leave(0), Answer(0, How.BORROWED)],
    "a client that half-closes": [Write(0, (INFER,)), Shut(0), Answer(0, How.BORROWED)],
    "a full queue": [Fill(full=True), Write(0, (Written(plain("busy")),)), Fill(full=False)],
    "a full queue that is left": [Fill(full=True), Write(0, (Written(plain("busy")),)), Leave(0)],
    "a server that drains": [Write(0, (INFER, INFER)), Tell("drain"), Answer(0, How.RIGHT)],
    "a server that gives up": [Write(0, (INFER,)), Tell("give_up"), Answer(0, How.BORROWED)],
    "a server that is withdrawn": [Write(0, (INFER,)), Tell("withdraw"), Answer(0, How.RIGHT)],
    "connections that are killed": [Write(0, (INFER, INFER)), Write(1, (INFER,)), Tell("kill")],
    "a long text": [Write(0, (IN_JSON, ECHO)), Answer(0, How.LONG)],
    "a long text that is none": [Write(0, (IN_JSON, ECHO)), Answer(0, How.LONG_NO_JSON)],
    "many at once": [
        Together((Write(0, (INFER,)), Write(1, (INFER,)), Write(2, (ECHO,)))),
        Answer(0, How.LARGE),
    ],
    **{
        f"an answer {how.value}": [Write(0, (INFER, ECHO)), Answer(0, how), Answer(0, How.RIGHT)]
        for how in How
    },
}
"""What the direct path was made for, and what it has to leave to others."""


HOUSES = {"": House(), "small sockets": House(small_sockets=True), "tls": House(tls=True)}


@pytest.mark.parametrize("house", HOUSES.values(), ids=HOUSES)
@pytest.mark.parametrize("steps", SCRIPTS.values(), ids=SCRIPTS)
def test_both_paths_look_the_same_where_it_matters(steps, house):
    assert_same(Script(house, tuple(steps)))


def test_a_caller_whose_request_waits_for_the_queue_has_one_under_way():
    request = Written(plain("busy").replace(b"Host: h", b"Host: h\r\nAuthorization: " + KEY.encode()))
    steps = (Fill(full=True), Write(0, (request,)), Fill(full=False), Answer(0, How.RIGHT))
    assert_same(Script(House(gate=True), steps))


def in_chunks(model: str) -> Written:
    """Return an inference whose body comes in chunks, with a good key."""
    head, body = plain(model).split(b"\r\n\r\n", 1)
    fields = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    fields += [b"Authorization: " + KEY.encode(), b"Transfer-Encoding: chunked"]
    half = len(body) // 2
    coded = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:half], body[half:], b""))
    return Written(b"\r\n".join(fields) + b"\r\n\r\n" + coded)


@pytest.mark.parametrize("back", [0, 50], ids=["at once", "in two pieces"])
@pytest.mark.parametrize("full", [False, True], ids=["", "a full queue"])
def test_the_bytes_of_a_body_in_chunks_count_once_for_its_caller(full, back):
    steps = (
        Fill(full=full),
        Write(0, (in_chunks("busy"),), back=back),
        Go(0, back),
        Fill(full=False),
        Answer(0, How.RIGHT),
    )
    script = Script(House(gate=True), steps)
    assert_same(script)
    good, _ = played(script, directly).seen[-1][1]["callers"]
    assert sum(good[1]) == len(plain("busy").split(b"\r\n\r\n", 1)[1])


# Whether a difference would be seen


def instead(change):
    """Return a path on which messages of the application are changed on their way."""

    def path(app):
        async def changed(scope, receive, send):
            async def sending(message):
                await send(change(message))

            await app(scope, receive, sending)

        return {"app": changed}

    return path


def released_too_early(message):
    message["release"]()
    return message


class Deaf:
    """A hook that does not tell that the client has left."""

    disconnected = False
    on_disconnect = None


def deaf(app):
    async def changed(scope, receive, send):
        scope["extensions"] = {**scope["extensions"], "tritium.disconnect": Deaf()}
        await app(scope, receive, send)

    return {"app": changed}


MISTAKES = {
    "a header more": instead(lambda message: {**message, "headers": [*message["headers"], (b"x", b"y")]}),
    "another status": instead(lambda message: {**message, "status": 201}),
    "a byte less": instead(lambda message: {**message, "body": [b"".join(message["body"])[:-1]]}),
    "memory that is given back too early": instead(released_too_early),
    "memory that is never given back": instead(lambda message: {**message, "release": None}),
    "an inference that is not cancelled": deaf,
}


@pytest.mark.parametrize("path", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_on_one_path_is_seen(path):
    steps = (Write(0, (INFER,)), Answer(0, How.LARGE), Write(0, (INFER,)), Leave(0))
    script = Script(House(), steps)
    assert not differences(script, *[played(script, by_the_application)] * 2)
    assert differences(script, played(script, by_the_application), played(script, path))


def test_the_direct_path_is_taken():
    script = Script(House(), (Write(0, (INFER,)), Answer(0, How.RIGHT), Write(0, (ECHO, INFER))))

    def asked(way):
        """Return how often the application is asked."""
        paths = []

        def watched(app):
            async def watching(scope, receive, send):
                paths.append(scope["path"])
                await app(scope, receive, send)

            return {"app": watching, **way(app)}

        played(script, watched)
        return len(paths)

    assert (asked(by_the_application), asked(directly)) == (3, 0)
