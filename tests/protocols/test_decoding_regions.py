"""Requests with tensors in regions, decoded over both protocols: what the registry is asked, and when."""

import json

import pytest
from tritonclient.grpc import service_pb2

from actors.values.errors import InvalidArgument, NotFound
from actors.values.interfaces import NoRegions, Regions
from actors.values.regions import RegionPlace
from protocols.grpc.codec.infer_request import InferDecoder as GrpcDecoder
from protocols.kserve.requests import Arrival
from protocols.kserve.requests import InferDecoder as HttpDecoder
from tests.protocols.fakes import make_spec
from tests.support.ports import NoPort

SPEC = make_spec()
PLACE = {"shared_memory_region": "R", "shared_memory_byte_size": 64, "shared_memory_offset": 8}


class Recording(Regions):
    """Keeps what it is asked."""

    def __init__(self):
        self.seen = []

    def attach(self, request, places):
        self.seen.append((request, (places.inputs, places.outputs)))


def over_http(document, behind=b"", *, decoder, framed=True):
    text = json.dumps(document).encode()
    size = len(text) if framed else None
    return decoder.decode(text + behind, size, SPEC, Arrival(-1, NoPort(), 0.0))


def described(name, parameters=None, **more):
    return {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": parameters or {}, **more}


@pytest.mark.parametrize("framed", [True, False])
def test_over_http_a_known_text_is_asked_for_anew_each_time(framed):
    regions = Recording()
    decoder = HttpDecoder(regions=regions)
    document = {
        "inputs": [described("A", PLACE), described("B", {"shared_memory_region": "Q"})],
        "outputs": [{"name": "S", "parameters": PLACE}, {"name": "D"}],
    }
    for turn in range(3):
        request, plan = over_http(document, decoder=decoder, framed=framed)
        assert len(regions.seen) == turn + 1
        assert regions.seen[-1] == (
            request,
            ([RegionPlace("R", 8, 64), RegionPlace("Q", 0, 0)], {"S": RegionPlace("R", 8, 64)}),
        )
        assert [bytes(tensor.data) for tensor in request.inputs] == [b"", b""]
        assert (plan.named["S"].shared, plan.named["D"].shared) == (True, False)
    assert len({id(request) for request, _ in regions.seen}) == 3


def test_over_http_binary_inputs_stay_where_they_are():
    regions = Recording()
    decoder = HttpDecoder(regions=regions)
    document = {"inputs": [described("A", PLACE), described("B", {"binary_data_size": 64})]}
    for byte in b"xy":
        request, _ = over_http(document, bytes([byte]) * 64, decoder=decoder)
        assert [bytes(tensor.data) for tensor in request.inputs] == [b"", bytes([byte]) * 64]
        assert regions.seen[-1][1][0] == [RegionPlace("R", 8, 64), None]
    # A text without regions is another matter, and JSON data is never taken for another's.
    for value in (1, 2):
        both = [described(name, data=[value] * 16) for name in "AB"]
        request, _ = over_http({"inputs": both}, decoder=decoder, framed=False)
        assert request.inputs[0].as_numpy()[0, 0] == value
    assert len(regions.seen) == 2


def test_over_http_a_long_text_is_asked_for_too():
    regions = Recording()
    decoder = HttpDecoder(regions=regions)
    text = json.dumps({"inputs": [described("A", PLACE), described("B", data=[0.5] * 16)]}).encode()
    steps = decoder.decode_long(text, None, SPEC, Arrival(-1, NoPort(), 0.0))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request, _ = end.value
            break
    assert regions.seen == [(request, ([RegionPlace("R", 8, 64), None], {}))]


def grpc_message(inputs, outputs=(), raw=()):
    message = service_pb2.ModelInferRequest(model_name="add")
    for holder, each in [(message.inputs, each) for each in inputs] + [
        (message.outputs, each) for each in outputs
    ]:
        name, place = each
        made = holder.add(name=name)
        if holder is message.inputs:
            made.datatype = "FP32"
            made.shape.extend([1, 16])
        if place is not None:
            made.parameters["shared_memory_region"].string_param = place[0]
            made.parameters["shared_memory_byte_size"].int64_param = place[2]
            if place[1]:
                made.parameters["shared_memory_offset"].int64_param = place[1]
    message.raw_input_contents.extend(raw)
    return message.SerializeToString()


def over_grpc(message, decoder):
    return decoder.decode(decoder.peek(message), SPEC, requested_version=-1, reply=NoPort(), accepted_at=0.0)


def test_over_grpc_a_known_message_is_asked_for_anew_each_time():
    regions = Recording()
    decoder = GrpcDecoder(regions)
    places = [("A", ("R", 8, 64)), ("B", ("Q", 0, 64))]
    message = grpc_message(places, [("S", ("R", 0, 1)), ("D", None)])
    for turn in range(3):
        request, plan = over_grpc(message, decoder)
        assert len(regions.seen) == turn + 1
        assert regions.seen[-1] == (
            request,
            ([RegionPlace("R", 8, 64), RegionPlace("Q", 0, 64)], {"S": RegionPlace("R", 0, 1)}),
        )
        assert plan.classes == {"S": 0, "D": 0}


@pytest.mark.parametrize("shared", [0, 1])
def test_over_grpc_an_input_in_a_region_consumes_no_raw_tensor(shared):
    regions = Recording()
    decoder = GrpcDecoder(regions)
    inputs = [(name, ("R", 0, 64) if place == shared else None) for place, name in enumerate("AB")]
    for byte in b"xy":
        request, _ = over_grpc(grpc_message(inputs, raw=[bytes([byte]) * 64, b"surplus"]), decoder)
        data = [bytes(tensor.data) for tensor in request.inputs]
        assert data[shared] == b""
        assert data[1 - shared] == bytes([byte]) * 64
    # A known message with fewer raw tensors than before.
    with pytest.raises(InvalidArgument, match=f"unable to find data for input tensor '{'BA'[shared]}'"):
        over_grpc(grpc_message(inputs), decoder)


def test_without_regions_none_is_found():
    for decode in (
        lambda: over_http({"inputs": [described("A", PLACE), described("B", PLACE)]}, decoder=HttpDecoder()),
        lambda: over_grpc(
            grpc_message([("A", None)], [("S", ("R", 0, 8))], [bytes(64)]), GrpcDecoder(NoRegions())
        ),
    ):
        with pytest.raises(NotFound, match=r"^Unable to find shared memory region: 'R'$"):
            decode()
