from actors.values.datatypes import DataType
from actors.values.regions import Held, Region, RegionSlice, RegionTensor, no_region, too_short, too_small
from actors.values.tensors import Tensor


def test_a_region_tells_when_its_last_user_has_gone():
    region = Region("R", "/k", 4096, 64, -1)
    told = []
    region.hold()
    region.let_go()  # nothing waits for that
    region.hold()
    region.hold()
    region.on_idle = lambda: told.append(region.users)
    region.let_go()
    assert told == []
    region.let_go()
    assert told == [0]


def test_a_tensor_in_a_region_has_its_bytes_there():
    region = Region("R", "/k", 4096, 64, -1)
    tensor = RegionTensor("X", DataType.FP32, (4,), RegionSlice(region, 4096 + 8, 16))
    assert (tensor.nbytes, bytes(tensor.data)) == (16, b"")
    assert repr(tensor) == "<Tensor 'X' FP32[4] 16 bytes>"


def test_regions_are_held_while_a_thread_reads_the_tensors_that_lie_there():
    region = Region("R", "/k", 0, 64, -1)
    there = RegionTensor("X", DataType.FP32, (4,), RegionSlice(region, 0, 16))
    held = Held([there, Tensor("Y", DataType.FP32, (1,), bytes(4)), there])
    assert region.users == 2
    held.end()
    assert region.users == 0


def test_what_was_read_and_written_is_counted():
    counts = Region("R", "/k", 0, 64, -1).counts
    counts.read(8)
    counts.read(0)
    counts.wrote(5)
    assert (counts.reads, counts.bytes_read, counts.writes, counts.bytes_written) == (2, 8, 1, 5)
    assert (counts.reads_failed, counts.writes_failed) == (0, 0)


def test_errors_say_where_a_tensor_lies():
    assert no_region("R").message == "Unable to find shared memory region: 'R'"
    assert too_small("Y", 3, 4) == (
        "shared memory size specified with the request for output 'Y' (3 bytes) should be at least 4 "
        "bytes to hold the results"
    )
    assert too_short("R", "input 'X'", ends=3, needed=4) == (
        "shared memory region 'R' has been shrunk since it was registered: its object has 3 bytes, and "
        "input 'X' ends at byte 4"
    )


def test_regions_are_held_while_a_thread_reads_them():
    ended = []
    region = Region("r", "/r", 0, 8, -1)
    region.on_idle = lambda: ended.append(region)
    tensors = [
        RegionTensor("a", DataType.UINT8, (8,), RegionSlice(region, 0, 8)),
        Tensor("b", DataType.UINT8, (1,), b"1"),
    ]
    held = Held(tensors)
    assert region.users == 1
    held.end()
    assert ended == [region]
