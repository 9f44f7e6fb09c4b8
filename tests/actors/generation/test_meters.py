"""`actors.generation.policy.metering`: what a generation uses is told in steps."""

import pytest

from actors.generation.policy.charging import STEP, TokenPrices
from actors.generation.policy.metering import PACED, Meter
from actors.generation.policy.promises import Promises
from actors.values.generation.asking import TEXT, Ask, GenerationRequest
from actors.values.specs import Slo
from tests.support.ports import NoPort


class Steps:
    """An account that keeps what it is told."""

    def __init__(self):
        self.told = []

    def prompted(self, prompt, most):
        self.told.append(("prompted", prompt, most))

    def generated(self, tokens):
        self.told.append(tokens)

    def end(self, prompt, generated):
        self.told.append(("end", prompt, generated))


def make_request():
    request = GenerationRequest(model_name="m", reply=NoPort(), accepted_at=0.0)
    request.ask = Ask(TEXT, prompts=("x" * 40,))
    return request


def metered(*, account=None, promises=None):
    """Return a meter of a request that was just taken, and its pace."""
    pace = None if promises is None else promises.enters(10, 0.0, 0.0)
    return Meter(make_request(), TokenPrices(), account, promises, pace), pace


def test_an_account_is_told_at_the_first_token_and_every_step():
    account = Steps()
    meter, _ = metered(account=account)
    meter.prompted(10, 500, 1, 0.0)
    for _ in range(3 * STEP):
        meter.generated(1, 0.0)
    meter.end(10, 3 * STEP, 0.0)
    assert account.told == [
        ("prompted", 10, 500), 1, 1 + STEP, 1 + 2 * STEP, ("end", 10, 3 * STEP),
    ]  # fmt: skip


def test_what_is_generated_again_is_not_told_twice():
    account = Steps()
    meter, _ = metered(account=account)
    meter.prompted(10, 500, 1, 0.0)
    meter.generated(STEP + 5, 0.0)
    meter.interrupted(STEP + 5)
    for _ in range(2 * STEP):
        meter.generated(1, 0.0)
    assert account.told[1:] == [STEP + 5]
    meter.generated(5, 0.0)
    assert account.told[1:] == [STEP + 5, 2 * STEP + 5]


@pytest.mark.parametrize("choices", [1, 3])
def test_the_time_between_tokens_is_that_of_a_choice(choices):
    promises = Promises(Slo(ttft=1.0, itl=1.0))
    meter, pace = metered(promises=promises)
    meter.prompted(12, 500, choices, 0.0)
    for step in range(1 + PACED):
        for _ in range(choices):
            meter.generated(1, 1.0 + 0.125 * step)
    assert pace.began
    assert promises.between(1) == pytest.approx(0.125, rel=0.15)
    meter.interrupted(0)
    meter.end(12, 0, 9.0)
    assert pace.over
    assert promises.ahead(1.0, 3) == 0.0


def test_a_step_of_both_is_the_shorter_one():
    account, promises = Steps(), Promises(Slo(itl=1.0))
    meter, _ = metered(account=account, promises=promises)
    meter.prompted(12, 500, 8, 0.0)
    for _ in range(2 * STEP):
        meter.generated(1, 1.0)
    assert account.told[1:] == [1, 1 + STEP]


def test_a_prompt_that_is_known_tells_of_others():
    prices = TokenPrices()
    before = prices.prompt_of(make_request())
    for _ in range(40):
        Meter(make_request(), prices, None, None, None).prompted(2, 100, 1, 0.0)
    assert prices.prompt_of(make_request()) < before / 2
