"""The OpenAI API, put together."""

from __future__ import annotations

from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec
from actors.values.auditing import Auditor
from actors.values.callers import HeadGate
from actors.values.generation.adapters import AdapterControl
from actors.values.generation.facts import Languages
from actors.values.interfaces import Server
from actors.values.requests import Endings
from actors.values.tracing.spans import Tracer
from engine.core.version import version
from engine.server.frontends import origin_policy
from engine.settings.settings import Settings
from protocols.http.conversation import Application
from protocols.openai.app import OpenAiApp
from protocols.openai.asking import Defaults
from protocols.openai.options import Area, OpenAiOptions


def serve_openai(
    settings: Settings,
    server: Server,
    languages: Languages,
    *,
    metrics: Application | None,
    gate: HeadGate | None,
    auditor: Auditor | None,
    endings: Endings,
    tracer: Tracer,
    adapters: AdapterControl,
) -> OpenAiApp:
    """Return the application that serves the API, with what the settings say of it."""
    said = settings.openai
    return OpenAiApp(
        server,
        languages,
        OpenAiOptions(
            max_input_size=settings.http_max_input_size,
            defaults=Defaults(max_tokens=said.max_tokens or None),
            restricted={Area(area): (header.key, header.value) for area, header in said.restricted.items()},
            separator=said.separator,
            explicit=settings.control_mode == "explicit",
            keep_alive=said.keep_alive,
            server=version(),
            metrics=metrics,
            adapters=adapters,
            gate=gate,
            pages=origin_policy(settings.pages),
            auditor=auditor,
            endings=endings,
            tracer=tracer,
        ),
    )


def keeping_alive(app: OpenAiApp) -> ChildSpec:
    """Return the child that shows clients that their quiet streams live."""

    async def run(ctx: ChildContext) -> None:
        ctx.started()
        await app.run()

    return ChildSpec("openai-keep-alive", run)
