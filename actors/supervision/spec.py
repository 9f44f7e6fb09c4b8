"""What a supervisor is told about its children: OTP's child specs and supervisor flags, as checked values.

Nothing here runs. The words are OTP's (`supervisor(3)`), and so are the rules about which of them go
together; two fields are ours and say so: a child's own restart budget (`intensity`, `on_exhausted`) and its
`backoff`.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

# The argument is an `actors.supervision.context.ChildContext`. It is spelled Any because this module is pure
# and the context is not: naming it here would load trio wherever a spec is written.
StartFunction = Callable[[Any], Awaitable[object]]
"""`async def start(ctx: ChildContext)`: calls `ctx.started()` when ready, and lives as long as the child."""

DEFAULT_GRACE = 5.0
"""Seconds a worker is given to stop: the default of OTP's child specs."""


class Strategy(Enum):
    """Which siblings share a dead child's fate."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


class Restart(Enum):
    """Which exits of a child are followed by a restart.

    A permanent child is always restarted, a transient one after an abnormal exit only, a temporary one never
    (and its spec is forgotten when it ends).
    """

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


class Kind(Enum):
    """Whether a child does work or watches over others."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"


class Shutdown(Enum):
    """How long a child may take to stop, if that is not a number of seconds."""

    BRUTAL_KILL = "brutal_kill"
    INFINITY = "infinity"


class OnExhausted(Enum):
    """What follows when a child has used up a restart budget of its own.

    `ESCALATE` gives up the whole supervisor, as OTP does. `RETRY_AT_CAP` is half-open: the child is tried
    again at the backoff's cap for as long as it takes, and its siblings never notice.
    """

    ESCALATE = "escalate"
    RETRY_AT_CAP = "retry_at_cap"


@dataclass(frozen=True, slots=True)
class Intensity:
    """A restart budget: up to `restarts` within any `period` seconds are allowed, one more is too many."""

    restarts: int
    period: float

    def __post_init__(self) -> None:
        if self.restarts < 0:
            raise ValueError(
                f"Intensity.restarts is {self.restarts}; 0 bears no restart at all, fewer means nothing"
            )
        if not 0 < self.period < math.inf:
            raise ValueError(
                f"Intensity.period is {self.period} s; the window needs a positive, finite length, such as 5.0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before a restart, as a function of how many deaths came in a row.

    The first restart is immediate unless `first_immediate` is false: most crashes are not repeated, and a
    caller is waiting. Then `initial` seconds, growing by `factor` up to `cap`. Jitter shortens a delay by up
    to that share of it, so no delay exceeds the cap, and children that died together do not all return
    together.
    """

    initial: float = 0.1
    factor: float = 2.0
    cap: float = 30.0
    jitter: float = 0.5
    first_immediate: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.initial <= self.cap < math.inf:
            raise ValueError(
                f"Backoff needs 0 <= initial <= cap < inf, but initial is {self.initial} and cap is {self.cap}"
            )
        if not 1 <= self.factor < math.inf:
            raise ValueError(
                f"Backoff.factor is {self.factor}; delays must not shrink, so it is at least 1.0"
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(
                f"Backoff.jitter is {self.jitter}; it is the share of a delay, between 0.0 and 1.0"
            )

    def delay(self, attempt: int, sample: float) -> float:
        """The wait in seconds before restart `attempt` (1 is the first), given `sample` uniform in [0, 1)."""
        if attempt < 1:
            raise ValueError(f"restart attempts count from 1, not {attempt}")
        if self.first_immediate and attempt == 1:
            return 0.0
        exponent = attempt - 2 if self.first_immediate else attempt - 1
        return self._jittered(self._grown(exponent), sample)

    def delay_at_cap(self, sample: float) -> float:
        """The wait in seconds between half-open attempts, given `sample` uniform in [0, 1)."""
        return self._jittered(self.cap, sample)

    def _grown(self, exponent: int) -> float:
        if self.initial == 0 or self.factor == 1:
            return self.initial
        # Compare exponents, not delays: 2.0**1100 raises OverflowError, and a crash loop can get there.
        if exponent >= math.log(self.cap / self.initial, self.factor):
            return self.cap
        return min(self.cap, self.initial * self.factor**exponent)

    def _jittered(self, delay: float, sample: float) -> float:
        return delay * (1.0 - self.jitter * sample)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child: what starts it, when it is started again, and how it is stopped.

    `name` is a segment of the tree path and may itself hold segments (`resnet/3`). `shutdown` is a number of
    seconds or a `Shutdown`; None means five seconds for a worker and infinity for a supervisor. `intensity`
    gives the child a restart budget of its own, charged instead of its supervisor's; `on_exhausted` says what
    happens when it is used up. `backoff` replaces the supervisor's.

    Raises ValueError, saying what would have worked, for fields that contradict one another.
    """

    name: str
    start: StartFunction
    _: KW_ONLY
    restart: Restart = Restart.PERMANENT
    kind: Kind = Kind.WORKER
    shutdown: Shutdown | float | None = None
    intensity: Intensity | None = None
    on_exhausted: OnExhausted = OnExhausted.ESCALATE
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        name = self.name
        if not name or name[0] == "/" or name[-1] == "/" or "//" in name:
            raise ValueError(f"child name {name!r} is no tree path; write it as 'resnet' or 'resnet/3'")
        if not callable(self.start):
            raise TypeError(
                f"child {name!r}: start is {self.start!r}; pass the function itself, uncalled, taking a ChildContext"
            )
        if isinstance(self.shutdown, (int, float)) and not 0 < self.shutdown < math.inf:
            raise ValueError(
                f"child {name!r}: shutdown is {self.shutdown} s; for no time at all use Shutdown.BRUTAL_KILL, "
                "for all the time it takes Shutdown.INFINITY"
            )
        self._check_budget()

    @property
    def grace(self) -> float:
        """Seconds between asking the child to stop and cancelling it: 0 for brutal_kill, inf for infinity."""
        match self.shutdown:
            case Shutdown.BRUTAL_KILL:
                return 0.0
            case Shutdown.INFINITY:
                return math.inf
            case None:
                return math.inf if self.kind is Kind.SUPERVISOR else DEFAULT_GRACE
            case seconds:
                return seconds

    def _check_budget(self) -> None:
        if self.on_exhausted is OnExhausted.RETRY_AT_CAP and self.intensity is None:
            raise ValueError(
                f"child {self.name!r}: retry_at_cap follows a budget of the child's own; pass intensity as well"
            )
        if self.intensity is not None and self.restart is Restart.TEMPORARY:
            raise ValueError(
                f"child {self.name!r} is temporary and never restarted, so a restart budget means nothing"
            )


DEFAULT_INTENSITY = Intensity(3, 5.0)
"""Elixir's default. OTP's own, 1 in 5 seconds, gives up at the second crash of anything."""

DEFAULT_BACKOFF = Backoff()
"""At once, then 0.1 s, doubling up to 30 s, less up to half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """How a supervisor treats its children: OTP's `sup_flags`, and the default backoff of its children."""

    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: Intensity = DEFAULT_INTENSITY
    backoff: Backoff = DEFAULT_BACKOFF


def check_children(children: tuple[ChildSpec, ...]) -> None:
    """Raise ValueError if these specs cannot stand under one supervisor (OTP's `check_childspecs`)."""
    seen: set[str] = set()
    for spec in children:
        if spec.name in seen:
            raise ValueError(f"two children are named {spec.name!r}; names are unique under one supervisor")
        seen.add(spec.name)
