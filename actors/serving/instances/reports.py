"""What a worker says of itself: that it has loaded its model or could not, log lines, and its readiness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from actors.serving.instances.pipe import Pipe
from actors.wire import frames
from actors.wire.frames import FrameError

LOG_LEVELS: Final = frozenset({"info", "warning", "error", "verbose"})

_MOST_TEXTS: Final = 16
_MOST_PHASES: Final = 64  # of one load; what a worker tells beyond is dropped


class ReportEvents(Protocol):
    """What is told to a worker's owner. The calls are synchronous, while a packet is handled."""

    def ready(self) -> None:
        """The model is loaded."""

    def unconfined(self, missing: Sequence[str]) -> None:
        """The worker could not impose some limits on itself, each given with its reason."""

    def load_failed(self, message: str, traceback: str) -> None:
        """The model can't be loaded; the worker is about to exit."""

    def entered(self, phase: str) -> None:
        """The load is busy with something else now."""

    def logged(self, level: str, message: str) -> None:
        """The model wrote a log line."""


class WorkerReports:
    """Reads the reports of one worker. Each handler raises FrameError for what no sound worker says."""

    def __init__(self, pipe: Pipe, events: ReportEvents) -> None:
        self.has_check = False  # the model has a readiness check of its own
        self.facts: Mapping[str, Any] = {}  # what its backend says of the model
        self._phases = 0
        self._pipe = pipe
        self._events = events
        self._probing = False  # it has been asked, and has not answered
        self._curious: list[Callable[[bool], None]] = []

    def on_ready(self, packet: bytes) -> None:
        """Handle `READY`."""
        body = frames.decode_json(packet)
        self.has_check = bool(body.get("asks"))
        facts = body.get("facts", {})
        if not isinstance(facts, dict):
            raise FrameError(f"a worker's facts are of type {type(facts).__name__}")
        self.facts = facts
        unapplied = _texts(body, "unapplied")
        if unapplied:
            self._events.unconfined(unapplied)
        self._events.ready()

    def on_load_failed(self, packet: bytes) -> None:
        """Handle `LOAD_FAILED`."""
        body = frames.decode_json(packet)
        self._events.load_failed(_text(body, "message"), _text(body, "traceback"))

    def on_phase(self, packet: bytes) -> None:
        """Handle `PHASE`."""
        phase = _text(frames.decode_json(packet), "phase")
        self._phases += 1
        if self._phases <= _MOST_PHASES:
            self._events.entered(phase)

    def on_log(self, packet: bytes) -> None:
        """Handle `LOG`."""
        body = frames.decode_json(packet)
        level = _text(body, "level")
        if level not in LOG_LEVELS:
            raise FrameError(f"a worker logs at level {level!r}")
        self._events.logged(level, _text(body, "message"))

    def on_probed(self, packet: bytes) -> None:
        """Handle `PROBED`."""
        if not self._probing:
            raise FrameError("a worker says whether it is ready without having been asked")
        self._probing = False
        self._answer_the_curious(said=frames.decode_probed(packet))

    def probe(self, tell: Callable[[bool], None]) -> None:
        """Call `tell` with the model's own readiness: now, or once the worker has answered.

        Callers that ask in the meantime share the answer. The worker is asked while it executes.
        """
        if not self.has_check:
            tell(True)
            return
        self._curious.append(tell)
        if not self._probing:
            self._probing = True
            self._pipe.send_nowait(bytes((frames.PROBE,)))

    def forget(self, tell: Callable[[bool], None]) -> None:
        """A caller of `probe` no longer waits."""
        if tell in self._curious:
            self._curious.remove(tell)

    def close(self) -> None:
        """The worker is gone, so it is not ready."""
        self._answer_the_curious(said=False)

    def _answer_the_curious(self, *, said: bool) -> None:
        curious, self._curious = self._curious, []
        for tell in curious:
            tell(said)


def _texts(body: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return a short list of strings of a cold frame. Raises FrameError."""
    values = body.get(key, [])
    if not isinstance(values, list) or len(values) > _MOST_TEXTS:
        raise FrameError(f"a worker's {key!r} is no list of up to {_MOST_TEXTS} texts")
    return tuple(_text({key: value}, key) for value in values)


def _text(body: dict[str, Any], key: str) -> str:
    """Return a string of a cold frame, in characters that any log or document can hold.

    Raises FrameError.
    """
    value = body.get(key, "")
    if not isinstance(value, str):
        raise FrameError(f"a worker's {key!r} is of type {type(value).__name__}")
    return value.encode(errors="replace").decode()
