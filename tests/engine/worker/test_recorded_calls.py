"""Calls of models and answers in parts, recorded, with real workers."""

from __future__ import annotations

import pytest

from actors.serving.records import Recorder, record_of
from actors.values.events import Log
from actors.values.requests import InferRequest
from tests.support.many_models import calling, model, open_models

pytestmark = [pytest.mark.slow, pytest.mark.system]


async def test_a_call_is_recorded_with_the_request_on_whose_behalf_it_was_made():
    ended: list[InferRequest] = []

    def recorder(log: Log) -> Recorder:
        return Recorder(log, on_internal=lambda request, outcome, peer: ended.append(request), stages=True)

    async with open_models(calling(), model("callee", "doubling"), recorder=recorder) as models:
        request = models.request("caller", 3.0, id="r1")
        await models.router.resolve("caller").submit(request)
        assert (await models.answer(request)).tolist() == [[7.0] * 4]
    whole = record_of(request)
    [call] = [record_of(each) for each in ended]
    assert whole is not None
    assert call is not None
    assert (call.relation, call.parent, call.parent_id, call.instance) == (
        *("call", whole.serial, "r1"),
        "callee_0_0",
    )
    assert call.pid not in (0, whole.pid)


async def test_the_parts_of_a_decoupled_answer_are_counted():
    ended: list[InferRequest] = []

    def recorder(log: Log) -> Recorder:
        return Recorder(log, on_internal=lambda request, outcome, peer: ended.append(request), stages=True)

    streaming = model("callee", "streaming", decoupled=True, parameters={"mode": "in_threads"})
    async with open_models(calling(mode="streaming"), streaming, recorder=recorder) as models:
        assert (await models.infer("caller", 30.0))[0][0] == 31
    [call] = [record_of(each) for each in ended]
    assert call is not None
    assert call.responses == 30
    assert call.first_response is not None
