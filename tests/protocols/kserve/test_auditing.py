"""What an audit log is told of the calls of both protocols."""

import pytest

from actors.values.callers import Action, Peer
from actors.values.errors import PermissionDenied, TooManyRequests, Unauthenticated
from protocols.kserve.auditing import (
    adapter_load_change,
    adapter_unload_change,
    attempt,
    load_change,
    log_change,
    tell_denied,
    trace_change,
    traffic_change,
    unload_change,
)
from tests.support.auditing import KeptAuditor


def test_changes_have_what_was_asked_for():
    assert load_change("m", {"config": "{}"}).files == {"config": "{}"}
    assert unload_change("m", dependents=False).facts == {}
    assert unload_change("m", dependents=True).facts == {"unload_dependents": True}
    assert traffic_change("m", {"weights": {}}).facts == {"plan": {"weights": {}}}
    assert log_change({"log_info": False}).facts == {"settings": {"log_info": False}}
    traces = trace_change("m", {"trace_rate": "1"})
    assert (traces.model, traces.facts) == ("m", {"settings": {"trace_rate": "1"}})
    adapter = {"adapter": "tone", "path": "/tone"}
    assert adapter_load_change("m", "tone", "/tone", in_place=False).facts == adapter
    assert adapter_load_change("m", "tone", "/tone", in_place=True).facts == {**adapter, "in_place": True}
    assert adapter_unload_change("m", "tone").facts == {"adapter": "tone"}


@pytest.mark.parametrize(
    ("name", "action", "told"),
    [
        ("model_load", Action.MODEL_REPOSITORY, "model_load"),
        ("RepositoryModelUnload", Action.MODEL_REPOSITORY, "model_unload"),
        ("infer", Action.INFERENCE, "inference"),
        ("ModelInfer", Action.INFERENCE, "inference"),
    ],
)
def test_an_attempt_has_one_name_over_both_protocols(name, action, told):
    assert attempt(name, action) == told


@pytest.mark.parametrize(
    ("error", "count"),
    [(PermissionDenied("no"), 1), (Unauthenticated("no"), 1), (TooManyRequests("later"), 0)],
)
def test_errors_that_deny_are_told_and_no_others(error, count):
    auditor = KeptAuditor()
    tell_denied(auditor, "inference", "m", None, Peer("192.0.2.7"), error)
    assert auditor.told == [("denied", "inference", "m", "")] * count
