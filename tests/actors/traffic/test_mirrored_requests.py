"""Copies of requests for a mirror version: compared, counted, thrown away, and never in the client's way."""

import numpy as np
import pytest
import trio

from actors.serving.standing import Status
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.traffic.mirror import OUTSTANDING, PATIENCE
from actors.traffic.policy.comparison import KEPT_BYTES
from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument
from actors.values.regions import RegionUse
from actors.values.specs import (
    DynamicBatching,
    InputSpec,
    QueueBounds,
    QueuePolicy,
)
from actors.values.tensors import Tensor
from actors.values.traffic import Mirror, TrafficPlan
from tests.support.traffic_doubles import KEY, Versions, answer, drawing
from tests.support.trees import serving

PLAN = TrafficPlan(weights={1: 1.0}, mirror=Mirror(version=2))


def mirrored(*, fraction=1.0, random=None, tolerance=1e-5, **changes):
    versions = Versions(1, 2, random=random or drawing(0.0), **changes)
    mirror = Mirror(version=2, fraction=fraction, tolerance=tolerance)
    versions.control.adopt(KEY, TrafficPlan(weights={1: 1.0}, mirror=mirror))
    return versions


@pytest.fixture
async def versions():
    return mirrored()


@pytest.fixture
async def narrow():
    """Versions with room for one request in each queue."""
    return mirrored(queue_bounds=QueueBounds(requests=1))


def comparing(versions):
    """The actor that compares, under a supervisor."""
    return serving(Supervisor([ChildSpec("mirror", versions.control.compare)]))


def counts(versions):
    """What became of the copies, without zeros."""
    mirror = versions.control.describe("model")["mirror"]
    kept = ("sent", "same", "different", "errors", "uncompared", "skipped", "outstanding")
    return {name: mirror[name] for name in kept if mirror[name]}


def differences(versions):
    return versions.control.describe("model")["mirror"]["differences"]


async def compared(versions):
    """Compare everything that can be; return what became of the copies."""
    async with comparing(versions):
        await trio.testing.wait_all_tasks_blocked()
    return counts(versions)


def fp32(*values):
    return [Tensor.from_numpy("OUTPUT", np.array([values], np.float32))]


async def test_a_mirror_gets_a_copy_and_the_client_the_primarys_answer(versions):
    request, port = await versions.send(3.0, id="r1", priority=1, parameters={"a": 1})
    (copy,) = versions[2].in_flight
    assert copy is not request
    assert (copy.id, copy.priority, copy.parameters) == ("r1", 1, {"a": 1})
    assert [each.data for each in copy.inputs] == [each.data for each in request.inputs]
    versions.answer(1)
    response = await port.wait()
    assert response.model_version == 1
    versions.answer(2)
    assert await compared(versions) == {"sent": 1, "same": 1}

    assert len(port.parts) == 1


async def test_the_mirrors_answer_may_come_first(versions):
    _, port = await versions.send()
    versions.answer(2)
    assert port.parts == []
    versions.answer(1)
    assert await compared(versions) == {"sent": 1, "same": 1}


async def test_answers_that_differ_are_counted_and_the_last_ones_remembered(versions):
    for number in range(10):
        await versions.send(id=f"r{number}")
        versions.answer(1, outputs=fp32(1, 2))
        versions.answer(2, outputs=fp32(1, 2 + number / 1000))
        await compared(versions)
    assert counts(versions) == {"sent": 10, "same": 1, "different": 9}
    assert [each["request_id"] for each in differences(versions)] == [f"r{n}" for n in range(2, 10)]
    assert differences(versions)[0] == {
        "version": 2,
        "client_version": 1,
        "request_id": "r2",
        "what": "value",
        "output": "OUTPUT",
        "index": [0, 1],
        "elements": 1,
        "client": 2.0,
        "mirror": 2.002,
    }


async def test_the_tolerance_is_the_plans():
    versions = mirrored(tolerance=0.5)
    await versions.send()
    versions.answer(1, outputs=fp32(1, 2))
    versions.answer(2, outputs=fp32(1, 2.4))
    assert await compared(versions) == {"sent": 1, "same": 1}


async def test_a_mirror_that_fails_is_an_error_of_the_mirror_only(versions):
    _, port = await versions.send(id="r1")
    versions.answer(2, error="no such weights")
    versions.answer(1)
    assert await compared(versions) == {"sent": 1, "errors": 1}
    assert port.answered

    assert differences(versions) == [
        {
            "version": 2,
            "client_version": 1,
            "request_id": "r1",
            "what": "error",
            "client": "an answer",
            "mirror": "Internal: no such weights",
        }
    ]


async def test_versions_that_fail_alike_are_alike_and_a_primary_that_fails_alone_differs(versions):
    await versions.send()
    versions.answer(1, error="bad input")
    versions.answer(2, error="bad input indeed")
    await versions.send()
    versions.answer(1, error="bad input")
    versions.answer(2)
    assert await compared(versions) == {"sent": 2, "same": 1, "different": 1}


async def test_a_client_that_left_is_not_compared(versions):
    request, port = await versions.send()
    versions.router.resolve("model").cancel(request)
    assert port.error is not None
    versions.answer(2)
    request, port = await versions.send()
    running = versions[1].queue.take(1)
    versions.router.resolve("model").cancel(request)
    answer(versions[1], requests=running)
    versions.answer(2)
    assert await compared(versions) == {"sent": 2, "uncompared": 2}


async def test_only_a_fraction_is_mirrored():
    # Each request draws for the mirror first, then for its version.
    versions = mirrored(fraction=0.25, random=drawing(0.2, 0.0, 0.3, 0.0, 0.24, 0.0, 0.25, 0.0))
    for _ in range(4):
        await versions.send()
    assert counts(versions) == {"sent": 2, "outstanding": 2}


async def test_requests_of_a_sequence_and_the_servers_own_are_not_mirrored(versions):
    await versions.send(correlation_id=7)
    probe = versions.request()
    probe.synthetic = True
    await versions.router.resolve("model").submit(probe)
    assert counts(versions) == {}


class InRegions(RegionUse):
    """A request lies in its client's shared memory, all of which was read."""

    def must_read(self, *, stay):
        return False

    async def read(self, *, stay):
        raise AssertionError("there is nothing to read")

    def end(self):
        raise AssertionError("its frontend ends it")


async def test_a_request_in_its_clients_shared_memory_is_not_mirrored(versions):
    request = versions.request()
    request.regions = InRegions()
    await versions.router.resolve("model").submit(request)
    assert counts(versions) == {"skipped": 1}
    assert list(versions[1].in_flight) == [request]


# -- the memory of an answer


async def test_what_the_client_got_is_copied_before_its_memory_is_given_back(versions):
    _, port = await versions.send()
    memory = bytearray(np.array([1, 2], np.float32).tobytes())
    slot_view = [Tensor.from_numpy("OUTPUT", np.frombuffer(memory, np.float32).reshape(1, 2))]
    versions.answer(1, outputs=slot_view, borrowed=True)
    (await port.wait()).release()
    memory[:] = b"\xff" * 8
    versions.answer(2, outputs=fp32(1, 2))
    assert await compared(versions) == {"sent": 1, "same": 1}


async def test_the_mirrors_memory_is_given_back_at_once(versions):
    await versions.send()
    versions.answer(2, borrowed=True)
    assert [slot.leases for slot in versions.slots] == [0]


async def test_large_answers_are_compared_in_a_thread_while_the_loop_turns(versions):
    large = np.zeros((1, KEPT_BYTES // 8), np.float32)
    other = large.copy()
    other[0, 77] = 1
    await versions.send()
    versions.answer(1, outputs=[Tensor.from_numpy("OUTPUT", large)])
    versions.answer(2, outputs=[Tensor.from_numpy("OUTPUT", other)])
    async with comparing(versions):
        while "outstanding" in counts(versions):  # noqa: ASYNC110  # a thread brings it about
            await trio.sleep(0.002)
    assert differences(versions)[0]["index"] == [0, 77]


# -- never in the way


async def test_a_mirror_that_is_not_ready_or_not_there_is_skipped(versions):
    versions[2].standing.become(Status.UNAVAILABLE, "dead")
    _, port = await versions.send()
    versions.answer(1)
    assert port.answered
    assert counts(versions) == {"skipped": 1}


async def test_a_mirror_that_is_retired_while_the_client_waits_for_room_is_skipped(narrow, autojump_clock):
    await narrow.send()
    mirror = narrow[2]
    narrow.answer(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(narrow.send)  # waits for room in version 1
        await trio.testing.wait_all_tasks_blocked()
        mirror.standing.become(Status.UNLOADING)
        narrow.answer(1)
    assert counts(narrow) == {"sent": 1, "skipped": 1, "outstanding": 1}


async def test_a_mirror_with_a_full_queue_is_skipped_and_nobody_waits(narrow):
    _, first = await narrow.send()
    narrow.answer(1)  # the mirror still has its copy
    with trio.fail_after(1):
        _, second = await narrow.send()
    narrow.answer(1)
    assert first.answered
    assert second.answered
    assert counts(narrow) == {"sent": 1, "skipped": 1, "outstanding": 1}


async def test_a_request_that_can_not_wait_is_copied_too_but_only_once_it_has_been_queued(narrow):
    model = narrow.router.resolve("model")
    model.submit_nowait(narrow.request())
    assert counts(narrow) == {"sent": 1, "outstanding": 1}
    narrow[2].queue.drain()
    request = narrow.request()
    port = request.reply
    with pytest.raises(trio.WouldBlock):
        model.submit_nowait(request)
    assert request.reply is port  # as it came, to be submitted again
    assert counts(narrow) == {"sent": 1, "outstanding": 1}


async def test_a_mirror_whose_queue_refuses_is_skipped():
    full = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    versions = mirrored(scheduling=full)
    await versions.send()
    versions.answer(1)
    await versions.send()
    assert counts(versions) == {"sent": 1, "skipped": 1, "outstanding": 1}


async def test_a_copy_that_would_wait_behind_others_is_skipped(narrow, autojump_clock):
    mirror = narrow.router.resolve("model", "2")
    await mirror.submit(narrow.request())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mirror.submit, narrow.request())
        await trio.testing.wait_all_tasks_blocked()
        narrow.answer(2)  # there is room now, for the one that has waited
        started = trio.current_time()
        await narrow.send()
        assert trio.current_time() == started
    assert counts(narrow) == {"skipped": 1}


async def test_no_more_than_so_many_copies_are_on_their_way(versions):
    for _ in range(OUTSTANDING + 3):
        await versions.send()
        versions.answer(1)
    assert counts(versions) == {"sent": OUTSTANDING, "skipped": 3, "outstanding": OUTSTANDING}
    versions.answer(2)
    assert await compared(versions) == {"sent": OUTSTANDING, "same": OUTSTANDING, "skipped": 3}


async def test_a_primary_that_refuses_has_nothing_mirrored(versions):
    request = versions.request()
    request.inputs = []
    with pytest.raises(InvalidArgument):
        await versions.router.resolve("model").submit(request)
    assert counts(versions) == {}


async def test_a_client_that_leaves_while_it_waits_for_room_has_nothing_mirrored(narrow, autojump_clock):
    await narrow.send()
    with trio.move_on_after(5):
        await narrow.send()
    assert counts(narrow) == {"sent": 1, "outstanding": 1}


async def test_a_mirror_that_wants_another_shape_counts_errors():
    versions = Versions(1, random=drawing(0.0))
    versions.add(2, max_batch_size=1)
    versions.control.adopt(KEY, PLAN)
    request = versions.request()
    request.inputs = [Tensor.from_numpy("INPUT", np.zeros((2, 2), np.float32))]
    port = request.reply
    await versions.router.resolve("model").submit(request)
    versions.answer(1)
    assert await compared(versions) == {"sent": 1, "errors": 1}
    assert port.answered


async def test_a_mirror_with_other_inputs_gets_nothing():
    versions = Versions(1, random=drawing(0.0))
    versions.add(
        2, inputs=(InputSpec(name="IMAGE", datatype=versions[1].spec.inputs[0].datatype, dims=(2,)),)
    )
    versions.control.adopt(KEY, PLAN)
    await versions.send()
    assert counts(versions) == {"skipped": 1}
    assert versions.control.describe("model")["warnings"] == [
        "version 2 is left out: version 1 alone has input 'INPUT'"
    ]


async def test_a_decoupled_model_is_not_mirrored():
    versions = mirrored(decoupled=True)
    await versions.send()
    assert counts(versions) == {}
    assert versions.control.describe("model")["warnings"] == [
        "nothing is mirrored, for version 2 is decoupled"
    ]


async def test_a_copy_waits_for_the_mirror_no_longer_than_somebody_may_care(versions, autojump_clock):
    await versions.send()
    (copy,) = versions[2].in_flight
    assert copy.deadline == trio.current_time() + PATIENCE


async def test_a_request_that_only_the_mirror_could_take_in_the_end_is_not_mirrored_to_itself(versions):
    held = versions.router.resolve("model")
    versions[1].standing.become(Status.UNLOADING)
    request = versions.request()
    await held.submit(request)
    assert request.routed_to is versions[2]
    assert counts(versions) == {}


async def test_an_actor_that_dies_while_it_compares_loses_no_more_than_that_comparison(versions):
    for outputs in ([Tensor("OUTPUT", DataType.FP32, (1, 2), [0] * 8)], fp32(1, 2)):  # type: ignore[arg-type]  # no bytes at all
        await versions.send()
        answer(versions[1], outputs=outputs)
        answer(versions[2], outputs=fp32(1, 2))
    async with comparing(versions) as tree:
        await trio.testing.wait_all_tasks_blocked()
        assert "child_restarted" in tree.names()
    assert counts(versions) == {"sent": 2, "same": 1, "uncompared": 1}
