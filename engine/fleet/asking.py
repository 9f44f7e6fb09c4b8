"""A replica asked over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

import httpx

from engine.fleet.exchanging import Answer, exchange
from engine.fleet.observing import (
    counted,
    ill_parts,
    mark_in,
    marked_config,
    ready_versions,
    release_of,
    spoilt_models,
    traffic_in,
    with_probe,
)
from engine.fleet.policy.claims import Register
from engine.fleet.policy.values import Plan, Release, Seen, Served
from engine.fleet.ports import Look, Member, Refused, Superseded, Unreachable

_REGISTER: Final = "/v2/tritium/fleet"
_EPOCH: Final = "tritium-epoch"
_LARGEST_EPOCH: Final = 2**62  # of those that are taken; a server knows as many again
_NOT_THE_MODEL: Final = frozenset((401, 403, 404, 429, 503))
"""Answers that say something of the server, or of who asks, and nothing of a release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to ask: headers with everything, seconds for a short question, and seconds for a load.

    `server_name` is the name in certificates; empty for the host that is asked.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    request: float = 5
    load: float = 3600
    server_name: str = ""


class HttpReplica:
    """One server, at the URL of `member`. `client` returns the fleet's, which outlives it.

    `access` returns how to ask now, since the fleet's file may change.
    """

    def __init__(
        self,
        member: Member,
        client: Callable[[], Awaitable[httpx.AsyncClient]],
        access: Callable[[], Access],
    ) -> None:
        self._member = member
        self._client = client
        self._access = access

    async def look(
        self, models: Mapping[str, Sequence[Release]], *, plans: Collection[str], deep: bool
    ) -> Look:
        """See `engine.fleet.ports.Replica`."""
        boot, held, register = (await self._ask("GET", _REGISTER)).read_as("the fleet's register", _shown)
        listed = await self._ask("POST", "/v2/repository/index")
        ready, spoilt = listed.read_as(
            "the index of its repository", lambda index: (ready_versions(index), spoilt_models(index))
        )
        health = await self._ask("GET", "/v2/health/ready?deep=1" if deep else "/v2/health/ready")
        # It is told with a status of 200 as well as of 503.
        parts = (
            replace(health, status=200).read_as("its readiness", ill_parts) if deep and health.body else ()
        )
        metrics = await self._scrape()
        counts = counted(metrics)
        served = {}
        for model in {*models, *ready}:
            versions = ready.get(model, ())
            known = models.get(model, ())
            marked = await self._mark(model) if versions and any(each.config for each in known) else ""
            answers, errors = counts.of(model, versions)
            one = Served(
                ready=release_of(versions, marked, known),
                spoilt=model in spoilt,
                answers=answers,
                errors=errors,
                traffic=await self._traffic(model) if versions and model in plans else None,
            )
            served[model] = with_probe(one, parts, model)
        return Look(
            seen=Seen(
                name=self._member.name,
                boot=boot,
                ready=health.status == 200 or held,
                withdrawn=held,
                waiting=counts.waiting,
                models=served,
            ),
            register=register,
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
        answer = self._obeyed(await self._ask("POST", _REGISTER, body))
        return answer.read_as("the fleet's register", _register)

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

    async def _mark(self, model: str) -> str:
        answer = await self._ask("GET", f"/v2/models/{quote(model, safe='')}/config")
        return answer.read_as(f"the configuration of {model}", mark_in) if answer.status == 200 else ""

    async def _traffic(self, model: str) -> Mapping[str, Any] | None:
        answer = await self._ask("GET", _traffic_path(model))
        return answer.read_as(f"the traffic of {model}", traffic_in) if answer.status == 200 else None

    async def _scrape(self) -> str:
        """Return the metrics. Without them no release that fails under traffic is found."""
        if not self._member.metrics:
            return ""
        try:
            answer = (await self._ask("GET", self._member.metrics)).good("its metrics")
        except Unreachable as error:
            raise Unreachable(f"{error}; `metrics` in the fleet's file says where they are") from error
        return answer.body.decode(errors="replace")

    async def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        epoch: int | None = None,
        within: float | None = None,
    ) -> Answer:
        access = self._access()
        headers = dict(access.headers)
        if epoch is not None:
            headers[_EPOCH] = str(epoch)
        return await exchange(
            await self._client(),
            method,
            path if "://" in path else self._member.url.rstrip("/") + path,
            headers=headers,
            body=body,
            server_name=access.server_name,
            connect=access.request,
            within=within or access.request,
        )

    def _obeyed(self, answer: Answer) -> Answer:
        """Return the answer to a change, unless another controller's changes are obeyed."""
        if answer.status == 409:
            raise Superseded(f"{self._member.name}: {answer.error()}")
        return answer

    def _done(self, answer: Answer) -> None:
        self._obeyed(answer)
        if answer.status in _NOT_THE_MODEL:
            raise Unreachable(f"{self._member.url} answered {answer.status}: {answer.error()}")
        if answer.status != 200:
            raise Refused(answer.error())


def _traffic_path(model: str) -> str:
    return f"/v2/tritium/models/{quote(model, safe='')}/traffic"


def _shown(document: Any) -> tuple[str, bool, Register]:
    """Return the boot of a server, whether the fleet holds it, and what it keeps."""
    return str(document["boot"]), document["held"] is True, _register(document)


def _register(document: Any) -> Register:
    register = Register(
        epoch=int(document["epoch"]),
        written=int(document["document_epoch"]),
        sequence=int(document["sequence"]),
        document=document["document"],
    )
    if not 0 <= register.written <= register.epoch <= _LARGEST_EPOCH or register.sequence < 0:
        raise ValueError(f"epoch {register.epoch}, sequence {register.sequence}: start the server anew")
    return register
