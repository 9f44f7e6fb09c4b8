"""Behaviour of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from actors.values.auditing import Auditor
from actors.values.callers import HeadGate
from actors.values.generation.adapters import AdapterControl
from actors.values.requests import Endings
from actors.values.tracing.spans import NO_TRACER, Tracer
from protocols.http.conversation import Application
from protocols.http.origins import OriginPolicy
from protocols.openai.asking import Defaults

DEFAULT_MAX_INPUT_SIZE: Final = 64 * 1024 * 1024
KEEP_ALIVE_SECONDS: Final = 10.0


class Area(Enum):
    """The groups of endpoints that `--openai-restricted-api` names."""

    INFERENCE = "inference"
    REPOSITORY = "model-repository"
    METRICS = "metrics"
    HEALTH = "health"

    # Members are equal where they are the same one. Enum's own hash is a call, on the way of each request.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiOptions:
    """How the OpenAI API behaves.

    `restricted` maps an area to the header that opens it. `separator` stands between a model's name and an
    adapter's; empty: adapters go by their own names. `explicit`: clients may load and unload models, and
    adapters, which `adapters` does.
    `keep_alive` is after how many quiet seconds a stream shows that it lives. `metrics` answers `/metrics`.
    `server` is what the fingerprints of answers are made of, such as the server's version. The rest is as in
    `V2Options`.
    """

    max_input_size: int = DEFAULT_MAX_INPUT_SIZE
    defaults: Defaults = field(default_factory=Defaults)
    restricted: Mapping[Area, tuple[str, str]] = field(default_factory=dict)
    separator: str = ""
    explicit: bool = False
    keep_alive: float = KEEP_ALIVE_SECONDS
    server: str = ""
    metrics: Application | None = None
    adapters: AdapterControl | None = None
    gate: HeadGate | None = None
    pages: OriginPolicy = field(default_factory=OriginPolicy)
    auditor: Auditor | None = None
    endings: Endings = field(default_factory=Endings)
    tracer: Tracer = NO_TRACER
