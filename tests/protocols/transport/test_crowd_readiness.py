"""Waits of a crowd of connections, over real socket pairs."""

import socket
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import trio

from protocols.transport.readiness import DIRECT, DirectWaits, Readiness


class Waiting:
    """A readiness whose direct places are taken, and connections that wait with it."""

    def __init__(self, stack, nursery):
        self.readiness = Readiness()
        self.woken = []  # those whose wait has ended, in order
        self._stack = stack
        self._nursery = nursery
        for _ in range(DIRECT):
            self.pair()

    def pair(self):
        """Return our waits, our socket and the client's."""
        ours, theirs = (self._stack.enter_context(each) for each in socket.socketpair())
        ours.setblocking(False)
        return self.readiness.waits(ours), ours, theirs

    def crowd(self, count, name=None):
        """Have so many connections wait for bytes; return the clients' sockets."""
        clients = []
        for number in range(count):
            waits, _, theirs = self.pair()
            self._nursery.start_soon(self._wait, waits, name or number)
            clients.append(theirs)
        return clients

    async def _wait(self, waits, name):
        await waits.readable()
        self.woken.append(name)


@asynccontextmanager
async def waiting():
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            waiting = Waiting(stack, nursery)
            nursery.start_soon(waiting.readiness.run)
            yield waiting
            nursery.cancel_scope.cancel()
        waiting.readiness.close()


async def turn():
    """Let every task that may run do so once."""
    await trio.lowlevel.checkpoint()


async def most_at_once(waiting, count):
    """Return how many were woken in one turn at most, until `count` were."""
    most = before = 0
    while before < count:
        await turn()
        most, before = max(most, len(waiting.woken) - before), len(waiting.woken)
    return most


async def test_the_first_connections_wait_with_trio_and_give_their_places_back(autojump_clock):
    readiness = Readiness()
    with ExitStack() as stack:
        socks = [stack.enter_context(each) for _ in range(DIRECT) for each in socket.socketpair()]
        held = [readiness.waits(sock) for sock in socks[:DIRECT]]
        assert all(isinstance(each, DirectWaits) for each in held)
        other = readiness.waits(socks[DIRECT])
        assert not isinstance(other, DirectWaits)
        held[0].end()
        held[0].end()  # told twice, it gives one place back
        assert isinstance(readiness.waits(socks[DIRECT + 1]), DirectWaits)
        assert not isinstance(readiness.waits(socks[DIRECT + 2]), DirectWaits)
        other.end()
    readiness.close()


@pytest.mark.parametrize("leaves", [False, True], ids=["speaks", "dies"])
async def test_a_crowd_that_becomes_ready_at_once_is_woken_in_portions_and_in_order(autojump_clock, leaves):
    async with waiting() as waits:
        clients = waits.crowd(500)
        await trio.testing.wait_all_tasks_blocked()
        for client in clients:
            client.shutdown(socket.SHUT_RDWR) if leaves else client.send(b"x")
        assert await most_at_once(waits, 500) <= 64
        assert len(waits.woken) == 500
        # Tasks of one turn run in any order, but no connection is a whole portion too late.
        assert all(abs(place - number) < 64 for place, number in enumerate(waits.woken))


async def test_a_client_in_use_goes_before_a_crowd_that_was_quiet_and_before_one_that_dies(autojump_clock):
    async with waiting() as waits:
        quiet, dying = waits.crowd(300, "quiet"), waits.crowd(300, "dying")
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(10)
        (active,) = waits.crowd(1, "active")
        await trio.testing.wait_all_tasks_blocked()
        for client in quiet:
            client.send(b"x")
        for client in dying:
            client.close()
        active.send(b"x")
        await most_at_once(waits, 601)
        assert waits.woken.index("active") < 200


async def test_a_connection_that_was_used_counts_as_in_use_for_a_while(autojump_clock):
    async with waiting() as waits:
        used, ours, theirs = waits.pair()
        crowd = waits.crowd(300)
        await trio.sleep(10)
        used.use(trio.current_time())
        for client in (*crowd, theirs):
            client.send(b"x")
        await used.readable()
        assert len(waits.woken) < 200
        assert ours.recv(1) == b"x"


async def test_bytes_that_were_left_over_end_the_next_wait(autojump_clock):
    async with waiting() as waits:
        each, ours, theirs = waits.pair()
        theirs.send(b"xy")
        await each.readable()
        assert ours.recv(1) == b"x"
        await each.readable()
        assert ours.recv(1) == b"y"


def filled(ours):
    """Fill what the kernel takes."""
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(65_536))


async def test_a_reader_and_a_writer_wait_for_one_socket_and_each_is_woken_for_its_own(autojump_clock):
    woken = []
    async with waiting() as waits, trio.open_nursery() as nursery:
        each, ours, theirs = waits.pair()
        filled(ours)

        async def wait(wait, name):
            await wait()
            woken.append(name)

        nursery.start_soon(wait, each.readable, "reader")
        nursery.start_soon(wait, each.writable, "writer")
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        theirs.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert woken == ["reader"]
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            while theirs.recv(1 << 20):
                pass
        await trio.testing.wait_all_tasks_blocked()
        assert woken == ["reader", "writer"]


async def test_a_writer_does_not_wake_for_a_client_that_only_stopped_sending(autojump_clock):
    async with waiting() as waits:
        each, ours, theirs = waits.pair()
        filled(ours)
        theirs.shutdown(socket.SHUT_WR)
        with trio.move_on_after(1) as scope:
            await each.writable()
        assert scope.cancelled_caught


async def test_a_task_that_is_roused_or_cancelled_waits_no_longer(autojump_clock):
    async with waiting() as waits:
        each, _, theirs = waits.pair()
        with trio.move_on_after(1) as scope:
            await each.readable()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait():
                with pytest.raises(trio.ClosedResourceError):
                    await each.readable()

            await trio.testing.wait_all_tasks_blocked()
            each.rouse()
        theirs.send(b"x")
        await each.readable()


async def test_a_connection_that_ends_while_it_stands_in_line_is_passed_over(autojump_clock):
    async with waiting() as waits:
        clients = waits.crowd(200)
        each, ours, theirs = waits.pair()
        with trio.move_on_after(1):
            await each.readable()
        for client in (*clients, theirs):
            client.send(b"x")
        await turn()
        each.end()
        ours.close()
        await most_at_once(waits, 200)
        each.end()  # again, for nothing


async def test_who_waits_again_while_it_stands_in_line_has_one_place_in_it(autojump_clock):
    async with waiting() as waits, trio.open_nursery() as nursery:

        async def wait_again_and_again(each):
            while True:
                with trio.move_on_after(0):
                    await each.writable()

        for _ in range(100):
            nursery.start_soon(wait_again_and_again, waits.pair()[0])
        for _ in range(30):
            await turn()
        (client,) = waits.crowd(1)
        client.send(b"x")
        turns = 0
        while not waits.woken:
            await turn()
            turns += 1
        assert turns < 10
        nursery.cancel_scope.cancel()


async def test_a_watch_that_is_called_again_after_a_crash_goes_on(autojump_clock):
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            waits = Waiting(stack, nursery)
            (client,) = waits.crowd(1)
            with trio.move_on_after(1):
                await waits.readiness.run()
            client.send(b"x")
            nursery.start_soon(waits.readiness.run)
            await most_at_once(waits, 1)
            nursery.cancel_scope.cancel()
        waits.readiness.close()


async def test_a_wait_that_fails_costs_the_others_of_its_turn_nothing(autojump_clock):
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            waits = Waiting(stack, nursery)
            clients = waits.crowd(200)
            broken, ours, theirs = waits.pair()
            filled(ours)
            nursery.start_soon(broken.readable)
            nursery.start_soon(broken.writable)
            later = waits.crowd(20)
            await trio.testing.wait_all_tasks_blocked()
            for client in (*clients, theirs, *later):
                client.send(b"x")

            @nursery.start_soon
            async def run():
                with pytest.raises(OSError, match="Bad file descriptor"):
                    await waits.readiness.run()
                await waits.readiness.run()

            while not waits.woken:
                await turn()
            ours.close()  # while it stands in line
            await most_at_once(waits, 220)
            nursery.cancel_scope.cancel()
        waits.readiness.close()
