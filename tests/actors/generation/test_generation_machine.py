"""Whole streams, with a true tokenizer: whatever comes in whatever order, each client gets what it should.

The engine says one text to all; how much of it comes when, who reads, leaves or runs out of time, and when
text workers die or get on with their work, is Hypothesis's to choose. A client gets the text that the
tokenizer itself makes of the ids up to its end, or a beginning of it, and each id once, however many engines
and text workers died meanwhile: stop texts are found across the seam. Engine and text worker refuse some of
what is asked, also of what is resumed, and are asked for seeds that not every engine goes on with. At the end
nothing is
left: no block of the engine's cache, no stream in text worker or line, no timer, no journal.
"""

import math

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from actors.generation import answering, generator, text_line
from actors.values.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    Poisoned,
    TritiumError,
    Unavailable,
)
from actors.values.generation.asking import CHAT, TEXT, Ask, Sampling
from actors.values.generation.pieces import Begun, TextPiece, TokenUsage
from tests.actors.generation.conftest import METERED, Slow, World, generated, text_of, used_up
from tests.support.examples import examples
from tests.support.generation_doubles import PagedEngine
from tests.support.llm import spelt
from tests.support.stepped_trio import SteppedTrio
from tests.support.true_texts import TrueTextWorkers, loaded

SAYS = "The lamp was lit, and Brücke the cat slept 🕯. ENDE 鮭 <|end tell e\u0301 <think> no"
STOPS = ("END", "slept 🕯", "la")
BLOCKS = 24
CONTEXT = 200
REFUSED = "the engine takes nothing now"
IDS = loaded().tokenizer.encode(SAYS, add_special_tokens=False).ids
EOS = spelt.END


class Asked:
    """A request, and what the test knows of it."""

    def __init__(self, request, ask, deadline, *, long):
        self.request = request
        self.ask = ask
        self.deadline = deadline
        self.long = long  # its prompt is longer than the context
        self.left = False
        self.failed = False

    @property
    def right(self):
        """The text that it should get, all of its ids given."""
        stops = [(SAYS.index(stop), stop) for stop in self.ask.sampling.stop]
        most = self.ask.sampling.max_tokens
        text = SAYS if most is None else loaded().tokenizer.decode(IDS[:most])
        ends = [at for at, stop in stops if stop in text]
        return text[: min(ends)] if ends else text


class WholeStreams(RuleBasedStateMachine):
    """See the module."""

    asked = Bundle("asked")

    @initialize(seeds=st.booleans())
    def begin(self, seeds):
        # So that a few requests are already many.
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(answering, "UNREAD_PARTS", 2)
        self.patched.setattr(generator, "ENDED_AT_ONCE", 1)
        self.patched.setattr(text_line, "AT_ONCE", 1)
        self.trio = SteppedTrio()
        self.said = {}
        self.deaths = 0  # of engines
        self.refusals = 0
        self.seeds = seeds  # the engine goes on with
        self.all = []
        self.trio.begin(self._live)

    async def _live(self):
        async with trio.open_nursery() as nursery:
            engine = PagedEngine(BLOCKS, context=CONTEXT)
            engine.resumes = ["seeds"] if self.seeds else []
            self.world = World(nursery, engine=engine, texts=TrueTextWorkers(), **METERED)
            await self.world.begin()
            await trio.sleep_forever()

    # -- clients

    @rule(
        target=asked,
        chat=st.booleans(),
        prompts=st.integers(1, 2),
        n=st.integers(1, 3),
        stop=st.lists(st.sampled_from(STOPS), max_size=2, unique=True),
        most=st.sampled_from([None, None, 1, 7, len(IDS)]),
        deadline=st.sampled_from([math.inf, math.inf, math.inf, 2.0, 5.0]),
        reads=st.booleans(),
        chances=st.booleans(),
        seed=st.sampled_from([None, None, 7]),
        streams=st.sampled_from([True, True, False]),
        long=st.sampled_from([False] * 9 + [True]),
        at_once=st.sampled_from([True, True, True, False]),
    )
    def asks(self, chat, prompts, n, stop, most, deadline, reads, chances, seed, streams, long, at_once):
        """A client asks. The text worker may get on with it at once."""
        heat = None if seed is None else 0.8
        sampling = Sampling(
            n=n,
            stop=tuple(stop),
            max_tokens=most,
            logprobs=0 if chances else None,
            seed=seed,
            temperature=heat,
        )
        said = "tell" * (CONTEXT if long else 1)
        if chat:
            ask = Ask(CHAT, messages=[{"role": "user", "content": said}], sampling=sampling)
        else:
            ask = Ask(TEXT, prompts=[said] * prompts, sampling=sampling)
        # No two are alike: what is like a poisonous one is refused.
        ask = ask._replace(return_token_ids=True, stream=streams, cache_salt=str(len(self.all)))
        until = self.trio.do(trio.current_time) + deadline
        port = Slow(at_once=reads)
        request = self.trio.do(lambda: self.world.submit(ask, deadline=until, reply=port))
        made = Asked(request, ask, deadline, long=long)
        self.all.append(made)
        if at_once:
            self._get_on()
        return made

    def _get_on(self):
        while self.world.workers.busy:
            self.trio.do(self.world.workers.made[-1].works)

    @rule(each=consumes(asked))
    def leaves(self, each):
        """A client goes away."""
        if not each.request.reply.final:
            each.left = True
            self.trio.do(self.world.state.cancel, each.request)

    @rule(each=asked, count=st.integers(1, 9))
    def reads(self, each, count):
        """A slow client reads some parts."""
        self.trio.do(each.request.reply.reads, count)

    # -- engine

    @precondition(lambda self: self.world.engine.held)
    @rule(which=st.integers(0, 30), count=st.integers(1, 9))
    def says(self, which, count):
        """The engine goes on with one of its requests."""
        held = self.world.engine.held
        self.trio.do(self._says, held[which % len(held)], count)

    @precondition(lambda self: self.world.engine.held)
    @rule(count=st.integers(1, 3))
    def steps(self, count):
        """It goes on with all of them."""
        for run in list(self.world.engine.held):
            if run in self.world.engine.held:
                self.trio.do(self._says, run, count)

    def _says(self, run, count):
        sampling = self.world.engine.sampling(run)
        before = sampling.get("generated", 0)
        at = self.said.get(run, before)
        most = before + sampling["max_tokens"]
        end = min(at + count, len(IDS), most)
        ids = IDS[at:end]
        finish = "length" if end == most else "stop" if end == len(IDS) else ""
        if finish == "stop":
            ids = [*ids, EOS]
        chances = [[[token, -0.5, 1]] for token in ids] if "logprobs" in sampling else None
        self.said[run] = end
        self.world.engine.gives(run, ids, finish=finish, chances=chances)

    @precondition(lambda self: self.world.engine.held)
    @rule(which=st.integers(0, 30))
    def fails(self, which):
        """The engine's instance dies under one of its requests."""
        held = self.world.engine.held
        run = held[which % len(held)]
        next(each for each in self.all if each.request is run.reply.parent).failed = True
        self.trio.do(self.world.engine.fails, run, Unavailable("the engine died"))

    @precondition(lambda self: self.world.engine.held)
    @rule(blamed=st.booleans())
    def engine_dies(self, blamed):
        """The engine's instance dies with all its requests, of what one of them may have done."""
        self.deaths += 1
        self.trio.do(lambda: self.world.engine.dies(blamed=blamed))

    @precondition(lambda self: self.world.engine.held and not self._leaves)
    @rule()
    def engine_leaves(self):
        """The engine's instance is to end, and has those that the engine holds now."""
        instance = self.trio.do(self.world.engine.leaves)
        self.trio.do(self.world.nursery.start_soon, self.world.generator.moves.vacate, instance)

    @property
    def _leaves(self):
        instance = self.world.engine.leaving
        return instance is not None and not instance.held.idle

    @precondition(lambda self: self.world.engine.called_off)
    @rule(which=st.integers(0, 30), count=st.integers(0, 3))
    def hears(self, which, count):
        """It hears that one is called off, some tokens later."""
        called_off = self.world.engine.called_off
        run = called_off[which % len(called_off)]
        if count:
            self.trio.do(self._says, run, count)
        if run in self.world.engine.held:
            self.trio.do(self.world.engine.ends, run)

    @rule(refuses=st.sampled_from([True, False, False]))
    def engine_refuses(self, refuses):
        """The engine refuses what it is given, resumed or not, until it takes it again."""
        self.refusals += refuses
        self.world.engine.refusal = Unavailable(REFUSED) if refuses else None

    # -- text workers, and time

    @precondition(lambda self: self.world.workers.busy)
    @rule(times=st.integers(1, 4))
    def works(self, times):
        """The text worker's helpers get on."""
        for _ in range(times):
            self.trio.do(self.world.workers.made[-1].works)

    @precondition(lambda self: not self.world.workers.made[-1].dead)
    @rule(meanwhile=st.integers(0, 9), at_once=st.booleans())
    def dies(self, meanwhile, at_once):
        """The text worker dies. The engine may go on until the next one comes, after a second."""
        self.trio.do(self.world.workers.made[-1].dies)
        if meanwhile and self.world.engine.held:
            self.steps(meanwhile)
        if at_once:
            self.trio.advance(1.0)
            self._get_on()

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0]))
    def passes(self, seconds):
        """Time passes."""
        self.trio.advance(seconds)

    # -- what holds

    @invariant()
    def texts_are_beginnings(self):
        """No client has been told anything that is not its text."""
        for each in getattr(self, "all", ()):
            self._check_beginnings(each)

    @invariant()
    def the_engine_works_for_no_one_who_is_gone(self):
        """Blocks are those of requests that the engine has, and it has none whose client needs no more."""
        if hasattr(self, "world"):
            held = self.world.engine.held
            assert set(self.world.engine.holds) == set(held)
            for run in held:
                if run not in self.world.engine.cancelled:  # else it has not heard of it
                    assert not run.reply.parent.reply.final
                    assert not run.reply.choice.closed

    def _check_beginnings(self, each):
        told = [part for part in generated(each.request) if isinstance(part, TextPiece)]
        for choice in range(each.ask.sampling.n * max(1, len(each.ask.prompts))):
            own = [piece for piece in told if piece.choice == choice]
            text = "".join(piece.text for piece in own)
            assert each.right.startswith(text), (each.right, text)
            ids = [token for piece in own for token in piece.token_ids]
            assert ids == [*IDS, EOS][: len(ids)]
            assert sum(piece.tokens for piece in own) == len(ids)
            if each.ask.sampling.logprobs is not None:
                assert [chances.chosen.token_id for piece in own for chances in piece.chances] == ids
            assert not any(piece.finish for piece in own[:-1])

    def teardown(self):
        """All comes to its end; nothing is left."""
        if hasattr(self, "trio"):
            try:
                self._end()
            finally:
                self.trio.close()
                self.patched.undo()

    def _end(self):
        world = self.world
        world.engine.refusal = None
        for _ in range(200):
            self.trio.advance(1.0)
            self._get_on()
            for run in list(world.engine.called_off):
                self.trio.do(world.engine.ends, run)
            for run in list(world.engine.held):
                if run in world.engine.held:
                    self.trio.do(self._says, run, 5)
            if all(each.request.reply.final for each in self.all) and not world.engine.held:
                break
        for each in self.all:
            self.trio.do(each.request.reply.reads, 10_000)
            self._check_end(each)
        self.trio.advance(1.0)
        assert world.engine.used == 0
        assert len(world.generator.texts) == 0
        assert len(world.workers.made[-1].streams) == 0
        assert not world.workers.busy
        assert world.generator.running == world.generator.waiting == len(world.generator.line) == 0
        assert not any(
            (each.runs, each.queued, each.held) != (0, 0, 0) for each in world.generator.line.loads
        )
        assert not world.generator.is_busy
        assert self.trio.do(lambda: len(world.state.in_flight)) == 0
        assert self.trio.do(lambda: world.generator.sample().running) == 0
        used_up(world, deaths=self.deaths + world.generator.counts.moved)

    def _may_have_lost(self, each, told):
        """Whether a request may have ended with an engine."""
        error = told[-1]
        if isinstance(error, Poisoned):
            return self.deaths > 1
        if "not tried once more" in error.message:
            return self.deaths >= 6
        if error.message == REFUSED:
            return self.refusals
        sent = self.deaths and any(isinstance(part, TextPiece) for part in told)
        if "would follow its seed" in error.message:
            return sent and each.ask.sampling.seed is not None and not self.seeds
        assert "does not go on in another engine" in error.message
        return sent and each.ask.sampling.n * max(1, len(each.ask.prompts)) > 1

    def _check_end(self, each):
        self._check_beginnings(each)
        told = generated(each.request)
        if isinstance(told[-1], TritiumError):
            assert (
                (isinstance(told[-1], Cancelled) and each.left)
                or (isinstance(told[-1], DeadlineExceeded) and each.deadline < math.inf)
                or (isinstance(told[-1], InvalidArgument) and each.long)
                or each.failed
                or self._may_have_lost(each, told)
            )
            return
        assert not each.long
        prompts = sorted(part.prompt for part in told if isinstance(part, Begun))
        assert prompts == [*range(max(1, len(each.ask.prompts)))]
        usage = [part for part in told if isinstance(part, TokenUsage)]
        assert usage == [told[-1]]
        pieces = [part for part in told if isinstance(part, TextPiece)]
        assert told[-1].completion == sum(piece.tokens for piece in pieces)
        for choice in range(each.ask.sampling.n * len(prompts)):
            (end,) = [piece for piece in pieces if piece.choice == choice and piece.finish]
            if end.reason == "deadline":
                assert each.deadline < math.inf
                continue
            assert text_of(each.request, choice) == each.right


TestWholeStreams = WholeStreams.TestCase
TestWholeStreams.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
