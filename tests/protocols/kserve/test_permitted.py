"""What lists show to a caller, and what it may bring along."""

import pytest

from actors.values.callers import Action, Peer
from actors.values.errors import PermissionDenied
from actors.values.interfaces import IndexEntry
from protocols.kserve.permitted import check_upload, visible_entries, visible_statistics
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller

ENTRIES = [IndexEntry(name="a"), IndexEntry(name="b")]
STATISTICS = [{"name": "a"}, {"name": "b"}]
CALLER = KnownCaller(
    "alice", {(Action.MODEL_REPOSITORY, "a"), (Action.STATISTICS, "b"), (Action.UPLOAD, "a")}
)


def test_without_a_caller_everything_is_shown_and_taken():
    assert visible_entries(None, ENTRIES) == ENTRIES
    assert visible_statistics(None, STATISTICS) == STATISTICS
    check_upload(None, "b", ["file:1/model.py"])


def test_lists_leave_out_what_a_caller_may_not_see():
    assert visible_entries(CALLER, ENTRIES) == [ENTRIES[0]]
    assert visible_statistics(CALLER, STATISTICS) == [STATISTICS[1]]


def test_files_are_a_permission_of_their_own():
    check_upload(CALLER, "a", ["config", "file:1/model.py"])
    check_upload(CALLER, "b", ["config"])
    with pytest.raises(PermissionDenied, match="alice may not upload b"):
        check_upload(CALLER, "b", ["config", "file:1/model.py"])


def test_files_that_a_caller_may_not_bring_are_told_to_the_audit_log():
    auditor = KeptAuditor()
    check_upload(CALLER, "a", ["file:1/model.py"], Peer("192.0.2.7"), auditor)
    with pytest.raises(PermissionDenied):
        check_upload(CALLER, "b", ["file:1/model.py"], Peer("192.0.2.7"), auditor)
    assert auditor.told == [("denied", "upload", "b", "alice")]
    assert auditor.addresses == ["192.0.2.7"]
