"""One look at all repositories, with real threads and a real clock: events, not times, hold up sources."""

import threading
from contextlib import contextmanager

import pytest
import trio

from actors.catalog.settling import Complete, NoAnswer, Seen
from engine.repository.local import LocalSource
from engine.repository.observation import Observer, view
from engine.repository.source import SourceUnavailable, Stamp
from tests.support.doubles import Double

ONE = Stamp((("config.pbtxt", 1, "1"),))
LONG = 30.0


class FakeSource(Double):
    """A source with one model, which can be held up."""

    def __init__(self, uri="s3://bucket", *, error=None):
        self.uri = uri
        self.error = error
        self.looks = 0
        self.at_once = 0
        self.most_at_once = 0
        self._go = threading.Event()
        self._go.set()
        self.held = threading.Event()

    def names(self):
        self.looks += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            self.held.set()
            assert self._go.wait(LONG)
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error
        return ["m", "vanished"]

    def stamp(self, name):
        return ONE if name == "m" else None

    @contextmanager
    def hanging(self):
        self._go.clear()
        self.held.clear()
        try:
            yield
        finally:
            self._go.set()


SEEN = {"m": Seen(ONE)}


@pytest.fixture
def local(tmp_path):
    (tmp_path / "a" / "1").mkdir(parents=True)
    (tmp_path / "a" / "_SUCCESS").write_text("")
    return LocalSource(tmp_path)


def test_a_source_is_seen_with_its_stamps():
    assert view(FakeSource()) == SEEN


def test_a_local_source_says_what_is_complete(local):
    assert view(local) == {"a": Seen(local.stamp("a"), Complete())}


def test_a_source_that_cannot_be_read_is_unavailable():
    assert view(FakeSource(error=SourceUnavailable("no network"))) == NoAnswer("no network")


async def eventually(observer, uri, expected):
    """Observe until the source at `uri` is as expected: a thread may be slow."""
    with trio.fail_after(LONG):
        while True:
            observation = await observer()
            if uri in observation:
                assert observation[uri] == expected
                return
            await trio.sleep(0.001)


async def test_an_observer_looks_at_all_of_them(local):
    remote = FakeSource()
    observer = Observer([local, remote], patience=LONG)
    assert await observer() == {local.uri: view(local), remote.uri: SEEN}
    assert await observer() == {local.uri: view(local), remote.uri: SEEN}
    assert remote.looks == 2


async def test_no_sources_are_no_news():
    assert await Observer([])() == {}


async def test_a_source_that_hangs_holds_up_no_other_and_costs_one_thread():
    quick, hung = FakeSource("quick"), FakeSource("hung")
    observer = Observer([quick, hung], patience=0.02)
    with hung.hanging():
        for _ in range(3):
            await eventually(observer, "quick", SEEN)
            assert "hung" not in await observer()
    await eventually(observer, "hung", SEEN)
    await eventually(observer, "hung", SEEN)
    assert (hung.looks, hung.most_at_once) == (2, 1)


async def test_who_asked_may_leave_and_another_ask_again():
    hung = FakeSource("hung")
    observer = Observer([hung], patience=LONG)
    with hung.hanging():
        with trio.move_on_after(0.02) as left:
            await observer()
        assert left.cancelled_caught
        assert await trio.to_thread.run_sync(hung.held.wait, LONG)
        for _ in range(3):
            assert await observer() == {}
    await eventually(observer, "hung", SEEN)
    assert (hung.looks, hung.most_at_once) == (1, 1)


async def test_a_source_without_a_sign_of_life_does_not_answer():
    now = [0.0]
    hung = FakeSource("hung")
    observer = Observer([hung], patience=0.02, hung_after=60.0, clock=lambda: now[0])
    with hung.hanging():
        assert await observer() == {}
        assert await trio.to_thread.run_sync(hung.held.wait, LONG)
        now[0] = 59.0
        assert await observer() == {}
        now[0] = 61.0
        assert await observer() == {"hung": NoAnswer("hung does not answer")}
        now[0] = 0.0
    await eventually(observer, "hung", SEEN)


async def test_an_error_that_nobody_expected_is_one_sources_alone():
    quick, broken = FakeSource("quick"), FakeSource("broken", error=KeyError("bucket"))
    observer = Observer([broken, quick], patience=LONG)
    for _ in range(2):
        assert await observer() == {
            "quick": SEEN,
            "broken": NoAnswer("broken can't be read: KeyError: 'bucket'"),
        }
