"""What is remembered of requests under which a worker died or hung, and what that means for their like."""

import numpy as np
import pytest

from actors.serving.policy.blame import QUARANTINE_SECONDS, Blame, fingerprint_of
from actors.values.datatypes import DataType
from actors.values.tensors import Tensor
from tests.support.ports import waiting_request
from tests.support.shared_regions import ClientRegion, input_in

LATER = QUARANTINE_SECONDS + 1


def request_of(data=b"bad"):
    return waiting_request(inputs=[Tensor("INPUT", DataType.UINT8, (len(data),), data)], batch_key="shared")


@pytest.fixture
def blame():
    return Blame()


def accused(blame, now=0.0):
    """Accuse a request; return another one with the same inputs."""
    request = request_of()
    blame.accuse(request, now, fingerprint_of(request))
    return request_of()


def test_the_like_of_an_accused_request_runs_in_a_batch_of_its_own(blame):
    assert blame.clean
    again = accused(blame)
    assert not blame.clean
    other = request_of(b"good")
    for request in (again, other):
        blame.recognise(request, 1.0)
    assert again.accused == fingerprint_of(again)
    assert again.batch_key not in ("shared", None)
    assert (other.accused, other.batch_key) == (None, "shared")
    third = request_of()
    blame.recognise(third, 1.0)
    assert third.batch_key != again.batch_key


def test_an_answer_acquits_the_request_and_its_like(blame):
    request = accused(blame)
    blame.recognise(request, 0.0)
    blame.acquit(request)
    assert request.accused is None
    blame.look()
    assert blame.clean
    again = request_of()
    blame.recognise(again, 0.0)
    assert (again.accused, again.batch_key) == (None, "shared")


def test_who_was_never_accused_acquits_nobody(blame):
    accused(blame)
    blame.acquit(request_of(b"good"))
    blame.look()
    assert not blame.clean


def test_those_under_which_a_worker_has_died_before_are_known(blame):
    again, other = accused(blame), request_of(b"good")
    marks = {request: fingerprint_of(request) for request in (again, other)}
    assert blame.known(marks, 1.0) == {again: marks[again]}
    assert blame.known(marks, LATER) == {}


@pytest.mark.parametrize("marked", [True, False])
def test_the_like_of_a_convicted_request_is_quarantined_for_a_while(marked):
    blame, request = Blame(), request_of()
    blame.convict(request, 0.0, fingerprint_of(request) if marked else None)
    assert not blame.clean
    assert blame.quarantine.match(request_of(), 1.0)
    assert not blame.quarantine.match(request_of(b"good"), 1.0)
    blame.look()
    assert not blame.clean
    assert not blame.quarantine.match(request_of(), LATER)
    blame.look()
    assert blame.clean


def test_a_request_that_hangs_is_quarantined_the_second_time(blame):
    assert not blame.hung(request_of(), 0.0, None)
    assert blame.clean
    assert not blame.hung(request_of(b"good"), 1.0, None)
    assert blame.hung(request_of(), 1.0, None)
    assert blame.quarantine.match(request_of(), 1.0)
    assert not blame.quarantine.match(request_of(b"good"), 1.0)


def test_hangs_that_are_long_apart_are_bad_luck(blame):
    assert [blame.hung(request_of(), now, None) for now in (0.0, LATER)] == [False, False]
    assert blame.clean


def test_inputs_in_a_region_are_told_by_what_the_region_holds():
    """A client that uses the same bytes for something else is not blamed for what was there."""
    region = ClientRegion(300_000)
    place = region.put(np.arange(60_000, dtype=np.float32))
    lying = waiting_request(inputs=[input_in(place, (60_000,))])
    sent = waiting_request(inputs=[Tensor.from_numpy("INPUT", np.arange(60_000, dtype=np.float32))])
    before = fingerprint_of(lying)
    assert before == fingerprint_of(sent)
    region.put(np.float32(-1), at=4 * 50_000)  # between the samples of the quick key
    after = fingerprint_of(lying)
    assert after.quick == before.quick
    assert after.digest != before.digest
    region.shrink(100_000)
    assert fingerprint_of(lying).digest not in (before.digest, after.digest)
    region.close()
