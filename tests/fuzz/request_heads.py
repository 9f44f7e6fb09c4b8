"""HTTP heads at the gate: parser, routes and rules together never let in what a plain reading keeps out.

An input is what a client writes on one connection. Whatever its pieces, the parser finds the same requests.
Each that the gate lets in is one that a reading of the request line and of `Authorization` allows, with a
path that is taken apart by hand. Where h11 reads the same bytes, it finds the same requests in them, so that
nothing is smuggled past a proxy that reads as it does.
"""

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Final

import h11

from actors.values.callers import Action, Peer
from protocols.http.admission import Admitted
from protocols.http.app import V2App
from protocols.http.options import V2Options
from protocols.http.parser import Request, RequestLimits, RequestParser
from tests.fuzz.campaign import chance_of
from tests.fuzz.mutation import damaged
from tests.protocols.fakes import FakeServer
from tests.support.callers import KnownCaller, ListedGate

_USER: Final = {
    *(
        (action, "open")
        for action in (Action.INFERENCE, Action.METADATA, Action.MODEL_REPOSITORY, Action.TRAFFIC)
    ),
    (Action.HEALTH, ""),
    (Action.METADATA, ""),
}
_NOBODY: Final = {(Action.HEALTH, ""), (Action.HEALTH, "open")}
_KEY: Final = b"Bearer user.secret"
_PATHS: Final = (
    b"/v2/models/%s",
    b"/v2/models/%s/infer",
    b"/v2/models/%s/versions/1/infer",
    b"/v2/models/%s/generate",
    b"/v2/models/%s/config",
    b"/v2/models/%s/stats",
    b"/v2/models/%s/ready",
    b"/v2/models/%s/trace/setting",
    b"/v2/repository/models/%s/load",
    b"/v2/repository/models/%s/unload",
    b"/v2/repository/index",
    b"/v2",
    b"/v2/tritium/models/%s/traffic",
    b"/v2/tritium/fleet",
    b"/v2/tritium/tree",
    b"/v2/health/ready",
    b"/v2/health/live",
    b"/v2/logging",
    b"/v2/systemsharedmemory/region/%s/register",
    b"/v2/models/stats",
    b"/v2/models/%s/infer/",
    b"//v2/models/%s",
    b"/v2/../v2/models/%s",
    b"/v2/models/open/../%s",
    b"/v2/models/%s;open",
    b"/v2/models/%s?open",
    b"/v2/models/%s#open",
    b"/V2/models/%s",
    b"/v2/models/open%%2f..%%2f%s/infer",
    b"/v2/models/%s%%00",
    b"/v2/models/%s/versions/01",
    b"http://open/v2/models/%s",
    b"HTTP://x/v2/repository/models/%s/load",
    b"http://x",
    b"*",
    b"x/v2/models/%s",
)
_MODELS: Final = (
    b"open",
    b"secret",
    b"%73ecret",
    b"o%70en",
    b"OPEN",
    b"open%20",
    b"%6f%70%65%6e",
    b"%2e%2e",
    b"%ff",
)
_FIELDS: Final = (
    b"Host: x",
    b"Host: x:1",
    b"Host: a@b",
    b"Host:",
    b"Authorization: Bearer user.secret",
    b"authorization:Bearer user.secret",
    b"Authorization: Bearer x",
    b"Authorization : Bearer user.secret",
    b"Authorization: Bearer\r\n user.secret",
    b"Authorization_: Bearer user.secret",
    b"X-Authorization: Bearer user.secret",
    b"Content-Length: 2",
    b"Content-Length: 0",
    b"Content-Length: 2, 2",
    b"Content-Length: +2",
    b"Content-Length: 0x2",
    b"Content-Length : 2",
    b"Content_Length: 2",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"X-Original-URL: /v2/models/open",
    b"X-HTTP-Method-Override: GET",
    b"Trailer: Authorization",
    b"\x00X: y",
    b"X: a\x00b",
    b"X: a\rb",
    b"X: \xff\xfe",
)
_BODIES: Final = (
    b"",
    b"{}",
    b"2\r\n{}\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"0\r\nAuthorization: Bearer user.secret\r\n\r\n",
    b"2;x=y\r\n{}\r\n0\r\n\r\n",
)


@cache
def _app() -> V2App:
    gate = ListedGate({_KEY: KnownCaller("user", _USER), b"": KnownCaller("anonymous", _NOBODY)})
    return V2App(FakeServer().server, options=V2Options(gate=gate))


class RequestHeads:
    """Reads what a client writes, and asks the gate about each request in it."""

    name = "gate"
    prefix = "gate"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """A few requests in a row, with fields of which some make no sense; damaged or not."""
        octets = b"".join(_written(chance) for _ in range(chance.randrange(1, 4)))
        if chance.random() < 0.1:
            octets = chance.choice(corpus)
        return octets if chance.random() < 0.6 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Feed, ask, and compare."""
        found, refused = _parsed(octets, [])
        again, refused_again = _parsed(octets, _cuts(octets, chance_of(octets)))
        assert refused == refused_again
        assert [_line(each) for each in found] == [_line(each) for each in again]
        outcomes = [_asked(request) for request in found]
        _compare_with_h11(octets, found)
        last = outcomes[-1] if outcomes else "no request"
        return f"{last}, then refused" if refused else last


def _parsed(octets: bytes, cuts: list[int]) -> tuple[list[Request], bool]:
    parser = RequestParser(RequestLimits(max_head_size=4096, max_headers=32))
    before = 0
    for cut in [*cuts, len(octets)]:
        _feed(parser, octets[before:cut])
        before = cut
    return list(parser.ready), parser.refusal is not None


def _feed(parser: RequestParser, piece: bytes) -> None:
    while piece and parser.refusal is None:
        if parser.direct is None:
            parser.feed(piece)
            return
        taken = min(len(piece), len(parser.direct) - parser.received)
        parser.direct[parser.received : parser.received + taken] = piece[:taken]
        parser.fill(taken)
        piece = piece[taken:]


def _line(request: Request) -> tuple[object, ...]:
    return (
        request.head.method,
        request.head.path,
        request.head.query,
        request.head.headers,
        bytes(request.body),
    )


def _asked(request: Request) -> str:
    verdict = _app().admit(
        Peer(), request.head.method, request.head.path, request.head.headers, len(request.body)
    )
    if not isinstance(verdict, Admitted):
        return f"refused by {verdict.status}"
    keys = [value for name, value in request.head.headers if name == b"authorization"]
    assert keys in ([], [_KEY]), "let in with credentials that are not good"
    asked = _meant(request.head.method, request.head.path)
    assert asked is not None, "let in where nothing is"
    assert _may(_USER if keys else _NOBODY, *asked), "let in without a permission"
    return "let in"


def _may(allowed: set[tuple[Action, str]], action: Action, model: str) -> bool:
    return any(action is each and model in ("", on) for each, on in allowed)


def _meant(method: str, path: bytes) -> tuple[Action, str] | None:
    """Return what a path asks for, and of which model, by taking it apart at its slashes."""
    match path.split(b"/"):
        case [b"", b"v2"] if method == "GET":
            return Action.METADATA, ""
        case [b"", b"v2", b"health", b"live" | b"ready"] if method == "GET":
            return Action.HEALTH, ""
        case [b"", b"v2", b"models", model, *rest] if model and model != b"stats":
            if rest[:1] == [b"versions"] and len(rest) > 1 and rest[1].isdigit():
                rest = rest[2:]
            return _of_model(method, rest, _plain(model))
        case [b"", b"v2", b"repository", *_, b"index"] if method == "POST":
            return Action.MODEL_REPOSITORY, ""
        case [b"", b"v2", b"repository", *_, b"models", model, b"load" | b"unload"] if method == "POST":
            return Action.MODEL_REPOSITORY, _plain(model)
        case [b"", b"v2", b"tritium", b"models", model, b"traffic"]:
            return Action.TRAFFIC, _plain(model)
        case [b"", b"v2", b"tritium", b"fleet"] if method in ("GET", "POST"):
            return Action.MODEL_REPOSITORY, ""  # the endpoint itself asks for all models
        case _:
            return None


def _of_model(method: str, rest: list[bytes], model: str) -> tuple[Action, str] | None:
    match method, rest:
        case "GET", []:
            return Action.METADATA, model
        case "GET", [b"ready"]:
            return Action.HEALTH, model
        case "POST", [b"infer" | b"generate" | b"generate_stream"]:
            return Action.INFERENCE, model
        case _:
            return None


def _plain(segment: bytes) -> str:
    """Decode percents, once."""
    octets = bytearray()
    at = 0
    while at < len(segment):
        pair = segment[at + 1 : at + 3]
        if segment[at] == 0x25 and len(pair) == 2 and all(sign in b"0123456789abcdefABCDEF" for sign in pair):
            octets.append(int(pair, 16))
            at += 3
        else:
            octets.append(segment[at])
            at += 1
    return octets.decode("latin-1")


def _compare_with_h11(octets: bytes, found: list[Request]) -> None:
    """Where both read all bytes as whole requests, these are the same ones."""
    theirs = _by_h11(octets)
    if theirs is None:
        return
    ours = [(request.head.method.encode(), bytes(request.body)) for request in found]
    same = min(len(ours), len(theirs))
    assert ours[:same] == theirs[:same], "another server finds other requests in these bytes"


def _by_h11(octets: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return what h11 finds, None for what it refuses anywhere."""
    found: list[tuple[bytes, bytes]] = []
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(octets)
        for method, body in _events(connection):
            found.append((method, body))
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                break
            connection.start_next_cycle()
    except h11.RemoteProtocolError:
        return None
    return found


def _events(connection: h11.Connection) -> Iterator[tuple[bytes, bytes]]:
    method, body = b"", b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            method, body = event.method, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            if connection.their_state not in (h11.DONE, h11.MUST_CLOSE):
                return  # it waits for what becomes of an upgrade
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            yield method, body
        else:
            return


def _cuts(octets: bytes, chance: Random) -> list[int]:
    if len(octets) < 2:
        return []
    return sorted(chance.sample(range(1, len(octets)), min(len(octets) - 1, chance.randrange(1, 8))))


def _written(chance: Random) -> bytes:
    path = chance.choice(_PATHS)
    if b"%s" in path:
        path %= chance.choice(_MODELS)
    method = b"POST" if path.endswith((b"infer", b"generate", b"load", b"index", b"traffic")) else b"GET"
    if chance.random() < 0.1:
        method = chance.choice((b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"get", b"PATCH"))
    version = b"HTTP/1.1"
    if chance.random() < 0.05:
        version = chance.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b"http/1.1"))
    fields = [b"Host: x"] if chance.random() < 0.9 else []
    fields += [_KEY_FIELD] if chance.random() < 0.5 else []
    fields += [chance.choice(_FIELDS) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    body = chance.choice(_BODIES)
    if body == b"{}" and chance.random() < 0.95:
        fields.append(b"Content-Length: 2")
    elif b"0\r\n" in body and chance.random() < 0.95:
        fields.append(b"Transfer-Encoding: chunked")
    end = b"\n" if chance.random() < 0.03 else b"\r\n"
    return end.join((method + b" " + path + b" " + version, *fields, b"", body))


_KEY_FIELD: Final = b"Authorization: " + _KEY
