"""What one worker may take: memory, processes, and nothing that outlives it."""

import os

import pytest
import trio

from actors.serving.policy.confinement import LONGEST
from actors.serving.standing import Status
from actors.values.errors import ErrorCode, TritiumError
from actors.values.specs import Confinement, Retry
from tests.engine.worker.conftest import until
from tests.support.greedy_backends import (
    LEAK,
    LEAK_IN_A_CHILD,
    LEAVE_A_CHILD,
    LEAVE_A_CHILD_AND_DIE,
    LEAVE_NO_TRACE_AND_DIE,
    LEAVE_THE_SESSION,
    ONE_LARGE_ALLOCATION,
    SHARE_AFTER_A_FORK,
    START_CHILDREN,
    START_ONE,
)

pytestmark = [pytest.mark.slow, pytest.mark.system]

MEBIBYTE = 1024 * 1024
ROOMY = Confinement(memory=400 * MEBIBYTE)
NEVER = {"retry": Retry.NEVER}


def lives(pid):
    """Whether a process runs; a zombie, which only its new parent can reap, does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except FileNotFoundError:
        return False


def recorded(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def children(tmp_path):
    return tmp_path / "children"


async def test_a_leak_ends_at_the_limit_with_the_reason_oom(serve):
    async with serve("greedy", confinement=ROOMY, **NEVER) as model:
        first = model.pid()
        answer = await model.answer(await model.send(LEAK))
        assert isinstance(answer, TritiumError)
        assert answer.code is ErrorCode.UNAVAILABLE
        assert "400 MiB are its limit (tritium.memory_limit_mb)" in answer.message
        assert model.state.statistics.deaths == {"oom": 1}
        assert (await model.infer(100.0)).tolist() == [[100.0] * 4]
        assert model.pid() != first
        (exited,) = model.logged("worker_exited")
        assert exited["reason"] == "oom"


async def test_a_request_that_makes_a_pure_model_leak_is_refused_after_two_workers(serve):
    async with serve("greedy", confinement=ROOMY) as model:
        assert (await model.answer(await model.send(LEAK))).code is ErrorCode.POISONED
        assert model.state.statistics.deaths == {"oom": 2}
        assert model.state.status is Status.READY


async def test_memory_of_the_processes_that_a_model_starts_counts_too(serve):
    async with serve("greedy", confinement=ROOMY, **NEVER) as model:
        assert "lack of memory" in (await model.answer(await model.send(LEAK_IN_A_CHILD))).message
        assert model.state.statistics.deaths == {"oom": 1}


async def test_an_allocation_far_beyond_the_limit_fails_in_the_model_and_kills_nobody(serve):
    async with serve("greedy", confinement=ROOMY, **NEVER) as model:
        first = model.pid()
        assert (await model.infer(ONE_LARGE_ALLOCATION)).tolist() == [[0.0] * 4]
        assert model.pid() == first


async def test_what_processes_share_counts_once(serve):
    async with serve("greedy", confinement=Confinement(memory=200 * MEBIBYTE), **NEVER) as model:
        assert (await model.infer(SHARE_AFTER_A_FORK)).tolist() == [[1.0] * 4]
        assert not model.state.statistics.deaths


async def test_a_worker_that_starts_too_many_processes_is_killed_with_all_of_them(serve):
    async with serve("greedy", confinement=Confinement(processes=20), **NEVER) as model:
        session = model.pid()
        answer = await model.answer(await model.send(START_CHILDREN))
        assert "20 are its limit (tritium.max_processes)" in answer.message
        assert model.state.statistics.deaths == {"processes": 1}
        await until(lambda: not members(session))
        assert (await model.infer(100.0)).tolist() == [[100.0] * 4]


def members(session):
    """Processes of a session that run."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and in_session(int(name), session)]


def in_session(pid, session):
    try:
        return os.getsid(pid) == session and lives(pid)
    except ProcessLookupError:
        return False


async def test_a_limit_of_one_process_refuses_the_second(serve):
    async with serve("greedy", confinement=Confinement(processes=1), **NEVER) as model:
        first = model.pid()
        assert (await model.infer(START_ONE)).tolist() == [[0.0] * 4]
        assert model.pid() == first
        assert not model.logged("worker_unconfined")


@pytest.mark.parametrize("limits", [Confinement(), Confinement(processes=8)])
async def test_processes_end_with_the_worker_that_started_them(serve, children, limits):
    parameters = {"children": str(children)}
    async with serve("greedy", parameters=parameters, confinement=limits, **NEVER) as model:
        await model.infer(LEAVE_A_CHILD)
        await model.infer(LEAVE_THE_SESSION)
        assert len(recorded(children)) == 2
        assert all(map(lives, recorded(children)))
        answer = await model.answer(await model.send(LEAVE_A_CHILD_AND_DIE))
        assert answer.code is ErrorCode.UNAVAILABLE
        assert len(recorded(children)) == 3
        await until(lambda: not any(map(lives, recorded(children))))
        await model.infer(LEAVE_THE_SESSION)  # from the next worker, which is then stopped in peace
    await until(lambda: not any(map(lives, recorded(children))))


async def test_a_process_of_a_limited_worker_ends_with_it_even_without_a_trace(serve, children):
    parameters = {"children": str(children)}
    async with serve("greedy", parameters=parameters, confinement=Confinement(processes=8), **NEVER) as model:
        request = await model.send(LEAVE_NO_TRACE_AND_DIE)
        await until(lambda: bool(recorded(children)))
        await trio.sleep(2 * LONGEST)  # on the loop that looks at least that often
        children.with_name("children.seen").touch()
        await model.answer(request)
        (child,) = recorded(children)
        await until(lambda: not lives(child))


async def test_a_model_within_its_limits_is_left_alone(serve):
    async with serve("greedy", confinement=Confinement(memory=400 * MEBIBYTE, processes=4)) as model:
        first = model.pid()
        for value in (100.0, START_ONE, 200.0):
            await model.infer(value)
        assert model.pid() == first
