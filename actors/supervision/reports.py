"""Which facts a supervisor reports, and in which of OTP's contexts."""

from actors.supervision.child import Child, Life, Purpose
from actors.supervision.events import (
    ChildExited,
    ChildKillForced,
    ChildRestarted,
    ChildStarted,
    ChildStartFailed,
    Context,
    Observer,
    RestartsExhausted,
)
from actors.supervision.restart import Crashed, Escalated, ExitReason, FailedToStart, Killed, is_abnormal
from actors.supervision.spec import ChildSpec, Restart


class Reports:
    """Tells one observer, if there is one, about the children of one supervisor."""

    def __init__(self, supervisor: str, observer: Observer | None) -> None:
        self._supervisor = supervisor
        self._observer = observer

    def ready(self, child: Child, life: Life) -> None:
        """The child is up."""
        if self._observer is None:
            return
        if life.purpose is Purpose.RESTART:
            self._observer(ChildRestarted(self._supervisor, child.path, child.spec, child.restarts))
        else:
            self._observer(ChildStarted(self._supervisor, child.path, child.spec))

    def exited(self, child: Child, life: Life, reason: ExitReason, *, asked: bool, swept: bool) -> None:
        """The child is down: asked to stop, swept away by a cancellation from outside, or by itself.

        Nothing is reported of a child that was stopped before it was ready, unless it crashed over that.
        """
        if self._observer is None:
            return
        if isinstance(reason, FailedToStart):
            if not swept:
                self._observer(ChildStartFailed(self._supervisor, child.path, child.spec, reason))
        elif life.ready_at is not None or isinstance(reason, Crashed):
            context = None if swept else exit_context(child.spec, reason, asked=asked)
            self._observer(ChildExited(self._supervisor, child.path, child.spec, reason, context))

    def kill_forced(self, child: Child) -> None:
        """The child has used up its shutdown budget."""
        if self._observer is not None:
            self._observer(ChildKillForced(self._supervisor, child.path, child.spec, child.spec.grace))

    def exhausted(self, child: Child, reason: ExitReason, context: Context | None) -> None:
        """The child has used up a restart budget."""
        if self._observer is not None:
            self._observer(RestartsExhausted(self._supervisor, child.path, child.spec, reason, context))


def exit_context(spec: ChildSpec, reason: ExitReason, *, asked: bool) -> Context | None:
    """Which of OTP's reports the exit of a child that was ready deserves: None if it went as it should."""
    match reason:
        case Crashed() | Escalated():
            return Context.SHUTDOWN_ERROR if asked else Context.CHILD_TERMINATED
        case Killed() if asked:
            # brutal_kill asks for no less.
            return Context.SHUTDOWN_ERROR if spec.grace else None
    expected = asked or (spec.restart is not Restart.PERMANENT and not is_abnormal(reason))
    return None if expected else Context.CHILD_TERMINATED
