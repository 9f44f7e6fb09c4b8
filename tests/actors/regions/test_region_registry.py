"""Requests with regions in virtual time: what they hold, how long, and in which order answers are written."""

import os
import resource
import threading

import pytest
import trio

from actors.regions.objects import read_at_once, reading, write, write_at_once
from actors.regions.policy import RegionLimits
from actors.regions.registry import RegionRegistry
from actors.regions.table import CLOSED_AT_ONCE
from actors.regions.use import AT_ONCE
from actors.seams import threads
from actors.supervision.supervisor import Supervisor
from actors.values.datatypes import DataType
from actors.values.errors import AlreadyExists, Cancelled, Internal, InvalidArgument, NotFound, Unavailable
from actors.values.regions import (
    Region,
    RegionPlace,
    RegionPlaces,
    RegionSlice,
    RegionTensor,
    Staying,
    device_place,
)
from actors.values.requests import InferRequest, InferResponse
from actors.values.tensors import Tensor
from actors.wire.region_spans import DIRECT_FROM
from chaos.simulation.world.virtual import InlineThreads
from tests.support.garbage import uncollected
from tests.support.ports import Port
from tests.support.shared_memory import PAGE, FakeDevices, FakeMemory, an_object

LONG = AT_ONCE + 8
SIZE = 8 * LONG // PAGE * PAGE


class Claims:
    """Memory for requests, of which there may be none."""

    def __init__(self):
        self.held = 0
        self.empty = False

    def claim(self):
        return _Claim(self)


class _Claim:
    def __init__(self, claims):
        self._claims = claims
        self._size = 0

    async def take(self, size, *, urgent=False):
        await trio.lowlevel.checkpoint()
        if self._claims.empty:
            return False
        self._size = size
        self._claims.held += size
        return True

    def release(self):
        self._claims.held -= self._size
        self._size = 0


class NeverThreads:
    """Threads that never begin."""

    async def run_sync(self, function, *args, abandon_on_cancel=False, limiter=None):
        await trio.sleep_forever()


@pytest.fixture
def claims():
    return Claims()


@pytest.fixture
def devices():
    return FakeDevices()


@pytest.fixture
async def registry(autojump_clock, claims, devices, nursery):
    threads.give(InlineThreads(1))
    made = RegionRegistry(allowed=True, limits=RegionLimits(), claims=claims.claim, devices=devices)
    await nursery.start(Supervisor([made.spec()]).serve)
    yield made
    made.close()
    assert not len(made.table)


@pytest.fixture
def memory():
    with an_object(SIZE) as made:
        yield made


def request_of(*inputs, port=None):
    return InferRequest(model_name="m", reply=port or Port(), accepted_at=0.0, inputs=list(inputs))


def an_input(nbytes, name="X", datatype=DataType.UINT8):
    return Tensor(name, datatype, (nbytes,), b"")


def answer(*outputs):
    response = InferResponse(
        model_name="m", model_version=1, outputs=[Tensor(n, DataType.UINT8, (len(d),), d) for n, d in outputs]
    )
    released = []
    response.on_release(lambda: released.append(True))
    return response, released


def place(offset=0, nbytes=64, region="R"):
    return RegionPlace(region, offset, nbytes)


async def registered(registry, memory, name="R"):
    await registry.register_system(name, memory.key, offset=0, byte_size=SIZE)
    return registry.table.find(name)


async def test_names_that_are_too_long_to_be_kept_are_refused(registry, devices, memory):
    # Slashes before a key change nothing, and a message has room for millions of them.
    devices.memory[b"h", 0] = FakeMemory(64)
    long = "R" * 1025
    text = "the name of a shared memory region has 1025 characters, and may have 1024 at most: 'R{80}...'"
    with pytest.raises(InvalidArgument, match=text):
        await registry.register_system(long, memory.key, offset=0, byte_size=SIZE)
    with pytest.raises(InvalidArgument, match=text):
        await registry.register_cuda(long, b"h", device_id=0, byte_size=64)
    with pytest.raises(InvalidArgument, match="the key of a region has 10000042 characters"):
        await registry.register_system("R", "/" * 10_000_000 + memory.name[:42], offset=0, byte_size=SIZE)
    await registry.register_system(long[1:], memory.key, offset=0, byte_size=SIZE)
    assert [region.name for region in registry.system_regions()] == [long[1:]]


class SlowDevices(FakeDevices):
    """GPUs of which one does not answer before `go` is set."""

    def __init__(self):
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def open(self, raw_handle, device_id):
        self.asked.set()
        assert self.go.wait(20)
        return super().open(raw_handle, device_id)


async def test_a_device_that_takes_long_holds_up_no_registration_of_system_memory(claims, memory):
    devices = SlowDevices()
    held = devices.memory[b"h", 0] = FakeMemory(64)
    registry = RegionRegistry(allowed=True, limits=RegionLimits(), claims=claims.claim, devices=devices)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:

            async def late():
                with pytest.raises(AlreadyExists, match="shared memory region 'R' already in manager"):
                    await registry.register_cuda("R", b"h", device_id=0, byte_size=64)

            nursery.start_soon(late)
            await trio.to_thread.run_sync(devices.asked.wait)
            await registry.register_system("R", memory.key, offset=0, byte_size=SIZE)
            devices.go.set()
    assert held.closed == 1
    assert [region.name for region in registry.system_regions()] == ["R"]
    registry.close()


# Inputs


async def test_short_inputs_are_read_as_they_are_decoded(registry, memory):
    region = await registered(registry, memory)
    memory.put(b"abcd", 8)
    request = request_of(an_input(4), Tensor("Y", DataType.UINT8, (2,), b"yy"))
    registry.attach(request, RegionPlaces([place(8, 4), None], {}))
    assert [bytes(tensor.data) for tensor in request.inputs] == [b"abcd", b"yy"]
    assert not request.regions.must_read(stay=Staying())
    assert region.users == 1
    request.regions.end()
    request.regions.end()
    assert region.users == 0


async def test_what_is_read_at_once_has_a_bound_for_all_inputs_together(registry, memory):
    await registered(registry, memory)
    half = AT_ONCE // 2
    request = request_of(*(an_input(half, name) for name in "ABC"), an_input(0, "D"))
    registry.attach(request, RegionPlaces([place(nbytes=half)] * 3 + [place(nbytes=0)], {}))
    assert [type(tensor) for tensor in request.inputs] == [Tensor, Tensor, RegionTensor, Tensor]
    request.regions.end()


async def test_inputs_that_are_longer_than_all_requests_may_be_are_refused_before_they_are_read(
    autojump_clock, claims, memory
):
    # An object without pages has any size, and would be read into memory.
    memory.resize(2**40)
    limits = RegionLimits(inputs=2 * LONG)
    registry = RegionRegistry(allowed=True, limits=limits, claims=claims.claim)
    await registry.register_system("R", memory.key, offset=0, byte_size=2**40)
    for nbytes, refused in ((LONG, False), (LONG + 1, True), (2**40 - LONG, True)):
        request = request_of(an_input(LONG), an_input(nbytes, "Y"))
        places = RegionPlaces([place(nbytes=LONG), place(nbytes=nbytes)], {"Z": place(nbytes=2**40)})
        if refused:
            text = (
                f"the inputs in shared memory have {LONG + nbytes} bytes, and those of one request may have"
                f" {2 * LONG}; see --receive-memory"
            )
            with pytest.raises(InvalidArgument, match=text):
                registry.attach(request, places)
        else:
            registry.attach(request, places)
            request.regions.end()
        assert registry.table.find("R").users == 0
    registry.close()


@pytest.mark.parametrize("stay", [True, False])
async def test_long_inputs_are_read_unless_the_model_takes_them_as_they_are(registry, memory, claims, stay):
    region = await registered(registry, memory)
    memory.put(b"x" * LONG)
    request = request_of(an_input(LONG), an_input(LONG, "S", DataType.BYTES))
    registry.attach(request, RegionPlaces([place(nbytes=LONG)] * 2, {}))
    assert request.regions.must_read(stay=Staying(system=stay))
    await request.regions.read(stay=Staying(system=stay))
    assert not request.regions.must_read(stay=Staying(system=stay))
    number, text = request.inputs
    assert isinstance(number, RegionTensor) is stay
    assert number.nbytes == LONG
    assert bytes(text.data) == b"x" * LONG  # strings are walked, so they are read in any case
    assert claims.held == (1 if stay else 2) * LONG
    assert region.users == 1
    request.regions.end()
    assert (claims.held, region.users) == (0, 0)


async def test_a_request_that_finds_no_memory_is_refused(registry, memory, claims):
    region = await registered(registry, memory)
    claims.empty = True
    request = request_of(an_input(LONG))
    registry.attach(request, RegionPlaces([place(nbytes=LONG)], {}))
    with pytest.raises(Unavailable, match=r"no memory left to read 262152 bytes .* --receive-memory"):
        await request.regions.read(stay=Staying())
    request.regions.end()
    assert (claims.held, region.users) == (0, 0)


async def test_a_client_that_leaves_while_its_inputs_are_read_holds_nothing(
    registry, memory, claims, nursery, autojump_clock
):
    region = await registered(registry, memory)
    request = request_of(an_input(LONG), an_input(LONG, "Y"))
    registry.attach(request, RegionPlaces([place(nbytes=LONG)] * 2, {}))

    async def read():
        with pytest.raises(Cancelled):
            await request.regions.read(stay=Staying())

    nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked()
    assert claims.held == 2 * LONG
    request.cancelled = True
    request.regions.end()
    assert region.users == 1  # the thread still reads
    registry.unregister_system("R")
    assert region.fileno >= 0
    await trio.sleep(10)
    assert (claims.held, region.users, region.fileno) == (0, 0, -1)


async def test_a_place_that_is_remembered_is_another_one_once_its_region_has_gone(registry, memory):
    region = await registered(registry, memory)
    memory.put(b"old!")
    places = RegionPlaces([place(0, 4)], {"Y": place(8, 4)})
    for turn in range(2):
        request = request_of(an_input(4))
        registry.attach(request, places)
        assert bytes(request.inputs[0].data) == b"old!"
        if turn == 0:
            request.regions.end()
    registry.unregister_system("R")
    assert region.users == 1
    request.regions.end()
    with pytest.raises(NotFound):
        registry.attach(request_of(an_input(4)), places)
    with an_object(PAGE) as other:
        other.put(b"new!")
        await registry.register_system("R", other.key, offset=0, byte_size=PAGE)
        port = Port()
        request = request_of(an_input(4), port=port)
        registry.attach(request, places)
        assert bytes(request.inputs[0].data) == b"new!"
        request.reply.put(answer(("Y", b"mine"))[0], final=True)
        await port.wait()
        assert (other.get(4, 8), memory.get(4, 8)) == (b"mine", bytes(4))
        request.regions.end()


async def test_a_place_that_is_remembered_is_checked_against_a_region_that_is_shorter_now(registry, memory):
    await registered(registry, memory)
    places = RegionPlaces([place(PAGE, 4)], {})
    request = request_of(an_input(4))
    registry.attach(request, places)
    request.regions.end()
    registry.unregister_system("R")
    await registry.register_system("R", memory.key, offset=0, byte_size=PAGE)
    with pytest.raises(InvalidArgument, match="Invalid offset for shared memory region: 'R'"):
        registry.attach(request_of(an_input(4)), places)


async def test_a_request_that_is_over_leaves_nothing_to_the_garbage_collector(registry, memory):
    await registered(registry, memory)
    with uncollected() as left:
        port = Port()
        request = request_of(an_input(4), an_input(LONG), port=port)
        registry.attach(request, RegionPlaces([place(nbytes=4), place(nbytes=LONG)], {"Y": place(nbytes=4)}))
        request.reply.put(answer(("Y", b"efgh"))[0], final=True)
        request.regions.end()
        del request, port
    assert not left


async def test_instances_are_told_of_outputs_only_where_they_would_write_one(registry, memory):
    await registered(registry, memory)
    for nbytes, told in ((DIRECT_FROM, None), (DIRECT_FROM + 1, {"Y", "Z"})):
        request = request_of()
        registry.attach(request, RegionPlaces([], {"Y": place(nbytes=nbytes), "Z": place(nbytes=4)}))
        assert (request.output_regions and set(request.output_regions)) == told
        request.regions.end()


async def test_nothing_is_held_where_one_place_is_wrong(registry, memory):
    region = await registered(registry, memory)
    port = Port()
    for places in (
        RegionPlaces([place(), place(region="Q")], {}),
        RegionPlaces([place(), None], {"Y": place(SIZE)}),
    ):
        request = request_of(an_input(64), an_input(64), port=port)
        with pytest.raises((NotFound, InvalidArgument)):
            registry.attach(request, places)
        assert region.users == 0
        assert request.reply is port


async def test_a_short_read_is_counted(registry, memory):
    region = await registered(registry, memory)
    memory.resize(10)
    request = request_of(an_input(64))
    with pytest.raises(InvalidArgument, match="its object has 10 bytes, and input 'X' ends at byte 64"):
        registry.attach(request, RegionPlaces([place()], {}))
    request = request_of(an_input(LONG))
    registry.attach(request, RegionPlaces([place(nbytes=LONG)], {}))
    with pytest.raises(InvalidArgument, match="its object has 10 bytes"):
        await request.regions.read(stay=Staying())
    request.regions.end()
    assert (registry.table.counts.reads, registry.table.counts.reads_failed, region.users) == (0, 2, 0)


# Outputs


async def test_parts_keep_their_order_behind_one_that_takes_long(registry, memory):
    await registered(registry, memory)
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=LONG)}))
    parts = [answer(("Y", b"1" * LONG)), answer(("Y", b"2")), answer(("Y", b"3" * LONG)), answer(("Z", b"4"))]
    for number, (part, _) in enumerate(parts):
        request.reply.put(part, final=number == 3)
    assert port.parts == []
    await port.wait()
    assert port.parts == [part for part, _ in parts]
    assert [[len(tensor.data) for tensor in part.outputs] for part, _ in parts] == [[0], [0], [0], [1]]
    # What was written is given back at once, what goes to the client later.
    assert [released for _, released in parts] == [[True]] * 3 + [[]]
    assert memory.get(2) == b"33"
    request.regions.end()


async def test_what_an_instance_has_written_and_errors_pass_as_they_are(registry, memory):
    await registered(registry, memory)
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=1)}))
    written = InferResponse(model_name="m", model_version=1, outputs=[Tensor("Y", DataType.UINT8, (5,), b"")])
    error = Internal("no")
    request.reply.put(written, final=False)
    request.reply.put(error, final=True)
    assert port.parts == [written, error]
    assert registry.table.counts.writes == 0
    request.regions.end()


@pytest.mark.parametrize("nbytes", [2, LONG])
async def test_an_output_that_does_not_fit_is_an_error_in_its_turn(registry, memory, nbytes):
    await registered(registry, memory)
    memory.put(b"before")
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=nbytes - 1)}))
    part, released = answer(("Y", b"y" * nbytes))
    request.reply.put(part, final=True)
    assert "should be at least" in str(await port.wait())
    assert released == [True]
    assert memory.get(6) == b"before"
    request.regions.end()


@pytest.mark.parametrize("nbytes", [2, LONG])
async def test_an_object_that_was_shrunk_is_an_error_and_does_not_grow(registry, memory, nbytes):
    await registered(registry, memory)
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=nbytes)}))
    memory.resize(1)
    part, released = answer(("Y", b"y" * nbytes))
    request.reply.put(part, final=True)
    assert isinstance(await port.wait(), InvalidArgument)
    assert (released, memory.size, registry.table.counts.writes_failed) == ([True], 1, 1)
    request.regions.end()


async def test_nothing_is_written_for_a_client_that_has_left(registry, memory):
    await registered(registry, memory)
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=1)}))
    request.regions.end()
    part, _ = answer(("Y", b"y"))
    request.reply.put(part, final=True)
    assert memory.get(1) == b"\0"


async def test_a_region_may_go_while_a_thread_writes_to_it(registry, memory):
    region = await registered(registry, memory)
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=LONG)}))
    part, _ = answer(("Y", b"y" * LONG))
    request.reply.put(part, final=True)
    request.regions.end()  # its client has left
    registry.unregister_system("R")
    assert region.fileno == -1
    await port.wait()
    assert memory.get(LONG) == b"y" * LONG


async def test_memory_of_a_gpu_is_not_closed_while_a_thread_writes_to_it(registry, devices):
    held = devices.memory[b"h", 0] = FakeMemory(64)
    await registry.register_cuda("R", b"h", device_id=0, byte_size=64)
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=4)}))
    request.reply.put(answer(("Y", b"efgh"))[0], final=True)
    request.regions.end()
    registry.unregister_cuda("R")
    assert not held.closed
    await port.wait()
    assert (held.closed, held.content[:4]) == (1, b"efgh")


async def test_a_region_of_much_memory_is_closed_on_a_thread(registry, memory, autojump_clock):
    # Its client may have unlinked it: then its pages go with the descriptor, which takes long.
    region = await registered(registry, memory)
    os.posix_fallocate(memory.fileno, 0, 2 * CLOSED_AT_ONCE)
    fileno = region.fileno
    registry.unregister_system("R")
    assert (region.fileno, registry.system_regions()) == (-1, [])
    os.fstat(fileno)
    await trio.sleep(10)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fileno)


async def test_no_descriptor_is_left_where_the_actor_dies_before_it_is_closed(
    autojump_clock, claims, memory, nursery
):
    threads.give(InlineThreads(1))
    registry = RegionRegistry(allowed=True, limits=RegionLimits(), claims=claims.claim)
    supervisor = Supervisor([registry.spec()])
    await nursery.start(supervisor.serve)
    os.posix_fallocate(memory.fileno, 0, 2 * CLOSED_AT_ONCE)
    filenos = [(await registered(registry, memory, name)).fileno for name in "ABCDEFGH"]  # more than threads
    registry.unregister_system()
    supervisor.stop()
    await trio.sleep(10)
    for fileno in filenos:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fileno)


async def test_an_answer_is_not_given_back_while_a_thread_writes_it_and_the_actor_dies(
    autojump_clock, claims, memory, nursery
):
    threads.give(InlineThreads(1))
    registry = RegionRegistry(allowed=True, limits=RegionLimits(), claims=claims.claim)
    region = await registered(registry, memory)
    supervisor = Supervisor([registry.spec()])
    seen: dict[int, bytes] = {}  # what was in the region as each answer was given back

    def ask(number):
        port = Port()
        request = request_of(port=port)
        registry.attach(request, RegionPlaces([], {"Y": place(number * LONG, LONG)}))
        part, _ = answer(("Y", b"y" * LONG))
        part.on_release(lambda: seen.update({number: memory.get(1, (number + 1) * LONG - 1)}))
        request.reply.put(part, final=True)
        request.regions.end()  # its client has left, which gives nothing back
        return port

    # Before it runs, nothing is taken on.
    first = ask(0)
    assert isinstance(first.parts[0], Unavailable)
    await nursery.start(supervisor.serve)
    ports = {number: ask(number) for number in range(1, 7)}  # more than there are threads
    await trio.lowlevel.checkpoint()
    supervisor.stop()
    await trio.sleep(10)
    written = [number for number, port in ports.items() if isinstance(port.parts[0], InferResponse)]
    failed = [port.parts[0] for port in ports.values() if isinstance(port.parts[0], Internal)]
    # What a thread had begun is written, and the others never are.
    assert [str(each) for each in failed] == ["outputs could not be written to shared memory"] * 2
    assert seen == {number: b"y" if number in written else b"\0" for number in range(7)}
    assert [memory.get(1, number * LONG) for number in range(7)] == [seen[number] for number in range(7)]
    assert (len(written), region.users) == (4, 0)
    registry.close()


async def test_answers_that_wait_for_a_thread_leave_no_descriptor_where_the_actor_dies(
    autojump_clock, claims, memory, nursery
):
    threads.give(NeverThreads())
    registry = RegionRegistry(allowed=True, limits=RegionLimits(), claims=claims.claim)
    # Registered as threads would do it.
    fileno = os.open(memory.path, os.O_RDWR)
    registry.table.add(Region("R", memory.key, 0, SIZE, fileno), 0.0)
    supervisor = Supervisor([registry.spec()])
    await nursery.start(supervisor.serve)
    before = len(os.listdir("/proc/self/fd"))
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=LONG)}))
    request.reply.put(answer(("Y", b"y" * LONG))[0], final=True)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    supervisor.stop()
    assert isinstance(await port.wait(), Internal)
    assert len(os.listdir("/proc/self/fd")) == before
    request.regions.end()
    registry.close()


async def test_where_no_file_can_be_opened_an_answer_is_refused_for_now(registry, memory):
    await registered(registry, memory)
    port = Port()
    request = request_of(port=port)
    registry.attach(request, RegionPlaces([], {"Y": place(nbytes=LONG)}))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
    try:
        request.reply.put(answer(("Y", b"y" * LONG))[0], final=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert str(await port.wait()) == "outputs can't be written to shared memory now: Too many open files"
    request.regions.end()


# Memory of a GPU, which is played


async def test_tensors_of_a_gpu_are_copied_on_threads(registry, devices):
    held = devices.memory[b"h", 0] = FakeMemory(64)
    held.content[:4] = b"abcd"
    await registry.register_cuda("R", b"h", device_id=0, byte_size=64)
    port = Port()
    request = request_of(an_input(4), port=port)
    registry.attach(request, RegionPlaces([place(nbytes=4)], {"Y": place(8, 4)}))
    assert request.output_regions["Y"].place.handle == b"h"
    assert request.regions.must_read(stay=Staying(system=True))
    await request.regions.read(stay=Staying(system=True))
    assert bytes(request.inputs[0].data) == b"abcd"
    request.reply.put(answer(("Y", b"efgh"))[0], final=True)
    await port.wait()
    assert held.content[8:12] == b"efgh"
    registry.unregister_cuda("R")
    assert (held.closed, [region.name for region in registry.cuda_regions()]) == (0, ["R"])
    request.regions.end()
    assert (held.closed, list(registry.cuda_regions())) == (1, [])


@pytest.mark.parametrize(
    ("stay", "left"),
    [
        (Staying(True, 0, frozenset("X")), True),
        (Staying(True, 1, frozenset("X")), False),
        (Staying(True, 0, frozenset("Z")), False),
        (Staying(), False),
    ],
)
async def test_inputs_stay_on_the_gpu_whose_memory_the_model_reads(registry, devices, stay, left):
    held = devices.memory[b"h", 0] = FakeMemory(64)
    held.content[4:8] = b"abcd"
    await registry.register_cuda("R", b"h", device_id=0, byte_size=64)
    request = request_of(an_input(4))
    registry.attach(request, RegionPlaces([place(4, 4)], {}))
    assert request.regions.must_read(stay=stay) is not left
    if not left:
        await request.regions.read(stay=stay)
        assert bytes(request.inputs[0].data) == b"abcd"
    found = device_place(request.inputs[0])
    assert (found is not None) is left
    if found is not None:
        assert (found.handle, found.device, found.at, found.nbytes) == (b"h", 0, 4, 4)
    request.regions.end()


async def test_who_has_opened_a_region_of_a_gpu_hears_of_its_end(registry, devices):
    devices.memory[b"h", 0] = FakeMemory(64)
    await registry.register_cuda("R", b"h", device_id=0, byte_size=64)
    told: list[bytes] = []
    registry.table.find("R").on_end["a worker"] = told.append
    request = request_of(an_input(4))
    registry.attach(request, RegionPlaces([place(nbytes=4)], {}))
    registry.unregister_cuda("R")
    assert not told
    request.regions.end()
    assert told == [b"h"]


async def test_what_the_driver_refuses_is_an_error_of_the_request(registry, devices):
    held = devices.memory[b"h", 0] = FakeMemory(64)
    await registry.register_cuda("R", b"h", device_id=0, byte_size=64)
    held.failure = "lost"
    port = Port()
    request = request_of(an_input(4), port=port)
    registry.attach(request, RegionPlaces([place(nbytes=4)], {"Y": place(8, 4)}))
    with pytest.raises(Internal, match="input 'X' can't be read from CUDA shared memory region 'R': lost"):
        await request.regions.read(stay=Staying(system=True))
    request.reply.put(answer(("Y", b"efgh"))[0], final=True)
    text = "output 'Y' can't be written to CUDA shared memory region 'R': lost"
    assert str(await port.wait()) == text
    request.regions.end()


# Objects


def test_what_the_system_refuses_is_told():
    sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(sealed, 8)
    import fcntl

    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    only_written = os.open("/dev/null", os.O_WRONLY)
    region = Region("R", "/k", 0, 8, only_written)
    part = RegionSlice(region, 0, 8)
    try:
        text = "output 'Y' can't be written to shared memory region 'R': Operation not permitted"
        with pytest.raises(Internal, match=text):
            write(part, "Y", b"x" * 8, sealed)
        several = [
            (Tensor(name, DataType.UINT8, (4,), b"abcd"), RegionSlice(Region("R", "/k", 0, 8, sealed), 0, 4))
            for name in "YZ"
        ]
        with pytest.raises(Internal, match=text):
            write_at_once(several)
        for read in (lambda: read_at_once(part, "X"), lambda: reading(part, "X", only_written)):
            with pytest.raises(
                Internal, match="can't be read from shared memory region 'R': Bad file descriptor"
            ):
                read()
    finally:
        os.close(sealed)
        os.close(only_written)
