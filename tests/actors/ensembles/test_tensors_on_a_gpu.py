"""Which tensors of an ensemble stay on a GPU, and what becomes of those that do."""

from dataclasses import replace

import pytest

from actors.serving.policy.blame import fingerprint_of
from actors.serving.statistics import FailureReason
from actors.values.datatypes import DataType
from actors.values.errors import Unavailable
from actors.values.specs import InputSpec, InstanceSpec, OutputSpec
from actors.values.tensors import DevicePlace, DeviceTensor
from tests.actors.ensembles.test_ensemble_in_virtual_time import (  # noqa: F401  # fixtures
    World,
    ask,
    chain,
    world,
)

HANDLE = b"h" * 64


# -- requests


class Kept:
    """A buffer, as far as requests know of it."""

    def __init__(self):
        self.lost = False
        self.on_end = {}


def on_gpu(name="OUTPUT", rows=1, *, device=0, keeper=None):
    place = DevicePlace(HANDLE, device, 0, 8 * rows, keeper)
    return DeviceTensor(name, DataType.FP32, (rows, 2), place)


def model(world, name, **options):  # noqa: F811
    instances = (InstanceSpec(name=f"{name}_0", kind="GPU"),)
    return world.model(name, **{"instances": instances, "device_tensors": True, **options})


@pytest.fixture
async def models(world):  # noqa: F811
    return model(world, "a"), model(world, "b")


@pytest.fixture
async def whole(world, models):  # noqa: F811
    return await world.ensemble(chain("a", "b"), gpu_tensors=True)


def put(whole, **options):
    request = ask(**options)
    whole.submit_nowait(request)
    return request


async def test_a_tensor_on_a_gpu_goes_to_the_next_step_as_it_is(models, whole, autojump_clock):
    a, b = models
    request = put(whole)
    (step,) = a.running
    assert step.device_outputs == {"OUTPUT"}
    made = on_gpu()
    a.finish(outputs=[made])
    (step,) = b.running
    assert step.device_outputs is None
    (given,) = step.inputs
    assert isinstance(given, DeviceTensor)
    assert (given.name, given.place, given.nbytes, step.nbytes) == ("INPUT", made.place, 8, 8)
    b.finish(outputs=[])
    assert not request.reply.error


async def test_it_stays_on_the_gpu_where_memory_is_lent_beside_it(models, whole, autojump_clock):
    a, b = models
    put(whole)
    leases: list[str] = []
    a.finish(outputs=[on_gpu()], leases=leases)
    (step,) = b.running
    assert isinstance(step.inputs[0], DeviceTensor)
    b.finish(outputs=[])
    assert leases == ["taken", "released"]


async def test_without_the_setting_nothing_is_asked_to_stay(world, models, autojump_clock):  # noqa: F811
    whole = await world.ensemble(chain("a", "b"))
    put(whole)
    assert models[0].running[0].device_outputs is None


async def test_a_model_between_shapes_it_for_the_next(world, autojump_clock):  # noqa: F811
    a = model(world, "a")
    flat = (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(2,)),)
    outputs = (OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(2,)),)
    b = model(world, "b", max_batch_size=0, inputs=flat, outputs=outputs)
    put(await world.ensemble(chain("a", "b"), gpu_tensors=True))
    a.finish(outputs=[on_gpu()])
    (given,) = b.running[0].inputs
    assert isinstance(given, DeviceTensor)
    assert tuple(given.shape) == (2,)


async def test_one_whose_maker_has_gone_fails_the_request_before_it_is_dispatched(
    models, whole, autojump_clock
):
    a, b = models
    request = put(whole)
    keeper = Kept()
    keeper.lost = True
    a.finish(outputs=[on_gpu(keeper=keeper)])
    assert b.running == []
    assert isinstance(request.reply.error, Unavailable)
    assert "input 'INPUT' of model 'b' is lost: the worker that left it on its GPU has ended" in str(
        request.reply.error
    )
    assert b.state.statistics.failures[FailureReason.OTHER] == 1


async def test_one_on_another_gpu_than_the_instance_fails_the_request(models, whole, autojump_clock):
    a, b = models
    request = put(whole)
    a.finish(outputs=[on_gpu(device=1)])
    assert b.running == []
    assert "is on GPU 1, and instance 'b_0' is not" in str(request.reply.error)


async def test_the_decision_is_made_anew_where_instances_have_changed(
    world,  # noqa: F811
    models,
    autojump_clock,
):
    a, b = models
    whole = await world.ensemble(chain("a", "b"), gpu_tensors=True)
    whole.composite._changes = lambda: 1  # as where versions stay: plans are found again
    put(whole)
    put(whole)
    await a.ends(outputs=[on_gpu()])
    assert a.running[0].device_outputs == {"OUTPUT"}
    b.state.respecify(replace(b.state.spec, instances=(InstanceSpec(name="b_0"),)))
    await a.ends(outputs=[on_gpu()])
    while b.running:
        await b.ends(outputs=[])
    put(whole)
    await world.settled()
    assert a.running[0].device_outputs is None


async def test_nothing_stays_on_a_gpu_while_instances_move_to_another(
    world,  # noqa: F811
    models,
    autojump_clock,
):
    a, b = models
    whole = await world.ensemble(chain("a", "b"), gpu_tensors=True)
    whole.composite._changes = lambda: 1
    wanted = []
    for each in (a, b):
        moved = (replace(each.state.spec.instances[0], device_id=1),)
        each.state.respecify(replace(each.state.spec, instances=moved))
    for settled in (False, True):
        if settled:
            a.state.settle()
            b.state.settle()
        put(whole)
        await world.settled()
        wanted.append(a.running[0].device_outputs)
        await a.ends(outputs=[on_gpu(device=0)] if settled else None)
        while b.running:
            await b.ends(outputs=[])
    assert wanted == [None, {"OUTPUT"}]


async def test_requests_with_an_input_on_the_gpu_share_no_batch_with_others(models, autojump_clock):
    a, _ = models
    keys = []
    for tensor in (on_gpu("INPUT"), on_gpu("INPUT"), None):
        request = a.request()
        if tensor is not None:
            request.inputs = [tensor]
        await a.state.submit(request)
        keys.append(request.batch_key)
    assert keys[0] == keys[1] != keys[2]


async def test_no_fingerprint_is_taken_of_what_is_not_read(models):
    request = models[0].request()
    host = fingerprint_of(request)
    assert fingerprint_of(request) == host
    request.inputs = [on_gpu("INPUT")]
    assert fingerprint_of(request) != fingerprint_of(request)
