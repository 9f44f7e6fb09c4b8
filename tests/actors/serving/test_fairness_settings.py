"""`actors.serving.policy.fairness_plan`: valid `tritium.fairness` and `tritium.slo`; mistakes and remedies."""

import pytest

from actors.serving.policy.fairness_plan import InvalidFairness, InvalidSlo, read_fairness, read_slo
from actors.values.specs import Fairness, Slo


def test_everything_is_read():
    assert read_fairness(
        {
            "tenant": {"header": "X-Tenant"},
            "weights": {"gold": 4, "free": 0.5},
            "default_weight": 2,
            "unlisted": "together",
            "max_queued": 64,
            "when_full": "refuse",
            "age": 1.5,
        }
    ) == Fairness(
        tenant_header="x-tenant",
        weights={"gold": 4.0, "free": 0.5},
        default_weight=2.0,
        unlisted_together=True,
        max_queued=64,
        refuses=True,
        ageing=1.5,
    )


@pytest.mark.parametrize(
    ("document", "fairness"),
    [
        ({"tenant": "address"}, Fairness(tenant_address=True)),
        ({"tenant": "identity"}, Fairness(tenant_identity=True)),
        ({"tenant": {"parameter": "user"}}, Fairness(tenant_parameter="user")),
        ({"age": 2}, Fairness(ageing=2.0)),
        ({"tenant": "address", "unlisted": "each", "max_queued": 1, "when_full": "wait"}, None),
    ],
)
def test_the_rest_may_be_left_out(document, fairness):
    assert read_fairness(document) == (fairness or Fairness(tenant_address=True, max_queued=1))


TENANT = '{"header": "x-tenant"}, {"parameter": "tenant"}, "address" or "identity"'
BY_ADDRESS = {"tenant": "address"}


@pytest.mark.parametrize(
    ("document", "mistakes"),
    [
        ([], ['is no JSON object: use {"tenant": {"header": "x-tenant"}, "weights": {"gold": 4}}']),
        (
            {},
            [
                'asks for nothing: use {"tenant": {"header": "x-tenant"}, "weights": {"gold": 4}}, or {"age": 2}'
            ],
        ),
        ({"tenants": "address"}, ["'tenants' is unknown: did you mean 'tenant'?"]),
        ({"tenant": "header"}, [f"'tenant' is \"header\": use {TENANT}"]),
        ({"tenant": {}}, [f"'tenant' names nothing to go by: use {TENANT}"]),
        (
            {"tenant": {"header": "x", "parameter": "y"}},
            [f"'tenant' names both a header and a parameter: use {TENANT}"],
        ),
        (
            {"tenant": {"header": "x y"}},
            ["'tenant.header' is no name of a header: use one such as \"x-tenant\""],
        ),
        (
            {"tenant": {"parameter": 3}},
            ["'tenant.parameter' is no name of a request parameter: use one such as \"tenant\""],
        ),
        (
            {"weights": {"a": 1}},
            [f"'weights' is about tenants, and 'tenant' is missing: add \"tenant\": {TENANT}"],
        ),
        (
            {**BY_ADDRESS, "weights": [1]},
            ['\'weights\' is no object of weights by tenant: use {"gold": 4, "free": 1}'],
        ),
        ({**BY_ADDRESS, "weights": {"a": 0}}, ["'weights.a' is 0: use a number from 0.001 to 1000"]),
        (
            {**BY_ADDRESS, "weights": {"other": 1}},
            [
                "'weights.other' is no tenant: give it another name: metrics count all tenants without a name of"
                " their own under this one"
            ],
        ),
        (
            {**BY_ADDRESS, "weights": {"": 1}},
            [
                "'weights' lists the tenant \"\": use names of 1 to 128 characters; clients without one have "
                "'default_weight'"
            ],
        ),
        (
            {**BY_ADDRESS, "weights": {f"t{n}": 1 for n in range(257)}},
            ["'weights' lists 257 tenants: list at most 256, and give the others 'default_weight'"],
        ),
        (
            {**BY_ADDRESS, "default_weight": True},
            ["'default_weight' is true: use a number from 0.001 to 1000"],
        ),
        (
            {**BY_ADDRESS, "unlisted": "no"},
            [
                '\'unlisted\' is "no": use "each" for a share for each of them, or "together" for one share for all of '
                "them"
            ],
        ),
        ({**BY_ADDRESS, "max_queued": 0}, ["'max_queued' is 0: use a whole number of at least 1"]),
        (
            {**BY_ADDRESS, "max_queued": 9, "when_full": "drop"},
            ['\'when_full\' is "drop": use "wait" or "refuse"'],
        ),
        (
            {**BY_ADDRESS, "when_full": "refuse"},
            ["'when_full' is about a bound, and there is none: add \"max_queued\": 64"],
        ),
        ({"age": 0}, ["'age' is 0: use seconds above 0, such as 2, or leave it out"]),
        ({"age": -1}, ["'age' is -1: use a number of at least 0"]),
        (
            {"age": "x", "tenant": 7},
            [f"'tenant' is 7: use {TENANT}", "'age' is \"x\": use a number of at least 0"],
        ),
    ],
)
def test_every_mistake_about_fairness_is_told(document, mistakes):
    with pytest.raises(InvalidFairness) as caught:
        read_fairness(document)
    assert [str(mistake) for mistake in caught.value.mistakes] == mistakes
    assert caught.value.message == "invalid fairness: " + "; ".join(mistakes)


@pytest.mark.parametrize(
    ("document", "slo"),
    [
        ({"p99": 0.05}, Slo(p99=0.05)),
        ({"p99": 1, "refuse": False, "tune": True}, Slo(p99=1.0, refuse=False)),
        ({"p99": 1, "tune": False}, Slo(p99=1.0, tune=False)),
        ({"refuse": True}, Slo()),
        ({"ttft": 0.5, "itl": 0.05}, Slo(ttft=0.5, itl=0.05)),
        ({"itl": 1, "refuse": True}, Slo(itl=1.0)),
    ],
)
def test_a_promise_is_read(document, slo):
    assert read_slo(document) == slo


NOTHING = (
    'asks for nothing: use {"p99": 0.05}, {"ttft": 0.5} for a language model, or {"refuse": true}'
    " for requests' own deadlines"
)


@pytest.mark.parametrize(
    ("document", "mistakes"),
    [
        (None, ['is no JSON object: use {"p99": 0.05}']),
        ({}, [NOTHING]),
        ({"refuse": False}, [NOTHING]),
        ({"p99": 1, "refuse": False, "tune": False}, [NOTHING]),
        ({"p99": 0}, ["'p99' is 0: use seconds above 0, such as 0.05"]),
        ({"p99": "50ms"}, ["'p99' is \"50ms\": use a number of at least 0"]),
        ({"p99": 1, "refuse": 1}, ["'refuse' is 1: use true or false"]),
        ({"tune": True}, ["'tune' has nothing to tune for: add \"p99\": 0.05"]),
        ({"ttft": 0}, ["'ttft' is 0: use seconds above 0, such as 0.05"]),
        ({"itl": "50ms"}, ["'itl' is \"50ms\": use a number of at least 0"]),
        (
            {"ttft": 1, "p99": 1, "tune": True},
            [
                "'p99' is of models that make batches, and 'ttft' and 'itl' are not: leave it out",
                "'tune' is of models that make batches, and 'ttft' and 'itl' are not: leave it out",
            ],
        ),
        (
            {"itl": 1, "refuse": False},
            ["'refuse' is false, and nothing else keeps these promises: leave it out"],
        ),
        ({"p95": 1}, ["'p95' is unknown: did you mean 'p99'?"]),
    ],
)
def test_every_mistake_about_a_promise_is_told(document, mistakes):
    with pytest.raises(InvalidSlo) as caught:
        read_slo(document)
    assert [str(mistake) for mistake in caught.value.mistakes] == mistakes
