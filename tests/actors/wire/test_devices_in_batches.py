"""Tensors that lie on a GPU: they take no room in a batch, and a result's are cut where they are."""

import json
from typing import Any

import numpy as np
import pytest

from actors.serving.policy.blame import fingerprint_of
from actors.serving.validation import Validator
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.regions import Region, RegionSlice, RegionTensor, device_place
from actors.values.requests import InferRequest
from actors.values.specs import InputSpec, OutputSpec
from actors.values.tensors import DevicePlace, DeviceTensor, Tensor
from actors.wire import frames
from actors.wire.batch_frames import Answer, Execute, GatheredInput, Placed, Result
from actors.wire.device_spans import DEVICE, DeviceSpans, tell_devices
from actors.wire.frames import FrameError
from actors.wire.gathering import Gather, Scatter, lost_input
from actors.wire.region_spans import DIRECT_FROM, tell_spans
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort

HANDLE = b"h" * 64
SPEC = make_spec(
    inputs=tuple(InputSpec(name=name, datatype=DataType.FP32, dims=(2,)) for name in ("X", "Y")),
    outputs=tuple(OutputSpec(name=name, datatype=DataType.FP32, dims=(2,)) for name in ("OUT", "REST")),
)


def on_gpu(name="X", rows=1, at=0):
    return DeviceTensor(name, DataType.FP32, (rows, 2), DevicePlace(HANDLE, 0, at, 8 * rows))


def here(name="Y", rows=1):
    return Tensor.from_numpy(name, np.full((rows, 2), 5, np.float32))


def region():
    made = Region("R", "", 0, 4096, -1)
    made.handle, made.device_id = HANDLE, 3
    return made


def request(*inputs, rows=1, stay=()):
    made = InferRequest(
        model_name="m",
        inputs=list(inputs),
        requested_outputs=SPEC.output_names,
        reply=NoPort(),
        accepted_at=0.0,
    )
    made.rows = rows
    made.device_outputs = frozenset(stay) or None
    return made


# -- places


def test_a_tensor_keeps_its_kind_under_another_name():
    tensor = on_gpu(rows=3)
    renamed = tensor.renamed("Z", (6,))
    assert isinstance(renamed, DeviceTensor)
    assert (renamed.name, renamed.shape, renamed.place, renamed.nbytes) == ("Z", (6,), tensor.place, 24)
    plain = here().renamed("Z", (2,))
    assert (plain.name, plain.shape, plain.nbytes) == ("Z", (2,), 8)


def test_where_a_tensor_lies():
    there = RegionTensor("X", DataType.FP32, (2,), RegionSlice(region(), 64, 8))
    place = device_place(there)
    assert place is not None
    assert (place.handle, place.device, place.at, place.nbytes) == (HANDLE, 3, 64, 8)
    elsewhere = RegionTensor("X", DataType.FP32, (2,), RegionSlice(Region("S", "/s", 0, 64, 9), 0, 8))
    nothing = DeviceTensor("X", DataType.FP32, (0, 2), DevicePlace(HANDLE, 0, 0, 0))
    assert [device_place(each) for each in (elsewhere, here(), nothing)] == [None, None, None]


def test_the_frames_of_buffers_and_handles():
    assert frames.decode_exported(frames.encode_exported(7, 1, 512, HANDLE)) == (7, 1, 512, HANDLE)
    assert frames.decode_released(frames.encode_released(7)) == 7
    assert frames.decode_unshared(frames.encode_unshared(HANDLE)) == HANDLE
    for decode in (frames.decode_exported, frames.decode_released, frames.decode_unshared):
        with pytest.raises(FrameError):
            decode(b"\x09short")


# -- inputs


def test_inputs_on_a_gpu_take_no_room():
    gather = Gather([request(on_gpu(), here()), request(on_gpu(rows=2, at=64), here(rows=2), rows=2)], SPEC)
    there, beside = gather.inputs
    assert (there.on_device, there.shape, there.nbytes) == (True, (3, 2), 24)
    assert (beside.on_device, beside.shape, beside.offset, gather.nbytes) == (False, (3, 2), 0, 24)
    assert [(each.index, each.place.at) for each in gather.devices] == [(0, 0), (1, 64)]
    view = memoryview(bytearray(24))
    gather.copy_into(view)
    assert np.frombuffer(view, np.float32).tolist() == [5.0] * 6


def test_the_only_input_of_the_only_request_keeps_its_shape():
    gather = Gather([request(on_gpu(rows=2), rows=2)], SPEC)
    assert (gather.inputs[0].shape, gather.nbytes, gather.copied) == ((2, 2), 0, 0)


@pytest.mark.parametrize("order", [1, -1])
def test_a_batch_of_both_memories_is_refused(order):
    both = [request(on_gpu()), request(here("X"))][::order]
    with pytest.raises(ValueError, match="differ in what lies on a GPU"):
        Gather(both, SPEC)


def test_batch_keys_tell_the_memories_apart():
    validate = Validator(SPEC)
    keys = []
    for one, other in (
        (on_gpu(), here()),
        (on_gpu(at=64), here()),
        (on_gpu(), on_gpu("Y")),
        (here("X"), here()),
    ):
        asked = request(one, other)
        validate(asked)
        assert (asked.rows, asked.nbytes) == (1, 16)
        keys.append(asked.batch_key)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert keys[3] is None


def test_an_input_on_a_gpu_of_the_wrong_length_is_refused():
    wrong = DeviceTensor("X", DataType.FP32, (1, 2), DevicePlace(HANDLE, 0, 0, 4))
    with pytest.raises(Exception, match="X"):
        Validator(SPEC)(request(wrong, here()))


def test_requests_whose_tensors_are_not_read_are_like_no_other_one():
    asked = request(here("X"), here())
    assert fingerprint_of(asked) == fingerprint_of(asked)
    asked = request(on_gpu(), here())
    assert fingerprint_of(asked).quick != fingerprint_of(asked).quick
    assert fingerprint_of(asked).digest != fingerprint_of(asked).digest


def test_an_input_whose_maker_has_gone_is_an_error_that_says_so():
    error = lost_input(request(on_gpu()), on_gpu())
    assert (error.code, error.retry_after) == (ErrorCode.UNAVAILABLE, 1.0)
    assert "input 'X' of model 'm' is lost: the worker that left it on its GPU has ended" in error.message


def test_places_in_a_region_on_a_gpu_are_no_places_in_a_file():
    asked = request(here())
    asked.output_regions = {"OUT": RegionSlice(region(), 0, DIRECT_FROM + 1)}
    told: list[dict[str, object]] = [{}]
    assert tell_spans([], [asked], told) == []
    assert told == [{}]


# -- outputs


class Buffers:
    """The buffers of a worker, of 64 bytes each."""

    def __init__(self):
        self.taken = []

    def take(self, number, nbytes):
        if nbytes > 64:
            raise FrameError("it is too long")
        self.taken.append(number)
        return DevicePlace(HANDLE, 0, 0, nbytes)


def left(name="OUT", number=4, rows=1, datatype=DataType.FP32):
    return Placed(name, datatype, (rows, 2), number, 8 * rows, on_device=True)


def in_segment(name="REST", rows=1):
    return Placed(name, DataType.FP32, (rows, 2), 0, 8 * rows)


def scattered(requests, *placed, answers=None, buffers=None):
    stacked = None if answers else placed
    result = Result(1, 0, len(requests), (0, 0, 0), stacked, answers)
    scatter = Scatter(result, memoryview(bytes(64)), SPEC, buffers=buffers)
    return [outputs for _, outputs, _ in scatter.answers(requests)]


def test_an_output_may_stay_beside_one_that_is_in_the_segment():
    buffers = Buffers()
    [(there, rest)] = scattered([request(stay=("OUT",))], left(), in_segment(), buffers=buffers)
    assert isinstance(there, DeviceTensor)
    assert (there.nbytes, buffers.taken, rest.nbytes) == (8, [4], 8)


def test_stacked_outputs_are_cut_where_they_are():
    buffers = Buffers()
    asked = [request(stay=("OUT",)), request(rows=2, stay=("OUT", "REST"))]
    found: Any = scattered(asked, left(rows=3), in_segment(rows=3), buffers=buffers)
    (one, _), (other, _) = found
    assert buffers.taken == [4]
    assert [(each.place.at, each.nbytes, each.shape) for each in (one, other)] == [
        (0, 8, (1, 2)),
        (8, 16, (2, 2)),
    ]


def test_requests_that_are_answered_by_themselves_have_buffers_of_their_own():
    buffers = Buffers()
    asked = [request(stay=("OUT",)), request(stay=("OUT",))]
    scattered(asked, answers=[Answer([left(number=1)]), Answer([left(number=2)])], buffers=buffers)
    assert buffers.taken == [1, 2]


@pytest.mark.parametrize(
    ("placed", "stay", "buffers"),
    [
        (left(), ("OUT",), None),
        (left(), (), Buffers()),
        (left("REST"), ("OUT",), Buffers()),
        (left(datatype=DataType.BYTES), ("OUT",), Buffers()),
    ],
)
def test_what_was_left_there_unasked_is_a_broken_worker(placed, stay, buffers):
    with pytest.raises(FrameError, match=f"a worker left output '{placed.name}' on its GPU, unasked"):
        scattered([request(stay=stay)], placed, buffers=buffers)


def test_what_one_of_a_batch_has_not_asked_for_is_a_broken_worker():
    with pytest.raises(FrameError, match="unasked"):
        scattered([request(stay=("OUT",)), request()], left(rows=2), buffers=Buffers())


# -- what travels


def test_what_a_worker_is_told_of_one_request():
    place = DevicePlace(HANDLE, 1, 64, 8)
    told = tell_devices({"X": place}, ["OUT"], {"REST": (place, "R")}, {"X": "S"})
    spans = DeviceSpans({DEVICE: json.loads(json.dumps(told))})
    target, name = spans.targets["REST"]
    for each in (spans.inputs["X"], target):
        assert (each.handle, each.device, each.at, each.nbytes) == (HANDLE, 1, 64, 8)
    assert (spans.outputs, name, spans.regions) == ({"OUT"}, "R", {"X": "S"})
    assert tell_devices({}, (), {}) == {}
    nothing = DeviceSpans({})
    assert (nothing.inputs, nothing.outputs, nothing.targets, nothing.regions) == ({}, frozenset(), {}, {})


def test_batches_and_results_say_what_lies_on_a_gpu():
    gather = Gather([request(on_gpu(), here())], SPEC)
    job = Execute.decode(Execute(1, 0, [1], gather.inputs, [{"id": "r"}]).encode())
    assert [each.on_device for each in job.inputs] == [True, False]
    ragged = GatheredInput(0, None, 0, 8, [((1, 2), 8)], on_device=True)
    (found,) = Execute.decode(Execute(1, 0, [1], [ragged], None).encode()).inputs
    assert (found.on_device, found.parts) == (True, [((1, 2), 8)])
    result = Result.decode(Result(1, 0, 1, (0, 0, 0), [left(), in_segment()]).encode())
    assert [(each.offset, each.on_device) for each in result.stacked or ()] == [(4, True), (0, False)]
