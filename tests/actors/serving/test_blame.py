"""What is remembered of requests under which a worker died or hung, and what that means for their like."""

from array import array

import numpy as np
import pytest

from actors.seams.steps import at_once
from actors.serving.policy.blame import HASHED_AT_ONCE, QUARANTINE_SECONDS, Blame, fingerprint_of, hashing
from actors.values.datatypes import DataType
from actors.values.generation.asking import TEXT, Ask, GenerationRequest, Sampling
from actors.values.tensors import Tensor
from tests.support.ports import Port, waiting_request
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
    assert again.fingerprint == fingerprint_of(again)
    assert again.batch_key not in ("shared", None)
    assert (other.fingerprint, other.batch_key) == (None, "shared")
    third = request_of()
    blame.recognise(third, 1.0)
    assert third.batch_key != again.batch_key


def test_an_answer_acquits_the_request_and_its_like(blame):
    request = accused(blame)
    blame.recognise(request, 0.0)
    blame.acquit(request)
    assert request.fingerprint is None
    blame.look()
    assert blame.clean
    again = request_of()
    blame.recognise(again, 0.0)
    assert (again.fingerprint, again.batch_key) == (None, "shared")


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


def test_a_long_request_has_to_be_hashed_where_it_may_be_one_that_is_remembered(blame):
    long = b"bad" * (HASHED_AT_ONCE // 3 + 1)
    assert not blame.must_hash(request_of(long), 0.0)
    poison = request_of(long)
    blame.convict(poison, 0.0, None)
    again = request_of(long)
    for other in (request_of(), request_of(long[:-3] + b"mad")):
        assert not blame.must_hash(other, 1.0)
    assert blame.must_hash(again, 1.0)
    again.fingerprint = at_once(hashing(again))
    assert not blame.must_hash(again, 1.0)
    assert blame.quarantine.match(again, 1.0)
    assert blame.quarantine.may_hold(again, 1.0)
    assert not blame.quarantine.may_hold(again, LATER)


def test_a_long_request_is_hashed_in_steps():
    """No step takes longer than a MiB does, wherever the bytes lie."""
    region = ClientRegion(8 << 20)
    place = region.put(np.arange(2 << 20, dtype=np.float32))
    lying = waiting_request(inputs=[input_in(place, (2 << 20,))])
    sent = waiting_request(inputs=[Tensor.from_numpy("INPUT", np.arange(2 << 20, dtype=np.float32))])
    for request in (lying, sent):
        assert len(list(hashing(request))) == 8
    assert at_once(hashing(lying)) == at_once(hashing(sent)) == fingerprint_of(sent)
    region.close()


def test_a_hang_whose_fingerprint_is_known_is_not_hashed_again(blame):
    """The bytes in a region may be others by then."""
    mark = fingerprint_of(request_of())
    assert not blame.hung(request_of(), 0.0, mark)
    assert blame.hung(request_of(b"new"), 1.0, mark)


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


def asking(prompt, **more):
    request = GenerationRequest(model_name="model", reply=Port(), accepted_at=0.0)
    request.ask = Ask(TEXT, prompts=(prompt,), **more)
    return request


IDS = [*range(200_000)]


@pytest.mark.parametrize(
    ("ask", "like", "other"),
    [
        ({"prompt": "bad"}, {"prompt": "bad", "stream": False}, {"prompt": "bad", "adapter": "a"}),
        ({"prompt": IDS}, {"prompt": array("i", IDS)}, {"prompt": [*IDS[:-20], 7, *IDS[-19:]]}),
        (
            {"prompt": "bad", "sampling": Sampling(seed=1, logit_bias={"1": 2.0})},
            {"prompt": "bad", "sampling": Sampling(seed=1, logit_bias={"1": 2.0})},
            {"prompt": "bad", "sampling": Sampling(seed=2, logit_bias={"1": 2.0})},
        ),
        (
            {"prompt": "bad", "messages": [{"role": "user", "content": "b\ud800"}]},
            {"prompt": "bad", "messages": [{"content": "b\ud800", "role": "user"}]},
            {"prompt": "bad", "messages": [{"role": "user", "content": ["b"]}]},
        ),
        ({"prompt": []}, {"prompt": array("i")}, {"prompt": [1, 2**70, None]}),
    ],
)
def test_what_a_language_model_is_asked_is_told_by_all_of_it(blame, ask, like, other):
    blame.convict(asking(**ask), 0.0, None)
    assert blame.quarantine.match(asking(**like), 1.0)
    assert not blame.quarantine.match(asking(**other), 1.0)


def test_a_long_ask_is_hashed_in_steps(blame):
    text = "x" * (HASHED_AT_ONCE + 1)
    blame.convict(asking(text), 0.0, None)
    assert blame.must_hash(asking(text), 1.0)
    assert not blame.must_hash(asking("x"), 1.0)
    assert not blame.must_hash(asking(text + "y"), 1.0), "its length differs"
    chat = asking("", messages=[{"role": "user", "content": [{"text": text}] * 3}])
    assert len([*hashing(chat)]) == 3
    assert not blame.must_hash(chat, 1.0)
