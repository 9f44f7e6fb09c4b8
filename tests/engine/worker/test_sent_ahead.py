"""Requests that were only sent ahead to a real worker: another instance may take them.

After a request's client has left, no instance executes it.
"""

import math
import os
import signal

import pytest
import trio

from actors.values.errors import ErrorCode, TritiumError
from actors.values.specs import Direct, DynamicBatching, InstanceSpec
from tests.engine.worker.conftest import until

LONG, HANG = -1.0, -2.0
TWO = tuple(InstanceSpec(name=f"model_{n}") for n in range(2))

pytestmark = [pytest.mark.slow, pytest.mark.system]


@pytest.fixture
def selective(serve, tmp_path):
    """A model whose negative requests wait for the test's gate, and the values that it has executed."""
    gate, journal = tmp_path / "gate", tmp_path / "journal"
    journal.touch()

    def executed():
        return [float(line) for line in journal.read_text().split()]

    def opened(**changes):
        changes.setdefault("scheduling", Direct())
        return serve("selective", parameters={"gate": str(gate), "journal": str(journal)}, **changes)

    return opened, gate, executed


@pytest.mark.parametrize("scheduling", [Direct(), DynamicBatching()], ids=["direct", "batching"])
async def test_ten_short_requests_are_answered_beside_a_long_one(selective, scheduling):
    serve, gate, _ = selective
    async with serve(instances=TWO, scheduling=scheduling) as model:
        long = await model.send(LONG)
        await until(lambda: any(model.begun(n) for n in range(2)))
        short = [await model.send(float(n)) for n in range(10)]
        with trio.fail_after(20):
            for request in short:
                assert not isinstance(await model.answer(request), TritiumError)
        assert not long.answered
        gate.touch()
        assert not isinstance(await model.answer(long), TritiumError)


async def test_what_was_sent_ahead_to_an_instance_that_hangs_is_answered_by_the_other(selective):
    serve, _, executed = selective
    async with serve(instances=TWO) as model:
        # All in one turn of the loop: while both instances are busy, each is sent one more.
        hang, *others = [model.request([value]) for value in (HANG, 1.0, 2.0, 3.0, 4.0)]
        for request in (hang, *others):
            model.state.intake.submit_nowait(request, in_company=True)
        with trio.fail_after(20):
            for request in others:
                answer = await model.answer(request)
                assert not isinstance(answer, TritiumError)
        assert not hang.answered
        await until(lambda: HANG in executed())
        assert sorted(executed()) == [HANG, 1.0, 2.0, 3.0, 4.0]  # each once
        assert [request.attempts for request in others] == [1] * 4
        model.state.give_up("the test is over")


async def test_what_follows_a_hang_of_the_only_instance_is_answered_after_its_limit(selective):
    serve, _, executed = selective
    async with serve(execution_timeout=0.5) as model:
        hang, *others = [model.request([value]) for value in (HANG, 1.0, 2.0)]
        for request in (hang, *others):
            model.state.intake.submit_nowait(request, in_company=True)
        error = await model.answer(hang)
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        for request in others:
            assert not isinstance(await model.answer(request), TritiumError)
        assert executed() == [HANG, 1.0, 2.0]


async def test_what_was_sent_ahead_and_has_not_begun_is_never_executed_once_its_client_has_left(selective):
    serve, gate, executed = selective
    async with serve() as model:
        long, left, stays = [model.request([value]) for value in (LONG, 1.0, 2.0)]
        for request in (long, left, stays):
            model.state.intake.submit_nowait(request, in_company=True)
        await until(lambda: len(model.begun()) == 1)
        assert left.attempts == 1  # it lies in the worker
        model.state.cancel(left)
        answer = await model.answer(left)
        assert answer.code is ErrorCode.CANCELLED
        assert not long.answered
        gate.touch()
        for request in (long, stays):
            assert not isinstance(await model.answer(request), TritiumError)
        await model.infer(3.0)
        assert executed() == [LONG, 2.0, 3.0]


async def test_a_batch_mate_of_a_request_whose_client_has_left_is_executed(selective):
    serve, gate, executed = selective
    async with serve(scheduling=DynamicBatching()) as model:
        long = model.request([LONG])
        model.state.submit_nowait(long)  # alone in its model, so it goes at once
        left, stays = [model.request([value]) for value in (1.0, 2.0)]
        for request in (left, stays):
            model.state.intake.submit_nowait(request, in_company=True)
        await until(lambda: len(model.begun()) == 1)
        model.state.cancel(left)
        assert (await model.answer(left)).code is ErrorCode.CANCELLED
        gate.touch()
        for request in (long, stays):
            assert not isinstance(await model.answer(request), TritiumError)
        assert executed() == [LONG, 2.0]


async def test_a_worker_that_dies_with_batches_taken_back_loses_nothing(selective):
    serve, _, executed = selective
    async with serve(execution_timeout=0.5, instances=TWO) as model:
        hang, *others = [model.request([value]) for value in (HANG, 1.0, 2.0, 3.0)]
        for request in (hang, *others):
            model.state.intake.submit_nowait(request, in_company=True)
        assert (await model.answer(hang)).code is ErrorCode.DEADLINE_EXCEEDED
        for request in others:
            assert not isinstance(await model.answer(request), TritiumError)
        await until(lambda: all(each.worker is not None for each in model.state.instances))
        for value in (4.0, 5.0, 6.0, 7.0):
            await model.infer(value)
        assert sorted(executed()) == [HANG, *(float(n) for n in range(1, 8))]


async def three_clients(model, until_true):
    """Have three clients ask again and again until then; return what they sent."""
    values = []

    async def client():
        while not until_true():
            values.append(1000.0 + len(values))  # past what kills the model
            await model.infer(values[-1])

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client)
    return values


async def test_an_idle_worker_that_is_stopped_is_replaced_though_others_take_what_it_is_sent(selective):
    serve, _, executed = selective
    async with serve(execution_timeout=1.0, instances=TWO) as model:
        stopped, instance = model.pid(), model.state.instances[0]
        os.kill(stopped, signal.SIGSTOP)
        values = await three_clients(model, lambda: instance.pid != stopped and instance.worker is not None)
        assert model.state.statistics.deaths == {"hang": 1}
        assert sorted(executed()) == values  # each once


async def test_where_executions_have_no_limit_a_stopped_worker_counts_as_stuck_though_others_take_its_work(
    selective,
):
    serve, _, _ = selective
    async with serve(instances=TWO) as model:
        worker, pid = model.state.instances[0].worker, model.pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            await three_clients(model, lambda: worker.idle and not worker.has_room)
            assert worker.stuck_since < trio.current_time()
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: worker.has_room and worker.stuck_since == math.inf)
