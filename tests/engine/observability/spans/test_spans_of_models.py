"""What workers tell of their models' spans: where it goes, what is refused, and how much of it is kept."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.calls.subjects import CallingWorker, Subjects
from actors.serving.instances.batches import InFlight
from actors.values.requests import InferRequest
from actors.values.tracing.spans import MOST_OWN, Execution
from actors.wire.call_fields import Attached
from actors.wire.frames import FrameError
from engine.observability.spans.of_models import MOST_NOTED, answer_spans, note
from engine.observability.spans.planning import planned
from engine.worker.backends.python.tracing import MOST_SPANS, SUBJECT
from tests.support.examples import examples
from tests.support.ports import NoPort
from tests.support.traced import Book

NOW = 10_000


@dataclass
class Worker:
    """A worker with its batches."""

    outstanding: dict[int, InFlight] = field(default_factory=dict)
    open: dict[int, InFlight] = field(default_factory=dict)

    def stop_prefetching(self):
        raise AssertionError("spans hold nothing up")


class World:
    """Batch 7 of a worker, with two traced requests and one between them that is not."""

    def __init__(self, *, executions=1):
        self.book = Book()
        self.requests = [InferRequest(model_name="m", reply=NoPort(), accepted_at=0.0) for _ in range(3)]
        for request in (self.requests[0], self.requests[2]):
            span = self.book.trace().open(request, 0.0)
            for _ in range(executions):
                span.dispatched(Execution(0.0, instance="m_0", pid=1, batch=7, requests=3, rows=3), request)
        held = InFlight(7, self.requests, None, alone=False, began_at=0.0)  # type: ignore[arg-type]
        self.worker = Worker({7: held})
        self.caller = CallingWorker(None, "m_0", self.worker)  # type: ignore[arg-type]

    def tell(self, *spans, batch=7, left_out=0):
        note({"batch": batch, "spans": list(spans), "left_out": left_out}, self.caller, NOW)

    def own(self, place):
        return [(each.name, each.start_ns, each.end_ns) for each in self.requests[place].span.own]


@pytest.fixture
def world():
    return World()


def span(*places, name="work", start=1, end=5, number=3, parent=0, attributes=None, error=""):
    return [list(places), name, start, end, number, parent, {} if attributes is None else attributes, error]


async def test_a_worker_waits_until_it_is_known(world):
    """It is a question, so the answer to the request comes after it."""
    subjects = Subjects()
    answer_spans(subjects, lambda: NOW)
    told = Attached(SUBJECT, {"batch": 7, "spans": [span(0)], "left_out": 0}, {})
    assert await subjects.ask(told, world.caller) == {}
    assert world.own(0) == [("work", 1, 5)]


def test_spans_go_to_the_requests_they_name(world):
    """One that is not traced, or is not there, has none."""
    world.tell(span(0, 1, 2, 9), span(2, name="other"), [[0], "FOUND", 4])
    assert world.own(0) == [("work", 1, 5), ("FOUND", 4, -1)]
    assert world.own(2) == [("work", 1, 5), ("other", 1, 5)]


def test_they_belong_to_the_last_execution():
    world = World(executions=3)
    world.tell(span(0))
    assert [each.execution for each in world.requests[0].span.own] == [2]  # type: ignore[union-attr]


def test_a_batch_whose_requests_are_still_open_takes_them(world):
    """As a decoupled model's are; a batch that is over takes none, and that is no mistake."""
    world.worker.open, world.worker.outstanding = world.worker.outstanding, {}
    world.tell(span(0))
    assert world.own(0) == [("work", 1, 5)]
    world.worker.open = {}
    world.tell(span(0))
    assert len(world.own(0)) == 1
    gone = CallingWorker(None, "m_0")  # type: ignore[arg-type]
    note({"batch": 7, "spans": [span(0)], "left_out": 0}, gone, NOW)


def test_times_are_no_later_than_now_and_none_ends_before_it_begins(world):
    world.tell(span(0, start=2 * NOW, end=3 * NOW), span(0, start=9, end=2), [[0], "LATE", 2**62])
    assert world.own(0) == [("work", NOW, NOW), ("work", 9, 9), ("LATE", NOW, -1)]


def test_what_the_worker_left_out_is_counted(world):
    world.tell(left_out=5)
    assert [world.requests[place].span.trace.unkept for place in (0, 2)] == [5, 5]


def test_one_trace_keeps_so_many(world):
    """And counts the rest, however many messages come."""
    for _ in range(MOST_OWN // MOST_SPANS + 1):
        world.tell(*[span(0)] * MOST_SPANS)
    assert len(world.own(0)) == MOST_OWN
    assert world.requests[0].span.trace.unkept == MOST_SPANS


def test_one_message_makes_so_many_notes(world):
    """However many places it names."""
    world.tell(span(*[0] * (MOST_NOTED * 4)), span(2))
    assert world.requests[0].span.trace.unkept == MOST_NOTED - MOST_OWN
    assert world.own(2) == []


@pytest.mark.parametrize(
    "told",
    [
        "text",
        [],
        [[0], "name"],
        [[0], "name", 1, 2],
        [0, "name", 1],
        [["0"], "name", 1],
        [[True], "name", 1],
        [[-1], "name", 1],
        [[0], 5, 1],
        [[0], "x" * 257, 1],
        [[0], "\ud800", 1],
        [[0], "name", -1],
        [[0], "name", 1.5],
        [[0], "name", 2**63],
        span(0, end=None),
        span(0, number=0),
        span(0, number=2**64),
        span(0, parent=-1),
        span(0, parent="a"),
        span(0, error=None),
        span(0, attributes=[]),
        span(0, attributes={"a": None}),
        span(0, attributes={"a": [1]}),
        span(0, attributes={"a": 2**63}),
        span(0, attributes={"a": "x" * 257}),
        span(0, attributes={"x" * 257: 1}),
        span(0, attributes={f"a{n}": n for n in range(17)}),
    ],
)
def test_what_no_worker_of_ours_tells_ends_the_worker(world, told):
    with pytest.raises(FrameError, match="a worker tells of spans"):
        world.tell(told)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"batch": "7", "spans": []},
        {"batch": 7, "spans": {}},
        {"batch": 7, "spans": [], "left_out": -1},
        {"batch": 7, "spans": [span(0)] * (MOST_SPANS + 1)},
    ],
)
def test_so_does_a_message_that_is_none(world, body):
    with pytest.raises(FrameError, match="a worker tells of spans"):
        note(body, world.caller, NOW)


def test_what_may_be_an_attribute_is_taken(world):
    world.tell(span(0, attributes={"s": "é", "i": -(2**63), "f": float("nan"), "b": False}))
    (made,) = world.requests[0].span.own
    assert list(made.attributes) == ["s", "i", "f", "b"]


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["work", "X_START"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
NEARLY = st.tuples(
    st.lists(st.integers(-1, 4)) | ANYTHING,
    st.sampled_from(["work", "X_START", "X_END"]) | ANYTHING,
    *[st.integers(-1, 2**64) | ANYTHING] * 4,
    st.dictionaries(st.text(), SCALARS) | ANYTHING,
    st.text() | ANYTHING,
)


@settings(max_examples=examples(5000), deadline=None)
@given(st.lists(NEARLY.map(list) | NEARLY.map(lambda each: list(each[:3])) | ANYTHING), ANYTHING)
def test_whatever_a_worker_says_is_taken_or_ends_it(spans, batch):
    """And what is taken becomes spans that can be exported."""
    world = World()
    for number in (7, batch):
        try:
            note({"batch": number, "spans": spans}, world.caller, NOW)
        except FrameError:
            continue
    for request in (world.requests[0], world.requests[2]):
        request.span.end(1.0)  # type: ignore[union-attr]
        request.span.trace.sent(1.0)  # type: ignore[union-attr]
    for trace in world.book.finished:
        for made in planned(trace).spans:
            assert 0 < made.span_id < 2**64
            assert 0 <= made.start_ns <= made.end_ns < 2**63
            made.name.encode()
