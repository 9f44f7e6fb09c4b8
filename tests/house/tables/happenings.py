"""The page of events, docs/reference/event_names.md, from the closed list of their names."""

from __future__ import annotations

from typing import Final

from actors.values.events import LOGGED_ONLY, Event
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "event_names.md"

_ABOUT: Final = {
    Event.SERVER_STARTING: "a warning about the settings, at the start",
    Event.SERVER_OPENED: "who can reach what: addresses, credentials, uploads, sandbox, TLS",
    Event.SERVER_CONFIGURED: "the options that are not at their defaults",
    Event.SERVER_LOADED: "the models of the start, with their states",
    Event.SERVER_READY: "all models of the start are loaded, and the server serves",
    Event.SERVER_FAILED: "why the server can't start, or has ended",
    Event.SERVER_RELOADING: "SIGHUP came: files are read again",
    Event.SERVER_DRAINING: "a signal to end came: new requests are refused, accepted ones are finished",
    Event.SERVER_STOPPED: "everything has ended",
    Event.REQUEST_ACCEPTED: "a request is in the queue of its model",
    Event.REQUEST_REJECTED: "a request was refused before it ran",
    Event.REQUEST_COMPLETED: "a request was answered",
    Event.REQUEST_FAILED: "a request ended with an error",
    Event.REQUEST_CANCELLED: "a client left, or asked to stop",
    Event.REQUEST_POISONED: "a request was refused because it had killed workers",
    Event.REQUEST_QUARANTINED: "inputs that kill workers are refused from now on",
    Event.BATCH_DISPATCHED: "a batch was given to an instance",
    Event.BATCH_COMPLETED: "an instance has executed a batch",
    Event.BATCH_BISECTED: "a batch whose worker died runs again in halves, to find the guilty request",
    Event.SEQUENCE_STARTED: "a sequence began",
    Event.MODEL_LOADING: "a version is being loaded; also what went wrong with an attempt",
    Event.MODEL_READY: "a version serves",
    Event.MODEL_DEGRADED: "an instance has used up its restarts; the others serve",
    Event.MODEL_UNLOADING: "a version takes no more requests, and finishes those that it has",
    Event.MODEL_UNAVAILABLE: "a version does not serve, and why",
    Event.MODEL_LOAD_FAILED: "a load failed; what served before still serves",
    Event.MODEL_SWAPPED: "requests go to the new version now",
    Event.MODEL_SCALED: "the number of instances was changed",
    Event.MODEL_EVICTED: "a model on demand left, because memory was wanted",
    Event.MODEL_SLEPT: "a language model gave up memory, and its processes stay",
    Event.MODEL_WOKEN: "it has its memory back",
    Event.MODEL_KEPT_AWAKE: "it could not be put to sleep, and why",
    Event.ADAPTERS_CHANGED: "LoRA adapters were loaded or unloaded",
    Event.REPOSITORY_CHANGED: "a model's files were added, changed or removed",
    Event.REPOSITORY_UNAVAILABLE: "a repository can't be read",
    Event.COPY_ABANDONED: "a copy of a repository could not be removed",
    Event.AGENT_OUTPUT: "a line that a repository agent printed",
    Event.AGENT_FAILED: "a repository agent failed",
    Event.ENVIRONMENT_BUILDING: "a Python model's environment is being made",
    Event.ENVIRONMENT_BUILT: "it is there",
    Event.TRAFFIC_CHANGED: "the shares of versions were changed",
    Event.TRAFFIC_ROLLED_BACK: "a version lost its share, because it broke a rule",
    Event.READINESS_CHANGED: "the server became ready, or is no longer",
    Event.CACHE_ENTRY_SKIPPED: "an answer was too large to be kept",
    Event.CACHE_AVAILABLE: "the response cache answers again",
    Event.CACHE_UNAVAILABLE: "the response cache does not answer",
    Event.CACHE_FAILED: "a bug in the response cache; requests go on without it",
    Event.CHILD_STARTED: "a supervisor started an actor",
    Event.CHILD_EXITED: "an actor ended, and of what",
    Event.CHILD_RESTARTED: "a supervisor started it again",
    Event.CHILD_START_FAILED: "an actor could not be started",
    Event.CHILD_KILL_FORCED: "an actor did not end in time, and was cancelled",
    Event.RESTARTS_EXHAUSTED: "a supervisor gave up: too many restarts in too short a time",
    Event.WORKER_STARTED: "a worker process was started",
    Event.WORKER_LOADING: "what a worker is at, while it loads",
    Event.WORKER_READY: "its model is loaded and warm",
    Event.WORKER_EXITED: "a worker died, and of what",
    Event.WORKER_UNCONFINED: "a part of the sandbox could not be had",
    Event.WORKER_OUTPUT: "a line that a model printed",
    Event.WORKER_RECYCLED: "a worker was replaced by a fresh one, as configured",
    Event.BATCHES_EASED: "batches are smaller for a while, because memory ran short",
    Event.SPARE_STARTED: "a spare worker waits",
    Event.SPARE_LOST: "a spare worker died",
    Event.LISTENER_OPENED: "a port is open",
    Event.LISTENER_CLOSED: "a port is closed",
    Event.LISTENER_EXHAUSTED: "no connections are accepted for a while: no descriptors are left",
    Event.CONNECTION_REFUSED: "a connection was refused, and why",
    Event.ACCESS_REFUSED: "an identity was refused something",
    Event.GPUS_UNAVAILABLE: "there are no metrics of GPUs, and why",
    Event.FILES_RELOADED: "certificates or the auth file were read again",
    Event.RELOAD_FAILED: "such a file is bad; what was read before holds",
    Event.AUDIT_AVAILABLE: "the audit log can be written again",
    Event.AUDIT_UNAVAILABLE: "the audit log can't be written",
    Event.TRACES_LOST: "the trace file can't be written",
    Event.CERTIFICATE_DOUBTFUL: "a certificate expires soon, or has",
    Event.FAULT_INJECTED: "only under chaos tests: a fault was put in",
    Event.TRACES_NOT_EXPORTED: "the OpenTelemetry collector did not take spans",
    Event.LOG_LINES_LOST: "lines of the log were dropped, and how many",
    Event.EVENTS_MISSED: "only in the stream: events were dropped before this client took them",
    Event.LOG_FILE_KEPT: "the log file could not be changed; the one before goes on",
    Event.LOG_SETTINGS_CHANGED: "what is logged was changed while the server runs",
    Event.PYTHON_WARNING: "a warning of a Python library in the server",
    Event.PYTHON_ERROR: "an error that no code was there to handle",
}

_INTRODUCTION: Final = """\
# Names of events

This page is written by `python -m tests.house.reference` from the closed list in `actors/values/events.py`. A
record of the log, or of the [stream of events](../events.md), has one of these names, and everything else as
keys beside it. [logs.md](../logs.md) says how to read the log.

| event | | |
|---|---|---|
"""


def page() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(map(_row, Event))


def _row(event: Event) -> str:
    where = "in the log alone" if event in LOGGED_ONLY else ""
    return f"| `{event}` | {_ABOUT[event]} | {where} |\n"
