"""`actors.values.marks`: what models ask of frontends, and what frontends put on requests."""

import pytest

from actors.values.marks import (
    LONGEST_TENANT,
    ClientMarks,
    client_at,
    marks_for,
    marks_of,
    tenant_named,
)
from actors.values.requests import InferRequest
from actors.values.specs import Fairness
from actors.values.traffic import TrafficPlan
from tests.support.callers import KnownCaller
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort

STICKY = TrafficPlan(weights={1: 1.0}, sticky_header="x-user")


def marked(marks, *, headers=None, address="192.0.2.1", parameters=None, caller=None):
    request = InferRequest(model_name="add", parameters=parameters, reply=NoPort(), accepted_at=0.0)
    marks.put_on(request, lambda name: (headers or {}).get(name, ""), lambda: address, caller)
    return request


def test_models_that_ask_for_nothing_have_no_marks():
    assert marks_of(make_spec()) is None
    assert marks_of(make_spec(fairness=Fairness(ageing=1.0))) is None
    assert marks_for(TrafficPlan(weights={1: 1.0}), None) is None


def test_both_settings_may_ask():
    marks = marks_for(STICKY, Fairness(tenant_header="x-tenant"))
    request = marked(marks, headers={"x-user": "ada", "x-tenant": "gold"})
    assert (request.affinity, request.tenant) == ("ada", "gold")


def test_a_single_version_asks_for_tenants_only():
    marks = marks_of(make_spec(traffic=STICKY, fairness=Fairness(tenant_header="x-tenant")))
    request = marked(marks, headers={"x-user": "ada"})
    assert (request.affinity, request.tenant) == ("", "")


@pytest.mark.parametrize(("value", "tenant"), [("gold", "gold"), (7, "7"), (True, "true"), (None, "")])
def test_a_request_parameter_may_be_the_tenant(value, tenant):
    parameters = None if value is None else {"user": value}
    assert marked(ClientMarks(tenant_parameter="user"), parameters=parameters).tenant == tenant


def test_the_identity_may_be_the_tenant():
    marks = marks_of(make_spec(fairness=Fairness(tenant_identity=True)))
    assert marked(marks, caller=KnownCaller("alice")).tenant == "alice"
    assert marked(marks).tenant == ""


def test_the_clients_address_may_be_the_tenant():
    assert marked(ClientMarks(tenant_address=True)).tenant == "192.0.2.1"
    assert marked(ClientMarks(tenant_address=True), address="").tenant == ""


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a:b", "a:b"),
    ],
)
def test_addresses_of_one_client_are_one(address, client):
    assert client_at(address) == client


def test_unlisted_tenants_may_be_one():
    marks = marks_for(None, Fairness(tenant_header="x", weights={"gold": 2.0}, unlisted_together=True))
    assert marked(marks, headers={"x": "gold"}).tenant == "gold"
    assert marked(marks, headers={"x": "made-up"}).tenant == ""


def test_long_names_are_cut_and_stay_apart():
    one, other = ("n" * 5000 + end for end in "ab")
    assert tenant_named("n" * LONGEST_TENANT) == "n" * LONGEST_TENANT
    assert len(tenant_named(one)) <= LONGEST_TENANT
    assert tenant_named(one) != tenant_named(other)


@pytest.mark.parametrize(
    ("parameters", "tenant"),
    [(None, ""), ({"tenant": "gold"}, "gold"), ({"tenant": True}, "true"), ({"tenant": 7}, "7")],
)
def test_a_parameter_may_name_the_tenant(parameters, tenant):
    marks = marks_for(None, Fairness(tenant_parameter="tenant"))
    assert marked(marks, parameters=parameters).tenant == tenant


def test_a_model_that_asks_for_no_tenant_is_told_none():
    request = marked(marks_for(STICKY, None), headers={"x-user": "ada"})
    assert (request.affinity, request.tenant) == ("ada", "")
