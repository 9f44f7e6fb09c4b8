"""Who may come in: the head gate is asked about one request over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from actors.values.auditing import Auditor
from actors.values.callers import Caller, HeadGate, Peer, presented
from actors.values.errors import TritiumError
from protocols.http.fields import Header
from protocols.http.routes import Route
from protocols.kserve.auditing import attempt, tell_denied


def let_in(
    gate: HeadGate,
    auditor: Auditor | None,
    route: Route,
    peer: Peer,
    method: str,
    headers: Sequence[Header],
    length: int,
) -> Caller:
    """Return the caller of a request whose body has `length` bytes, or is chunked (-1).

    Raises TritiumError where the request may not go on.
    """
    action = route.endpoint.action(method)
    caller: Caller | None = None
    try:
        caller = gate.identify(presented(headers), peer)
        caller.admit(action, route.model, size=max(length, 0))
    except TritiumError as error:
        if auditor is not None:
            tell_denied(auditor, attempt(route.endpoint.value, action), route.model, caller, peer, error)
        raise
    return caller
