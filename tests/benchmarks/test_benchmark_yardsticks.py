"""The two floors, measured briefly: the bare responder under real load clients, and loopback copies."""

import pytest

from benchmarks import clients, processes, subjects, transfer, yardstick
from benchmarks.payloads import Request
from chaos.subject.ports import free_ports


def test_the_responder_answers_as_many_bytes_as_the_path_names():
    head, _, body = yardstick.answer(b"/304").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"Content-Length: 304" in head
    assert len(body) == 304


def test_the_responder_does_not_know_other_paths():
    assert yardstick.answer(b"/v2").startswith(b"HTTP/1.1 404")


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("name", ["wrk", "h2load"])
def test_a_load_client_measures_the_responder(name, tmp_path):
    if reason := clients.missing(name):
        pytest.skip(reason)
    request = Request(b"x" * 300, {"Content-Type": "application/octet-stream"})
    with subjects.yardstick(tmp_path) as subject:
        load = clients.CLIENTS[name](subject.url("", 304), request, concurrency=4, seconds=0.3)
        assert subject.pid is not None
        assert processes.cpu_seconds(subject.pid) > 0
    assert load.requests > 0
    assert 0 < load.p50 <= load.p99
    assert (load.errors, load.refused) == (0, 0)
    assert 0.2 < load.seconds < 1.0


@pytest.mark.system
@pytest.mark.slow
def test_a_server_that_is_gone_is_a_failure_of_the_client():
    if reason := clients.missing("h2load"):
        pytest.skip(reason)
    (port,) = free_ports(1)
    with pytest.raises(clients.ClientFailed, match="no answer"):
        clients.h2load(f"http://127.0.0.1:{port}/1", Request(b"x", {}), concurrency=1, seconds=0.1)


def test_copies_and_loopback_are_timed():
    times = transfer.measure(4096, 0.0, at_least=3)
    assert len(times) == 2  # the first trip finds cold pages and is left out
    assert all(0 < each < 1 for each in times)
