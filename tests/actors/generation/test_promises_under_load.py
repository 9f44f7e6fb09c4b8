"""Promised times under more load than there is room for, in a model of an engine. Nothing here waits."""

from __future__ import annotations

import math
from collections import deque
from random import Random

import pytest

from actors.generation.policy.metering import PACED
from actors.generation.policy.promises import Promises
from actors.values.errors import Overloaded
from actors.values.specs import Slo
from tests.support.ports import waiting_request

pytestmark = pytest.mark.slow

SLOTS = 32
CHUNK = 512  # tokens of prompts in one step


class Stream:
    """A request in the engine."""

    def __init__(self, pace, arrived, prompt, answer):
        self.pace = pace
        self.arrived = arrived
        self.left = prompt  # tokens of its prompt that are not computed yet
        self.answer = answer
        self.told = 0


class Load:
    """Requests come at random; steps take as long as what is in them. All that was measured is in lists."""

    def __init__(self, slo, *, rate, seconds=90.0, seed=1):
        self.promises = Promises(slo)
        self.random = Random(seed)
        self.rate = rate
        self.now = self.next = 0.0
        self.waiting: deque[Stream] = deque()
        self.running: list[Stream] = []
        self.firsts: list[float] = []
        self.betweens: list[float] = []
        self.refused = self.done = 0
        while self.now < seconds:
            while self.next <= self.now:
                self.comes()
            if self.waiting or self.running:
                self.step()
            else:
                self.now = self.next

    def comes(self):
        promises, random, now = self.promises, self.random, self.next
        prompt, answer = 5 + int(random.expovariate(1 / 200)), 1 + int(random.expovariate(1 / 60))
        guess = prompt * random.uniform(0.7, 1.4)
        self.next += random.expovariate(self.rate)
        ahead = promises.ahead(1.0, 0)
        try:
            promises.admit(
                waiting_request(accepted_at=now),
                tokens=guess, choices=1, ahead=ahead, patience=math.inf, now=now,
            )  # fmt: skip
        except Overloaded:
            self.refused += 1
            return
        pace = promises.enters(guess, now, now)
        promises.taken(pace)
        promises.ready(pace, prompt, now)
        self.waiting.append(Stream(pace, now, prompt, answer))

    def step(self):
        room = CHUNK
        begin: list[Stream] = []
        while self.waiting and room and len(self.running) + len(begin) < SLOTS:
            first = self.waiting[0]
            computed = min(room, first.left)
            room -= computed
            first.left -= computed
            if first.left:
                break
            begin.append(self.waiting.popleft())
        self.now += 0.004 + 0.0005 * len(self.running) + (CHUNK - room) / 10_000
        for stream in self.running:
            self.goes_on(stream)
        self.running = [stream for stream in self.running if not stream.pace.over]
        for stream in begin:
            self.promises.begins(stream.pace, 1, self.now)
            self.firsts.append(self.now - stream.arrived)
            stream.told = 1
        self.running += begin

    def goes_on(self, stream):
        stream.told += 1
        if stream.told % PACED == 1:
            self.betweens.append((self.now - stream.pace.last) / PACED)
            self.promises.goes_on(stream.pace, PACED, self.now)
        if stream.told >= stream.answer:
            self.promises.ends(stream.pace, self.now)
            self.done += 1


def late(times, promised):
    return sum(time > promised for time in times) / len(times)


@pytest.mark.parametrize("rate", [20, 30, 60])
def test_first_tokens_come_as_promised(rate):
    """Without the promise they would come after 10, 25 and 45 seconds; as many answers are given."""
    without, kept = Load(Slo(ttft=1e6), rate=rate), Load(Slo(ttft=1.0), rate=rate)
    assert without.refused == 0
    assert sorted(without.firsts)[len(without.firsts) // 2] > 5.0
    assert late(kept.firsts, 1.0) < 0.04
    assert max(kept.firsts) < 2.0
    assert kept.done > 0.95 * without.done


def test_tokens_come_as_promised():
    without, kept = Load(Slo(ttft=1e6), rate=30), Load(Slo(itl=0.03), rate=30)
    assert late(without.betweens, 0.03) > 0.4
    assert late(kept.betweens, 0.03) < 0.04
    assert kept.done > 0.8 * without.done


def test_what_fits_is_not_refused():
    load = Load(Slo(ttft=1.0, itl=0.06), rate=10)
    assert load.refused == 0
    assert late(load.firsts, 1.0) == 0.0
