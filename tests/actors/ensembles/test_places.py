"""The place in a sequence of what a step gave, and of an answer (contract, scheduling.md section 7)."""

import pytest

from actors.ensembles.policy.places import parameters_of, place_of
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest
from tests.support.ports import NoPort

START, END = FLAG_SEQUENCE_START, FLAG_SEQUENCE_END
BEFORE = (7, START)
REQUEST = InferRequest(model_name="m", correlation_id=5, reply=NoPort(), accepted_at=0.0)


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({}, BEFORE),
        ({"other": 1}, BEFORE),
        ({"sequence_id": 9}, (9, 0)),
        ({"sequence_id": "nine", "sequence_start": True}, ("nine", START)),
        ({"sequence_id": -1, "sequence_end": True}, (2**64 - 1, END)),
        ({"sequence_start": True, "sequence_end": True}, (7, START | END)),
        ({"sequence_end": False}, (7, 0)),
        ({"sequence_id": True}, (7, 0)),
        ({"sequence_id": 1.5, "sequence_start": True}, (7, START)),
    ],
)
def test_a_response_keeps_its_step_s_place_unless_it_says_otherwise(parameters, place):
    assert place_of(parameters, BEFORE, REQUEST) == place


@pytest.mark.parametrize(("parameters", "place"), [({}, None), ({"sequence_start": True}, (5, START))])
def test_a_step_without_a_place_is_in_its_request_s_sequence(parameters, place):
    assert place_of(parameters, None, REQUEST) == place


@pytest.mark.parametrize(
    "place", [(1, START), ("seven", END), (2**63 - 1, 0), (2**63, START | END), (2**64 - 1, 0)]
)
def test_what_an_answer_says_of_its_place_is_read_as_that_place(place):
    told = parameters_of(place)
    identity = told["sequence_id"]
    assert isinstance(identity, str) or -(2**63) <= identity < 2**63
    assert place_of(told, None, REQUEST) == place
