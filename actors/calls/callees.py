"""The models for the names that models call: those that serve and, while the server drains, retiring ones.

A request that was accepted before the server began to drain is answered. So are the calls that its model
makes meanwhile.
"""

from __future__ import annotations

from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.values.errors import TritiumError
from actors.values.requests import ServedModel


class Callees:
    """Resolves names for calls. Implements `actors.calls.admission.Resolver`."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.draining = False  # no new requests are accepted from clients

    def resolve(self, name: str, version: str = "", *, namespace: str = "") -> ServedModel:
        """Return the model to call. Raises the errors of `Router.resolve`."""
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
            for key in self._router.roster.keys(name)
            if not namespace or key.namespace == namespace
            for state in self._router.roster.serving(key).values()
            if state.status is Status.UNLOADING and version in ("", str(state.spec.version))
        ]
        return max(states, key=lambda state: state.spec.version, default=None)
