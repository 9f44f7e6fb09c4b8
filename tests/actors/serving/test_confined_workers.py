"""An instance looks at what its worker takes, and passes on what the worker could not deny itself."""

import pytest
import trio

from actors.serving.instances.instance import WorkerDied
from actors.serving.policy.confinement import Usage
from actors.serving.policy.retries import Oom, TooManyProcesses
from actors.values.confinement import Confinement, Sandbox
from actors.values.specs import Retry
from actors.wire import frames
from actors.wire.frames import FrameError
from tests.actors.serving.test_instance_in_virtual_time import Life, PlayedWorker, serving


class Taking(PlayedWorker):
    """A worker that takes as much as the test says."""

    def __init__(self):
        super().__init__()
        self.takes = Usage(1000, 1)
        self.exactly = None
        self.looks = 0
        self.looked_at = trio.Event()  # ten times
        self.large = False  # a glance cannot measure it

    def glance(self):
        self.looks += 1
        if self.looks > 10:
            self.looked_at.set()
        return None if self.large else self.takes

    def usage(self, *, exact=False):
        return self.exactly if exact and self.exactly is not None else self.takes


async def test_a_worker_over_its_memory_is_killed_and_what_it_ran_is_told_why(nursery, autojump_clock):
    life = await serving(nursery, worker=Taking(), confinement=Confinement(memory=5000), retry=Retry.NEVER)
    (request,) = life.queue()
    await life.worker.batch()
    life.worker.takes = Usage(6000, 1)
    await life.ended()
    assert life.worker.signals == ["KILL"]
    assert isinstance(life.error, WorkerDied)
    assert life.error.reason == Oom(6000, 5000)
    assert life.state.statistics.deaths == {"oom": 1}
    assert "tritium.memory_limit_mb" in request.reply.error.message


async def test_a_worker_with_too_many_processes_is_killed(nursery, autojump_clock):
    life = await serving(nursery, worker=Taking(), confinement=Confinement(processes=3))
    life.worker.takes = Usage(0, 4)
    await life.ended()
    assert life.error.reason == TooManyProcesses(4, 3)


@pytest.mark.parametrize(
    ("large", "takes", "exactly", "measured"),
    [(False, Usage(6000, 2), Usage(4000, 2), "exactly"), (True, Usage(1000, 1), None, "takes")],
    ids=["several processes", "one that can't be taken in at a glance"],
)
async def test_memory_is_measured_exactly_before_a_worker_dies_of_it(
    nursery, large, takes, exactly, measured
):
    worker = Taking()
    worker.large, worker.takes, worker.exactly = large, takes, exactly
    life = await serving(nursery, worker=worker, confinement=Confinement(memory=5000))
    await worker.looked_at.wait()
    assert not worker.signals
    setattr(worker, measured, Usage(5001, 2))
    await life.ended()
    assert life.error.reason == Oom(5001, 5000)


async def test_a_worker_without_limits_is_not_looked_at(nursery, autojump_clock):
    life = await serving(nursery, worker=Taking())
    await trio.sleep(60)
    assert life.worker.looks == 0
    await life.stop()


class Heard(Life):
    """A life of which the level of each line is kept."""

    def _log(self, event, *, level="info", **keys):
        super()._log(event, level=level, **keys, of=level)


@pytest.mark.parametrize(
    ("confinement", "level"),
    [
        (Confinement(sandbox=Sandbox.GUARD), "warning"),
        (Confinement(sandbox=Sandbox.GUARD, by_default=True), "info"),
        (Confinement(sandbox=Sandbox.GUARD, by_default=True, processes=1), "warning"),
    ],
)
async def test_what_could_not_be_applied_is_logged_and_shown(nursery, autojump_clock, confinement, level):
    life = Heard(nursery, worker=Taking(), confinement=confinement)
    await life.worker.receive()
    life.worker.far.send(frames.encode_json(frames.READY, {"unapplied": ["the filter: no such kernel"]}))
    await trio.testing.wait_all_tasks_blocked()
    assert life.ctx.info["unconfined"] == ["the filter: no such kernel"]
    told = [keys for event, keys in life.logged if event == "worker_unconfined"]
    assert [(keys["missing"], keys["of"]) for keys in told] == [(["the filter: no such kernel"], level)]
    await life.stop()


@pytest.mark.parametrize("said", ["all", {"a": 1}, [1], ["x"] * 17, [["x"]]])
async def test_what_a_worker_says_of_its_limits_is_checked(said, connect):
    connection = connect()
    with pytest.raises(FrameError, match="unapplied"):
        connection.worker.on_packet(frames.encode_json(frames.READY, {"unapplied": said}))
