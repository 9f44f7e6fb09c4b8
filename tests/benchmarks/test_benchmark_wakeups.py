"""What one call at a time takes of a server: read from a loop's marks, the kernel's counts, a real server."""

import os
import time
from pathlib import Path

import pytest
import trio

from benchmarks import processes, report
from benchmarks.awake import kept_awake
from benchmarks.subjects import CHECKOUT, Checkout, prepared
from benchmarks.wakeups import __main__ as command
from benchmarks.wakeups import counters, session
from benchmarks.wakeups.callers import whole_length
from benchmarks.wakeups.timeline import Call, counts, timeline, turns
from benchmarks.wakeups.watched import RING, LoopWatch, Mark, Page, names_of

NAMES = ["connection", "worker", "sweep"]


def turn(woken, *steps, after=Mark.SLEEPS, over):
    """Return the marks of a turn: `steps` are (number of the task, from, to)."""
    marks = [(woken, Mark.WOKEN)]
    for number, began, ended in steps:
        marks += [(began, Mark.STEP + number), (ended, Mark.PAUSES)]
    return [*marks, (over, after)]


def call(at, *, slow=0):
    """Return the marks of a call that begins at `at`, and takes two turns."""
    return [
        *turn(at + 10, (0, at + 11, at + 20), over=at + 22),
        *turn(at + 60 + slow, (1, at + 61 + slow, at + 75 + slow), over=at + 78 + slow),
    ]


def test_a_turn_lasts_from_the_end_of_a_wait_to_the_beginning_of_the_next():
    marks = [*turn(5, (0, 6, 8), after=Mark.POLLS, over=9), *turn(10, (1, 11, 13), (2, 13, 14), over=15)]
    first, second = turns(marks, NAMES)
    assert (first.woken, first.over, first.polled, first.steps) == (5, 9, False, [("connection", 2)])
    assert (second.woken, second.over, second.polled) == (10, 15, True)
    assert second.steps == [("worker", 2), ("sweep", 1)]


def test_a_turn_that_was_under_way_at_the_start_or_the_end_is_left_out():
    half = [(1, Mark.STEP), (2, Mark.PAUSES), (3, Mark.SLEEPS)]
    assert [each.woken for each in turns([*half, *call(100), (300, Mark.WOKEN)], NAMES)] == [110, 160]


def test_counts_are_for_one_call():
    seen = list(turns([*call(0), *call(100), *turn(190, (2, 191, 192), after=Mark.POLLS, over=193)], NAMES))
    found = counts(seen, 2)
    assert (found.turns, found.polls, found.steps) == (2.5, 0.0, 2.5)
    assert dict(found.tasks) == {"connection": 1.0, "worker": 1.0, "sweep": 0.5}


def test_a_time_line_has_the_medians_of_the_most_usual_kind_of_call():
    swept = turn(430, (2, 431, 432), over=433)
    marks = [*call(0), *call(100, slow=2), *call(200, slow=4), *call(400)[:5], *swept, *call(400)[5:]]
    calls = [Call(0, 90), Call(100, 192), Call(200, 294), Call(400, 499)]
    moments = timeline(list(turns(marks, NAMES)), calls)
    assert [(each.at, each.what) for each in moments] == [
        (0, "the client begins to send"),
        (10, "the loop's turn 1: connection"),
        (22, "turn 1 is over"),
        (62, "the loop's turn 2: worker"),
        (80, "turn 2 is over"),
        (92, "the client has the answer"),
    ]


def test_calls_without_a_turn_have_no_time_line():
    assert timeline([], [Call(0, 10)]) == []
    assert timeline([], []) == []


def test_a_loop_is_watched_and_its_page_read_by_another_mapping(tmp_path):
    path = tmp_path / "loop"
    page = Page(path)

    async def main():
        with names_of(path).open("w") as names:
            watch = LoopWatch(page, names)
            trio.lowlevel.add_instrument(watch)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(watch)

    trio.run(main)
    names = names_of(path).read_text().splitlines()
    seen = list(turns(Page(path).since(0), names))
    mine = [name for each in seen for name, _ in each.steps if "main" in name]
    assert len(mine) == 2  # the first of three was under way as the watch began, the last as it ended
    assert all(each.polled for each in seen[1:])


def test_a_page_that_was_written_over_says_so(tmp_path):
    page = Page(tmp_path / "loop")
    for number in range(RING + 1):
        page.note(number, Mark.WOKEN)
    assert page.since(1)[-1] == (RING, Mark.WOKEN)
    with pytest.raises(ValueError, match=f"{RING + 1} marks are more than the page's {RING}"):
        page.since(0)


def test_what_strace_counted_is_read_with_errors_and_without():
    summary = (Path(__file__).parent / "captured" / "strace.txt").read_text()
    assert counters.system_calls(summary) == {"epoll_wait": 602, "sendto": 602, "recvfrom": 304, "futex": 1}


def test_what_a_process_has_used_grows():
    before = counters.used(os.getpid())
    sum(range(100_000))
    os.sched_yield()  # the kernel counts up to the last switch
    used = counters.used(os.getpid()) - before
    assert used.cpu > 0
    assert min(used.slept, used.driven) >= 0


def test_without_strace_system_calls_are_not_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(counters.Unavailable, match="not installed"):
        counters.traced(os.getpid(), lambda: None, tmp_path)


def test_an_answer_over_http_is_as_long_as_it_says():
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\n"
    assert whole_length(head[:-1]) is None
    assert whole_length(head) == whole_length(head + b"hel") == len(head) + 5
    assert whole_length(b"HTTP/1.1 204 No Content\r\n\r\n") == len(b"HTTP/1.1 204 No Content\r\n\r\n")


def test_a_target_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["https://x:1"])
    assert "no http://host:port" in capsys.readouterr().err


def test_a_server_that_runs_already_is_not_looked_into(capsys):
    assert command.main(["http://127.0.0.1:1"]) == 2
    assert "was not started here" in capsys.readouterr().err


@pytest.mark.system
def test_a_core_is_kept_awake_by_a_process_that_every_other_displaces():
    def spinners():
        family = processes.family(os.getpid())
        return [each.pid for each in family if b"awake.py" in Path(f"/proc/{each.pid}/cmdline").read_bytes()]

    with kept_awake() as note:
        assert f"core {max(os.sched_getaffinity(0))}" in note
        while not (found := spinners()) or os.sched_getscheduler(found[0]) != os.SCHED_IDLE:
            time.sleep(0.01)
        assert os.sched_getaffinity(found[0]) == {max(os.sched_getaffinity(0))}
    assert spinners() == []


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_calls_to_a_real_server_are_counted(tmp_path):
    with prepared(Checkout("here", CHECKOUT), tmp_path) as source:
        found = session.measure([source], seconds=0.2, rounds=1, scratch=tmp_path)
    assert [(each.label, each.protocol) for each in found] == [("here", "HTTP"), ("here", "gRPC")]
    for each in found:
        assert each.counts.turns > 1.9  # of 2: the count may begin or end within a call
        assert any("instances" in name for name, _ in each.counts.tasks)
        assert "the client has the answer" in [moment.what for moment in each.moments]
        assert each.rounds[0].server.cpu > each.rounds[0].workers.cpu > 0
    text = report.markdown_tables(session.tables(found))
    assert "### Turns of the loop for one call" in text
    assert text.count("### Time line of one call") == 2
