"""Where instances go if their model leaves the GPU open, and when a GPU takes no more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.gpus.placing import Room, devices_of, place, seat, why_full, without
from actors.values.hardware.gpus import Gpu
from actors.values.specs import InstanceSpec

GIB = 2**30


def instances(count, candidates=(0, 1, 2)):
    return [
        InstanceSpec(name=f"m_{number}", kind="GPU", device_id=candidates[0], candidates=candidates)
        for number in range(count)
    ]


def rooms(*free, total=80 * GIB):
    return {number: Room(total, each * GIB) for number, each in enumerate(free)}


def devices(placed):
    return [each.device_id for each in placed]


def put(count, *free, need=4, **changes):
    needs = dict.fromkeys(range(len(free)), need * GIB)
    return devices(place(instances(count), rooms=rooms(*free), needs=needs, **changes))


def test_an_instance_goes_where_most_is_free():
    assert put(1, 10, 30, 20) == [1]
    assert put(1, 10, 10, 10) == [0]


def test_each_counts_what_those_before_it_take():
    assert put(4, 10, 30, 28) == [1, 2, 1, 2]
    assert put(3, 10, 30, 20, need=0) == [1, 1, 1]


def test_one_that_was_somewhere_stays_there():
    before = [InstanceSpec(name="m_0", kind="GPU", device_id=2), InstanceSpec(name="m_1", device_id=9)]
    assert put(2, 10, 30, 20, before=before) == [2, 1]


def test_others_are_where_their_configuration_says():
    fixed = [InstanceSpec(name="m_0", kind="GPU", device_id=2), InstanceSpec(name="m_1")]
    assert place(fixed, rooms=rooms(1, 1, 1), needs={}) == tuple(fixed)


def test_what_is_promised_is_taken():
    assert without(rooms(10, 30), {1: 25 * GIB}) == rooms(10, 5)
    assert without(rooms(10), {0: 11 * GIB}) == rooms(0)


@given(st.lists(st.integers(0, 40), min_size=3, max_size=3), st.integers(1, 12), st.integers(0, 9))
def test_no_gpu_is_filled_while_another_has_more_room_for_one(free, count, need):
    """The emptiest GPU after placing could not have been emptier by more than one instance's need."""
    placed = devices(place(instances(count), rooms=rooms(*free), needs=dict.fromkeys(range(3), need * GIB)))
    left = [each - need * placed.count(number) for number, each in enumerate(free)]
    used = [left[number] for number in set(placed)]
    assert all(each + need >= max(left) for each in used)


def test_a_gpu_takes_no_model_while_more_than_its_limit_is_in_use():
    on_one = [InstanceSpec(name="m_0", kind="GPU", device_id=1)]
    memory = rooms(0, 20, total=100 * GIB)
    assert why_full(on_one, memory, {1: 0.9}) == ""
    assert why_full(on_one, memory, {0: 0.1}) == ""  # another GPU's
    assert why_full(on_one, memory, {1: 0.75}) == (
        "memory limit set for GPU 1 has exceeded, model loading is rejected: 80.0% of its memory are in use,"
        " and --model-load-gpu-limit is 75%"
    )
    assert why_full([InstanceSpec(name="m_0", device_id=1)], memory, {1: 0.1}) == ""


@pytest.mark.parametrize("used", [0.0, 0.5, 1.0])
def test_a_limit_of_all_refuses_nothing(used):
    memory = {0: Room(100, int(100 - 100 * used))}
    assert why_full([InstanceSpec(name="m", kind="GPU")], memory, {0: 1.0}) == ""


def test_a_worker_is_told_its_gpu_and_sees_it_alone_if_it_must():
    gpus = [Gpu(name="GPU-a"), Gpu(name="GPU-b")]
    plain, own = (InstanceSpec(name="m", kind="GPU", device_id=1, own_gpu=each) for each in (False, True))
    host = InstanceSpec(name="c")
    beyond = InstanceSpec(name="b", kind="GPU", device_id=2)
    assert [each.visible for each in seat([plain, own], gpus, alone=False)] == ["", "GPU-b"]
    assert [each.visible for each in seat([plain, own], gpus, alone=True)] == ["GPU-b", "GPU-b"]
    assert [each.ordinal for each in seat([plain, own], gpus, alone=False)] == [1, 0]
    assert seat([plain], gpus, alone=False)[0].gpu == gpus[1]
    assert seat([host, beyond], gpus, alone=True) == (host, beyond)


def test_devices_are_counted_by_instances_on_gpus():
    assert devices_of([*instances(2), InstanceSpec(name="c")]) == {0: 2}
