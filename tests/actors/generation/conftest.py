"""A language model's version around an engine on cue and a text worker of single characters."""

import math
from typing import Any

import pytest
import trio
import trio.testing

from actors.generation import generator, text_actor
from actors.generation.generator import Generator
from actors.generation.text_actor import TextWorkerHangs
from actors.generation.texts import TextWorkerDied
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.supervision.context import Stopping
from actors.values.errors import TritiumError
from actors.values.generation.asking import CHAT, TEXT, Ask, GenerationRequest, Sampling
from actors.values.generation.pieces import TextPiece, TokenUsage
from actors.values.specs import Fairness, LanguageServing, Slo
from actors.wire.frames import FrameError
from tests.support.generation_doubles import FakeEngine, FakeTextWorkers
from tests.support.model_doubles import Context, make_spec
from tests.support.ports import Port


class Reading(Port):
    """A port that says whether the last part has come."""

    final = False

    def put(self, part, *, final):
        super().put(part, final=final)
        self.final = self.final or final


class Slow(Reading):
    """A client that reads a part when it is told to, or at once."""

    def __init__(self, *, at_once):
        super().__init__()
        self.at_once = at_once
        self.read = 0

    def put(self, part, *, final):
        super().put(part, final=final)
        if self.at_once:
            self.reads(1)

    def reads(self, count):
        for part in self.parts[self.read : self.read + count]:
            self.read += 1
            if not isinstance(part, TritiumError):
                part.release()


class TextContext(Context):
    """The context of a child that is never asked to stop."""

    def __init__(self, told):
        self.stopping = Stopping()
        self.told = told

    def publish(self, **info):
        self.told.update(info)

    def progressed(self):
        """It is restarted whatever it has done."""


class GeneratorContext(Context):
    """The context of a generator."""

    def __init__(self, told):
        self.told = told

    def publish(self, **info):
        self.told.update(info)


class World:
    """One version; see the module."""

    def __init__(
        self,
        nursery,
        *,
        context=100,
        room=1000,
        engine=None,
        workers=(),
        texts=None,
        serving=None,
        statistics=None,
        log=None,
        hang_within=0.0,
        **options,
    ):
        self.nursery = nursery
        self.start = trio.current_time()
        self.engine: Any = engine or FakeEngine(room, context)
        self.state = ModelState(
            make_spec(
                decoupled=True,
                max_batch_size=0,
                inputs=(),
                outputs=(),
                instances=(),
                scheduling=serving or LanguageServing(),
                **options,
            ),
            statistics=statistics or ModelStatistics(),
            on_status=lambda state: None,
            wall_clock=lambda: 1_000_000_000_000,
        )
        self.generator = Generator(self.state, self.engine, epoch=lambda: 1_000_000_000_000, log=log)
        self.state.composite = self.generator
        self.state.standing.become(Status.READY)
        self.workers: Any = texts or FakeTextWorkers(*workers)
        self.told: dict[str, object] = {}  # what the generator shows in the tree
        self.hang_within = hang_within
        self.text_troubles: list[BaseException] = []
        self.texts_told: dict[str, object] = {}

    async def begin(self):
        await self.nursery.start(self._schedule)
        self.nursery.start_soon(self._keep_texts)
        await self.settled()

    async def _schedule(self, task_status):
        context = GeneratorContext(self.told)
        task_status.started()
        await generator.run(context, self.state, self.generator)

    async def _keep_texts(self):
        while True:
            try:
                await text_actor.run(
                    TextContext(self.texts_told),
                    self.generator.texts,
                    self.workers,
                    hang_within=self.hang_within,
                )
            except* (TextWorkerDied, TextWorkerHangs, FrameError) as troubles:
                self.text_troubles += troubles.exceptions
                await trio.sleep(1.0)

    async def settled(self):
        await trio.testing.wait_all_tasks_blocked(0.0)

    async def settled_until(self, time):
        """Let everything happen that happens until then."""
        await trio.sleep_until(self.start + time)
        await self.settled()

    async def settled_after(self, seconds):
        """Let everything happen that happens within so many seconds."""
        await trio.sleep(seconds)
        await self.settled()

    def ask(
        self, prompt="hello", *, deadline=math.inf, reply=None, kind=TEXT, tenant="", priority=0, **sampling
    ):
        """Submit a request; return it. The deadline counts from the beginning of the test."""
        deadline += self.start
        ask = Ask(kind, prompts=(prompt,), sampling=Sampling(**sampling))
        if kind == CHAT:
            ask = Ask(kind, messages=prompt, sampling=Sampling(**sampling))
        return self.submit(ask, deadline=deadline, reply=reply, tenant=tenant, priority=priority)

    def submit(self, ask, *, deadline=math.inf, reply=None, tenant="", priority=0):
        request = GenerationRequest(
            model_name="model",
            reply=reply or Reading(),
            accepted_at=trio.current_time(),
            deadline=deadline,
            priority=priority,
        )
        request.ask = ask
        request.tenant = tenant
        self.state.submit_nowait(request)
        return request

    async def says(self, run, text, **options):
        """The engine gives more for a request that it holds; all that follows at once happens."""
        self.engine.says(run, text, **options)
        await self.settled()

    @property
    def run(self):
        (run,) = self.engine.held
        return run


@pytest.fixture
async def begin(nursery):
    async def begin(**options):
        world = World(nursery, **options)
        await world.begin()
        return world

    yield begin
    nursery.cancel_scope.cancel()


METERED: Any = {
    "fairness": Fairness(tenant_parameter="user"),
    "slo": Slo(ttft=1.0, itl=1.0, refuse=False),
}
"""A version that counts what each tenant uses, and how long all takes, and refuses nothing for it."""


def used_up(world, *, deaths):
    """Check what a METERED version has counted, once all is over. What a death took is generated again."""
    shares, counted = world.state.queue.shares().values(), world.generator.counts
    told = {kind: sum(share.tokens[kind] for share in shares) for kind in ("prompt", "generated")}
    assert told["prompt"] >= counted.prompt_tokens
    assert told["generated"] >= counted.generated_tokens
    assert deaths or told["generated"] == counted.generated_tokens
    assert world.state.promise.ahead(1.0, 1) == 0.0
    assert not world.state.promise.sample(0).refusing


def generated(request):
    """Return what the client was given: values, the last of which may be an error."""
    told: list[Any] = []
    for part in request.reply.parts:
        told += [part] if isinstance(part, TritiumError) else part.generated
    return told


def text_of(request, choice=0):
    pieces = [each for each in generated(request) if isinstance(each, TextPiece)]
    return "".join(piece.text for piece in pieces if piece.choice == choice)


def finish_of(request, choice=0):
    pieces = [each for each in generated(request) if isinstance(each, TextPiece) and each.finish]
    return [(piece.finish, piece.reason) for piece in pieces if piece.choice == choice]


def usage_of(request):
    (usage,) = [each for each in generated(request) if isinstance(each, TokenUsage)]
    return usage
