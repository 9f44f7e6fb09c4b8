"""Requests that name no version, shared out over versions that come and go."""

import random
from collections import Counter
from typing import Any

import pytest
import trio

from actors.serving.standing import Status
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, InvalidArgument, Unavailable
from actors.values.marks import ClientMarks
from actors.values.specs import (
    DynamicBatching,
    InputSpec,
    QueueBounds,
    QueuePolicy,
)
from actors.values.traffic import TrafficPlan
from tests.support.traffic_doubles import KEY, Versions, answer, drawing


def splitting(*numbers, weights=None, random=None, plan=None, **changes):
    """Versions with a plan: nine tenths to 1, one to 2, unless said otherwise."""
    versions = Versions(*(numbers or (1, 2)), random=random or drawing(0.0), **changes)
    versions.control.adopt(KEY, plan or TrafficPlan(weights=weights or {1: 90, 2: 10}))
    return versions


@pytest.fixture
async def versions():
    """Two versions of which the second is chosen."""
    return splitting(random=drawing(0.95))


async def test_a_model_without_a_plan_is_answered_by_the_version_itself():
    versions = Versions(1, 2, random=drawing(0.0))
    versions.control.adopt(KEY, None)
    assert versions.router.resolve("model") is versions[2]


async def test_a_request_that_names_a_version_is_not_shared_out():
    versions = splitting()
    assert versions.router.resolve("model", "2") is versions[2]


async def test_the_answer_says_which_version_gave_it(versions):
    request, port = await versions.send()
    versions.answer(2)
    assert (await port.wait()).model_version == 2
    assert request.routed_to.spec.version == 2


async def test_the_split_shows_the_configuration_of_the_version_with_the_largest_share():
    versions = splitting(weights={1: 10, 2: 90})
    assert versions.router.resolve("model").spec is versions[2].spec


# -- versions that come and go


async def test_a_version_that_is_not_ready_is_left_out_and_comes_back(versions):
    versions[2].standing.become(Status.UNAVAILABLE, "dead")
    await versions.send()
    assert len(versions[1].queue) == 1
    versions[2].standing.become(Status.READY)
    await versions.send()
    assert len(versions[2].queue) == 1


async def test_a_version_of_the_plan_takes_its_share_once_it_is_loaded():
    versions = splitting(1, random=drawing(0.95))
    await versions.send()
    versions.add(2)
    await versions.send()
    assert (len(versions[1].queue), len(versions[2].queue)) == (1, 1)


async def test_a_version_outside_the_plan_gets_no_requests_while_one_of_the_plan_is_ready():
    versions = splitting(1, 2, 9, random=random.Random(1).random)
    for _ in range(50):
        await versions.send()
    assert len(versions[9].queue) == 0
    for number in (1, 2):
        versions[number].standing.become(Status.UNAVAILABLE, "dead")
    await versions.send()
    assert len(versions[9].queue) == 1


async def test_a_split_held_while_its_version_is_swapped_sends_to_the_new_generation(versions):
    held = versions.router.resolve("model")  # a frontend waits for the body
    old = versions[2]
    new = versions.add(2)
    request = versions.request()
    await held.submit(request)
    assert (len(old.queue), len(new.queue)) == (0, 1)


async def test_a_split_held_while_the_plan_was_ended_sends_to_what_serves(versions):
    held = versions.router.resolve("model")
    versions.control.change("model", {})
    old = versions[2]
    new = versions.add(2)
    old_one = versions[1]
    newer_one = versions.add(1)
    await held.submit(versions.request())
    assert [len(each.queue) for each in (old, old_one)] == [0, 0]
    assert len(new.queue) + len(newer_one.queue) == 1


async def test_requests_waiting_for_room_in_a_version_that_is_retired_go_to_another(autojump_clock):
    versions = splitting(random=drawing(0.95), queue_bounds=QueueBounds(requests=1))
    await versions.send()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(versions.send)  # the queue of version 2 is full
        await trio.testing.wait_all_tasks_blocked()
        assert len(versions[1].queue) == 0
        versions[2].standing.become(Status.UNLOADING)
        versions[2].intake.fail_queued(Unavailable("stopping"))
    assert len(versions[1].queue) == 1


async def test_who_can_not_wait_is_sent_to_the_chosen_version_or_told_to_come_with_time():
    versions = splitting(random=drawing(0.95), queue_bounds=QueueBounds(requests=1))
    held = versions.router.resolve("model")
    held.submit_nowait(versions.request())
    assert len(versions[2].queue) == 1
    with pytest.raises(trio.WouldBlock):
        held.submit_nowait(versions.request())
    versions.control.change("model", {})
    new = versions.add(2)
    # The version that was chosen is retired; the search for another may wait.
    with pytest.raises(trio.WouldBlock):
        held.submit_nowait(versions.request())
    await held.submit(versions.request())
    assert len(new.queue) + len(versions[1].queue) == 1


async def test_a_version_that_refuses_for_want_of_room_refuses_for_all():
    full = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    versions = splitting(random=drawing(0.95), scheduling=full)
    await versions.send()
    with pytest.raises(Unavailable, match="maximum queue size"):
        await versions.send()
    assert len(versions[1].queue) == 0


async def test_a_version_that_has_no_room_for_what_a_retired_one_refused_refuses_it_too():
    full = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    versions = splitting(random=drawing(0.95), scheduling=full)
    await versions.router.resolve("model", "1").submit(versions.request())
    held = versions.router.resolve("model")
    versions[2].standing.become(Status.UNLOADING)
    with pytest.raises(Unavailable, match="maximum queue size"):
        await held.submit(versions.request())


async def test_where_no_version_is_left_the_client_is_told_what_the_chosen_one_said(versions):
    held = versions.router.resolve("model")
    for number in (1, 2):
        versions[number].standing.become(Status.UNLOADING)
    with pytest.raises(Unavailable, match="Server is stopping"):
        await held.submit(versions.request())


async def test_a_version_that_goes_while_another_is_tried_is_passed_over_too(autojump_clock):
    bounds = QueueBounds(requests=1)
    versions = splitting(1, 2, 3, weights={1: 1, 2: 1, 3: 98}, random=drawing(0.9), queue_bounds=bounds)
    await versions.send()
    await versions.router.resolve("model", "2").submit(versions.request())
    one = versions[1]
    one.standing.become(Status.UNAVAILABLE, "dead")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(versions.send)  # waits in 3
        await trio.testing.wait_all_tasks_blocked()
        for number in (3, 2):  # then in 2
            versions[number].standing.become(Status.UNLOADING)
            if number == 2:
                one.standing.become(Status.READY)
            versions[number].intake.fail_queued(Unavailable("stopping"))
            await trio.testing.wait_all_tasks_blocked()
    assert len(one.queue) == 1


async def test_a_version_with_other_inputs_is_left_out():
    versions = splitting(1, random=drawing(0.95))
    versions.add(2, inputs=(InputSpec(name="IMAGE", datatype=DataType.UINT8, dims=(-1,)),))
    await versions.send()
    assert len(versions[1].queue) == 1


async def test_a_request_that_contradicts_the_model_is_refused_and_counted_nowhere():
    versions = splitting()
    request = versions.request()
    request.inputs = []
    with pytest.raises(InvalidArgument):
        await versions.router.resolve("model").submit(request)
    assert versions.control.describe("model")["versions"][0]["requests"] == 0


# -- clients that leave


async def test_a_client_that_leaves_is_taken_from_the_version_that_has_its_request(versions):
    request, port = await versions.send()
    versions.add(2)  # the one that has it drains
    versions.router.resolve("model").cancel(request)
    assert isinstance(port.error, Cancelled)


async def test_a_client_that_leaves_before_its_request_was_sent_is_remembered():
    versions = splitting()
    request = versions.request()
    versions.router.resolve("model").cancel(request)
    assert request.cancelled


# -- clients that stay with a version


def met(versions):
    """Which version has the request; it answers."""
    (number,) = [number for number in versions.router.roster.serving(KEY) if versions.answer(number)]
    return number


STICKY = [
    (TrafficPlan(weights={1: 50, 2: 50}, sticky_header="x-user"), lambda key: {"affinity": key}),
    (TrafficPlan(weights={1: 50, 2: 50}, sticky_parameter="u"), lambda key: {"parameters": {"u": key}}),
    (
        TrafficPlan(weights={1: 50, 2: 50}, sticky_parameter="u"),
        lambda key: {"parameters": {"u": int(key[5:])}},
    ),
    (TrafficPlan(weights={1: 50, 2: 50}), lambda key: {"correlation_id": key}),
]


@pytest.mark.parametrize(("plan", "options"), STICKY)
async def test_a_client_or_a_sequence_stays_with_its_version(plan, options):
    versions = splitting(plan=plan, random=random.Random(5).random)
    seen: Any = Counter()
    for number in range(40):
        where = set()
        for _ in range(3):
            await versions.send(**options(f"user-{number}"))
            where.add(met(versions))
        assert len(where) == 1
        seen.update(where)
    assert 8 < seen[1] < 32


@pytest.mark.parametrize("options", [{}, {"parameters": {"other": 1}}, {"parameters": {"u": ""}}])
async def test_clients_without_a_key_are_shared_out_at_random(options):
    plan = TrafficPlan(weights={1: 50, 2: 50}, sticky_parameter="u")
    versions = splitting(plan=plan, random=drawing(0.2, 0.7, 0.2, 0.7))
    where = []
    for _ in range(4):
        await versions.send(**options)
        where.append(met(versions))
    assert where == [1, 2, 1, 2]


async def test_the_split_tells_frontends_which_header_it_goes_by():
    plan = TrafficPlan(weights={1: 1, 2: 1}, sticky_header="x-user")
    assert splitting(plan=plan).router.resolve("model").marks == ClientMarks(affinity_header="x-user")
    assert splitting().router.resolve("model").marks is None


async def test_a_retired_version_goes_on_answering_what_it_has(versions):
    _, port = await versions.send()
    old = versions[2]
    versions.add(2)
    answer(old)
    assert (await port.wait()).model_version == 2
