"""`tritium.concurrency`: several batches of one Python model under way at once (docs/python_backend.md)."""

import threading

import numpy as np
import pytest

from actors.values.datatypes import DataType
from engine.worker.backends.testing import LocalRequest, run

PORTS = {"inputs": [("X", DataType.FP32, [1])], "outputs": [("Y", DataType.FP32, [1])], "max_batch_size": 4}
PATIENCE = 20.0  # seconds

TOGETHER = """
import asyncio

class TritonPythonModel:
    # Answers nobody before two batches are under way.
    def initialize(self, args):
        self.under_way, self.most = 0, 0

    async def execute(self, requests):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        while {condition}:
            await asyncio.sleep(0.001)
        self.under_way -= 1
        {answer}
"""
LIST = "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.full((1, 1), self.most, 'f4'))]) for _ in requests]"
SENDERS = "[r.get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.full((1, 1), self.most, 'f4'))]), 1) for r in requests]"


def request():
    return LocalRequest({"X": np.ones((1, 1), "f4")})


def run_at_once(backend, info, count):
    """Run `count` batches on as many lanes, as a worker does; return their requests."""
    requests = [request() for _ in range(count)]
    lanes = [threading.Thread(target=run, args=(backend, info, [each]), daemon=True) for each in requests]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join(PATIENCE)
        assert not lane.is_alive()
    return requests


def test_coroutines_of_several_batches_share_the_loop(python_model):
    source = TOGETHER.format(condition="self.most < 3", answer=LIST)
    backend, info = python_model(source, **PORTS, lanes=3, parameters={"tritium.concurrency": "3"})
    assert [each.answer.outputs["Y"].item() for each in run_at_once(backend, info, 3)] == [3, 3, 3]


def test_a_decoupled_models_lane_waits_for_its_coroutine_where_a_limit_is_set(python_model):
    source = TOGETHER.format(condition="False", answer="await asyncio.sleep(0.01); " + SENDERS)
    backend, info = python_model(
        source, **PORTS, decoupled=True, lanes=1, parameters={"tritium.concurrency": "1"}
    )
    for _ in range(2):
        each = request()
        run(backend, info, [each])
        assert each.ended.is_set()  # when the lane is free again
        assert each.parts[0].outputs["Y"].item() == 1


def test_a_plain_execute_is_called_by_one_lane_at_a_time(python_model):
    source = """
import threading
class TritonPythonModel:
    def initialize(self, args):
        self.inside = threading.Lock()
        self.sides = threading.Barrier(2, timeout=0.2)
    def execute(self, requests):
        alone = self.inside.acquire(blocking=False)
        try:
            self.sides.wait()
        except threading.BrokenBarrierError:
            self.sides.reset()
        self.inside.release()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), alone, "f4"))])]
"""
    backend, info = python_model(source, **PORTS, lanes=2, parameters={"tritium.concurrency": "2"})
    assert [each.answer.outputs["Y"].item() for each in run_at_once(backend, info, 2)] == [1, 1]


def test_responses_left_to_senders_do_not_hold_up_the_next_batch(python_model):
    """A model that answers only when it has collected three requests, each of which is a batch of its own."""
    source = """
import threading
class TritonPythonModel:
    def initialize(self, args):
        self.waiting = []
    def execute(self, requests):
        self.waiting += [r.get_response_sender() for r in requests]
        if len(self.waiting) == 3:
            threading.Thread(target=self.answer, args=(self.waiting,)).start()
            self.waiting = []
        return [None] * len(requests)
    def answer(self, senders):
        for number, sender in enumerate(senders):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), number, "f4"))]), 1)
"""
    backend, info = python_model(source, **PORTS, lanes=3, parameters={"tritium.concurrency": "3"})
    answers = [each.answer.outputs["Y"].item() for each in run_at_once(backend, info, 3)]
    assert sorted(answers) == [0, 1, 2]


@pytest.mark.parametrize("define", ["def", "async def"])
def test_the_readiness_check_is_asked_while_lanes_are_there(python_model, define):
    source = f"""
class TritonPythonModel:
    {define} is_ready(self):
        return True
    async def execute(self, requests):
        return []
"""
    backend, _ = python_model(source, **PORTS, lanes=2, parameters={"tritium.concurrency": "2"})
    assert backend.ready()
