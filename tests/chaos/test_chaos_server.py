"""The harness's hold on the server under test: it knows what runs, and leaves nothing behind."""

import os
import signal

import psutil
import pytest

from chaos.subject.processes import alive
from chaos.subject.server import LogLines, Server, ServerFailed, find, served
from chaos.workload.repository import write_repository
from tests.survival.server import until

pytestmark = pytest.mark.system

TREE = {"path": "", "name": "", "children": [{"path": "models", "name": "models", "children": []}]}


def test_a_node_is_found_by_its_path_and_one_that_is_not_there_is_told_with_its_neighbours():
    assert find(TREE, "models")["name"] == "models"
    with pytest.raises(LookupError, match=r"nothing at nowhere; below .* there are \['models'\]"):
        find(TREE, "nowhere")


def test_log_lines_are_given_once_and_only_when_they_are_whole(tmp_path):
    path = tmp_path / "log"
    lines = LogLines(path)
    path.write_text('{"event": "a"}\nnot json\n[1]\n{"event": ')
    assert list(lines.fresh()) == [{"event": "a"}]
    assert list(lines.fresh()) == []
    with path.open("a") as file:
        file.write('"b"}\n')
    assert list(lines.fresh()) == [{"event": "b"}]


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "journal").mkdir()
    write_repository(tmp_path / "repository", run=tmp_path, models=("echo",))
    return tmp_path / "repository"


@pytest.mark.slow
async def test_a_server_shows_its_workers_its_metrics_and_what_it_takes(repository, tmp_path):
    async with served(repository, tmp_path / "server") as server:
        workers = await server.workers("echo")
        assert len(workers) == 2
        assert set(workers) <= {each.pid for each in server.descendants()}
        with pytest.raises(LookupError, match="no version of 'nothing' runs"):
            await server.workers("nothing")
        assert await server.metric("nv_inference_request_success", model="echo") == 0
        sample = await server.sample("calm")
        assert sample.children >= 2
        assert min(sample.rss, sample.workers_rss, sample.descriptors, sample.threads) > 0
        started = server.descendants()
    assert server.status == 0
    assert not any(alive(each) for each in started)
    assert b"server_ready" in server.out.read_bytes()


@pytest.mark.slow
async def test_a_server_that_is_killed_is_told_by_its_status_and_its_workers_are_known_still(
    repository, tmp_path
):
    async with served(repository, tmp_path / "server") as server:
        started = server.descendants()
        os.kill(started[0].pid, signal.SIGSTOP)  # so that it can't end with its server
        known = {each.pid for each in server.survivors()}
        assert known >= {each.pid for each in started}
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
        assert not await server.is_ready()
        with pytest.raises(psutil.NoSuchProcess):
            await server.sample("ending")
    await until(lambda: not any(alive(each) for each in started))  # what is killed takes its time to be gone
    assert server.survivors() == []


@pytest.mark.long
@pytest.mark.slow
async def test_a_block_that_fails_leaves_no_process(repository, tmp_path):
    seen = []

    async def fail():
        async with served(repository, tmp_path / "server") as server:
            seen.append((server, server.descendants()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    ((server, started),) = seen
    assert started
    assert not any(alive(each) for each in started)
    assert server.status == -signal.SIGKILL


@pytest.mark.slow
async def test_a_server_that_does_not_come_up_is_told_with_its_last_words(tmp_path):
    with pytest.raises(ServerFailed, match="no-such-flag"):
        async with served(tmp_path, tmp_path / "server", "--no-such-flag=1"):
            raise AssertionError("it must not be ready")


@pytest.mark.long
@pytest.mark.slow
async def test_a_server_comes_back_on_its_ports_with_files_of_its_own(repository, tmp_path):
    async with served(repository, tmp_path / "server") as first:
        ports = (first.http_port, first.grpc_port, first.metrics_port)
        await first.stop()
        second = Server.start(repository, tmp_path / "server", ports=ports)
        try:
            await second.wait_ready()
            assert (second.http_port, second.grpc_port, second.metrics_port) == ports
            await second.stop()
        finally:
            second.kill_all()
    assert {each.name for each in (tmp_path / "server").iterdir()} == {
        f"{number}.{stream}.jsonl" for number in (1, 2) for stream in ("stdout", "stderr")
    }
