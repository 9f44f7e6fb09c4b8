"""When a worker that is given nothing more has answered all it has: then, and not before, it may be ended."""

import pytest
import trio
import trio.testing

from tests.actors.serving.test_decoupled_live_worker import end, result, say


@pytest.fixture
def told(nursery):
    """What was told, and a way to be told when a connection's worker is idle."""
    heard = []

    async def wait(held):
        await held.wait_idle()
        heard.append("idle")

    class Told:
        async def __call__(self):
            await trio.testing.wait_all_tasks_blocked()
            return heard

        async def when_idle(self, connection):
            nursery.start_soon(wait, connection.worker.held)
            await trio.testing.wait_all_tasks_blocked()

    return Told()


async def test_a_worker_without_a_batch_is_idle_at_once(connect, told):
    await told.when_idle(connect())
    assert await told() == ["idle"]


async def test_a_worker_is_idle_when_it_has_answered_what_it_executes_and_what_waits_behind_it(connect, told):
    connection = connect()
    batches = [connection.dispatch(connection.request()) for _ in range(2)]
    await told.when_idle(connection)
    connection.worker.on_packet(connection.result(batches[0]))
    assert await told() == []
    connection.worker.on_packet(connection.result(batches[1]))
    assert await told() == ["idle"]
    connection.worker.on_packet(connection.result(connection.dispatch(connection.request())))
    assert await told() == ["idle"]  # told once


async def test_a_decoupled_models_worker_is_idle_when_the_last_request_has_ended(connect, told):
    connection = connect(decoupled=True)
    batch = connection.dispatch(connection.request(), connection.request())
    await told.when_idle(connection)
    connection.worker.on_packet(result(batch))
    say(connection, end(batch, 0))
    assert await told() == []
    say(connection, end(batch, 1))
    assert await told() == ["idle"]


async def test_requests_that_end_before_their_execution_leave_it_busy(connect, told):
    connection = connect(decoupled=True)
    batch = connection.dispatch(connection.request())
    await told.when_idle(connection)
    say(connection, end(batch))
    assert await told() == []
    connection.worker.on_packet(result(batch))
    assert await told() == ["idle"]


async def test_a_worker_that_dies_keeps_nobody_waiting(connect, told):
    connection = connect()
    connection.dispatch(connection.request())
    await told.when_idle(connection)
    connection.worker.disown()
    assert await told() == ["idle"]


async def test_requests_are_counted_as_they_are_given(connect):
    connection = connect()
    connection.dispatch(connection.request(), connection.request())
    connection.dispatch(connection.request())
    assert connection.worker.given == 3
