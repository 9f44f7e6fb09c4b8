"""Events as the server tells them, through structlog: those of actors, and those of supervisors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from actors.supervision import events
from actors.supervision.restart import Crashed, ExitReason, FailedToStart
from actors.values.events import Event, Log
from engine.observability.structured import structlog


class EventLog:
    """Events to structlog. Implements `actors.values.events.Log`."""

    def __init__(self) -> None:
        self._logger = structlog.get_logger()

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Write one event."""
        getattr(self._logger, level)(event, **keys)


# -- what supervisors report
#
# The supervisor alone logs a crash, so this is where tracebacks come from.

_OF_LIVES: Final = 2  # the verbose level of children that start and end as they should
_BY_NAME: Final = {event.value: event for event in Event}


def supervision_observer(log: Log, verbose: Callable[[], int] = lambda: _OF_LIVES) -> events.Observer:
    """Return an observer that tells `log` of each event, at the level its meaning has for an operator.

    `verbose` is the level of verbose lines at the moment, so that what is below it costs a call and no more.
    """

    def observe(event: events.SupervisionEvent) -> None:
        name = _BY_NAME[event.name]
        match event:
            case events.ChildStarted():
                if verbose() >= _OF_LIVES:
                    log(name, level="debug", verbose=_OF_LIVES, actor=event.path)
            case events.ChildRestarted():
                log(name, actor=event.path, restarts=event.restarts)
            case events.ChildExited(context=events.Context() as context):
                # A permanent child that merely returned is restarted, and nothing is broken.
                level = "error" if isinstance(event.reason, Crashed) else "warning"
                log(name, level=level, actor=event.path, context=context.value, **_why(event.reason))
            case events.ChildExited():
                if verbose() >= _OF_LIVES:
                    why = event.reason.name
                    log(name, level="debug", verbose=_OF_LIVES, actor=event.path, reason=why)
            case events.ChildStartFailed():
                log(
                    name,
                    level="error",
                    actor=event.path,
                    context=event.context.value,
                    **_why(event.reason),
                )
            case events.ChildKillForced():
                log(
                    name,
                    level="warning",
                    actor=event.path,
                    context=event.context.value,
                    grace=event.grace,
                )
            case events.RestartsExhausted():
                # The deaths themselves have been logged, with their tracebacks.
                outcome = "half_open" if event.context is None else event.context.value
                log(
                    name,
                    level="error",
                    actor=event.path,
                    supervisor=event.supervisor,
                    context=outcome,
                    reason=str(event.reason),
                )

            case _:
                assert_never(event)

    return observe


def _why(reason: ExitReason) -> dict[str, object]:
    if isinstance(reason, Crashed | FailedToStart):
        return {"reason": str(reason), "exc_info": reason.exception}
    return {"reason": str(reason)}
