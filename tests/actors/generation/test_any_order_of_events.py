"""Whatever happens in whatever order, a client's text is exactly what it should be, or a beginning of it.

Engine and clients, deaths of text workers and of engines, times that pass: Hypothesis chooses. The right text
follows from what the engine was told to say, and from the stop text.
"""

import math

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.generation import answering
from actors.values.errors import Cancelled, DeadlineExceeded, Poisoned, TritiumError, Unavailable
from actors.values.generation.asking import TEXT, Ask, Sampling
from actors.values.generation.pieces import TextPiece, TokenUsage
from tests.actors.generation.conftest import METERED, Slow, World, generated, text_of, used_up
from tests.support.examples import examples

SAYS = "one two END three 🕯 four five six"
STOP = "E"  # of one character: the stand-in for text workers holds nothing back
STOPPED = SAYS.index(STOP)

asked = st.fixed_dictionaries(
    {
        "n": st.integers(1, 3),
        "stop": st.sampled_from([(), (STOP,)]),
        "deadline": st.sampled_from([math.inf, math.inf, 3.0, 9.0]),
        "reads": st.booleans(),
        "streams": st.booleans(),
    }
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("says"), st.integers(0, 30), st.integers(1, 2)),
        st.tuples(st.just("says"), st.integers(0, 30), st.integers(1, 12)),
        st.tuples(st.just("passes"), st.sampled_from([0.0, 0.5, 2.0]), st.just(0)),
        st.tuples(st.just("leaves"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("reads"), st.integers(0, 5), st.integers(1, 9)),
        st.tuples(st.just("dies"), st.just(0), st.just(0)),
        st.tuples(st.just("fails"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("engine"), st.just(0), st.integers(0, 1)),
        st.tuples(st.just("vacates"), st.just(0), st.just(0)),
        st.tuples(st.just("hears"), st.integers(0, 30), st.integers(0, 3)),
    ),
    max_size=60,
)


class Story:
    """One world, its requests, and how far each run of the engine has come."""

    def __init__(self, world, asks):
        self.world = world
        self.asks = asks
        self.said = {}  # by each run of the engine
        self.deaths = 0
        self.left = set()
        self.failed = set()
        self.requests = [
            world.submit(
                Ask(
                    TEXT,
                    prompts=("hello",),
                    sampling=Sampling(n=each["n"], stop=each["stop"]),
                    stream=each["streams"],
                ),
                deadline=world.start + each["deadline"],
                reply=Slow(at_once=each["reads"]),
                tenant="ab"[number % 2],
            )
            for number, each in enumerate(asks)
        ]

    async def happens(self, kind, which, how):
        held = self.world.engine.held
        if kind == "says" and held:
            await self.says(held[which % len(held)], how)
        elif kind == "fails" and held:
            run = held[which % len(held)]
            self.failed.add(self.requests.index(run.reply.parent))
            self.world.engine.fails(run, Unavailable("the engine died"))
        elif kind == "engine":
            self.deaths += 1
            self.world.engine.dies(blamed=bool(how))
        elif kind in ("vacates", "hears"):
            await self.moves(kind, which, how)
        elif kind == "passes":
            await trio.sleep(which)
        elif kind == "dies":
            self.world.workers.made[-1].dies()
        elif kind in ("leaves", "reads"):
            number = which % len(self.requests)
            if kind == "reads":
                self.requests[number].reply.reads(how)
            elif not self.requests[number].reply.final:
                self.left.add(number)
                self.world.state.cancel(self.requests[number])

    async def moves(self, kind, which, how):
        engine, called_off = self.world.engine, self.world.engine.called_off
        if kind == "vacates" and (engine.leaving is None or engine.leaving.held.idle):
            self.world.nursery.start_soon(self.world.generator.moves.vacate, engine.leaves())
        elif kind == "hears" and called_off:
            run = called_off[which % len(called_off)]
            if how:
                await self.says(run, how)
            if run in engine.held:
                engine.ends(run)

    async def says(self, run, count):
        at = len(self.world.engine.prompt(run)) - len("hello") + self.said.get(run, 0)
        text = SAYS[at : at + count]
        self.said[run] = self.said.get(run, 0) + len(text)
        self.world.engine.says(run, text, finish="stop" if at + count >= len(SAYS) else "")

    async def ends(self):
        """The engine says all that it has to say, and all read all."""
        while True:
            await self.world.settled_after(2.0)
            if not self.world.engine.held:
                break
            for run in list(self.world.engine.called_off):
                self.world.engine.ends(run)
            for run in list(self.world.engine.held):
                if run in self.world.engine.held:
                    await self.says(run, len(SAYS))
        for request in self.requests:
            request.reply.reads(10_000)
        await self.world.settled()

    def check(self):
        for number, (asked, request) in enumerate(zip(self.asks, self.requests, strict=True)):
            assert request.reply.final
            self.check_one(number, asked, request)
        world = self.world
        assert len(world.generator.texts) == 0
        assert world.engine.held == []
        assert world.generator.running == world.generator.waiting == len(world.generator.line) == 0
        assert not any(
            (each.runs, each.queued, each.held) != (0, 0, 0) for each in world.generator.line.loads
        )
        assert world.workers.made[-1].streams == {}
        used_up(world, deaths=self.deaths + world.generator.counts.moved)

    def may_have_lost(self, asked, told):
        """Whether a request may have ended with an engine."""
        error = told[-1]
        if isinstance(error, Poisoned):
            return self.deaths > 1
        if "not tried once more" in error.message:
            return self.deaths >= 6
        assert "does not go on in another engine" in error.message
        return self.deaths and asked["n"] > 1 and any(isinstance(each, TextPiece) for each in told)

    def check_one(self, number, asked, request):
        told = generated(request)
        right = SAYS[:STOPPED] if asked["stop"] else SAYS
        ends = {each.choice: each for each in told if isinstance(each, TextPiece) and each.finish}
        for choice in range(asked["n"]):
            text = text_of(request, choice)
            assert right.startswith(text)
            if choice in ends and ends[choice].reason != "deadline":
                assert text == right
        if isinstance(told[-1], TritiumError):
            assert (
                (isinstance(told[-1], Cancelled) and number in self.left)
                or (isinstance(told[-1], DeadlineExceeded) and asked["deadline"] < math.inf)
                or number in self.failed
                or self.may_have_lost(asked, told)
            )
            return
        assert set(ends) == set(range(asked["n"]))
        counts = [
            sum(each.tokens for each in told if isinstance(each, TextPiece) and each.choice == choice)
            for choice in range(asked["n"])
        ]
        assert told[-1] == TokenUsage(5, sum(counts))
        moved = self.world.generator.counts.moved
        assert all(each.attempts <= 1 + self.deaths + moved for each in ends.values())
        assert max(counts) <= len(SAYS)
        if not asked["stop"]:
            assert counts == [len(text_of(request, choice)) for choice in range(asked["n"])]


@pytest.fixture(scope="module")
def impatient():
    """Have parts joined as soon as a client has left a few unread."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(answering, "UNREAD_PARTS", 2)
        yield


@settings(max_examples=examples(300))
@given(asks=st.lists(asked, min_size=1, max_size=4), events=events)
@pytest.mark.usefixtures("impatient")
def test_each_text_is_the_right_one_or_its_beginning(asks, events):
    async def live():
        async with trio.open_nursery() as nursery:
            world = World(nursery, room=5, **METERED)
            world.engine.told = {"cache": {"block_size": 4, "blocks": 30}, "step_tokens": 3}
            await world.begin()
            story = Story(world, asks)
            for event in events:
                await story.happens(*event)
                await world.settled()
            await story.ends()
            story.check()
            nursery.cancel_scope.cancel()

    trio.run(live, clock=MockClock(autojump_threshold=0))
