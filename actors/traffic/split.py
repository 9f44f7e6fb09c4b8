"""The model that shares requests out over a model's versions: it answers requests that name no version.

Passive, and on the path of every such request, so it costs a random number and a search in a few bounds. It
holds no request: the request itself says which version has it. A frontend may hold a split while the model or
the plan changes, because it waits for a request's body. If a version has been retired meanwhile, it refuses
the request, and the request goes to another version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import trio

from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.traffic.mirror import Mirroring
from actors.traffic.policy.traffic import Shares, difference
from actors.values.errors import Unavailable
from actors.values.marks import ClientMarks, marks_for
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import ModelSpec
from actors.values.traffic import Mirror, TrafficPlan


class VersionSplit(ServedModel):
    """Chooses a version for each request. Implements `actors.values.requests.ServedModel`.

    Made for one plan. `adapt` tells it what serves now, and must be called before its first use. `counts` and
    `mirroring` are lent, and outlive it.
    """

    __slots__ = (
        "_marks",
        "_mirror",
        "_mirror_state",
        "_mirroring",
        "_parameter",
        "_plan",
        "_random",
        "_ready",
        "_serving",
        "_sticky",
        "_weights",
        "counts",
        "left_out",
        "shares",
    )

    def __init__(
        self,
        plan: TrafficPlan,
        *,
        serving: Callable[[], Mapping[int, ModelState]],
        random: Callable[[], float],
        counts: dict[int, int],
        mirroring: Mirroring,
    ) -> None:
        """`serving` returns the versions that take requests now.

        `random` draws from [0, 1); `counts` is by version.
        """
        self._plan = plan
        self._marks = marks_for(plan, None)
        self.counts = counts
        self.left_out: Mapping[int, str] = {}  # READY versions that can't take part, and why
        self.shares = Shares({}, ())
        self._serving = serving
        self._random = random
        self._mirroring = mirroring
        self._parameter = plan.sticky_parameter
        self._sticky = bool(plan.sticky_header or plan.sticky_parameter)
        self._weights: Mapping[int, float] = plan.weights
        self._ready: Mapping[int, ModelState] = {}
        self._mirror = plan.mirror
        self._mirror_state: ModelState | None = None

    def adapt(self, weights: Mapping[int, float], ready: Mapping[int, ModelState]) -> None:
        """Share requests out over `ready`, which is not empty, by `weights`.

        A version that declares other inputs than the one with the largest share is left out: a client can't
        know which of them will answer it.
        """
        shares = Shares(weights, ready)
        lead = ready[shares.lead].spec
        self._marks = marks_for(self._plan, lead.fairness)
        self.left_out = {
            version: why for version, state in ready.items() if (why := difference(lead, state.spec))
        }
        if any(version in self.left_out for version in shares.versions):
            shares = Shares(weights, (version for version in ready if version not in self.left_out))
        self._weights = weights
        self._ready = dict(ready)
        self._mirror_state = None
        if self._mirror is not None and self._mirror.version not in self.left_out:
            self._mirror_state = ready.get(self._mirror.version)
        for version in shares.versions:
            self.counts.setdefault(version, 0)
        self.shares = shares

    # -- actors.values.requests.ServedModel -----------------------------------------------------------------------

    @property
    def spec(self) -> ModelSpec:
        """The configuration of the version with the largest share."""
        return self._ready[self.shares.lead].spec

    @property
    def marks(self) -> ClientMarks | None:
        """What a frontend notes of a client: what sharing out needs, and what the versions need."""
        return self._marks

    async def submit(self, request: InferRequest) -> None:
        """Queue `request` at its version. See `actors.values.requests.ServedModel`."""
        if self._mirror is not None and self._is_mirrored(request, self._mirror):
            with self._mirrored(request, self._mirror):
                await self._submit(request)
        else:
            await self._submit(request)

    def submit_nowait(self, request: InferRequest) -> None:
        """The same without waiting. See `actors.values.requests.ServedModel`."""
        if self._mirror is not None and self._is_mirrored(request, self._mirror):
            with self._mirrored(request, self._mirror):
                self._submit_nowait(request)
        else:
            self._submit_nowait(request)

    def cancel(self, request: InferRequest) -> None:
        """The client left. See `actors.values.requests.ServedModel`."""
        if request.routed_to is None:
            request.cancelled = True
        else:
            request.routed_to.cancel(request)

    # -- choosing --------------------------------------------------------------------------------------------

    async def _submit(self, request: InferRequest) -> None:
        version = self._choose(self.shares, request)
        state = request.routed_to = self._ready[version]
        try:
            await state.submit(request)
        except Unavailable as refusal:
            if state.status is Status.READY:
                # It has no room, and the other versions have loads of their own.
                raise
            version = await self._submit_elsewhere(request, state, refusal)
        self.counts[version] = self.counts.get(version, 0) + 1

    def _submit_nowait(self, request: InferRequest) -> None:
        version = self._choose(self.shares, request)
        state = request.routed_to = self._ready[version]
        try:
            state.submit_nowait(request)
        except Unavailable:
            if state.status is Status.READY:
                raise
            raise trio.WouldBlock from None  # it has been retired; `submit` finds another version
        self.counts[version] = self.counts.get(version, 0) + 1

    async def _submit_elsewhere(
        self, request: InferRequest, refused: ModelState, refusal: Unavailable
    ) -> int:
        """Queue `request` at a version that serves now, since the chosen one has been retired.

        Returns that version.
        """
        tried = {refused}
        expected = refused.spec
        while True:
            ready = {
                version: state
                for version, state in self._serving().items()
                if state.status is Status.READY
                and state not in tried
                and not difference(expected, state.spec)
            }
            if not ready:
                raise refusal
            version = self._choose(Shares(self._weights, ready), request)
            state = request.routed_to = ready[version]
            tried.add(state)
            try:
                await state.submit(request)
            except Unavailable:
                if state.status is Status.READY:
                    raise
            else:
                return version

    def _choose(self, shares: Shares, request: InferRequest) -> int:
        if self._sticky or request.correlation_id:
            key = self._key(request)
            if key:
                return shares.choose_for(key)
        return shares.choose(self._random())

    def _key(self, request: InferRequest) -> str:
        """Return the key that keeps a request's client, or its sequence, with one version.

        Empty if there is no such key.
        """
        if request.affinity:
            return request.affinity
        if self._parameter and request.parameters:
            value = request.parameters.get(self._parameter)
            if value is not None and value != "":
                return str(value)
        return f"sequence {request.correlation_id}" if request.correlation_id else ""

    # -- mirroring -------------------------------------------------------------------------------------------

    def _is_mirrored(self, request: InferRequest, mirror: Mirror) -> bool:
        if request.synthetic or request.correlation_id or self._random() >= mirror.fraction:
            return False
        return self._mirror_state is None or not self._mirror_state.spec.decoupled

    @contextmanager
    def _mirrored(self, request: InferRequest, plan: Mirror) -> Iterator[None]:
        """Around the submission of `request`: once it is queued, a copy goes to the mirror version."""
        mirror = self._mirror_state
        exchange = None
        if mirror is not None:
            exchange = self._mirroring.begin(request, plan.version, plan.tolerance)
        try:
            yield
        except BaseException:
            if exchange is not None:
                exchange.withdraw()
            raise
        if exchange is None or mirror is None:
            self._mirroring.of(plan.version).skipped += 1
        elif request.routed_to is mirror:
            exchange.abandon()
        else:
            exchange.send(mirror)
