"""`tritium fleet launch` without a cluster: what it refuses, and what it says."""

import sys

import pytest

from engine.cli.fleet.launch import launch


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "the following arguments are required: --ray"),
        ("--ray auto --replicas 2", "--replicas needs the servers' flags"),
        ("--ray auto --replicas 0 -- /m", "a number from 1 to 10000 was expected. Got 0"),
        ("--ray auto -- /m", "flags of servers go with --replicas"),
        ("--ray auto --stop --replicas 1 -- /m", "not allowed with argument"),
        ("--ray auto --name a/b --stop", "--name takes letters, digits"),
        ("--ray auto --replicas 1 --label zone -- /m", "KEY=VALUE was expected. Got zone"),
        ("--ray auto --replicas 1 --grace -1 -- /m", "a number of 0 or more was expected. Got -1"),
        ("--ray auto --replicas 1 --cpus-per-replica 0 -- /m", "Ray must reserve something"),
        ("--ray auto --replicas 1 -- /m --replica-name=x", "each server is named after its group"),
        ("--ray auto --replicas 1 --gpus 1 -- /m", "unrecognized arguments: --gpus"),
    ],
)
def test_words_that_make_no_sense_are_refused(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        launch(words.split())
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_without_ray_its_installation_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert launch(["--ray", "auto", "--stop"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "the package ray is not installed"
    assert "pip install" in said[1]
    assert "[ray]" in said[1]
