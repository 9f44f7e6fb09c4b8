"""The load of a model, in the header that its clients ask for (ORCA, Open Request Cost Aggregation).

`endpoint-load-metrics-format: text` or `json` asks for `endpoint-load-metrics` in the answer to an inference.
Contract: deployment.md section 2.4.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from actors.values.callers import Action
from actors.values.errors import TritiumError
from actors.values.interfaces import ModelLoad, ModelLoads, Models
from protocols.http.answers import Scope, Send
from protocols.http.routes import Route, match

FORMAT: Final = b"endpoint-load-metrics-format"
_REPORT: Final = b"endpoint-load-metrics"
_OK: Final = 200


def _named(load: ModelLoad) -> Mapping[str, float]:
    """Return what ORCA has no names for: Triton's two first, and then ours."""
    told = {
        "kv_cache_utilization": load.cache_used,
        "max_token_capacity": load.max_tokens,
        "queue_depth": load.queue_depth,
    }
    return {name: value for name, value in told.items() if value is not None}


def as_text(load: ModelLoad) -> str:
    """Return a report as `TEXT name=value, …`."""
    told = {f"named_metrics.{name}": value for name, value in _named(load).items()}
    if load.utilization is not None:
        told = {**told, "application_utilization": load.utilization}
    return "TEXT " + ", ".join(
        f"{name}={value if isinstance(value, int) else round(value, 6)}" for name, value in told.items()
    )


def as_json(load: ModelLoad) -> str:
    """Return a report as `JSON {…}`."""
    used = {} if load.utilization is None else {"application_utilization": load.utilization}
    return "JSON " + json.dumps({"named_metrics": _named(load), **used}, separators=(",", ":"))


_FORMS: Final[Mapping[bytes, Callable[[ModelLoad], str]]] = {b"text": as_text, b"json": as_json}


def reporting(scope: Scope, send: Send, models: Models, loads: ModelLoads) -> Send:
    """Return `send`, or one that adds the load of its model to the answer of an inference that asks for it.

    Other formats are ignored, as in Triton.
    """
    form = _FORMS.get(dict(scope["headers"]).get(FORMAT, b""))
    route = None if form is None else match(scope["raw_path"].decode("latin-1"))
    if form is None or route is None or route.endpoint.category is not Action.INFERENCE:
        return send
    make, asked = form, route

    def sending(message: MutableMapping[str, Any]) -> Awaitable[None]:
        if message["type"] in {"tritium.response", "http.response.start"} and message["status"] == _OK:
            message = {**message, "headers": [*message["headers"], *_report(asked)]}
        return send(message)

    def _report(route: Route) -> list[tuple[bytes, bytes]]:
        try:
            return [(_REPORT, make(loads.of(models.resolve(route.model, route.version))).encode())]
        except TritiumError:  # it was unloaded meanwhile
            return []

    return sending
