"""The actor that keeps the spares, in virtual time, with processes that the test plays."""

from __future__ import annotations

import os
import socket

import pytest
import trio

from actors.serving.policy.retries import Exit, Signal
from actors.serving.statistics import ModelStatistics
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.families import once
from engine.observability.metrics import Exposition
from engine.observability.models import ModelSample, model_blocks
from engine.processes.spare_plan import FIRST_PAUSE, QUIET
from engine.processes.spares import END_SECONDS, FAMILIES, Environment, SpareCounts, Spares
from engine.settings.reporting import MetricsSettings
from engine.settings.settings import Settings, SettingsError
from tests.support.logged import Logged

HERE = Environment(interpreter="/usr/bin/python", variables=(("PATH", "/bin"),))
THERE = Environment(interpreter="/usr/bin/python", variables=(("PATH", "/bin"),), cores=(1,))


class Played:
    """A worker process without the process. Implements `engine.processes.spares.Spare`."""

    abandoned = False
    suspended = False

    def __init__(self, pid, *, obedient=True):
        self.pid = pid
        self.socket, self._far = socket.socketpair()
        self.output, self._printed = os.pipe()
        self.fit = True
        self.signals = []
        self._obedient = obedient
        self._died_of = None
        self._ended = trio.Event()

    async def wait(self):
        await self._ended.wait()
        return self._died_of

    def say(self, text):
        os.write(self._printed, text)

    def die(self, reason):
        if self._died_of is None:
            self._died_of, self.fit = reason, False
            self._far.close()
            os.close(self._printed)
            self._ended.set()

    def terminate(self):
        self.signals.append("TERM")
        if self._obedient:
            self.die(Signal(15))

    def kill(self):
        self.signals.append("KILL")
        self.die(Signal(9))

    def discard(self):
        """Discard it, as the actor that took it does."""
        self.die(Exit(0))
        self.socket.close()
        os.close(self.output)


class Stage:
    """Spares, the tree they are in, and everything that was started."""

    def __init__(self, nursery, *, limit=1):
        self.logged = Logged()
        self.spares = Spares(self._start, limit=limit, log=self.logged)
        self.started = []
        self.refuse = None
        self.obedient = True
        self._nursery = nursery

    async def begin(self):
        self.root = Supervisor([ChildSpec("spares", self.spares.run)])
        await self._nursery.start(lambda task_status: self.root.serve(task_status=task_status))

    async def _start(self, environment):
        await trio.sleep(0.1)
        if self.refuse is not None:
            raise self.refuse
        worker = Played(100 + len(self.started), obedient=self.obedient)
        self.started.append(worker)
        return worker

    def take(self, environment=HERE):
        """What the launcher does."""
        worker = self.spares.take(environment)
        self.spares.launched(environment, spare=worker is not None)
        return worker

    async def first(self, environment=HERE):
        """Start a worker without a spare, and wait for the spare."""
        assert self.take(environment) is None
        await trio.sleep(QUIET + 0.2)
        return self.started[-1]


@pytest.fixture
async def stage(nursery):
    made = []

    async def make(**options):
        stage = Stage(nursery, **options)
        await stage.begin()
        made.append(stage)
        return stage

    yield make
    for each in made:
        if each.root.is_running:
            each.root.stop()


async def test_after_the_first_worker_a_spare_is_started_and_the_next_one_takes_it(stage, autojump_clock):
    play = await stage()
    spare = await play.first()
    assert play.spares.statistics() == SpareCounts(waiting=1, used=0, fresh=1)
    assert play.take() is spare
    await trio.sleep(0.2)
    assert len(play.started) == 2  # it was replaced
    assert play.spares.statistics() == SpareCounts(waiting=1, used=1, fresh=1)
    assert spare.signals == []
    spare.discard()


async def test_a_spare_serves_nobody_who_would_have_been_started_with_anything_else(stage, autojump_clock):
    play = await stage()
    await play.first()
    assert play.spares.take(THERE) is None


async def test_when_it_is_stopped_all_spares_are_ended_and_reaped(stage, autojump_clock):
    play = await stage(limit=2)
    first, second = await play.first(HERE), await play.first(THERE)
    play.root.stop()
    await trio.testing.wait_all_tasks_blocked()
    assert [each.signals for each in (first, second)] == [["TERM"], ["TERM"]]
    assert [each.socket.fileno() for each in (first, second)] == [-1, -1]
    assert play.spares.statistics().waiting == 0
    assert play.spares.take(HERE) is None


async def test_one_that_does_not_end_is_killed(stage, autojump_clock):
    play = await stage()
    play.obedient = False
    spare = await play.first()
    play.root.stop()
    await trio.sleep(END_SECONDS + 0.1)
    assert spare.signals == ["TERM", "KILL"]


async def test_a_worker_that_was_taken_is_left_alone_when_the_spares_end(stage, autojump_clock):
    play = await stage()
    spare = await play.first()
    assert play.take() is spare
    play.root.stop()
    await trio.sleep(1)
    assert spare.signals == []
    spare.discard()


async def test_a_spare_that_dies_is_told_of_with_its_last_words_and_replaced_after_a_pause(
    stage, autojump_clock
):
    play = await stage()
    spare = await play.first()
    spare.say(b"Killed by an operator\n")
    spare.die(Exit(3))
    await trio.testing.wait_all_tasks_blocked()
    (keys,) = play.logged.of("spare_lost")
    assert keys["output"] == "Killed by an operator\n"
    assert keys["pid"] == spare.pid
    assert play.take() is None
    await trio.sleep(FIRST_PAUSE + 0.2)
    assert play.spares.statistics().waiting == 1


async def test_a_spare_that_is_stopped_by_a_signal_is_not_taken_but_killed(stage, autojump_clock):
    play = await stage()
    spare = await play.first()
    spare.fit = False
    assert play.take() is None
    await trio.testing.wait_all_tasks_blocked()
    assert spare.signals == ["KILL"]
    assert play.spares.statistics().waiting == 0


async def test_where_the_system_refuses_a_process_it_is_tried_again_later(stage, autojump_clock):
    play = await stage()
    play.refuse = OSError("no more processes")
    assert play.take() is None
    await trio.sleep(QUIET + 0.2)
    assert [event for event, *_ in play.logged] == ["spare_lost"]
    play.refuse = None
    await trio.sleep(FIRST_PAUSE + 0.2)
    assert play.spares.statistics().waiting == 1


async def test_a_crash_of_who_keeps_them_leaves_none_behind_and_new_ones_come(stage, autojump_clock):
    play = await stage()
    spare = await play.first()
    play.root.kill("spares")
    await trio.sleep(1)
    assert spare.signals == ["TERM"]
    assert play.spares.statistics().waiting == 1
    assert play.take() is play.started[1]
    play.started[1].discard()


# -- what an operator sees of spares and of recycled workers, and how many spares there are


REPOSITORY = "--model-repository=models"


def test_spares_are_counted():
    counts = SpareCounts(waiting=1, used=4, fresh=2)
    lines = Exposition(lambda: once(FAMILIES, counts)).text().splitlines()
    assert "tritium_spare_workers 1" in lines
    assert 'tritium_workers_started_total{spare="true"} 4' in lines
    assert 'tritium_workers_started_total{spare="false"} 2' in lines


def test_recycled_workers_are_counted_by_the_ceiling_that_they_reached():
    statistics = ModelStatistics()
    statistics.recycled["memory"] += 1
    model = ModelSample(name="m", version=3, statistics=statistics)
    lines = Exposition(lambda: model_blocks([model], MetricsSettings(), lambda: 0)).text().splitlines()
    assert 'tritium_workers_recycled_total{ceiling="memory",model="m",version="3"} 1' in lines


def test_there_is_one_spare_unless_the_operator_says_otherwise():
    assert Settings.from_argv([REPOSITORY]).spare_workers == 4
    assert Settings.from_argv([REPOSITORY, "--spare-workers=0"]).spare_workers == 0
    environ = {"TRITIUM_SPARE_WORKERS": "3"}
    assert Settings.from_argv([REPOSITORY], environ).spare_workers == 3


@pytest.mark.parametrize("value", ["-1", "two", "100000"])
def test_a_number_of_spares_that_makes_no_sense_is_refused(value):
    with pytest.raises(SettingsError):
        Settings.from_argv([REPOSITORY, f"--spare-workers={value}"])
