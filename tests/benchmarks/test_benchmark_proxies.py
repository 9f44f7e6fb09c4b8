"""What a balancer costs: the table, and a short run before a real server."""

import shutil

import pytest

from benchmarks.proxies import __main__ as proxies


def test_what_is_told_is_what_a_way_takes_more_than_the_direct_one():
    told = proxies.table("HTTP", {"directly": [0.003, 0.001, 0.002], "haproxy": [0.004, 0.0025, 0.002]})
    assert told.rows == [("directly", "3", "2.00", "", "3.00"), ("haproxy", "3", "2.50", "0.500", "4.00")]


@pytest.mark.system
@pytest.mark.slow
def test_a_run_before_a_real_server(capsys):
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    assert proxies.main(["--turns=1", "--requests=3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("haproxy") == 2
    assert "gRPC, one request at a time" in shown


def test_without_a_balancer_there_is_nothing_to_measure(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert proxies.main([]) == 2
    assert capsys.readouterr().err == "none of haproxy, envoy is installed\n"
