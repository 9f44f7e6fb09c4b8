"""What one worker may take: memory, processes, and nothing that outlives it."""

import os

import pytest
import trio

from actors.serving.policy.confinement import LONGEST
from actors.serving.standing import Status
from actors.values.confinement import Confinement
from actors.values.errors import ErrorCode, TritiumError
from actors.values.specs import Retry
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


@pytest.mark.parametrize(
    ("retry", "cue", "code", "deaths"),
    [
        pytest.param(Retry.ALWAYS, LEAK, ErrorCode.POISONED, 2, id="a pure model is tried twice"),
        pytest.param(
            Retry.NEVER, LEAK_IN_A_CHILD, ErrorCode.UNAVAILABLE, 1, id="processes that a model starts count"
        ),
    ],
)
async def test_a_request_that_makes_a_model_leak_is_answered(serve, retry, cue, code, deaths):
    async with serve("greedy", confinement=ROOMY, retry=retry) as model:
        assert (await model.answer(await model.send(cue))).code is code
        assert model.state.statistics.deaths == {"oom": deaths}
        assert model.state.status is Status.READY


@pytest.mark.parametrize(
    ("limits", "cue", "output"),
    [
        pytest.param(ROOMY, ONE_LARGE_ALLOCATION, 0.0, id="an allocation far beyond the limit fails"),
        pytest.param(
            Confinement(memory=200 * MEBIBYTE), SHARE_AFTER_A_FORK, 1.0, id="what processes share counts once"
        ),
        pytest.param(Confinement(processes=1), START_ONE, 0.0, id="the second process is refused"),
        pytest.param(
            Confinement(memory=400 * MEBIBYTE, processes=4), START_ONE, 1.0, id="a model within its limits"
        ),
    ],
)
async def test_what_a_limit_refuses_within_the_model_kills_no_worker(serve, limits, cue, output):
    async with serve("greedy", confinement=limits, **NEVER) as model:
        first = model.pid()
        assert (await model.infer(cue)).tolist() == [[output] * 4]
        assert (await model.infer(100.0)).tolist() == [[100.0] * 4]
        assert (model.pid(), model.state.statistics.deaths) == (first, {})
        assert not model.logged("worker_unconfined")


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
