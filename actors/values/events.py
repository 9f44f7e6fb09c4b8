"""The closed list of event names. Everything else about an event is a key beside the name."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


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
    REPOSITORY_CHANGED = "repository_changed"
    REPOSITORY_UNAVAILABLE = "repository_unavailable"
    COPY_ABANDONED = "copy_abandoned"
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
    WORKER_READY = "worker_ready"
    WORKER_EXITED = "worker_exited"
    WORKER_UNCONFINED = "worker_unconfined"
    WORKER_OUTPUT = "worker_output"
    WORKER_RECYCLED = "worker_recycled"
    SPARE_STARTED = "spare_started"
    SPARE_LOST = "spare_lost"
    LISTENER_OPENED = "listener_opened"
    LISTENER_CLOSED = "listener_closed"
    LISTENER_EXHAUSTED = "listener_exhausted"
    CONNECTION_REFUSED = "connection_refused"
    ACCESS_REFUSED = "access_refused"
    FILES_RELOADED = "files_reloaded"
    RELOAD_FAILED = "reload_failed"
    AUDIT_AVAILABLE = "audit_available"
    AUDIT_UNAVAILABLE = "audit_unavailable"
    CERTIFICATE_DOUBTFUL = "certificate_doubtful"
    FAULT_INJECTED = "fault_injected"
    LOG_LINES_LOST = "log_lines_lost"
    PYTHON_WARNING = "python_warning"
    PYTHON_ERROR = "python_error"

    def __str__(self) -> str:
        return self.value


class Log(Protocol):
    """Where events go. Never raises, never waits."""

    def __call__(self, event: Event, *, level: str = "info", **keys: object) -> None:
        """Record that `event` happened; `level` is info, warning, error or debug."""
