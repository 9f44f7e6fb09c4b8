"""The stream of events over HTTP: `GET /v2/tritium/events`.

A follower holds a connection, and nothing else of the server: while its socket takes nothing, no event waits
for it. It is asked for its rights again with each portion, so that a stream ends when its key is revoked.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from actors.values.callers import Action, Caller, presented
from actors.values.errors import PermissionDenied, TritiumError
from actors.values.events import EventStream, Following, Portion
from protocols.http.answers import Receive, Scope, Send
from protocols.http.events.asking import asked_for, beginning, in_text
from protocols.http.fields import EVENTS, Header, connecting
from protocols.http.options import V2Options
from protocols.http.reply import DisconnectHook, watched
from protocols.http.routes import Route
from protocols.kserve.auditing import STREAM, tell_denied
from protocols.kserve.permitted import check_sees_all

_HEADERS: Final[list[Header]] = [
    EVENTS,
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies pass each event on as it comes
]
_SHOWN: Final = "the events are of all models"


class EventsEndpoint:
    """Answers with the events of `stream`."""

    def __init__(self, stream: EventStream, options: V2Options) -> None:
        self._stream = stream
        self._options = options

    async def answer(self, _route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, until its client leaves or the stream ends.

        Raises TritiumError only while nothing has been sent.
        """
        self._check(scope, scope.get("tritium.caller"))
        asked = asked_for(scope.get("query_string", b""), scope["headers"])
        following = self._stream.follow(
            asked.wanted,
            asked.after,
            live=asked.live,
            outlives_draining=self._options.outlives_draining,
        )
        try:
            work = partial(self._write, following, scope, send)
            hook: DisconnectHook | None = scope.get("extensions", {}).get("tritium.disconnect")
            await (work(hook) if hook is not None else watched(receive, work))
        finally:
            following.close()

    def _check(self, scope: Scope, caller: Caller | None) -> None:
        """Raise PermissionDenied unless `caller` may see the events of every model."""
        try:
            check_sees_all(caller, _SHOWN)
        except PermissionDenied as error:
            if self._options.auditor is not None:
                tell_denied(self._options.auditor, STREAM, "", caller, connecting(scope), error)
            raise

    async def _write(self, following: Following, scope: Scope, send: Send, hook: DisconnectHook) -> None:
        if hook.disconnected:
            return
        hook.on_disconnect = following.close
        try:
            text = beginning()
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while (portion := await self._next(following, scope)) is not None:
                await send({"type": "http.response.body", "body": text + in_text(portion), "more_body": True})
                text = b""
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            hook.on_disconnect = None

    async def _next(self, following: Following, scope: Scope) -> Portion | None:
        """Return what comes next; None at the end, or once the caller may not have it any more."""
        portion = await following.take()
        if portion is None or self._options.gate is None:
            return portion
        try:
            caller = self._options.gate.identify(presented(scope["headers"]), connecting(scope))
            caller.require(Action.STATISTICS)
            self._check(scope, caller)
        except TritiumError:
            return None
        return portion
