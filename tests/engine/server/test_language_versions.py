"""Versions of language models in the tree: when they serve, what a death costs, and what is seen of them."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from actors.generation.texts import TextWorkers
from actors.residency.residents import pids_of
from actors.seams import faults
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.supervision.supervisor import Supervisor
from actors.values.errors import Unavailable
from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import TEXT, Ask, GenerationRequest
from actors.values.generation.facts import LanguageFacts
from actors.values.specs import InstanceSpec, LanguageServing, ModelKey
from engine.observability.pending import RequestLoad, total_load
from engine.server.languages.composing import ServedLanguages
from engine.server.version_tree import ModelSubtrees
from engine.settings.reporting import MetricsSettings
from tests.support.doubles import Double, ServedDouble
from tests.support.generation_doubles import FakeTextWorker, FakeTextWorkers
from tests.support.model_doubles import FakeWorker, make_spec
from tests.support.ports import Port


class Launches(Double):
    """A launcher whose workers never come into existence: tests have them join."""

    async def launch(self, spec, instance):
        await trio.sleep_forever()


class Reports(Double):
    """What an engine's worker has said of its model."""

    def __init__(self):
        self.facts = {"context": 100}


class EngineWorker(FakeWorker):
    """A worker of an engine."""

    reports = Reports()
    stuck_since = math.inf

    @property
    def held(self):
        return SimpleNamespace(all=lambda: [*self.outstanding.values()])


class Dying(TextWorkers):
    """Text workers that die as they load."""

    def __init__(self, deaths=10**6):
        self.deaths = deaths
        self.launched = 0
        self.made = []

    async def launch(self):
        self.launched += 1
        worker = FakeTextWorker(ready=self.launched > self.deaths)
        if self.launched <= self.deaths:
            worker.dies()
        self.made.append(worker)
        return worker


class Missing(TextWorkers):
    """There is no program to run."""

    async def launch(self):
        raise FileNotFoundError("no such program")


class Version:
    """One version of a language model in a tree."""

    def __init__(self, nursery, workers):
        self.nursery = nursery
        self.workers = workers
        models = Supervisor(lambda: self.subtrees.standing())
        self.router = Router()
        self.subtrees = ModelSubtrees(
            models,
            self.router,
            Launches(),
            log=lambda event, **keys: None,
            metrics=MetricsSettings(),
            stop_within=10.0,
            text_workers=lambda spec: workers,
        )
        self.root = Supervisor([models.spec("models")])

    async def begin(self, *, joins=True):
        await self.nursery.start(partial(self.root.serve, observer=self.subtrees.observe))
        spec = make_spec(
            scheduling=LanguageServing(),
            decoupled=True,
            max_batch_size=0,
            inputs=(),
            outputs=(),
            instances=(InstanceSpec(name="model_0"),),
        )
        self.state = self.subtrees.make_state(spec)
        assert self.state.engine is not None
        self.engine = self.state.engine
        self.router.roster.load_begun(spec.key, self.state)
        await self.subtrees.start(self.state)
        self.router.roster.serve(spec.key, {1: self.state})
        if joins:
            self.joins()
        await trio.testing.wait_all_tasks_blocked()

    def joins(self):
        (instance,) = self.engine.instances
        instance.pid = 11
        self.worker = EngineWorker(self.engine, instance)
        self.engine.instance_ready(instance, self.worker)

    def dies(self):
        """The engine's worker is gone, and the next one loads."""
        (instance,) = self.engine.instances
        instance.worker = None
        del self.engine.standing.workers[self.worker]

    def ask(self, prompt="hello"):
        request = GenerationRequest(model_name="model", reply=Port(), accepted_at=trio.current_time())
        request.ask = Ask(TEXT, prompts=(prompt,))
        self.state.submit_nowait(request)
        return request


@pytest.fixture
async def begin(nursery):
    async def begin(workers=None, **options):
        version = Version(nursery, workers or FakeTextWorkers())
        await version.begin(**options)
        return version

    yield begin
    nursery.cancel_scope.cancel()


async def test_it_serves_while_engine_and_text_worker_are_there(begin, autojump_clock):
    version = await begin(joins=False)
    assert version.state.status is Status.LOADING
    version.joins()
    assert version.state.status is Status.READY


@pytest.mark.parametrize("workers", [Dying, Missing])
async def test_a_text_worker_that_dies_as_it_loads_fails_the_load(begin, autojump_clock, workers):
    version = await begin(workers())
    assert version.state.status is Status.UNAVAILABLE
    assert version.state.reason


async def test_the_engines_facts_hold_while_it_starts_again(begin, autojump_clock):
    version = await begin()
    languages = ServedLanguages(version.router.roster)
    before = languages.facts("model")
    assert before is not None
    assert before.longest == 100
    version.dies()
    assert languages.facts("model") == before
    request = version.ask("x" * 200)
    await trio.testing.wait_all_tasks_blocked()
    (error,) = request.reply.parts
    assert "maximum context length is 100" in error.message


async def test_a_model_that_rests_is_listed_as_it_was(begin, autojump_clock):
    """With the adapters that its file has by now, and what was ordered."""
    tone, key = Adapter("tone", "tone", "/tone"), Adapter("key", "key", "/key")
    version = await begin()
    roster, name = version.router.roster, version.state.spec.key
    languages = ServedLanguages(roster)

    def facts():
        found = languages.facts("model")
        assert found is not None
        return found.longest, found.adapters

    assert facts() == (100, {})
    resting = ServedDouble.of(replace(version.state.spec, scheduling=LanguageServing(adapters=(tone,))))
    for spec_key in (ModelKey("other", ""), ModelKey("model", "elsewhere")):
        roster.set_dormant(spec_key, {1: resting})
    assert languages.names() == ["model", "other"]
    assert languages.facts("other") == LanguageFacts(0, adapters={"tone": "tone"})
    version.state.composite.adapters.load(key)
    roster.set_dormant(name, {1: resting})
    assert facts() == (100, {})  # it serves, and its engine has none
    roster.serve(name, {})
    assert facts() == (100, {"tone": "tone", "key": "key"})
    roster.set_dormant(name, None)
    assert languages.facts("model") is None
    roster.set_dormant(ModelKey("other", ""), {1: ServedDouble.of(make_spec())})
    assert languages.names() == []


async def test_a_crash_of_the_scheduler_leaves_the_text_worker_alone(begin, autojump_clock):
    version = await begin()
    points = faults.Points()
    left = [1]

    def crash():
        if left:
            left.pop()
            raise ValueError("a bug")

    with faults.given(points):
        points.arm("generation.turn", crash)
        version.ask()
        await trio.sleep(1)
    assert not left
    assert len(version.workers.made) == 1
    assert len(version.engine.in_flight) == 1


async def test_a_text_worker_that_keeps_dying_makes_the_version_unavailable(begin, autojump_clock):
    version = await begin(Dying(0))
    request = version.ask()
    await trio.testing.wait_all_tasks_blocked()
    version.workers.deaths = 8
    version.workers.made[0].dies()
    await trio.sleep(10)
    assert version.state.status is Status.UNAVAILABLE
    assert "text worker" in version.state.reason
    assert isinstance(request.reply.parts[-1], Unavailable)
    await trio.sleep(200)
    assert version.state.status is Status.READY


async def test_what_looks_at_a_version_sees_the_instances_of_its_engine(begin, autojump_clock):
    version = await begin()
    assert pids_of([version.state]) == [11, 4711]  # and its text worker
    version.engine.statistics.deaths["hang"] += 1
    version.dies()
    version.joins()
    (sample,) = version.subtrees.models()
    assert (sample.statistics.restarts, sample.statistics.deaths["hang"]) == (1, 1)
    assert sample.instances["serving"] == 1

    version.worker.stuck_since = trio.current_time()
    await trio.sleep(7)
    assert version.state.stuck_for(trio.current_time()) == 7


async def test_a_request_to_a_language_model_is_counted_once(begin, autojump_clock):
    version = await begin()
    assert total_load(version.subtrees.states.values()) == RequestLoad()
    version.ask()
    await trio.testing.wait_all_tasks_blocked()
    assert len(version.subtrees.states) == 2
    assert total_load(version.subtrees.states.values()) == RequestLoad(pending=1, running=0)


async def test_an_engine_that_says_that_it_is_not_ready_is_believed(begin, autojump_clock):
    version = await begin()
    assert await version.state.says_ready()
    version.worker.probe = lambda tell: tell(False)
    assert not await version.state.says_ready()
