import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.http.admission import Admitted
from protocols.http.answers import error_answer
from protocols.http.parser import RequestLimits, RequestParser

GET = b"GET /v2/health/live?x=1 HTTP/1.1\r\nHost: h\r\nX-Key: Value\r\n\r\n"


def post(body, *headers):
    lines = [b"POST /p HTTP/1.1", b"Host: h", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*chunks, trailers=b""):
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return (
        b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        + framed
        + b"0\r\n"
        + trailers
        + b"\r\n"
    )


def parse(*pieces, **limits):
    """Feed as a connection does, direct bodies included; return the requests and the refusal."""
    parser = RequestParser(RequestLimits(**limits))
    for piece in pieces:
        rest = memoryview(piece)
        while rest and parser.refusal is None:
            if parser.direct is not None:
                room = parser.direct[parser.received :]
                part = rest[: len(room)]
                room[: len(part)] = part
                parser.fill(len(part))
                rest = rest[len(part) :]
            else:
                scratch = bytearray(rest)
                parser.feed(memoryview(scratch))
                scratch[:] = b"!" * len(scratch)  # the caller uses it again
                rest = rest[len(rest) :]
    return list(parser.ready), parser.refusal


def told_by(refusal):
    """The message of the error that the answer `refusal` carries."""
    return json.loads(b"".join(refusal.buffers))["error"]


def test_a_request_without_a_body():
    (request,), refusal = parse(GET)
    assert refusal is None
    assert (request.head.method, request.head.path, request.head.query) == ("GET", b"/v2/health/live", b"x=1")
    assert request.head.headers == [(b"host", b"h"), (b"x-key", b"Value")]
    assert request.head.raw_headers == [(b"Host", b"h"), (b"X-Key", b"Value")]
    assert request.head.keep_alive
    assert request.body == b""


def test_requests_in_one_piece_are_parsed_in_order():
    requests, refusal = parse(post(b"one") + GET + post(b"two") + chunked(b"th", b"ree"))
    assert refusal is None
    assert [bytes(request.body) for request in requests] == [b"one", b"", b"two", b"three"]


@pytest.mark.parametrize("message", [GET, post(b"body"), chunked(b"bo", b"dy"), post(b"x" * 100_000)])
def test_a_request_may_come_byte_by_byte(message):
    whole, _ = parse(message)
    pieces, refusal = parse(*(message[i : i + 1] for i in range(min(len(message), 300))), message[300:])
    assert refusal is None
    assert [(r.head.method, r.head.path, bytes(r.body)) for r in pieces] == [
        (r.head.method, r.head.path, bytes(r.body)) for r in whole
    ]


@given(st.lists(st.integers(0, 60_000), max_size=4), st.lists(st.integers(1, 70_000), max_size=8))
def test_bodies_arrive_whole_however_they_are_cut(sizes, cuts):
    bodies = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    stream = b"".join(chunked(body) if len(body) % 2 and body else post(body) for body in bodies)
    pieces = []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    requests, refusal = parse(*pieces, stream)
    assert refusal is None
    assert [bytes(request.body) for request in requests] == bodies


def fed(pieces):
    """Feed as a connection does that answers each request at once; return what the requests were."""
    found, parser = [], RequestParser(RequestLimits())
    for piece in pieces:
        parser.feed(piece)
        for request in parser.ready:
            head = request.head
            found.append((head.method, head.path, head.headers, head.keep_alive, bytes(request.body)))
        parser.ready.clear()
        if parser.refusal is not None:
            return [*found, told_by(parser.refusal)]
    return [*found, parser.begun]


def test_a_head_that_comes_once_more_is_not_parsed_again():
    parser = RequestParser(RequestLimits())
    heads = []
    for body in (b"one", b"two", b"other", b"six"):
        parser.feed(post(body))
        request = parser.ready.popleft()
        assert request.body == body
        heads.append(request.head)
    assert heads[0] is heads[1]
    assert len({id(head) for head in heads}) == 3


@pytest.mark.parametrize("cut", [5, 40, -2], ids=["in its line", "in its fields", "in its body"])
def test_a_head_is_forgotten_once_another_has_come_in_parts(cut):
    known = post(b"1234")
    other = post(b"abcd", b"Authorization: secret").replace(b"/p ", b"/q ")
    asked = [
        (path, headers[2:]) for _, path, headers, *_ in fed([known, other[:cut], other[cut:], known])[:3]
    ]
    assert asked == [(b"/p", []), (b"/q", [(b"authorization", b"secret")]), (b"/p", [])]


LOOKALIKES = (
    post(b"abcd"),
    post(b"abcd").replace(b"/p", b"/q"),
    post(b"abcd", b"X-Key: value"),
    post(b"abcd") + b"\r\n",  # llhttp overlooks line breaks in front of a request
    b"\r\n" + post(b"abcd"),
    post(b"ab\r\n"),
    post(b"\r\n\r\n"),
    post(b"\r\n\r\n")[:-2],
    post(b"GET "),
    post(b""),
    GET,
    GET + b"\r\n",
    GET[:-2],
    b"\r\n",
    b"ab",
    chunked(b"ab", b"cd"),
    post(b"abcd").replace(b"HTTP/1.1", b"HTTP/1.0"),
    post(b"abcd").replace(b"Host: h", b"Host: h\r\nExpect: 100-continue"),
    post(b"abcd").replace(b"Host: h", b"Host: h\r\nUpgrade: h2c\r\nConnection: upgrade"),
)


@given(st.lists(st.tuples(st.sampled_from(LOOKALIKES), st.integers(0, 60)), min_size=2, max_size=6))
def test_what_came_before_changes_nothing_of_how_a_request_is_read(cuts):
    # A head that comes in two parts is always parsed.
    pieces = [piece for piece, _ in cuts]
    cut = [part for piece, at in cuts for part in (piece[:at], piece[at:]) if part]
    assert fed(cut) == fed(part for piece in pieces for part in (piece[:3], piece[3:]))


def test_long_bodies_are_read_past_the_parser():
    parser = RequestParser(RequestLimits())
    head, body = post(b"x" * 1_000_000)[:-1_000_000], b"ab" * 500_000
    parser.feed(head + body[:10])
    assert parser.direct is not None
    assert len(parser.direct) == 1_000_000
    assert parser.received == 10
    parser.direct[10:] = body[10:]
    parser.fill(len(body) - 10)
    assert parser.ready.popleft().body == body
    parser.feed(GET)
    assert parser.ready.popleft().head.method == "GET"


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_the_connection_is_kept_as_the_client_wishes(head, keep_alive):
    (request,), _ = parse(head)
    assert request.head.keep_alive is keep_alive


def test_what_follows_a_closing_request_is_not_looked_at():
    requests, refusal = parse(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + GET, b"\0garbage")
    assert len(requests) == 1
    assert refusal is None


@pytest.mark.parametrize("first_piece", [None, 80, 95])
def test_an_offered_upgrade_is_ignored_and_its_body_taken(first_piece):
    message = post(b"body", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA")
    stream = message + GET + message
    requests, refusal = parse(stream[:first_piece], stream[first_piece:] if first_piece else b"")
    assert refusal is None
    assert [bytes(request.body) for request in requests] == [b"body", b"", b"body"]


def test_an_upgrade_of_a_chunked_request_is_refused():
    message = chunked(b"x").replace(b"\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", 1)
    _, refusal = parse(message)
    assert refusal.status == 400


@pytest.mark.parametrize("behind", [(b"xyz",), (b"", GET), (b"", b"GET ", GET)])
def test_connect_ends_the_connection(behind):
    (request,), _ = parse(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + behind[0], *behind[1:])
    assert not request.head.keep_alive


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a/b?c=d?e", b"/a/b", b"c=d?e"),
        (b"http://host:80/a?b", b"/a", b"b"),
        (b"http://host", b"/", b""),
        (b"*", b"*", b""),
        (b"/a%20b", b"/a%20b", b""),
    ],
)
def test_the_target_gives_path_and_query(target, path, query):
    (request,), _ = parse(b"OPTIONS %b HTTP/1.1\r\nHost: h\r\n\r\n" % target)
    assert (request.head.path, request.head.query) == (path, query)


MALFORMED = [
    b"\x16\x03\x01\x02\x00",
    b"GET / HTTP/1.1\nHost: a\n\n",
    b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n folded\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, gzip\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
]


@pytest.mark.parametrize("message", MALFORMED)
def test_what_is_malformed_or_smuggles_is_refused(message):
    requests, refusal = parse(GET + message)
    assert [request.head.method for request in requests] == ["GET"]
    assert refusal.status == 400
    assert told_by(refusal).startswith("Bad Request: ")


@pytest.mark.parametrize(
    ("lines", "status", "told"),
    [
        ((), 400, "no Host"),
        ((b"Host: a", b"Host: b"), 400, "more than one Host"),
        ((b"Host: a", b"hOST: a"), 400, "more than one Host"),
        ((b"Host: a b",), 400, "'a b'"),
        ((b"Host: a, b",), 400, "'a, b'"),
        ((b"Host: u@a/",), 400, "'u@a/'"),
        ((b"Host: a", b"Transfer-Encoding: gzip, chunked"), 501, "'gzip, chunked'"),
        ((b"Host: a", b"Transfer-Encoding: gzip"), 501, "'gzip'"),
        ((b"Host: a", b"Transfer-Encoding: , chunked"), 501, "', chunked'"),
    ],
)
def test_a_head_that_two_servers_might_read_differently_is_refused(lines, status, told):
    head = b"\r\n".join([b"POST /p HTTP/1.1", *lines, b"", b""])
    requests, refusal = parse(GET + head + b"0\r\n\r\n" + GET)
    assert [request.head.method for request in requests] == ["GET"]
    assert refusal.status == status
    assert told in told_by(refusal)


@pytest.mark.parametrize(
    "host",
    [b"a", b"a:8000", b"127.0.0.1:80", b"[::1]:8000", b"my_container-1.local", b"", b"%C3%A4.de", b"a \t"],
)
def test_hosts_of_every_form_are_taken(host):
    requests, refusal = parse(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host * 2)
    assert refusal is None
    assert [dict(request.head.headers)[b"host"] for request in requests] == [host.strip()] * 2


def test_a_request_of_http_1_0_needs_no_host_but_may_not_have_two():
    (request,), refusal = parse(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
    assert refusal is None
    assert request.head.headers == []
    _, refusal = parse(b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n")
    assert refusal.status == 400


def test_a_transfer_coding_in_http_1_0_is_refused():
    _, refusal = parse(b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert refusal == error_answer(400, "Bad Request: HTTP/1.0 has no Transfer-Encoding")


def test_blanks_behind_a_value_are_not_part_of_it():
    (request,), _ = parse(b"GET / HTTP/1.1\r\nHost: h\r\nX-Key: a b \t\r\n\r\n")
    assert request.head.headers[1] == (b"x-key", b"a b")
    assert request.head.raw_headers[1] == (b"X-Key", b"a b")


@pytest.mark.parametrize("zeros", [30, 5000])
def test_a_length_may_begin_with_any_number_of_zeros(zeros):
    (request,), refusal = parse(
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %b3\r\n\r\nabc" % (b"0" * zeros)
    )
    assert refusal is None
    assert request.body == b"abc"


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (b"abc", "Unable to parse Content-Length, got: abc"),
        (b"-1", "Unable to parse Content-Length, got: -1"),
        (
            b"99999999999999999999999",
            "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            "got: 99999999999999999999999",
        ),
        (
            b"2147483648",
            "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: 2147483648",
        ),
    ],
)
def test_a_bad_content_length_is_refused_in_triton_s_words(length, message):
    _, refusal = parse(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %b\r\n\r\n" % length)
    assert refusal == error_answer(400, message)


@pytest.mark.parametrize("version", [b"2.0", b"0.9", b"1.2"])
def test_other_versions_of_http_are_refused(version):
    _, refusal = parse(b"GET / HTTP/%b\r\n\r\n" % version)
    assert refusal.status in {400, 505}


def test_http_2_without_negotiation_is_refused():
    _, refusal = parse(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert refusal.status == 400


@pytest.mark.parametrize(
    "message",
    [
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: a\r\n" * 21 + b"\r\n",
        chunked(b"x", trailers=b"T: " + b"a" * 5000 + b"\r\n"),
    ],
)
def test_heads_are_bounded(message):
    requests, refusal = parse(message, max_head_size=4096, max_headers=20)
    assert requests == []
    assert refusal == error_answer(431, "Request Header Fields Too Large")


def test_a_head_that_never_ends_is_refused_while_it_comes():
    _, refusal = parse(b"GET / HTTP/1.1\r\nHost: h\r\nX: ", *([b"a" * 100] * 60), max_head_size=4096)
    assert refusal.status == 431


def test_a_body_over_the_limit_is_refused_by_its_head():
    _, refusal = parse(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n", max_body_size=10)
    assert refusal == error_answer(
        413, "request body of 11 bytes exceeds the maximum allowed size of 10 bytes"
    )


def test_a_chunked_body_over_the_limit_is_refused_while_it_comes():
    _, refusal = parse(chunked(b"12345", b"678901"), max_body_size=10)
    assert refusal == error_answer(413, "request body exceeds the maximum allowed size of 10 bytes")


def test_chunks_are_counted():
    requests, refusal = parse(chunked(*[b"x"] * 5), max_chunks=5)
    assert [bytes(request.body) for request in requests] == [b"xxxxx"]
    assert refusal is None
    requests, refusal = parse(chunked(*[b"x"] * 6), max_chunks=5)
    assert requests == []
    assert refusal == error_answer(
        400,
        "Chunked request body exceeds maximum of 5 non-empty chunks. Send fewer or larger HTTP chunks.",
    )


def test_triton_s_limit_is_65536_chunks():
    (request,), refusal = parse(chunked(*[b"x"] * 65536))
    assert refusal is None
    assert len(request.body) == 65536
    _, refusal = parse(chunked(*[b"x"] * 65537))
    assert told_by(refusal).startswith("Chunked request body exceeds maximum of 65536 non-empty chunks.")


def test_chunk_extensions_are_bounded():
    start = b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, refusal = parse(start, b"1;", *([b"e" * 1000] * 20), max_head_size=4096, max_chunks=10)
    assert refusal.status == 400


@pytest.mark.parametrize(
    ("head", "awaits"),
    [
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n", False),
        (b"POST / HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n", False),
    ],
)
def test_a_sender_that_waits_to_be_told_to_go_on_is_noticed(head, awaits):
    parser = RequestParser(RequestLimits())
    parser.feed(head)
    assert parser.awaits_continue is awaits
    parser.feed(b"abc")
    assert not parser.awaits_continue
    assert len(parser.ready) == 1


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_garbage_is_parsed_or_refused_and_nothing_else(pieces):
    parse(*pieces)


fragments = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"POST / HTTP/1.1",
        b"\r\n",
        b"Host: h",
        b"Content-Length: 5",
        b"Transfer-Encoding: chunked",
        b"5",
        b"0",
        b"hello",
        b"Upgrade: h2c",
        b"Connection: upgrade",
        b"Expect: 100-continue",
        b" ",
        b":",
        b";x",
        b"Connection: close",
    ]
)


@given(st.lists(fragments, max_size=25), st.integers(1, 30))
def test_near_requests_are_parsed_or_refused_and_nothing_else(parts, step):
    stream = b"".join(parts)
    parse(*(stream[i : i + step] for i in range(0, len(stream), step)))


def test_a_body_longer_than_any_is_refused_so_where_its_route_would_take_it():
    def admit(_method, _path, _headers, _length):
        return Admitted(
            most=1_000, too_long=lambda size: pytest.fail(f"{size} bytes are not too long for the route")
        )

    parser = RequestParser(RequestLimits(max_body_size=10), admit)
    parser.feed(b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    parser.feed(b"b\r\n01234567890\r\n")
    assert parser.refusal is not None
    assert parser.refusal.status == 413
    assert told_by(parser.refusal) == "request body exceeds the maximum allowed size of 10 bytes"
