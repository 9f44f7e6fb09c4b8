"""Which sequence has which slot, and which request is next: by example.

The rules are those of the contract, scheduling.md section 6.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.sequences.policy.controls import Padding, zeros
from actors.sequences.policy.sequences import sequencing_of
from actors.serving.policy.batching import Wait
from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest, InferResponse
from actors.values.specs import (
    ControlKind,
    ControlSpec,
    InputSpec,
    OldestStrategy,
    OutputSpec,
    QueueBounds,
    SequenceBatching,
    StateSpec,
)
from actors.values.tensors import Tensor, unpack_bytes
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort

START, END = FLAG_SEQUENCE_START, FLAG_SEQUENCE_END
CONTROLS = (
    ControlSpec(name="START", kind=ControlKind.START, datatype=DataType.INT32),
    ControlSpec(name="END", kind=ControlKind.END, datatype=DataType.BOOL),
    ControlSpec(name="READY", kind=ControlKind.READY, datatype=DataType.FP32, false_true=(-1.0, 1.0)),
    ControlSpec(name="ID", kind=ControlKind.CORRID, datatype=DataType.UINT64),
)
SUM = StateSpec(
    input_name="SUM_IN",
    output_name="SUM_OUT",
    datatype=DataType.FP32,
    dims=(1,),
    initial=Tensor("SUM_IN", DataType.FP32, (1,), bytes(4)),
)


def request_of(sequence=1, flags=0, *, width=2, rows=1, **options):
    made = InferRequest(
        model_name="model",
        inputs=[Tensor.from_numpy("INPUT", np.ones((rows, width), np.float32))],
        correlation_id=sequence,
        flags=flags,
        reply=NoPort(),
        accepted_at=0.0,
        **options,
    )
    made.nbytes = rows * width * 4
    made.rows = rows
    made.batch_key = (width,)
    return made


def model_of(*, slots=4, instances=1, bounds=None, **scheduling):
    spec = make_spec(
        max_batch_size=slots,
        inputs=(InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),),
        scheduling=SequenceBatching(**scheduling),
        queue_bounds=bounds or QueueBounds(),
    )
    model: Any = sequencing_of(spec)
    for instance in range(instances):
        model.join(str(instance), 1, 0.0)
    return model


@pytest.fixture
def model():
    return model_of()


def push(model, *args, now=0.0, **options):
    made = request_of(*args, **options)
    model.queue.push(made, now)
    return made


def group_of(model, instance="0"):
    [group] = model.slots.groups(instance)
    return group


def batch_of(model, instance="0", now=0.0):
    """Return the batch to run now, with None in place of padding, or the time to wait until."""
    group = group_of(model, instance)
    decision = model.batches.decide(group, now)
    if isinstance(decision, Wait):
        return decision.until
    return [None if each.padding else each for each in model.batches.form(group, decision).requests]


def running(**options):
    """A model that runs the first request of its only sequence, and that request."""
    model = model_of(**options)
    first = push(model, 1, START)
    batch_of(model)
    return model, first


def finish(model, batch, now=0.0):
    for member in batch:
        if member is not None:
            model.done(member, now)


def test_each_sequence_keeps_its_row_and_the_rows_between_are_padded(model):
    first = [push(model, n, START) for n in range(1, 4)]
    batch = batch_of(model)
    assert batch == first
    finish(model, batch)
    third = push(model, 3)
    group = group_of(model)
    requests = model.batches.form(group, model.batches.decide(group, 0.0)).requests
    assert [each.padding for each in requests] == [True, True, False]
    assert requests[2] is third
    assert [bytes(each.inputs[0].data) for each in requests] == [
        bytes(8),
        bytes(8),
        bytes(third.inputs[0].data),
    ]


def test_the_oldest_strategy_waits_for_a_preferred_size_or_its_delay():
    model = model_of(strategy=OldestStrategy(preferred_batch_sizes=(2,), max_queue_delay=0.5))
    first = push(model, 1, START)
    assert batch_of(model) == 0.5
    second = push(model, 2, START, now=0.1)
    assert batch_of(model, now=0.1) == [first, second]
    finish(model, [first, second])
    third = push(model, 1, now=1.0)
    assert batch_of(model, now=1.5) == [third]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (request_of(1, START, rows=2), "inference request to model 'model' must specify batch-size 1 due to requirements of sequence batcher"),
        (request_of(0, START), "inference request to model 'model' must specify a non-zero or non-empty correlation ID"),
        (request_of("", START), "inference request to model 'model' must specify a non-zero or non-empty correlation ID"),
        (request_of(7), "inference request for sequence 7 to model 'model' must specify the START flag on the first request of the sequence"),
        (request_of("seven", END), "inference request for sequence seven to model 'model' must specify the START flag on the first request of the sequence"),
    ],
)  # fmt: skip
def test_what_belongs_to_no_sequence_is_refused_in_the_contract_s_words(made, message):
    with pytest.raises(InvalidArgument) as caught:
        model_of().queue.push(made, 0.0)
    assert caught.value.message == message


def test_a_string_id_does_not_fit_a_control_of_numbers_nor_the_reverse():
    model = model_of(controls=CONTROLS)
    with pytest.raises(InvalidArgument) as caught:
        push(model, "a", START)
    assert caught.value.message == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'BYTES', but model 'model' expects 'UINT64'"
    )
    texts = model_of(controls=(ControlSpec(name="ID", kind=ControlKind.CORRID, datatype=DataType.BYTES),))
    with pytest.raises(InvalidArgument) as caught:
        push(texts, 5, START)
    assert caught.value.message == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'UINT64', but model 'model' expects 'BYTES'"
    )


def test_numbers_and_their_spellings_are_different_sequences(model):
    push(model, 1, START)
    push(model, "1", START)
    assert len(model.roll.live) == 2


def test_a_start_on_a_live_id_lets_the_queue_run_and_resets_the_state():
    model = model_of(states=(SUM,))
    old = [push(model, 1, START), push(model, 1)]
    new = push(model, 1, START)
    assert model.roll.restarted == 1
    for member in (*old, new):
        assert batch_of(model) == [member]
        before = np.frombuffer(member.extra[0].data, np.float32)
        after = Tensor.from_numpy("SUM_OUT", (before + 1).reshape(1, 1))
        assert before.tolist() == [float(member is old[1])]
        model.collect(member, [after], failed=False)
        finish(model, [member])
    assert len(group_of(model).slots) == 1


def test_controls_say_start_end_ready_and_who():
    model = model_of(controls=CONTROLS)
    push(model, 2**40 + 5, START)
    push(model, 2, START | END)
    group = group_of(model)

    def values(member):
        return [each.as_numpy().tolist() for each in member.extra]

    batch = model.batches.form(group, model.batches.decide(group, 0.0)).requests
    assert [values(each) for each in batch] == [
        [[[1]], [[False]], [[1.0]], [[2**40 + 5]]],
        [[[1]], [[True]], [[1.0]], [[2]]],
    ]
    finish(model, batch)
    push(model, 3, START)
    push(model, 2**40 + 5)
    push(model, 3)
    finish(model, model.batches.form(group, model.batches.decide(group, 0.0)).requests)
    batch = model.batches.form(group, model.batches.decide(group, 0.0)).requests
    assert values(batch[0]) == [[[0]], [[False]], [[-1.0]], [[0]]]
    assert values(batch[1]) == [[[0]], [[False]], [[1.0]], [[3]]]


@pytest.mark.parametrize(
    ("datatype", "given", "told"),
    [
        (DataType.UINT32, 2**32 + 7, 7),
        (DataType.INT32, 2**32 - 1, -1),
        (DataType.INT64, 2**64 - 1, -1),
        (DataType.UINT64, 2**64 - 1, 2**64 - 1),
    ],
)
def test_an_id_is_cut_to_the_width_of_its_control(datatype, given, told):
    model = model_of(slots=0, controls=(ControlSpec(name="ID", kind=ControlKind.CORRID, datatype=datatype),))
    [member] = [push(model, given, START)] and batch_of(model)
    assert tuple(member.extra[0].shape) == (1,)
    assert member.extra[0].as_numpy().tolist() == [told]


def test_a_string_id_is_a_string_tensor():
    model = model_of(controls=(ControlSpec(name="ID", kind=ControlKind.CORRID, datatype=DataType.BYTES),))
    push(model, "männlich", START)
    [member] = batch_of(model)
    assert unpack_bytes(member.extra[0].data, "ID", 1) == ["männlich".encode()]


def test_states_of_other_sizes_don_t_share_a_batch():
    growing = StateSpec(
        input_name="S",
        output_name="S",
        datatype=DataType.FP32,
        dims=(-1,),
        initial=Tensor("S", DataType.FP32, (1,), bytes(4)),
    )
    model = model_of(strategy=OldestStrategy(), states=(growing,))
    batch = [push(model, 1, START), push(model, 2, START)]
    assert batch_of(model) == batch
    longer = Tensor.from_numpy("S", np.ones((1, 2), np.float32))
    # The client did not request this output.
    assert model.collect(batch[0], [longer], failed=False) == []
    model.collect(batch[1], [], failed=False)
    finish(model, batch)
    push(model, 1)
    push(model, 2)
    [first] = batch_of(model)
    assert tuple(first.extra[0].shape) == (1, 2)


def test_padding_has_the_shapes_of_the_first_request_s_states_and_zeros():
    like = request_of(1)
    like.extra = (
        Tensor.from_numpy("A", np.ones((1, 3), np.float32)),
        Tensor.from_numpy("B", np.ones((1, 1), np.float32)),
    )
    ours = tuple(zeros(name, DataType.FP32, (1, 1)) for name in "AB")
    padding, row = Padding(make_spec(), ours).fill([None, like], like)
    assert row is like
    assert [each.as_numpy().tolist() for each in padding.extra] == [[[0.0] * 3], [[0.0]]]
    assert padding.extra[1] is ours[1]


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_padding_row_is_used_again_unless_its_worker_may_still_stream_to_it(decoupled):
    padding, like = Padding(make_spec(decoupled=decoupled), ()), request_of(1)
    [first], [second] = padding.fill([None], like), padding.fill([None], like)
    assert (first is second) is not decoupled


def test_outputs_of_a_model_without_states_are_all_its_client_s(model):
    member = push(model, 1, START)
    outputs = [Tensor.from_numpy("OUTPUT", np.ones((1, 2), np.float32))]
    assert model.collect(member, outputs, failed=False) is outputs


def test_other_outputs_than_states_are_the_client_s_and_not_kept():
    model, member = running(states=(SUM,))
    outputs = [Tensor.from_numpy(name, np.full((1, 1), 3, np.float32)) for name in ("OUTPUT", "SUM_OUT")]
    assert model.collect(member, outputs, failed=False) == outputs[:1]
    finish(model, [member])
    push(model, 1)
    [second] = batch_of(model)
    assert [(each.name, each.as_numpy().tolist()) for each in second.extra] == [("SUM_IN", [[3.0]])]


def test_an_error_leaves_the_state_as_it_was():
    model, member = running(states=(SUM,))
    model.collect(member, [Tensor.from_numpy("SUM_OUT", np.ones((1, 1), np.float32))], failed=True)
    finish(model, [member])
    second = push(model, 1)
    batch_of(model)
    assert second.extra[0].as_numpy().tolist() == [[0.0]]


def test_a_state_of_another_datatype_is_an_error_of_that_request():
    model, member = running(states=(SUM,))
    with pytest.raises(Internal, match="'SUM_OUT' as FP64"):
        model.collect(member, [Tensor.from_numpy("SUM_OUT", np.ones((1, 1)))], failed=False)


def test_with_a_checkpoint_sequences_go_on_before_the_backlog():
    model, first = running(slots=1, states=(SUM,), checkpoint=True)
    model.collect(first, [Tensor.from_numpy("SUM_OUT", np.full((1, 1), 5, np.float32))], failed=False)
    finish(model, [first])
    second = push(model, 1)
    batch_of(model)
    third, stranger = push(model, 1), push(model, 2, START)
    assert model.leave("0", 0.0) == []
    model.put_back(second, alone=False, now=0.0)
    model.join("0", 1, 1.0)
    assert batch_of(model) == [second]
    assert second.extra[0].as_numpy().tolist() == [[5.0]]
    finish(model, [second])
    assert batch_of(model) == [third]
    assert stranger in model.queue


def test_an_iterative_request_runs_until_it_is_released_for_good():
    model = model_of(iterative=True, strategy=OldestStrategy(), controls=CONTROLS)
    member = push(model, 0)
    assert member.correlation_id == 1
    other = push(model, 0)
    assert other.correlation_id == 2
    starts = []
    for _ in range(3):
        batch = batch_of(model)
        starts.append([each.extra[0].as_numpy().item() for each in batch if each is member])
        for each in batch:
            model.reschedule(each, 0.0)
    assert starts == [[1], [0], [0]]
    finish(model, batch_of(model))
    assert not model.roll.live
    assert not group_of(model).slots


def test_neither_the_backlog_nor_the_slots_use_up_the_other_s_room():
    model = model_of(slots=1, bounds=QueueBounds(requests=2))
    push(model, 1, START)
    push(model, 2, START)
    push(model, 3, START)
    assert not model.queue.admits(request_of(4, START))
    assert model.queue.admits(request_of(1))
    assert model.queue.room_order.may_pass(request_of(1))
    assert not model.queue.room_order.may_pass(request_of(2))
    push(model, 1)
    assert not model.queue.admits(request_of(1))
    behind = request_of(1)
    model.queue.room_order.enter(behind)
    assert not model.queue.room_order.may_pass(request_of(1))
    model.queue.room_order.leave(behind)
    assert model.queue.room_order.may_pass(request_of(1))


def test_who_goes_on_with_a_sequence_that_has_a_slot_passes_callers_that_wait_for_the_backlog():
    model = model_of(slots=1, bounds=QueueBounds(requests=1))
    order, admits = model.queue.room_order, model.queue.admits
    push(model, 1, START)
    push(model, 2, START)
    newcomer, going_on = request_of(3, START), request_of(1)
    assert list(order.next(admits)) == []
    for caller in (newcomer, going_on):
        order.enter(caller)
    assert order.ahead() == 2
    assert list(order.next(admits)) == [newcomer]
    batch_of(model)
    assert list(order.next(admits)) == [newcomer, going_on]
    order.leave(newcomer)
    assert order.ahead() == 1


def test_a_caller_that_does_not_fit_is_passed_by_one_of_another_sequence():
    model = model_of(bounds=QueueBounds(nbytes=20))
    finish(model, [push(model, n, START) for n in (1, 2)] and batch_of(model))
    push(model, 1)
    large, small = request_of(1, width=4), request_of(2)
    for caller in (large, small):
        model.queue.room_order.enter(caller)
    assert list(model.queue.room_order.next(model.queue.admits)) == [large, small]


def test_a_caller_goes_on_from_when_its_sequence_has_a_slot_until_it_has_none():
    model = model_of(slots=1, checkpoint=True)
    order, admits = model.queue.room_order, model.queue.admits
    first, _ = push(model, 1, START | END), push(model, 2, START)
    going_on = request_of(2)
    order.enter(going_on)
    assert list(order.next(admits)) == [going_on]
    batch_of(model)
    finish(model, [first])
    assert list(order.next(admits)) == [going_on, going_on]
    model.leave("0", 0.0)
    assert list(order.next(admits)) == [going_on]


def test_a_probe_is_a_sequence_of_its_own():
    model = model_of(controls=CONTROLS)
    probe = request_of(0)
    probe.synthetic = True
    model.queue.push(probe, 0.0)
    assert batch_of(model) == [probe]
    assert [each.as_numpy().item() for each in probe.extra] == [1, True, 1.0, 0]
    finish(model, [probe])
    assert not group_of(model).slots


def test_a_line_of_sequences_makes_no_promise_about_time():
    model = model_of(slots=1)
    assert model.queue.oldest_enqueued == math.inf
    push(model, 1, START, now=3.0)
    push(model, 2, START, now=4.0)
    assert (model.queue.oldest_enqueued, model.queue.nbytes) == (3.0, 16)
    newcomer = request_of(3, START)
    assert (model.queue.ahead_of(newcomer), model.queue.patience(newcomer)) == (2, math.inf)
    assert model.queue.shares() is None


def test_draining_ends_every_sequence_that_waits():
    model = model_of(slots=1)
    waiting = [push(model, 1, START), push(model, 1), push(model, 2, START)]
    assert model.queue.drain() == waiting
    assert not model.roll.live


def test_what_does_not_run_is_neither_put_back_nor_run_again_nor_done(model):
    member = push(model, 1, START)
    model.put_back(member, alone=True, now=0.0)
    assert not model.reschedule(member, 0.0)
    model.done(member, 0.0)
    assert batch_of(model) == [member]


def test_what_ran_in_an_instance_that_is_gone_with_its_state_is_not_run_again(model):
    member = push(model, 1, START)
    batch_of(model)
    model.leave("0", 0.0)
    assert not model.reschedule(member, 0.0)
    assert not model.roll.live


def test_a_sequence_whose_request_still_runs_in_a_lost_instance_waits_for_its_answer():
    model, first = running(slots=1, checkpoint=True)
    model.leave("0", 0.0)
    second = push(model, 1)
    assert not model.slots.backlog
    model.join("1", 1, 0.0)
    assert batch_of(model, "1") == math.inf
    finish(model, [first])
    assert batch_of(model, "1") == [second]


def test_a_cancelled_request_ends_its_sequence_when_the_one_that_runs_has_its_answer():
    model = model_of(slots=1)
    first, second = push(model, 1, START), push(model, 1)
    batch_of(model)
    assert model.queue.abandon(second, 0.0) == [second]
    assert not model.roll.live
    assert len(group_of(model).slots) == 1
    finish(model, [first])
    assert not group_of(model).slots


def test_a_cancelled_request_of_the_backlog_frees_no_slot():
    model = model_of(slots=1)
    first, second = push(model, 1, START), push(model, 2, START)
    assert model.queue.abandon(second, 0.0) == [second]
    assert list(model.roll.live) == [1]
    assert batch_of(model) == [first]


def test_the_backlog_does_not_get_the_slots_of_an_instance_that_is_about_to_leave():
    model = model_of(slots=1)
    first, second = push(model, 1, START | END), push(model, 2, START)
    batch_of(model)
    model.about_to_leave("0")
    finish(model, [first])
    assert len(model.slots.backlog) == 1
    model.leave("0", 0.0)
    model.join("1", 1, 0.0)
    assert batch_of(model, "1") == [second]


def test_no_more_requests_end_at_once_than_asked_for(model):
    late = [push(model, n, START, deadline=1.0) for n in (1, 2)]
    assert [request for request, _ in model.queue.expire(1.0, at_most=1)] == late[:1]
    assert [request for request, _ in model.queue.expire(1.0, at_most=1)] == late[1:]
    assert model.queue.expire(1.0) == []


def test_what_runs_again_goes_behind_what_waits_of_its_sequence():
    model = model_of(iterative=True)
    first, second = push(model, 1, START), push(model, 1)
    assert batch_of(model) == [first]
    assert model.reschedule(first, 0.0)
    assert batch_of(model) == [second]


def test_a_part_for_a_padding_row_gives_its_slot_back():
    model = model_of(slots=2)
    finish(model, [push(model, n, START) for n in (1, 2)] and batch_of(model))
    push(model, 2)
    group = group_of(model)
    padding, _ = model.batches.form(group, model.batches.decide(group, 0.0)).requests
    released: list[str] = []
    response = InferResponse(model_name="model", model_version=1, id="", outputs=[])
    response.on_release(lambda: released.append("released"))
    for part in (response, Internal("no")):
        padding.reply.put(part, final=True)
    assert released == ["released"]


def test_a_model_s_worker_is_told_of_controls_and_states_that_clients_do_not_know():
    shown = OutputSpec(name="SHOWN", datatype=DataType.FP32, dims=(1,))
    states = (SUM, replace(SUM, input_name="SHOWN_IN", output_name="SHOWN"))
    spec = make_spec(outputs=(shown,), scheduling=SequenceBatching(controls=CONTROLS, states=states))
    assert [each.name for each in spec.backend_inputs] == [
        *("INPUT", "START", "END", "READY", "ID", "SUM_IN", "SHOWN_IN")
    ]
    assert [each.name for each in spec.backend_outputs] == ["SHOWN", "SUM_OUT"]
