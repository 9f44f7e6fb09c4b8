"""The janitor finishes what it began: after a crash its next life removes the cause, and the rest goes on."""

# ruff: noqa: ASYNC110  # a thread does the work, and has no event to wait for

import threading
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.seams import faults
from actors.supervision.supervisor import Supervisor
from engine.repository.copies import AT_ONCE, TRIES, Copy, Janitor, Removal
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
    assert sorted(directories.removed) == ["m", "n"]
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


async def test_a_removal_that_hangs_holds_up_no_other(directories):
    """As one does that waits for a repository agent."""
    go_on = threading.Event()

    def hang():
        go_on.wait(20)

    hanging = [Removal(Path(f"/copies/{number}"), hang) for number in range(AT_ONCE - 1)]
    for each in hanging:
        directories.janitor.remove_later(each)
    for number in range(20):
        directories.copy(f"m{number}").let_go()
    try:
        await directories.until(lambda: len(directories.removed) == 20)
    finally:
        go_on.set()


async def test_only_so_many_removals_run_at_once(directories):
    lock, running, most = threading.Lock(), [0], [0]

    def count():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.acquire(timeout=20)
        with lock:
            running[0] -= 1

    together = threading.Semaphore(0)
    for number in range(3 * AT_ONCE):
        directories.janitor.remove_later(Removal(Path(f"/copies/{number}"), count))
    await directories.until(lambda: running == [AT_ONCE])
    together.release(3 * AT_ONCE)
    await directories.until(lambda: running == [0] and not directories.janitor.left)
    assert most == [AT_ONCE]


async def test_what_is_to_be_done_with_one_directory_is_done_in_order(directories):
    """That an agent is told of the load comes before that it is told of the end."""
    done = []
    told_first = threading.Event()

    def tell(applied):
        told_first.wait(20)
        done.append(applied)

    copy = Copy(Removal(Path("/copies/m"), lambda: done.append("removed")), directories.janitor, tell)
    copy.settled(applied=True)
    copy.let_go()
    directories.copy("other").let_go()
    await directories.until(lambda: directories.removed == ["other"])
    assert done == []
    told_first.set()
    await directories.until(lambda: len(done) == 2)
    assert done == [True, "removed"]


def test_what_is_left_for_one_directory_at_the_end_is_done_in_order():
    directories = Directories()
    done: list[int] = []
    for number in range(50):
        directories.janitor.remove_later(Removal(Path("/copies/m"), partial(done.append, number)))
    directories.janitor.finish()
    assert done == list(range(50))


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
