"""What a supervisor decides, as pure functions of state and `now`.

Theory of operation. A child ends for an `ExitReason`. `wants_restart` says whether its restart type asks for
another life. If so, `judge` charges the death to a budget and names what to do: restart after a delay, try
half-open, or give up. `affected` says which siblings go down with it and come back with it. A failed restart
is a death like any other (`FailedToStart`), so a child that cannot start uses up the same budget.

Two things are counted, and they differ:

- *Restarts*, in a sliding window (`RestartWindow`): the supervisor's, or the child's own if its spec has an
  `intensity`. They decide when to give up.
- *Deaths in a row* (`DeathRecord.attempt`): they decide the backoff. A life that outlived the budget's period, or
  that reported progress, starts the row afresh. Progress also empties a child's own window, since such a
  budget means "deaths without progress"; the supervisor's window is OTP's, and progress leaves it alone.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import ClassVar

from actors.supervision.spec import (
    Backoff,
    ChildSpec,
    Intensity,
    OnExhausted,
    Restart,
    Strategy,
)


@dataclass(frozen=True, slots=True)
class Normal:
    """The child returned without having been asked to."""

    name: ClassVar[str] = "normal"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Stopped:
    """The child ended because it was asked to: OTP's reason `shutdown`."""

    name: ClassVar[str] = "shutdown"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Killed:
    """The child was cancelled hard: brutal_kill, a shutdown budget that ran out, or `Supervisor.kill`."""

    name: ClassVar[str] = "killed"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Crashed:
    """The child raised `exception`; a group is kept whole."""

    name: ClassVar[str] = "crashed"
    exception: Exception

    def __str__(self) -> str:
        return f"crashed: {self.exception!r}"


@dataclass(frozen=True, slots=True)
class FailedToStart:
    """The child ended before it was ready."""

    name: ClassVar[str] = "start_failed"
    exception: Exception

    def __str__(self) -> str:
        return f"start failed: {self.exception!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalated:
    """The child, a supervisor, gave up: its child `offender` died once too often, at last of `reason`."""

    name: ClassVar[str] = "escalated"
    supervisor: str
    offender: str
    reason: "ExitReason"

    def __str__(self) -> str:
        return f"escalated: {self.offender!r} exhausted its restarts ({self.reason})"


ExitReason = Normal | Stopped | Killed | Crashed | FailedToStart | Escalated
"""Why a child is not alive."""


def is_abnormal(reason: ExitReason) -> bool:
    """Whether `reason` is a failure. Cancellation asked for by a supervisor (`Stopped`) never is."""
    return not isinstance(reason, (Normal, Stopped))


def wants_restart(restart: Restart, reason: ExitReason) -> bool:
    """Whether a child of this restart type is started again after ending by itself for `reason`."""
    if restart is Restart.TRANSIENT:
        return is_abnormal(reason)
    return restart is Restart.PERMANENT


def affected(strategy: Strategy, order: Collection[str], failed: str) -> tuple[str, ...]:
    """The children that are restarted when `failed` is, in start order; they are terminated in reverse.

    `order` names all children in start order. Children of `order` that are not running are started as well,
    as in OTP: a transient child that has ended returns with its group. Temporary ones end with their group
    and do not return. Raises ValueError if `failed` is not in `order`.
    """
    # Comes first, because dynamic supervisors hold thousands of children.
    if strategy is Strategy.ONE_FOR_ONE:
        return (failed,)
    names = tuple(order)
    if failed not in names:
        raise ValueError(f"{failed!r} is not a child here; the children are {', '.join(map(repr, names))}")
    return names if strategy is Strategy.ONE_FOR_ALL else names[names.index(failed) :]


@dataclass(frozen=True, slots=True)
class RestartWindow:
    """The restarts of the last `intensity.period` seconds.

    The boundary is OTP's (`in_period` in supervisor.erl): a restart exactly one period old still counts.
    """

    intensity: Intensity
    times: tuple[float, ...] = ()

    def add(self, now: float) -> "RestartWindow":
        """The window after one more restart at `now`, which must not lie before earlier ones."""
        oldest = now - self.intensity.period
        return replace(self, times=(*(t for t in self.times if t >= oldest), now))

    @property
    def exceeded(self) -> bool:
        """Whether the budget is used up: more restarts than `intensity.restarts`."""
        return len(self.times) > self.intensity.restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathRecord:
    """What a supervisor remembers of a child's deaths.

    `attempt` counts deaths in a row. `window` is the child's own budget; it is None if the supervisor's is
    charged. `exhausted` stays set through half-open attempts until one of them progresses or outlives the
    period.
    """

    window: RestartWindow | None = None
    attempt: int = 0
    exhausted: bool = False

    @classmethod
    def of(cls, spec: ChildSpec) -> "DeathRecord":
        """The record of a child that has never died."""
        return cls(window=RestartWindow(spec.intensity) if spec.intensity else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A death as the decision needs it: `uptime` is 0 for a failed start, `sample` is uniform in [0, 1)."""

    now: float
    uptime: float
    progressed: bool
    sample: float


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Restart the child, and its group, after `delay` seconds (0: now)."""

    delay: float


@dataclass(frozen=True, slots=True)
class RetryHalfOpen:
    """The child's own budget is used up: try it once more after `delay` seconds, leaving its siblings alone.

    `again` says that this is no news: the budget was used up at the death before, and no life since has made
    up for that.
    """

    delay: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The budget is used up: the supervisor stops its children and escalates."""


Action = RestartAfter | RetryHalfOpen | GiveUp
"""What to do about a death that asks for a restart."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do, and what to remember: the child's record and the supervisor's window."""

    action: Action
    record: DeathRecord
    shared: RestartWindow = field(repr=False)


def judge(
    record: DeathRecord, shared: RestartWindow, death: Death, *, on_exhausted: OnExhausted, backoff: Backoff
) -> Judgement:
    """Charge a death to the child's own window if it has one, else to `shared`, and say what follows.

    Cases, in order: a life with progress clears the child's own budget and is not charged to it; a long life
    starts the row of deaths afresh; an exhausted child stays half-open; an exceeded window escalates or
    opens.
    """
    own = record.window
    period = (own or shared).intensity.period
    if death.progressed or death.uptime >= period:
        record = replace(record, attempt=0, exhausted=False)
    record = replace(record, attempt=record.attempt + 1)
    if own is None:
        charged = shared = shared.add(death.now)
    else:
        charged = replace(own, times=()) if death.progressed else own.add(death.now)
        record = replace(record, window=charged)
    if not (charged.exceeded or record.exhausted):
        return Judgement(RestartAfter(backoff.delay(record.attempt, death.sample)), record, shared)
    if on_exhausted is OnExhausted.ESCALATE:
        return Judgement(GiveUp(), record, shared)
    action = RetryHalfOpen(backoff.delay_at_cap(death.sample), again=record.exhausted)
    return Judgement(action, replace(record, exhausted=True), shared)
