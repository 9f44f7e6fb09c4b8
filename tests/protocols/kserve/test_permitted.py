"""What lists show to a caller, and what it may bring along."""

import pytest

from actors.values.callers import Action, Peer
from actors.values.errors import InvalidArgument, NotFound, PermissionDenied
from actors.values.interfaces import DeepReport, IndexEntry, Regions
from actors.values.regions import RegionPlace, RegionPlaces
from protocols.kserve.permitted import (
    LONGEST_CONFIG,
    Named,
    attach,
    check_config,
    check_sees_all,
    check_traces,
    check_upload,
    named_in,
    permit_in,
    tell_regions_denied,
    visible_entries,
    visible_report,
    visible_statistics,
)
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller
from tests.support.ports import waiting_request

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


def test_what_shows_all_models_takes_that_all_may_be_seen():
    report = DeepReport(ready=True, document={"ready": True, "parts": [{"part": "a"}]})
    for caller in (None, KnownCaller("ops", {(Action.METADATA, "*"), (Action.STATISTICS, "*")})):
        check_sees_all(caller)
        assert visible_report(caller, report) == report.document
    with pytest.raises(PermissionDenied, match="'alice' may use 'statistics' on some only"):
        check_sees_all(CALLER)
    assert visible_report(CALLER, report) == {"ready": True}


def test_a_load_is_judged_by_where_each_model_was_found():
    caller = KnownCaller("alice", {(Action.MODEL_REPOSITORY, "a"), (Action.UPLOAD, "a")})
    caller.closed = {"/closed"}
    permit_in(None)("b", "/closed")
    permit_in(caller)("a", "/open")
    permit_in(caller, ["file:1/model.py"])("a", "/open")
    assert caller.asked == [
        (Action.MODEL_REPOSITORY, "a", "/open"),
        (Action.MODEL_REPOSITORY, "a", "/open"),
        (Action.UPLOAD, "a", "/open"),
    ]
    for model, repository in (("a", "/closed"), ("b", "/open")):
        with pytest.raises(PermissionDenied):
            permit_in(caller)(model, repository)


@pytest.mark.parametrize(
    ("config", "models"),
    [
        ('{"backend": "python"}', set()),
        ('{"ensemble_scheduling": {"step": [{"model_name": "a"}, {"model_name": "b"}]}}', {"a", "b"}),
        ('{"ensembleScheduling": {"step": [{"modelName": "a"}]}}', {"a"}),
        ('{"ensemble_scheduling": {"step": [{"model\\u005fname": "\\u0061"}]}}', {"a"}),
        ('{"ensemble_scheduling": {"step": [{"model_name": "a", "model_name": "b"}]}}', {"a", "b"}),
        ('{"ensemble_scheduling": {}, "ensemble_scheduling": {"step": [{"model_name": "a"}]}}', {"a"}),
        ('{"ensemble_scheduling": {"step": [{"model_name": 7}, {"model_name": ["a"]}]}}', set()),
        ("{", set()),
        ("[" * 100_000, set()),
        (7, set()),
    ],
)
def test_models_that_an_ensemble_would_ask_are_found(config, models):
    assert named_in(config) == (models, False)


def test_a_configuration_that_would_hold_the_interpreter_is_not_searched():
    with pytest.raises(InvalidArgument, match=rf"'config' has {LONGEST_CONFIG + 1} characters"):
        named_in(" " * (LONGEST_CONFIG + 1))
    assert named_in(" " * LONGEST_CONFIG) == Named()


def test_a_caller_composes_models_only_that_it_may_ask():
    caller = KnownCaller("alice", {(Action.INFERENCE, "a"), (Action.MODEL_REPOSITORY, "b")})
    check_config(caller, "b", Named(frozenset("a")))
    auditor = KeptAuditor()
    with pytest.raises(PermissionDenied, match="alice may not inference b"):
        check_config(caller, "b", Named(frozenset("ab")), Peer("192.0.2.7"), auditor)
    assert auditor.told == [("denied", "inference", "b", "alice")]


@pytest.mark.parametrize(
    "config",
    [
        '{"model_repository_agents": {"agents": [{"name": "fetch"}]}}',
        '{"modelRepositoryAgents": {}}',
        '{"\\u006dodel_repository_agents": {}}',
    ],
)
def test_agents_in_a_configuration_are_files_that_a_caller_brings(config):
    # Their parameters may say where files come from: those of `fetch` in the examples do.
    named = named_in(config)
    assert named == Named(agents=True)
    allowed = {(Action.MODEL_REPOSITORY, "a")}
    check_config(KnownCaller("alice", {*allowed, (Action.UPLOAD, "a")}), "a", named)
    auditor = KeptAuditor()
    with pytest.raises(PermissionDenied, match="alice may not upload a"):
        check_config(KnownCaller("alice", allowed), "a", named, Peer("192.0.2.7"), auditor)
    assert auditor.told == [("denied", "upload", "a", "alice")]


def test_a_caller_changes_the_traces_of_models_that_it_may_and_of_all_if_it_may_on_all():
    owner = KnownCaller("alice", {(Action.SETTINGS, "a")})
    operator = KnownCaller("ops", {(Action.SETTINGS, ""), (Action.SETTINGS, "*")})
    check_traces(None, "")
    check_traces(owner, "a")
    check_traces(operator, "")
    with pytest.raises(PermissionDenied, match="alice may not settings b"):
        check_traces(owner, "b")
    with pytest.raises(PermissionDenied, match="changes the traces of all models, and 'alice' may use"):
        check_traces(owner, "")


class Noted(Regions):
    """Regions that note the requests that were to hold them."""

    def __init__(self):
        self.asked = []

    def attach(self, request, places):
        self.asked.append(request)


def test_a_request_that_names_regions_needs_the_right_to_shared_memory():
    """Without it, nothing of the regions is looked at."""
    request, regions = waiting_request(), Noted()
    places = RegionPlaces([RegionPlace("R", 0, 4)], {})
    attach(regions, request, places, None)
    attach(regions, request, places, KnownCaller("bob", {(Action.SHARED_MEMORY, "")}))
    assert regions.asked == [request, request]
    auditor, peer = KeptAuditor(), Peer("192.0.2.7")
    with pytest.raises(PermissionDenied, match="alice may not shared-memory") as denied:
        attach(regions, request, places, CALLER)
    assert len(regions.asked) == 2
    tell_regions_denied(denied.value, CALLER, peer, None)
    tell_regions_denied(denied.value, CALLER, peer, auditor)
    tell_regions_denied(NotFound("no region"), CALLER, peer, auditor)
    assert len(auditor.told) == 1
