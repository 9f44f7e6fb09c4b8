"""Tenants of a language model share it in tokens: what requests cost, and when that is charged."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.generation.policy.charging import FIRST_GUESS, REMEMBERED, STEP, TokenPrices
from actors.serving.policy.queueing import RequestQueue
from actors.values.generation.asking import CHAT, EMBED, TEXT, TOKENIZE, Ask, GenerationRequest, Sampling
from actors.values.specs import Fairness, LanguageServing, QueueBounds
from tests.support.ports import NoPort, waiting_request


def make_request(tenant="a", prompt="", kind=TEXT, **sampling):
    request = GenerationRequest(model_name="m", reply=NoPort(), accepted_at=0.0)
    request.ask = Ask(kind, prompts=(prompt,), sampling=Sampling(**sampling))
    request.tenant = tenant
    return request


class Shared:
    """A queue that tenants share in tokens."""

    def __init__(self, **weights):
        fairness = Fairness(tenant_header="x-tenant", weights=weights)
        self.queue = RequestQueue(LanguageServing(), QueueBounds(), fairness)
        self.prices = TokenPrices()
        assert self.queue.price_by(self.prices)

    def push(self, *requests):
        for request in requests:
            self.queue.push(request, 0.0)

    def take(self):
        (request,) = self.queue.take(1)
        return request, self.prices.opened(request)

    def turns(self, count):
        return "".join(self.take()[0].tenant for _ in range(count))

    def share(self, tenant):
        shares = self.queue.shares()
        assert shares is not None
        return shares[tenant]

    def tokens(self, tenant):
        return self.share(tenant).tokens


# What a request costs, as far as it is known


def test_a_queue_without_tenants_has_no_prices():
    queue = RequestQueue(LanguageServing(), QueueBounds(), Fairness(ageing=2.0))
    assert not queue.price_by(TokenPrices())
    queue.push(make_request(), 0.0)
    assert len(queue.take(1)) == 1


@pytest.mark.parametrize(
    ("ask", "cost"),
    [
        (Ask(TEXT, prompts=("x" * 400,)), 100 + FIRST_GUESS),
        (Ask(TEXT, prompts=("x" * 400, [1, 2, 3]), sampling=Sampling(max_tokens=5, n=2)), 103 + 20),
        (Ask(TEXT, prompts=("",), sampling=Sampling(max_tokens=4096)), 1 + FIRST_GUESS),
        (Ask(CHAT, messages=[{"role": "user", "content": "x" * 80}, {"content": None}]), 20 + FIRST_GUESS),
        (Ask(EMBED, prompts=([1] * 50,)), 50),
        (Ask(TOKENIZE, prompts=("x" * 4000,)), 1),
    ],
)
def test_a_request_is_charged_an_estimate_at_first(ask, cost):
    request = make_request()
    request.ask = ask
    assert TokenPrices().of(request) == cost


def test_tensors_are_estimated_by_their_bytes():
    assert TokenPrices().of(waiting_request(nbytes=80)) == 20 + FIRST_GUESS


def test_estimates_follow_what_came():
    prices = TokenPrices()
    for _ in range(60):
        prices.learn_answer("long", 1000)
        prices.learn_prompt(make_request(prompt="x" * 100), 50)
    prices.learn_prompt(make_request(prompt=[1] * 9), 9)  # ids say nothing of characters
    assert prices.answer_of("long") == pytest.approx(1000, rel=0.01)
    assert prices.answer_of("another") == pytest.approx(1000, rel=0.01)
    assert prices.prompt_of(make_request(prompt="x" * 100)) == pytest.approx(50, rel=0.01)
    for number in range(REMEMBERED):
        prices.learn_answer(f"t{number}", 1)
    assert prices.answer_of("long") < 10


# When it is charged


def test_a_long_prompt_is_paid_for_when_its_ids_are_known():
    shared = Shared()
    shared.push(*[make_request(tenant, "x") for tenant in "aabbbb"])
    _, account = shared.take()
    account.prompted(1000, 4096)
    assert shared.turns(4) == "bbbb"


def test_a_long_stream_is_paid_for_while_it_runs():
    shared = Shared()
    shared.push(*[make_request(tenant, "x") for tenant in "aabbbbb"])
    _, account = shared.take()
    account.prompted(1, 4096)
    for count in range(1, 502):
        account.generated(count)
    assert shared.turns(5) == "bbbba"


def test_what_was_not_used_is_given_back():
    shared = Shared()
    shared.push(make_request("a", "x" * 8000), *[make_request(tenant, "x") for tenant in "aabb"])
    _, account = shared.take()
    account.prompted(2000, 4096)
    account.end(0, 0)  # it was cancelled before an engine was given it
    assert shared.turns(2) == "ba"


def test_it_owes_as_well_where_nothing_of_it_waits():
    shared = Shared()
    shared.push(*[make_request(tenant, "x") for tenant in "abbbbbb"])
    _, account = shared.take()
    account.prompted(500, 4096)
    shared.push(make_request("a", "x"))
    assert shared.turns(6) == "bbbbba"


def test_a_line_that_is_gone_owes_anew():
    shared = Shared()
    shared.push(make_request("a", "x", max_tokens=1), *[make_request("b", "x") for _ in range(8)])
    _, account = shared.take()
    shared.turns(2)  # virtual time has passed what `a` was charged
    account.generated(400)
    shared.push(make_request("a", "x"))
    assert shared.turns(6).index("a") >= 3


def test_nothing_is_given_back_for_what_was_forgotten():
    shared = Shared()
    shared.push(make_request("a", "x" * 40_000))
    _, account = shared.take()  # nothing waits any more, and nothing is owed
    shared.push(*[make_request(tenant, "x") for tenant in "abab"])
    assert shared.turns(2) == "ab"
    account.end(0, 0)
    assert shared.turns(2) == "ab"


def test_nothing_is_owed_for_what_held_up_no_other():
    shared = Shared()
    shared.push(make_request("a", "x"))
    _, account = shared.take()
    account.prompted(1, 10_000)
    account.generated(9_000)
    shared.push(*[make_request(tenant, "x") for tenant in "abab"])
    assert shared.turns(4) == "abab"


def test_giving_back_takes_no_line_behind_where_it_came():
    shared = Shared()
    shared.push(make_request("a", "x" * 4000), *[make_request("b", "x") for _ in range(30)])
    _, account = shared.take()
    shared.turns(20)
    shared.push(*[make_request("a", "x") for _ in range(20)])
    account.end(0, 0)
    assert Counter(shared.turns(8)) == {"a": 4, "b": 4}


def test_a_request_that_was_flagged_has_no_account():
    shared = Shared()
    request = make_request("a", "x")
    shared.push(request, make_request("b", "x"))
    request.cancelled = True
    assert shared.queue.take(2)[0].tenant == "b"
    assert shared.prices.opened(request) is None


def test_tokens_are_counted_once_whatever_is_generated_again():
    shared = Shared(a=1.0, b=1.0)
    shared.push(make_request("a", "x"), make_request("b", "x"), make_request("b", "x"))
    _, account = shared.take()
    account.prompted(10, 4096)
    for count in (1, 65, 129, 1, 65):  # it began again
        account.generated(count)
    assert shared.tokens("a") == {"prompt": 10, "generated": 129}
    account.end(10, 140)
    assert shared.tokens("a") == {"prompt": 10, "generated": 140}
    share = shared.share("a")
    assert (share.requests, share.share) == (1, 1.0)
    assert share.document()["tokens"] == {"prompt": 10, "generated": 140}


def test_the_servers_own_requests_are_of_no_tenant():
    shared = Shared()
    probe = make_request("", "x")
    probe.synthetic = True
    shared.push(probe, make_request("b", "x"))
    _, account = shared.take()
    account.end(10, 10)
    assert shared.tokens("other") == {"prompt": 0, "generated": 0}


# Shares


@given(data=st.data())
def test_tenants_that_want_more_get_tokens_by_their_weights(data):
    """Whatever the sizes, the order in which streams get on, cancels and resumptions.

    One at a time, the two are at most a request of each apart. Streams that run can't be taken back: for each
    that does, it may be another.
    """
    weights = {"a": data.draw(st.sampled_from((1.0, 2.0, 0.5))), "b": 1.0}
    streams = data.draw(st.integers(1, 4))
    shared = Shared(**weights)
    used = {"a": 0.0, "b": 0.0}
    largest = FIRST_GUESS
    running: deque[list[Any]] = deque()
    for tenant in "ab":
        shared.push(make_request(tenant, "x"))
    for _ in range(data.draw(st.integers(5, 60))):
        while len(running) < streams:
            before = shared.prices.of
            request, account = shared.take()
            largest = max(largest, before(request))
            characters = data.draw(st.integers(0, 2000))
            shared.push(make_request(request.tenant, "x" * characters, max_tokens=2000))
            prompt, answer = data.draw(st.integers(1, 800)), data.draw(st.integers(0, 600))
            account.prompted(prompt, 2000)
            used[request.tenant] += prompt
            largest = max(largest, prompt + answer + STEP, prompt + shared.prices.answer_of(request.tenant))
            running.append([request.tenant, account, prompt, answer, 0])
        running.rotate(data.draw(st.integers(0, 3)))
        stream = running.popleft()
        tenant, account, prompt, answer, done = stream
        steps = data.draw(st.integers(1, 600))
        for _ in range(min(steps, answer - done)):
            stream[4] += 1
            account.generated(stream[4])
        used[tenant] += stream[4] - done
        if stream[4] == answer or data.draw(st.booleans()):
            account.end(prompt, stream[4])
        else:
            running.append(stream)
        apart = abs(used["a"] / weights["a"] - used["b"] / weights["b"])
        assert apart <= (len(running) + streams) * largest * (1 / weights["a"] + 1 / weights["b"])
    counted = {tenant: shared.tokens(tenant) for tenant in "ab"}
    assert sum(sum(each.values()) for each in counted.values()) <= sum(used.values())
