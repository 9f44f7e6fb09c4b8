"""What the load clients for gRPC print, read into figures."""

import json
import math

import pytest

from benchmarks import clients, parsers
from benchmarks.grpc.clients import for_way, incomplete, own_output, preferred
from benchmarks.grpc.judge import Address, method
from benchmarks.grpc.scenarios import Shape, Way
from benchmarks.grpc.subjects import GrpcSubject
from benchmarks.parsers import UnreadableOutput

ANSWER_SIZE = 191


def test_a_run_of_h2load_over_http2_is_read(captured):
    load = parsers.h2load(captured("h2load_grpc_good.txt"), captured("h2load_grpc_log.txt"))
    assert load.requests > 100
    assert load.rate == pytest.approx(load.requests / load.seconds, rel=0.02)
    assert 1e-4 < load.p50 <= load.p99 < 0.1
    assert (load.errors, load.refused) == (0, 0)


@pytest.mark.parametrize(("run", "share"), [("good", 0), ("refused", 1)])
def test_calls_that_fail_look_good_to_h2load_and_are_told_by_the_bytes_they_lack(captured, run, share):
    text = captured(f"h2load_grpc_{run}.txt")
    load = parsers.h2load(text, "")
    assert load.refused == 0
    assert incomplete(text, ANSWER_SIZE) == share * load.requests


def test_output_without_traffic_is_refused():
    with pytest.raises(UnreadableOutput, match="no traffic"):
        incomplete("finished", ANSWER_SIZE)


OWN = {
    "requests": 10,
    "seconds": 2.0,
    "p50": 0.001,
    "p99": 0.002,
    "answered": 12,
    "unanswered": 1,
    "refused": 3,
    "why": "grpc-status 14",
    "answer_bytes": 12 * (5 + ANSWER_SIZE),
}


@pytest.mark.parametrize(
    ("told", "refused"), [({}, 3), ({"refused": 0, "answer_bytes": 5 * (5 + ANSWER_SIZE)}, 7)]
)
def test_a_run_of_the_own_client_is_read_and_answers_without_their_messages_are_refusals(told, refused):
    load = own_output(json.dumps(OWN | told), ANSWER_SIZE)
    assert (load.rate, load.p50, load.p99, load.errors, load.refused) == (5.0, 0.001, 0.002, 1, refused)


def test_a_run_of_the_own_client_without_answers_has_no_latency():
    nothing = {"requests": 0, "answered": 0, "answer_bytes": 0, "p50": None, "p99": None}
    load = own_output(json.dumps(OWN | nothing), ANSWER_SIZE)
    assert math.isnan(load.p50)
    assert load.rate == 0.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"requests": 1}'])
def test_text_that_is_not_from_the_own_client_is_refused(text):
    with pytest.raises(UnreadableOutput, match="no result"):
        own_output(text, ANSWER_SIZE)


def test_h2load_is_asked_only_for_what_it_can_do():
    both = ("h2load", "own")
    assert for_way(Way.UNARY, both) == both
    assert {for_way(way, both) for way in Way if way is not Way.UNARY} == {("own",)}


def test_without_h2load_the_own_client_does_everything(monkeypatch):
    monkeypatch.setattr(clients, "missing", lambda name: f"{name} is not installed")
    assert preferred() == "own"


def test_shapes_are_written_as_connections_times_streams():
    assert [str(each) for each in (Shape(1, 1), Shape(4, 1), Shape(8, 16))] == ["1", "4×1", "8×16"]


def test_the_bare_responder_is_told_what_to_answer_by_the_path():
    bare = GrpcSubject(label="bare", address=Address("127.0.0.1", 1))
    other = GrpcSubject(label="tritium", address=Address("127.0.0.1", 1))
    assert bare.path(Way.METADATA, 190) == "/unary/190"
    assert bare.path(Way.STREAM, 190) == "/stream/190"
    assert (
        other.path(Way.STREAM, 190)
        == method(Way.STREAM)
        == "/inference.GRPCInferenceService/ModelStreamInfer"
    )
