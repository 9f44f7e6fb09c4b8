import pytest
import trio
import trio.testing

from actors.values.errors import Internal, Unavailable
from actors.values.requests import InferResponse
from protocols.http.reply import HttpReply


class Leased:
    def __init__(self):
        self.released = 0

    def response(self):
        response = InferResponse(model_name="m", model_version=1)
        response.on_release(self._release)
        return response

    def _release(self):
        self.released += 1


async def test_an_answer_that_came_before_anyone_waits_is_not_lost():
    port, response = HttpReply(), Leased().response()
    port.put(response, final=True)
    assert await port.wait() is response


async def test_the_waiting_task_wakes_with_the_answer(nursery):
    port, response = HttpReply(), Leased().response()
    got = []

    async def wait():
        got.append(await port.wait())

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    port.put(response, final=True)
    await trio.testing.wait_all_tasks_blocked()
    assert got == [response]


async def test_an_error_is_an_answer():
    port, error = HttpReply(), Unavailable("full")
    port.put(error, final=True)
    assert await port.wait() is error


async def test_two_responses_are_an_error_and_both_are_released():
    port, first, second = HttpReply(), Leased(), Leased()
    port.put(first.response(), final=False)
    port.put(second.response(), final=True)
    outcome = await port.wait()
    assert isinstance(outcome, Internal)
    assert outcome.message == "expected a single response, got 2"
    assert (first.released, second.released) == (1, 1)


async def test_closing_wakes_the_task_with_nothing_and_releases_what_comes_late(nursery):
    port, late = HttpReply(), Leased()
    got = []

    async def wait():
        got.append(await port.wait())

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    port.close()
    port.put(late.response(), final=True)
    await trio.testing.wait_all_tasks_blocked()
    assert got == [None]
    assert late.released == 1


async def test_closing_releases_what_came_and_was_not_fetched():
    port, early = HttpReply(), Leased()
    port.put(early.response(), final=True)
    port.close()
    assert early.released == 1
    assert await port.wait() is None


async def test_a_cancelled_wait_leaves_a_port_that_can_be_put_to():
    port, late = HttpReply(), Leased()
    with trio.move_on_after(0) as scope:
        await port.wait()
    assert scope.cancelled_caught
    port.close()
    port.put(late.response(), final=True)
    assert late.released == 1


@pytest.mark.parametrize("parts", [1, 3])
async def test_parts_after_the_final_one_are_released(parts):
    port, surplus = HttpReply(), [Leased() for _ in range(parts)]
    port.put(Unavailable("x"), final=True)
    for leased in surplus:
        port.put(leased.response(), final=True)
    assert [leased.released for leased in surplus] == [1] * parts
