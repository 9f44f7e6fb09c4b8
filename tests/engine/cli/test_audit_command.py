"""`tritium audit`: what it shows of a log, what it says of damage, and what it takes for whole."""

import gzip
import json
from typing import Any

import pytest

from engine.__main__ import main
from engine.audit.file import AuditFile
from engine.audit.records import LONGEST, Record

CHANGE: dict[str, Any] = {
    "id": "1-1",
    "identity": "ci",
    "address": "192.0.2.7",
    "via": "grpc",
    "model": "resnet",
}
FILES = {"files": {"file:1/model.py": {"bytes": 269, "sha256": "e7" * 32}}}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path), size=2**20, keep=3)
    records = [
        Record(time=1000.0, action="server_started", via="server", facts={"version": "1"}),
        Record(time=2000.0, action="model_load", outcome="asked", facts=FILES, **CHANGE),
        Record(time=2500.0, action="inference", outcome="denied", address="192.0.2.9", code="UNAUTHENTICATED",
               reason="the API key is\x1b[31m not good", facts={"count": 17, "seconds": 60.0}),
        Record(time=3000.0, action="model_load", outcome="failed", reason="no such file", **CHANGE),
        Record(time=4000.0, action="files_reloaded", facts={"keys_revoked": ["a (x)", "b (y)"]}),
    ]  # fmt: skip
    file.append(records, room=LONGEST)
    file.close()
    return path


@pytest.fixture
def run(capsys):
    """Runs the command: exit status, what it prints, what it complains of."""

    def run(*words):
        status = main(["audit", *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_a_log_is_a_table_with_a_line_for_each_action(run, log):
    status, out, err = run(log)
    assert (status, err) == (0, "")
    heading, start, load, denied, reloaded = out.splitlines()
    assert heading.split() == ["time", "identity", "from", "via", "action", "model", "outcome", "about"]
    assert start.split() == [
        "1970-01-01",
        "00:16:40",
        "-",
        "-",
        "server",
        "server_started",
        "-",
        "done",
        "version:",
        "1",
    ]
    assert load.startswith(
        "1970-01-01 00:33:20  ci        192.0.2.7  grpc    model_load      resnet  failed   no such file"
    )
    assert "file:1/model.py (269 bytes)" in load
    assert "the API key is\\x1b[31m not good, count: 17, seconds: 60.0" in denied
    assert "keys_revoked: a (x); b (y)" in reloaded


@pytest.mark.parametrize(
    ("words", "actions"),
    [
        (["--identity", "c?"], ["model_load"]),
        (["--action", "model_*", "--action", "inference"], ["model_load", "inference"]),
        (["--outcome", "denied"], ["inference"]),
        (["--outcome", "asked"], []),
        (["--model", "res*"], ["model_load"]),
        (["--address", "192.0.2.*"], ["model_load", "inference"]),
        (["--since", "1970-01-01T00:41:00Z"], ["inference", "files_reloaded"]),
        (["--until", "1970-01-01T00:17:00Z"], ["server_started"]),
    ],
)
def test_filters_choose_actions(run, log, words, actions):
    _, out, _ = run(log, *words)
    assert [line.split()[5] for line in out.splitlines()[1:]] == actions


def test_json_gives_the_records_as_they_were_written(run, log):
    status, out, _ = run(log, "--json", "--model", "resnet")
    assert status == 0
    assert [json.loads(line)["outcome"] for line in out.splitlines()] == ["asked", "failed"]
    assert all(f"{line}\n" in log.read_text() for line in out.splitlines())


def test_older_files_and_archives_of_them_come_first(run, log):
    lines = log.read_bytes().splitlines(keepends=True)
    with gzip.open(f"{log}.10.gz", "wb") as file:
        file.write(lines[0])
    (log.parent / "audit.jsonl.9").write_bytes(b"".join(lines[1:3]))
    log.write_bytes(b"".join(lines[3:]))
    status, out, _ = run(log, "--verify")
    assert status == 0
    assert out.startswith("5 records, 1 to 5: whole\nlast digest: ")
    assert "model_load" in run(log)[1]
    log.unlink()
    assert run(log, "--verify")[1].startswith("3 records, 1 to 3: whole")


def test_a_line_that_was_changed_or_taken_out_shows(run, log):
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:1], lines[1].replace(b"resnet", b"reznet"), *lines[2:3], *lines[4:]]))
    status, out, _ = run(log, "--verify")
    assert status == 1
    assert out.splitlines()[:3] == [
        f"broken: {log}, line 3: the record before number 3 was changed",
        f"broken: {log}, line 4: 1 records are missing before number 5",
        "4 records, 1 to 5: broken in 2 places",
    ]
    log.write_bytes(lines[0] + b"".join(lines[2:3] * 30))
    assert "and 10 more\n" in run(log, "--verify")[1]


def test_damaged_lines_are_passed_over_and_counted(run, log):
    log.write_bytes(log.read_bytes() + b"half a rec\n" + b"x" * 200_000 + b"\n\n")
    status, out, err = run(log)
    assert status == 1
    assert len(out.splitlines()) == 5
    assert err == f"{log}: 2 lines are no records (number 6, 7)\n"


def test_what_is_no_audit_log_and_what_is_not_there(run, log, tmp_path):
    other = tmp_path / "server.log"
    other.write_text("I1124 06:17:39 something else\n")
    status, _, err = run(other)
    assert status == 1
    assert "there is no record of an audit log in it" in err
    status, _, err = run(tmp_path / "nowhere")
    assert (status, err) == (1, f"error: {tmp_path}/nowhere can't be read: No such file or directory\n")
    status, _, err = run(log, "--since", "soon")
    assert status == 1
    assert "expected a time such as" in err
    log.write_text("")
    assert run(log) == (0, "no records fit\n", "")
    assert run(log, "--verify") == (0, "no records\n", "")
