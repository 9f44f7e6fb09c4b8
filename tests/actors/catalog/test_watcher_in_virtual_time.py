"""The watcher: what it tells the catalog, the log and the tree, and what does not stop it."""

import math

import pytest
import trio

from actors.catalog.settling import Change, Changed, Complete, Incomplete, Left, Listed, NoAnswer, Seen
from actors.catalog.watcher import Watcher
from actors.supervision.spec import Intensity
from actors.supervision.supervisor import Supervisor
from actors.values.specs import ModelKey
from tests.support.doubles import Double
from tests.support.logged import Logged
from tests.support.trees import serving, settled

INTERVAL = 15.0
M = ModelKey("m")


class FakeNews(Double):
    """The way to the catalog: notes what was sent, and when. `Listed` is counted."""

    def __init__(self):
        self.told = []
        self.listed = 0
        self.crashes_at = None
        self.takes_news = trio.Event()
        self.takes_news.set()

    async def send(self, news):
        await self.takes_news.wait()
        match news:
            case Changed(key, change):
                what = "look_at" if change is Change.FIRST_SEEN else "changed"
            case Left(key):
                what = "gone"
            case Listed():
                self.listed += 1
                return
        if key == self.crashes_at:
            self.crashes_at = None
            raise RuntimeError("it is broken")
        self.told.append((what, str(key), trio.current_time()))


class World:
    """One repository, a watcher of it, and all that it tells."""

    def __init__(self, **options):
        self.models = {"m": Seen(1)}
        self.unavailable = None
        self.takes = 0.0
        self.error = None
        self.looks = 0
        self.looking = 0
        self.most_looking = 0
        self.news = FakeNews()
        self.log = Logged()
        self.watcher = Watcher(
            self.observe,
            self.news,
            interval=INTERVAL,
            log=self.log,
            wall_clock=trio.current_time,
            **options,
        )

    async def observe(self):
        self.looks += 1
        self.looking += 1
        self.most_looking = max(self.most_looking, self.looking)
        try:
            seen = {"/models": dict(self.models) if self.unavailable is None else self.unavailable}
            await trio.sleep(self.takes)
            if self.error is not None:
                raise self.error
            return seen
        finally:
            self.looking -= 1

    def serving(self):
        self.root = Supervisor([self.watcher.spec()], intensity=Intensity(0, 1.0))
        return serving(self.root)

    async def polls(self, number):
        """Let `number` polls pass; the first was made when the watcher had started."""
        await trio.sleep(number * INTERVAL)
        await settled()

    @property
    def told(self):
        return [(what, name) for what, name, _ in self.news.told]

    @property
    def info(self):
        return self.root.tree().children[0].info

    def logged(self):
        taken, self.log[:] = list(self.log), []
        return taken


@pytest.fixture
def world():
    return World()


async def test_everything_is_looked_at_once_after_the_start_and_is_no_news(world, autojump_clock):
    async with world.serving():
        await world.polls(5)
        assert world.news.told == [("look_at", "m", INTERVAL)]
        assert world.looks == 6
        assert world.logged() == []


@pytest.mark.parametrize(
    ("models", "soon", "what", "name", "change"),
    [
        ({"m": Seen(2)}, False, "changed", "m", "modified"),
        ({"m": Seen(1), "n": Seen(1, Complete())}, True, "changed", "n", "added"),
        ({}, False, "gone", "m", "removed"),
    ],
    ids=["when it has come to rest", "a complete one at the first look", "a model that has gone"],
)
async def test_a_change_is_told_and_logged_once(world, autojump_clock, models, soon, what, name, change):
    async with world.serving():
        await world.polls(2)
        world.models = models
        await world.polls(1)
        assert world.told[1:] == [(what, name)] * soon
        await world.polls(4)
        assert world.told[1:] == [(what, name)]
        assert world.logged() == [("repository_changed", "info", {"model": name, "change": change})]


async def test_the_tree_shows_what_is_waited_for_since_when_and_why(world, autojump_clock):
    async with world.serving():
        await world.polls(2)
        assert world.info == {
            "poll_seconds": INTERVAL,
            "looked": "1970-01-01T00:00:30+00:00",
            "waiting": [],
            "unavailable": {},
        }
        world.models = {"m": Seen(2, Incomplete(("'1/model.onnx' is missing",)))}
        await world.polls(3)
        assert world.info["waiting"] == [
            "m in /models since 1970-01-01T00:00:45+00:00: '1/model.onnx' is missing"
        ]
        assert world.logged() == [
            (
                "repository_changed",
                "warning",
                {
                    "model": "m",
                    "repository": "/models",
                    "change": "unfinished",
                    "since": "1970-01-01T00:00:45+00:00",
                    "reasons": ["'1/model.onnx' is missing"],
                },
            )
        ]
        world.models = {"m": Seen(3, Complete())}
        await world.polls(1)
        assert world.info["waiting"] == []


async def test_the_tree_shows_a_bounded_number_of_models(world, autojump_clock):
    async with world.serving():
        await world.polls(2)
        world.models = {f"m{number}": Seen(1) for number in range(200)}
        await world.polls(1)
        assert len(world.info["waiting"]) == 51
        assert world.info["waiting"][0].endswith(": to be seen unchanged")
        assert world.info["waiting"][-1] == "and 151 more"


async def test_a_repository_that_is_put_in_anothers_place_is_no_error(world, autojump_clock):
    async with world.serving():
        await world.polls(2)
        world.unavailable = NoAnswer("it is another directory than before")
        await world.polls(1)
        world.unavailable = None
        await world.polls(3)
        assert [(event, level) for event, level, _ in world.logged()] == [
            ("repository_unavailable", "warning"),
            ("repository_changed", "info"),
        ]


async def test_a_repository_that_does_not_answer_unloads_nothing_and_is_an_error_once_that_lasts(
    world, autojump_clock
):
    async with world.serving():
        await world.polls(2)
        world.unavailable = NoAnswer("it is not mounted")
        await world.polls(10)
        assert world.info["unavailable"] == {"/models": "since 1970-01-01T00:00:45+00:00: it is not mounted"}
        world.unavailable = None
        await world.polls(10)
        assert world.info["unavailable"] == {}
        assert len(world.told) == 1
        lost = {
            "repository": "/models",
            "reason": "it is not mounted",
            "since": "1970-01-01T00:00:45+00:00",
        }
        assert world.logged() == [
            ("repository_unavailable", "warning", lost),
            ("repository_unavailable", "error", lost),
            (
                "repository_changed",
                "info",
                {"repository": "/models", "change": "available", "seconds": 10 * INTERVAL},
            ),
        ]


async def test_a_look_that_takes_long_is_waited_for_and_shown(world, autojump_clock):
    async with world.serving():
        world.takes = 100.0
        await world.polls(3)
        assert (world.looks, world.most_looking) == (2, 1)
        assert world.info["looking_since"] == "1970-01-01T00:00:15+00:00"
        await world.polls(6)
        assert world.info.get("looking_since") in ("1970-01-01T00:02:10+00:00", None)
        assert world.most_looking == 1


async def test_a_look_that_hangs_for_ever_does_not_hold_up_the_end(world, autojump_clock):
    world.takes = math.inf
    async with world.serving():
        await world.polls(1000)
        assert (world.looks, world.looking) == (1, 1)
        before = trio.current_time()
    assert trio.current_time() == before
    assert world.looking == 0


async def test_a_look_that_raises_is_tried_again_for_ever_and_stops_nobody(world, autojump_clock):
    async with world.serving() as tree:
        await world.polls(2)
        world.error = OSError("a disk is broken")
        await world.polls(1000)
        assert {"restarts_exhausted", "child_exited"} <= set(tree.names("watcher"))
        assert world.looks > 100
        world.error = None
        world.models = {"m": Seen(2)}
        await world.polls(10)
        tree.check({"watcher": "running"})
        assert world.told[1:] == [("changed", "m")]


async def test_what_it_knows_outlives_a_crash(world, autojump_clock):
    async with world.serving():
        await world.polls(2)
        world.models = {"m": Seen(2)}
        await world.polls(1)
        world.root.kill("watcher")
        await world.polls(5)
        assert world.told == [("look_at", "m"), ("changed", "m")]


async def test_a_crash_while_telling_loses_nothing_of_the_rest(world, autojump_clock):
    world.models = {"a": Seen(1), "b": Seen(1), "c": Seen(1)}
    world.news.crashes_at = ModelKey("b")
    async with world.serving():
        await world.polls(5)
        assert world.told == [("look_at", "a"), ("look_at", "b"), ("look_at", "c")]


async def test_it_waits_while_the_catalog_takes_no_news_and_then_tells_all(world, autojump_clock):
    world.news.takes_news = trio.Event()
    async with world.serving():
        await world.polls(5)
        assert (world.looks, world.told, world.news.listed) == (2, [], 0)
        world.news.takes_news.set()
        await settled()
        assert (world.told, world.news.listed) == ([("look_at", "m")], 1)
        await world.polls(2)
        assert world.looks == 4


async def test_a_look_that_came_to_nothing_is_asked_for_again(world, autojump_clock):
    async with world.serving():
        await world.polls(2)
        world.watcher.look_again(M, changed=False)
        await world.polls(3)
        assert world.told == [("look_at", "m"), ("look_at", "m")]


async def test_with_namespaces_a_model_is_known_by_its_repository(autojump_clock):
    world = World(namespacing=True)
    async with world.serving():
        await world.polls(2)
        assert world.told == [("look_at", "/models::m")]


def test_an_interval_is_positive():
    with pytest.raises(ValueError, match="interval is 0 s"):
        Watcher(World().observe, FakeNews(), interval=0, log=Logged(), wall_clock=lambda: 0)
