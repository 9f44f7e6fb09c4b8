"""How much of a body may come, and what becomes of a connection whose body was refused."""

import json

import pytest

from actors.values.callers import Peer
from protocols.http.admission import (
    MOST_SKIPPED,
    SMALL_BODY,
    Admitted,
    admit_short,
    limited,
    may_skip,
)
from protocols.http.answers import Answer, error_answer
from protocols.http.bodies import BodyLimits
from protocols.http.routes import match
from protocols.kserve.caps import REPOSITORY_BODY
from tests.protocols.fakes import FakeServer


def too_long(size):
    return error_answer(413, f"{size} bytes are too many")


@pytest.mark.parametrize("length", [-1, 0, 10])
def test_a_body_within_the_limit_or_of_unknown_length_may_come(length):
    admission = limited(10, length, too_long)
    assert isinstance(admission, Admitted)
    assert admission.most == 10
    assert admission.too_long(11) == too_long(11)


def test_a_body_over_the_limit_is_refused_with_its_length():
    refusal = limited(10, 11, too_long)
    assert isinstance(refusal, Answer)
    assert (refusal.status, json.loads(b"".join(refusal.buffers))) == (
        413,
        {"error": "11 bytes are too many"},
    )


def test_an_application_may_take_short_bodies_only():
    admitted = admit_short(Peer(), "GET", b"/metrics", [], SMALL_BODY)
    assert isinstance(admitted, Admitted)
    refusal = admit_short(Peer(), "POST", b"/metrics", [], SMALL_BODY + 1)
    assert isinstance(refusal, Answer)
    assert json.loads(b"".join(refusal.buffers)) == {
        "error": "request body of 65537 bytes exceeds the 65536 bytes that this endpoint takes"
    }
    assert admitted.too_long(SMALL_BODY + 1) == refusal


@pytest.mark.parametrize(
    ("rest", "awaits_continue", "lives_on"),
    [
        (0, False, True),
        (MOST_SKIPPED, False, True),
        (MOST_SKIPPED + 1, False, False),
        (-1, False, False),
        (0, True, False),
    ],
)
def test_a_connection_lives_on_behind_a_short_rest_that_surely_comes(rest, awaits_continue, lives_on):
    assert may_skip(rest, awaits_continue=awaits_continue) is lives_on


@pytest.mark.parametrize(
    ("path", "uploads", "most"),
    [
        ("/v2/repository/models/m/load", True, 5 * REPOSITORY_BODY),
        ("/v2/repository/models/m/load", False, REPOSITORY_BODY),
        ("/v2/repository/models/m/unload", True, SMALL_BODY),
        ("/v2/repository/index", True, SMALL_BODY),
        ("/v2/health/ready", True, SMALL_BODY),
    ],
)
def test_a_body_may_be_as_long_as_its_route_and_its_client_allow(path, uploads, most):
    limits = BodyLimits(
        FakeServer().server.models, max_input_size=5 * REPOSITORY_BODY, max_body_size=2**31 - 1
    )
    route = match(path)
    assert route is not None
    admitted = limits.admit(route, [], most, uploads=uploads)
    assert isinstance(admitted, Admitted)
    assert (admitted.most, admitted.wanted) == (most, "GET" not in route.endpoint.methods)
    refusal = limits.admit(route, [], most + 1, uploads=uploads)
    assert isinstance(refusal, Answer)
    assert str(most + 1) in json.loads(b"".join(refusal.buffers))["error"]
