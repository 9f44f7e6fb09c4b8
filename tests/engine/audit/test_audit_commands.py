"""What commands record of what they do, and what they say where that can't be written."""

import pytest

from engine.audit.commands import NotRecorded, recorded_command
from tests.support.auditing import records_in


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def replaced(path):
    """Put a file in the log's place that is refused."""
    path.rename(f"{path}.1")
    path.touch()
    path.chmod(0o666)


def fail(path):
    replaced(path)
    raise ValueError("no such key")


def test_what_was_asked_for_and_what_came_of_it_are_recorded(path):
    with recorded_command(str(path), "key_new", {"id": "ci"}) as more:
        more["digest"] = "x"
    with pytest.raises(ValueError, match="twice"), recorded_command(str(path), "key_new", {"id": "ci"}):
        raise ValueError("ci is there twice")
    asked, done, _, failed = records_in(path)
    assert (asked.outcome, asked.facts) == ("asked", {"id": "ci"})
    assert (done.outcome, done.facts) == ("done", {"digest": "x"})
    assert (failed.outcome, failed.reason) == ("failed", "ci is there twice")


def test_without_a_log_nothing_is_recorded():
    with recorded_command("", "key_new", {}) as more:
        more["digest"] = "x"


def test_what_was_done_is_told_as_done_where_that_can_not_be_recorded(path):
    with (
        pytest.raises(NotRecorded, match=r"^it was done, but the audit log .* can't be written any more"),
        recorded_command(str(path), "key_new", {}),
    ):
        replaced(path)


def test_what_failed_is_told_as_failed_where_that_can_not_be_recorded(path):
    said = r"^it failed \(no such key\), but the audit log .* can't be written any more"
    with pytest.raises(NotRecorded, match=said), recorded_command(str(path), "key_revoke", {}):
        fail(path)
