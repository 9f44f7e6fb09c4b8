"""Clients of the language model: they read streams however the bytes come, and hear of no death."""

import json
import math
import random
from contextlib import suppress
from functools import partial

import pytest
import trio

from chaos.clients.clients import open_clients
from chaos.clients.tales import TaleClients
from chaos.faults.base import NoTarget
from chaos.faults.workers import languages
from chaos.languages.page import Asked
from chaos.languages.serving import write_model
from chaos.record.history import History
from chaos.record.outcome import WENT_AWAY, now
from chaos.record.records import Fail, Invoke, Ok, Unknown, read_records
from chaos.subject.server import served
from chaos.wires.http import Broken
from chaos.wires.telling import Answer
from chaos.workload.answers import TALE, expected
from tests.chaos.faults_bench import bare_stage
from tests.survival.server import until

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = {"choices": [{"index": 0, "delta": {"content": "Brücke 🕯"}, "finish_reason": None}]}


def event(document):
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def fed(answer, data, size):
    found = []
    for at in range(0, len(data), size):
        assert not answer.over
        found += answer.feed(data[at : at + size])
    return found


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_are_read_however_their_bytes_come(size):
    end = chunk(b"data: [DONE]\n\n") + chunk(b"")
    answer = Answer()
    data = HEAD + chunk(event(TEXT) + b": keep-alive\n\n") + chunk(event(TEXT)) + end
    assert fed(answer, data, size) == [TEXT, TEXT]
    assert (answer.status, answer.over, answer.done) == (200, True, True)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_error_is_one_document(size):
    body = json.dumps({"error": {"code": "unavailable"}}).encode()
    answer = Answer()
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert fed(answer, head + body, size) == [{"error": {"code": "unavailable"}}]
    assert (answer.status, answer.over) == (503, True)


def test_what_comes_behind_the_end_and_an_end_that_is_not_told_are_noticed():
    done = b"data: [DONE]\n\n"
    with pytest.raises(Broken, match="behind the end"):
        list(Answer().feed(HEAD + chunk(done + event(TEXT))))
    with pytest.raises(Broken, match="without saying so"):
        list(Answer().feed(HEAD + chunk(event(TEXT)) + chunk(b"")))


def test_the_right_answer_is_the_text_in_code_points():
    invoke = Invoke(
        t=0.0, n=1, id="r1", model=TALE, protocol="http", phase="calm", value=3, parts=20, due=None
    )
    assert "".join(map(chr, expected(invoke))) == Asked(20, 3).text()


async def test_a_fault_without_an_engine_or_a_text_worker_finds_no_target():
    class Empty:
        async def tree(self):
            return {"path": "", "children": [{"path": "models", "children": []}]}

    stage = bare_stage(server=Empty())
    for fault in languages.FAULTS:
        with pytest.raises(NoTarget):
            await fault.inject(stage, random.Random(1))


@pytest.mark.system
@pytest.mark.slow
async def test_streams_go_on_through_all_that_is_killed(tmp_path):
    def told(kind):
        return [*read_records(tmp_path / "history.jsonl", kind)]

    async def struck(fault, stage):
        while True:
            with suppress(NoTarget):
                return await fault.inject(stage, random.Random(1))
            await trio.sleep(0.05)

    write_model(tmp_path / "models", TALE, pace=0.005, instances=2)
    sabotage = tmp_path / "socket"
    flags = ("--openai-port=0",)
    async with served(tmp_path / "models", tmp_path / "server", *flags, sabotage=sabotage) as server:
        stage = bare_stage(tmp_path, server=server)
        with History(tmp_path / "history.jsonl") as history:
            async with open_clients(history, server.http_port, server.grpc_port) as clients:
                tellers = TaleClients(clients, server.openai_port, patience=30.0)
                async with trio.open_nursery() as nursery:
                    for number in range(6):
                        nursery.start_soon(partial(tellers.ask_on, number, begin=now(), until=math.inf))
                    for fault in languages.FAULTS:
                        await until(lambda: len(told(Ok)) > 6)
                        injection = await struck(fault, stage)
                        assert injection.models == (TALE,)
                    await until(lambda: any(each.attempts > 1 for each in told(Ok)))
                    nursery.cancel_scope.cancel()
    asked = {each.n: each for each in told(Invoke)}
    assert all(list(each.values) == list(expected(asked[each.n])) for each in told(Ok))
    assert told(Fail) == []
    assert all(each.reason.startswith(WENT_AWAY) for each in told(Unknown))
