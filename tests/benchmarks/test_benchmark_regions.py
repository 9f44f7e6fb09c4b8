"""The pairs of the shared memory benchmark: only the place of the tensors differs."""

import json

import pytest

from benchmarks.payloads import HEADER_LENGTH
from benchmarks.regions.__main__ import REGION, WIRE, Regions, over_grpc, over_http, report
from benchmarks.results import Cell, Load, Measured, Sample
from protocols.kserve.proto import grpc_service_pb2 as pb

NBYTES = 64


@pytest.fixture
def regions():
    made = Regions.__new__(Regions)  # no server is asked
    made.nbytes, made.names = NBYTES, {"in": "source", "out": "target"}
    return made


def without_places(document):
    for tensor in (*document["inputs"], *document["outputs"]):
        del tensor["parameters"]
    return document


def test_both_requests_over_http_ask_for_the_same(regions):
    requests = over_http(regions)
    size = int(requests[WIRE].headers[HEADER_LENGTH])
    assert len(requests[WIRE].body) == size + NBYTES
    wire, region = json.loads(requests[WIRE].body[:size]), json.loads(requests[REGION].body)
    assert region["inputs"][0]["parameters"] == {
        "shared_memory_region": "source",
        "shared_memory_byte_size": NBYTES,
    }
    assert region["outputs"][0]["parameters"]["shared_memory_region"] == "target"
    assert without_places(wire) == without_places(region)


def test_both_messages_over_grpc_ask_for_the_same(regions):
    messages = {name: pb.ModelInferRequest.FromString(each) for name, each in over_grpc(regions).items()}
    assert len(messages[WIRE].raw_input_contents[0]) == NBYTES
    assert not messages[REGION].raw_input_contents
    for tensor in (messages[REGION].inputs[0], messages[REGION].outputs[0]):
        assert tensor.parameters["shared_memory_byte_size"].int64_param == NBYTES
        tensor.ClearField("parameters")
    del messages[WIRE].raw_input_contents[:]
    assert messages[WIRE] == messages[REGION]


def test_a_ratio_is_the_median_of_neighbouring_rounds(capsys):
    def measured(label, *rates):
        samples = [
            Sample(
                Load(requests=100, seconds=1.0, rate=rate, p50=0.001, p99=0.002, errors=0, refused=0), 0.01
            )
            for rate in rates
        ]
        return Measured(Cell("regions", "64 B, HTTP", 4, "wrk"), label, samples)

    report([measured(WIRE, 100.0, 200.0, 100.0), measured(REGION, 150.0, 100.0, 200.0)])
    assert "64 B, HTTP        4      100      150   1.50     100.0     100.0" in capsys.readouterr().out
