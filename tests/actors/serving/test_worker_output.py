"""What workers print: always read, cut into lines, passed on at a bounded rate."""

import os

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.instances.output import (
    BURST,
    LINE_LIMIT,
    LINES_PER_SECOND,
    LineBudget,
    LineSplitter,
    OutputReader,
)


def test_a_burst_passes_and_then_so_many_lines_a_second():
    budget = LineBudget(0.0)
    flood = ["x"] * (BURST + 100)
    passed, dropped = budget.admit(flood, 0.0)
    assert (len(passed), dropped) == (BURST, 100)
    assert budget.admit(["x"], 0.001) == ([], 0)
    passed, dropped = budget.admit(["a", "b", "c"], 0.02)
    assert (passed, dropped) == (["a", "b"], 2)
    passed, dropped = budget.admit(flood, 1000.0)
    assert (len(passed), dropped) == (BURST, 100)


def test_what_was_dropped_last_is_told_once():
    budget = LineBudget(0.0)
    budget.admit(["x"] * BURST, 0.0)
    budget.admit(["x"] * 7, 0.0)
    assert budget.remainder() == 7
    assert budget.remainder() == 0


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 3)), max_size=20))
def test_no_line_is_lost_without_being_counted_and_the_rate_holds(bursts):
    budget = LineBudget(0.0)
    now = total = passed_in_all = dropped_in_all = 0
    for count, pause in bursts:
        now += pause
        total += count
        passed, dropped = budget.admit(["x"] * count, now)
        passed_in_all += len(passed)
        dropped_in_all += dropped
    assert passed_in_all + dropped_in_all + budget.remainder() == total
    assert passed_in_all <= BURST + now * LINES_PER_SECOND + 1e-6


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_are_the_same_however_they_are_cut_into_pieces(lines, data):
    text = b"\n".join(lines)
    splitter = LineSplitter()
    found = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        found += splitter.feed(text[:size])
        text = text[size:]
    found += splitter.finish()
    assert found == [line.decode(errors="replace") for line in lines if line]


def test_an_endless_line_is_cut_and_costs_no_more_than_that():
    splitter = LineSplitter()
    for _ in range(50):
        assert splitter.feed(b"x" * 10_000) == []
    (line,) = splitter.feed(b"tail\nnext")
    assert line == "x" * LINE_LIMIT
    assert splitter.finish() == ["next"]
    assert splitter.finish() == []


class Reports:
    def __init__(self):
        self.lines = []
        self.dropped = 0

    def __call__(self, lines, dropped):
        self.lines += lines
        self.dropped += dropped


@pytest.fixture
def descriptors():
    read_end, write_end = os.pipe()
    left = {write_end}
    yield read_end, write_end, left
    for descriptor in left:
        os.close(descriptor)


async def test_a_pipe_is_read_line_by_line_to_its_end(descriptors, nursery):
    read_end, write_end, left = descriptors
    reports = Reports()
    reader = OutputReader(read_end, reports)
    nursery.start_soon(reader.run)
    os.write(write_end, b"one\ntwo\nthr")
    await trio.testing.wait_all_tasks_blocked()
    assert reports.lines == ["one", "two"]
    os.write(write_end, b"ee\nlast words")
    os.close(write_end)
    left.clear()
    await trio.testing.wait_all_tasks_blocked()
    reader.drain()
    reader.close()
    reader.close()
    assert reports.lines == ["one", "two", "three", "last words"]


async def test_a_flood_is_read_to_the_end_and_mostly_dropped(descriptors, nursery, autojump_clock):
    read_end, write_end, _ = descriptors
    reports = Reports()
    reader = OutputReader(read_end, reports)
    nursery.start_soon(reader.run)
    for _ in range(100):
        os.write(write_end, b"x\n" * 1000)
        await trio.testing.wait_all_tasks_blocked()
    nursery.cancel_scope.cancel()
    reader.drain()
    assert len(reports.lines) + reports.dropped == 100_000
    assert BURST <= len(reports.lines) < 2000


async def test_draining_never_waits_for_a_pipe_that_somebody_holds_open(descriptors):
    read_end, write_end, _ = descriptors
    reports = Reports()
    reader = OutputReader(read_end, reports)
    os.write(write_end, b"said\nand then")
    reader.drain()
    assert reports.lines == ["said", "and then"]
    reader.close()


async def test_without_a_pipe_there_is_nothing_to_read():
    reports = Reports()
    reader = OutputReader(None, reports)
    await reader.run()
    reader.drain()
    reader.close()
    assert not reports.lines
