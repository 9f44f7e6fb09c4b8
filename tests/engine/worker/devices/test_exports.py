"""The buffers that a worker lends: never to two at once, never more than there may be, and never allocated
in vain."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.worker.devices.cuda import CudaError
from engine.worker.devices.exports import GRANULE, Buffer, Exports, rounded

MOST_BYTES = 16 * GRANULE
MOST = 6
ROOMY = 4


class Memory:
    """A driver's memory, in name only."""

    def __init__(self):
        self.sizes = {}  # what is allocated, by address
        self.devices = {}
        self.allocations = 0
        self.short = False
        self.exportable = True

    def allocate(self, device, nbytes):
        if self.short:
            raise CudaError("out of memory")
        self.allocations += 1
        address = self.allocations << 32
        self.sizes[address] = nbytes
        self.devices[address] = device
        return address

    def free(self, device, address):
        assert self.devices[address] == device
        del self.sizes[address]

    def export(self, device, address):
        assert self.devices[address] == device
        if not self.exportable:
            raise CudaError("not supported")
        return address.to_bytes(64, "little")


def made(memory, **limits):
    """A pool, and what it tells and warns of."""
    told: list[Buffer] = []
    warned: list[str] = []
    return Exports(lambda: memory, told.append, warned.append, **limits), told, warned


class Pool(RuleBasedStateMachine):
    """Takes and gives back at random, and knows from what it is told which buffers there are."""

    def __init__(self):
        super().__init__()
        self.memory = Memory()
        self.exports, self.told, _ = made(self.memory, most_bytes=MOST_BYTES, most=MOST)
        self.lent = {}

    def free(self, device):
        """The sizes of the buffers of a device that are not lent."""
        lent = {buffer.address for buffer in self.lent.values()}
        return [
            size
            for address, size in self.memory.sizes.items()
            if address not in lent and self.memory.devices[address] == device
        ]

    @rule(device=st.integers(0, 1), nbytes=st.integers(0, MOST_BYTES + GRANULE))
    def take(self, device, nbytes):
        free, before = self.free(device), self.memory.allocations
        room = (
            len(self.memory.sizes) < MOST and sum(self.memory.sizes.values()) + rounded(nbytes) <= MOST_BYTES
        )
        buffer = self.exports.take(device, nbytes)
        if buffer is None:
            assert not nbytes or not any(size >= nbytes for size in free)
            assert not nbytes or self.memory.short or not room
            return
        assert buffer.device == device
        assert self.memory.sizes[buffer.address] == buffer.nbytes >= nbytes > 0
        assert buffer.number not in self.lent
        assert buffer.address not in {each.address for each in self.lent.values()}
        if any(nbytes <= size <= ROOMY * rounded(nbytes) for size in free):
            assert self.memory.allocations == before
        if self.memory.allocations > before:
            assert self.told[-1] is buffer
        self.lent[buffer.number] = buffer

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data):
        number = data.draw(st.sampled_from(sorted(self.lent)))
        del self.lent[number]
        self.exports.give_back(number)

    @rule(number=st.integers(0, 2**32 - 1))
    def give_back_what_is_not_lent(self, number):
        if number not in self.lent:
            self.exports.give_back(number)

    @rule(short=st.booleans())
    def run_short(self, short):
        self.memory.short = short

    @invariant()
    def it_is_bounded(self):
        assert self.exports.count == len(self.memory.sizes) <= MOST
        assert self.exports.nbytes == sum(self.memory.sizes.values()) <= MOST_BYTES
        assert all(buffer.number < MOST for buffer in self.told)

    @invariant()
    def the_newest_of_a_number_is_the_one_there_is(self):
        newest = {buffer.number: buffer for buffer in self.told}
        for number, buffer in self.lent.items():
            assert newest[number] is buffer
            assert self.exports.find(buffer.handle) is buffer

    def teardown(self):
        self.exports.close()
        assert not self.memory.sizes
        assert len(self.told) == self.memory.allocations


TestPool = Pool.TestCase


@given(st.integers(1, 2**40))
def test_a_buffer_is_at_most_a_quarter_larger_than_need_be_or_within_a_granule(nbytes):
    size = rounded(nbytes)
    assert size % GRANULE == 0
    assert nbytes <= size <= max(nbytes + GRANULE, 1.25 * nbytes)


def test_sizes_that_are_nearly_alike_have_the_same_buffer():
    memory = Memory()
    exports, told, _ = made(memory)
    for nbytes in (5 * GRANULE, 5 * GRANULE - 1, 4 * GRANULE + 1):
        exports.give_back(exports.take(0, nbytes).number)
    assert len(told) == memory.allocations == 1


def test_small_free_ones_give_way_only_if_that_makes_room():
    memory = Memory()
    exports, *_ = made(memory, most_bytes=8 * GRANULE)
    small = [exports.take(0, GRANULE) for _ in range(4)]
    kept = exports.take(0, 4 * GRANULE)
    for buffer in small[:3]:
        exports.give_back(buffer.number)
    assert exports.take(0, 4 * GRANULE) is None
    assert exports.count == 5  # nothing was freed in vain
    exports.give_back(small[3].number)
    large = exports.take(0, 4 * GRANULE)
    assert large.nbytes == 4 * GRANULE
    assert set(memory.sizes) == {kept.address, large.address}


def test_a_far_too_large_one_is_taken_where_there_is_no_room_for_another():
    exports, *_ = made(Memory(), most_bytes=8 * GRANULE)
    large = exports.take(0, 8 * GRANULE)
    exports.give_back(large.number)
    assert exports.take(0, 1) is large


def test_a_gpu_whose_memory_cannot_be_exported_is_told_of_once_and_left_alone():
    memory = Memory()
    memory.exportable = False
    exports, told, warned = made(memory)
    assert exports.take(3, 100) is exports.take(3, 100) is None
    assert warned == ["outputs on GPU 3 go to other models by host memory: not supported"]
    assert not told
    assert not memory.sizes
    assert memory.allocations == 1


def test_without_a_driver_there_are_none():
    def driver():
        raise CudaError("GPU memory can't be reached")

    told: list[object] = []
    exports = Exports(driver, told.append, told.append)
    assert exports.take(0, 100) is None
    exports.close()
    assert not told
