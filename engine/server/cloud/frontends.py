"""The front ends for SageMaker and Vertex AI, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from actors.serving.standing import Status
from actors.values.auditing import Auditor
from actors.values.callers import HeadGate
from actors.values.errors import InvalidArgument
from actors.values.interfaces import Registrations, Repository, Server
from actors.values.requests import Endings
from engine.repository.sagemaker import ModelFinder
from engine.server.frontends import v2_app
from engine.settings.cloud.platforms import SageMakerSettings, VertexSettings
from engine.settings.re2 import compiled
from engine.settings.settings import Settings
from protocols.http.app import V2App
from protocols.http.cloud.app import CloudApp, Platform
from protocols.http.cloud.sagemaker import SageMaker
from protocols.http.cloud.vertex import DefaultModel, VertexAi, chosen_model
from protocols.http.conversation import Application
from protocols.transport.receiving import ReceivingRoom

_NO_PATTERN: Final = ""


@dataclass(frozen=True, slots=True)
class Served:
    """A platform, and the application that serves it."""

    platform: Platform
    app: CloudApp


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the front ends of platforms have in common with those of HTTP."""

    settings: Settings
    server: Server
    gate: HeadGate | None
    endings: Callable[[str], Endings]
    room: ReceivingRoom
    auditor: Callable[[str], Auditor | None]

    def v2(self, name: str) -> V2App:
        """Return a v2 application for a platform. Its headers become no parameters, as in Triton."""
        return v2_app(
            replace(self.settings, http_header_forward_pattern=_NO_PATTERN),
            self.server,
            gate=self.gate,
            endings=self.endings(name),
            room=self.room,
            auditor=self.auditor(name),
        )


def serve_sagemaker(
    settings: SageMakerSettings, shared: Shared, registrations: Registrations, name: str = "sagemaker"
) -> Served:
    """Return what serves SageMaker."""
    platform = SageMaker(
        shared.server,
        registrations,
        find=ModelFinder(settings.models).find,
        max_input_size=shared.settings.http_max_input_size,
        ping=settings.ping,
        inferring=settings.inference,
        default_model=settings.default_model,
        auditor=shared.auditor(name),
    )
    return Served(platform, CloudApp(platform, shared.v2(name)))


def serve_vertex(
    settings: VertexSettings,
    shared: Shared,
    default: DefaultModel,
    metrics: Application | None,
    name: str = "vertex-ai",
) -> Served:
    """Return what serves Vertex AI."""
    platform = VertexAi(
        health=compiled(settings.health_route),
        predict=compiled(settings.predict_route),
        default=default,
        metrics=metrics,
    )
    return Served(platform, CloudApp(platform, shared.v2(name)))


async def choose_default(default: DefaultModel, configured: str, repository: Repository) -> str:
    """Choose the model that predictions ask for, once loading is over.

    Return why there is none; nothing if there is one.
    """
    ready = [entry for entry in await repository.index(ready_only=True) if entry.state == Status.READY.value]
    try:
        default.name = chosen_model(configured, (entry.name for entry in ready))
    except InvalidArgument as error:
        return f"failed to start Vertex AI service: {error.code.value} - {error.message}"
    return ""
