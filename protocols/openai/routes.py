"""The paths of the OpenAI API (contract: http.md section 14, llm.md section 2.1)."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote

from protocols.http.routes import Endpoint
from protocols.openai.asking import Kind
from protocols.openai.options import Area


class Path(Enum):
    """What can be asked for.

    Each has its method, its area, and the endpoint of the v2 API that asks for as much: identities, pages and
    the audit log treat both alike.
    """

    CHAT = ("chat", "POST", Area.INFERENCE, Endpoint.GENERATE)
    COMPLETIONS = ("completions", "POST", Area.INFERENCE, Endpoint.GENERATE)
    EMBEDDINGS = ("embeddings", "POST", Area.INFERENCE, Endpoint.GENERATE)
    TOKENIZE = ("tokenize", "POST", Area.INFERENCE, Endpoint.GENERATE)
    DETOKENIZE = ("detokenize", "POST", Area.INFERENCE, Endpoint.GENERATE)
    MODELS = ("models", "GET", Area.REPOSITORY, Endpoint.SERVER_METADATA)
    MODEL = ("model", "GET", Area.REPOSITORY, Endpoint.MODEL_METADATA)
    LOAD = ("load", "POST", Area.REPOSITORY, Endpoint.MODEL_LOAD)
    UNLOAD = ("unload", "POST", Area.REPOSITORY, Endpoint.MODEL_UNLOAD)
    LOAD_ADAPTER = ("load_adapter", "POST", Area.REPOSITORY, Endpoint.MODEL_LOAD)
    UNLOAD_ADAPTER = ("unload_adapter", "POST", Area.REPOSITORY, Endpoint.MODEL_UNLOAD)
    READY = ("ready", "GET", Area.HEALTH, Endpoint.SERVER_READY)
    LIVE = ("live", "GET", Area.HEALTH, Endpoint.SERVER_LIVE)
    METRICS = ("metrics", "GET", Area.METRICS, Endpoint.ALL_STATISTICS)

    method: str
    area: Area
    like: Endpoint
    kind: Kind | None

    def __init__(self, name: str, method: str, area: Area, like: Endpoint) -> None:
        self._value_ = name
        self.method = method
        self.area = area
        self.like = like
        self.kind = Kind(name) if area is Area.INFERENCE else None

    # Members are equal where they are the same one.
    __hash__ = object.__hash__


class OpenAiRoute(NamedTuple):
    """A path, and the model that it names."""

    path: Path
    model: str = ""


_FIXED: Final = {
    "/v1/chat/completions": OpenAiRoute(Path.CHAT),
    "/v1/completions": OpenAiRoute(Path.COMPLETIONS),
    "/v1/embeddings": OpenAiRoute(Path.EMBEDDINGS),
    "/tokenize": OpenAiRoute(Path.TOKENIZE),
    "/detokenize": OpenAiRoute(Path.DETOKENIZE),
    "/v1/models": OpenAiRoute(Path.MODELS),
    "/v1/load_lora_adapter": OpenAiRoute(Path.LOAD_ADAPTER),
    "/v1/unload_lora_adapter": OpenAiRoute(Path.UNLOAD_ADAPTER),
    "/health/ready": OpenAiRoute(Path.READY),
    "/health/live": OpenAiRoute(Path.LIVE),
    "/metrics": OpenAiRoute(Path.METRICS),
}
# Names of adapters and of models from hubs have slashes, which some clients leave as they are.
_MODEL: Final = re.compile(r"/v1/models/(.+?)(?:/(load|unload))?")
_OF_MODEL: Final = {None: Path.MODEL, "load": Path.LOAD, "unload": Path.UNLOAD}


def match(path: str) -> OpenAiRoute | None:
    """Return what `path` (undecoded, without its query) names; None where there is nothing."""
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed
    found = _MODEL.fullmatch(path)
    return None if found is None else OpenAiRoute(_OF_MODEL[found[2]], unquote(found[1]))


def is_health(path: bytes) -> bool:
    """Whether `path` (undecoded, without its query) is asked by health checks."""
    route = _FIXED.get(path.decode("latin-1"))
    return route is not None and route.path.area is Area.HEALTH
