"""Header blocks of gRPC: what a request's means, and what is said of an answer."""

import math

import pytest
from grpclib.const import Status
from grpclib.metadata import decode_grpc_message
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from protocols.grpc.codec.heads import (
    MAX_MESSAGE,
    Metadata,
    Refusal,
    initial,
    percent_encoded,
    read_head,
    read_more,
    refused,
    trailers,
    trailers_only,
    trailers_with,
    try_again,
)

METHODS = {"/a.Service/Do": "do", "/a.Service/Undo": "undo"}


def head(**changes):
    """The head of a good request with `changes`: names with `_` for `-`, None to leave one out."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/a.Service/Do",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    fields.update({name.replace("_", "-"): value for name, value in changes.items()})
    fields.update({":" + name: fields.pop(name) for name in ("method", "path") if name in fields})
    return read_head(
        [(name.encode(), value.encode("latin-1")) for name, value in fields.items() if value is not None],
        METHODS,
    )


def refusal(**changes):
    refused = head(**changes).refusal
    assert refused is not None
    return refused


def test_a_good_head_says_what_the_call_is():
    read = head()
    assert read.refusal is None
    assert (read.path, read.method) == ("/a.Service/Do", "do")
    assert read.timeout == math.inf
    assert (read.coding, read.answer_coding) == (b"", b"")
    assert read.metadata == {}


@pytest.mark.parametrize(
    "content_type",
    ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8", "APPLICATION/GRPC"],
)
def test_content_types_of_grpc_are_taken(content_type):
    assert head(content_type=content_type).refusal is None


@pytest.mark.parametrize(
    "content_type", [None, "", "application/json", "application/grpcx", "text/application/grpc"]
)
def test_what_is_not_grpc_is_told_so_in_http(content_type):
    refused = refusal(content_type=content_type)
    assert (refused.http_status, refused.status) == (415, Status.UNKNOWN)


def test_messages_in_another_format_are_not_offered():
    refused = refusal(content_type="application/grpc+json")
    assert (refused.http_status, refused.status) == (200, Status.UNIMPLEMENTED)
    assert "'json'" in refused.message


def test_other_http_methods_are_refused():
    refused = refusal(method="GET")
    assert refused.http_status == 405
    assert refused.headers == ((b"allow", b"POST"),)


@pytest.mark.parametrize("te", [None, "gzip"])
def test_a_client_that_does_not_take_trailers_is_refused(te):
    refused = refusal(te=te)
    assert (refused.http_status, refused.status) == (400, Status.INTERNAL)


def test_an_unknown_method_is_told_from_an_unknown_service():
    refused = refusal(path="/a.Service/Nothing")
    assert (refused.status, refused.message) == (
        Status.UNIMPLEMENTED,
        "service a.Service has no method 'Nothing'",
    )
    refused = refusal(path="/b.Service/Do")
    assert refused.message == "there is no service 'b.Service' here, but: a.Service"
    assert refusal(path="nonsense").status is Status.UNIMPLEMENTED
    assert len(refusal(path="/x/" + "y" * 10_000).message) < 1000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("99999999S", 99999999),
        ("5m", 0.005),
        ("7u", 7e-6),
        ("8n", 8e-9),
        ("0S", 0),
    ],
)
def test_timeouts_are_read_in_seconds(value, seconds):
    assert head(grpc_timeout=value).timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "1S ", "١S".encode().decode("latin-1")]
)
def test_malformed_timeouts_are_refused(value):
    refused = refusal(grpc_timeout=value)
    assert (refused.http_status, refused.status) == (200, Status.INTERNAL)
    assert "malformed grpc-timeout" in refused.message


@pytest.mark.parametrize(("value", "coding"), [("identity", b""), ("gzip", b"gzip"), ("deflate", b"deflate")])
def test_codings_that_are_known_are_taken(value, coding):
    assert head(grpc_encoding=value).coding == coding


def test_an_unknown_coding_is_refused_with_those_that_are_known():
    refused = refusal(grpc_encoding="snappy")
    assert refused.status is Status.UNIMPLEMENTED
    assert refused.headers == ((b"grpc-accept-encoding", b"identity,deflate,gzip"),)
    assert "'snappy'" in refused.message


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("identity", b""),
        ("snappy", b""),
        ("identity,deflate,gzip", b"gzip"),
        ("deflate", b"deflate"),
        ("identity, gzip ", b"gzip"),
    ],
)
def test_answers_get_the_best_coding_that_the_client_takes(accepted, coding):
    assert head(grpc_accept_encoding=accepted).answer_coding == coding


def test_metadata_is_the_clients_own_fields():
    read = head(user_agent="test/1", x_key="vålue", grpc_timeout="1S", trace_bin="AAEC")
    assert read.metadata == {"user-agent": "test/1", "x-key": "vålue", "trace-bin": b"\0\1\2"}
    assert read.fields == (
        (b"user-agent", b"test/1"),
        (b"x-key", "vålue".encode("latin-1")),
        (b"trace-bin", b"AAEC"),
    )


def test_a_head_may_name_the_replica_of_a_sequence():
    assert head().replica == b""
    assert head(tritium_replica="a").replica == b"a"
    for first, named in (("a", b"a"), (None, b"b")):
        read = read_more(head(tritium_replica=first), [(b"tritium-replica", b"b")])
        assert read is not None
        assert read.replica == named


def test_credentials_are_those_of_the_one_authorization():
    assert head().authorization == b""
    assert head(authorization="Bearer x").authorization == b"Bearer x"


def test_of_repeated_metadata_the_first_counts():
    fields = [
        (b":method", b"POST"),
        (b":path", b"/a.Service/Do"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"x", b"1"),
        (b"x", b"2"),
        (b"y-bin", b"AA==,AQ=="),
    ]
    assert read_head(fields, METHODS).metadata == {"x": "1", "y-bin": b"\0"}


def test_binary_metadata_that_is_no_base64_is_refused():
    assert refusal(x_bin="A").status is Status.INTERNAL


names = st.one_of(
    st.sampled_from(
        [b":path", b":method", b"te", b"grpc-timeout", b"grpc-encoding", b"content-type", b"x-bin"]
    ),
    st.binary(max_size=5),
)


@pytest.mark.slow
@given(st.lists(st.tuples(names, st.binary(max_size=10))))
def test_no_head_breaks_the_reader(fields):
    read = read_head(fields, METHODS)
    assert read.refusal is not None
    good = [(b":method", b"POST"), (b":path", b"/a.Service/Do"), (b"content-type", b"application/grpc")]
    read = read_head([*good, (b"te", b"trailers"), *fields], METHODS)
    assert read.refusal is not None or isinstance(read.metadata, dict)


def fields(block):
    return [(name.decode(), value.decode()) for name, value in Decoder().decode(block, raw=True)]


def test_an_answer_begins_with_its_coding_and_those_that_requests_may_have():
    common = [(":status", "200"), ("content-type", "application/grpc")]
    accepted = ("grpc-accept-encoding", "identity,deflate,gzip")
    assert fields(initial()) == [*common, accepted]
    assert fields(initial(b"gzip")) == [*common, ("grpc-encoding", "gzip"), accepted]


def test_trailers_tell_the_status():
    assert fields(trailers()) == [("grpc-status", "0")]
    assert fields(trailers(3, "100% wrong: ü\n")) == [
        ("grpc-status", "3"),
        ("grpc-message", "100%25 wrong: %C3%BC%0A"),
    ]
    own: Metadata = {"x": "1", "y-bin": b"\0"}
    assert fields(trailers_with(own, 5)) == [("grpc-status", "5"), ("x", "1"), ("y-bin", "AA")]


def test_an_answer_without_messages_is_one_block():
    assert fields(trailers_only(12, "no")) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "12"),
        ("grpc-message", "no"),
    ]
    assert fields(trailers_only(0, metadata={"x": "1"}))[-1] == ("x", "1")


@pytest.mark.parametrize(
    ("seconds", "known", "told"),
    [
        (3, True, {"retry-after": "3", "grpc-retry-pushback-ms": "3000"}),
        (1, False, {"retry-after": "1"}),  # a policy's own back-off is the better guess
        (0, True, {"grpc-retry-pushback-ms": "-1"}),  # never: policies give up
    ],
)
def test_a_client_is_told_when_to_try_again(seconds, known, told):
    metadata = try_again(seconds, known=known)
    assert metadata == told
    for _ in range(2):  # the second one is remembered
        assert dict(fields(trailers_only(14, "full", metadata))).items() >= told.items()
    assert "retry-after" not in dict(fields(trailers_only(14, "full")))


def test_refusals_tell_what_http_and_grpc_clients_understand():
    refusal = Refusal(Status.INTERNAL, "POST only", 405, ((b"allow", b"POST"),))
    assert fields(refused(refusal)) == [
        (":status", "405"),
        ("content-type", "application/grpc"),
        ("grpc-status", "13"),
        ("grpc-message", "POST only"),
        ("allow", "POST"),
    ]


@pytest.mark.parametrize("metadata", [{"grpc-status": "0"}, {"Upper": "x"}, {"x": "new\nline"}])
def test_metadata_that_cannot_be_sent_is_refused(metadata):
    with pytest.raises(ValueError, match="Invalid metadata"):
        trailers_with(metadata)


def test_blocks_leave_the_clients_table_alone():
    decoder = Decoder()
    for block in (initial(), trailers(3, "text"), trailers_only(3, "text")):
        decoder.decode(block)
    assert len(decoder.header_table.dynamic_entries) == 0


@pytest.mark.parametrize("character", ["a", "%", "ü", "€", "🦀"])
def test_long_messages_are_cut_between_characters(character):
    block = trailers(3, character * 100_000)
    assert len(block) < 8192
    (_, (_, value)) = fields(block)
    text = decode_grpc_message(value)
    assert text.endswith("...")
    assert set(text.removesuffix("...")) == {character}
    assert len(value) > MAX_MESSAGE - 40


@pytest.mark.slow
@given(st.text(st.characters(), max_size=200))
def test_any_message_arrives(message):
    assert (
        decode_grpc_message(percent_encoded(message).decode()) == message.encode("utf-8", "replace").decode()
    )


own_names = st.sampled_from(
    [
        *(b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-trace-bin", b"grpc-status"),
        *(b"te", b"content-type", b"user-agent", b"authorization", b"x-a", b"k-bin", b"l-bin"),
    ]
)
own_values = st.sampled_from(
    [
        *(b"", b"1S", b"5m", b"1x", b"gzip", b"identity", b"br", b"trailers", b"application/grpc"),
        *(b"AAA", b"AAAA,AAAA", b"A", b"x"),
    ]
)
own_fields = st.lists(st.tuples(own_names, own_values), max_size=4)


@given(front=own_fields, more=own_fields, path=st.sampled_from(["/a.Service/Do", "/a.Service/No"]))
def test_a_list_read_in_two_parts_means_what_it_means_as_a_whole(front, more, path):
    fields = [(b":method", b"POST"), (b":path", path.encode()), (b"te", b"trailers")]
    fields += [(b"content-type", b"application/grpc"), *front]
    read = read_more(read_head(fields, METHODS), more)
    whole = read_head([*fields, *more], METHODS)
    assert read is None or vars(read) == vars(whole)
    if read is None:
        told = {name for name, _ in more}
        assert whole.refusal or told & {b"te", b"content-type", b"grpc-encoding", b"grpc-accept-encoding"}


@pytest.mark.parametrize(
    "field",
    [
        *((b"grpc-timeout", b"1x"), (b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"gzip")),
        *((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"k-bin", b"A")),
    ],
)
def test_what_says_how_a_call_is_served_is_not_read_behind_a_head(field):
    assert read_more(head(), [field]) is None


def test_nothing_is_read_behind_a_head_that_is_refused():
    assert read_more(head(te=None), [(b"x-a", b"1")]) is None


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        ((b"grpc-timeout", b"5m"), 0.005),
        ((b"traceparent", b"00-1-2-01"), math.inf),
        ((b"grpc-tags-bin", b"AA"), math.inf),
    ],
)
def test_usual_fields_are_read_behind_a_head(field, seconds):
    read = read_more(head(), [field, (b"x-a", b"1")])
    assert read is not None
    assert read.timeout == seconds
    assert read.metadata["x-a"] == "1"
    assert read.method == "do"
