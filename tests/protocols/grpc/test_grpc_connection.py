"""One gRPC connection in memory, in virtual time, against the `h2` library's client."""

import gc
import gzip
import random
import zlib

import pytest
import trio
import trio.testing
from grpclib.const import Cardinality
from h2.errors import ErrorCodes

from actors.values.errors import Internal, Unavailable
from actors.values.requests import InferResponse
from protocols.grpc.call import STREAM_LIMIT, Call
from protocols.grpc.policy import GrpcOptions
from tests.protocols.grpc_memory import connect
from tests.protocols.grpc_serving import STREAM, Raw, Service

KiB = 1024
GATHER = "/toy.Toy/Gather"
IDLE = "/toy.Toy/Idle"
COUNT = "/toy.Toy/Count"
WAIT = "/toy.Toy/Wait"

NOT_FOUND, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 5, 12, 13, 14
RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED = 8, 4


def connecting(options=None, **kwargs):
    """Have the connection of a test made with other options than usual."""
    return pytest.mark.parametrize("connected", [{"options": options, **kwargs}], indirect=True, ids=[""])


@pytest.fixture
async def connected(request):
    async with connect(**getattr(request, "param", {})) as connected:
        yield connected


@pytest.fixture
def client(connected):
    return connected.client


@pytest.fixture
def service(connected):
    return connected.service


@pytest.fixture
def echo(connected):
    return connected.echo


@pytest.fixture
def held(echo):
    """Calls that have no answer yet, which they get by `echo.answer`."""
    echo.held = []
    return echo.held


def framed(message, flag=0):
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


async def test_an_answer_has_a_head_a_message_and_trailers(client):
    answer = await client.answer(b"hello")
    assert answer.head[b":status"] == b"200"
    assert answer.head[b"content-type"].startswith(b"application/grpc")
    assert answer.data == framed(b"hello")
    assert (answer.status, answer.ended) == (0, True)


async def test_an_error_is_trailers_only(client):
    answer = await client.answer(b"error!")
    assert (answer.status, answer.message, answer.data) == (NOT_FOUND, "no such thing: !", b"")
    assert not answer.trailers


async def test_a_message_in_pieces_is_put_together(client):
    stream = client.open()
    for byte in framed(b"piecemeal"):
        client.send_bytes(stream, bytes((byte,)))
        await client.exchange()
    client.send_bytes(stream, b"", end=True)
    client.h2.end_stream(stream)
    assert (await client.exchange())[stream].data == framed(b"piecemeal")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", UNIMPLEMENTED),
        (framed(b"a") + framed(b"b"), UNIMPLEMENTED),
        (framed(b"a") + b"\0", INTERNAL),
        (b"\0\0\0", INTERNAL),
        (framed(b"abc")[:-1], INTERNAL),
        (framed(b"a", flag=2), INTERNAL),
        (framed(b"a", flag=1), INTERNAL),
        (b"\0" + (2**32 - 1).to_bytes(4, "big"), RESOURCE_EXHAUSTED),
    ],
)
@connecting(GrpcOptions(max_receive_message=1000))
async def test_a_unary_request_that_is_not_one_whole_message_is_refused(sent, status, connected, client):
    stream = client.open()
    client.send_bytes(stream, sent)
    client.h2.end_stream(stream)
    assert (await client.exchange())[stream].status == status
    assert connected.echo.begun == 0
    assert (await client.answer(b"others are fine")).status == 0


async def test_a_coroutine_method_of_one_request_is_given_no_second(connected, client):
    stream = client.open(WAIT)
    client.send(stream, b"a", end=False)
    client.send(stream, b"b")
    answer = (await client.exchange())[stream]
    assert answer.status == UNIMPLEMENTED
    assert connected.service.cancelled.is_set()


@connecting(GrpcOptions(max_send_message=10))
async def test_answers_over_the_limit_are_refused_with_the_contracts_text(connected, client):
    text = "Response has byte size 11 which exceeds gRPC's byte size limit 10."
    for path in (None, STREAM):
        answer = await (client.answer(b"y" * 11) if path is None else client.answer(b"y" * 11, path))
        assert (answer.status, answer.message) == (3, text)
    assert connected.echo.released == 1


async def test_a_reset_call_is_cancelled_and_its_late_answer_released(connected, client, echo, held):
    stream = await client.begin(b"held")
    client.h2.reset_stream(stream, ErrorCodes.CANCEL)
    await client.exchange()
    assert echo.cancelled == held
    echo.answer(held[0], b"late")
    assert echo.released == 1
    await client.exchange()
    assert [type(outcome).__name__ for outcome in echo.finished_with] == ["Cancelled"]
    assert connected.connection.streams == 0


async def test_a_call_reset_between_its_answer_and_the_write_is_told_its_answer(client, echo, held):
    stream = await client.begin(b"held")
    client.h2.reset_stream(stream, ErrorCodes.CANCEL)
    client.transport.deliver(client.h2.data_to_send())
    echo.answer(held[0])
    await client.exchange()
    assert echo.released == 1
    assert len(echo.finished_with) == 1


async def test_a_deadline_is_told_in_trailers_and_cancels_the_method(
    autojump_clock, connected, client, echo, held
):
    unary = client.ask(b"held", grpc_timeout="500m")
    coroutine = client.ask(b"", WAIT, grpc_timeout="2S")
    in_time = await client.begin(b"in time", grpc_timeout="3S")
    echo.answer(held[1])
    await trio.sleep(0.4)
    assert not (await client.exchange())[unary].ended
    await trio.sleep(0.2)
    answers = await client.exchange()
    assert (answers[unary].status, answers[unary].message) == (DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert not answers[coroutine].ended
    await trio.sleep(5)
    answers = await client.exchange()
    assert (answers[coroutine].status, answers[coroutine].message) == (
        DEADLINE_EXCEEDED,
        "Deadline Exceeded",
    )
    assert answers[in_time].status == 0
    assert echo.cancelled == [held[0]]
    assert connected.service.cancelled.is_set()
    echo.answer(held[0], b"late")
    assert echo.released == echo.leases


async def test_a_model_that_answers_more_than_once_is_an_error(client, echo, held):
    stream = await client.begin(b"held")
    call = held[0]
    real_put, finals = call.put, iter((False, False, True))

    class Port:
        context = call.context

        def put(self, part, *, final):
            real_put(part, final=next(finals))

    for _ in range(3):
        echo.answer(Port())
    answer = (await client.exchange())[stream]
    assert (answer.status, answer.message) == (INTERNAL, "expected a single response, got 3")
    assert echo.released == 3


async def test_a_task_of_a_unary_call_answers_by_raising_and_ends_with_it(connected, client, held):
    first, second, third = client.ask(b"1"), client.ask(b"2"), client.ask(b"3")
    await client.exchange()
    ended = trio.Event()

    async def refuse():
        await trio.lowlevel.checkpoint()
        raise Unavailable("the queue is full")

    async def fail():
        raise ZeroDivisionError

    async def wait():
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    for call, run in zip(held, (refuse, fail, wait), strict=True):
        call.start(run)
    await client.exchange()
    client.h2.reset_stream(third, ErrorCodes.CANCEL)
    answers = await client.exchange()
    assert (answers[first].status, answers[first].message) == (UNAVAILABLE, "the queue is full")
    assert (answers[second].status, answers[second].message) == (INTERNAL, "internal server error")
    assert ended.is_set()
    assert [type(bug) for _, bug in connected.crashes] == [ZeroDivisionError]


@connecting(window=1000)
async def test_what_a_client_does_not_take_is_copied_and_its_memory_given_back(connected, client, echo):
    client.acknowledges = False
    stream = await client.begin(b"z" * 50_000)
    assert echo.released == echo.leases == 1
    assert connected.connection.pending == 50_005 - 1000
    client.h2.increment_flow_control_window(49_005, stream)
    answer = (await client.exchange())[stream]
    assert answer.data == framed(b"z" * 50_000)
    assert answer.status == 0
    assert connected.connection.pending == 0


async def test_a_socket_that_takes_nothing_holds_no_model_up(connected, client, echo):
    client.transport.room = 100
    first = await client.begin(b"a" * 30_000)
    assert (echo.leases, echo.released) == (1, 1)
    second = await client.begin(b"b" * 10_000)
    assert (echo.leases, echo.released) == (2, 2)
    assert connected.connection.pending >= 39_000
    for _ in range(100):
        client.transport.make_room(500)
        await client.exchange()
    assert client.answers[first].data == framed(b"a" * 30_000)
    assert client.answers[second].data == framed(b"b" * 10_000)
    assert connected.connection.pending == 0


@connecting(GrpcOptions(stall_timeout=10))
async def test_a_socket_that_takes_nothing_for_long_is_cut(autojump_clock, connected, client):
    client.transport.room = 100
    await client.begin(b"a" * 30_000)
    await connected.sweep_after(9)
    assert not client.transport.ended
    client.transport.make_room(10)
    await client.exchange()
    await connected.sweep_after(9)
    assert not client.transport.ended
    await connected.sweep_after(2)
    await connected.over.wait()
    assert client.transport.aborted


@connecting(GrpcOptions(connection_bytes=400_000), window=100)
async def test_no_more_requests_are_begun_than_their_answers_find_room(client, echo):
    client.acknowledges = False
    echo.held = []
    first = await client.begin(b"first")
    echo.answer(echo.held.pop(), b"x" * 300_000)
    await client.exchange()
    others = [client.ask(b"%d" % number) for number in range(3)]
    await client.exchange()
    assert len(echo.held) == 1
    client.h2.reset_stream(others[1], ErrorCodes.CANCEL)
    client.h2.increment_flow_control_window(2**20, first)
    client.h2.increment_flow_control_window(2**20)
    await client.exchange()
    assert len(echo.held) == 1
    echo.answer(echo.held[0], b"one")
    await client.exchange()
    assert [bytes(call.context) for call in echo.held[1:]] == [b"2"]
    echo.answer(echo.held[1])
    answers = await client.exchange()
    assert [answers[stream].status for stream in (first, others[0], others[2])] == [0, 0, 0]
    assert [type(outcome).__name__ for outcome in echo.finished_with] == ["InferResponse"] * 3


@connecting(GrpcOptions(connection_bytes=200_000))
async def test_large_messages_are_let_in_one_after_the_other(client, echo, held):
    large = [client.open() for _ in range(2)]
    for stream in large:
        client.send_bytes(stream, b"\0" + (180_000).to_bytes(4, "big"))
    await client.exchange()
    rooms = [client.h2.local_flow_control_window(stream) for stream in large]
    assert 180_000 <= rooms[0] < 181_000
    assert rooms[1] == 65_530
    client.send_bytes(large[0], b"1" * 180_000, end=True)
    await client.exchange()
    assert len(held) == 1
    small = await client.begin(b"small ones go on")
    assert len(held) == 2
    for call in held:
        echo.answer(call)
    assert (await client.exchange())[small].status == 0
    assert 180_000 <= client.h2.local_flow_control_window(large[1]) < 181_000
    echo.held = None
    client.send_bytes(large[1], b"2" * 180_000, end=True)
    answers = await client.exchange()
    assert [answers[stream].data[5:6] for stream in large] == [b"1", b"2"]


@connecting(GrpcOptions(connection_bytes=200_000))
async def test_a_large_message_that_is_given_up_lets_the_next_one_in_and_leaves_the_windows_whole(client):
    for _ in range(20):
        given_up, other = client.open(), client.open()
        for stream in (given_up, other):
            client.send_bytes(stream, b"\0" + (180_000).to_bytes(4, "big"))
        await client.exchange()
        client.send_bytes(given_up, b"1" * 10_000)
        client.h2.reset_stream(given_up, ErrorCodes.CANCEL)
        await client.exchange()
        client.send_bytes(other, b"2" * 180_000, end=True)
        assert (await client.exchange())[other].data == framed(b"2" * 180_000)
    assert 100_000 <= client.h2.outbound_flow_control_window <= 2_000_000


async def test_padding_does_not_shut_the_windows(client):
    for path in (None, GATHER):
        stream = client.open() if path is None else client.open(path)
        prefix = b"\0" + (3000).to_bytes(4, "big")
        client.send_bytes(stream, prefix, padding=255)
        for _ in range(3000):
            client.h2.send_data(stream, b"x", pad_length=255)
            await client.exchange()
        client.h2.end_stream(stream)
        assert (await client.exchange())[stream].data == framed(b"x" * 3000)


async def test_a_stream_that_is_not_read_closes_its_window_and_opens_it_when_read(client, service):
    stream = client.open(IDLE)
    sent = 0
    while client.h2.local_flow_control_window(stream) > 10_005:
        client.h2.send_data(stream, framed(b"m" * 10_000))
        sent += 1
        await client.exchange()
    assert sent == 6
    assert (await client.answer(b"meanwhile")).status == 0
    service.proceed.set()
    await client.exchange()
    assert len(service.received) == 6
    assert client.h2.local_flow_control_window(stream) >= 32_000
    client.h2.end_stream(stream)
    assert (await client.exchange())[stream].data == framed(b"6")


async def test_a_stalled_stream_is_granted_one_large_message_and_no_more(client, service):
    stream = client.open(IDLE)
    client.send_bytes(stream, b"\0" + (500_000).to_bytes(4, "big"))
    await client.exchange()
    client.send_bytes(stream, b"1" * 500_000)
    await client.exchange()
    assert client.h2.local_flow_control_window(stream) < 1000
    service.proceed.set()
    await client.exchange()
    client.send_bytes(stream, b"\0" + (500_000).to_bytes(4, "big"))
    await client.exchange()
    client.send_bytes(stream, b"2" * 500_000, end=True)
    assert (await client.exchange())[stream].data == framed(b"2")


async def test_a_stream_of_answers_waits_while_too_many_bytes_do():
    service = Service()
    waiting = []

    async def pour(stream):
        await stream.recv_message()
        for _ in range(100):
            await stream.send_message(Raw(b"p" * 100_000))
            waiting.append(stream.pending)

    service.methods["/toy.Toy/Pour"] = (pour, Cardinality.UNARY_STREAM)
    async with connect(service=service, window=0) as connected:
        client = connected.client
        client.acknowledges = False
        stream = await client.begin(b"", "/toy.Toy/Pour")
        assert 0 < len(waiting) < 12
        assert max(waiting) < STREAM_LIMIT + 100_005
        client.h2.increment_flow_control_window(2**30, stream)
        client.h2.increment_flow_control_window(2**30)
        answer = (await client.exchange())[stream]
        assert len(answer.data) == 100 * 100_005
        assert answer.status == 0


@connecting(GrpcOptions(max_receive_message=2_000_000))
async def test_compressed_requests_are_unfolded_and_bombs_are_not(client):
    for coding, fold in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        for size in (100, 1_900_000):
            stream = client.open(grpc_encoding=coding)
            client.send(stream, fold(b"c" * size), flag=1)
            await client.until_ended(stream)
            assert len(client.answers[stream].data) == size + 5
    bomb = client.open(grpc_encoding="gzip")
    client.send(bomb, gzip.compress(b"c" * 3_000_000), flag=1)
    await client.until_ended(bomb)
    assert client.answers[bomb].status == RESOURCE_EXHAUSTED
    broken = client.open(grpc_encoding="gzip")
    client.send(broken, b"not gzip at all", flag=1)
    assert (await client.exchange())[broken].status == INTERNAL


async def test_a_call_that_is_reset_while_a_thread_unfolds_it_is_never_begun(connected, client):
    folded = gzip.compress(b"c" * 4_000_000)
    for _ in range(3):
        stream = client.open(grpc_encoding="gzip")
        client.send(stream, folded, flag=1)
        client.transport.deliver(client.h2.data_to_send())
        await trio.lowlevel.checkpoint()
        client.h2.reset_stream(stream, ErrorCodes.CANCEL)
        await client.exchange()
    after = client.open(grpc_encoding="gzip")
    client.send(after, folded, flag=1)
    client.h2.increment_flow_control_window(2**30)
    client.h2.increment_flow_control_window(2**30, after)
    await client.until_ended(after)
    assert client.answers[after].status == 0
    assert connected.echo.begun == 1
    assert connected.crashes == []


async def test_streams_of_compressed_requests_are_unfolded(client):
    stream = client.open(GATHER, grpc_encoding="gzip")
    client.send(stream, gzip.compress(b"ab"), flag=1, end=False)
    client.send(stream, b"cd", end=False)
    client.send(stream, gzip.compress(b"e" * 3), flag=1)
    await client.until_ended(stream)
    assert client.answers[stream].data == framed(b"abcdeee")


async def test_answers_are_compressed_where_the_client_takes_it_and_the_operator_wants_it():
    for level in ("none", "low", "high"):
        async with connect(GrpcOptions(compression=level)) as connected:
            client = connected.client
            accepting = client.ask(b"a" * 1000, grpc_accept_encoding="identity,gzip")
            plain = client.ask(b"a" * 1000)
            other = client.ask(b"a" * 1000, GATHER, grpc_accept_encoding="gzip")
            answers = await client.exchange()
            assert answers[plain].data == answers[other].data == framed(b"a" * 1000)
            if level == "none":
                assert answers[accepting].data == framed(b"a" * 1000)
            else:
                assert answers[accepting].head[b"grpc-encoding"] == b"gzip"
                assert answers[accepting].data[0] == 1
                assert gzip.decompress(answers[accepting].data[5:]) == b"a" * 1000


async def test_a_client_that_breaks_the_rules_is_told_why_and_sent_away(connected, client, echo, held):
    await client.begin(b"held")
    client.transport.deliver(b"\0\0\4" + b"\x08\0" + b"\0\0\0\0" + b"\0\0\0\0")  # WINDOW_UPDATE of 0
    await client.exchange()
    assert [code for code, _, _ in client.goodbyes] == [ErrorCodes.PROTOCOL_ERROR]
    assert client.transport.finished
    assert echo.cancelled == held
    client.transport.leave()
    await connected.over.wait()
    assert [code for _, code, _ in connected.violations] == ["PROTOCOL_ERROR"]
    assert len(echo.finished_with) == 1


@connecting(GrpcOptions(handshake_timeout=5), speaks=False)
async def test_a_client_that_never_speaks_http2_is_let_go(autojump_clock, connected):
    await connected.sweep_after(4)
    assert not connected.client.transport.ended
    await connected.sweep_after(2)
    await connected.over.wait()


@connecting(GrpcOptions(handshake_timeout=5))
async def test_a_client_that_speaks_http2_may_be_silent(autojump_clock, connected):
    await connected.sweep_after(100)
    assert not connected.client.transport.ended


async def test_pings_without_need_cost_the_connection(autojump_clock, connected, client):
    for number in range(4):
        client.h2.ping(b"%08d" % number)
        await client.exchange()
    assert client.goodbyes == [(ErrorCodes.ENHANCE_YOUR_CALM, 0, b"too_many_pings")]
    assert connected.violations == [("memory:", "ENHANCE_YOUR_CALM", "too_many_pings")]


async def test_calls_excuse_pings(autojump_clock, client):
    for number in range(10):
        client.h2.ping(b"%08d" % number)
        await client.begin(b"data")
    assert client.goodbyes == []


@connecting(GrpcOptions(keepalive_time=10, keepalive_timeout=5))
async def test_a_silent_client_with_a_call_is_pinged_and_let_go_if_it_does_not_answer(
    autojump_clock, connected, client
):
    await connected.sweep_after(60)
    await client.exchange()
    assert client.pings == []
    await client.begin(b"", WAIT)
    await connected.sweep_after(11)
    await client.exchange()
    assert len(client.pings) == 1
    await connected.sweep_after(6)
    assert not client.transport.ended
    await connected.sweep_after(11)
    await trio.testing.wait_all_tasks_blocked()
    client.transport.written.clear()
    await connected.sweep_after(6)
    await connected.over.wait()
    assert client.transport.aborted
    assert connected.service.cancelled.is_set()


@connecting(GrpcOptions(max_connection_age=100, max_connection_age_grace=30), jitter=1.0)
async def test_an_old_connection_retires_and_ends_after_its_grace(autojump_clock, connected, client):
    await client.begin(b"", WAIT)
    await connected.sweep_after(109)
    await client.exchange()
    assert client.goodbyes == []
    await connected.sweep_after(2)
    await client.exchange()
    assert client.goodbyes[0] == (ErrorCodes.NO_ERROR, 2**31 - 1, b"max_age")
    assert client.goodbyes[1][:2] == (ErrorCodes.NO_ERROR, 1)
    await connected.sweep_after(31)
    await connected.over.wait()
    assert connected.service.cancelled.is_set()


async def test_a_drained_connection_finishes_its_calls_and_says_so(connected, client, echo, held):
    first, waiting = client.ask(b"held"), client.ask(b"", WAIT)
    await client.exchange()
    connected.connection.drain()
    racing = client.ask(b"racing")
    control = client.ask(b"low", "/inference.GRPCInferenceService/ServerLive")
    answers = await client.exchange()
    assert (answers[racing].status, answers[racing].message) == (
        UNAVAILABLE,
        "GRPC server is shutting down and has stopped accepting new requests.",
    )
    assert answers[control].data == framed(b"LOW")
    assert [last for _, last, _ in client.goodbyes] == [2**31 - 1, control]
    echo.answer(held[0])
    await client.exchange()
    assert not client.transport.finished
    connected.service.proceed.set()
    answers = await client.exchange()
    assert (answers[first].status, answers[waiting].status) == (0, 0)
    assert client.transport.finished
    client.transport.leave()
    await connected.over.wait()


@connecting(GrpcOptions(stall_timeout=60))
async def test_a_drained_connection_gives_a_slow_reader_its_time(autojump_clock, connected, client):
    client.transport.room = 100
    stream = await client.begin(b"s" * 30_000)
    connected.connection.drain()
    for _ in range(40):
        await connected.sweep_after(10)
        client.transport.make_room(1000)
        await client.exchange()
    assert client.answers[stream].status == 0
    await connected.over.wait()


async def test_a_drained_client_that_answers_no_ping_and_closes_nothing_is_cut(
    autojump_clock, connected, client
):
    connected.connection.drain()
    await connected.sweep_after(1.5)
    await trio.testing.wait_all_tasks_blocked()
    assert client.transport.finished
    await connected.sweep_after(2.5)
    await connected.over.wait()


@connecting(window=10)
async def test_everything_is_given_back_when_the_client_is_lost(connected, client, echo):
    await client.begin(b"w" * 5000)
    echo.held = []
    client.ask(b"held")
    client.ask(b"", WAIT)
    client.open(IDLE)
    await client.exchange()
    client.transport.leave()
    await connected.over.wait()
    assert echo.cancelled == echo.held
    assert connected.service.cancelled.is_set()
    assert (echo.leases, echo.released) == (1, 1)
    assert len(echo.finished_with) == 2
    echo.answer(echo.held[0], b"late")
    assert (echo.leases, echo.released) == (2, 2)


@connecting(GrpcOptions(connection_bytes=400_000), window=100)
async def test_a_client_that_reads_nothing_has_no_more_begun_than_may_wait(connected, client, echo):
    client.acknowledges = False
    echo.held = []
    streams = []
    for _ in range(6):
        streams.append(client.ask(b"x"))
        await client.exchange()
        while echo.held:
            echo.answer(echo.held.pop(), b"x" * 300_000)
            await client.exchange()
    assert echo.begun == 2
    assert connected.connection.pending < 400_000 + 300_005
    client.h2.reset_stream(streams[0], ErrorCodes.CANCEL)  # what it had waiting made room
    await client.exchange()
    assert echo.begun == 3


@connecting(GrpcOptions(connection_bytes=400_000), window=100)
async def test_what_waits_to_begin_and_is_too_late_is_let_go_of(autojump_clock, client, echo):
    client.acknowledges = False
    echo.held = []
    first = await client.begin(b"first")
    echo.answer(echo.held.pop(), b"x" * 300_000)
    await client.begin(b"holds the room")
    gc.collect()
    gc.disable()
    try:
        before = _live_calls()
        for _ in range(20):
            late = await client.begin(b"late", grpc_timeout="1m")
            await trio.sleep(0.1)
            assert (await client.exchange())[late].status == DEADLINE_EXCEEDED
        assert _live_calls() <= before + 1
    finally:
        gc.enable()
    assert echo.begun == 2
    assert not client.answers[first].ended


def _live_calls():
    return sum(type(one) is Call for one in gc.get_objects())


async def test_a_socket_that_takes_nothing_holds_no_model_up_that_answers_on_a_stream():
    released = []

    async def each(stream):
        async for message in stream:
            response = InferResponse(model_name="m", model_version=1, outputs=[])
            response.on_release(lambda: released.append(True))
            stream.send_raw_nowait((message.data,), len(message.data), response)

    service = Service()
    service.methods[STREAM] = (each, Cardinality.STREAM_STREAM)
    async with connect(service=service) as connected:
        client = connected.client
        client.transport.room = 100
        client.ask(b"a" * 30_000)
        stream = client.open(STREAM)
        for count in range(1, 4):
            client.send(stream, b"b" * 20_000, end=count == 3)
            await client.exchange()
            assert len(released) == count
        client.transport.make_room(10**6)
        assert (await client.exchange())[stream].data == framed(b"b" * 20_000) * 3


@connecting(GrpcOptions(compression="low"))
async def test_a_socket_that_takes_nothing_holds_no_model_up_whose_answers_are_compressed(client, echo):
    client.transport.room = 10
    await client.begin(b"a" * 30_000)
    client.h2.increment_flow_control_window(2**20)
    echo.held = []
    for _ in range(10):
        await client.begin(b"b" * 60_000, grpc_accept_encoding="gzip")
    for call in echo.held:
        echo.answer(call)
    await client.exchange()
    assert echo.released == echo.leases == 11


async def test_a_stream_of_small_answers_waits_for_a_socket_that_takes_nothing():
    made = 0

    async def count(stream):
        nonlocal made
        await stream.recv_message()
        while made < 400:
            made += 1
            await stream.send_message(Raw(b"x" * 10_000))

    service = Service()
    service.methods[COUNT] = (count, Cardinality.UNARY_STREAM)
    async with connect(service=service, window=2**30) as connected:
        client = connected.client
        client.h2.increment_flow_control_window(2**30)
        await client.exchange()
        client.transport.room = 0
        stream = await client.begin(b"", COUNT)
        assert made < 300
        client.transport.make_room(10**9)
        answer = (await client.exchange())[stream]
        assert answer.ended
        assert made == 400
        assert len(answer.data) == 400 * 10_005


async def test_a_client_that_has_itself_refused_at_length_and_reads_nothing_is_cut():
    async def refuse(stream):
        stream.call.wire.writer.send_status(stream.call, NOT_FOUND, "", {"why": "x" * 1_000_000})

    service = Service()
    service.methods[COUNT] = (refuse, Cardinality.UNARY_STREAM)
    async with connect(GrpcOptions(connection_bytes=2_000_000), service=service) as connected:
        client = connected.client
        client.transport.room = 0
        for _ in range(15):
            await client.begin(b"", COUNT)
        connected.sweep()
        assert not client.transport.aborted
        for _ in range(10):
            await client.begin(b"", COUNT)
        connected.sweep()
        assert client.transport.aborted
        await connected.over.wait()


@pytest.mark.parametrize("attempt", range(8))  # which of two tasks goes first is chance
@connecting(GrpcOptions(connection_bytes=400_000))
async def test_calls_that_are_reset_before_they_are_unfolded_hold_no_room(attempt, client):
    folded = gzip.compress(random.Random(attempt).randbytes(2000))
    stream = client.open(grpc_encoding="gzip")
    client.send(stream, folded, flag=1)
    client.h2.reset_stream(stream, ErrorCodes.CANCEL)
    await client.exchange()
    again = client.open(grpc_encoding="gzip")
    client.send(again, folded, flag=1)
    await client.until_ended(again)
    assert client.answers[again].status == 0


@connecting(GrpcOptions(compression="low"))
async def test_an_answer_that_can_not_be_compressed_in_a_thread_is_a_bug_told_to_its_client(
    connected, client, echo, held
):
    stream = await client.begin(b"", grpc_accept_encoding="gzip")
    echo.encode = lambda call, response: (("no buffer",), 100_000)
    echo.answer(held.pop())
    await client.until_ended(stream)
    assert (client.answers[stream].status, client.answers[stream].message) == (
        INTERNAL,
        "internal server error",
    )
    assert (echo.leases, echo.released) == (1, 1)
    assert [type(bug) for _, bug in connected.crashes] == [TypeError]
    assert [type(outcome) for outcome in echo.finished_with] == [Internal]


async def test_a_stream_that_is_opened_while_the_connection_drains_is_asked_for_no_more(connected, client):
    connected.connection.drain()
    stream = client.open(GATHER)
    answers = await client.exchange()
    assert answers[stream].status == UNAVAILABLE
    await client.exchange()
    assert client.transport.finished
