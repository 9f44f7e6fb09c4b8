"""The closed list of event names. Everything else about an event is a key beside the name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, Protocol


class Event(str, Enum):
    """The `noun_verb` names of logged events; a name that is not here is not an event."""

    SERVER_STARTING = "server_starting"
    SERVER_OPENED = "server_opened"
    SERVER_CONFIGURED = "server_configured"
    SERVER_LOADED = "server_loaded"
    SERVER_READY = "server_ready"
    SERVER_FAILED = "server_failed"
    SERVER_RELOADING = "server_reloading"
    SERVER_DRAINING = "server_draining"
    SERVER_STOPPED = "server_stopped"
    REQUEST_ACCEPTED = "request_accepted"
    REQUEST_REJECTED = "request_rejected"
    REQUEST_COMPLETED = "request_completed"
    REQUEST_FAILED = "request_failed"
    REQUEST_CANCELLED = "request_cancelled"
    REQUEST_POISONED = "request_poisoned"
    REQUEST_QUARANTINED = "request_quarantined"
    BATCH_DISPATCHED = "batch_dispatched"
    BATCH_COMPLETED = "batch_completed"
    BATCH_BISECTED = "batch_bisected"
    SEQUENCE_STARTED = "sequence_started"
    MODEL_LOADING = "model_loading"
    MODEL_READY = "model_ready"
    MODEL_DEGRADED = "model_degraded"
    MODEL_UNLOADING = "model_unloading"
    MODEL_UNAVAILABLE = "model_unavailable"
    MODEL_LOAD_FAILED = "model_load_failed"
    MODEL_SWAPPED = "model_swapped"
    MODEL_SCALED = "model_scaled"
    MODEL_EVICTED = "model_evicted"
    MODEL_SLEPT = "model_slept"
    MODEL_WOKEN = "model_woken"
    MODEL_KEPT_AWAKE = "model_kept_awake"
    ADAPTERS_CHANGED = "adapters_changed"
    REPOSITORY_CHANGED = "repository_changed"
    REPOSITORY_UNAVAILABLE = "repository_unavailable"
    COPY_ABANDONED = "copy_abandoned"
    AGENT_OUTPUT = "agent_output"
    AGENT_FAILED = "agent_failed"
    ENVIRONMENT_BUILDING = "environment_building"
    ENVIRONMENT_BUILT = "environment_built"
    TRAFFIC_CHANGED = "traffic_changed"
    TRAFFIC_ROLLED_BACK = "traffic_rolled_back"
    READINESS_CHANGED = "readiness_changed"
    CACHE_ENTRY_SKIPPED = "cache_entry_skipped"
    CACHE_AVAILABLE = "cache_available"
    CACHE_UNAVAILABLE = "cache_unavailable"
    CACHE_FAILED = "cache_failed"
    CHILD_STARTED = "child_started"
    CHILD_EXITED = "child_exited"
    CHILD_RESTARTED = "child_restarted"
    CHILD_START_FAILED = "child_start_failed"
    CHILD_KILL_FORCED = "child_kill_forced"
    RESTARTS_EXHAUSTED = "restarts_exhausted"
    WORKER_STARTED = "worker_started"
    WORKER_LOADING = "worker_loading"
    WORKER_READY = "worker_ready"
    WORKER_EXITED = "worker_exited"
    WORKER_UNCONFINED = "worker_unconfined"
    WORKER_OUTPUT = "worker_output"
    WORKER_RECYCLED = "worker_recycled"
    BATCHES_EASED = "batches_eased"
    SPARE_STARTED = "spare_started"
    SPARE_LOST = "spare_lost"
    LISTENER_OPENED = "listener_opened"
    LISTENER_CLOSED = "listener_closed"
    LISTENER_EXHAUSTED = "listener_exhausted"
    CONNECTION_REFUSED = "connection_refused"
    ACCESS_REFUSED = "access_refused"
    GPUS_UNAVAILABLE = "gpus_unavailable"
    FILES_RELOADED = "files_reloaded"
    RELOAD_FAILED = "reload_failed"
    AUDIT_AVAILABLE = "audit_available"
    AUDIT_UNAVAILABLE = "audit_unavailable"
    TRACES_LOST = "traces_lost"
    CERTIFICATE_DOUBTFUL = "certificate_doubtful"
    FAULT_INJECTED = "fault_injected"
    TRACES_NOT_EXPORTED = "traces_not_exported"
    LOG_LINES_LOST = "log_lines_lost"
    EVENTS_MISSED = "events_missed"
    LOG_FILE_KEPT = "log_file_kept"
    LOG_SETTINGS_CHANGED = "log_settings_changed"
    PYTHON_WARNING = "python_warning"
    PYTHON_ERROR = "python_error"

    def __str__(self) -> str:
        return self.value


class Log(Protocol):
    """Where events go. Never raises, never waits."""

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Record that `event` happened; `level` is info, warning, error or debug."""


LOGGED_ONLY: Final = frozenset(
    {
        Event.REQUEST_ACCEPTED,
        Event.REQUEST_REJECTED,
        Event.REQUEST_COMPLETED,
        Event.REQUEST_FAILED,
        Event.REQUEST_CANCELLED,
        Event.REQUEST_POISONED,
        Event.BATCH_DISPATCHED,
        Event.BATCH_COMPLETED,
        Event.SEQUENCE_STARTED,
        Event.CONNECTION_REFUSED,
        Event.ACCESS_REFUSED,
        Event.CACHE_ENTRY_SKIPPED,
        Event.WORKER_OUTPUT,
        Event.AGENT_OUTPUT,
    }
)
"""Events that the log alone tells: there may be one for each request, connection or line of output.

In the stream of events they would push out everything else.
"""

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
"""The levels of events, the least severe first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEvent:
    """An event as the stream has it.

    `model` is the model that it is about, or empty. `text` is the record, one JSON object as in the log.
    """

    event: str
    level: str
    model: str = ""
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEvents:
    """Which events a follower wants. Empty fields ask for nothing; of several values in one any will do.

    `models` and `events` take the wildcards of a shell. `level` is the least severe that is wanted.
    """

    models: Sequence[str] = ()
    events: Sequence[str] = ()
    level: str = ""

    def wants(self, told: ToldEvent) -> bool:
        """Whether `told` is one of those."""
        return (
            (not self.level or LEVELS.index(told.level) >= LEVELS.index(self.level))
            and (not self.events or any(fnmatchcase(told.event, each) for each in self.events))
            and (not self.models or any(fnmatchcase(told.model, each) for each in self.models))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What a follower is given at once: events with their ids, oldest first; none where all is quiet.

    `upto` is the id to go on after. Where `gap` is true, events before these were dropped before the follower
    took them: `missed` of them, or None where that is unknown.
    """

    events: Sequence[tuple[str, ToldEvent]] = ()
    upto: str
    gap: bool = False
    missed: int | None = 0


class Following(Protocol):
    """One follower's place in the stream. To be closed at the end."""

    async def take(self) -> Portion | None:
        """Wait for more, or for the time to show that the stream lives; None at its end."""

    def close(self) -> None:
        """Give up the place."""


class EventStream(Protocol):
    """The events of a server, and who follows them."""

    def follow(
        self, wanted: WantedEvents, after: str | None, *, live: bool = True, outlives_draining: bool = False
    ) -> Following:
        """Follow the events that are told after the one with id `after`, as far as they are still kept.

        None: from now on. Empty: from the oldest that is kept. Without `live` the stream ends with the
        newest. One that outlives draining ends with the server, others as it begins to drain. Raises
        InvalidArgument for what is no id, and Unavailable where there are as many followers as there may be.
        """
