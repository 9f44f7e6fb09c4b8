"""Models whose memory lies on GPUs: which are evicted where several memories are short."""

import pytest
import trio

from actors.residency.residency import MEASURE_SECONDS
from actors.values.errors import Unavailable
from actors.values.specs import InstanceSpec
from tests.support.residency_doubles import UNIT, Den, on_demand


def on_gpu(name, gpu=0):
    return on_demand(name, instances=(InstanceSpec(name=f"{name}_0", kind="GPU", device_id=gpu),))


@pytest.fixture
def begin(nursery):
    """Begin with models on demand, ample main memory, and a GPU that has room for one of them."""

    async def begun(*found, on_gpus=None):
        den = Den(nursery, *found, budget=100 * UNIT, on_gpus=on_gpus or {0: 3 * UNIT // 2})
        den.farm.on_gpus = {0: {each.key.name: UNIT for each in found}}
        return await den.begin()

    yield begun
    nursery.cancel_scope.cancel()


async def test_a_model_on_a_full_gpu_makes_way_for_the_next(begin, autojump_clock):
    den = await begin(on_gpu("a"), on_gpu("b"))
    den.memory.files = {"a": UNIT, "b": UNIT}
    await den.ask("a")
    await trio.sleep(MEASURE_SECONDS)
    await den.ask("b")
    assert den.farm.resident == ["b"]
    await den.ask("a")
    assert den.farm.resident == ["a"]


async def test_models_that_are_elsewhere_stay(begin, autojump_clock):
    den = await begin(on_gpu("a"), on_demand("host"), on_gpu("b"))
    den.farm.on_gpus = {0: {"a": UNIT, "b": UNIT}}
    den.memory.files = {"a": UNIT, "b": UNIT, "host": UNIT}
    for name in ("a", "host", "b"):
        await den.ask(name)
        await trio.sleep(MEASURE_SECONDS)
    assert den.farm.resident == ["b", "host"]


async def test_a_model_that_can_never_fit_on_its_gpu_is_refused(begin, autojump_clock):
    den = await begin(on_gpu("a"))
    den.memory.files = {"a": 2 * UNIT}
    with pytest.raises(Unavailable, match=r"does not fit: needs .* \(GPU 0\)"):
        await den.ask("a")


async def test_what_a_model_was_measured_to_take_counts_the_next_time(begin, autojump_clock):
    den = await begin(on_gpu("a"), on_gpu("b"))  # their files say nothing
    await den.ask("a")
    await trio.sleep(MEASURE_SECONDS)
    await den.ask("b")
    await trio.sleep(3 * MEASURE_SECONDS)
    assert den.farm.resident == ["b"]  # both would be too much, and 'a' was used before
    await den.ask("a")
    assert den.farm.resident == ["a"]
