"""The endpoint of the trace extension: trace settings of a model, or of all, told and changed.

Contract: http.md section 5.1.
"""

from __future__ import annotations

from actors.values.auditing import Auditor, Requester, recorded
from actors.values.errors import TritiumError
from actors.values.interfaces import Server
from protocols.http.answers import Answer, Receive, Scope, json_answer
from protocols.http.bodies import parsed, read_body
from protocols.http.fields import connecting
from protocols.http.routes import Route
from protocols.kserve.auditing import TRACE, tell_denied, trace_change
from protocols.kserve.documents import dump
from protocols.kserve.extensions.trace_settings import check_ready, control_of, json_change, known
from protocols.kserve.permitted import check_traces


class TraceSettingEndpoint:
    """Answers for `server`."""

    def __init__(self, server: Server, *, max_input_size: int, auditor: Auditor | None = None) -> None:
        self._server = server
        self._max_input_size = max_input_size
        self._auditor = auditor

    async def answer(self, route: Route, scope: Scope, receive: Receive) -> Answer | None:
        """Tell a trace setting and, for a POST, change it before. Raises TritiumError."""
        traces = control_of(self._server.traces)
        check_ready(self._server.models, route.model)
        if scope["method"] == "POST":
            body = await read_body(receive)
            if body is None:
                return None
            caller, peer = scope.get("tritium.caller"), connecting(scope)
            try:
                check_traces(caller, route.model)
            except TritiumError as error:
                if self._auditor is not None:
                    tell_denied(self._auditor, TRACE, route.model, caller, peer, error)
                raise
            document = await parsed(body, self._max_input_size)
            change = json_change(document)

            async def carry_out() -> None:
                traces.update(route.model, change)

            told = trace_change(route.model, known(document))
            await recorded(self._auditor, told, Requester.of(caller, peer), carry_out)
        return json_answer(dump(traces.describe(route.model)))
