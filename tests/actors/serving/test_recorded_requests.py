"""Records of requests and the lines of their stages, on a clock that jumps; without an order, no records."""

from functools import partial
from typing import Any

import pytest
import trio

from actors.serving.records import NAMED_AT_MOST, Recorder, RecordObserver, RecordStage, named, record_of
from actors.serving.routing.router import Router
from actors.supervision.supervisor import Supervisor
from actors.values.events import Event
from actors.values.requests import FLAG_SEQUENCE_START, ReplyPort
from actors.values.specs import DirectStrategy, DynamicBatching, SequenceBatching
from engine.server.version_tree import ModelSubtrees
from engine.settings.reporting import MetricsSettings
from tests.support.doubles import Double
from tests.support.model_doubles import Stage, make_request, make_spec

BATCHING = DynamicBatching(preferred_batch_sizes=(4,), max_queue_delay=0.5)


class StepPort(ReplyPort):
    """The reply port of what an ensemble asks of a model."""

    relation = "step"

    def __init__(self, parent):
        self.parent = parent

    def put(self, part, *, final):
        pass


class Book:
    """A recorder, its log lines, and the internal requests that were reported to it."""

    def __init__(self, *, stages=True):
        self.lines: list[Any] = []
        self.ended: list[Any] = []
        self.recorder = Recorder(
            lambda event, *, level="info", **keys: self.lines.append((event, level, keys)),
            on_internal=lambda request, outcome, peer: self.ended.append((request, outcome, peer)),
            stages=stages,
        )

    def said(self, event):
        return [keys for name, level, keys in self.lines if name == event and level == "debug"]


@pytest.fixture
async def stage(nursery):
    def make(book, **changes):
        return Stage(
            nursery,
            stages=[partial(RecordStage, recorder=book.recorder)],
            observers=[partial(RecordObserver, recorder=book.recorder)],
            **changes,
        )

    return make


async def test_a_record_tells_the_batch_and_the_worker_that_a_request_was_executed_by(stage, autojump_clock):
    model = stage(Book(), scheduling=BATCHING)
    model.state.instances[0].pid = 77
    first, second = await model.send(), await model.send(rows=3)
    await trio.sleep(1)
    records: list[Any] = [record_of(request) for request in (first, second)]
    assert [each.serial for each in records] == [1, 2]
    assert {(each.instance, each.pid, each.batch_requests, each.batch_rows) for each in records} == {
        ("model_0_0", 77, 2, 4)
    }


async def test_each_stage_is_a_line_that_names_its_requests(stage, autojump_clock):
    book = Book()
    model = stage(book, scheduling=BATCHING)
    await model.send(id="r1")
    await trio.sleep(0.1)
    await model.send()
    await trio.sleep(1)
    model.worker.finish()
    first, second = book.said(Event.REQUEST_ACCEPTED)
    assert (first["request_id"], first["serial"], first["queued"]) == ("r1", 1, 0)
    assert (second["request_id"], second["serial"], second["queued"]) == ("", 2, 1)
    [dispatched] = book.said(Event.BATCH_DISPATCHED)
    assert (dispatched["requests"], dispatched["rows"], dispatched["model"]) == (["r1", "#2"], 2, "model")
    [completed] = book.said(Event.BATCH_COMPLETED)
    assert (completed["batch"], completed["requests"]) == (dispatched["batch"], ["r1", "#2"])


async def test_a_batch_that_begins_with_padding_is_told_of_as_well(stage, autojump_clock):
    book = Book()
    model = stage(book, scheduling=SequenceBatching(strategy=DirectStrategy(), max_idle=10.0))
    for sequence in (1, 2):
        await model.send(correlation_id=sequence, flags=FLAG_SEQUENCE_START)
    await model.settled()
    model.worker.finish()
    await model.sent(correlation_id=2, id="r3")
    model.worker.finish()
    assert [each.padding for each in model.worker.sent[-1][1]] == [True, False]
    assert book.said(Event.BATCH_COMPLETED)[-1]["requests"] == ["r3"]


async def test_without_stages_only_the_record_is_kept(stage, autojump_clock):
    book = Book(stages=False)
    model = stage(book)
    request = await model.sent()
    model.worker.finish()
    assert book.lines == []
    record: Any = record_of(request)
    assert record.instance == "model_0_0"


async def test_a_request_that_runs_again_knows_when_it_first_ran(stage, autojump_clock):
    model = stage(Book())
    request = await model.sent()
    model.worker.outstanding.clear()
    await trio.sleep(3)
    model.state.dispatcher.dispatch(model.worker.instance, [request])
    record: Any = record_of(request)
    assert record.last_dispatch - record.first_dispatch == 3


async def test_what_could_not_be_handed_over_was_executed_by_nobody(stage, autojump_clock):
    model = stage(Book())
    model.worker.fail_next = OSError("no memory")
    request = await model.sent()
    assert request.reply.error is not None
    record: Any = record_of(request)
    assert record.first_dispatch is None


async def test_a_request_that_the_server_made_is_told_of_at_its_end_with_the_one_it_is_of(
    stage, autojump_clock
):
    book = Book()
    model = stage(book)
    parent = await model.send(id="whole")
    step = make_request()
    step.reply = StepPort(parent)
    await model.settled()
    model.worker.finish()
    await model.state.submit(step)
    await model.settled()
    model.worker.finish()
    [(told, outcome, peer)] = book.ended
    assert told is step
    assert (outcome.model_name, peer) == ("model", "")
    record: Any = record_of(step)
    assert (record.relation, record.parent, record.parent_id) == ("step", 1, "whole")
    assert book.said(Event.REQUEST_ACCEPTED)[1]["parent"] == 1


async def test_the_servers_own_probes_have_no_record(stage, autojump_clock):
    model = stage(Book())
    probe = model.request()
    probe.synthetic = True
    await model.state.submit(probe)
    await model.settled()
    assert record_of(probe) is None


async def test_where_requests_are_not_logged_no_model_knows_of_records(nursery, autojump_clock):
    subtrees = ModelSubtrees(
        Supervisor(),
        Router(),
        Double(),
        log=lambda event, **keys: None,
        metrics=MetricsSettings(),
        stop_within=1.0,
    )
    assert not subtrees.make_state(make_spec()).stages
    model = Stage(nursery)
    request = await model.sent()
    model.worker.finish()
    assert record_of(request) is None


async def test_a_line_names_so_many_requests_and_no_more():
    requests = [make_request(id=f"r{number}") for number in range(NAMED_AT_MOST + 1)]
    assert named(requests) == [f"r{number}" for number in range(NAMED_AT_MOST)]
    assert named([make_request()]) == ["<id_unknown>"]
