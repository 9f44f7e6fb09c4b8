"""Models that call models: real workers on both ends."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from actors.calls.account import CallLimits
from actors.calls.subjects import Subjects
from actors.serving.records import Recorder, record_of
from actors.serving.standing import Status
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, TritiumError
from actors.values.events import Log
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import (
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    InputSpec,
    OutputSpec,
    QueuePolicy,
    Retry,
)
from chaos.record.descriptors import left_open, open_descriptors
from tests.engine.worker.conftest import until
from tests.support.many_models import Models, calling, model, open_models
from tests.support.ports import Port
from tests.support.tiers import mostly_long

pytestmark = [pytest.mark.slow, pytest.mark.system]

PLACED = "Model callee - Error when running inference: "


def streaming(**parameters: str):
    return model("callee", "streaming", decoupled=True, parameters={"mode": "in_threads", **parameters})


@pytest.fixture
def gate(tmp_path):
    """The file that a pausing callee waits for."""
    return tmp_path / "gate"


def pausing(gate: Path, **changes: Any):
    return model("callee", "pausing", parameters={"gate": str(gate)}, **changes)


async def refusal(models: Models, name: str, rows: object, **options: object) -> TritiumError:
    with pytest.raises(TritiumError) as caught:
        await models.infer(name, rows, **options)
    return caught.value


async def refused(models: Models, name: str, value: float) -> str:
    """Refused, because this call would wait for itself."""
    error = await refusal(models, name, value)
    assert error.code is ErrorCode.UNAVAILABLE
    assert "this call would wait for itself for ever" in error.message
    return error.message


@pytest.mark.parametrize(
    "caller",
    [calling(), replace(calling(), isolation="thread", backend="calling_in_thread")],
    ids=["process", "thread"],
)
async def test_a_call_is_answered_by_the_model_it_names(caller):
    async with open_models(caller, model("callee", "doubling")) as models:
        assert (await models.infer("caller", 3.0)).tolist() == [[7.0] * 4]
        assert models.states["callee"].statistics.as_model_stats("callee", 1)["inference_count"] == 1


async def test_a_model_that_is_called_may_call_others():
    first, second = calling("first", callee="second"), calling("second", callee="callee")
    async with open_models(first, second, model("callee", "doubling")) as models:
        assert (await models.infer("first", 3.0)).tolist() == [[8.0] * 4]


@pytest.mark.parametrize(
    ("callee", "columns"),
    [("recording", 0), ("doubling", 1), ("doubling", 16_000), ("doubling", 16_384), ("doubling", 3_000_000)],
)
async def test_tensors_of_any_size_go_both_ways(callee, columns):
    rows = np.arange(columns, dtype=np.float32)[None]
    async with open_models(calling(), model("callee", callee)) as models:
        assert np.array_equal(await models.infer("caller", rows), rows * 2 + 1)


async def test_what_a_call_says_of_itself_reaches_the_callee():
    async with open_models(calling(mode="told"), model("callee", "recording")) as models:
        request = await models.send("caller", 1.0)
        assert isinstance(request.reply, Port)
        answer = await request.reply.wait()
        assert isinstance(answer, InferResponse)
        told = str((answer.parameters or {})["told"])
        fields = ("'nested'", "'sequence'", "('flags', 3)", "('timeout', 5000000)", "('priority', 1)")
        parameters = ("('a', 1)", "('b', True)", "('c', 'text')", "('traceparent', '00-1-2-01')")
        assert [each for each in (*fields, *parameters) if each not in told] == []
        answer.release()


async def test_many_threads_of_one_execution_call_at_once():
    async with open_models(calling(mode="at_once"), model("callee", "doubling", instances=2)) as models:
        count = 40
        output = await models.infer("caller", float(count))
        assert output.tolist() == [[sum(4 * 2 * number for number in range(count)) + 4 * count * 0, count]]


# -- refusals ------------------------------------------------------------------------------------------------


WIDE = (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(7,)),)


@pytest.mark.parametrize(
    ("callee", "mode", "value", "code", "message"),
    [
        pytest.param(
            (),
            "once",
            1.0,
            ErrorCode.NOT_FOUND,
            PLACED + "Request for unknown model: 'callee' is not found",
            id="an unknown model",
        ),
        pytest.param(
            (streaming(),),
            "once",
            1.0,
            ErrorCode.UNSUPPORTED,
            PLACED + "Model callee is using the decoupled. The current BLS request call",
            id="a decoupled model without a stream",
        ),
        pytest.param(
            (model("callee", "doubling", inputs=WIDE),),
            "once",
            1.0,
            ErrorCode.INVALID_ARG,
            "unexpected shape for input 'INPUT' for model 'callee'",
            id="a wrong shape",
        ),
        pytest.param(
            (model("callee", "doubling"),),
            "once",
            669.0,
            ErrorCode.INTERNAL,
            "no such luck",
            id="the callee's error",
        ),
        pytest.param(
            (streaming(mode="with_errors"),),
            "streaming",
            3.0,
            ErrorCode.UNAVAILABLE,
            "not 0",
            id="an error in a stream",
        ),
    ],
)
async def test_an_error_is_the_answer_to_the_call(callee, mode, value, code, message):
    async with open_models(calling(mode=mode), *callee) as models:
        error = await refusal(models, "caller", value)
        assert error.code is code
        assert message in error.message


async def test_a_full_queue_refuses_a_call_as_it_refuses_a_client(gate):
    policy = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=2))
    callee = pausing(gate, scheduling=policy, max_batch_size=1)
    async with open_models(calling(mode="many_under_way"), callee) as models:
        request = await models.send("caller", np.array([[10.0, 0, 0, 0]]))
        await until(lambda: len(models.states["callee"].queue) == 2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        gate.touch()
        answered, refused = (await models.answer(request))[0]
        assert answered + refused == 10
        assert refused >= 6


async def test_calls_wait_for_room_where_a_client_would():
    bounds = replace(model("callee", "doubling").queue_bounds, requests=2)
    async with open_models(
        calling(mode="many_under_way"), model("callee", "doubling", queue_bounds=bounds)
    ) as models:
        assert (await models.infer("caller", np.array([[50.0, 0, 0, 0]]))).tolist() == [[50, 0]]


async def test_a_worker_has_a_bounded_number_of_calls_under_way(gate):
    async with open_models(calling(mode="many_under_way"), pausing(gate)) as models:
        request = await models.send("caller", np.array([[CallLimits().calls + 50.0, 0, 0, 0]]))
        await until(lambda: len(models.states["callee"].in_flight) >= CallLimits().calls)
        await trio.testing.wait_all_tasks_blocked(0.1)
        gate.touch()
        assert (await models.answer(request)).tolist() == [[CallLimits().calls, 50]]


# -- streams -------------------------------------------------------------------------------------------------


async def test_a_stream_has_all_responses_of_a_decoupled_model_and_one_end():
    plain = model("plain", "doubling")
    async with open_models(
        calling(mode="streaming"), streaming(), calling("other", "streaming", callee="plain"), plain
    ) as models:
        count, total, finals = (await models.infer("caller", 300.0))[0]
        assert (count, total, finals) == (301, 4 * sum(range(300)), 1)
        assert (await models.infer("other", 3.0)).tolist() == [[1, 24, 1]]


async def test_a_caller_that_does_not_read_stops_its_callee(tmp_path):
    caller = calling(mode="slowly", parameters={"directory": str(tmp_path)})
    async with open_models(caller, streaming(directory=str(tmp_path))) as models:
        request = await models.send("caller", 1000.0)
        sent = tmp_path / "sent"
        await until(lambda: sent.exists() and len(sent.read_text().splitlines()) > 40)
        before = -1
        while before != len(sent.read_text().splitlines()):
            before = len(sent.read_text().splitlines())
            await trio.sleep(0.2)
        assert before < 150
        (tmp_path / "go").touch()
        assert (await models.answer(request)).tolist() == [[1001, 0, 0]]


async def test_a_cancelled_stream_ends_as_its_callee_ends_it(tmp_path):
    async with open_models(calling(mode="cancelling"), streaming(directory=str(tmp_path))) as models:
        assert set((await models.answer((await models.send("caller", 1e6)))).ravel()) == {1e6}
        await until(lambda: not models.states["callee"].in_flight)
        assert (tmp_path / "cancelled-").exists()


async def test_a_stream_that_nobody_holds_is_cancelled(tmp_path):
    async with open_models(calling(mode="letting_go"), streaming(directory=str(tmp_path))) as models:
        await models.infer("caller", 1e6)
        await until(lambda: (tmp_path / "cancelled-").exists())


# -- what a call inherits ------------------------------------------------------------------------------------


async def test_a_call_has_the_deadline_of_the_request_on_whose_behalf_it_is_made(gate):
    async with open_models(calling(), pausing(gate, max_batch_size=1)) as models:
        blocking = await models.send("callee", 0.0)
        behind = await models.send("callee", 0.0)
        request = await models.send("caller", 1.0, deadline=trio.current_time() + 0.3)
        with pytest.raises(TritiumError) as caught:
            await models.answer(request)
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        gate.touch()
        for each in (blocking, behind):
            await models.answer(each)


async def test_the_calls_of_a_cancelled_request_are_cancelled(gate):
    async with open_models(calling(), pausing(gate, max_batch_size=1)) as models:
        request = await models.send("caller", 1.0)
        await until(lambda: len(models.states["callee"].in_flight) == 1)
        models.states["caller"].cancel(request)
        with pytest.raises(TritiumError) as caught:
            await models.answer(request)
        assert caught.value.code is ErrorCode.CANCELLED
        gate.touch()


async def test_a_request_that_was_accepted_may_call_while_the_server_drains(tmp_path):
    caller = calling(mode="once_told", parameters={"directory": str(tmp_path)})
    async with open_models(caller, model("callee", "doubling")) as models:
        request = await models.send("caller", 3.0)
        await until(lambda: (tmp_path / "waiting").exists())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(models.subtrees.drain, 10.0)
            await until(lambda: models.states["callee"].status is Status.UNLOADING)
            (tmp_path / "go").touch()
            assert (await models.answer(request)).tolist() == [[7.0] * 4]


async def test_a_model_that_was_unloaded_is_not_called():
    async with open_models(calling(), model("callee", "doubling")) as models:
        models.states["callee"].standing.become(Status.UNLOADING)
        assert (await refusal(models, "caller", 3.0)).message.startswith(PLACED)


async def test_a_version_may_be_named():
    async with open_models(calling(mode="by_version"), model("callee", "doubling")) as models:
        assert (await models.infer("caller", 1.0)).tolist() == [[3.0] * 4]
        error = await refusal(models, "caller", 2.0)
        assert error.message == PLACED + "Request for unknown model: 'callee' version 2 is not found"


async def test_a_call_may_outlive_the_request_on_whose_behalf_it_was_made(gate):
    async with open_models(calling(mode="detached"), pausing(gate)) as models:
        await models.infer("caller", 1.0)
        gate.touch()
        await until(lambda: not models.states["callee"].in_flight)
        assert models.states["callee"].statistics.as_model_stats("callee", 1)["inference_count"] == 1


# -- deaths --------------------------------------------------------------------------------------------------


async def test_the_calls_of_a_worker_that_dies_are_cancelled(gate, tmp_path):
    callee = pausing(gate, max_batch_size=1)
    caller = calling(mode="dying", retry=Retry.NEVER, parameters={"directory": str(tmp_path)})
    async with open_models(caller, callee) as models:
        holding = await models.send("callee", 0.0)
        behind = await models.send("callee", 0.0)
        request = await models.send("caller", 1.0)
        await until(lambda: len(models.states["callee"].in_flight) == 3)
        (tmp_path / "go").touch()
        with pytest.raises(TritiumError):
            await models.answer(request)
        await until(lambda: len(models.states["callee"].in_flight) == 2)
        gate.touch()
        for each in (holding, behind):
            await models.answer(each)


async def test_a_call_of_a_worker_that_dies_is_answered_with_an_error():
    async with open_models(calling(), model("callee", "doubling", retry=Retry.NEVER)) as models:
        assert (await refusal(models, "caller", 667.0)).code is ErrorCode.UNAVAILABLE
        assert (await models.infer("caller", 3.0)).tolist() == [[7.0] * 4]


async def test_a_worker_that_was_killed_while_it_waited_is_replaced_and_calls_again(gate):
    async with open_models(calling(), pausing(gate)) as models:
        request = await models.send("caller", 1.0)
        await until(lambda: len(models.states["callee"].in_flight) == 1)
        pid = models.states["caller"].instances[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        gate.touch()
        outcome = await models.outcome(request)
        assert not isinstance(outcome, TritiumError) or outcome.code is ErrorCode.UNAVAILABLE
        assert (await models.infer("caller", 3.0)).tolist() == [[7.0] * 4]


@pytest.mark.parametrize("number", mostly_long(range(12), 0, 3, 6, 9))
async def test_a_worker_that_breaks_the_protocol_of_calls_is_killed_and_nobody_else(number):
    async with open_models(
        calling(mode="packets"), model("callee", "doubling"), subjects=Subjects()
    ) as models:
        request = await models.send("caller", float(number))
        with pytest.raises(TritiumError):
            await models.answer(request)
        assert any(event["reason"] == "protocol_error" for event in models.logged("worker_exited"))
        assert (await models.infer("callee", 3.0)).tolist() == [[6.0] * 4]


# -- questions -----------------------------------------------------------------------------------------------


async def test_a_worker_asks_and_tells_the_server():
    subjects = Subjects()
    told: list[Any] = []
    gone: list[Any] = []

    async def double(body, attachments, caller):
        await trio.lowlevel.checkpoint()
        sizes = [len(attachments[name]) for name in ("file", "empty")]
        return {"values": [body["value"] * 2, *sizes, sum(each for each, _ in told)]}

    subjects.answer("double", double)
    subjects.hear("sum", lambda body, caller: told.append((body["value"], caller.instance)))
    subjects.on_end(lambda caller: gone.append(caller.instance))
    async with open_models(calling(mode="asking"), subjects=subjects) as models:
        assert (await models.infer("caller", 21.0)).tolist() == [[42, 100_000, 0, 3]]
        assert {instance for _, instance in told} == {"caller_0_0"}
        assert gone == []
    assert gone == ["caller_0_0"]


async def test_a_question_that_nobody_answers_is_refused():
    async with open_models(calling(mode="asking_in_vain")) as models:
        error = await refusal(models, "caller", 1.0)
        assert (error.code, error.message) == (
            ErrorCode.NOT_FOUND,
            "this server does not answer questions on 'nothing'",
        )


# -- calls of models and answers in parts, recorded, with real workers


@pytest.fixture
def recorded():
    """What makes a recorder, and the calls that ended."""
    ended: list[InferRequest] = []

    def recorder(log: Log) -> Recorder:
        return Recorder(log, on_internal=lambda request, outcome, peer: ended.append(request), stages=True)

    return recorder, ended


async def test_a_call_is_recorded_with_the_request_on_whose_behalf_it_was_made(recorded):
    recorder, ended = recorded
    async with open_models(calling(), model("callee", "doubling"), recorder=recorder) as models:
        request = models.request("caller", 3.0, id="r1")
        await models.router.resolve("caller").submit(request)
        assert (await models.answer(request)).tolist() == [[7.0] * 4]
    whole = record_of(request)
    [call] = [record_of(each) for each in ended]
    assert whole is not None
    assert call is not None
    assert (call.relation, call.parent, call.parent_id, call.instance) == (
        *("call", whole.serial, "r1"),
        "callee_0_0",
    )
    assert call.pid not in (0, whole.pid)


async def test_the_parts_of_a_decoupled_answer_are_counted(recorded):
    recorder, ended = recorded
    async with open_models(calling(mode="streaming"), streaming(), recorder=recorder) as models:
        assert (await models.infer("caller", 30.0))[0][0] == 31
    [call] = [record_of(each) for each in ended]
    assert call is not None
    assert call.responses == 30
    assert call.first_response is not None


# -- calls that would wait for themselves are refused; those that only look like it are not


def recursive(name="caller", callee="caller", **changes):
    """Calls `callee` with its input less one, until that is 0; OUTPUT is how deep it went."""
    return calling(name, "recursive", callee=callee, **changes)


async def test_callers_that_hold_all_instances_and_wait_for_each_other_are_refused(tmp_path):
    """Neither execution waits for itself alone: each needs the other's instance."""
    gated = recursive(instances=2, parameters={"directory": str(tmp_path), "meet": "2"})
    async with open_models(gated) as models:
        requests = [await models.send("caller", 1.0) for _ in range(2)]
        outcomes = [await models.outcome(request) for request in requests]
        (error,) = [each for each in outcomes if isinstance(each, TritiumError)]
        (output,) = [each for each in outcomes if not isinstance(each, TritiumError)]
        assert "wait for itself" in error.message
        assert output.tolist() == [[1] * 4]


async def test_a_call_that_nothing_waits_for_is_no_deadlock():
    async with open_models(calling(mode="detached_to_itself", callee="caller")) as models:
        await models.infer("caller", 1.0)
        await until(lambda: not models.states["caller"].in_flight)
        assert models.states["caller"].statistics.as_model_stats("caller", 1)["inference_count"] == 2


def ensemble(*steps, name="whole", **changes):
    return model(name, "", platform="ensemble", scheduling=Ensemble(steps=steps), instances=0, **changes)


def step(name, output="OUTPUT"):
    return EnsembleStep(model_name=name, input_map={"INPUT": "INPUT"}, output_map={"OUTPUT": output})


async def test_an_ensemble_that_the_caller_is_a_step_of_is_refused():
    async with open_models(recursive(callee="whole"), ensemble(step("caller"))) as models:
        assert (await models.infer("whole", 0.0)).tolist() == [[0] * 4]
        await refused(models, "caller", 1.0)
        await refused(models, "whole", 1.0)


@pytest.mark.parametrize(
    ("models", "depth", "words"),
    [
        pytest.param(
            [recursive("first", "first")],
            0,
            ("Instance 'first_0_0' waits for", "more instances"),
            id="a model that calls its only instance",
        ),
        pytest.param(
            [recursive("first", "first", instances=3)], 2, (), id="one that has several calls itself as deep"
        ),
        pytest.param(
            [recursive("first", "second"), recursive("second", "first")],
            1,
            ("'first_0_0'", "'second_0_0'"),
            id="two that call each other",
        ),
        pytest.param(
            # The caller waits for the ensemble, whose step waits for the caller; nested ensembles do likewise.
            [
                recursive("first", "outer"),
                recursive("second", "first"),
                ensemble(step("second")),
                ensemble(step("whole"), name="outer"),
            ],
            1,
            ("a step that model 'second' runs",),
            id="a circle through ensembles that run",
        ),
    ],
)
async def test_calls_go_as_deep_as_there_are_instances_and_are_refused_where_a_circle_closes(
    models, depth, words
):
    async with open_models(*models) as running:
        assert (await running.infer("first", float(depth))).tolist() == [[depth] * 4]
        message = await refused(running, "first", depth + 1.0)
        assert [each for each in words if each not in message] == []
        assert (await running.infer("first", float(depth))).tolist() == [[depth] * 4]


async def test_so_it_is_where_the_step_is_still_in_a_queue(tmp_path):
    """The step's only instance serves another client, and calls the very model that waits for the step."""
    first = recursive("first", "whole")
    second = calling("second", "recursive_told", callee="first", parameters={"directory": str(tmp_path)})
    async with open_models(first, second, ensemble(step("second"))) as models:
        (tmp_path / "go").touch()
        await models.infer("second", 1.0)  # a worker that has waited for a call has nothing prefetched
        for each in ("go", "waiting"):
            (tmp_path / each).unlink()
        holding = await models.send("second", 1.0)
        await until((tmp_path / "waiting").exists)
        waiting = await models.send("first", 1.0)
        await until(lambda: len(models.states["second"].queue) == 1)
        (tmp_path / "go").touch()
        outcomes: list[Any] = [await models.outcome(request) for request in (holding, waiting)]
        assert isinstance(outcomes[0], TritiumError)
        assert "wait for itself" in outcomes[0].message
        assert outcomes[1].tolist() == [[1] * 4]


async def test_steps_that_the_wanted_outputs_do_not_need_are_not_waited_for():
    outputs = [OutputSpec(name=name, datatype=DataType.FP32, dims=(-1,)) for name in ("OUTPUT", "OTHER")]
    whole = ensemble(step("callee"), step("caller", "OTHER"), outputs=tuple(outputs))
    caller = calling(mode="wanting", callee="whole")
    async with open_models(caller, model("callee", "doubling"), whole) as models:
        assert (await models.infer("caller", 1.0)).tolist() == [[3] * 4]


async def test_nothing_waits_in_a_worker_behind_what_waits_for_a_call():
    """Otherwise a call could go to the very instance that makes it, while another one is free."""
    async with open_models(recursive(instances=2)) as models:
        outputs = [await models.infer("caller", 1.0) for _ in range(20)]
        assert np.array_equal(outputs, np.ones((20, 1, 4)))


# -- workers on both ends of calls are killed during calls: every call is answered, and nothing stays behind


ROUNDS = 6
LARGE = 100_000  # elements: inputs and outputs go in segments


@pytest.mark.long
async def test_callers_and_callees_may_die_at_any_time():
    chance = random.Random(11)
    outcomes = []
    async with open_models(
        calling(instances=2), model("callee", "doubling", instances=2), within=120.0
    ) as models:
        states = models.states

        async def client(number):
            rows = np.full((1, LARGE if number % 2 else 4), float(number), np.float32)
            for _ in range(10 * ROUNDS):
                outcome = await models.outcome(await models.send("caller", rows))
                outcomes.append(outcome)
                if isinstance(outcome, TritiumError):
                    assert outcome.code is ErrorCode.UNAVAILABLE, outcome.message
                    await trio.sleep(0.02)
                else:
                    assert np.array_equal(outcome, rows * 2 + 1)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(client, number)
            for _ in range(ROUNDS):
                state = states[chance.choice(("caller", "callee"))]
                each = chance.choice(state.instances)
                await until(lambda each=each: each.worker is not None)
                await trio.sleep(chance.random() * 0.05)
                if each.pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGKILL)
        await until(lambda: not any(state.in_flight for state in states.values()))
        answered = sum(not isinstance(outcome, TritiumError) for outcome in outcomes)
        assert answered > len(outcomes) // 4
        for state in states.values():
            await until(lambda state=state: all(each.worker is not None for each in state.instances))
            workers: list[Any] = [each.worker for each in state.instances]
            assert not any(worker.asks.book.blocking for worker in workers)
        before = open_descriptors()
        for _ in range(20):
            await models.infer("caller", np.ones((1, LARGE), np.float32))
        assert len(left_open(before)) <= 2
