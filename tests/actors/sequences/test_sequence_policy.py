"""Which sequence has which slot, and which request is next: by example and at random.

The rules are those of the contract, scheduling.md section 6.
"""

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from actors.sequences.policy.sequences import SequenceQueue
from actors.serving.policy.batching import Dispatch, Wait
from actors.serving.policy.timers import Timers
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, InvalidArgument, Unavailable
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from actors.values.specs import (
    ControlKind,
    ControlSpec,
    DirectStrategy,
    InputSpec,
    OldestStrategy,
    QueueBounds,
    SequenceBatching,
    StateSpec,
)
from actors.values.tensors import Tensor, unpack_bytes
from actors.wire.frames import Answer
from tests.support.examples import examples
from tests.support.model_doubles import make_spec

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


class Nobody:
    def put(self, part, *, final):
        pass


def request_of(sequence=1, flags=0, *, width=2, rows=1, **options):
    made = InferRequest(
        model_name="model",
        inputs=[Tensor.from_numpy("INPUT", np.ones((rows, width), np.float32))],
        correlation_id=sequence,
        flags=flags,
        reply=Nobody(),
        accepted_at=0.0,
        **options,
    )
    made.nbytes = rows * width * 4
    made.rows = rows
    made.batch_key = (width,)
    return made


def queue_of(*, slots=4, instances=1, bounds=None, **scheduling):
    spec = make_spec(
        max_batch_size=slots,
        inputs=(InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),),
        scheduling=SequenceBatching(**scheduling),
        queue_bounds=bounds or QueueBounds(),
    )
    queue = SequenceQueue(spec, spec.scheduling)
    for instance in range(instances):
        queue.join(str(instance), 1, 0.0)
    return queue


def push(queue, *args, now=0.0, **options):
    made = request_of(*args, **options)
    queue.push(made, now)
    return made


def group_of(queue, instance="0"):
    [group] = queue.groups(instance)
    return group


def batch_of(queue, instance="0", now=0.0):
    """Return the batch to run now, with None in place of padding, or the time to wait until."""
    group = group_of(queue, instance)
    decision = queue.decide(group, now)
    if isinstance(decision, Wait):
        return decision.until
    return [None if each.padding else each for each in queue.form(group, decision).requests]


def finish(queue, batch, now=0.0):
    for member in batch:
        if member is not None:
            queue.done(member, now)


@pytest.mark.parametrize("strategy", [DirectStrategy(), OldestStrategy()])
def test_requests_of_a_sequence_run_one_after_the_other(strategy):
    queue = queue_of(strategy=strategy)
    line = [push(queue, 1, START), push(queue, 1), push(queue, 1, END)]
    for member in line:
        assert batch_of(queue) == [member]
        assert batch_of(queue) == math.inf
        finish(queue, [member])
    assert queue.counts().free_slots == 4
    assert queue.counts().live == 0


def test_each_sequence_keeps_its_row_and_the_rows_between_are_padded():
    queue = queue_of()
    first = [push(queue, n, START) for n in range(1, 4)]
    batch = batch_of(queue)
    assert batch == first
    finish(queue, batch)
    third = push(queue, 3)
    group = group_of(queue)
    requests = queue.form(group, queue.decide(group, 0.0)).requests
    assert [each.padding for each in requests] == [True, True, False]
    assert requests[2] is third
    assert [bytes(each.inputs[0].data) for each in requests] == [
        bytes(8),
        bytes(8),
        bytes(third.inputs[0].data),
    ]


def test_rows_above_the_highest_sequence_are_left_out():
    queue = queue_of()
    finish(queue, [push(queue, n, START) for n in (1, 2, 3)] and batch_of(queue))
    push(queue, 3, END)
    finish(queue, batch_of(queue))
    only = push(queue, 1)
    assert batch_of(queue) == [only, None]  # sequence 2 is there still


def test_the_lowest_free_slot_of_all_instances_is_next():
    queue = queue_of(slots=2, instances=2)
    members = [push(queue, n, START) for n in range(1, 5)]
    assert batch_of(queue, "0") == [members[0], members[2]]
    assert batch_of(queue, "1") == [members[1], members[3]]


def test_the_backlog_is_first_in_first_out_and_moves_whole_sequences():
    queue = queue_of(slots=1)
    push(queue, 1, START | END)
    second = [push(queue, 2, START), push(queue, 2, END)]
    third = push(queue, 3, START | END)
    assert queue.counts().backlogged == 2
    order = []
    for _ in range(4):
        batch = batch_of(queue)
        order += batch
        finish(queue, batch)
    assert order[1:] == [*second, third]


def test_the_oldest_strategy_batches_what_came_first():
    queue = queue_of(slots=2, strategy=OldestStrategy(max_candidate_sequences=4))
    members = [push(queue, n, START) for n in range(1, 5)]
    batch = batch_of(queue)
    assert batch == members[:2]
    later = push(queue, 1)
    finish(queue, batch)
    assert batch_of(queue) == members[2:]
    finish(queue, members[2:])
    assert batch_of(queue) == [later]


def test_the_oldest_strategy_waits_for_a_preferred_size_or_its_delay():
    queue = queue_of(strategy=OldestStrategy(preferred_batch_sizes=(2,), max_queue_delay=0.5))
    first = push(queue, 1, START)
    assert batch_of(queue) == 0.5
    second = push(queue, 2, START, now=0.1)
    assert batch_of(queue, now=0.1) == [first, second]
    finish(queue, [first, second])
    third = push(queue, 1, now=1.0)
    assert batch_of(queue, now=1.5) == [third]


def test_a_direct_batch_waits_for_its_share_of_slots_or_its_delay():
    queue = queue_of(strategy=DirectStrategy(max_queue_delay=0.5, minimum_slot_utilization=0.5))
    first = push(queue, 1, START)
    assert batch_of(queue) == 0.5
    second = push(queue, 2, START, now=0.1)
    assert batch_of(queue, now=0.1) == [first, second]
    finish(queue, [first, second])
    third = push(queue, 2, now=1.0)
    assert batch_of(queue, now=1.1) == 1.5
    assert batch_of(queue, now=1.5) == [None, third]


def test_who_has_another_shape_is_padding_this_time_and_first_the_next():
    queue = queue_of()
    narrow, wide, narrow_too = push(queue, 1, START), push(queue, 2, START, width=3), push(queue, 3, START)
    assert batch_of(queue) == [narrow, None, narrow_too]
    again = push(queue, 1)
    finish(queue, [narrow, narrow_too])
    assert batch_of(queue) == [None, wide, None]
    finish(queue, [wide])
    assert batch_of(queue) == [again, None, None]


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
        queue_of().push(made, 0.0)
    assert caught.value.message == message


def test_a_string_id_does_not_fit_a_control_of_numbers_nor_the_reverse():
    queue = queue_of(controls=CONTROLS)
    with pytest.raises(InvalidArgument) as caught:
        push(queue, "a", START)
    assert caught.value.message == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'BYTES', but model 'model' expects 'UINT64'"
    )
    texts = queue_of(controls=(ControlSpec(name="ID", kind=ControlKind.CORRID, datatype=DataType.BYTES),))
    with pytest.raises(InvalidArgument) as caught:
        push(texts, 5, START)
    assert caught.value.message == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'UINT64', but model 'model' expects 'BYTES'"
    )


def test_numbers_and_their_spellings_are_different_sequences():
    queue = queue_of()
    push(queue, 1, START)
    push(queue, "1", START)
    assert queue.counts().live == 2


def test_a_stopping_model_goes_on_with_sequences_and_begins_none():
    queue = queue_of()
    push(queue, 1, START)
    queue.stopping = "Server is stopping"
    push(queue, 1)
    with pytest.raises(Unavailable, match="Server is stopping"):
        push(queue, 2, START)
    with pytest.raises(InvalidArgument, match="START flag"):
        push(queue, 2)


def test_a_start_on_a_live_id_lets_the_queue_run_and_resets_the_state():
    queue = queue_of(states=(SUM,))
    old = [push(queue, 1, START), push(queue, 1)]
    new = push(queue, 1, START)
    assert queue.restarted == 1
    for member in (*old, new):
        assert batch_of(queue) == [member]
        before = np.frombuffer(member.extra[0].data, np.float32)
        after = Tensor.from_numpy("SUM_OUT", (before + 1).reshape(1, 1))
        assert before.tolist() == [float(member is old[1])]
        queue.collect([(member, [after], None)])
        finish(queue, [member])
    assert queue.counts().seated == 1


def test_after_end_is_queued_the_id_is_free_for_another_sequence():
    queue = queue_of(slots=2)
    push(queue, 1, START)
    push(queue, 1, END)
    with pytest.raises(InvalidArgument, match="START flag"):
        push(queue, 1)
    push(queue, 1, START)
    assert queue.counts().seated == 2


def test_controls_say_start_end_ready_and_who():
    queue = queue_of(controls=CONTROLS)
    push(queue, 2**40 + 5, START)
    push(queue, 2, START | END)
    group = group_of(queue)

    def values(member):
        return [each.as_numpy().tolist() for each in member.extra]

    batch = queue.form(group, queue.decide(group, 0.0)).requests
    assert [values(each) for each in batch] == [
        [[[1]], [[False]], [[1.0]], [[2**40 + 5]]],
        [[[1]], [[True]], [[1.0]], [[2]]],
    ]
    finish(queue, batch)
    push(queue, 3, START)
    push(queue, 2**40 + 5)
    push(queue, 3)
    finish(queue, queue.form(group, queue.decide(group, 0.0)).requests)
    batch = queue.form(group, queue.decide(group, 0.0)).requests
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
    queue = queue_of(slots=0, controls=(ControlSpec(name="ID", kind=ControlKind.CORRID, datatype=datatype),))
    [member] = [push(queue, given, START)] and batch_of(queue)
    assert tuple(member.extra[0].shape) == (1,)
    assert member.extra[0].as_numpy().tolist() == [told]


def test_a_string_id_is_a_string_tensor():
    queue = queue_of(controls=(ControlSpec(name="ID", kind=ControlKind.CORRID, datatype=DataType.BYTES),))
    push(queue, "männlich", START)
    [member] = batch_of(queue)
    assert unpack_bytes(member.extra[0].data, "ID", 1) == ["männlich".encode()]


def test_states_of_other_sizes_don_t_share_a_batch():
    growing = StateSpec(
        input_name="S",
        output_name="S",
        datatype=DataType.FP32,
        dims=(-1,),
        initial=Tensor("S", DataType.FP32, (1,), bytes(4)),
    )
    queue = queue_of(strategy=OldestStrategy(), states=(growing,))
    batch = [push(queue, 1, START), push(queue, 2, START)]
    assert batch_of(queue) == batch
    longer = Tensor.from_numpy("S", np.ones((1, 2), np.float32))
    [seen, _] = queue.collect([(batch[0], [longer], None), (batch[1], [], None)])
    # The client did not request this output.
    assert seen[1] == []
    finish(queue, batch)
    push(queue, 1)
    push(queue, 2)
    [first] = batch_of(queue)
    assert tuple(first.extra[0].shape) == (1, 2)


def test_an_error_leaves_the_state_as_it_was():
    queue = queue_of(states=(SUM,))
    member = push(queue, 1, START)
    batch_of(queue)
    failed = Answer(code=ErrorCode.INTERNAL, message="no")
    queue.collect([(member, [Tensor.from_numpy("SUM_OUT", np.ones((1, 1), np.float32))], failed)])
    finish(queue, [member])
    second = push(queue, 1)
    batch_of(queue)
    assert second.extra[0].as_numpy().tolist() == [[0.0]]


def test_a_state_of_another_datatype_is_an_error_of_that_request():
    queue = queue_of(states=(SUM,))
    member = push(queue, 1, START)
    batch_of(queue)
    [(_, outputs, answer)] = queue.collect([(member, [Tensor.from_numpy("SUM_OUT", np.ones((1, 1)))], None)])
    assert outputs == []
    assert answer.code is ErrorCode.INTERNAL
    assert "'SUM_OUT' as FP64" in answer.message


def test_an_idle_sequence_loses_its_slot_and_its_id():
    queue = queue_of(max_idle=1.0)
    finish(queue, [push(queue, 1, START)] and batch_of(queue))
    push(queue, 1, now=0.8)
    assert queue.expire(1.5) == []
    finish(queue, batch_of(queue, now=1.5), 1.5)
    assert queue.counts().seated == 1
    assert queue.expire(1.8) == []
    assert queue.counts() == queue.counts().__class__(
        live=0, seated=0, backlogged=0, free_slots=4, expired=1, restarted=0
    )
    with pytest.raises(InvalidArgument, match="START flag"):
        push(queue, 1, now=2.0)


def test_what_an_idle_sequence_has_queued_still_runs():
    queue = queue_of(max_idle=1.0, slots=1)
    running = [push(queue, 1, START)] and batch_of(queue)
    queued = push(queue, 1)
    queue.expire(2.0)
    assert queue.counts().seated == 1
    finish(queue, running, 2.0)
    assert batch_of(queue, now=2.0) == [queued]
    finish(queue, [queued], 2.0)
    assert queue.counts().seated == 0


def test_a_sequence_in_the_backlog_is_not_idle_and_not_at_once_when_it_has_a_slot():
    queue = queue_of(max_idle=1.0, slots=1)
    running = [push(queue, 1, START | END)] and batch_of(queue)
    waiting = push(queue, 2, START)
    assert queue.expire(5.0) == []
    finish(queue, running, 5.0)
    assert batch_of(queue, now=5.0) == [waiting]
    finish(queue, [waiting], 5.01)
    assert queue.expire(5.01) == []
    assert queue.counts().live == 1
    queue.expire(5.2)
    assert queue.counts().live == 0


def test_the_backlog_s_timeout_fails_all_of_a_sequence():
    queue = queue_of(slots=1)
    push(queue, 1, START)
    line = [push(queue, 2, START), push(queue, 2, timeout=3.0), push(queue, 2, timeout=1.0, now=0.5)]
    assert queue.expire(1.4) == []
    ended = queue.expire(1.5)
    assert [member for member, _ in ended] == line
    assert {error.message for _, error in ended} == {"timeout of the corresponding sequence has been expired"}
    assert queue.counts().backlogged == 0


def test_with_a_slot_the_backlog_s_timeout_is_over():
    queue = queue_of(slots=1)
    running = [push(queue, 1, START | END)] and batch_of(queue)
    push(queue, 2, START, timeout=0.5)
    finish(queue, running, 0.1)
    assert queue.expire(0.9) == []
    assert len(queue) == 1


def test_cancelling_one_cancels_what_its_sequence_has_queued_and_frees_the_slot():
    queue = queue_of(slots=1)
    running = [push(queue, 1, START)] and batch_of(queue)
    line = [push(queue, 1), push(queue, 1)]
    assert queue.abandon(line[1], 0.0) == line
    assert queue.counts().seated == 1
    finish(queue, running)
    assert queue.counts().free_slots == 1
    assert queue.abandon(line[0], 0.0) == []


def test_a_deadline_ends_the_sequence():
    queue = queue_of()
    finish(queue, [push(queue, 1, START)] and batch_of(queue))
    late, behind = push(queue, 1, deadline=0.5), push(queue, 1)
    ended = dict(queue.expire(0.5))
    assert ended[late].code is ErrorCode.DEADLINE_EXCEEDED
    assert ended[behind].code is ErrorCode.UNAVAILABLE
    assert queue.counts().free_slots == 4


def test_a_dead_instance_ends_its_sequences_and_no_others():
    queue = queue_of(slots=1, instances=2)
    first, second = push(queue, 1, START), push(queue, 2, START)
    batch_of(queue, "0")
    behind = push(queue, 1)
    assert queue.leave("0", 0.0) == [behind]
    finish(queue, [first])
    assert batch_of(queue, "1") == [second]
    with pytest.raises(InvalidArgument, match="START flag"):
        push(queue, 1)
    queue.join("0", 1, 0.0)
    assert queue.counts().free_slots == 1


def test_sequences_of_which_nothing_has_run_go_on_before_the_backlog():
    queue = queue_of(slots=2)
    handed = push(queue, 1, START)
    assert batch_of(queue) == [handed]
    waiting, behind, stranger = push(queue, 2, START | END), push(queue, 1), push(queue, 3, START)
    assert queue.leave("0", 0.0, unrun=[handed]) == []
    queue.put_back(handed, alone=False, now=0.0)
    queue.join("0", 1, 1.0)
    batch = batch_of(queue)
    assert batch == [handed, waiting]
    finish(queue, batch, 1.0)
    assert batch_of(queue) == [behind, stranger]


def test_a_sequence_that_has_begun_is_over_though_its_next_request_was_not_run():
    queue = queue_of(slots=1)
    finish(queue, [push(queue, 1, START)] and batch_of(queue))
    handed = push(queue, 1)
    assert batch_of(queue) == [handed]
    behind = push(queue, 1)
    assert queue.leave("0", 0.0, unrun=[handed]) == [behind]
    assert queue.counts().live == 0


def test_with_a_checkpoint_sequences_go_on_before_the_backlog():
    queue = queue_of(slots=1, states=(SUM,), checkpoint=True)
    first = push(queue, 1, START)
    batch_of(queue)
    queue.collect([(first, [Tensor.from_numpy("SUM_OUT", np.full((1, 1), 5, np.float32))], None)])
    finish(queue, [first])
    second = push(queue, 1)
    batch_of(queue)
    third, stranger = push(queue, 1), push(queue, 2, START)
    assert queue.leave("0", 0.0) == []
    queue.put_back(second, alone=False, now=0.0)
    queue.join("0", 1, 1.0)
    assert batch_of(queue) == [second]
    assert second.extra[0].as_numpy().tolist() == [[5.0]]
    finish(queue, [second])
    assert batch_of(queue) == [third]
    assert stranger in queue


def test_a_sequence_without_requests_comes_back_with_its_next_one():
    queue = queue_of(slots=1, states=(SUM,), checkpoint=True, max_idle=1.0)
    finish(queue, [push(queue, 1, START)] and batch_of(queue))
    queue.leave("0", 0.0)
    queue.join("0", 1, 0.1)
    following = push(queue, 1, now=0.5)
    assert batch_of(queue, now=0.5) == [following]
    finish(queue, [following], 0.5)
    queue.leave("0", 0.5)
    queue.expire(2.0)
    assert queue.counts().live == 0


def test_a_suspect_runs_alone_and_is_not_passed_over():
    queue = queue_of(states=(SUM,), checkpoint=True)
    members = [push(queue, n, START) for n in (1, 2, 3)]
    batch_of(queue)
    queue.leave("0", 0.0)
    for member in members:
        queue.put_back(member, alone=member is not members[2], now=0.0)
    queue.join("0", 1, 0.0)
    group = group_of(queue)
    seen = []
    for _ in range(3):
        batch = queue.form(group, queue.decide(group, 0.0))
        [only] = [each for each in batch.requests if not each.padding]
        seen.append((only, batch.alone))
        finish(queue, [only])
    assert seen == [(members[0], True), (members[1], True), (members[2], False)]


def test_an_iterative_request_runs_until_it_is_released_for_good():
    queue = queue_of(iterative=True, strategy=OldestStrategy(), controls=CONTROLS)
    member = push(queue, 0)
    assert member.correlation_id == 1
    other = push(queue, 0)
    assert other.correlation_id == 2
    starts = []
    for _ in range(3):
        batch = batch_of(queue)
        starts.append([each.extra[0].as_numpy().item() for each in batch if each is member])
        for each in batch:
            queue.reschedule(each, 0.0)
    assert starts == [[1], [0], [0]]
    finish(queue, batch_of(queue))
    assert queue.counts().live == queue.counts().seated == 0


def test_neither_the_backlog_nor_the_slots_use_up_the_other_s_room():
    queue = queue_of(slots=1, bounds=QueueBounds(requests=2))
    push(queue, 1, START)
    push(queue, 2, START)
    push(queue, 3, START)
    assert not queue.admits(request_of(4, START))
    assert queue.admits(request_of(1))
    assert queue.may_pass(request_of(1))
    assert not queue.may_pass(request_of(2))
    push(queue, 1)
    assert not queue.admits(request_of(1))
    behind = request_of(1)
    queue.waits_for_room(behind, waits=True)
    assert not queue.may_pass(request_of(1))
    queue.waits_for_room(behind, waits=False)
    assert queue.may_pass(request_of(1))


def test_a_probe_is_a_sequence_of_its_own():
    queue = queue_of(controls=CONTROLS)
    probe = request_of(0)
    probe.synthetic = True
    queue.push(probe, 0.0)
    assert batch_of(queue) == [probe]
    assert [each.as_numpy().item() for each in probe.extra] == [1, True, 1.0, 0]
    finish(queue, [probe])
    assert queue.counts().free_slots == 4


def test_timers_forget_what_is_dropped():
    timers = Timers()
    numbers = [timers.set(float(n), n) for n in range(200)]
    for number in numbers[:150]:
        timers.drop(number)
    assert timers.next_due() == 150.0
    assert timers.pop_due(149.0) is None
    assert [timers.pop_due(151.0) for _ in range(3)] == [150, 151, None]
    timers.set(0.0, "new")
    assert timers.pop_due(0.0) == "new"
    assert len(timers) == 48


class Sequences(RuleBasedStateMachine):
    """Clients, instances and a clock act at random; a model says which request may have which answer."""

    @initialize(
        oldest=st.booleans(),
        slots=st.integers(0, 3),
        instances=st.integers(1, 2),
        keeps=st.booleans(),
    )
    def begin(self, oldest, slots, instances, keeps):
        strategy = OldestStrategy(max_candidate_sequences=3) if oldest else DirectStrategy()
        self.queue = queue_of(
            slots=slots,
            instances=instances,
            strategy=strategy,
            states=(SUM,),
            checkpoint=keeps,
            max_idle=1.0,
        )
        self.slots = 3 if oldest else max(1, slots)
        self.keeps = keeps
        self.up = {str(n) for n in range(instances)}
        self.all = set(self.up)
        self.now = 0.0
        self.waiting = []  # accepted and unanswered, in order of arrival
        self.running = {}  # by instance
        self.answered = set()
        self.begun = {}  # by sequence object: the number of the last request that began
        self.numbers = {}

    def answer(self, member):
        assert member not in self.answered
        self.answered.add(member)
        self.waiting.remove(member)

    @rule(
        who=st.integers(1, 5),
        flags=st.sampled_from([0, 0, 0, START, START, END, START | END]),
        width=st.integers(2, 3),
        deadline=st.sampled_from([math.inf, math.inf, 0.3]),
        timeout=st.sampled_from([0.0, 0.0, 0.4]),
    )
    def send(self, who, flags, width, deadline, timeout):
        made = request_of(who, flags, width=width, deadline=self.now + deadline, timeout=timeout)
        try:
            self.queue.push(made, self.now)
        except InvalidArgument:
            assert not flags & START
            return
        self.numbers[made] = len(self.numbers)
        self.waiting.append(made)

    @rule(instance=st.sampled_from(["0", "1"]))
    def run(self, instance):
        for group in self.queue.groups(instance):
            decision = self.queue.decide(group, self.now)
            if isinstance(decision, Wait):
                continue
            assert isinstance(decision, Dispatch)
            batch = self.queue.form(group, decision)
            real = [each for each in batch.requests if not each.padding]
            assert 1 <= len(real) <= len(batch.requests) <= max(1, self.slots)
            assert not self.running.get(instance)
            self.running[instance] = real
            homes = [each.queue_entry for each in real]
            assert len(set(homes)) == len(homes)
            for member, home in zip(real, homes, strict=True):
                assert self.begun.get(home, -1) <= self.numbers[member]
                self.begun[home] = self.numbers[member]
                assert member not in self.queue

    @rule(instance=st.sampled_from(["0", "1"]))
    def complete(self, instance):
        for member in self.running.pop(instance, []):
            self.answer(member)
            self.queue.done(member, self.now)

    @rule(at=st.integers(0, 100))
    def cancel(self, at):
        if self.waiting:
            member = self.waiting[at % len(self.waiting)]
            queued = member in self.queue
            ended = self.queue.abandon(member, self.now)
            assert (member in ended) == queued
            for each in ended:
                self.answer(each)

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.5, 2.0]))
    def wait(self, seconds):
        self.now += seconds
        for member, _ in self.queue.expire(self.now):
            self.answer(member)
        assert self.queue.next_expiry() > self.now

    @rule(instance=st.sampled_from(["0", "1"]), lost=st.integers(0, 3))
    def die(self, instance, lost):
        if instance not in self.up:
            return
        self.up.discard(instance)
        for member in self.queue.leave(instance, self.now):
            assert not self.keeps
            self.answer(member)
        for at, member in enumerate(self.running.pop(instance, [])):
            if self.keeps and at >= lost:
                self.begun.pop(member.queue_entry)
                self.queue.put_back(member, alone=bool(lost), now=self.now)
            else:
                self.answer(member)
                self.queue.done(member, self.now)

    @rule(instance=st.sampled_from(["0", "1"]))
    def come_back(self, instance):
        if instance in self.all - self.up:
            self.up.add(instance)
            self.queue.join(instance, 1, self.now)

    @invariant()
    def nothing_is_lost(self):
        if not hasattr(self, "queue"):
            return
        running = [member for members in self.running.values() for member in members]
        assert len(self.queue) + len(running) == len(self.waiting)
        assert all((member in self.queue) != (member in running) for member in self.waiting)
        assert self.queue.nbytes == sum(m.nbytes for m in self.waiting if m in self.queue)

    @invariant()
    def slots_add_up(self):
        if not hasattr(self, "queue"):
            return
        counts = self.queue.counts()
        assert counts.seated + counts.free_slots == self.slots * len(self.up)
        assert not (counts.backlogged and counts.free_slots)

    def teardown(self):
        """Once every instance is up and undisturbed, every request is answered and every slot is free."""
        if not hasattr(self, "queue"):
            return
        for instance in sorted(self.all - self.up):
            self.come_back(instance)
        for _ in range(4 * len(self.waiting) + 200):
            self.now += 0.001
            for instance in sorted(self.all):
                self.run(instance)
                self.complete(instance)
            for member, _ in self.queue.expire(self.now):
                self.answer(member)
            if not self.waiting:
                break
            # Sequences that never end hold slots until they are idle.
            self.now += 0.3
        assert not self.waiting
        self.now += 10.0
        self.queue.expire(self.now)
        counts = self.queue.counts()
        assert counts.live == counts.seated == counts.backlogged == 0
        assert counts.free_slots == self.slots * len(self.all)


Sequences.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestSequencesAtRandom = Sequences.TestCase
