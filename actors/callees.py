"""Who answers for the names that models call: whoever answers clients and, while the server drains, who still can.

A request that was accepted before the server began to drain is answered; so the calls are that its model
makes meanwhile.
"""

from __future__ import annotations

from actors.interfaces import ServedModel
from actors.messages.errors import TritiumError
from actors.model import ModelState, Status
from actors.router import Router


class Callees:
    """Resolves names for calls. Implements `actors.calls.Resolver`."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.draining = False  # nothing new is accepted from clients

    def resolve(self, name: str, version: str = "", *, namespace: str = "") -> ServedModel:
        """Return who answers for a model. Raises what `Router.resolve` does."""
        try:
            return self._router.resolve(name, version, namespace=namespace)
        except TritiumError:
            state = self._retiring(name, version, namespace) if self.draining else None
            if state is None:
                raise
            return state

    def _retiring(self, name: str, version: str, namespace: str) -> ModelState | None:
        states = [
            state
            for key in self._router.keys(name)
            if not namespace or key.namespace == namespace
            for state in self._router.serving(key).values()
            if state.status is Status.UNLOADING and version in ("", str(state.spec.version))
        ]
        return max(states, key=lambda state: state.spec.version, default=None)
