"""One life of an instance, from launch to burial, with a worker that is played by the test."""

import os
import socket
from typing import Any

import numpy as np
import pytest
import trio

from actors.serving.instances.instance import InstanceActor, WorkerDied
from actors.serving.model import ModelState
from actors.serving.policy.retries import Exit, Signal
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.supervision.context import Stopping
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.specs import InstanceSpec, WarmupSample
from actors.values.tensors import Tensor
from actors.wire import frames
from actors.wire.arena import ControlPage, Segment
from actors.wire.batch_frames import Answer, Execute, Placed, Result
from tests.support.doubles import Double
from tests.support.model_doubles import make_request, make_spec
from tests.support.shortage import SAID, no_memory

SEGFAULT = Signal(11)


class Context(Double):
    """As much of a `ChildContext` as an instance touches."""

    path = "models/model/1/instances/0"

    def __init__(self):
        self.stopping = Stopping()
        self.progress = False
        self.info = {}

    def started(self, value=None):
        pass

    def publish(self, **info):
        self.info.update(info)

    def progressed(self):
        self.progress = True


class PlayedWorker:
    """A worker process without the process. Implements `actors.serving.instances.launching.Launched`."""

    pid = 4711
    output = None
    abandoned = False
    suspended = False
    dying = False

    def __init__(self, *, obedient=True):
        self.socket, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.far.setblocking(False)
        self.obedient = obedient  # exits on SIGTERM and STOP
        self.signals = []
        self.control: Any = None
        self._reason = None
        self._ended = trio.Event()

    @property
    def exited(self):
        return self._reason is not None

    async def wait(self):
        await self._ended.wait()
        return self._reason

    def exit(self, reason):
        if self._reason is None:
            self._reason = reason
            self.far.close()
            self._ended.set()

    def terminate(self):
        self.signals.append("TERM")
        if self.obedient:
            self.exit(Signal(15))

    def kill(self):
        self.signals.append("KILL")
        self.exit(Signal(9))

    # The worker's side.

    async def receive(self):
        """The next packet other than a segment."""
        while True:
            await trio.lowlevel.wait_readable(self.far)
            packet, descriptors, _, _ = socket.recv_fds(self.far, frames.MAX_FRAME, 4)
            if packet and packet[0] == frames.LOAD:
                segment = Segment(descriptors[0], os.fstat(descriptors[0]).st_size)
                segment.close_fd()
                os.close(descriptors[1])
                self.control = ControlPage(segment, 1, 8)
                return packet
            for descriptor in descriptors:
                os.close(descriptor)
            if not packet or packet[0] != frames.SEGMENT:
                return packet

    async def load(self):
        await self.receive()
        self.far.send(frames.encode_json(frames.READY, {}))

    async def batch(self):
        """The next batch, begun."""
        job = Execute.decode(await self.receive())
        assert self.control.begin(0, job.batch_id, job.slot)
        return job

    def answer(self, job, *, error=""):
        if error:
            answers = [Answer(code=ErrorCode.INTERNAL, message=error)] * len(job.rows)
            result = Result(job.batch_id, job.slot, len(job.rows), (0, 0, 0), answers=answers)
        else:
            rows = sum(job.rows)
            placed = Placed("OUTPUT", DataType.FP32, (rows, 2), 0, 8 * rows)
            result = Result(job.batch_id, job.slot, len(job.rows), (0, 0, 0), [placed])
        self.far.send(result.encode())
        self.control.end(0)


class Life:
    """An instance of a model version, its worker, and how its life ended."""

    def __init__(self, nursery, *, worker=None, refuse=None, state=None, **changes):
        self.ctx = Context()
        self.worker: Any = worker or PlayedWorker()
        self.refuse = refuse
        self.start = trio.current_time()
        self.logged = []
        self.state: Any = state or ModelState(
            make_spec(**changes),
            statistics=ModelStatistics(),
            on_status=lambda state: None,
            wall_clock=lambda: 0,
        )
        self.instance = self.state.instances[0]
        self.error: Any = None
        self.ended_at = None
        self._ended = trio.Event()
        nursery.start_soon(self._run)

    async def _run(self):
        actor = InstanceActor(self.ctx, self.state, self.instance, launcher=self, log=self._log)
        try:
            await actor.run()
        except WorkerDied as error:
            self.error = error
        finally:
            self.worker.socket.close()
            self.worker.far.close()
        self.ended_at = trio.current_time() - self.start
        self._ended.set()

    async def ended(self):
        await self._ended.wait()

    def _log(self, event, *, level="info", **keys):
        self.logged.append((str(event), keys))

    # actors.serving.instances.launching.Launcher

    async def launch(self, spec, instance):
        if self.refuse is not None:
            raise self.refuse
        return self.worker

    def backend_path(self, spec):
        return "module:Class"

    def limits(self):
        return {"open_files": 100}

    async def die(self, reason):
        """Have the worker exit, and wait for the end."""
        self.worker.exit(reason)
        await self.ended()

    async def stop(self):
        """Ask the instance to stop, and wait until it has."""
        self.ctx.stopping.set()
        await self.ended()

    async def serving(self):
        await self.worker.load()
        await trio.testing.wait_all_tasks_blocked()
        assert self.state.status is Status.READY

    def queue(self, count=1, *, rows=1):
        """Dispatch a batch of `count` requests, as the scheduler would. Each row has 8 bytes."""
        requests = [make_request(rows) for _ in range(count)]
        for request in requests:
            request.requested_outputs = self.state.spec.output_names
            self.state.in_flight[request] = None
        self.state.dispatcher.dispatch(self.instance, requests)
        return requests


async def serving(nursery, **options):
    """Return an instance whose worker has loaded the model."""
    life = Life(nursery, **options)
    await life.serving()
    return life


@pytest.fixture
async def life(nursery):
    """An instance whose worker has loaded the model."""
    return await serving(nursery)


def warmup():
    tensors = (Tensor.from_numpy("INPUT", np.zeros((1, 2), np.float32)),)
    return (WarmupSample(name="sample", requests=(tensors, tensors)),)


async def test_a_batch_is_answered_and_that_is_progress(life, autojump_clock):
    (request,) = life.queue()
    assert not life.ctx.progress
    life.worker.answer(await life.worker.batch())
    await trio.testing.wait_all_tasks_blocked()
    assert request.reply.answered
    assert life.ctx.progress
    assert life.ctx.info["phase"] == "serving"
    life.worker.exit(Exit(0))


async def test_a_worker_that_cannot_be_started_fails_the_load(nursery, autojump_clock):
    life = Life(nursery, refuse=OSError(11, "Resource temporarily unavailable"))
    await life.state.standing.load_finished.wait()
    assert life.state.status is Status.UNAVAILABLE
    assert "no worker could be started" in life.state.reason
    assert "Resource temporarily unavailable" in life.state.reason
    await life.stop()


async def test_a_worker_that_cannot_be_started_again_is_a_death_like_others(life, nursery, autojump_clock):
    await life.die(SEGFAULT)
    again = Life(nursery, state=life.state, refuse=OSError(11, "Resource temporarily unavailable"))
    await again.ended()
    assert isinstance(again.error, WorkerDied)
    assert not again.ctx.progress
    assert "Resource temporarily unavailable" in life.instance.last_reason


async def test_no_memory_for_a_connection_ends_the_worker_and_leaks_nothing(nursery, autojump_clock):
    worker = PlayedWorker()
    with no_memory():
        life = Life(nursery, worker=worker)
        await life.state.standing.load_finished.wait()
    assert worker.signals == ["KILL"]
    assert worker.socket.fileno() == -1
    assert SAID in life.state.reason
    await life.stop()


async def test_what_died_with_the_worker_is_settled_before_the_death_is_told(life, autojump_clock):
    requests = life.queue(2)
    await life.worker.batch()
    waiting = life.queue()
    await life.die(SEGFAULT)
    assert str(life.error).endswith("died of signal 11 (SIGSEGV)")
    assert list(life.instance.suspects) == requests
    assert life.state.queue.take(9) == waiting
    assert life.ctx.progress  # a suspect is looked for
    assert life.state.statistics.deaths == {"signal_11": 1}


async def test_a_failed_start_is_no_progress_though_suspects_wait(life, nursery, autojump_clock):
    life.queue(2)
    await life.worker.batch()
    await life.die(SEGFAULT)
    again = Life(nursery, state=life.state)
    await again.worker.receive()
    await again.die(Exit(1))
    # Otherwise an instance that can no longer load would be restarted for ever, without a pause.
    assert not again.ctx.progress
    assert len(life.instance.suspects) == 2


async def test_a_death_during_warmup_is_no_progress_and_leaves_nothing_behind(nursery, autojump_clock):
    life = Life(nursery, warmup=warmup())
    await life.worker.load()
    life.worker.answer(await life.worker.batch())
    await trio.testing.wait_all_tasks_blocked()
    await life.die(SEGFAULT)
    again = Life(nursery, state=life.state)
    await again.worker.load()
    await again.worker.batch()
    await again.die(SEGFAULT)
    assert not again.ctx.progress
    assert not life.instance.hunting
    assert not len(life.state.queue)


async def test_a_failed_warmup_ends_a_worker_that_does_not_obey(nursery, autojump_clock):
    life = Life(nursery, warmup=warmup(), worker=PlayedWorker(obedient=False))
    await life.worker.load()
    life.worker.answer(await life.worker.batch(), error="too cold")
    await life.state.standing.load_finished.wait()
    assert "failed to run warmup sample 'sample': too cold; too cold; " in life.state.reason
    assert life.worker.signals == ["KILL"]
    assert trio.current_time() - life.start < 10
    life.ctx.stopping.set()


async def test_a_failed_load_is_told_with_its_reason_and_only_the_first(nursery, autojump_clock):
    life = Life(nursery)
    await life.worker.receive()
    for n in range(5):
        body = {"message": f"no {n}", "traceback": "Traceback"}
        life.worker.far.send(frames.encode_json(frames.LOAD_FAILED, body))
    life.worker.exit(Exit(0))
    await life.state.standing.load_finished.wait()
    assert life.state.reason == "Internal: no 0"
    assert sum(event == "worker_output" for event, _ in life.logged) == 1
    await life.stop()
    assert life.error is None


async def test_a_hang_is_ended_on_time_and_the_wait_behind_it_does_not_count(nursery, autojump_clock):
    life = await serving(nursery, execution_timeout=10.0)
    await trio.sleep(3)
    life.queue()
    second = life.queue()
    job = await life.worker.batch()
    await trio.sleep(8)
    life.worker.answer(job)
    await life.worker.batch()
    await life.ended()
    assert life.ended_at == pytest.approx(3 + 8 + 10)
    assert second[0].reply.error.code is ErrorCode.DEADLINE_EXCEEDED
    assert life.state.statistics.deaths == {"hang": 1}


class Bereaved(PlayedWorker):
    """A worker that has left much behind, so that it takes long until it is reaped."""

    async def wait(self):
        reason = await super().wait()
        await trio.sleep(60)
        return reason


async def test_a_worker_that_has_exited_is_not_taken_for_one_that_stays_alive(nursery, autojump_clock):
    life = await serving(nursery, worker=Bereaved())
    await life.die(SEGFAULT)
    assert life.error.reason == SEGFAULT


async def test_a_worker_that_closes_its_connection_and_lives_on_is_killed(life, autojump_clock):
    life.worker.far.shutdown(socket.SHUT_RDWR)
    await life.ended()
    assert life.worker.signals[0] == "KILL"
    assert life.ended_at == pytest.approx(0.05)
    assert "closed its connection and stayed alive" in str(life.error)


class Slain(PlayedWorker):
    """A worker killed from outside. The kernel has closed its connection, and takes long for the rest."""

    dying = True


async def test_a_worker_that_is_dying_is_not_taken_for_one_that_stays_alive(nursery, autojump_clock):
    life = await serving(nursery, worker=Slain())
    life.worker.far.shutdown(socket.SHUT_RDWR)
    await life.ended()
    assert life.state.statistics.deaths == {"signal_9": 1}


async def test_a_frame_that_makes_no_sense_is_the_workers_end(life, autojump_clock):
    (request,) = life.queue()
    await life.worker.batch()
    life.worker.far.send(bytes((frames.LOG,)) + b"[" * 60_000)
    await life.ended()
    assert life.state.statistics.deaths == {"protocol_error": 1}
    assert list(life.instance.suspects) == [request]


async def test_the_last_results_are_delivered_before_the_rest_is_settled(life, autojump_clock):
    (done,) = life.queue()
    (begun,) = life.queue()
    job = await life.worker.batch()
    second = Execute.decode(await life.worker.receive())
    life.worker.answer(job)
    assert life.worker.control.begin(0, second.batch_id, second.slot)
    await life.die(SEGFAULT)
    assert done.reply.answered
    assert list(life.instance.suspects) == [begun]


async def test_stopping_waits_for_what_runs_and_then_asks_nicely(life, autojump_clock):
    (request,) = life.queue()
    job = await life.worker.batch()
    life.ctx.stopping.set()
    await trio.sleep(3)
    assert life.instance.worker is None
    assert not life.worker.signals
    life.worker.answer(job)
    assert await life.worker.receive() == bytes((frames.STOP,))
    await life.die(Exit(0))
    assert request.reply.answered
    assert life.error is None
    assert life.state.statistics.deaths == {}


async def test_a_worker_that_ignores_everything_is_killed_in_the_end(nursery, autojump_clock):
    life = await serving(nursery, worker=PlayedWorker(obedient=False))
    await life.stop()
    assert life.worker.signals == ["TERM", "KILL"]
    assert life.ended_at == pytest.approx(5 + 2)


async def test_an_instance_that_is_asked_to_stop_while_it_warms_up_does_not_join(nursery, autojump_clock):
    life = Life(nursery, warmup=warmup())
    await life.worker.load()
    job = await life.worker.batch()
    life.ctx.stopping.set()
    await trio.testing.wait_all_tasks_blocked()
    life.worker.answer(job)
    assert await life.worker.receive() == bytes((frames.STOP,))
    assert life.state.status is Status.LOADING
    await life.die(Exit(0))


async def test_a_flood_of_log_lines_is_cut(nursery, autojump_clock):
    life = await serving(nursery, instances=(InstanceSpec(name="model_0_0"),))
    for _ in range(2000):
        life.worker.far.send(frames.encode_json(frames.LOG, {"level": "verbose", "message": "x"}))
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()
    lines = [keys for event, keys in life.logged if event == "worker_output" and "line" in keys]
    assert 500 <= len(lines) < 1000
    life.worker.exit(Exit(0))


@pytest.mark.parametrize("removed", [True, False])
async def test_a_version_that_is_given_up_waits_for_no_worker_of_an_instance_that_leaves(
    life, autojump_clock, removed
):
    (request,) = life.queue()
    await life.worker.batch()
    if removed:
        life.state.standing.add_instances([InstanceSpec(name="model_0_1")])
        life.state.remove_instance(life.instance)
    life.ctx.stopping.set()
    await trio.testing.wait_all_tasks_blocked()
    life.state.give_up("it took too long")
    with trio.fail_after(1):
        await life.ended()
    assert request.reply.error.message.endswith("it took too long")
    assert life.worker.signals[0] == "TERM"
    assert not life.state.standing.workers
