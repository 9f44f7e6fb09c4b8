"""Ensembles over models whose workers finish on cue: what is submitted, waits, is told and is held."""

import math
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from actors.ensembles import ensemble
from actors.ensembles.answer import UNREAD_PARTS
from actors.ensembles.ensemble import GATE_PATIENCE, Ensembler
from actors.serving.deaths import settle
from actors.serving.model import ModelState
from actors.serving.policy.retries import Aftermath
from actors.serving.standing import Status
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.values.datatypes import DataType
from actors.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import (
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    InputSpec,
    InstanceSpec,
    OutputSpec,
    QueueBounds,
    QueuePolicy,
)
from actors.values.tensors import Tensor
from tests.support.model_doubles import Context, Stage, make_spec
from tests.support.ports import Port
from tests.support.tasks import outcome_of


def tensors(kind, *names):
    return tuple(kind(name=name, datatype=DataType.FP32, dims=(2,)) for name in names)


def chain(*models, max_inflight=0):
    """Steps of models with INPUT and OUTPUT, one after the other, from X to Y."""
    names = ["X", *(f"t{number}" for number in range(1, len(models))), "Y"]
    return Ensemble(
        steps=tuple(
            EnsembleStep(model_name=model, input_map={"INPUT": one}, output_map={"OUTPUT": other})
            for model, one, other in zip(models, names, names[1:], strict=False)
        ),
        max_inflight_requests=max_inflight,
    )


class Model(Stage):
    """A model with INPUT and OUTPUT; `finish` answers its oldest batch with the inputs plus 1."""

    def __init__(self, nursery, name, **options):
        options.setdefault("instances", (InstanceSpec(name=f"{name}_0"),))
        super().__init__(nursery, name=name, **options)

    @property
    def waiting(self):
        """Requests that have not been answered."""
        return list(self.state.in_flight)

    @property
    def running(self):
        return [request for batch in self.worker.outstanding.values() for request in batch.requests]

    def finish(self, *, outputs=None, error=None, leases=None, parameters=None):
        """Answer the oldest batch."""
        worker = self.worker
        batch = worker.outstanding.pop(next(iter(worker.outstanding)))
        for request in batch.requests:
            if error is not None:
                self.state.outcome.fail(request, error, FailureReason.BACKEND)
                continue
            self.part(request, outputs=outputs, leases=leases, parameters=parameters)
        self.state.doorbell.ring()
        return batch

    async def ends(self, **answer):
        """Answer the oldest batch, and let everything happen that follows at once."""
        self.finish(**answer)
        await self.settled()

    async def finish_all(self):
        """Answer every batch, and those that follow."""
        while self.running:
            await self.ends()

    @property
    def stream(self):
        """The one request that runs."""
        (request,) = self.running
        return request

    async def goes_on(self, **options):
        """Give one more part of its answer, and let everything happen that follows at once."""
        self.part(self.stream, final=False, **options)
        await self.settled()

    def end(self):
        self.part(self.stream, outputs=[])

    def part(self, request, *, outputs=None, final=True, leases=None, parameters=None):
        """Give one part of an answer."""
        if outputs is None:
            outputs = [Tensor("OUTPUT", t.datatype, t.shape, plus_one(t)) for t in request.inputs]
        response = InferResponse(
            model_name=self.state.spec.name,
            model_version=1,
            outputs=outputs,
            parameters=parameters,
            timing=(5, 10, 100, 1000),
        )
        if leases is not None:
            leases.append("taken")
            response.on_release(lambda: leases.append("released"))
        self.state.outcome.respond(request, response, final=final)


def plus_one(tensor):
    return (tensor.as_numpy() + 1).astype("<f4").tobytes()


class World:
    """Models by name, and ensembles over them."""

    def __init__(self, nursery):
        self.nursery = nursery
        self.models = {}
        self.actors = []
        self.crashes = []

    def model(self, name, **options):
        stage = Model(self.nursery, name, **options)
        self.models[name] = stage.state
        return stage

    def resolve(self, step):
        model = self.models.get(step.model_name)
        if model is None or (isinstance(model, ModelState) and model.status is not Status.READY):
            raise NotFound(f"Request for unknown model: '{step.model_name}' is not found")
        return model

    async def ensemble(self, scheduling, name="whole", **options):
        options = {
            "platform": "ensemble",
            "backend": "",
            "instances": (),
            "inputs": tensors(InputSpec, "X"),
            "outputs": tensors(OutputSpec, "Y"),
            **options,
        }
        state = ModelState(
            make_spec(name=name, scheduling=scheduling, **options),
            statistics=ModelStatistics(),
            on_status=lambda state: None,
            wall_clock=lambda: 77,
        )
        state.composite = Ensembler(state, self.resolve)
        state.standing.become(Status.READY)
        self.models[name] = state
        self.actors.append(None)
        self.start_actor(state)
        await self.settled()
        return state

    def start_actor(self, state):
        """A life of the scheduler actor; a crash is kept, and the test starts the next one."""
        scope = self.actors[-1] = trio.CancelScope()

        async def live():
            with scope:
                try:
                    await ensemble.run(Context(), state, state.composite)
                except* ValueError as group:
                    self.crashes += group.exceptions

        self.nursery.start_soon(live)

    async def settled(self):
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def world(nursery):
    return World(nursery)


@pytest.fixture
async def a(world):
    return world.model("a")


@pytest.fixture
async def b(world):
    return world.model("b")


@pytest.fixture
async def whole(world, a, b):
    """An ensemble of both."""
    return await world.ensemble(chain("a", "b"))


def ask(value=0.0, *, rows=1, outputs=(), **options):
    return InferRequest(
        model_name="whole",
        inputs=[Tensor.from_numpy("X", np.full((rows, 2), value, np.float32))],
        requested_outputs=outputs,
        reply=Port(),
        accepted_at=trio.current_time(),
        **options,
    )


def put(whole, *arguments, **options):
    """Submit a request to an ensemble."""
    request = ask(*arguments, **options)
    whole.submit_nowait(request)
    return request


def answer_of(request):
    """The first element of Y, of a request that was answered once."""
    (part,) = request.reply.parts
    (output,) = part.outputs
    return float(output.as_numpy().ravel()[0])


async def test_a_lone_request_goes_through_all_steps_without_waking_anybody(a, b, world, autojump_clock):
    whole = await world.ensemble(chain("a", "b", "a"))
    request = put(whole, 5, id="r", priority=3, timeout=7.5, parameters={"k": 1}, correlation_id=9, flags=1)
    (step,) = a.running  # all of it happens where it is put
    assert (step.id, step.priority, step.timeout, step.parameters) == ("r", 3, 7.5, {"k": 1})
    assert (step.correlation_id, step.flags, step.deadline) == (9, 1, math.inf)
    a.finish()
    b.finish()
    a.finish()
    assert answer_of(request) == 8
    assert not whole.in_flight


async def test_statistics_are_those_of_the_steps_and_one_execution(a, world, autojump_clock):
    whole = await world.ensemble(chain("a", "a"))
    put(whole, rows=3)
    await trio.sleep(1)
    a.finish()
    a.finish()
    counted = whole.statistics
    assert (counted.success_count, counted.inference_count, counted.execution_count) == (1, 3, 1)
    assert (counted.compute_input_ns, counted.compute_infer_ns, counted.compute_output_ns) == (20, 200, 2000)
    assert counted.queue_ns == 10
    assert counted.last_inference_ms == 77
    assert counted.success_ns == 1_000_000_000


async def test_an_error_of_a_step_is_told_with_the_names_of_all_ensembles(a, world, autojump_clock):
    inner = Ensemble(
        steps=(EnsembleStep(model_name="a", input_map={"INPUT": "INPUT"}, output_map={"OUTPUT": "OUTPUT"}),)
    )
    await world.ensemble(inner, name="inner", inputs=a.state.spec.inputs, outputs=a.state.spec.outputs)
    outer = await world.ensemble(chain("inner"), name="outer")
    request = put(outer)
    a.finish(error=InvalidArgument("no good"))
    assert request.reply.error.code is ErrorCode.INVALID_ARG
    assert request.reply.error.message == "in ensemble 'outer', in ensemble 'inner', no good"
    # Once for the ensemble, and once for its step that failed.
    assert outer.statistics.failures[FailureReason.OTHER] == 2


async def test_an_error_waits_until_steps_beside_it_have_ended_and_cancels_them(a, b, world, autojump_clock):
    both = Ensemble(
        steps=(
            EnsembleStep(model_name="a", input_map={"INPUT": "X"}, output_map={"OUTPUT": "Y"}),
            EnsembleStep(model_name="b", input_map={"INPUT": "X"}, output_map={"OUTPUT": "Z"}),
        )
    )
    whole = await world.ensemble(both, outputs=tensors(OutputSpec, "Y", "Z"))
    request = put(whole)
    a.finish(error=Unavailable("later", retry_after=3.0))
    assert request.reply.parts == []
    assert b.worker.cancelled == b.running
    b.finish()
    assert request.reply.error.message == "in ensemble 'whole', later"
    assert request.reply.error.retry_after == 3.0


async def test_a_step_that_contradicts_its_model_fails_the_request(a, world, autojump_clock):
    world.model("wide", inputs=(InputSpec(name="INPUT", datatype=DataType.FP32, dims=(3,)),))
    whole = await world.ensemble(chain("a", "wide"))
    request = put(whole)
    a.finish()
    assert "in ensemble 'whole', [request id: <id_unknown>] unexpected shape" in request.reply.error.message


async def test_a_model_that_is_not_there_fails_the_request_and_no_other(a, world, autojump_clock):
    whole = await world.ensemble(chain("a", "b"))
    request = put(whole)
    assert request.reply.error.message.startswith("in ensemble 'whole', Request for unknown model: 'b'")
    assert a.running == []


async def test_what_finds_a_full_queue_waits_in_order_and_new_requests_wait_in_the_ensembles_queue(
    world, autojump_clock
):
    a = world.model("a", capacity=1)
    b = world.model("b", queue_bounds=QueueBounds(requests=1))
    whole = await world.ensemble(chain("a", "b"))
    requests = [ask(number) for number in range(4)]
    for request in requests:
        whole.submit_nowait(request)
        await world.settled()
        if a.running:
            await a.ends()
    assert len(b.running) + len(b.state.queue) == 2
    late = put(whole, 99)
    await world.settled()
    assert late in whole.queue  # it has not been begun
    while b.running or a.running:
        for each in (b, a):
            if each.running:
                await each.ends()
    assert [answer_of(request) for request in [*requests, late]] == [2, 3, 4, 5, 101]
    assert b.state.statistics.reply_violations == 0


async def test_a_queue_that_refuses_fails_the_request(world, autojump_clock):
    policy = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    b = world.model("b", scheduling=policy, max_batch_size=1)
    whole = await world.ensemble(chain("b"))
    requests = [ask() for _ in range(3)]
    for request in requests:
        whole.submit_nowait(request)
        await world.settled()
    assert requests[2].reply.error.message == (
        "in ensemble 'whole', [request id: <id_unknown>] Exceeds maximum queue size"
    )
    b.finish()


async def test_a_client_that_leaves_cancels_what_runs_and_starts_nothing_more(
    whole, a, b, world, autojump_clock
):
    request = put(whole)
    whole.cancel(request)
    assert a.worker.cancelled == a.running
    a.finish()
    assert isinstance(request.reply.error, Cancelled)
    assert b.running == []
    assert not whole.in_flight


async def over_a_full_model(world):
    """An ensemble of one model, in whose queue there is no room."""
    b = world.model("b", queue_bounds=QueueBounds(requests=1))
    whole = await world.ensemble(chain("b"))
    for _ in range(2):
        await b.send()
    await world.settled()
    return b, whole


async def test_a_client_that_leaves_takes_its_step_out_of_a_full_models_line(world, autojump_clock):
    b, whole = await over_a_full_model(world)
    first, second = ask(), ask()
    for request in (first, second):
        whole.submit_nowait(request)
        await world.settled()
    whole.cancel(first)
    whole.cancel(second)
    await world.settled()
    assert isinstance(first.reply.error, Cancelled)
    assert isinstance(second.reply.error, Cancelled)
    await b.finish_all()
    third = put(whole, 1)
    b.finish()
    assert answer_of(third) == 2


async def test_a_steps_deadline_is_the_requests(b, world, autojump_clock):
    whole = await world.ensemble(chain("b"))
    await b.send()
    request = put(whole, deadline=trio.current_time() + 2)
    error = await request.reply.wait()
    assert isinstance(error, DeadlineExceeded)
    assert error.message.startswith(
        "in ensemble 'whole', [request id: <id_unknown>] the request's own deadline"
    )
    b.finish()


async def test_a_deadline_holds_also_in_the_ensembles_own_queue(world, autojump_clock):
    b, whole = await over_a_full_model(world)
    put(whole)
    await world.settled()
    request = put(whole, deadline=trio.current_time() + 2)
    await world.settled()
    assert len(whole.queue) == 1
    assert isinstance(await request.reply.wait(), DeadlineExceeded)
    await b.finish_all()


async def test_a_failure_in_the_ensembles_own_queue_has_no_reason_either(world, autojump_clock):
    b, whole = await over_a_full_model(world)
    put(whole)
    await world.settled()
    request = put(whole)
    await world.settled()
    assert request in whole.queue
    whole.cancel(request)
    assert isinstance(request.reply.error, Cancelled)
    assert whole.statistics.failures[FailureReason.OTHER] == 1
    assert whole.statistics.failure_count == 1
    await b.finish_all()


async def test_a_crash_of_the_actor_under_load_loses_nothing(world, autojump_clock):
    a = world.model("a", capacity=2)
    b = world.model("b", queue_bounds=QueueBounds(requests=2))
    whole = await world.ensemble(chain("a", "b"))
    requests = [ask(number) for number in range(20)]
    for number, request in enumerate(requests):
        whole.submit_nowait(request)
        if number % 3 == 0:
            await world.settled()
        if number % 5 == 4:
            world.actors[-1].cancel()
            await world.settled()
            world.start_actor(whole)
    for turn in range(200):
        await world.settled()
        for each in (a, b):
            if each.running:
                each.finish()
        if turn % 7 == 3:
            world.actors[-1].cancel()
            await world.settled()
            world.start_actor(whole)
    assert [answer_of(request) for request in requests] == [number + 2 for number in range(20)]
    assert not whole.in_flight
    for each in (whole, a.state, b.state):
        assert each.statistics.reply_violations == 0


async def test_a_bug_in_the_data_flow_costs_one_request_and_is_the_actors_crash(a, world, autojump_clock):
    whole = await world.ensemble(chain("a", "a"))
    one, other = ask(1), ask(2)
    whole.submit_nowait(one)
    (step,) = a.running

    class Broken:
        name = "OUTPUT"

        @property
        def shape(self):
            raise ValueError("a bug")

    a.part(step, outputs=[Broken()])
    assert isinstance(one.reply.error, Internal)
    assert one.reply.error.message.startswith("in ensemble 'whole', the server made a mistake")
    await world.settled()
    assert [str(crash) for crash in world.crashes] == ["a bug"]
    a.worker.outstanding.clear()
    world.start_actor(whole)
    await world.settled()
    whole.submit_nowait(other)
    a.finish()
    a.finish()
    assert answer_of(other) == 4


# -- versions


async def test_new_requests_follow_a_swap_and_one_on_its_way_keeps_its_versions(world, autojump_clock):
    old = world.model("a")
    whole = await world.ensemble(chain("a", "a"))
    first = put(whole)
    new = world.model("a")  # takes its place
    old.state.standing.become(Status.UNLOADING)
    second = put(whole)
    await world.settled()
    assert len(new.running) == 1
    drained = outcome_of(world.nursery, old.state.wait_drained)
    await old.ends()
    assert len(old.running) == 1  # its second step, though the version retires
    assert not drained
    with pytest.raises(Unavailable):
        old.state.submit_nowait(old.request())
    await old.ends()
    assert drained
    assert answer_of(first) == 2
    new.finish()
    new.finish()
    assert answer_of(second) == 2


async def test_what_waits_in_a_retiring_ensemble_still_finds_its_models(world, autojump_clock):
    b = world.model("b", queue_bounds=QueueBounds(requests=1))
    whole = await world.ensemble(chain("b"))
    requests = [ask(number) for number in range(6)]
    for request in requests:
        whole.submit_nowait(request)
        await world.settled()
    assert len(whole.queue)
    whole.standing.become(Status.UNLOADING)
    b.state.standing.become(Status.UNLOADING)
    await b.finish_all()
    assert [answer_of(request) for request in requests] == [number + 1 for number in range(6)]
    with trio.fail_after(1):
        await b.state.wait_drained()


async def test_giving_up_answers_at_once_and_cancels_the_steps(a, world, autojump_clock):
    whole = await world.ensemble(chain("a"))
    request = put(whole)
    whole.give_up("too long")
    assert "too long" in request.reply.error.message
    assert a.worker.cancelled == a.running
    a.finish()
    assert len(request.reply.parts) == 1
    assert whole.statistics.reply_violations == 0


# -- memory


async def test_a_borrowed_tensor_is_passed_by_reference_and_given_back_when_its_consumer_has_answered(
    whole, a, b, world, autojump_clock
):
    put(whole)
    leases: list[Any] = []
    memory = bytearray(8)
    await a.ends(outputs=[Tensor("OUTPUT", DataType.FP32, (1, 2), memoryview(memory))], leases=leases)
    (consumer,) = b.running
    assert consumer.inputs[0].data.obj is memory
    assert leases == ["taken"]
    b.finish()
    assert leases == ["taken", "released"]


async def test_a_borrowed_tensor_whose_consumer_waits_in_a_queue_is_copied(
    whole, a, b, world, autojump_clock
):
    await b.send()
    put(whole)
    leases: list[Any] = []
    memory = bytearray(np.full((1, 2), 5, np.float32).tobytes())
    await a.ends(outputs=[Tensor("OUTPUT", DataType.FP32, (1, 2), memoryview(memory))], leases=leases)
    assert leases == ["taken", "released"]
    memory[:] = bytes(8)
    await b.ends()
    (consumer,) = b.running
    assert consumer.inputs[0].as_numpy().tolist() == [[5, 5]]
    b.finish()


async def test_a_borrowed_tensor_whose_consumers_worker_dies_is_copied_while_it_waits(
    whole, a, b, world, autojump_clock
):
    request = put(whole, 3)
    leases: list[Any] = []
    a.finish(leases=leases)
    await trio.sleep(5)
    assert leases == ["taken"]
    (consumer,) = b.running
    b.worker.outstanding.clear()
    b.worker.instance.worker = None  # until another one has been started
    settle(b.state, b.worker.instance, Aftermath(requeue=(consumer,)))
    await trio.sleep(5)
    assert leases == ["taken", "released"]
    b.state.instance_ready(b.worker.instance, b.worker)
    await world.settled()
    b.finish()
    assert answer_of(request) == 5


async def test_the_answers_memory_is_given_back_when_the_answer_is_released(a, world, autojump_clock):
    whole = await world.ensemble(chain("a"))
    request = put(whole)
    leases: list[Any] = []
    await a.ends(leases=leases)
    (response,) = request.reply.parts
    assert response.leased
    assert leases == ["taken"]
    response.release()
    assert leases == ["taken", "released"]


# -- decoupled steps


async def decoupled_world(world, *, max_inflight=0, **options):
    many = world.model("many", decoupled=True, capacity=4)
    b = world.model("b", **options)
    whole = await world.ensemble(chain("many", "b", max_inflight=max_inflight), decoupled=True)
    return many, b, whole


async def test_every_response_of_a_decoupled_step_becomes_a_part_of_the_answer(world, autojump_clock):
    many, b, whole = await decoupled_world(world)
    request = put(whole, 10)
    for _ in range(3):
        await many.goes_on()
        await b.ends()
    assert [part.outputs[0].as_numpy()[0, 0] for part in request.reply.parts] == [12, 12, 12]
    many.end()
    assert request.reply.parts[-1].outputs == []
    assert request.answered
    assert whole.statistics.success_count == 1


async def test_a_part_is_credited_when_its_consumers_have_been_accepted(world, autojump_clock):
    many, b, whole = await decoupled_world(world, queue_bounds=QueueBounds(requests=1))
    put(whole)
    leases: list[Any] = []
    for _ in range(4):
        await many.goes_on(leases=leases)
    assert leases.count("released") == 2  # one runs, one waits in the queue
    many.end()
    await b.finish_all()
    assert leases.count("released") == 4


async def test_no_more_than_max_inflight_runs_of_a_step_are_on_their_way(world, autojump_clock):
    many, b, whole = await decoupled_world(world, max_inflight=2, capacity=9, max_batch_size=1)
    request = put(whole)
    for _ in range(5):
        await many.goes_on()
    assert len(b.running) == 2
    await b.ends()
    assert len(b.running) == 2
    await trio.sleep(GATE_PATIENCE + 1)
    assert len(b.running) == 4  # a call that waited too long goes all the same
    many.end()
    await b.finish_all()
    assert request.answered
    assert len(request.reply.parts) == 5  # the last of them says that it is


async def test_a_client_that_does_not_read_holds_up_the_decoupled_model_and_not_the_servers_memory(
    world, autojump_clock
):
    many, b, whole = await decoupled_world(world)
    request = put(whole)
    leases: list[Any] = []
    for _ in range(UNREAD_PARTS + 8):
        await many.goes_on(leases=leases)
        await b.ends()
    assert len(request.reply.parts) == UNREAD_PARTS + 8
    assert leases.count("released") == UNREAD_PARTS  # those after it are the model's to wait for
    for part in request.reply.parts[: UNREAD_PARTS // 2 + 8]:
        part.release()
    assert leases.count("released") == UNREAD_PARTS
    request.reply.parts[-1].release()
    assert leases.count("released") == UNREAD_PARTS + 8
    many.end()
    assert request.answered


async def test_nothing_is_held_for_a_client_that_has_gone(world, autojump_clock):
    many, b, whole = await decoupled_world(world)
    request = put(whole)
    leases: list[Any] = []
    for _ in range(UNREAD_PARTS + 1):
        await many.goes_on(leases=leases)
        await b.ends()
    whole.cancel(request)
    many.end()
    await world.settled()
    assert request.answered
    assert leases.count("released") == UNREAD_PARTS + 1


async def test_a_decoupled_step_that_fails_in_the_middle_ends_the_answer_with_its_error(
    world, autojump_clock
):
    many, b, whole = await decoupled_world(world)
    request = put(whole)
    many.part(many.stream, final=False)
    b.finish()
    many.state.outcome.fail(many.stream, Internal("broke off"), FailureReason.BACKEND)
    assert len(request.reply.parts) == 2
    assert request.reply.error.message == "in ensemble 'whole', broke off"


async def test_a_steps_response_says_what_sequence_comes_after_it_up_to_the_answer(
    a, b, world, autojump_clock
):
    whole = await world.ensemble(chain("a", "b", "b"))
    request = put(whole, correlation_id=3, flags=1)
    a.finish(parameters={"sequence_id": 44, "sequence_end": True})
    for _ in range(2):  # it is carried on by a step that says nothing
        (step,) = b.running
        assert (step.correlation_id, step.flags) == (44, 2)
        b.finish()
    (answer,) = request.reply.parts
    assert answer.parameters == {"sequence_id": 44, "sequence_start": False, "sequence_end": True}


@pytest.mark.parametrize(
    ("identity", "flags", "told"),
    [
        (0, 0, (0, False, False)),
        (7, 1, (7, True, False)),
        ("seven", 2, ("seven", False, True)),
        (2**64 - 1, 3, (-1, True, True)),  # an integer parameter is signed, as in Triton
    ],
)
async def test_every_answer_tells_its_place_in_a_sequence(world, autojump_clock, identity, flags, told):
    many = world.model("many", decoupled=True)
    plain, streamed = (
        await world.ensemble(chain("plain")),
        await world.ensemble(chain("many"), "streamed", decoupled=True),
    )
    a = world.model("plain")
    await world.settled()
    requests = [ask(correlation_id=identity, flags=flags) for _ in range(2)]
    plain.submit_nowait(requests[0])
    a.finish()
    streamed.submit_nowait(requests[1])
    many.part(many.stream, final=False)
    many.end()
    keys = ("sequence_id", "sequence_start", "sequence_end")
    assert [part.parameters for part in requests[0].reply.parts] == [dict(zip(keys, told, strict=True))]
    first, end = requests[1].reply.parts
    assert first.parameters == dict(zip(keys, told, strict=True))
    assert end.parameters is None


async def test_a_nested_ensembles_place_in_a_sequence_is_the_outer_ones(a, world, autojump_clock):
    ports = {"inputs": a.state.spec.inputs, "outputs": a.state.spec.outputs}
    only = EnsembleStep(model_name="a", input_map={"INPUT": "INPUT"}, output_map={"OUTPUT": "OUTPUT"})
    await world.ensemble(Ensemble(steps=(only,)), name="inner", **ports)
    outer = await world.ensemble(chain("inner", "a"), name="outer")
    request = put(outer, correlation_id=2**64 - 1, flags=2)
    a.finish()
    (step,) = a.running
    assert (step.correlation_id, step.flags) == (2**64 - 1, 2)
    a.finish()
    assert request.reply.parts[0].parameters["sequence_id"] == -1


# -- shapes


@pytest.mark.parametrize(
    ("dims", "inside", "batch", "of_steps", "shape", "seen"),
    [
        ((8,), (2, 4), 8, 8, (3, 8), (3, 2, 4)),
        ((8,), (2, 4), 0, 0, (8,), (2, 4)),
        ((8,), (2, 4), 8, 0, (1, 8), (2, 4)),
        ((4, 2), (2, 4), 8, 8, (3, 4, 2), (3, 2, 4)),
        ((-1, 2), (2, -1), 8, 8, (1, 5, 2), (1, 2, 5)),
        ((1,), (), 8, 8, (3, 1), (3,)),
    ],
)
async def test_an_ensembles_own_reshape_is_the_shape_inside_it(
    world, autojump_clock, dims, inside, batch, of_steps, shape, seen
):
    ports = {
        "inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=inside),),
        "outputs": (OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=inside),),
    }
    a = world.model("a", max_batch_size=of_steps, **ports)
    whole = await world.ensemble(
        chain("a", "a"),
        max_batch_size=batch,
        inputs=(InputSpec(name="X", datatype=DataType.FP32, dims=dims, reshape=inside),),
        outputs=(OutputSpec(name="Y", datatype=DataType.FP32, dims=dims, reshape=inside),),
    )
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    request = ask()
    request.inputs = [Tensor.from_numpy("X", values)]
    whole.submit_nowait(request)
    for _ in range(2):
        (step,) = a.running
        assert tuple(step.inputs[0].shape) == seen
        a.finish()
    (output,) = request.reply.parts[0].outputs
    np.testing.assert_array_equal(output.as_numpy(), values + 2)


# -- what is counted


@pytest.mark.parametrize("models", [("a",), ("first", "a"), ("a", "last")])
async def test_a_rejection_by_a_steps_queue_policy_counts_in_the_ensemble_for_the_step_and_for_itself(
    world, autojump_clock, models
):
    rejects = DynamicBatching(default_queue_policy=QueuePolicy(default_timeout=1.0))
    stages = {name: world.model(name) for name in models if name != "a"}
    a = world.model("a", scheduling=rejects, max_batch_size=1)
    whole = await world.ensemble(chain(*models))
    requests = [ask() for _ in range(3)]
    for request in requests:
        whole.submit_nowait(request)
        await world.settled()
        if "first" in stages:
            await stages["first"].ends()
    await trio.sleep(5)
    assert requests[0].reply.parts == []
    assert [request.reply.error.message for request in requests[1:]] == [
        "in ensemble 'whole', Request timeout expired"
    ] * 2
    # NVIDIA's `qa/L0_model_queue` expects twice as many as there were rejected requests.
    assert whole.statistics.failures == {**dict.fromkeys(FailureReason, 0), FailureReason.OTHER: 4}
    assert a.state.statistics.failures == {**dict.fromkeys(FailureReason, 0), FailureReason.REJECTED: 2}
