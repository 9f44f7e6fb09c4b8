"""How instances of a version that serves come and go: more, fewer, and one in the place of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from actors.serving.model import ModelState
from actors.serving.policy.rate_limits import RateLimiter
from actors.serving.standing import InstanceState
from actors.supervision.errors import NoSuchChild, NotRunning, SupervisionError
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.errors import Internal, InvalidArgument
from actors.values.specs import InstanceSpec, ModelSpec


class InstanceChanges:
    """Starts and ends instances of versions. Implements `actors.serving.instances.recycling.Instances`."""

    def __init__(
        self,
        child: Callable[[ModelState, InstanceState], ChildSpec],
        limiter: RateLimiter[InstanceState] | None,
    ) -> None:
        """`child` describes an instance to its supervisor. Without a `limiter` executions are not limited."""
        self._child = child
        self._limiter = limiter
        self._supervisors: dict[str, Supervisor] = {}  # by the subtree's name; those whose instances stand
        self._changing: dict[str, trio.Lock] = {}  # the same; held while instances come and go

    def stands(self, subtree: str) -> None:
        """A version's subtree is about to start."""
        self._changing[subtree] = trio.Lock()

    def supervised(self, subtree: str, supervisor: Supervisor) -> None:
        """The instances of a subtree have a new supervisor."""
        self._supervisors[subtree] = supervisor

    def ended(self, subtree: str) -> None:
        """A version's subtree has ended."""
        self._supervisors.pop(subtree, None)
        del self._changing[subtree]

    def limit(self, state: ModelState, instances: Sequence[InstanceState]) -> None:
        """Make instances known to the rate limiter. Raises InvalidArgument if they can't be."""
        if self._limiter is not None:
            state.dispatcher.limiter = self._limiter
            executing = [(each, each.spec) for each in instances if not each.spec.passive]
            self._limiter.enter(state.spec.key, executing, state.doorbell.ring)

    def forget_limits(self, instances: Iterable[InstanceState]) -> None:
        """Have the rate limiter forget instances."""
        if self._limiter is not None:
            for each in instances:
                self._limiter.leave(each)

    async def scale(self, state: ModelState, spec: ModelSpec) -> None:
        """Start and stop instances of a READY version until they are those of `spec`.

        Nothing else in `spec` differs. Instances of the same kind on the same device stay, whatever they are
        called; those that work stay first. Raises Internal if a new one can't load the model. Then, and if
        the caller is cancelled, everything is as before.
        """
        async with self._changing[state.subtree]:
            leaving, missing = _difference(state.instances, spec.instances)
            before = state.spec
            state.respecify(spec)  # before they start: they are told their share of the cores
            added = state.standing.add_instances(missing)
            try:
                await self._bring_in(state, added)
            except BaseException:
                state.respecify(before)
                await self._dismiss(state, added)
                state.settle()
                raise
            await self._dismiss(state, leaving)
            state.settle()

    async def replace(self, state: ModelState, each: InstanceState) -> InstanceState:
        """Have another instance take the place of one. See `actors.serving.instances.recycling.Instances`."""
        async with self._changing[state.subtree]:
            if each not in state.instances:
                raise Internal(f"Internal: instance '{each.spec.name}' has gone meanwhile")
            added = state.standing.add_instances([each.spec])
            try:
                with trio.fail_after(state.spec.load_timeout or math.inf):
                    await self._bring_in(state, added)
            except trio.TooSlowError:
                await self._dismiss(state, added)
                raise Internal(
                    "Internal: the worker that was to replace it took over "
                    f"{state.spec.load_timeout:g} s to load ('tritium.load_timeout')"
                ) from None
            except BaseException:
                await self._dismiss(state, added)
                raise
            state.remove_instance(each)
            return added[0]

    async def retire(self, state: ModelState, each: InstanceState) -> None:
        """End an instance that was replaced, once it answered its requests.

        See `actors.serving.instances.recycling.Instances`.
        """
        try:
            if each.worker is not None:
                await state.wait_vacated(each)
            await forget(self._supervisors[state.subtree], each.key)
        finally:
            self.forget_limits([each])

    async def _bring_in(self, state: ModelState, added: Sequence[InstanceState]) -> None:
        try:
            self.limit(state, added)
        except InvalidArgument as error:
            raise Internal(f"{error.code.rendered}: {error.message}") from error
        try:
            for each in added:
                await self._supervisors[state.subtree].start_child(self._child(state, each))
        except SupervisionError as error:
            raise Internal(f"Internal: its instances can't be changed now: {error}") from error
        for each in added:
            await each.settled.wait()
        broken = next((each.load_error for each in added if each.load_error), "")
        if broken:
            raise Internal(broken)

    async def _dismiss(self, state: ModelState, leaving: Sequence[InstanceState]) -> None:
        for each in leaving:
            state.remove_instance(each)
        with trio.CancelScope(shield=True):
            if state.mover is not None:  # others have a limited time, once their children are told to stop
                async with trio.open_nursery() as nursery:
                    for each in leaving:
                        if each.worker is not None:
                            nursery.start_soon(state.wait_vacated, each)
            for each in leaving:
                await forget(self._supervisors[state.subtree], each.key)
        self.forget_limits(leaving)


async def forget(supervisor: Supervisor, name: str) -> None:
    """Stop a child and forget it, if it is there."""
    with suppress(NoSuchChild, NotRunning):  # it never started, or its supervisor has gone first
        await supervisor.terminate_child(name)


def _difference(
    present: Sequence[InstanceState], wanted: Sequence[InstanceSpec]
) -> tuple[list[InstanceState], list[InstanceSpec]]:
    """Return the instances that are too many, and those that are missing. Names don't count."""
    leaving = sorted(present, key=lambda each: each.worker is None)
    missing = []
    for spec in wanted:
        alike = (each for each in leaving if replace(each.spec, name="") == replace(spec, name=""))
        found = next(alike, None)
        if found is None:
            missing.append(spec)
        else:
            leaving.remove(found)
    return leaving, missing
