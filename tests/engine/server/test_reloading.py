"""Files are read again when their content changed and they are at rest, and when the operator says so."""

import os

import pytest
import trio

from actors.seams import threads
from actors.seams.bell import Bell
from actors.supervision.supervisor import Supervisor
from chaos.simulation.world.virtual import InlineThreads
from engine.server.reloading import PERIOD, Followed, Follower, NotReloaded, stamp_of
from tests.support.logged import Logged


class Greeting(Followed[str]):
    """A file with a greeting in it; one without is refused."""

    name = "greeting"

    def __init__(self, path):
        self.files = (str(path),)
        self.stamp = stamp_of(self.files)
        self.reads = 0
        self.greeting = self.read()

    def read(self):
        self.reads += 1
        try:
            with open(self.files[0]) as file:
                text = file.read()
        except OSError as error:
            raise NotReloaded(f"{self.files[0]}: {error.strerror}") from error
        if not text:
            raise NotReloaded(f"{self.files[0]}: line 1: a greeting is missing; for example: hello")
        return text

    def adopt(self, found):
        self.greeting = found
        return {"greeting": found}


class Following:
    def __init__(self, path):
        self.path = path
        self.greeting = Greeting(path)
        self.log = Logged()
        self.asked = Bell()

    async def looks(self, count):
        """Let so many looks at the file pass, in virtual time."""
        await trio.sleep((count + 0.5) * PERIOD)

    @property
    def told(self):
        return [(name, keys.get("error") or keys.get("greeting")) for name, _, keys in self.log]


@pytest.fixture
async def following(tmp_path, nursery):
    threads.give(InlineThreads(1))
    path = tmp_path / "greeting"
    path.write_text("hello")
    following = Following(path)
    supervisor = Supervisor([Follower(following.greeting, following.asked, following.log).spec()])
    await nursery.start(supervisor.serve)
    yield following
    nursery.cancel_scope.cancel()


async def test_a_file_that_changed_is_read_once(following, autojump_clock):
    following.path.write_text("good evening")
    await following.looks(5)
    assert following.greeting.greeting == "good evening"
    assert following.told == [("files_reloaded", "good evening")]


async def test_a_file_that_is_exchanged_for_another_is_noticed(following, tmp_path, autojump_clock):
    (tmp_path / "other").write_text("salut")
    os.replace(tmp_path / "other", following.path)
    await following.looks(3)
    assert following.greeting.greeting == "salut"


async def test_a_file_that_is_still_being_written_is_left_alone(following, autojump_clock):
    for length in range(1, 6):
        following.path.write_text("bonsoir"[:length])
        await following.looks(0.5)
    assert following.told == []
    await following.looks(2)
    assert following.told == [("files_reloaded", "bonso")]


async def test_the_same_content_written_again_is_not_read(following, autojump_clock):
    following.path.write_text("hello")
    os.utime(following.path, (0, 0))
    await following.looks(5)
    assert (following.told, following.greeting.reads) == ([], 1)


async def test_a_file_that_cannot_be_used_leaves_what_was_read_and_is_complained_of_once(
    following, autojump_clock
):
    following.path.write_text("")
    await following.looks(5)
    assert following.greeting.greeting == "hello"
    complaint = f"{following.path}: line 1: a greeting is missing; for example: hello"
    assert following.told == [("reload_failed", complaint)]
    assert [level for _, level, _ in following.log] == ["error"]
    following.path.write_text("hello again")
    await following.looks(3)
    assert following.greeting.greeting == "hello again"


async def test_a_file_that_comes_back_as_it_was_is_told_after_a_complaint(following, autojump_clock):
    following.path.unlink()
    await following.looks(3)
    assert following.told == [("reload_failed", f"{following.path}: No such file or directory")]
    following.path.write_text("hello")
    await following.looks(3)
    assert following.told[1:] == [("files_reloaded", "hello")]


async def test_the_operator_has_a_file_read_at_once_whether_it_changed_or_not(following, autojump_clock):
    following.asked.ring()
    await following.looks(0)
    assert following.told == [("files_reloaded", "hello")]
    following.path.write_text("servus")
    following.asked.ring()
    await following.looks(0)
    assert following.told[1:] == [("files_reloaded", "servus")]
    await following.looks(5)
    assert following.greeting.reads == 3
