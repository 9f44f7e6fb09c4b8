"""The janitor finishes what it began: after a crash its next life removes the cause, and the rest goes on."""

# ruff: noqa: ASYNC110  # a thread does the work, and has no event to wait for

import threading
from pathlib import Path

import pytest
import trio

from actors.seams import faults
from actors.supervision.supervisor import Supervisor
from engine.repository.copies import TRIES, Copy, Janitor, Removal
from tests.support.logged import Logged


class Directories:
    """Directories made for models. `bad` says how often the removal of a directory fails."""

    def __init__(self):
        self.log = Logged()
        self.janitor = Janitor(self.log)
        self.root = Supervisor([self.janitor.spec()])
        self.bad = {}
        self.removed = []

    def copy(self, name):
        """Return a copy that has one user."""
        return Copy(Removal(Path("/copies") / name, lambda: self._remove(name)), self.janitor)

    def _remove(self, name):
        if self.bad.get(name, 0):
            self.bad[name] -= 1
            raise RuntimeError(f"a bug in the removal of {name}")
        self.removed.append(name)

    async def until(self, condition):
        """Wait for the condition; a thread works, so the clock is the real one."""
        with trio.fail_after(20):
            while not condition():
                await trio.sleep(0.01)


@pytest.fixture
async def directories(nursery):
    made = Directories()
    await nursery.start(made.root.serve)
    yield made
    nursery.cancel_scope.cancel()


def crashing_once():
    crashes = iter([True])

    def crash():
        if next(crashes, False):
            raise ValueError("a bug of the janitor's")

    return crash


async def test_a_copy_over_which_the_janitor_crashes_is_removed_all_the_same(directories):
    points = faults.Points()
    with faults.given(points):
        points.arm("janitor.remove", crashing_once())
        directories.copy("m").let_go()
        directories.copy("n").let_go()
        await directories.until(lambda: len(directories.removed) == 2)
    assert directories.removed == ["n", "m"]  # the others go first
    (janitor,) = directories.root.tree().children
    assert janitor.restarts == 1
    assert directories.log == []


async def test_a_copy_that_can_not_be_removed_keeps_the_janitor_from_no_other_and_is_told_of(directories):
    directories.bad["bad"] = 100
    directories.copy("bad").let_go()
    for number in range(5):
        directories.copy(f"m{number}").let_go()
    await directories.until(lambda: directories.log.of("copy_abandoned"))
    assert sorted(directories.removed) == [f"m{number}" for number in range(5)]
    assert directories.bad["bad"] == 100 - TRIES
    (keys,) = directories.log.of("copy_abandoned")
    assert keys["path"] == "/copies/bad"
    assert keys["tries"] == TRIES
    directories.copy("later").let_go()
    await directories.until(lambda: "later" in directories.removed)


async def test_a_removal_that_fails_for_a_while_is_done_in_the_end(directories):
    directories.bad["m"] = TRIES - 1
    directories.copy("m").let_go()
    await directories.until(lambda: directories.removed == ["m"])
    assert directories.log == []


def test_what_is_in_use_to_the_end_is_removed_then():
    directories = Directories()
    for name in ("m", "n"):
        directories.copy(name)
    directories.janitor.finish()
    assert sorted(directories.removed) == ["m", "n"]


def test_what_is_left_at_the_end_is_removed_whatever_goes_wrong_with_some_of_it():
    directories = Directories()
    directories.bad["bad"] = 1
    for name in ("m", "bad", "n"):
        directories.copy(name).let_go()
    directories.janitor.finish()
    assert sorted(directories.removed) == ["m", "n"]
    (keys,) = directories.log.of("copy_abandoned")
    assert keys["path"] == "/copies/bad"


def test_what_is_left_at_the_end_does_not_wait_for_each_other():
    # Each may wait for a repository agent that hangs, and the server is to end in time.
    directories = Directories()
    together = threading.Barrier(3, timeout=20)
    for name in ("k", "m", "n"):
        Copy(Removal(Path(name), lambda: directories.removed.append(together.wait())), directories.janitor)
    directories.janitor.finish()
    assert sorted(directories.removed) == [0, 1, 2]
    assert directories.log == []
