"""Events as the server tells them: through structlog."""

from __future__ import annotations

import structlog

from actors.values.events import Event


class EventLog:
    """Events to structlog. Implements `actors.values.events.Log`."""

    def __init__(self) -> None:
        self._logger = structlog.get_logger()

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Write one event."""
        getattr(self._logger, level)(event, **keys)
