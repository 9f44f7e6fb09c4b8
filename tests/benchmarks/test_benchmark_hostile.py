"""The hostile inputs, and how their effect is measured: by a real server, whose loop is timed from within."""

import gzip

import pytest

from benchmarks import __main__ as command
from benchmarks.grpc.payloads import framed
from benchmarks.hostile.inputs import MIB, Hostile, catalog, field, varint
from benchmarks.hostile.measure import Siege
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.support.logged import Silent


def named(name):
    return next(each for each in catalog() if each.name == name)


def test_there_are_sixty_inputs_and_more_each_with_a_name_of_its_own():
    names = [each.name for each in catalog()]
    assert len(names) == len(set(names)) >= 60
    assert {each.grpc for each in catalog()} == {True, False}


def test_what_is_allowed_grows_with_what_a_body_unfolds_to_and_the_tensors_in_it():
    hostile = Hostile(name="", body=bytes, path="", unfolded=10 * MIB, tensors=MIB)
    assert hostile.allowed(1000) == 64 * 1024 + 40 * MIB + 3 * MIB
    assert hostile.allowed(20 * MIB) == 64 * 1024 + 80 * MIB + 3 * MIB


def test_messages_are_protobuf_as_the_library_reads_it():
    message = pb.ModelInferRequest()
    message.ParseFromString(named("gRPC: 10 M floats").body())
    assert message.model_name == "floats"
    assert list(message.inputs[0].shape) == [10 * MIB] == [len(message.inputs[0].contents.fp32_contents)]
    assert field(1, b"x" * 300) == b"\x0a" + varint(300) + b"x" * 300
    assert framed(b"m") == b"\0\0\0\0\1m"


@pytest.mark.long
def test_what_is_folded_unfolds_to_what_it_says():
    hostile = named("gzip: 62 MiB of 1")
    assert abs(len(gzip.decompress(hostile.body())) - hostile.unfolded) < 1024


def test_hostile_inputs_are_measured_only_where_they_are_asked_for():
    assert "hostile" not in command.options([]).order.operations
    order = command.options(["--only", "hostile", "--hostile", "gRPC"]).order
    assert (order.operations, order.hostile) == ({"hostile"}, "gRPC")


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["head: 5,000 codings", pytest.param("gRPC: a model's name of 60 MiB", marks=pytest.mark.long)]
)
def test_an_input_is_measured_against_a_real_server(tmp_path, name):
    from benchmarks.subjects import CHECKOUT

    attacks, skipped = Siege(CHECKOUT, tmp_path, Silent(), seconds=0.2).run(name)
    assert list(skipped) == []
    (attack,) = attacks
    assert attack.name == name
    assert attack.size > 0
    assert not attack.answer.startswith("no answer")
    assert 0 < attack.turn < 10
    assert attack.beside >= attack.beside_p50 > 0
    assert attack.beside_sink > 0
