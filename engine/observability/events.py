"""Events as the server tells them, through structlog: those of actors, and those of supervisors."""

from __future__ import annotations

from typing import Final, assert_never

import structlog
from structlog.typing import FilteringBoundLogger

from actors.supervision import events
from actors.supervision.restart import Crashed, ExitReason, FailedToStart
from actors.values.events import Event


class EventLog:
    """Events to structlog. Implements `actors.values.events.Log`."""

    def __init__(self) -> None:
        self._logger = structlog.get_logger()

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Write one event."""
        getattr(self._logger, level)(event, **keys)


# -- what supervisors report, as log lines
#
# The supervisor alone logs a crash, so this is where tracebacks come from.

_BY_NAME: Final = {event.value: event for event in Event}


def supervision_observer(log: FilteringBoundLogger) -> events.Observer:
    """Return an observer that logs each event through `log`, at the level its meaning has for an operator."""
    log = log.bind()  # so that a level that is off costs nothing

    def observe(event: events.SupervisionEvent) -> None:
        name = _BY_NAME[event.name]
        match event:
            case events.ChildStarted():
                log.debug(name, verbose=2, actor=event.path)
            case events.ChildRestarted():
                log.info(name, actor=event.path, restarts=event.restarts)
            case events.ChildExited(context=events.Context() as context):
                # A permanent child that merely returned is restarted, and nothing is broken.
                tell = log.error if isinstance(event.reason, Crashed) else log.warning
                tell(name, actor=event.path, context=context.value, **_why(event.reason))
            case events.ChildExited():
                log.debug(name, verbose=2, actor=event.path, reason=event.reason.name)
            case events.ChildStartFailed():
                log.error(name, actor=event.path, context=event.context.value, **_why(event.reason))
            case events.ChildKillForced():
                log.warning(name, actor=event.path, context=event.context.value, grace=event.grace)
            case events.RestartsExhausted():
                # The deaths themselves have been logged, with their tracebacks.
                outcome = "half_open" if event.context is None else event.context.value
                log.error(
                    name,
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
