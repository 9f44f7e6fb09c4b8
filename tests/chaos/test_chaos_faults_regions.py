"""Clients with regions of shared memory that misbehave, against a real server under a small load."""

import os

import numpy as np
import pytest

from chaos.faults.control import EXPLICIT
from chaos.faults.regions import harms
from chaos.faults.regions.asking import NAMES, ROOM, SEATS, SHARED_MEMORY, Seen
from chaos.faults.regions.memory import FOLDER, PAGE, Memory, held_open
from tests.chaos.faults_bench import bench


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.system
async def test_what_clients_do_to_their_regions_harms_nobody_else(tmp_path):
    async with bench(tmp_path, *EXPLICIT, SHARED_MEMORY) as made:
        troubles = {each.name: await made.trouble(each) for each in harms.FAULTS}
        assert troubles == {each.name: "" for each in harms.FAULTS}
        counted = [
            await made.server.metric("tritium_shared_memory_failures_total", operation=operation)
            for operation in ("read", "register")
        ]
        assert counted[0] >= len(SEATS)  # the inputs that were cut off for certain
    assert not made.failed()
    assert not [each for each in os.listdir(FOLDER) if each.startswith(f"{NAMES}{os.getpid()}-")]


# -- what faults say of a server that does not keep its promises


def seen(answer, *, value=5, code="", text=""):
    return Seen("fault-1", value, code, text, np.array(answer, np.int32))


def test_the_value_that_was_sent_is_right_and_nothing_else():
    assert seen([5, 5]).right
    for wrong in (seen([5, 6]), seen([5, 0]), seen([5, 5], code="NOT_FOUND", text="oh")):
        assert not wrong.right
    assert seen([5, 6]).told() == "the answer to fault-1 in its region has [5, 6], where 5 was sent"
    assert seen([5], code="INTERNAL", text="oh").told() == "INTERNAL to fault-1: oh"


def test_a_region_that_is_cut_off_is_zeros_or_a_refusal_that_says_so():
    fine = harms.whole_or_shrunk
    refusal = f"shared memory region 'R' {harms.SHRUNK}"
    assert fine(seen([5, 0]))
    assert fine(seen([5, 5], code="INVALID_ARGUMENT", text=refusal))
    assert not fine(seen([5, 6]))
    assert not fine(seen([5, 5], code="INTERNAL", text=refusal))
    assert not fine(seen([5, 5], code="INVALID_ARGUMENT", text="oh"))


def test_a_region_that_is_taken_away_is_the_right_answer_or_not_found():
    fine = harms.right_or_unknown
    assert fine(seen([5, 5]))
    assert fine(seen([0, 0], code="NOT_FOUND", text=f"{harms.UNKNOWN}'R'"))
    assert not fine(seen([5, 0]))
    assert not fine(seen([0, 0], code="NOT_FOUND", text="Request for unknown model"))


# -- the clients' side


def test_no_seat_is_anothers_and_none_is_in_the_page_that_is_left():
    taken = [PAGE]
    for each in SEATS:
        assert each.at >= taken[-1]
        assert each.at % PAGE == 0
        taken.append(each.answer + each.nbytes)
    assert taken[-1] <= ROOM
    assert {each.wire for each in SEATS} == {"http", "grpc"}


def test_an_object_is_read_as_zeros_where_it_was_cut_off_and_goes_with_its_name():
    name = f"{NAMES}test-{os.getpid()}"
    with Memory(f"/{name}", 2 * PAGE) as memory:
        memory.put(PAGE, np.array([1, 2], np.int32))
        assert held_open(os.getpid(), name) == [str(FOLDER / name)]
        with Memory(f"/{name}", 2 * PAGE, there=True) as another:
            assert another.take(PAGE, 2).tolist() == [1, 2]
        assert held_open(os.getpid(), name) == [f"{FOLDER / name} (deleted)"]
        memory.resize(PAGE + 4)
        assert memory.take(PAGE, 2).tolist() == [1, 0]
    assert held_open(os.getpid(), name) == []
