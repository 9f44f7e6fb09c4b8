"""The way of batches to an instance: the states of each, the channel, and what is left when an instance dies."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from actors.serving.instances.batches import BATCH_CHANGES, BatchState, HeldBatches, InFlight
from actors.serving.instances.sending import FILLED_AT_ONCE, NotRead
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.policy.retries import Signal
from actors.values.errors import InvalidArgument
from actors.values.specs import InstanceSpec, RateLimit, Resource
from actors.wire.arena import INPUT
from actors.wire.slots import Slot
from tests.actors.serving.test_instance_in_virtual_time import serving
from tests.support.model_doubles import FakeSlot, make_request

HANDED, SENT, BEGUN, DONE, REVOKED = BatchState
LONG = FILLED_AT_ONCE // 8 + 1  # rows of inputs that are too long to be copied in one piece


def batch_of(number=1):
    return InFlight(number, [], FakeSlot(), alone=False, began_at=0.0)


def held_of(*batches, lanes=1):
    held = HeldBatches(lanes)
    for batch in batches:
        held.outstanding[batch.id] = batch
        held.hand(batch)
    return held


@pytest.mark.parametrize(("before", "after"), list(itertools.product(BatchState, repeat=2)))
def test_a_batch_changes_its_state_only_as_the_table_says(before, after):
    batch = batch_of()
    batch.state = before
    if after in BATCH_CHANGES[before]:
        batch.become(after)
        assert batch.state is after
    else:
        with pytest.raises(ValueError, match=f"batch 1 can't go from {before.name} to {after.name}"):
            batch.become(after)
        assert batch.state is before


async def test_batches_come_in_the_order_in_which_they_were_handed_over():
    first, second = batch_of(1), batch_of(2)
    held = held_of(first, second)
    assert [await held.next_handed(), held.next_handed_nowait()] == [first, second]
    assert held.next_handed_nowait() is None


async def test_a_batch_beyond_the_credit_is_a_bug():
    held = held_of(batch_of(1), batch_of(2))
    with pytest.raises(trio.WouldBlock):
        held.hand(batch_of(3))


async def test_an_instance_passes_over_what_was_taken_back_and_its_place_is_spent_until_then():
    first, second = batch_of(1), batch_of(2)
    held = held_of(first, second)
    held.revoke(first)
    assert (first.state, held.withdrawn, len(held.outstanding)) == (REVOKED, 1, 1)
    assert [await held.next_handed(), await held.next_handed()] == [None, second]
    assert (held.withdrawn, len(held.outstanding)) == (0, 1)


async def test_what_was_taken_back_before_the_instance_has_had_its_turn_is_passed_over(nursery):
    held, came = HeldBatches(1), []

    async def instance():
        while True:
            came.append(await held.next_handed())

    nursery.start_soon(instance)
    await trio.testing.wait_all_tasks_blocked()
    first, second = batch_of(1), batch_of(2)
    for batch in (first, second):
        held.outstanding[batch.id] = batch
    held.hand(first)
    held.revoke(first)
    held.hand(second)
    await trio.testing.wait_all_tasks_blocked()
    assert (came, held.unsent, held.withdrawn) == ([None, second], 0, 0)


async def test_nothing_is_left_in_the_channel_of_an_instance_that_holds_nothing():
    first = batch_of(1)
    held = held_of(first)
    held.clear()
    assert (held.unsent, held.withdrawn, held.idle, first.state) == (0, 0, True, REVOKED)
    assert held.next_handed_nowait() is None


@pytest.fixture
async def life(nursery):
    """Yield an instance that serves; the test ends it."""
    begun = await serving(nursery)
    yield begun
    await begun.die(Signal(9))


async def test_a_dead_instance_s_channel_goes_back_to_the_head_of_the_queue(life, autojump_clock):
    life.queue()
    await life.worker.batch()
    (handed,) = life.queue(rows=LONG)  # and the instance has not come to it
    assert life.instance.held.unsent == 1
    await life.die(Signal(15))
    assert not handed.reply.answered
    assert handed.attempts == 0
    assert handed in life.state.queue or handed in life.instance.suspects
    assert life.instance.held.idle
    assert life.instance.held.unsent == 0


async def test_what_a_crashed_actor_left_goes_back_if_it_was_not_sent_and_is_answered_if_it_was(life):
    (sent,) = life.queue()
    (handed,) = life.queue(rows=LONG)
    life.state.dispatcher.reclaim(life.instance)
    assert sent.reply.error.message.endswith("instance 'model_0_0' has crashed")
    assert not handed.reply.answered
    assert handed.attempts == 0
    assert life.state.queue.take(1) == [handed]
    assert life.instance.held.idle


async def test_a_short_batch_that_waits_behind_an_execution_is_sent_in_the_turn_that_forms_it(life):
    life.queue()
    life.queue()
    assert [batch.state for batch in life.instance.held.outstanding.values()] == [SENT, SENT]
    assert life.instance.held.unsent == 0


async def test_the_scheduler_hears_of_the_room_that_a_batch_leaves_which_was_taken_back(life):
    worker: Any = life.instance.worker
    worker.stop_prefetching()
    (cancelled,) = life.queue(rows=LONG)
    life.state.submit_nowait(make_request())
    life.state.cancel(cancelled)
    # The place is spent until the instance has come to it, and the ring of the cancellation is too early.
    assert not worker.has_room
    life.state.doorbell.answer()
    await trio.testing.wait_all_tasks_blocked()
    assert worker.has_room
    with trio.fail_after(1):
        await life.state.doorbell.wait()


async def test_a_batch_that_cannot_be_sent_is_answered_and_costs_no_credit(life, monkeypatch):
    (cancelled,) = life.queue(rows=LONG)
    life.state.cancel(cancelled)
    (waiting,) = life.queue()  # handed over, behind the one that was taken back

    def no_memory(*args):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("actors.wire.slots.Slot.make_room", no_memory)
    await trio.testing.wait_all_tasks_blocked()
    assert "no memory to run a batch of model 'model': " in waiting.reply.error.message
    assert not life.instance.held.outstanding
    assert life.instance.held.withdrawn == 0
    assert waiting.attempts == 0


async def test_a_request_that_was_answered_before_its_region_proved_too_short_is_answered_once(life):
    life.queue(rows=LONG)
    (batch,) = life.instance.held.outstanding.values()
    life.state.outcome.fail_all("the model is gone")
    life.instance.held.revoke(batch)
    batch.unread = {0: InvalidArgument("too short")}
    failed = dict(life.state.statistics.failures)
    life.state.dispatcher.unsent(life.instance, batch, NotRead())
    assert life.state.statistics.reply_violations == 0
    assert life.state.statistics.failures == failed


async def test_suspects_that_a_crashed_actor_left_do_not_wait_for_an_instance_that_was_removed(life):
    (suspect,) = requests = [make_request(LONG)]
    life.state.in_flight[suspect] = None
    life.state.dispatcher.dispatch(life.instance, requests, alone=True)
    life.state.standing.add_instances([InstanceSpec(name="model_0_1")])
    life.state.standing.remove(life.instance)
    life.state.dispatcher.reclaim(life.instance)
    assert life.state.queue.take(1) == [suspect]
    assert not life.instance.hunting


async def test_what_a_crashed_actor_executed_holds_no_resources(life):
    limiter = life.state.dispatcher.limiter = RateLimiter({})
    needs = RateLimit(resources=(Resource(name="R", count=1),))
    limiter.enter("model", [(life.instance, replace(life.instance.spec, rate_limit=needs))], lambda: None)
    assert limiter.ask(life.instance)
    life.queue()
    limiter.began(life.instance)
    life.state.dispatcher.reclaim(life.instance)
    assert [pool.used for pool in limiter.statistics().pools.values()] == [0]


async def test_a_long_batch_is_prepared_once(life, monkeypatch):
    made, make_room = [], Slot.make_room

    def noted(slot, side, nbytes):
        made.append((side, nbytes))
        make_room(slot, side, nbytes)

    monkeypatch.setattr(Slot, "make_room", noted)
    life.queue(rows=LONG)
    await life.worker.batch()
    assert made == [(INPUT, 8 * LONG)]
