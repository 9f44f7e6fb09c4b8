"""How a language model's version is put together: an engine, a text worker, and the generator between them.

The engine is a version of its own in the tree, under `<name>/<version>/engine`: its instances are started,
restarted and changed like those of any model, and no client ever sees it. The version that clients see has no
instances. It is READY while its engine is, once the tokenizer is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from actors.generation import text_actor
from actors.generation.engine import EngineVersion, engine_spec
from actors.generation.generator import Generator
from actors.generation.policy.adapters import AdapterOrders, Adapters
from actors.generation.pulse import Pulse
from actors.generation.texts import TextWorkers
from actors.serving.model import ModelState, StatusObserver
from actors.serving.routing.roster import Roster
from actors.serving.standing import Status
from actors.supervision.spec import Backoff, ChildSpec, Intensity, OnExhausted
from actors.values.errors import Unavailable
from actors.values.events import Log
from actors.values.generation.facts import LanguageFacts
from actors.values.specs import LanguageServing, ModelKey, ModelSpec, Probe

MakeEngine = Callable[[ModelSpec, StatusObserver], ModelState]
"""Makes the state of an engine, and has the function told of its status."""

_BACKOFF: Final = Backoff(initial=0.1, factor=2.0, cap=30.0, jitter=0.5, first_immediate=True)


class LanguageModels:
    """See the module."""

    def __init__(
        self, make_engine: MakeEngine, workers: Callable[[ModelSpec], TextWorkers], *, log: Log | None = None
    ) -> None:
        """`workers` launches the text workers of a version."""
        self._make_engine = make_engine
        self._workers = workers
        self._log = log
        self._orders: dict[ModelKey, AdapterOrders] = {}

    def equip(self, state: ModelState, wall_clock: Callable[[], int]) -> None:
        """Make the version of `state` a language model's, if its specification says so."""
        if not isinstance(state.spec.scheduling, LanguageServing):
            return
        version = state

        def settle(state: ModelState) -> None:
            del state
            _settle(version)

        engine = self._make_engine(engine_spec(state.spec), settle)
        checked = state.spec.scheduling.health_check
        generator = Generator(
            state,
            EngineVersion(engine, checked=checked),
            epoch=wall_clock,
            log=self._log,
            orders=self._orders.setdefault(state.spec.key, AdapterOrders()),
        )
        generator.on_change = partial(_settle, state)
        engine.mover = generator.moves
        state.sleeper = generator.slumber
        state.composite = generator
        state.engine, engine.whole = engine, state
        state.helpers = lambda: generator.texts.pids

    @staticmethod
    def follow(state: ModelState) -> None:
        """Take up what has changed in the files of a version that serves: its adapters."""
        if isinstance(state.composite, Generator) and isinstance(state.spec.scheduling, LanguageServing):
            state.composite.adapters.follow(state.spec.scheduling.adapters)

    def text_child(self, state: ModelState, generator: Generator) -> ChildSpec:
        """Return the child that keeps the version's text worker."""
        workers, serving = self._workers(state.spec), state.spec.scheduling
        hang_within = serving.hang_within if isinstance(serving, LanguageServing) else 0.0
        return ChildSpec(
            "texts",
            lambda ctx: text_actor.run(ctx, generator.texts, workers, hang_within=hang_within),
            intensity=Intensity(4, 30.0),
            on_exhausted=OnExhausted.RETRY_AT_CAP,
            backoff=_BACKOFF,
            shutdown=10.0,
        )

    @staticmethod
    def pulse_children(state: ModelState) -> list[ChildSpec]:
        """Return the child that notices when the version's engines hang, if that is wanted."""
        serving, engine = state.spec.scheduling, state.engine
        if not isinstance(serving, LanguageServing) or engine is None or not serving.hang_within:
            return []
        probe_every = 0.0 if state.spec.probe is Probe.OFF else state.spec.probe_interval
        pulse = Pulse(engine, within=serving.hang_within, probe_every=probe_every)
        return [
            ChildSpec(
                "pulse",
                pulse.run,
                intensity=Intensity(4, 30.0),
                on_exhausted=OnExhausted.RETRY_AT_CAP,
                backoff=_BACKOFF,
            )
        ]

    @staticmethod
    def texts_exhausted(state: ModelState) -> None:
        """The text workers of a version died too often. They are tried again now and then."""
        generator = state.composite
        if not isinstance(generator, Generator):
            return
        why = f"the text worker keeps dying: {generator.texts.failed}".removesuffix(": ")
        if state.status is Status.READY:
            state.standing.become(Status.UNAVAILABLE, f"Unavailable: {why}")
        generator.texts.give_up(why)
        state.intake.fail_queued(Unavailable(f"model '{state.spec.name}' is unavailable: {why}"))


def no_text_workers(spec: ModelSpec) -> TextWorkers:
    """Stand in where there are none."""
    raise TypeError(f"language model '{spec.name}' needs a text worker, and this server was made without")


def _settle(state: ModelState) -> None:
    """Have a version's status follow from its engine's, and from its text worker.

    A text worker that dies changes nothing, as with instances: see `LanguageModels.texts_exhausted`.
    """
    generator, engine = state.composite, state.engine
    if not isinstance(generator, Generator) or engine is None:
        return
    standing, texts = state.standing, generator.texts
    if engine.status is Status.UNAVAILABLE:
        if standing.status is Status.LOADING:
            standing.load_failed(engine.reason)
        elif standing.status is Status.READY:
            standing.become(Status.UNAVAILABLE, engine.reason)
    elif standing.status is Status.LOADING and texts.failed:
        standing.load_failed(f"Internal: {texts.failed}")
    elif (
        engine.status is Status.READY
        and standing.status in (Status.LOADING, Status.UNAVAILABLE)
        and texts.attended
    ):
        standing.become(Status.READY)


class ServedLanguages:
    """The language models that serve. Implements `actors.values.generation.facts.Languages`.

    One that is loaded on demand is among them while it is not loaded. What is told of it then is what it was
    when it served last; before that, what its files say.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._last: dict[str, tuple[LanguageFacts, Adapters]] = {}  # of models that have served
        self._dormant: dict[str, LanguageFacts] = {}
        roster.on_change(self._look)

    def names(self) -> Sequence[str]:
        """See `Languages`."""
        named = {state.spec.name for state in self._roster.states() if serves(state)}
        return sorted(named.union(self._dormant))

    def facts(self, model: str) -> LanguageFacts | None:
        """See `Languages`."""
        generator = self._serving(model)
        return self._dormant.get(model) if generator is None else _facts(generator)

    def _serving(self, model: str) -> Generator | None:
        ready = self._roster.ready(ModelKey(model, ""))
        found = [state.composite for _, state in sorted(ready.items()) if serves(state)]
        return found[-1] if found and isinstance(found[-1], Generator) else None

    def _look(self, key: ModelKey) -> None:
        """A model has changed."""
        if key.namespace:
            return
        generator, stand_ins = self._serving(key.name), self._roster.dormant(key)
        self._dormant.pop(key.name, None)
        if generator is not None:
            self._last[key.name] = _facts(generator), generator.adapters
        elif not stand_ins:
            if key not in self._roster.keys(key.name):
                self._last.pop(key.name, None)
        elif isinstance(scheduling := stand_ins[max(stand_ins)].spec.scheduling, LanguageServing):
            facts, adapters = self._last.get(key.name, (LanguageFacts(0), Adapters()))
            own = adapters.over(scheduling.adapters)
            self._dormant[key.name] = facts._replace(adapters=own.roots)


def _facts(generator: Generator) -> LanguageFacts:
    limits = generator.limits
    return LanguageFacts(
        limits.context,
        generator.epoch() - int(trio.current_time() - generator.state.standing.since),
        str(generator.engine.facts.get("root", "")),
        {} if limits.adapters is None else generator.adapters.roots,
        limits.adapters is not None,
    )


def serves(state: ModelState) -> bool:
    """Whether this is a language model's version, and serves."""
    return state.status is Status.READY and isinstance(state.composite, Generator)
