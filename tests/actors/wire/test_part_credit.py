"""Credit for the parts of an answer: parts in flight are bounded, and none waits for withheld credit."""

import gc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.values.datatypes import DataType
from actors.values.errors import Internal
from actors.values.requests import InferRequest
from actors.wire.batch_frames import Answer, Part, Placed
from actors.wire.frames import WINDOW_BYTES, WINDOW_PARTS, FrameError
from actors.wire.parts import LARGEST_PART, Arrived, PartStream
from engine.worker.parts import OpenRequests
from tests.support.examples import examples
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort


def part_of(nbytes, *, final=False):
    return Part(
        1, 0, Answer([Placed("Y", DataType.UINT8, (nbytes,), 0, nbytes)]), bytes(nbytes), nbytes, final=final
    )


REQUEST = InferRequest(model_name="m", inputs=[], requested_outputs=(), reply=NoPort(), accepted_at=0.0)
END = Part(1, 0, None, b"", 0, final=True)


class Credit(RuleBasedStateMachine):
    """A worker that sends whenever it has credit, and a frontend that releases parts in any order."""

    def __init__(self):
        super().__init__()
        self.stream = PartStream(1, 0, REQUEST, self.granted)
        self.parts_credit, self.credit = WINDOW_PARTS, WINDOW_BYTES  # as the worker counts
        self.held = []
        self.waited = []

    def granted(self, stream, parts, nbytes, waited):
        self.parts_credit += parts
        self.credit += nbytes
        self.waited.append(waited)

    @property
    def may_send(self):
        return self.parts_credit > 0 and self.credit > 0

    @precondition(lambda self: self.may_send)
    @rule(nbytes=st.sampled_from([0, 1, 1000, WINDOW_BYTES // 3, WINDOW_BYTES, 3 * WINDOW_BYTES]))
    def send(self, nbytes):
        self.parts_credit -= 1
        self.credit -= nbytes
        part = self.stream.receive(part_of(nbytes))
        assert part is not None
        self.held.append(Arrived(self.stream, part, []))

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 1000))
    def release(self, at):
        self.held.pop(at % len(self.held)).taken()

    @precondition(lambda self: not self.may_send)
    @rule()
    def send_without_credit(self):
        with pytest.raises(FrameError, match="without credit"):
            self.stream.receive(part_of(1))

    @invariant()
    def what_is_on_its_way_is_bounded(self):
        assert len(self.held) <= WINDOW_PARTS
        assert sum(part.nbytes for part in self.held[:-1]) < WINDOW_BYTES + 3 * WINDOW_BYTES

    @invariant()
    def who_waits_has_something_on_its_way(self):
        assert self.may_send or self.held
        assert self.stream.exhausted is not self.may_send


TestCredit = Credit.TestCase
TestCredit.settings = settings(max_examples=examples(30), stateful_step_count=80, deadline=None)


def test_the_end_costs_no_credit():
    stream = PartStream(1, 0, REQUEST, lambda *_: None)
    for _ in range(WINDOW_PARTS):
        stream.receive(part_of(0))
    assert stream.exhausted
    assert stream.receive(END) is END
    assert stream.done
    with pytest.raises(FrameError, match="after the last one"):
        stream.receive(END)


def test_a_final_response_with_tensors_costs_credit():
    stream = PartStream(1, 0, REQUEST, lambda *_: None)
    stream.receive(part_of(WINDOW_BYTES))
    with pytest.raises(FrameError, match="without credit"):
        stream.receive(part_of(1, final=True))


def test_a_part_larger_than_any_frontend_can_send_is_refused_by_its_first_frame():
    part = Part(1, 0, Answer(), b"", LARGEST_PART + 1, final=False)
    with pytest.raises(FrameError, match=f"a part of {LARGEST_PART + 1} bytes"):
        PartStream(1, 0, REQUEST, lambda *_: None).receive(part)


def test_frames_of_one_part_may_not_be_interrupted_or_go_on_for_ever():
    stream = PartStream(1, 0, REQUEST, lambda *_: None)
    whole = part_of(200_000)
    first, second, third, fourth = whole.packets()
    assert stream.receive(Part.decode(first)) is None
    with pytest.raises(FrameError, match="within another"):
        stream.receive(part_of(1))
    for packet in (second, third):
        assert stream.receive_more(packet[16:]) is None
    with pytest.raises(FrameError, match="too many"):
        stream.receive_more(fourth[16:] + b"x")
    last = stream.receive_more(fourth[16:])
    assert last is not None
    assert bytes(last.data) == bytes(200_000)
    with pytest.raises(FrameError, match="too many"):
        stream.receive_more(b"x")


def test_an_error_is_taken_when_nobody_holds_it():
    granted = []
    stream = PartStream(1, 0, REQUEST, lambda _, parts, nbytes, waited: granted.append((parts, nbytes)))
    errors = [Internal("no") for _ in range(WINDOW_PARTS // 2)]
    for error in errors:
        stream.receive(Part(1, 0, Answer(code=error.code, message="no"), b"", 0, final=False))
        stream.take_when_dropped(error)
    del error
    assert granted == []
    errors.clear()
    gc.collect()
    assert granted == [(WINDOW_PARTS // 2, 0)]


def test_late_credit_and_late_cancels_are_nobodys():
    from actors.wire import frames

    open_requests = OpenRequests(lambda packet: None, make_spec().name)
    open_requests.on_credit(frames.encode_credit(7, 0, 1, 1))
    open_requests.on_cancel(frames.encode_cancel(7, 0))
