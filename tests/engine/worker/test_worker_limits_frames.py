"""Damaged frames from a real worker, over its own connection: at worst they cost that worker.

`tests/fuzz` has more of them.
"""

from random import Random

import pytest

from actors.values.errors import ErrorCode, TritiumError
from actors.values.specs import Retry
from tests.fuzz.campaign import corpus_of
from tests.fuzz.worker_frames import WorkerFrames
from tests.support.greedy_backends import TALK

pytestmark = [pytest.mark.slow, pytest.mark.system]

TALKS = 16
TOGETHER = 20  # series of packets in one talk, about thirty packets: the worker is seldom heard to the end


@pytest.fixture
def talks(tmp_path):
    """Files with what the fuzz target for workers would play."""
    chance, target = Random(6), WorkerFrames()
    corpus = corpus_of(target)
    for number in range(TALKS):
        series = [target.generate(chance, corpus)[1:] for _ in range(TOGETHER)]
        (tmp_path / f"talk-{number}").write_bytes(b"".join(series))
    return tmp_path


async def test_whatever_a_worker_says_each_request_has_one_answer_and_the_next_worker_serves(serve, talks):
    async with serve("greedy", parameters={"talks": str(talks)}, retry=Retry.NEVER) as model:
        for number in range(TALKS):
            request = await model.send(TALK + number)
            answer = await model.answer(request)
            if isinstance(answer, TritiumError):
                assert answer.code in ErrorCode
            else:
                answer.release()
            assert (await model.infer(100.0)).tolist() == [[100.0] * 4]
            assert len(request.reply.parts) == 1
        assert set(model.state.statistics.deaths) == {"protocol_error"}
        assert model.state.statistics.reply_violations == 0
