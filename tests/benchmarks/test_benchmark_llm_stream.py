"""The benchmark of streams: events and tokens are counted once, and times are those of the right tokens."""

import math

import pytest

from benchmarks.llm_stream.alone import run_alone
from benchmarks.llm_stream.client import Reader, request
from benchmarks.llm_stream.model_folder import write_model
from benchmarks.llm_stream.paced import Paced
from benchmarks.llm_stream.session import FIRST, MANY, Found, Round, Weight, medians
from benchmarks.llm_stream.timing import Timing, Watched, quantile

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"lamp"}}]}\n\n'
END = b"data: [DONE]\n\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_events_and_tokens_are_counted_however_the_bytes_come(size):
    answer = HEAD + chunk(ROLE) + chunk(TEXT + TEXT) + chunk(b": keep-alive\n\n") + chunk(TEXT) + chunk(END)
    answer += b"0\r\n\r\n"
    reader, events, tokens = Reader(), 0, 0
    for at in range(0, len(answer), size):
        assert not reader.over
        more, with_text = reader.feed(answer[at : at + size])
        events, tokens = events + more, tokens + with_text
    assert (events, tokens, reader.status, reader.over) == (4, 3, 200, True)


def test_an_error_is_no_event_and_is_kept_to_be_told():
    reader = Reader()
    assert reader.feed(b"HTTP/1.1 400 Bad Request\r\n\r\n" + TEXT) == (0, 0)
    assert (reader.status, reader.over, reader.rest) == (400, False, TEXT)


def test_the_first_token_and_the_times_between_tokens_are_told_apart():
    timing = Timing(took=2.0)
    stream = Watched(timing, 10.0)
    stream.came(0, 10.2)
    stream.came(1, 10.5)
    stream.came(2, 10.75)
    assert (timing.firsts, timing.gaps, timing.rate) == ([0.5], [0.25, 0.0], 1.5)


def test_quantiles_are_values_that_were_seen():
    assert quantile([4, 1, 3, 2], 0.5) == 2
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile([5], 0.99) == 5
    assert math.isnan(quantile([], 0.5))


def test_the_engine_gives_every_stream_what_it_asks_for():
    engine = Paced(pace=0.0, tokens=3, room=2)
    for stream in (1, 2, 3):
        engine.add(stream, engine.prepare([1], {"max_tokens": 4}))
    assert engine.gauges() == (0, 3, 0.0, 0, 0, 0, 0)
    steps = []
    while engine.busy:
        steps.append([(each.stream, len(each.ids), each.finish) for each in engine.step()])
    assert steps == [
        [(1, 3, ""), (2, 3, "")],
        [(1, 1, "length"), (2, 1, "length")],
        [(3, 3, "")],
        [(3, 1, "length")],
    ]


def test_an_aborted_stream_has_no_more():
    engine = Paced(pace=0.0, room=1)
    engine.add(1, engine.prepare((), {"max_tokens": 9}))
    engine.add(2, engine.prepare((), {"max_tokens": 9}))
    engine.step()
    engine.abort([1, 2])
    assert not engine.busy


def test_the_engine_alone_answers_one_stream_after_the_other():
    timing = run_alone(pace=0.0, streams=2, tokens=3, seconds=0.2)
    assert timing.streams >= 2
    assert timing.events >= 3 * timing.streams
    assert len(timing.firsts) + len(timing.gaps) == timing.events


def test_a_request_asks_for_a_stream_in_the_form_of_its_path():
    head, _, body = request("/v1/completions", "m", 5, "p").partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert b'"prompt": "p"' in body
    assert b'"messages"' in request("/v1/chat/completions", "m", 5, "p")


def test_the_models_are_told_their_pace(tmp_path):
    write_model(tmp_path, "bulk", pace=0.5, tokens=64)
    config = (tmp_path / "bulk" / "config.pbtxt").read_text()
    assert 'key: "pace" value { string_value: "0.5" }' in config
    assert {each.name for each in (tmp_path / "bulk" / "1").iterdir()} >= {"tokenizer.json", "config.json"}


def test_figures_are_medians_of_rounds_in_the_units_of_the_goals():
    def taken(load, scale):
        alone = Timing(firsts=[0.02], gaps=[0.02], took=1.0)
        timing = Timing(firsts=[0.02 + 0.001 * scale], gaps=[0.02 * scale], events=100, streams=10, took=1.0)
        return Round(load, alone, timing, server_cpu=0.001 * scale, text_cpu=0.0005 * scale)

    rounds = [taken(load, scale) for scale in (1, 3, 2) for load in (FIRST, MANY)]
    found = Found("x", rounds, [Weight(2048.0, 4.0)])
    told = {name: round(value, 6) for name, value in medians(found)}
    assert told == {
        "first token over the engine alone, ms": 2.0,
        "p99 between tokens, ÷ the engine alone": 2.0,
        "server CPU an event, µs": 20.0,
        "text worker CPU an event, µs": 10.0,
        "tokens a second": 2.0,
        "server CPU a short answer, µs": 200.0,
        "KiB an open stream": 2.0,
        "bytes a token of an open stream": 4.0,
    }
