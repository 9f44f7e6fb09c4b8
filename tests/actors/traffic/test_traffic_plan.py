"""The JSON form of a traffic plan: what it may say, and every mistake in it with what would have worked."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.traffic.policy.traffic_plan import InvalidPlan, plan_document, read_plan
from actors.values.errors import ErrorCode
from actors.values.traffic import Mirror, Rollback, TrafficPlan

SPLIT = {"1": 90, "2": 10}
WEIGHTS = 'use {"1": 90, "2": 10}'
STICKY = 'use {"header": "x-user"} or {"parameter": "user"}'
VERSIONS = 'use version numbers, such as {"1": 90, "2": 10}'
WHOLE = "use a whole number of at least 1"


def test_a_plan_may_be_no_more_than_weights():
    assert read_plan({"weights": SPLIT}) == TrafficPlan(weights={1: 90.0, 2: 10.0})


def test_a_plan_may_say_everything():
    document = {
        "weights": {"10": 0, "2": 0.5, "1": 1},
        "sticky": {"header": "X-User"},
        "mirror": {"version": 3, "fraction": 0.25, "tolerance": 0},
        "rollback": {"max_error_rate": 0.05, "max_latency_ratio": 2, "max_latency": 0.5, "min_requests": 5, "window": 2.5},
    }  # fmt: skip
    assert read_plan(document) == TrafficPlan(
        weights={1: 1.0, 2: 0.5, 10: 0.0},
        sticky_header="x-user",
        mirror=Mirror(version=3, fraction=0.25, tolerance=0.0),
        rollback=Rollback(
            max_error_rate=0.05, max_latency_ratio=2.0, max_latency=0.5, min_requests=5, window=2.5
        ),
    )


def test_what_is_left_out_has_its_default():
    plan = read_plan({"weights": SPLIT, "mirror": {"version": 3}, "rollback": {"max_latency": 1}})
    assert plan.mirror == Mirror(version=3)
    assert plan.rollback == Rollback(max_latency=1.0)
    assert plan.sticky_header == plan.sticky_parameter == ""


def test_versions_are_in_order_and_whole_numbers_are_written_whole():
    plan = TrafficPlan(weights={2: 10.0, 1: 89.5}, sticky_parameter="user", mirror=Mirror(version=3))
    assert json.dumps(plan_document(plan)) == (
        '{"weights": {"1": 89.5, "2": 10}, "sticky": {"parameter": "user"},'
        ' "mirror": {"version": 3, "fraction": 1, "tolerance": 1e-05}}'
    )


# Each: a document, and every mistake: where, what, and what would have worked.
REFUSED = [
    ([], [("", "is no JSON object", 'use {"weights": {"1": 90, "2": 10}}')]),
    ({}, [("weights", "is missing", 'give each version that answers its share, such as {"1": 90, "2": 10}')]),
    ({"weights": {}}, [("weights", "is no object of shares by version", WEIGHTS)]),
    ({"weights": [90, 10]}, [("weights", "is no object of shares by version", WEIGHTS)]),
    ({"weights": {"1": 0, "2": 0}}, [("weights", "gives no version a share", WEIGHTS)]),
    ({"weights": {"1": 1e308, "2": 1e308}}, [("weights", "adds up to more than a number can hold", WEIGHTS)]),
    ({"weights": {"1": -1}}, [("weights.1", "is -1", "use a number of at least 0")]),
    ({"weights": {"1": True}}, [("weights.1", "is true", "use a number of at least 0")]),
    ({"weights": {"1": "90"}}, [("weights.1", 'is "90"', "use a number of at least 0")]),
    ({"weights": {"1": math.inf}}, [("weights.1", "is Infinity", "use a number of at least 0")]),
    ({"weights": {"1": 10**400}}, [("weights.1", "is 1" + "0" * 36 + "...", "use a number of at least 0")]),
    ({"weights": {"latest": 1}}, [("weights.latest", "names no version", VERSIONS)]),
    ({"weights": {"01": 1}}, [("weights.01", "names no version", VERSIONS)]),
    ({"weights": {"-1": 1}}, [("weights.-1", "names no version", VERSIONS)]),
    ({"weights": {str(2**63): 1}}, [(f"weights.{2**63}", "names no version", VERSIONS)]),
    ({"weights": SPLIT, "rollbak": {}}, [("rollbak", "is unknown", "did you mean 'rollback'?")]),
    ({"weights": SPLIT, "x": 1}, [("x", "is unknown", "known are weights, sticky, mirror, rollback")]),
    ({"weights": SPLIT, "sticky": {}}, [("sticky", "names nothing to go by", STICKY)]),
    ({"weights": SPLIT, "sticky": "x-user"}, [("sticky", "is no JSON object", STICKY)]),
    ({"weights": SPLIT, "sticky": {"header": "x user"}},
     [("sticky.header", "is no name of a header", 'use one such as "x-user"')]),
    ({"weights": SPLIT, "sticky": {"parameter": 3}},
     [("sticky.parameter", "is no name of a request parameter", 'use one such as "user"')]),
    ({"weights": SPLIT, "sticky": {"header": "a", "parameter": "b"}},
     [("sticky", "names both a header and a parameter", STICKY)]),
    ({"weights": SPLIT, "sticky": {"headers": "a"}}, [("sticky.headers", "is unknown", "did you mean 'header'?")]),
    ({"weights": SPLIT, "mirror": 3}, [("mirror", "is no JSON object", 'use {"version": 3, "fraction": 0.1}')]),
    ({"weights": SPLIT, "mirror": {}},
     [("mirror.version", "is missing", "name the version that receives copies, such as 3")]),
    ({"weights": SPLIT, "mirror": {"version": "3"}}, [("mirror.version", 'is "3"', WHOLE)]),
    ({"weights": SPLIT, "mirror": {"version": 3, "fraction": 1.5}},
     [("mirror.fraction", "is 1.5", "use a number from 0 to 1")]),
    ({"weights": SPLIT, "mirror": {"version": 3, "fraction": 0}},
     [("mirror.fraction", "mirrors nothing", "use a share above 0, or leave 'mirror' out")]),
    ({"weights": SPLIT, "mirror": {"version": 2}},
     [("mirror.version", "is 2, which answers requests itself", "mirror to another version, or leave 2 out of 'weights'")]),
    ({"weights": SPLIT, "rollback": {}},
     [("rollback", "has no rule", "set 'max_error_rate', 'max_latency_ratio' or 'max_latency' above 0")]),
    ({"weights": SPLIT, "rollback": {"max_error_rate": 2}},
     [("rollback.max_error_rate", "is 2", "use a number from 0 to 1")]),
    ({"weights": SPLIT, "rollback": {"max_latency_ratio": 0.5}},
     [("rollback.max_latency_ratio", "asks a version to be faster than the others", "use 1 or more")]),
    ({"weights": SPLIT, "rollback": {"max_latency": 1, "min_requests": 0}}, [("rollback.min_requests", "is 0", WHOLE)]),
    ({"weights": SPLIT, "rollback": {"max_latency": 1, "window": 0}},
     [("rollback.window", "is 0", "use seconds above 0, such as 5")]),
    ({"weights": {"1": 1, "2": 0}, "rollback": {"max_latency": 1}},
     [("rollback", "has no version to fall back to", 'give two versions or more a share, such as {"1": 90, "2": 10}')]),
    ({"weights": {"1": "x"}, "mirror": {"version": 1}, "rollback": {"max_latency": -1}},
     [("weights.1", 'is "x"', "use a number of at least 0"),
      ("rollback.max_latency", "is -1", "use a number of at least 0")]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "mistakes"), REFUSED, ids=[str(row[0])[:60] for row in REFUSED])
def test_a_plan_that_makes_no_sense_is_refused_with_every_mistake(document, mistakes):
    with pytest.raises(InvalidPlan) as caught:
        read_plan(document)
    found = [(mistake.key, mistake.complaint, mistake.remedy) for mistake in caught.value.mistakes]
    assert found == mistakes
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_the_message_tells_all():
    with pytest.raises(InvalidPlan) as caught:
        read_plan({"weights": {"1": -1, "x": 1}})
    assert caught.value.message == (
        "invalid traffic plan: 'weights.1' is -1: use a number of at least 0;"
        ' \'weights.x\' names no version: use version numbers, such as {"1": 90, "2": 10}'
    )


SHARES = st.floats(0, 1e6, allow_nan=False)
PLANS = st.builds(
    TrafficPlan,
    weights=st.dictionaries(st.integers(1, 50), st.floats(0.01, 1e6), min_size=2, max_size=5),
    sticky_header=st.sampled_from(["", "x-user"]),
    mirror=st.none()
    | st.builds(Mirror, version=st.integers(51, 99), fraction=st.floats(0.01, 1), tolerance=SHARES),
    rollback=st.none()
    | st.builds(
        Rollback,
        max_error_rate=st.floats(0.01, 1),
        max_latency_ratio=st.floats(1, 10),
        max_latency=SHARES,
        min_requests=st.integers(1, 10**6),
        window=st.floats(0.01, 1e3),
    ),
)


@given(PLANS)
def test_a_plan_goes_to_a_document_and_back(plan):
    assert read_plan(json.loads(json.dumps(plan_document(plan)))) == plan
