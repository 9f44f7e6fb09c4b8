"""The readers of other programs' output, on output that those programs gave."""

import math

import pytest

from benchmarks import parsers
from benchmarks.parsers import ProcessStat, UnreadableOutput


def test_a_clean_run_of_wrk_is_read_in_seconds(captured):
    load = parsers.wrk(captured("wrk_good.txt"))
    assert load.requests > 10_000
    assert load.rate == pytest.approx(load.requests / load.seconds, rel=0.02)
    assert 1e-4 < load.p50 < load.p99 < 0.1
    assert (load.errors, load.refused) == (0, 0)


def test_answers_with_an_error_status_are_refusals_to_wrk(captured):
    load = parsers.wrk(captured("wrk_refused.txt"))
    assert load.refused == load.requests > 0
    assert load.errors == 0


def test_broken_connections_are_errors_to_wrk(captured):
    load = parsers.wrk(captured("wrk_broken.txt"))
    assert load.errors == 8 + 30134
    assert load.refused == 0


def test_text_that_is_not_from_wrk_is_refused_with_the_text():
    with pytest.raises(UnreadableOutput, match="unable to connect"):
        parsers.wrk("unable to connect to 127.0.0.1:1 Connection refused")


def test_latencies_of_h2load_come_from_its_log(captured):
    load = parsers.h2load(captured("h2load_good.txt"), "1\t200\t100\n2\t200\t300\n3\t200\t200\n")
    assert load.p50 == pytest.approx(200e-6)
    assert load.p99 == pytest.approx(300e-6)
    assert load.requests > 0
    assert (load.errors, load.refused) == (0, 0)


def test_a_log_as_h2load_writes_it_is_read(captured):
    load = parsers.h2load(captured("h2load_good.txt"), captured("h2load_log.txt"))
    assert 1e-5 < load.p50 <= load.p99 < 0.1


def test_answers_with_an_error_status_are_refusals_to_h2load(captured):
    load = parsers.h2load(captured("h2load_refused.txt"), "")
    assert load.refused == load.requests > 0
    assert load.errors == 0


def test_a_run_of_h2load_without_answers_has_no_latency(captured):
    load = parsers.h2load(captured("h2load_unreachable.txt"), "")
    assert load.requests == 0
    assert math.isnan(load.p50)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("59.00us", 59e-6), ("3.45ms", 3.45e-3), ("1.10s", 1.1), ("2.00m", 120.0), ("1.00h", 3600.0)],
)
def test_durations_are_read_in_every_unit(text, seconds):
    assert parsers.duration(text) == pytest.approx(seconds)


def test_a_duration_without_unit_is_refused():
    with pytest.raises(UnreadableOutput, match=r"'3\.45'"):
        parsers.duration("3.45")


def _stat(command: str, state: str = "S") -> str:
    fields = [state, "77", *["0"] * 9, "5", "6", "7", "8", *["0"] * 4, "4242", *["0"] * 30]
    return f"99 ({command}) {' '.join(fields)}\n"


@pytest.mark.parametrize("command", ["python", "a b", "odd) S 1 (name"])
def test_a_process_is_read_whatever_its_command_is_called(command):
    expected = ProcessStat(pid=99, parent=77, started=4242, ticks=5 + 6 + 7 + 8, zombie=False)
    assert parsers.proc_stat(_stat(command)) == expected


def test_a_zombie_is_told_from_a_running_process():
    assert parsers.proc_stat(_stat("python", state="Z")).zombie


def test_resident_memory_is_read_in_bytes():
    assert parsers.resident_bytes("Name:\tpython\nVmRSS:\t   34900 kB\nThreads:\t1\n") == 34900 * 1024


def test_a_zombie_has_no_resident_memory():
    assert parsers.resident_bytes("Name:\tpython\nThreads:\t1\n") == 0


def _node(name, *children, **info):
    return {"name": name, "info": info, "children": list(children)}


def test_workers_are_found_under_their_model_only():
    tree = _node(
        "root",
        _node("frontends", _node("http")),
        _node(
            "models",
            _node("add/1", _node("instances", _node("0", pid=11), _node("1", pid=12)), _node("scheduler")),
            _node("adder/1", _node("instances", _node("0", pid=13))),
        ),
    )
    assert parsers.worker_pids(tree, "add") == (11, 12)
    assert parsers.worker_pids(tree, "adder") == (13,)
    assert parsers.worker_pids(tree, "other") == ()


def test_an_instance_without_a_process_is_passed_over():
    tree = _node("models", _node("add", _node("1", _node("instances", _node("0"), _node("1", pid=None)))))
    assert parsers.worker_pids(tree, "add") == ()
