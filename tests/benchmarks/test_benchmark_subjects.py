"""Starting and ending servers, and reading what `--compare` takes."""

import os
import subprocess
import sys

import pytest

from benchmarks import processes, subjects
from benchmarks.subjects import Checkout, NotStarted, Revision, Running, parse_target
from chaos.subject.ports import free_ports


def test_a_url_names_a_running_server():
    assert parse_target("http://127.0.0.1:8000/") == Running("http://127.0.0.1:8000/", "127.0.0.1", 8000)


def test_a_url_may_name_the_grpc_port_too():
    text = "http://127.0.0.1:8000?grpc=8001"
    assert parse_target(text) == Running(text, "127.0.0.1", 8000, 8001)


@pytest.mark.parametrize(
    "text",
    [
        "http://host:1?grpc=",
        "http://host:1?grpc=x",
        "https://host:1",
        "http://host",
        "http://host:1/path",
        "ftp://host:1",
        "http://host:1?q",
    ],
)
def test_other_urls_are_refused(text):
    with pytest.raises(ValueError, match="http://host:port"):
        parse_target(text)


def test_a_directory_with_an_engine_is_a_checkout_and_any_other_word_a_revision(tmp_path):
    (tmp_path / "engine").mkdir()
    assert parse_target(str(tmp_path)) == Checkout(str(tmp_path), tmp_path)
    assert parse_target("v1.0~2") == Revision("v1.0~2")


def test_ports_are_free_and_different():
    ports = free_ports(3)
    assert len(set(ports)) == 3


@pytest.mark.system
def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").touch()  # or an installed one would be found in its place
    (tmp_path / "engine" / "__main__.py").write_text("raise SystemExit('no such model')")
    with pytest.raises(NotStarted, match=r"ended with 1 before it was ready:\nno such model"):
        with subjects.server("broken", tmp_path, tmp_path, tmp_path):
            pytest.fail("it is not ready")


@pytest.mark.system
def test_what_a_child_leaves_behind_is_ended_too(tmp_path, capsys):
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    log = tmp_path / "log"
    with subjects.running([sys.executable, "-c", code], cwd=tmp_path, log=log, grace=0.05) as child:
        while not log.read_text().endswith("\n"):
            assert child.poll() is None
        family = processes.family(child.pid)
        assert [stat.pid for stat in family] == [child.pid, int(log.read_text())]
    assert processes.wait_gone(family, timeout=2.0) == []
    assert "outlived its server" in capsys.readouterr().err


def test_the_cpu_time_of_a_process_tree_is_read():
    assert processes.cpu_seconds(os.getpid()) > 0
    assert processes.resident(os.getpid()) > 2**20


@pytest.mark.system
def test_a_process_that_is_gone_has_neither_family_nor_memory():
    child = subprocess.Popen(["true"])
    child.wait()
    assert processes.family(child.pid) == []
    assert processes.resident(child.pid) == 0


@pytest.mark.system
def test_a_revision_is_checked_out_beside_the_tree_and_cleared_away(tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    name = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    (repository / "file").write_text("first")
    for command in (["init", "-q"], ["add", "file"], [*name, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    (repository / "file").write_text("second")
    with subjects.worktree("HEAD", tmp_path, repository) as directory:
        assert (directory / "file").read_text() == "first"
    assert not directory.exists()


@pytest.mark.system
def test_an_unknown_revision_is_refused_with_gits_reason(tmp_path):
    with pytest.raises(NotStarted, match="'no-such-thing'"):
        with subjects.worktree("no-such-thing", tmp_path, tmp_path):
            pytest.fail("there is no such revision")
