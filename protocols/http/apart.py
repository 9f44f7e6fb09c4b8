"""Management apart, over HTTP: what a port refuses whose server has other ports for management."""

from __future__ import annotations

from typing import Final

from actors.values.callers import Action
from protocols.http.answers import Answer, error_answer
from protocols.http.routes import Endpoint
from protocols.kserve.apart import MANAGEMENT, Elsewhere

_ENDPOINTS: Final = {endpoint.value: endpoint for endpoint in Endpoint}
_MOVED: Final = frozenset((_ENDPOINTS[call.endpoint], call.method) for call in MANAGEMENT)
_OUTLIVING: Final = frozenset({Endpoint.TREE, Endpoint.EVENTS, Endpoint.FLEET})
_WRONG_METHOD: Final = error_answer(405, "Method Not Allowed")


class Methods:
    """Which methods of an endpoint are answered at a port, and the answers to all others."""

    def __init__(self, elsewhere: Elsewhere | None) -> None:
        self._refusal = None if elsewhere is None else error_answer(403, elsewhere.refusal)

    def of(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return the methods of `endpoint` that are answered here."""
        if self._refusal is None:
            return endpoint.methods
        return tuple(method for method in endpoint.methods if (endpoint, method) not in _MOVED)

    def refusal(self, endpoint: Endpoint, method: str) -> Answer:
        """Return the answer to a method that is not answered here."""
        if self._refusal is not None and (endpoint, method) in _MOVED:
            return self._refusal
        return _WRONG_METHOD


def outlives_draining(endpoint: Endpoint) -> bool:
    """Whether a port for management answers `endpoint` as ever while the server drains."""
    return endpoint in _OUTLIVING or endpoint.category is Action.HEALTH
