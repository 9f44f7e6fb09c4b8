"""What a person reads without a terminal: lines, one for each result, and plain tables."""

from benchmarks.report import Table
from benchmarks.terminal import Terminal, show


def test_in_a_pipe_results_are_lines_and_steps_are_silent(capsys):
    with Terminal() as terminal:
        terminal.step("starting")
        terminal.result("add/sub [1/2]: 100 req/s")
    assert capsys.readouterr().err == "add/sub [1/2]: 100 req/s\n"


def test_in_a_pipe_tables_are_plain(capsys):
    show([Table("Load", ["what", "n"], [["a", "1"]])])
    assert capsys.readouterr().out == "Load\nwhat  n\na     1\n\n"
