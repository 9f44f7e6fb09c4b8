"""Copies of requests for a mirror version, whose answers are compared with the client's and thrown away.

Passive.

A mirrored request's reply port is wrapped in an `Exchange`, which keeps what is to be compared and passes the
answer on unchanged. The copy goes to the mirror version once the client's own request is queued. It shares
the inputs, whose buffers live as long as there is a reference to them (a connection gives each body memory of
its own). The copy never waits: where there is no room it is skipped. When both answers are here, the exchange
waits in `Finished` for the actor that compares.

To the mirror version a copy is a request like any other, and its statistics count it. Requests of a sequence
and the server's own are not mirrored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Final

import trio

from actors.seams.bell import Bell
from actors.seams.threads import in_thread
from actors.serving.model import ModelState
from actors.supervision.context import ChildContext
from actors.traffic.policy.comparison import Difference, Kept, compare, keep, kept_bytes
from actors.values.errors import ErrorCode, TritiumError, Unavailable
from actors.values.requests import InferRequest, InferResponse, ReplyPort

OUTSTANDING: Final = 64  # exchanges of one model that are not compared yet
OUTSTANDING_BYTES: Final = 64 * 1024 * 1024  # their inputs, which they keep in memory
PATIENCE: Final = 30.0  # seconds a copy may take; no client waits for it
REMEMBERED: Final = 8  # differences
_AT_ONCE: Final = 64 * 1024  # answers from this size are compared off the loop
_LONGEST_ID: Final = 64

# Errors that tell nothing about the version: the client left, or there was no room.
_TELLS_NOTHING: Final = frozenset((ErrorCode.UNAVAILABLE, ErrorCode.CANCELLED, ErrorCode.DEADLINE_EXCEEDED))

_Answer = tuple[Kept, ...] | TritiumError


@dataclass(slots=True)
class MirrorCounts:
    """The results of one mirror version's copies.

    Each copy that was sent ends in one of the four counts in between, unless it is still under way.
    """

    sent: int = 0
    same: int = 0
    different: int = 0
    errors: int = 0  # the mirror failed where the client got an answer
    # The client left, or was refused for want of room or time.
    uncompared: int = 0
    # Never sent: no mirror was ready, or it had no room.
    skipped: int = 0

    def __sub__(self, earlier: MirrorCounts) -> MirrorCounts:
        before = asdict(earlier)
        return MirrorCounts(**{name: count - before[name] for name, count in asdict(self).items()})


class Finished:
    """Exchanges that have both answers. There are never more than may be outstanding."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque()
        self._filled = Bell()

    def add(self, exchange: Exchange) -> None:
        """Have `exchange` compared."""
        self._exchanges.append(exchange)
        self._filled.ring()

    async def take(self) -> Exchange:
        """Return the one that has waited longest, once there is one."""
        while not self._exchanges:
            await self._filled.next_ring()
        return self._exchanges.popleft()


class Mirroring:
    """The exchanges of one model that are under way, and the counts of all others.

    Outlives plans and splits.
    """

    def __init__(self, finished: Finished) -> None:
        self.counts: dict[int, MirrorCounts] = {}  # by mirror version
        self.differences: deque[dict[str, object]] = deque(maxlen=REMEMBERED)
        self.outstanding = 0
        self.finished = finished
        self._nbytes = 0

    def of(self, version: int) -> MirrorCounts:
        """Return a mirror version's counts, for adding to them."""
        counts = self.counts.get(version)
        if counts is None:
            counts = self.counts[version] = MirrorCounts()
        return counts

    def begin(self, request: InferRequest, version: int, tolerance: float) -> Exchange | None:
        """Wrap the reply port of a request that is about to be queued.

        None if too many are under way, or if it lies in the client's shared memory: the client may change
        that as soon as it has its answer.
        """
        if request.regions is not None:
            return None
        nbytes = sum(len(tensor.data) for tensor in request.inputs)
        if self.outstanding >= OUTSTANDING or self._nbytes + nbytes > OUTSTANDING_BYTES:
            return None
        exchange = Exchange(self, request, version, tolerance, nbytes)
        self.outstanding += 1
        self._nbytes += nbytes
        request.reply = exchange
        return exchange

    def ended(self, nbytes: int) -> None:
        """An exchange with inputs of `nbytes` is over."""
        self.outstanding -= 1
        self._nbytes -= nbytes


class Exchange(ReplyPort):
    """A client's request and its copy. It is the client's reply port, in front of the real one."""

    __slots__ = (
        "_client",
        "_copied",
        "_copy",
        "_mirroring",
        "_nbytes",
        "_over",
        "_port",
        "request",
        "tolerance",
        "version",
    )

    def __init__(
        self, mirroring: Mirroring, request: InferRequest, version: int, tolerance: float, nbytes: int
    ) -> None:
        self.version = version
        self.tolerance = tolerance
        self._mirroring = mirroring
        self._nbytes = nbytes
        self._port: ReplyPort = request.reply
        self.request = request  # the client's
        self._over = False
        self._client: _Answer | None = None
        self._copied: _Answer | None = None
        now = trio.current_time()
        # Made before the primary's validation, which writes its version's interpretation into the request.
        self._copy = InferRequest(
            model_name=request.model_name,
            id=request.id,
            inputs=request.inputs,
            requested_outputs=request.requested_outputs,
            parameters=request.parameters,
            priority=request.priority,
            timeout=request.timeout,
            deadline=now + PATIENCE,
            reply=_CopyPort(self),
            accepted_at=now,
        )
        self._copy.tenant = request.tenant

    # -- the client's answer

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Keep what will be compared, and pass the part on. See `actors.values.requests.ReplyPort`."""
        if not self._over and self._client is None:
            # Before it is passed on: the port of a client that has left gives the memory back at once.
            self._client = _kept(part) if final and not self.request.cancelled else _NotComparable("")
            self._finish_if_complete()
        self._port.put(part, final=final)

    # -- the copy

    def send(self, mirror: ModelState) -> None:
        """Queue the copy at `mirror` if that is possible at once. The client's request has been queued."""
        queued = False
        self._copy.strings = self.request.strings
        try:
            mirror.submit_nowait(self._copy)
            queued = True
        except (Unavailable, trio.WouldBlock):
            pass  # full, or no longer ready
        except TritiumError as error:
            queued = True
            self.copy_answered(error)
        finally:
            if queued:
                self._mirroring.of(self.version).sent += 1
            else:
                self._mirroring.of(self.version).skipped += 1
                self.abandon()

    def copy_answered(self, part: InferResponse | TritiumError, *, final: bool = True) -> None:
        """Take the mirror's answer."""
        if not self._over and self._copied is None:
            self._copied = _kept(part) if final else _NotComparable("")
            self._finish_if_complete()

    # -- the end

    def withdraw(self) -> None:
        """The client's request could not be queued: restore it to the state in which it came."""
        self.request.reply = self._port
        self.abandon()

    def abandon(self) -> None:
        """There is no copy, so there will be no answers to compare."""
        if not self._over:
            self._over = True
            self._client = self._copied = None
            self._mirroring.ended(self._nbytes)

    def _finish_if_complete(self) -> None:
        if self._client is not None and self._copied is not None:
            self._mirroring.finished.add(self)

    async def settle(self, limiter: trio.CapacityLimiter) -> None:
        """Compare the answers, count the result, and drop them."""
        client, copied = self._client, self._copied
        found: Difference | None = None
        compared = False
        try:
            if not (
                client is None
                or copied is None
                or isinstance(copied, _NotComparable)
                or _tells_nothing(client)
            ):
                found = await self._compare(client, copied, limiter)
                compared = True
        finally:
            self._count(compared, found, failed=isinstance(copied, TritiumError))
            self.abandon()

    def _count(self, compared: bool, found: Difference | None, *, failed: bool) -> None:
        counts = self._mirroring.of(self.version)
        if not compared:
            counts.uncompared += 1
        elif found is None:
            counts.same += 1
        elif failed:
            counts.errors += 1
        else:
            counts.different += 1
        if found is not None:
            client = self.request.routed_to
            self._mirroring.differences.append(
                {
                    "version": self.version,
                    "client_version": None if client is None else client.spec.version,
                    "request_id": self.request.id[:_LONGEST_ID],
                    **found.as_dict(),
                }
            )

    async def _compare(
        self, client: _Answer, copied: _Answer, limiter: trio.CapacityLimiter
    ) -> Difference | None:
        if isinstance(client, TritiumError) or isinstance(copied, TritiumError):
            return _compare_errors(client, copied)
        if kept_bytes(client) < _AT_ONCE:
            return compare(client, copied, self.tolerance)
        return await in_thread(compare, client, copied, self.tolerance, limiter=limiter)


class _CopyPort(ReplyPort):
    """The reply port of a copy."""

    __slots__ = ("_exchange",)
    relation = "copy"  # of its request to the client's, in the log

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def parent(self) -> InferRequest:
        """The client's request."""
        return self._exchange.request

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Keep the answer that will be compared, and give the memory back."""
        self._exchange.copy_answered(part, final=final)
        if isinstance(part, InferResponse):
            part.release()


class _NotComparable(Unavailable):
    """Stands for an answer that is missing or can't be kept."""


def _kept(part: InferResponse | TritiumError) -> _Answer:
    if isinstance(part, TritiumError):
        return part
    try:
        return keep(part.outputs, borrowed=part.leased)
    except MemoryError:
        return _NotComparable("")


def _tells_nothing(answer: _Answer) -> bool:
    return isinstance(answer, TritiumError) and answer.code in _TELLS_NOTHING


def _compare_errors(client: _Answer, copied: _Answer) -> Difference | None:
    one, other = (answer.code if isinstance(answer, TritiumError) else None for answer in (client, copied))
    return None if one is other else Difference("error", _told(client), _told(copied))


def _told(answer: _Answer) -> str:
    return answer.render()[:200] if isinstance(answer, TritiumError) else "an answer"


async def compare_finished(ctx: ChildContext, finished: Finished) -> None:
    """Compare one exchange after another: the actor's start function.

    It holds no state, so a restarted one goes on.
    """
    ctx.started()
    limiter = trio.CapacityLimiter(1)
    while True:
        exchange = await finished.take()
        await exchange.settle(limiter)
        ctx.progressed()
