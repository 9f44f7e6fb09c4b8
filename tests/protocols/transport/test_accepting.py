"""Connections that come while the loop is busy: those that stand before the door are let in together."""

import socket
from typing import Any

import pytest
import trio
import trio.testing

from protocols.transport.accepting import Door


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as sock:
        sock.setblocking(False)
        yield sock


def come(listening, count):
    """Return `count` clients whose connections the kernel has made."""
    return [socket.create_connection(listening.getsockname()) for _ in range(count)]


async def let_in(door, listening, turns):
    """Run the door for `turns` turns of the loop; return how many connections were let in."""
    admitted: list[Any] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.stand_at, listening, admitted.append, lambda failure: None)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    for each in admitted:
        each.close()
    return len(admitted)


async def test_many_who_have_come_are_let_in_within_a_few_turns_of_the_loop(listening):
    clients = come(listening, 40)
    assert await let_in(Door(1000), listening, 8) == 40
    for each in clients:
        each.close()


async def test_no_more_are_let_in_than_there_is_room_for(listening):
    clients = come(listening, 40)
    assert await let_in(Door(20), listening, 8) == 20
    for each in clients:
        each.close()


async def test_one_turn_of_the_loop_is_not_given_to_newcomers_alone(listening):
    clients = come(listening, 40)
    assert await let_in(Door(1000), listening, 2) < 40
    for each in clients:
        each.close()
