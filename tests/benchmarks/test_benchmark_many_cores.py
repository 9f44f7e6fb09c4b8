"""The prototypes for machines with many cores: a ring loses nothing, and requests are answered across processes."""

import contextlib
import os
import signal

import numpy as np
import pytest
import trio
import trio.testing

from actors.values.datatypes import DataType
from actors.values.tensors import Tensor
from actors.wire.arena import Segment
from benchmarks import processes
from benchmarks.design.many_cores import __main__ as command
from benchmarks.design.many_cores import arrangement, codec, forms, routing, scaling, threads
from benchmarks.design.many_cores.forms import Book, Form
from benchmarks.design.many_cores.ring import Ring
from benchmarks.subjects import CHECKOUT


@pytest.fixture
def ends():
    segment = Segment.create(2 * 4096)
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield Ring(segment, bell), Ring(segment, bell)
    os.close(bell)
    segment.close_fd()


def taken(reader):
    frames = []
    while (frame := reader.take()) is not None:
        frames.append(bytes(frame))
    reader.done()
    return frames


def test_frames_of_every_length_come_out_as_they_went_in_however_often_the_ring_wraps(ends):
    writer, reader = ends
    sent = [bytes([number % 251]) * (1 + number * 37 % 900) for number in range(500)]
    received = []
    for frame in sent:
        while not writer.put(frame):
            received += taken(reader)
    assert received + taken(reader) == sent
    assert len(received) > 0


def test_a_full_ring_refuses_and_has_room_again_once_its_reader_is_done(ends):
    writer, reader = ends
    count = 0
    while writer.put(b"x" * 100):
        count += 1
    assert count > 10
    assert reader.take() is not None
    assert not writer.put(b"x" * 100), "a frame that is still being read must not be overwritten"
    reader.done()
    assert writer.put(b"x" * 100)


def test_a_reader_that_sleeps_is_rung_once_and_one_that_is_awake_is_not(ends):
    writer, reader = ends

    def rung():
        try:
            return os.eventfd_read(reader.doorbell)
        except BlockingIOError:
            return 0

    writer.ring()
    assert rung() == 0
    assert reader.may_sleep()
    writer.put(b"a")
    writer.ring()
    writer.ring()
    assert rung() == 1
    assert not reader.may_sleep(), "a frame has come, which must not be slept over"


async def test_a_waiting_reader_gets_every_frame_of_a_turn_by_one_ring(ends):
    writer, reader = ends
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.ring_when_told)
            received: list[list[bytes]] = []

            async def read():
                while len(received) < 3:
                    await reader.wait()
                    received.append(taken(reader))
                    if sum(map(len, received)) == 3:
                        nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            for frame in (b"1", b"2", b"3"):
                writer.put(frame)
                writer.ring_soon()
    assert received == [[b"1", b"2", b"3"]]


def test_a_form_is_told_once_and_cuts_what_comes_by_its_number():
    told = []

    def put(frame):
        told.append(frame)
        return True

    book = Book(put)
    tensors = [
        Tensor("A", DataType.FP32, (1, 2), b"12345678"),
        Tensor("B", DataType.INT8, (3,), b"abc"),
    ]
    assert book.number("m", -1, ("O",), tensors) == book.number("m", -1, ("O",), tensors) == 0
    assert book.number("m", -1, (), tensors) == 1
    assert len(told) == 2
    number, form = Form.decode(memoryview(told[0]))
    assert (number, form.model, form.version, form.outputs) == (0, "m", -1, ("O",))
    frame = forms.call(forms.CALL, 0, 77, "näme", tensors)
    form_number, call_number, identity, data = forms.read_call(memoryview(frame))
    assert (form_number, call_number, identity) == (0, 77, "näme")
    cut = forms.cut(form, data)
    assert [(each.name, each.datatype, each.shape, bytes(each.data)) for each in cut] == [
        ("A", DataType.FP32, (1, 2), b"12345678"),
        ("B", DataType.INT8, (3,), b"abc"),
    ]


def test_an_error_keeps_its_code_and_text():
    frame = forms.failure(5, "Not found", "there is no modèle")
    assert forms.read_failure(memoryview(frame)) == (5, "Not found", "there is no modèle")


def test_one_loop_bounds_a_machine_until_the_model_takes_more_than_it():
    light = scaling.plan(scaling.HTTP, 64, 0)
    assert light.bound == "loop"
    assert scaling.plan(scaling.HTTP, 16, 0).rate > light.rate, "the same loop, on a slower core"
    assert scaling.plan(scaling.HTTP, 16, 50_000).bound == "cores"
    assert scaling.plan(scaling.HTTP_SPLIT, 64, 0).rate > 3 * light.rate


def test_threads_that_wait_for_one_another_give_no_more_than_the_law_of_amdahl_says():
    assert scaling.contended(100, 200) == 0
    assert scaling.contended(100, 100) == 1
    assert scaling.threads_at_most(0.5) == 2


def test_the_page_shows_the_plans_that_the_command_prints():
    page = (CHECKOUT / "docs" / "design" / "many-cores.md").read_text()
    for row in scaling.table():
        line = " | ".join((row.protocol, row.way, *row.cells))
        assert f"| {line} |" in page, "python -m benchmarks.design.many_cores --only plans"


def test_frames_are_timed_in_one_process():
    assert {name: cost > 0 for name, cost in codec.measured(0.02).items()} == {
        "write a request": True,
        "read a request": True,
        "write a response": True,
        "read a response": True,
    }


@pytest.mark.system
def test_connections_are_counted_by_listener():
    counts = routing.shares(4, 32)
    assert len(counts) == 4
    assert sum(counts) == 32


@pytest.mark.system
@pytest.mark.slow
def test_threads_answer_their_own_clients():
    rate, cost = threads.run(2, 0.2, queue=True)
    assert rate > 0
    assert cost > 0


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    with arrangement.owner(tmp_path_factory.mktemp("owner")) as running:
        yield running


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("load", ["HTTP 16", "gRPC 8×16"])
def test_an_answer_through_a_ring_is_what_the_model_computes(owner, tmp_path, load):
    with arrangement.protocols(owner, 2, tmp_path) as (subject, _):
        arrangement.LOADS[load](subject)  # checks one answer


@pytest.mark.system
@pytest.mark.slow
def test_the_end_of_a_protocol_process_costs_nothing_but_its_connections(owner, tmp_path):
    with arrangement.protocols(owner, 2, tmp_path) as (subject, pids):
        family = list(processes.family(pids[0]))  # it is not to be found once the first has gone
        os.kill(pids[0], signal.SIGKILL)
        processes.wait_gone(family, 10)
        _until_served(subject)  # by the other one
    arrangement.over_http(owner.subject, 1)


def _until_served(subject):
    """Ask until there is an answer. The last thread of a process that ends may still have its listener."""
    for _ in range(100):
        with contextlib.suppress(ConnectionError):
            arrangement.over_http(subject, 1)
            return
    raise AssertionError("every connection was broken off")


@pytest.mark.system
@pytest.mark.slow
def test_an_owner_answers_every_call_of_several_rings(owner):
    found = arrangement.flooded(owner, 3, 0.3, alone=False)
    assert found.failed == 0
    assert found.rate > 0
    assert found.by_kind["owner"] > 0


def test_the_command_measures_what_it_is_asked_for(capsys):
    assert command.main(["--only", "plans", "frames", "--seconds", "0.02"]) == 0
    printed = capsys.readouterr().out
    assert "one process, compiled" in printed
    assert "write a request" in printed


def test_numpy_inputs_have_the_shape_of_one_row():
    tensors = command.codec.inputs_of(command.codec.add_sub())
    assert [each.shape for each in tensors] == [(1, 16), (1, 16)]
    assert np.array_equal(tensors[0].as_numpy(), np.ones((1, 16), np.float32))
