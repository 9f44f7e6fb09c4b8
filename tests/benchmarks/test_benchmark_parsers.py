"""The readers of other programs' output, on output that those programs gave."""

import math

import pytest

from benchmarks import parsers
from benchmarks.parsers import ProcessStat, UnreadableOutput


@pytest.mark.parametrize(
    ("run", "errors", "refused"), [("good", 0, 0.0), ("refused", 0, 1.0), ("broken", 8 + 30134, 0.0)]
)
def test_a_run_of_wrk_is_read_in_seconds(captured, run, errors, refused):
    load = parsers.wrk(captured(f"wrk_{run}.txt"))
    assert load.rate == pytest.approx(load.requests / load.seconds, rel=0.02)
    assert (load.errors, load.refused) == (errors, refused * load.requests)
    assert load.p50 <= load.p99 < 0.1


def test_text_that_is_not_from_wrk_is_refused_with_the_text():
    with pytest.raises(UnreadableOutput, match="unable to connect"):
        parsers.wrk("unable to connect to 127.0.0.1:1 Connection refused")


def test_latencies_of_h2load_come_from_its_log(captured):
    load = parsers.h2load(captured("h2load_good.txt"), "1\t200\t100\n2\t200\t300\n3\t200\t200\n")
    assert load.p50 == pytest.approx(200e-6)
    assert load.p99 == pytest.approx(300e-6)
    assert load.requests > 0
    assert (load.errors, load.refused) == (0, 0)


@pytest.mark.parametrize(("run", "refused"), [("good", 0.0), ("refused", 1.0)])
def test_a_run_of_h2load_is_read_with_the_log_that_it_writes(captured, run, refused):
    load = parsers.h2load(captured(f"h2load_{run}.txt"), captured("h2load_log.txt"))
    assert 1e-5 < load.p50 <= load.p99 < 0.1
    assert load.requests > 0
    assert (load.errors, load.refused) == (0, refused * load.requests)


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


def _node(name, *children, **info):
    return {"name": name, "info": info, "children": list(children)}


def test_workers_are_found_under_their_model_only():
    tree = _node(
        "root",
        _node("frontends", _node("http")),
        _node(
            "models",
            _node("add/1", _node("instances", _node("0", pid=11), _node("1", pid=12)), _node("scheduler")),
            _node("idle/1", _node("instances", _node("0"), _node("1", pid=None))),
            _node("adder/1", _node("instances", _node("0", pid=13))),
        ),
    )
    assert parsers.worker_pids(tree, "add") == (11, 12)
    assert parsers.worker_pids(tree, "adder") == (13,)
    assert parsers.worker_pids(tree, "idle") == parsers.worker_pids(tree, "other") == ()


@pytest.mark.parametrize("command", ["python", "a b", "odd) S 1 (name"])
@pytest.mark.parametrize("state", ["S", "Z"])
def test_a_process_is_read_whatever_its_command_is_called(command, state):
    expected = ProcessStat(pid=99, parent=77, started=4242, ticks=5 + 6 + 7 + 8, zombie=state == "Z")
    assert parsers.proc_stat(_stat(command, state)) == expected


@pytest.mark.parametrize(("status", "nbytes"), [("VmRSS:\t   34900 kB\n", 34900 * 1024), ("", 0)])
def test_resident_memory_is_read_in_bytes_and_a_zombie_has_none(status, nbytes):
    assert parsers.resident_bytes(f"Name:\tpython\n{status}Threads:\t1\n") == nbytes
