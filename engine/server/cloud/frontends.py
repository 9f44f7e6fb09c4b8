"""The front ends for SageMaker and Vertex AI, put together."""

from __future__ import annotations

from dataclasses import dataclass

from actors.serving.standing import Status
from actors.values.auditing import Auditor
from actors.values.errors import InvalidArgument
from actors.values.interfaces import Registrations, Repository, Server
from engine.repository.sagemaker import ModelFinder
from engine.settings.cloud.platforms import VertexSettings
from engine.settings.re2 import compiled
from engine.settings.settings import Settings
from protocols.http.app import V2App
from protocols.http.cloud.app import CloudApp, Platform
from protocols.http.cloud.sagemaker import SageMaker
from protocols.http.cloud.vertex import DefaultModel, VertexAi, chosen_model
from protocols.http.conversation import Application


@dataclass(frozen=True, slots=True)
class Served:
    """A platform, and the application that serves it."""

    platform: Platform
    app: CloudApp


def serve_sagemaker(
    settings: Settings, server: Server, registrations: Registrations, v2: V2App, auditor: Auditor | None
) -> Served:
    """Return what serves SageMaker by the v2 application."""
    said = settings.cloud.sagemaker
    platform = SageMaker(
        server,
        registrations,
        find=ModelFinder(said.models).find,
        max_input_size=settings.http_max_input_size,
        ping=said.ping,
        inferring=said.inference,
        default_model=said.default_model,
        auditor=auditor,
    )
    return Served(platform, CloudApp(platform, v2))


def serve_vertex(
    settings: VertexSettings, default: DefaultModel, metrics: Application | None, v2: V2App
) -> Served:
    """Return what serves Vertex AI by the v2 application, and by that of the metrics."""
    platform = VertexAi(
        health=compiled(settings.health_route),
        predict=compiled(settings.predict_route),
        default=default,
        metrics=metrics,
    )
    return Served(platform, CloudApp(platform, v2))


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
