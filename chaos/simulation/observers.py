"""Observers as tasks.

They scrape metrics, and ask for health, readiness, statistics and the index, over HTTP and gRPC. What they
get must be well formed, and no counter may decrease except those of a model version that was loaded anew in
between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from actors.serving.routing.roster import RELOAD_FAILED
from chaos.simulation.asking import ask_grpc
from chaos.simulation.judging.exposition import Labels, counters
from chaos.simulation.outcomes import ANSWERED, LOST
from chaos.simulation.plan import Look
from chaos.wires.http import Broken, ask
from protocols.kserve.proto import grpc_service_pb2 as pb

Swapped = Callable[[str, float, float], bool]
"""Whether another generation of a model began to serve in that time."""

_STATES: Final = ("", "UNKNOWN", "LOADING", "READY", "UNLOADING", "UNAVAILABLE")
_PATHS: Final = {
    "live": ("GET", "/v2/health/live"),
    "ready": ("GET", "/v2/health/ready"),
    "statistics": ("GET", "/v2/models/stats"),
    "index": ("POST", "/v2/repository/index"),
}

_METHODS: Final = {
    "live": "ServerLive",
    "ready": "ServerReady",
    "statistics": "ModelStatistics",
    "index": "RepositoryIndex",
}


@dataclass(slots=True)
class Looked:
    """A look and its outcome: `complaints` about the answer, if one came."""

    look: Look
    began: float
    ended: float = 0.0
    code: str = ""  # `ANSWERED` or `LOST`
    status: str = ""  # as the wire has it
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.look.what} {self.look.model} by {self.look.wire}: {self.code} {self.status}"


@dataclass(frozen=True, slots=True)
class _Count:
    value: float
    at: float  # when it was asked for


class Observer:
    """Asks, and remembers every counter."""

    def __init__(self, addresses: Mapping[str, bytes], models: Sequence[str], swapped: Swapped) -> None:
        self._addresses = addresses
        self._models = models
        self._swapped = swapped
        self._counts: dict[tuple[str, str, Labels], _Count] = {}
        self.served: dict[str, dict[tuple[str, str], float]] = {}  # by source: good answers of each version

    async def look(self, look: Look) -> Looked:
        """Ask once. Never raises for what the server does."""
        looked = Looked(look, began=trio.current_time())
        try:
            complaints = await (self._by_http(looked) if look.wire == "http" else self._by_grpc(looked))
        except (Broken, OSError) as error:
            looked.code, looked.status = LOST, repr(error)
        else:
            looked.code = ANSWERED
            looked.complaints += complaints
        looked.ended = trio.current_time()
        return looked

    async def _by_http(self, looked: Looked) -> Sequence[str]:
        look = looked.look
        if look.what == "metrics":
            reply = await ask(self._addresses["metrics"], "GET", "/metrics")
            looked.status = str(reply.status)
            # The actor that writes the metrics out has crashed.
            if reply.status != 200:
                raise Broken(f"metrics are told by {reply.status}")
            return self._metrics(reply.body, looked)
        method, path = _PATHS.get(look.what, ("GET", f"/v2/models/{look.model}/ready"))
        reply = await ask(self._addresses["http"], method, path)
        status, body = reply.status, reply.body
        looked.status = str(status)
        if look.what == "model":
            return _model_ready(look.model, status, body)
        allowed = (200, 400) if look.what == "ready" else (200,)
        if status not in allowed:
            return [f"{look.what} is told by {status}: {body!r}"]
        if look.what in ("live", "ready"):
            return [] if not body else [f"{look.what} comes with {body!r}"]
        document = json.loads(body)
        if look.what == "index":
            return list(self._index(document))
        return self._statistics([_flat(each) for each in document["model_stats"]], looked)

    async def _by_grpc(self, looked: Looked) -> Sequence[str]:
        look, address = looked.look, self._addresses["grpc"]
        if look.what == "model":
            code, message, body = await ask_grpc(
                address, "ModelReady", pb.ModelReadyRequest(name=look.model).SerializeToString()
            )
            looked.status = code or str(pb.ModelReadyResponse.FromString(body).ready)
            return [] if not code else [f"readiness of '{look.model}': {code} {message!r}"]
        code, message, body = await ask_grpc(address, _METHODS[look.what], b"")
        looked.status = code
        if code:
            return [f"{look.what} is told by {code}: {message!r}"]
        if look.what == "statistics":
            found = pb.ModelStatisticsResponse.FromString(body).model_stats
            return self._statistics([_flat_message(each) for each in found], looked)
        if look.what == "index":
            models = pb.RepositoryIndexResponse.FromString(body).models
            keys = ("name", "version", "state", "reason")
            return list(self._index([{key: getattr(each, key) for key in keys} for each in models]))
        if look.what == "live" and not pb.ServerLiveResponse.FromString(body).live:
            return ["it is not live"]
        return []

    # -- what is wrong with an answer ------------------------------------------------------------------------

    def _metrics(self, body: bytes, looked: Looked) -> Sequence[str]:
        try:
            found = counters(body.decode())
        except ValueError as error:
            return [f"metrics are malformed: {error}"]
        complaints: list[str] = []
        self.served["metrics"] = {}
        for (name, labels), value in found.items():
            told = dict(labels)
            model = told.get("model", "")
            complaints += self._follow(("metrics", name, labels), model, value, looked)
            if name == "nv_inference_request_success_total":
                self.served["metrics"][model, told["version"]] = value
        return complaints

    def _statistics(self, found: Sequence[Mapping[str, Any]], looked: Looked) -> Sequence[str]:
        complaints: list[str] = []
        self.served["statistics"] = {}
        for each in found:
            name, version = each["name"], str(each["version"])
            if name not in self._models:
                complaints.append(f"statistics of '{name}', which there is not")
            for key in ("inference_count", "execution_count", "success", "fail"):
                labels = (("version", version),)
                complaints += self._follow((f"statistics {name}", key, labels), name, each[key], looked)
            self.served["statistics"][name, version] = each["success"]
        return complaints

    def _follow(
        self, key: tuple[str, str, Labels], model: str, value: float, looked: Looked
    ) -> Iterator[str]:
        """Remember a counter, and check that it has not decreased."""
        last = self._counts.get(key)
        if last is not None and last.at > looked.began:
            return  # a later look was answered earlier
        self._counts[key] = _Count(value, looked.began)
        if last is None or value >= last.value:
            return
        if not (model and self._swapped(model, last.at, trio.current_time())):
            yield f"{' '.join(map(str, key))} has decreased from {last.value:g} to {value:g}"

    def _index(self, entries: Sequence[Mapping[str, str]]) -> Iterator[str]:
        keys = [(each["name"], int(each.get("version") or 0)) for each in entries]
        if keys != sorted(set(keys)):
            yield f"the index is not in order: {keys}"
        for each in entries:
            if each["name"] not in self._models or each.get("state", "") not in _STATES:
                yield f"the index has {each}"
            # Beside what serves, a later load may have failed; nothing else may be there.
            reason = each.get("reason", "")
            if each.get("state") == "READY" and reason and not reason.startswith(RELOAD_FAILED):
                yield f"the index gives a reason for what is ready: {each}"


def _flat(each: Mapping[str, Any]) -> Mapping[str, Any]:
    told = each["inference_stats"]
    return {**each, "success": told["success"]["count"], "fail": told["fail"]["count"]}


def _flat_message(each: pb.ModelStatistics) -> Mapping[str, Any]:
    return {
        "name": each.name,
        "version": each.version,
        "inference_count": each.inference_count,
        "execution_count": each.execution_count,
        "success": each.inference_stats.success.count,
        "fail": each.inference_stats.fail.count,
    }


def _model_ready(model: str, status: int, body: bytes) -> Sequence[str]:
    """Return what is wrong with an answer about one model's readiness (contract, http.md section 3)."""
    if status == 200:
        return [] if not body else [f"readiness of '{model}' comes with {body!r}"]
    told = json.loads(body)["error"]
    allowed = {
        400: ["Model version not ready"],
        404: [
            f"Request for unknown model: '{model}' {what}"
            for what in ("is not found", "has no available versions")
        ],
    }
    on_its_way = f"Request for unknown model: '{model}' has no available versions: "
    if status == 503 and told.startswith(on_its_way):
        return []  # of one that is being loaded (docs/differences/protocols.md)
    return (
        [] if told in allowed.get(status, ()) else [f"readiness of '{model}' is told by {status}: {told!r}"]
    )
