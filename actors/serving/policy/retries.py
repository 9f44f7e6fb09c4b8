"""What becomes of requests when their worker dies. DESIGN section 4, points 2 to 5.

Theory of operation. A worker holds batches that execute and requests that merely wait in it. The waiting
requests cannot have killed it and go back to the queue. If a request can cause that kind of death, and the
model may run a request twice, the executing batch becomes *suspect*. Its halves run again, each alone on the
instance, with nothing else executing and nothing prefetched. A half that kills again is halved again, so one
poison request among n is alone after log2(n) deaths, and all other requests have an answer by then. Alone it
gets one more chance, because the first death may have been chance. After the second it is refused.

A hang is treated differently. If a request outlasts the execution limit alone, it is answered at once,
because running it again would only take as long again. A death that no request can cause (a SIGKILL from
outside) makes no request a suspect, until it has happened to the same request so often that chance is not a
good explanation.

A model that may not run twice on one request can't be searched like that: every executing request is refused,
and the clients may send theirs again. So every executing request is *accused* (`actors.serving.policy.blame`).
The second death under the same fingerprint convicts it, unless several accused requests were executing: any of
them may have caused the death. The same holds for a request that kills alone and whose client does not stay.

Nothing here knows an instance; `after_death` returns what to do with each request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from signal import Signals
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from actors.values.errors import Cancelled, DeadlineExceeded, Poisoned, TritiumError, Unavailable, WorkerLost
from actors.values.requests import InferRequest
from actors.values.specs import Retry

ALONE_DEATHS_ALLOWED: Final = 1  # the next one refuses the request
UNEXPLAINED_BEFORE_SUSPECT: Final = 3
UNEXPLAINED_BEFORE_REFUSED: Final = 6

# The signals that a fault inside the process raises. SIGKILL, SIGTERM and the like come from another process.
_FAULTS: Final = frozenset(
    {Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGILL, Signals.SIGABRT, Signals.SIGTRAP}
    | {Signals.SIGSYS}
)

Group: TypeAlias = tuple[InferRequest, ...]

_NOBODY: Final[Mapping[InferRequest, Hashable]] = MappingProxyType({})


class _Death:
    """Why a worker ended. The string form completes "died of"."""

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def label(self) -> str:
        """The reason in metrics, such as `oom` or `signal_11`."""
        return self.kind

    @property
    def blames_request(self) -> bool:
        """Whether an executing request can have caused it."""
        return True


@dataclass(frozen=True, slots=True)
class ModelError(_Death):
    """The model's code gave up on its worker: it could not go on after an error outside any one request."""

    kind = "model_error"
    detail: str = ""

    def __str__(self) -> str:
        return f"an error of the model: {self.detail}" if self.detail else "an error of the model"


@dataclass(frozen=True, slots=True)
class Signal(_Death):
    """Killed by signal `number`; only fault signals speak against a request."""

    kind = "signal"
    number: int

    @property
    def label(self) -> str:
        """The reason in metrics."""
        return f"{self.kind}_{self.number}"

    @property
    def blames_request(self) -> bool:
        """Whether it is a fault signal."""
        return self.number in _FAULTS

    def __str__(self) -> str:
        known = self.number in Signals.__members__.values()
        return f"signal {self.number} ({Signals(self.number).name})" if known else f"signal {self.number}"


@dataclass(frozen=True, slots=True)
class Oom(_Death):
    """Killed for its memory by the kernel, or by Tritium because it had `used` bytes of `limit` allowed."""

    kind = "oom"
    used: int = 0
    limit: int = 0

    def __str__(self) -> str:
        if not self.limit:
            return "lack of memory"
        mebibyte = 1024 * 1024
        return (
            f"lack of memory: it had {-(-self.used // mebibyte)} MiB, and {self.limit // mebibyte} MiB are its limit "
            "(tritium.memory_limit_mb)"
        )


@dataclass(frozen=True, slots=True)
class TooManyProcesses(_Death):
    """Killed by Tritium: with those that it started it was `count` processes, and `limit` are allowed."""

    kind = "processes"
    count: int
    limit: int

    def __str__(self) -> str:
        return f"starting processes: there were {self.count}, and {self.limit} are its limit (tritium.max_processes)"


@dataclass(frozen=True, slots=True)
class Hang(_Death):
    """Killed by Tritium: what it `missed` did not come within `limit` seconds.

    `suspended` says that the process was stopped by a signal such as SIGSTOP, which no request can cause.
    """

    kind = "hang"
    limit: float
    suspended: bool = False
    missed: str = "not done"

    @property
    def blames_request(self) -> bool:
        """Whether the process was running, and so the model at work."""
        return not self.suspended

    def __str__(self) -> str:
        why = "stopped by a signal, and " if self.suspended else ""
        return f"a hang: {why}{self.missed} within {self.limit:.4g} s"


@dataclass(frozen=True, slots=True)
class ProtocolError(_Death):
    """Killed by Tritium, which could not understand a message of the worker."""

    kind = "protocol_error"
    detail: str

    def __str__(self) -> str:
        return f"a protocol error: {self.detail}"


@dataclass(frozen=True, slots=True)
class Exit(_Death):
    """Ended by itself with `code`. A code of 0 counts as a death too, because Tritium did not ask for it."""

    kind = "exit"
    code: int

    @property
    def label(self) -> str:
        """The reason in metrics."""
        return f"{self.kind}_{self.code}"

    def __str__(self) -> str:
        return f"exit with code {self.code}"


@dataclass(frozen=True, slots=True)
class NotStarted(_Death):
    """Never became ready, so nothing was executing."""

    kind = "start_failed"
    detail: str

    @property
    def blames_request(self) -> bool:
        """Never."""
        return False

    def __str__(self) -> str:
        return f"a failed start: {self.detail}" if self.detail else "a failed start"


DeathReason: TypeAlias = (
    ModelError | Signal | Oom | TooManyProcesses | Hang | ProtocolError | Exit | NotStarted
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What to do with the requests a dead worker held.

    Each request is in one place; a request that was answered before is in none.
    """

    # Go to the head of the queue, in this order.
    requeue: Group = ()
    # Run alone, each group as one batch.
    suspects: tuple[Group, ...] = ()
    refuse: tuple[tuple[InferRequest, TritiumError], ...] = ()
    # Their clients have left.
    cancelled: Group = ()
    # The refused requests that are known to kill.
    quarantine: Group = ()
    # The refused requests that hung alone: the next request with such inputs is known to hang.
    hung: Group = ()
    # Their fingerprints are to be remembered.
    accused: Group = ()


def after_death(
    reason: DeathReason,
    executing: Sequence[Sequence[InferRequest]],
    waiting: Sequence[InferRequest],
    *,
    retry: Retry,
    alone: bool,
    instance: str,
    culprit: int | None = None,
    known: Mapping[InferRequest, Hashable] = _NOBODY,
    suspects: bool = True,
) -> Aftermath:
    """Decide about `executing` batches and `waiting` requests of `instance`, which died of `reason`.

    `alone` says that what executed was a suspect group. `culprit` is the index of the batch at fault where
    that is known (the one that hung); the other batches were bystanders then. `known` holds the fingerprints
    of those executing requests that are accused already. Counts deaths on the requests.

    Without `suspects`, as for the engine of a language model, no request is suspected of anything: what
    executed is lost, each with `WorkerLost`, and its sender decides.
    """
    if not suspects:
        return _all_lost(reason, executing, waiting, instance)
    inquest = _Inquest(reason, retry=retry, alone=alone, instance=instance)
    blamed = [batch for at, batch in enumerate(executing) if culprit in (None, at)]
    by_itself = len(blamed) == 1 and len(blamed[0]) == 1
    inquest.convict(list(chain.from_iterable(blamed)), known)
    for at, batch in enumerate(executing):
        live = inquest.live(batch)
        if retry is Retry.NEVER:
            inquest.refuse_all(batch, live, blamed=culprit in (None, at))
        elif culprit not in (None, at):
            inquest.requeue += live
        elif not reason.blames_request:
            inquest.unexplained(live)
        elif by_itself:
            inquest.accuse(live)
            inquest.remember(request for request in batch if request.cancelled)
        elif live:
            inquest.suspects += _halves(live)
    inquest.requeue += inquest.live(waiting)
    return inquest.close()


def _all_lost(
    reason: DeathReason,
    executing: Sequence[Sequence[InferRequest]],
    waiting: Sequence[InferRequest],
    instance: str,
) -> Aftermath:
    inquest = _Inquest(reason, retry=Retry.NEVER, alone=False, instance=instance)
    inquest.refuse(inquest.live(list(chain.from_iterable(executing))), _lost)
    inquest.requeue += inquest.live(waiting)
    return inquest.close()


class _Inquest:
    """The buckets while one death is being looked at."""

    def __init__(self, reason: DeathReason, *, retry: Retry, alone: bool, instance: str) -> None:
        self.reason = reason
        self.retry = retry
        self.alone = alone
        self.instance = instance
        self.requeue: list[InferRequest] = []
        self.suspects: list[Group] = []
        self.refused: list[tuple[InferRequest, TritiumError]] = []
        self.cancelled: list[InferRequest] = []
        self.quarantine: list[InferRequest] = []
        self.hung: list[InferRequest] = []
        self.accused: list[InferRequest] = []
        self.convicted: frozenset[InferRequest] = frozenset()

    def close(self) -> Aftermath:
        return Aftermath(
            requeue=tuple(self.requeue),
            suspects=tuple(self.suspects),
            refuse=tuple(self.refused),
            cancelled=tuple(self.cancelled),
            quarantine=tuple(self.quarantine),
            hung=tuple(self.hung),
            accused=tuple(self.accused),
        )

    def live(self, requests: Sequence[InferRequest]) -> list[InferRequest]:
        """Return those that still want an answer, having set the cancelled ones aside."""
        unanswered = [request for request in requests if not request.answered]
        self.cancelled += [request for request in unanswered if request.cancelled]
        return [request for request in unanswered if not request.cancelled]

    def convict(self, blamed: Sequence[InferRequest], known: Mapping[InferRequest, Hashable]) -> None:
        """Find the requests under whose fingerprint a worker has died twice, if only they can have caused it.

        A hang convicts no request of a model that may not run twice: the thing it waited for may be there
        next time.
        """
        if self.retry is Retry.NEVER and isinstance(self.reason, Hang):
            return
        accused = [request for request in blamed if request in known and not request.answered]
        if self.reason.blames_request and len({known[request] for request in accused}) == 1:
            self.convicted = frozenset(accused)
            self.quarantine += [request for request in accused if request.cancelled]

    def remember(self, requests: Iterable[InferRequest]) -> None:
        """Mark the fingerprints of `requests` as accused."""
        self.accused += [request for request in requests if not request.answered]

    def refuse_all(
        self, batch: Sequence[InferRequest], live: Sequence[InferRequest], *, blamed: bool
    ) -> None:
        """Refuse the `live` requests of a batch that may not run twice.

        `blamed` says that the batch may have caused this death.
        """
        hung = isinstance(self.reason, Hang)
        blamed = blamed and self.reason.blames_request
        for request in live:
            if blamed and request in self.convicted:
                self.refuse([request], _repeated)
                self.quarantine.append(request)
            else:
                self.refuse([request], _hung if hung and blamed else _lost)
        if blamed:
            self.remember(batch)

    def refuse(
        self, requests: Iterable[InferRequest], why: Callable[[_Inquest, InferRequest], TritiumError]
    ) -> None:
        self.refused += [(request, why(self, request)) for request in requests]

    def accuse(self, requests: Sequence[InferRequest]) -> None:
        """Count this death on the only request that was executing: nothing else can have caused it."""
        for request in requests:
            request.alone_deaths += 1
            if isinstance(self.reason, Hang):
                self.refuse([request], _hung)
                self.hung.append(request)
                # A request that runs alone is a suspect, so it has hung before, in a batch with others.
                if self.alone:
                    self.quarantine.append(request)
            elif request.alone_deaths > ALONE_DEATHS_ALLOWED or request in self.convicted:
                self.refuse(
                    [request], _poisoned if request.alone_deaths > ALONE_DEATHS_ALLOWED else _repeated
                )
                self.quarantine.append(request)
            else:
                self.suspects.append((request,))

    def unexplained(self, requests: Sequence[InferRequest]) -> None:
        """Requeue a batch that died of something no request can cause, but not for ever."""
        for request in requests:
            request.unexplained_deaths += 1
        hopeless = [r for r in requests if r.unexplained_deaths >= UNEXPLAINED_BEFORE_REFUSED]
        self.refuse(hopeless, _unlucky)
        rest = [r for r in requests if r.unexplained_deaths < UNEXPLAINED_BEFORE_REFUSED]
        if self.alone or any(r.unexplained_deaths >= UNEXPLAINED_BEFORE_SUSPECT for r in rest):
            self.suspects += [tuple(rest)] if rest else []
        else:
            self.requeue += rest


def _halves(batch: Sequence[InferRequest]) -> list[Group]:
    """Return a batch in two groups, or in one if it has one request."""
    middle = (len(batch) + 1) // 2
    return [tuple(half) for half in (batch[:middle], batch[middle:]) if half]


def _lost(inquest: _Inquest, request: InferRequest) -> TritiumError:
    how = f"instance '{inquest.instance}' of model '{request.model_name}' died of {inquest.reason}"
    return WorkerLost(
        f"{request.prefix}{how} while it ran this request. The model is not run twice on one request (tritium.retry); send "
        "it again if you may",
        how=how,
        blamed=inquest.reason.blames_request,
    )


def _hung(inquest: _Inquest, request: InferRequest) -> TritiumError:
    return DeadlineExceeded(
        f"{request.prefix}instance '{inquest.instance}' of model '{request.model_name}' was stopped while it ran this "
        f"request, for {inquest.reason} (tritium.execution_timeout)"
    )


def _poisoned(inquest: _Inquest, request: InferRequest) -> TritiumError:
    return Poisoned(
        f"{request.prefix}this request killed a worker of model '{request.model_name}' {request.alone_deaths} times while "
        f"nothing else ran in it, the last time by {inquest.reason}. It and its like are refused for a while; find out "
        "what in these inputs the model can't take"
    )


def _repeated(inquest: _Inquest, request: InferRequest) -> TritiumError:
    return Poisoned(
        f"{request.prefix}workers of model '{request.model_name}' died twice under a request with these inputs, the last "
        f"time by {inquest.reason}. It and its like are refused for a while; find out what in these inputs the model can't "
        "take"
    )


def _unlucky(inquest: _Inquest, request: InferRequest) -> TritiumError:
    return Unavailable(
        f"{request.prefix}{request.unexplained_deaths} workers of model '{request.model_name}' died under this request, the "
        f"last one ('{inquest.instance}') of {inquest.reason}, and it is not tried again. Something outside the model "
        "ends its workers"
    )


class SuspectQueue:
    """Groups of requests that must run alone, one at a time; halves of the newest split come first.

    The owner takes a group with `next`, runs it by itself, and reports `outcome_ok` or `outcome_died`. As in
    a `RequestQueue`, a request that is cancelled or past its own deadline comes out of `expire`.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []  # that wait, the next one last; none is empty
        self.running: Group = ()  # the group that runs alone now; empty for none

    def __len__(self) -> int:
        """How many requests wait; those of the running group do not count."""
        return sum(map(len, self.groups))

    def __iter__(self) -> Iterator[InferRequest]:
        """The waiting requests, next group first."""
        for group in reversed(self.groups):
            yield from group

    def push_split(self, groups: Sequence[Group]) -> None:
        """Add `groups`, to run in this order and before all others."""
        self.groups += [group for group in reversed(groups) if group]

    def next(self) -> Group | None:
        """Start the next group; None if one runs already or none waits."""
        if self.running or not self.groups:
            return None
        self.running = self.groups.pop()
        return self.running

    def outcome_ok(self) -> None:
        """The running group has its answers."""
        self.running = ()

    def outcome_died(self, suspects: Sequence[Group]) -> None:
        """The running group killed its worker; `suspects` are the groups that `after_death` made of it."""
        self.running = ()
        self.push_split(suspects)

    def remove(self, request: InferRequest) -> bool:
        """Take out a waiting request whose client has left. Return False if it does not wait here."""
        for at, group in enumerate(self.groups):
            if request in group:
                self._replace(at, tuple(other for other in group if other is not request))
                return True
        return False

    def expire(self, now: float) -> list[tuple[InferRequest, TritiumError]]:
        """Take out every waiting request that is cancelled or late, each with the error for its client."""
        ended: list[tuple[InferRequest, TritiumError]] = []
        for request in list(self):
            if request.cancelled:
                ended.append((request, Cancelled("")))
            elif request.deadline <= now:
                ended.append((request, _too_late(request)))
        for request, _ in ended:
            self.remove(request)
        return ended

    def next_expiry(self) -> float:
        """When `expire` next has something to do: infinite for never, in the past for at once."""
        return min(
            (-math.inf if request.cancelled else request.deadline for request in self), default=math.inf
        )

    def drain(self) -> list[InferRequest]:
        """Remove and return everything that waits."""
        waiting = list(self)
        self.groups.clear()
        return waiting

    def _replace(self, at: int, group: Group) -> None:
        if group:
            self.groups[at] = group
        else:
            del self.groups[at]


def _too_late(request: InferRequest) -> TritiumError:
    return DeadlineExceeded(
        f"{request.prefix}the request's own deadline passed while it waited to run again: a worker of model "
        f"'{request.model_name}' had died under the batch it was in"
    )
