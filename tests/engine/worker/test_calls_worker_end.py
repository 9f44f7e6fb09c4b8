"""The worker's end of the connection for calls, over a socket pair; the test plays the server."""

from __future__ import annotations

import gc
import json
import socket
import threading
from typing import Any

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.wire import frames
from actors.wire.batch_frames import Answer, Part, Placed
from actors.wire.call_frames import GIVE_UP, STOP_SENDING, Letter
from actors.wire.frames import WINDOW_PARTS
from engine.worker.calls import CallFailed, CallRequest, Calls

FP32 = DataType.FP32


class PlayedServer:
    """The other end: reads letters whole, sends parts."""

    def __init__(self, sock):
        self.sock = sock
        sock.settimeout(10)

    def letter(self):
        letter = Letter.decode(self.sock.recv(frames.MAX_FRAME))
        data = bytearray(letter.data)
        while len(data) < letter.nbytes:
            number, _, more = frames.decode_more(self.sock.recv(frames.MAX_FRAME))
            assert number == letter.number
            data += more
        letter.data = data
        return letter

    def packet(self):
        return self.sock.recv(frames.MAX_FRAME)

    def respond(self, number, array=None, *, final=True, parameters=None):
        data = b"" if array is None else array.tobytes()
        placed = [] if array is None else [Placed("OUTPUT", FP32, array.shape, 0, len(data))]
        self.send(Part(number, 0, Answer(placed, parameters), data, len(data), final=final))

    def send(self, part):
        for packet in part.packets():
            self.sock.send(packet)


@pytest.fixture
def ends():
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    calls = Calls(theirs)
    with ours:
        yield calls, PlayedServer(ours)
        calls.close()


def row(*values):
    return np.array([values], np.float32)


def call(*values, **options):
    return CallRequest("model", [("INPUT", FP32, row(*values))], **options)


def in_thread(function, *arguments):
    """Run on a thread; return a function that waits for the result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()

    def join():
        thread.join(10)
        return results[0]

    return join


def test_a_call_says_what_differs_from_the_default(ends):
    calls, server = ends
    stream = calls.infer(call(1, 2, version=3, id="a", parent=(7, 1), decoupled=True))
    letter = server.letter()
    assert (letter.kind, letter.number) == (frames.CALL, 1)
    assert letter.fields == {
        "model": "model",
        "version": 3,
        "id": "a",
        "decoupled": True,
        "blocking": True,
    }
    assert letter.parent == (7, 1)
    ((name, datatype, shape, nbytes),) = [
        (each.name, each.datatype, each.shape, each.nbytes) for each in letter.inputs
    ]
    assert (name, datatype, tuple(shape), nbytes) == ("INPUT", FP32, (1, 2), 8)
    server.respond(1)
    assert [response.final for response in stream] == [True]


@pytest.mark.parametrize(
    "said",
    [
        {"flags": 1},
        {"timeout": 5},
        {"priority": 2},
        {"requested_outputs": ["A"]},
        {"version": 1},
        {"decoupled": True},
        {"blocking": False},
        {"parameters": {"a": 1}},
        {"correlation_id": "one"},
        {"trace": "00-1-2-01"},
    ],
    ids=lambda said: next(iter(said)),
)
def test_calls_that_say_other_things_are_told_apart(ends, said):
    """What is remembered of calls that say the same is nothing to any other."""
    calls, server = ends
    plainly: dict[str, Any] = {}
    streams = [calls.infer(CallRequest("model", [], **asked)) for asked in (plainly, said, plainly, said)]
    plain, other, plain_again, other_again = (server.letter().fields for _ in streams)
    assert plain == plain_again == {"model": "model", "blocking": True}
    assert other == other_again != plain


def test_inputs_of_every_datatype_arrive_as_they_were(ends):
    calls, server = ends
    inputs = [
        ("A", DataType.BYTES, np.array([b"one", "zwei"], object)),
        ("B", DataType.BF16, np.array([1, 2, 3], np.uint16)),
        ("C", FP32, np.arange(40_000, dtype=np.float32).reshape(2, -1)[:, ::2]),
        ("D", DataType.INT64, np.zeros((0, 3), np.int64)),
    ]
    calls.infer(CallRequest("model", inputs))
    letter = server.letter()
    found = {each.name: bytes(letter.data[each.offset : each.offset + each.nbytes]) for each in letter.inputs}
    assert found["A"] == b"\x03\0\0\0one\x04\0\0\0zwei"
    assert found["B"] == inputs[1][2].tobytes()
    assert found["C"] == np.ascontiguousarray(inputs[2][2]).tobytes()
    assert found["D"] == b""


def test_outputs_are_the_callers_own_to_write_to(ends):
    calls, server = ends
    stream = calls.infer(call(1))
    server.letter()
    server.respond(1, row(5, 6), parameters={"a": 1})
    (response,) = stream
    ((name, datatype, array),) = response.outputs
    array += 1
    assert (name, datatype, array.tolist(), response.parameters) == ("OUTPUT", FP32, [[6, 7]], {"a": 1})


def test_a_large_answer_comes_in_many_frames(ends):
    calls, server = ends
    stream = calls.infer(call(1))
    server.letter()
    whole = np.arange(1_000_000, dtype=np.float32)[None]
    joined = in_thread(list, stream)
    server.respond(1, whole)
    (response,) = joined()
    assert np.array_equal(response.outputs[0][2], whole)


def test_an_error_is_a_response(ends):
    calls, server = ends
    stream = calls.infer(call(1))
    server.letter()
    server.send(Part(1, 0, Answer(code=ErrorCode.UNAVAILABLE, message="full"), b"", 0, final=True))
    (response,) = stream
    assert (response.code, response.message, response.outputs) == (ErrorCode.UNAVAILABLE, "full", [])


def test_answers_in_another_order_reach_those_who_wait_for_them(ends):
    calls, server = ends
    streams = [calls.infer(call(number)) for number in range(8)]
    joins = [in_thread(list, stream) for stream in streams]
    numbers = [server.letter().number for _ in streams]
    for number in reversed(numbers):
        server.respond(number, row(number))
    assert [float(join()[0].outputs[0][2][0, 0]) for join in joins] == [float(number) for number in numbers]


def test_a_waiting_thread_reads_for_one_that_has_yet_to_wait(ends):
    calls, server = ends
    first, second = calls.infer(call(1)), calls.infer(call(2))
    server.respond(2, row(2))
    server.respond(1, row(1))
    assert [response.outputs[0][2][0, 0] for response in first] == [1]
    assert [response.outputs[0][2][0, 0] for response in second] == [2]


def test_many_threads_call_over_one_connection(ends):
    calls, server = ends
    rounds = 100

    def work(base):
        totals = []
        for number in range(rounds):
            (response,) = calls.infer(call(base, number))
            totals.append(float(response.outputs[0][2].sum()))
        return totals

    def serve():
        for _ in range(8 * rounds):
            letter = server.letter()
            server.respond(letter.number, np.frombuffer(letter.data, np.float32)[None] * 2)

    serving = threading.Thread(target=serve)
    serving.start()
    joins = [in_thread(work, base) for base in range(8)]
    assert [join() for join in joins] == [
        [2.0 * (base + number) for number in range(rounds)] for base in range(8)
    ]
    serving.join(10)


def test_credit_is_given_for_half_a_window_of_responses_that_were_taken(ends):
    calls, server = ends
    stream = calls.infer(call(1, decoupled=True))
    server.letter()
    for number in range(WINDOW_PARTS):
        server.respond(1, row(number), final=False)
    for _ in range(WINDOW_PARTS // 2):
        next(stream)
    assert frames.decode_credit(server.packet()) == (1, 0, WINDOW_PARTS // 2, 4 * WINDOW_PARTS // 2)
    server.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.packet()


def test_cancelling_is_told_and_the_stream_goes_on_to_its_end(ends):
    calls, server = ends
    stream = calls.infer(call(1, decoupled=True))
    server.letter()
    stream.cancel()
    assert frames.decode_cancel(server.packet()) == (1, STOP_SENDING)
    server.respond(1, row(1), final=False)
    server.send(Part(1, 0, Answer(code=ErrorCode.CANCELLED, message="gone"), b"", 0, final=True))
    assert [response.code for response in stream] == [None, ErrorCode.CANCELLED]
    stream.cancel()
    server.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.packet()


def test_a_stream_that_nobody_holds_is_cancelled_and_its_answers_go_nowhere(ends):
    calls, server = ends
    calls.infer(call(1, decoupled=True))
    server.letter()
    gc.collect()
    assert frames.decode_cancel(server.packet()) == (1, GIVE_UP)
    server.respond(1, row(1), final=False)
    server.respond(1)
    other = calls.infer(call(2))
    server.letter()
    server.respond(2, row(2))
    assert [response.outputs[0][2][0, 0] for response in other] == [2]


def test_the_end_of_the_connection_ends_every_wait(ends):
    calls, server = ends
    joins = [in_thread(list, calls.infer(call(number))) for number in range(4)]
    for _ in joins:
        server.letter()
    server.sock.shutdown(socket.SHUT_RDWR)
    assert [[response.code for response in join()] for join in joins] == [[ErrorCode.UNAVAILABLE]] * 4
    (response,) = calls.infer(call(9))
    assert response.message == "the server closed the connection"
    with pytest.raises(CallFailed):
        calls.ask("anything", {})
    calls.tell("anything", {})


def test_a_question_is_answered_by_an_object(ends):
    calls, server = ends
    join = in_thread(calls.ask, "model.load", {"name": "m"}, {"a": b"xyz", "b": b""})
    letter = server.letter()
    assert letter.fields == {"subject": "model.load", "attachments": [["a", 3], ["b", 0]]}
    assert bytes(letter.data) == b'{"name":"m"}xyz'
    text = json.dumps({"ready": True}).encode()
    placed = Placed("", DataType.UINT8, (len(text),), 0, len(text))
    server.send(Part(letter.number, 0, Answer([placed]), text, len(text), final=True))
    assert join() == {"ready": True}


def test_a_question_may_be_refused(ends):
    calls, server = ends

    def asked():
        with pytest.raises(CallFailed) as caught:
            calls.ask("model.load", {})
        return caught.value

    join = in_thread(asked)
    refusal = Answer(code=ErrorCode.UNAVAILABLE, message="explicit mode only")
    server.send(Part(server.letter().number, 0, refusal, b"", 0, final=True))
    error = join()
    assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "explicit mode only")


def test_what_is_told_has_no_number_and_keeps_its_order(ends):
    calls, server = ends
    for number in range(5):
        calls.tell("metric", {"value": number})
    letters = [server.letter() for _ in range(5)]
    assert [letter.number for letter in letters] == [0] * 5
    assert [json.loads(bytes(letter.data)) for letter in letters] == [{"value": n} for n in range(5)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"parameters": {"a": [1]}}, "is of type list"),
        ({"parameters": {"a": 2**63}}, "does not fit into 64 bits"),
        ({"parameters": {"a": "x" * 70_000}}, "more than 65536"),
    ],
)
def test_what_cannot_travel_is_refused_before_anything_is_sent(ends, options, complaint):
    calls, server = ends
    with pytest.raises(ValueError, match=complaint):
        calls.infer(call(1, **options))
    stream = calls.infer(call(1))
    assert server.letter().number == 1
    server.respond(1)
    list(stream)
