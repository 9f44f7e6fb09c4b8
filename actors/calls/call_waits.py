"""Which call waits for which, among the calls that models make: the graph for `actors.calls.policy`.

The graph is read off the live state when a call is made that could close a circle. That is rare: every
instance of the callee must execute a batch that waits for calls itself. A node that is not known to wait
counts as going on: an instance that restarts, a version behind a traffic split, the steps that a request to
an ensemble has not come to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from actors.calls.call import CallBook, WorkerCall
from actors.calls.calls import WorkerCalls
from actors.calls.policy import Waits, find_deadlock
from actors.serving.instances.batches import InFlight
from actors.serving.model import ModelState
from actors.serving.standing import InstanceState
from actors.values.errors import NEVER, TritiumError, Unavailable
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import Ensemble, EnsembleStep
from actors.values.wiring import Wiring


@dataclass(frozen=True, slots=True)
class _Queued:
    """A node of the graph that waits for any instance of a model."""

    model: ModelState


@dataclass(frozen=True, slots=True)
class _Step:
    """A request that an ensemble has made to one of its models."""

    model: ServedModel
    request: InferRequest


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch, in the worker of an instance."""

    batch: InFlight
    instance: InstanceState


class CallWaits:
    """Refuses calls that would wait for themselves. Implements `actors.calls.calls.Deadlocks`."""

    def __init__(self, resolve: Callable[[EnsembleStep], ServedModel]) -> None:
        """`resolve` returns the model that runs a step of an ensemble. It may raise TritiumError."""
        self._resolve = resolve

    def check(self, call: WorkerCall) -> None:
        """Raise Unavailable where `call`, which is about to be made, would wait for itself."""
        model = call.model
        if isinstance(model, ModelState) and model.composite is None:
            if not _may_be_stuck(model, call):
                return
        elif not any(_may_be_stuck(each, call) for each in self._needed(call)):
            return
        chain = find_deadlock(call, lambda node: self._waits_of(node, call))
        if chain is not None:
            raise Unavailable(_told(call, chain), retry_after=NEVER)

    def _needed(self, call: WorkerCall) -> Iterator[ModelState]:
        return self._models(call.model, call.request.requested_outputs)

    def _models(self, model: ServedModel, outputs: Sequence[str]) -> Iterator[ModelState]:
        """Return the versions that a request for `outputs` needs (all outputs if that is empty).

        That is `model` itself, or the versions of an ensemble's steps to those outputs.
        """
        if not isinstance(model, ModelState):
            return
        if not isinstance(model.spec.scheduling, Ensemble):
            yield model
            return
        wiring = Wiring(model.spec.scheduling)
        for number in wiring.contributing(outputs or model.spec.output_names):
            step = wiring.steps[number]
            try:
                composing = self._resolve(step)
            except TritiumError:
                continue  # the call will fail with it
            yield from self._models(composing, tuple(step.output_map))

    def _waits_of(self, node: Hashable, new: WorkerCall) -> Waits | None:
        if node is new:
            return _every([_Queued(model) for model in self._needed(new)])
        if isinstance(node, WorkerCall):
            return None if node.ended else _waits_of_request(node.model, node.request)
        if isinstance(node, _Step):
            return _waits_of_request(node.model, node.request)
        if isinstance(node, _Queued):
            return _any(tuple(node.model.rotation))
        if isinstance(node, InstanceState):
            return _waits_of_instance(node, new)
        assert isinstance(node, _Held), f"a node of type {type(node).__name__}"
        return _waits_of_batch(node, new)


def _may_be_stuck(model: ModelState, new: WorkerCall) -> bool:
    """Whether all instances execute batches that wait for calls: a cheap test before the costly one."""
    return all(_is_blocked(instance, new) for instance in model.rotation)


def _book_of(instance: InstanceState) -> CallBook | None:
    """Return the calls of an instance's worker; None if it has none that can call."""
    asks = None if instance.worker is None else instance.worker.asks
    return asks.book if isinstance(asks, WorkerCalls) else None


def _is_blocked(instance: InstanceState, new: WorkerCall) -> bool:
    if instance.worker is None or instance.worker.free_lanes > 0:
        return False
    book = _book_of(instance)
    if book is None:
        return False
    return bool(book.blocking) or book is new.book


def _waits_of_instance(instance: InstanceState, new: WorkerCall) -> Waits | None:
    if not _is_blocked(instance, new) or instance.worker is None:
        return None
    return _any(tuple(_Held(batch, instance) for batch in instance.worker.held.having_lanes()))


def _waits_of_batch(held: _Held, new: WorkerCall) -> Waits | None:
    book = _book_of(held.instance)
    if book is None:
        return None
    calls: list[Hashable] = list(book.blocking.get(held.batch.id, ()))
    if held.batch is new.batch:
        calls.append(new)
    return _every(calls)


def _waits_of_request(model: ServedModel, request: InferRequest) -> Waits | None:
    """Return what a request waits for.

    That is the batch that executes it, any instance if it is queued, or the steps of an ensemble that are
    under way.
    """
    if not isinstance(model, ModelState) or request.answered:
        return None
    if model.composite is not None:
        return _every([_Step(*each) for each in model.composite.steps_of(request)])
    for instance in model.instances:
        if instance.worker is None:
            continue
        for batch in instance.worker.outstanding.values():
            if request in batch.requests:
                begun = batch in instance.worker.held.having_lanes()
                return _any((_Held(batch, instance) if begun else instance,))
    # A request outside the queue waits for room in it or, in a cache, perhaps for an equal request.
    queued = request in model.queue or (not model.keeps_requests and request not in model.in_flight)
    return _any((_Queued(model),)) if queued else None


def _every(nodes: Sequence[Hashable]) -> Waits | None:
    return Waits(tuple(nodes), every=True) if nodes else None


def _any(nodes: tuple[Hashable, ...]) -> Waits | None:
    return Waits(nodes, every=False) if nodes else None


def _told(call: WorkerCall, chain: Sequence[Hashable]) -> str:
    links = []
    for node in chain:
        if isinstance(node, WorkerCall):
            links.append(f"a call of model '{node.model.spec.name}'")
        elif isinstance(node, _Step):
            links.append(f"a step that model '{node.model.spec.name}' runs")
        elif isinstance(node, _Queued):
            links.append(f"an instance of model '{node.model.spec.name}' that is free")
        elif isinstance(node, InstanceState):
            links.append(f"instance '{node.spec.name}'")
        elif isinstance(node, _Held):
            links.append("what it executes")
    caller, callee = call.book.caller, call.model.spec.name
    return (
        f"Model {callee} - Error when running inference: this call would wait for itself for ever. Instance "
        f"'{caller.instance}' waits for {', which waits for '.join(links)}. Give model '{callee}' more instances, or call it "
        "without waiting"
    )
