"""What a worker's death costs: nothing but a moment, and never more than was in flight on it."""

import math
import os
import signal
from random import Random

import numpy as np
import pytest
import trio

from actors.serving.standing import Status
from actors.values.errors import ErrorCode, TritiumError
from actors.values.specs import Direct, DynamicBatching, InstanceSpec, Retry
from tests.engine.worker.conftest import until
from tests.fuzz.campaign import corpus_of
from tests.fuzz.worker_frames import WorkerFrames
from tests.support.greedy_backends import TALK
from tests.support.worker_backends import POISON

pytestmark = [pytest.mark.slow, pytest.mark.system]


@pytest.fixture
def gate(tmp_path):
    """The file that a pausing model waits for."""
    return tmp_path / "gate"


async def test_a_killed_idle_worker_is_back_and_nobody_notices(serve):
    async with serve("doubling") as model:
        first = model.pid()
        os.kill(first, signal.SIGKILL)
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]
        assert model.pid() != first
        assert model.state.statistics.deaths == {"signal_9": 1}
        assert model.state.statistics.restarts == 1


async def test_a_batch_interrupted_by_a_kill_from_outside_runs_again_whole(serve, gate):
    async with serve("pausing", parameters={"gate": str(gate)}) as model:
        requests = [await model.send(float(n)) for n in range(6)]
        await until(lambda: bool(model.begun()))
        os.kill(model.pid(), signal.SIGKILL)
        gate.touch()
        for n, request in enumerate(requests):
            assert (await model.answer(request)).outputs[0].as_numpy()[0, 0] == 2 * n
        assert (await model.answer(requests[0])).parameters == {"attempts": 2}
        assert all(len(request.reply.parts) == 1 for request in requests)


async def test_a_poison_request_is_found_and_its_batchmates_all_get_answers(serve, gate):
    async with serve("pausing", parameters={"gate": str(gate)}) as model:
        blocker = await model.send(0.0)
        batch = model.send_together(1.0, 2.0, 3.0, POISON, 5.0, 6.0, 7.0, 8.0)
        await until(lambda: bool(model.begun()))
        gate.touch()
        await model.answer(blocker)
        answers = [await model.answer(request) for request in batch]
        poisoned = answers.pop(3)
        assert isinstance(poisoned, TritiumError)
        assert poisoned.code is ErrorCode.POISONED
        assert "SIGSEGV" in poisoned.message
        assert [answer.outputs[0].as_numpy()[0, 0] for answer in answers] == [2, 4, 6, 10, 12, 14, 16]
        statistics = model.state.statistics
        assert sum(statistics.deaths.values()) <= 5  # log2(8) to be alone, and one more chance
        assert statistics.quarantined == 1
        assert model.state.status is Status.READY
        again = await model.outcome(POISON)
        assert again.code is ErrorCode.POISONED
        assert "quarantined" in again.message
        assert (await model.infer(9.0)).tolist() == [[18.0] * 4]


async def test_inputs_that_kill_an_impure_model_twice_are_refused_from_then_on(serve):
    async with serve("impure", retry=Retry.NEVER) as model:
        answers = [await model.outcome(POISON) for _ in range(4)]
        assert [answer.code for answer in answers] == [ErrorCode.UNAVAILABLE, *[ErrorCode.POISONED] * 3]
        assert model.state.statistics.deaths == {"signal_11": 2}
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]


async def test_an_impure_model_s_good_requests_are_not_held_against_them(serve):
    async with serve("impure", retry=Retry.NEVER) as model:
        # The requests are not at fault: the test kills each worker, under the same inputs.
        for _ in range(3):
            request = model.request([671.0])  # it goes on until its client leaves
            await model.state.submit(request)
            await until(lambda request=request: model.begun_with(request))
            os.kill(model.pid(), signal.SIGSEGV)
            assert (await model.answer(request)).code is ErrorCode.UNAVAILABLE
            again = await model.send(671.0)
            await until(lambda again=again: model.begun_with(again))
            model.state.cancel(again)
            assert (await model.answer(again)).message == "saw it"
        assert model.state.statistics.quarantined == 0


async def test_what_an_impure_model_had_not_begun_is_run_after_the_restart(serve, gate):
    pausing = {"parameters": {"gate": str(gate)}, "scheduling": Direct()}
    async with serve("pausing", retry=Retry.NEVER, **pausing) as model:
        first, second, third = model.send_together(1.0, 2.0, 3.0)
        await until(lambda: bool(model.begun()))
        assert second.attempts == 1  # it waits in the worker
        os.kill(model.pid(), signal.SIGKILL)
        assert (await model.answer(first)).code is ErrorCode.UNAVAILABLE
        gate.touch()
        outputs = [(await model.answer(request)).outputs[0].as_numpy()[0, 0] for request in (second, third)]
        assert outputs == [4, 6]


async def test_a_hang_on_a_thread_is_abandoned_counted_and_replaced(serve):
    async with serve("in_thread", isolation="thread", execution_timeout=0.3) as model:
        request = await model.send(671.0)  # waits until it is cancelled
        assert (await model.answer(request)).code is ErrorCode.DEADLINE_EXCEEDED
        assert model.state.statistics.abandoned_threads == 1
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]


async def test_under_kills_no_request_is_lost_wrong_or_answered_twice(serve):
    async with serve(
        "doubling", instances=tuple(InstanceSpec(name=f"model_0_{n}") for n in range(2))
    ) as model:
        answered = []

        async def client(number):
            for n in range(150):
                value = float(number * 1000 + n) % 600
                assert (await model.infer(value)).tolist() == [[2 * value] * 4]
                answered.append(value)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(client, number)
            for kill in range(6):
                goal = (kill + 1) * 100
                await until(lambda goal=goal: len(answered) >= goal)
                os.kill(model.pid(kill % 2), signal.SIGKILL)
                pid = model.pid(kill % 2)
                await until(
                    lambda pid=pid, kill=kill: model.info(kill % 2).get("pid") not in (None, pid), within=30
                )
        assert len(answered) == 8 * 150
        assert model.state.statistics.reply_violations == 0
        assert sum(model.state.statistics.deaths.values()) == 6


@pytest.mark.parametrize(
    ("backend", "options", "cue", "code", "words", "deaths"),
    [
        *(
            pytest.param(
                "hostile",
                {},
                cue,
                ErrorCode.POISONED,
                "",
                {"protocol_error": 2},
                id=what,
                marks=() if what in ("garbage", "an output beyond the segment") else pytest.mark.long,
            )
            for cue, what in (
                (3.0, "an output beyond the segment"),
                (4.0, "a result that was not asked for"),
                (5.0, "garbage"),
                (6.0, "an unknown frame"),
                (7.0, "a descriptor"),
                (8.0, "closing the connection and living on"),
                (9.0, "asking for too much room"),
            )
        ),
        pytest.param("doubling", {}, 667.0, ErrorCode.POISONED, "", {"exit_3": 2}, id="it exits"),
        pytest.param(
            "doubling",
            {"execution_timeout": 0.3},
            668.0,
            ErrorCode.DEADLINE_EXCEEDED,
            "tritium.execution_timeout",
            {"hang": 1},
            id="it hangs",
        ),
        pytest.param(
            "impure",
            {"retry": Retry.NEVER},
            POISON,
            ErrorCode.UNAVAILABLE,
            "tritium.retry",
            {"signal_11": 1},
            id="an impure model is not run twice",
        ),
    ],
)
async def test_a_worker_that_goes_wrong_is_killed_and_the_server_is_unmoved(
    serve, backend, options, cue, code, words, deaths
):
    async with serve(backend, **options) as model:
        answer = await model.answer(await model.send(cue))
        assert isinstance(answer, TritiumError)
        assert answer.code is code
        assert words in answer.message
        assert model.state.statistics.deaths == deaths
        assert (await model.infer(0.5)).tolist() == [[1.0] * 4]


async def test_a_worker_cannot_truncate_its_arena(serve):
    async with serve("hostile") as model:
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]
        assert (await model.infer(1.0, 2.5)).shape == (2, 4)


async def test_a_worker_that_scribbles_harms_its_own_answer_only(serve):
    async with serve("hostile") as model:
        assert (await model.infer(2.0)).shape == (1, 4)
        for n in range(20):
            value = 100.0 + n
            assert (await model.infer(value)).tolist() == [[2 * value] * 4]


async def test_a_rewritten_control_page_misleads_nobody(serve):
    async with serve("hostile") as model:
        await model.infer(10.0)
        os.kill(model.pid(), signal.SIGKILL)
        assert (await model.infer(0.5)).tolist() == [[1.0] * 4]


async def test_a_retry_reads_the_requests_own_inputs_not_the_dead_workers_arena(serve, gate):
    async with serve("pausing", parameters={"gate": str(gate)}) as model:
        big = np.arange(300_000, dtype=np.float32).reshape(1, -1)
        request = model.request(big)
        await model.state.submit(request)
        await until(lambda: bool(model.begun()))
        os.kill(model.pid(), signal.SIGKILL)
        gate.touch()
        answer = await model.answer(request)
        assert (answer.outputs[0].as_numpy() == 2 * big).all()
        answer.release()


# -- damaged frames from a real worker, over its own connection: at worst they cost that worker
#
# `tests/fuzz` has more of them.


TALKS = 16
TOGETHER = 20  # series of packets in one talk, about thirty packets: the worker is seldom heard to the end


@pytest.fixture
def talks(tmp_path):
    """Files with what the fuzz target for workers would play."""
    chance, target = Random(6), WorkerFrames()
    corpus = corpus_of(target)
    for number in range(TALKS):
        series = [target.generate(chance, corpus)[1:] for _ in range(TOGETHER)]
        (tmp_path / f"talk-{number}").write_bytes(b"".join(series))
    return tmp_path


@pytest.mark.long
async def test_whatever_a_worker_says_each_request_has_one_answer_and_the_next_worker_serves(serve, talks):
    async with serve("greedy", parameters={"talks": str(talks)}, retry=Retry.NEVER) as model:
        for number in range(TALKS):
            request = await model.send(TALK + number)
            answer = await model.answer(request)
            if isinstance(answer, TritiumError):
                assert answer.code in ErrorCode
            else:
                answer.release()
            assert (await model.infer(100.0)).tolist() == [[100.0] * 4]
            assert len(request.reply.parts) == 1
        # A talk may begin with the frame that says that the load has failed.
        assert set(model.state.statistics.deaths) - {"start_failed"} == {"protocol_error"}
        assert model.state.statistics.reply_violations == 0


LONG, HANG = -1.0, -2.0


# -- requests that were only sent ahead to a real worker: another instance may take them
#
# After a request's client has left, no instance executes it.


TWO = tuple(InstanceSpec(name=f"model_{n}") for n in range(2))


@pytest.fixture
def selective(serve, tmp_path, gate):
    """A model whose negative requests wait for the test's gate, and the values that it has executed."""
    journal = tmp_path / "journal"
    journal.touch()

    def executed():
        return [float(line) for line in journal.read_text().split()]

    def opened(**changes):
        changes.setdefault("scheduling", Direct())
        return serve("selective", parameters={"gate": str(gate), "journal": str(journal)}, **changes)

    return opened, executed


async def test_what_was_sent_ahead_to_an_instance_that_hangs_is_answered_by_the_other(selective):
    serve, executed = selective
    async with serve(instances=TWO) as model:
        # All in one turn of the loop: while both instances are busy, each is sent one more.
        hang, *others = model.send_together(HANG, 1.0, 2.0, 3.0, 4.0)
        with trio.fail_after(20):
            await model.answered(*others)
        assert not hang.answered
        await until(lambda: HANG in executed())
        assert sorted(executed()) == [HANG, 1.0, 2.0, 3.0, 4.0]  # each once
        assert [request.attempts for request in others] == [1] * 4
        model.state.give_up("the test is over")


async def test_what_was_sent_ahead_and_has_not_begun_is_never_executed_once_its_client_has_left(
    selective, gate
):
    serve, executed = selective
    async with serve() as model:
        long, left, stays = model.send_together(LONG, 1.0, 2.0)
        await until(lambda: len(model.begun()) == 1)
        assert left.attempts == 1  # it lies in the worker
        model.state.cancel(left)
        assert (await model.answer(left)).code is ErrorCode.CANCELLED
        assert not long.answered
        gate.touch()
        await model.answered(long, stays)
        await model.infer(3.0)
        assert executed() == [LONG, 2.0, 3.0]


async def test_a_batch_mate_of_a_request_whose_client_has_left_is_executed(selective, gate):
    serve, executed = selective
    async with serve(scheduling=DynamicBatching()) as model:
        long = model.request([LONG])
        model.state.submit_nowait(long)  # alone in its model, so it goes at once
        left, stays = model.send_together(1.0, 2.0)
        await until(lambda: len(model.begun()) == 1)
        model.state.cancel(left)
        assert (await model.answer(left)).code is ErrorCode.CANCELLED
        gate.touch()
        await model.answered(long, stays)
        assert executed() == [LONG, 2.0]


async def test_a_worker_that_dies_with_batches_taken_back_loses_nothing(selective):
    serve, executed = selective
    async with serve(execution_timeout=0.5, instances=TWO) as model:
        hang, *others = model.send_together(HANG, 1.0, 2.0, 3.0)
        assert (await model.answer(hang)).code is ErrorCode.DEADLINE_EXCEEDED
        await model.answered(*others)
        await until(lambda: all(each.worker is not None for each in model.state.instances))
        for value in (4.0, 5.0, 6.0, 7.0):
            await model.infer(value)
        assert sorted(executed()) == [HANG, *(float(n) for n in range(1, 8))]


async def three_clients(model, until_true):
    """Have three clients ask again and again until then; return what they sent."""
    values: list[float] = []

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
    serve, executed = selective
    async with serve(execution_timeout=1.0, instances=TWO) as model:
        stopped, instance = model.pid(), model.state.instances[0]
        os.kill(stopped, signal.SIGSTOP)
        values = await three_clients(model, lambda: instance.pid != stopped and instance.worker is not None)
        assert model.state.statistics.deaths == {"hang": 1}
        assert sorted(executed()) == values  # each once


async def test_where_executions_have_no_limit_a_stopped_worker_counts_as_stuck_though_others_take_its_work(
    selective,
):
    serve, _ = selective
    async with serve(instances=TWO) as model:
        worker, pid = model.state.instances[0].worker, model.pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            await three_clients(model, lambda: worker.idle and not worker.has_room)
            assert worker.stuck_since < trio.current_time()
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: worker.has_room and worker.stuck_since == math.inf)
