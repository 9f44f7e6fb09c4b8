"""Packets over a real socket pair: in order, and without blocking, whatever the other end does."""

import os
import socket
import struct
from typing import Any

import pytest
import trio

from actors.serving.instances.pipe import Pipe
from actors.wire.frames import MAX_FRAME, FrameError
from chaos.record.descriptors import left_open, open_descriptors


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
async def pipe(pair):
    made = Pipe(pair[0])
    yield made
    made.close()


def everything(sock):
    """All packets that are there now."""
    packets = []
    try:
        while packet := sock.recv(MAX_FRAME):
            packets.append(packet)
    except BlockingIOError:
        return packets
    return packets


def clog(pipe, descriptors=()):
    """Send until packets wait, each with copies of the descriptors."""
    while not pipe.backlog:
        pipe.send_nowait(bytes(50_000), descriptors)


def number(packet):
    return struct.unpack_from("<I", packet)[0]


async def test_packets_keep_their_order_through_a_full_socket(pipe, pair, nursery):
    nursery.start_soon(pipe.flush)
    for n in range(200):
        pipe.send_nowait(struct.pack("<I", n) + bytes(10_000))
    assert pipe.backlog
    seen: list[Any] = []
    while len(seen) < 200:
        seen += map(number, everything(pair[1]))
        await trio.testing.wait_all_tasks_blocked()
    assert seen == list(range(200))
    assert not pipe.backlog


async def test_a_packet_sent_later_does_not_overtake_those_that_wait(pipe, pair, nursery):
    clog(pipe)
    # There is room again, and no flush has happened yet.
    everything(pair[1])
    pipe.send_nowait(b"last")
    nursery.start_soon(pipe.flush)
    await trio.testing.wait_all_tasks_blocked()
    assert everything(pair[1])[-1] == b"last"


async def test_descriptors_survive_the_wait_and_none_are_left_open(pipe, pair, nursery):
    before = open_descriptors()
    clog(pipe)
    read_end, write_end = os.pipe()
    pipe.send_nowait(b"take this", (write_end,))
    os.close(write_end)
    nursery.start_soon(pipe.flush)
    got = None
    while got is None:
        packet, received, _, _ = socket.recv_fds(pair[1], MAX_FRAME, 4)
        if packet == b"take this":
            (got,) = received
        await trio.testing.wait_all_tasks_blocked()
    os.write(got, b"hello")
    assert os.read(read_end, 10) == b"hello"
    os.close(got)
    os.close(read_end)
    assert not left_open(before)


async def test_closing_drops_what_waits_and_its_descriptors(pair):
    before = open_descriptors()
    pipe = Pipe(pair[0])
    clog(pipe, (0,))
    pipe.close()
    pipe.close()
    pipe.send_nowait(b"into the void")
    assert pair[0].fileno() == -1
    assert not left_open(before)


async def test_results_behind_a_reset_are_still_read(pipe, pair):
    ours, theirs = pair
    theirs.send(b"one")
    theirs.send(b"two")
    ours.send(b"never read")
    theirs.close()
    assert [pipe.receive_nowait() for _ in range(4)] == [b"one", b"two", b"", b""]


async def test_nothing_there_is_none_and_the_end_is_empty(pipe, pair):
    assert pipe.receive_nowait() is None
    pair[1].send(b"x")
    await pipe.wait_readable()
    assert pipe.receive_nowait() == b"x"
    pair[1].close()
    assert pipe.receive_nowait() == b""


async def test_an_oversized_packet_is_refused(pipe, pair):
    pair[1].send(bytes(MAX_FRAME))
    pair[1].send(bytes(MAX_FRAME + 1))
    assert len(pipe.receive_nowait()) == MAX_FRAME
    with pytest.raises(FrameError, match="oversized"):
        pipe.receive_nowait()


async def test_a_descriptor_is_refused_and_not_kept(pipe, pair):
    before = open_descriptors()
    socket.send_fds(pair[1], [b"a gift"], [0])
    with pytest.raises(FrameError, match="descriptor"):
        pipe.receive_nowait()
    assert not left_open(before)


async def test_sending_to_the_dead_is_left_to_the_receiving_side(pipe, pair, nursery):
    clog(pipe)
    nursery.start_soon(pipe.flush)
    await trio.testing.wait_all_tasks_blocked()
    pair[1].close()
    await trio.testing.wait_all_tasks_blocked()
    assert not pipe.backlog
    pipe.send_nowait(b"more")
    assert pipe.receive_nowait() == b""


async def test_a_packet_that_the_system_refuses_breaks_the_connection_off(pipe, pair):
    pair[1].send(b"a result")
    # EMSGSIZE: the packet can never be sent, and the worker would wait for it.
    pipe.send_nowait(bytes(8 * 1024 * 1024))
    assert pipe.receive_nowait() == b"a result"
    assert pipe.receive_nowait() == b""
    assert pair[1].recv(10) == b""
