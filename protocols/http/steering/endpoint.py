"""The register of a fleet's controller: `GET` and `POST /v2/tritium/fleet`."""

from __future__ import annotations

from typing import Final

from actors.values.auditing import Auditor, Requester, recorded
from actors.values.errors import PermissionDenied
from actors.values.interfaces import Server
from protocols.http.answers import Answer, Receive, Scope, json_answer
from protocols.http.bodies import read_body
from protocols.http.fields import connecting
from protocols.http.routes import Route
from protocols.kserve.auditing import FLEET, register_change, tell_denied
from protocols.kserve.steering import EPOCH, Posted, Steered, check_steers, parse_epoch, posted, shown

_EPOCH: Final = EPOCH.encode()


def steered(server: Server, scope: Scope) -> Steered:
    """Return what lets a change begin that `scope` asks for. Raises InvalidArgument."""
    epoch = parse_epoch(dict(scope["headers"]).get(_EPOCH))
    return Steered(server.steering, epoch, scope.get("tritium.caller"))


class FleetEndpoint:
    """Answers for the register of `server`."""

    def __init__(self, server: Server, *, auditor: Auditor | None = None) -> None:
        self._steering = server.steering
        self._health = server.health
        self._auditor = auditor

    async def answer(self, _route: Route, scope: Scope, receive: Receive) -> Answer | None:
        """Tell what is kept, or keep something else. Raises TritiumError."""
        caller = scope.get("tritium.caller")
        try:
            check_steers(caller)
        except PermissionDenied as error:
            if self._auditor is not None:
                tell_denied(self._auditor, FLEET, "", caller, connecting(scope), error)
            raise
        if scope["method"] == "POST":
            body = await read_body(receive)
            if body is None:
                return None
            given = posted(body)
            origin = Requester.of(caller, connecting(scope))
            change = register_change(given.epoch, given.sequence, given.document)

            async def carry_out() -> None:
                self._keep(given)

            await recorded(self._auditor, change, origin, carry_out)
        return json_answer(shown(self._steering.describe(), held=self._health.held))

    def _keep(self, given: Posted) -> None:
        if given.document is None:
            self._steering.take_over(given.epoch)
        else:
            self._steering.keep(given.epoch, given.sequence, given.document)
            if given.held is not None:
                self._health.hold(given.held)
