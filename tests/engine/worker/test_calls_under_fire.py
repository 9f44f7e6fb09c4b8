"""Workers on both ends of calls are killed during calls: every call is answered, and nothing stays behind."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress

import numpy as np
import pytest
import trio

from actors.values.errors import ErrorCode, TritiumError
from chaos.record.descriptors import left_open, open_descriptors
from tests.engine.worker.conftest import until
from tests.support.many_models import calling, model, open_models

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROUNDS = 12
LARGE = 100_000  # elements: inputs and outputs go in segments


async def test_callers_and_callees_may_die_at_any_time():
    chance = random.Random(11)
    outcomes = []
    async with open_models(
        calling(instances=2), model("callee", "doubling", instances=2), within=120.0
    ) as models:
        states = models.states

        async def client(number):
            rows = np.full((1, LARGE if number % 2 else 4), float(number), np.float32)
            for _ in range(10 * ROUNDS):
                outcome = await models.outcome(await models.send("caller", rows))
                outcomes.append(outcome)
                if isinstance(outcome, TritiumError):
                    assert outcome.code is ErrorCode.UNAVAILABLE, outcome.message
                    await trio.sleep(0.02)
                else:
                    assert np.array_equal(outcome, rows * 2 + 1)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(client, number)
            for _ in range(ROUNDS):
                state = states[chance.choice(("caller", "callee"))]
                each = chance.choice(state.instances)
                await until(lambda each=each: each.worker is not None)
                await trio.sleep(chance.random() * 0.05)
                if each.pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGKILL)
        await until(lambda: not any(state.in_flight for state in states.values()))
        answered = sum(not isinstance(outcome, TritiumError) for outcome in outcomes)
        assert answered > len(outcomes) // 4
        for state in states.values():
            await until(lambda state=state: all(each.worker is not None for each in state.instances))
            for each in state.instances:
                assert each.worker.asks is not None
                assert not each.worker.asks.book.blocking
        before = open_descriptors()
        for _ in range(20):
            await models.infer("caller", np.ones((1, LARGE), np.float32))
        assert len(left_open(before)) <= 2
