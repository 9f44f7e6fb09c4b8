"""A replica asked over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import httpx

from engine.fleet.observing import (
    counted,
    marked_config,
    ready_versions,
    release_of,
    spoilt_models,
    with_probe,
)
from engine.fleet.policy.claims import Register
from engine.fleet.policy.values import Plan, Release, Seen, Served
from engine.fleet.ports import Look, Member, Refused, Superseded, Unreachable

_REGISTER: Final = "/v2/tritium/fleet"
_EPOCH: Final = "tritium-epoch"
_NOT_THE_MODEL: Final = frozenset((401, 403, 404, 429, 503))
"""Answers that say something of the server, or of who asks, and nothing of a release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to ask: headers with everything, seconds for a short question, and seconds for a load."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    request: float = 5
    load: float = 3600


class HttpReplica:
    """One server, at the URL of `member`. `client` is the fleet's, and outlives it.

    `access` returns how to ask now, since the fleet's file may change.
    """

    def __init__(self, member: Member, client: httpx.AsyncClient, access: Callable[[], Access]) -> None:
        self._member = member
        self._client = client
        self._access = access

    async def look(
        self, models: Mapping[str, Sequence[Release]], *, plans: Collection[str], deep: bool
    ) -> Look:
        """See `engine.fleet.ports.Replica`."""
        register = _json(self._good(await self._ask("GET", _REGISTER), "the fleet's register"))
        listed = await self._ask("POST", "/v2/repository/index")
        index = _json(self._good(listed, "the index of its repository"))
        ready, spoilt = ready_versions(index), spoilt_models(index)
        health = await self._ask("GET", "/v2/health/ready?deep=1" if deep else "/v2/health/ready")
        parts = _json(health).get("parts", ()) if deep and health.content else ()
        metrics = await self._scrape()
        counts = counted(metrics)
        served = {}
        for model in {*models, *ready}:
            versions = ready.get(model, ())
            known = models.get(model, ())
            config = await self._config(model) if versions and any(each.config for each in known) else None
            answers, errors = counts.of(model, versions)
            one = Served(
                ready=release_of(versions, config, known),
                spoilt=model in spoilt,
                answers=answers,
                errors=errors,
                traffic=await self._traffic(model) if versions and model in plans else None,
            )
            served[model] = with_probe(one, parts, model)
        return Look(
            seen=Seen(
                name=self._member.name,
                boot=str(register["boot"]),
                ready=health.status_code == 200 or register["held"] is True,
                withdrawn=register["held"] is True,
                waiting=counts.waiting,
                models=served,
            ),
            register=_register(register),
            metrics=metrics,
        )

    async def write(
        self, epoch: int, sequence: int, document: Any, *, withdrawn: bool | None = None
    ) -> Register:
        """See `engine.fleet.ports.Replica`."""
        body: dict[str, Any] = {"epoch": epoch}
        if document is not None:
            body |= {"sequence": sequence, "document": document}
        if withdrawn is not None:
            body["held"] = withdrawn
        answer = await self._ask("POST", _REGISTER, body)
        return _register(_json(self._good(answer, "the fleet's register")))

    async def load(self, model: str, release: Release, epoch: int) -> None:
        """See `engine.fleet.ports.Replica`."""
        parameters = {"tritium.versions": ",".join(map(str, release.versions))}
        if release.config:
            parameters["config"] = marked_config(release)
        path = f"/v2/repository/models/{quote(model, safe='')}/load"
        answer = await self._ask(
            "POST", path, {"parameters": parameters}, epoch=epoch, within=self._access().load
        )
        self._done(answer)

    async def unload(self, model: str, epoch: int) -> None:
        """See `engine.fleet.ports.Replica`."""
        path = f"/v2/repository/models/{quote(model, safe='')}/unload"
        self._done(await self._ask("POST", path, {}, epoch=epoch))

    async def share(self, model: str, plan: Plan, epoch: int) -> None:
        """See `engine.fleet.ports.Replica`."""
        self._done(await self._ask("POST", _traffic_path(model), dict(plan), epoch=epoch))

    # -- one question

    async def _config(self, model: str) -> Mapping[str, Any] | None:
        answer = await self._ask("GET", f"/v2/models/{quote(model, safe='')}/config")
        return _json(answer) if answer.status_code == 200 else None

    async def _traffic(self, model: str) -> Mapping[str, Any] | None:
        answer = await self._ask("GET", _traffic_path(model))
        return _json(answer) if answer.status_code == 200 else None

    async def _scrape(self) -> str:
        """Return the metrics. Without them no release that fails under traffic is found."""
        if not self._member.metrics:
            return ""
        return self._good(await self._ask("GET", self._member.metrics), "its metrics").text

    async def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        epoch: int | None = None,
        within: float | None = None,
    ) -> httpx.Response:
        access = self._access()
        headers = dict(access.headers)
        if epoch is not None:
            headers[_EPOCH] = str(epoch)
        url = path if "://" in path else self._member.url.rstrip("/") + path
        try:
            answer = await self._client.request(
                method,
                url,
                headers=headers,
                content=None if body is None else json.dumps(body).encode(),
                timeout=httpx.Timeout(within or access.request, connect=access.request),
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{url}: {str(error) or type(error).__name__}") from error
        if answer.status_code == 409:
            raise Superseded(_text(answer))
        return answer

    def _good(self, answer: httpx.Response, what: str) -> httpx.Response:
        if answer.status_code != 200:
            raise Unreachable(
                f"{self._member.url} answered {answer.status_code} when asked for {what}: {_text(answer)}"
            )
        return answer

    def _done(self, answer: httpx.Response) -> None:
        if answer.status_code in _NOT_THE_MODEL:
            raise Unreachable(f"{self._member.url} answered {answer.status_code}: {_text(answer)}")
        if answer.status_code != 200:
            raise Refused(_text(answer))


def _traffic_path(model: str) -> str:
    return f"/v2/tritium/models/{quote(model, safe='')}/traffic"


def _register(document: Mapping[str, Any]) -> Register:
    return Register(
        epoch=int(document["epoch"]),
        written=int(document["document_epoch"]),
        sequence=int(document["sequence"]),
        document=document["document"],
    )


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise Unreachable(f"{answer.url} did not answer with JSON: {answer.text[:100]!r}") from error


def _text(answer: httpx.Response) -> str:
    try:
        said = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        said = answer.text
    return " ".join(str(said).split())[:1000] or f"status {answer.status_code} without a word"
