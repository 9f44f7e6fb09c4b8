"""Short parts that one thread of a worker sends leave together, and nothing waits for what is held back."""

import threading
from typing import Any

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.wire import frames
from actors.wire.batch_frames import MOST_TOGETHER, Part, split_parts
from actors.wire.frames import WINDOW_PARTS
from engine.worker.parts import OpenRequests, WorkerSender

SHORT = [("token_ids", DataType.INT32, np.array([7], np.int32))]
LONG = [("token_ids", DataType.INT32, np.zeros(1000, np.int32))]


class Sent:
    """What has left, frame by frame: the requests that each frame has parts of."""

    def __init__(self):
        self.packets: list[Any] = []
        self.requests = OpenRequests(self.packets.append, "m")

    def sender(self, index):
        return WorkerSender(self.requests, self.requests.open(1, index), 1, index, ["token_ids"])

    @property
    def frames(self):
        return [
            [Part.decode(each).index for each in split_parts(packet)]
            if packet[0] == frames.PARTS
            else Part.decode(packet).index
            for packet in self.packets
        ]


@pytest.fixture
def sent():
    return Sent()


def test_parts_of_several_requests_leave_in_one_frame(sent):
    senders = [sent.sender(index) for index in range(3)]
    with senders[1].together():
        for sender in senders:
            sender.send(SHORT)
        senders[0].send(SHORT, final=True)
        assert sent.frames == []
    assert sent.frames == [[0, 1, 2, 0]]
    senders[1].finish()
    assert sent.frames == [[0, 1, 2, 0], 1]
    senders[2].finish()


def test_one_part_alone_leaves_as_it_is(sent):
    sender = sent.sender(4)
    with sender.together():
        sender.finish()
    assert sent.frames == [4]


def test_a_frame_has_no_more_parts_than_the_server_takes(sent):
    senders = [sent.sender(index) for index in range(MOST_TOGETHER + 2)]
    with senders[0].together():
        for sender in senders:
            sender.finish()
    assert sent.frames == [list(range(MOST_TOGETHER)), [MOST_TOGETHER, MOST_TOGETHER + 1]]


def test_a_long_part_leaves_by_itself_behind_those_before_it(sent):
    one, two = sent.sender(0), sent.sender(1)
    with one.together():
        one.send(SHORT)
        two.send(SHORT)
        one.send(LONG, final=True)
        two.send(SHORT, final=True)
    assert sent.frames == [[0, 1], 0, 1]


def test_what_another_thread_sends_leaves_at_once(sent):
    one, two = sent.sender(0), sent.sender(1)
    with one.together():
        one.finish()
        other = threading.Thread(target=two.finish)
        other.start()
        other.join()
        assert sent.frames == [1]
    assert sent.frames == [1, 0]


def test_a_sender_that_waits_for_its_client_holds_nothing_back(sent):
    one, two = sent.sender(0), sent.sender(1)
    for _ in range(WINDOW_PARTS - 1):
        one.send(SHORT)
    del sent.packets[:]

    def credit_once_all_has_left(packet):
        sent.packets.append(packet)
        sent.requests.on_credit(frames.encode_credit(1, 0, WINDOW_PARTS, 4 * WINDOW_PARTS))

    sent.requests.send = credit_once_all_has_left
    with one.together():
        two.finish()
        one.send(SHORT)  # the window is full now
        one.send(SHORT, final=True)  # and this would wait for ever
    assert sent.frames == [[1, 0], 0]


def test_within_another_it_changes_nothing(sent):
    one, two = sent.sender(0), sent.sender(1)
    with one.together():
        with two.together():
            two.finish()
        assert sent.frames == []
        one.finish()
    assert sent.frames == [[1, 0]]
