"""Which endpoint a path names, and what that endpoint demands of a request in advance.

Contract: http.md section 2. Paths match exactly; `{M}` is one segment. The table is a value, so that a test
can walk it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from actors.values.callers import Action

_SETTINGS: Final = frozenset({Action.LOGGING, Action.TRACE})
"""Categories in which a POST changes settings."""


class Endpoint(Enum):
    """What can be asked over HTTP.

    Each has the category of Triton's that a header opens, its methods, and the action that an identity needs.
    """

    SERVER_LIVE = ("server_live", Action.HEALTH, ("GET",))
    SERVER_READY = ("server_ready", Action.HEALTH, ("GET",))
    SERVER_METADATA = ("server_metadata", Action.METADATA, ("GET",))
    MODEL_METADATA = ("model_metadata", Action.METADATA, ("GET",))
    MODEL_READY = ("model_ready", Action.HEALTH, ("GET",))
    MODEL_CONFIG = ("model_config", Action.MODEL_CONFIG, ("GET",))
    MODEL_STATISTICS = ("model_statistics", Action.STATISTICS, ("GET",))
    ALL_STATISTICS = ("all_statistics", Action.STATISTICS, ("GET",))
    INFER = ("infer", Action.INFERENCE, ("POST",))
    GENERATE = ("generate", Action.INFERENCE, ("POST",))
    GENERATE_STREAM = ("generate_stream", Action.INFERENCE, ("POST",))
    REPOSITORY_INDEX = ("repository_index", Action.MODEL_REPOSITORY, ("POST",))
    MODEL_LOAD = ("model_load", Action.MODEL_REPOSITORY, ("POST",))
    MODEL_UNLOAD = ("model_unload", Action.MODEL_REPOSITORY, ("POST",))
    LOGGING = ("logging", Action.LOGGING, ("GET", "POST"))
    TRACE = ("trace", Action.TRACE, ("GET", "POST"))
    SYSTEM_MEMORY_STATUS = ("system shared memory status", Action.SHARED_MEMORY, ("GET",))
    SYSTEM_MEMORY_CHANGE = ("system shared memory change", Action.SHARED_MEMORY, ("POST",))
    CUDA_MEMORY_STATUS = ("CUDA shared memory status", Action.SHARED_MEMORY, ("GET",))
    CUDA_MEMORY_CHANGE = ("CUDA shared memory change", Action.SHARED_MEMORY, ("POST",))
    TREE = ("tree", Action.STATISTICS, ("GET",))
    EVENTS = ("events", Action.STATISTICS, ("GET",))
    TRAFFIC = ("traffic", Action.MODEL_REPOSITORY, ("GET", "POST"), Action.TRAFFIC)
    FLEET = ("fleet", Action.MODEL_REPOSITORY, ("GET", "POST"))

    category: Action
    methods: tuple[str, ...]

    def __init__(
        self, name: str, category: Action, methods: tuple[str, ...], action: Action | None = None
    ) -> None:
        self._value_ = name
        self.category = category
        self.methods = methods
        self._action = action or category
        self._posted = Action.SETTINGS if category in _SETTINGS else self._action

    def action(self, method: str) -> Action:
        """Return what a request by `method` asks for."""
        return self._posted if method == "POST" else self._action


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An endpoint and what the path said about it. `version` is the digits as they came, or empty.

    `region` is of shared memory, and `action` what is asked of it.
    """

    endpoint: Endpoint
    model: str = ""
    version: str = ""
    repository: str = ""
    region: str = ""
    action: str = ""


_MODEL_ENDPOINTS: Final = {
    "": Endpoint.MODEL_METADATA,
    "/ready": Endpoint.MODEL_READY,
    "/config": Endpoint.MODEL_CONFIG,
    "/stats": Endpoint.MODEL_STATISTICS,
    "/infer": Endpoint.INFER,
    "/generate": Endpoint.GENERATE,
    "/generate_stream": Endpoint.GENERATE_STREAM,
    "/trace/setting": Endpoint.TRACE,
}
_REPOSITORY_ENDPOINTS: Final = {"load": Endpoint.MODEL_LOAD, "unload": Endpoint.MODEL_UNLOAD}


def _model(found: re.Match[str]) -> Route | None:
    endpoint = _MODEL_ENDPOINTS[found["action"] or ""]
    version = found["version"] or ""
    if endpoint is Endpoint.TRACE and version:
        return None
    return Route(endpoint=endpoint, model=unquote(found["model"]), version=version)


def _memory(status: Endpoint, change: Endpoint) -> Callable[[re.Match[str]], Route | None]:
    return lambda found: Route(
        endpoint=status if found["action"] == "status" else change,
        region=unquote(found["region"] or ""),
        action=found["action"],
    )


def _repository(found: re.Match[str]) -> Route | None:
    endpoint = _REPOSITORY_ENDPOINTS[found["action"]]
    return Route(endpoint=endpoint, model=unquote(found["model"]), repository=found["repository"] or "")


_MEMORY_PATH: Final = r"(?:/region/(?P<region>[^/]+))?/(?P<action>status|register|unregister)"

# In the contract's order of evaluation: `/v2/models/stats` hides the metadata of a model named `stats`.
TABLE: Final[Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], Route | None]]]] = (
    (re.compile(r"/v2/models/stats"), lambda _: Route(endpoint=Endpoint.ALL_STATISTICS)),
    (re.compile(r"/v2/logging"), lambda _: Route(endpoint=Endpoint.LOGGING)),
    (
        re.compile(
            r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
            r"(?P<action>/(?:ready|config|stats|infer|generate|generate_stream|trace/setting))?"
        ),
        _model,
    ),
    (re.compile(r"/v2"), lambda _: Route(endpoint=Endpoint.SERVER_METADATA)),
    (re.compile(r"/v2/health/live"), lambda _: Route(endpoint=Endpoint.SERVER_LIVE)),
    (re.compile(r"/v2/health/ready"), lambda _: Route(endpoint=Endpoint.SERVER_READY)),
    (
        re.compile("/v2/systemsharedmemory" + _MEMORY_PATH),
        _memory(Endpoint.SYSTEM_MEMORY_STATUS, Endpoint.SYSTEM_MEMORY_CHANGE),
    ),
    (
        re.compile("/v2/cudasharedmemory" + _MEMORY_PATH),
        _memory(Endpoint.CUDA_MEMORY_STATUS, Endpoint.CUDA_MEMORY_CHANGE),
    ),
    (re.compile(r"/v2/repository(?:/[^/]+)?/index"), lambda _: Route(endpoint=Endpoint.REPOSITORY_INDEX)),
    (
        re.compile(
            r"/v2/repository(?:/(?P<repository>[^/]+))?/models/(?P<model>[^/]+)/(?P<action>load|unload)"
        ),
        _repository,
    ),
    (re.compile(r"/v2/trace/setting"), lambda _: Route(endpoint=Endpoint.TRACE)),
    (re.compile(r"/v2/tritium/tree"), lambda _: Route(endpoint=Endpoint.TREE)),
    (re.compile(r"/v2/tritium/fleet"), lambda _: Route(endpoint=Endpoint.FLEET)),
    (re.compile(r"/v2/tritium/events"), lambda _: Route(endpoint=Endpoint.EVENTS)),
    (
        re.compile(r"/v2/tritium/models/(?P<model>[^/]+)/traffic"),
        lambda found: Route(endpoint=Endpoint.TRAFFIC, model=unquote(found["model"])),
    ),
)


def match(path: str) -> Route | None:
    """Return the route that `path` (undecoded, without its query) names; None where there is no endpoint."""
    for pattern, build in TABLE:
        found = pattern.fullmatch(path)
        if found is not None:
            return build(found)
    return None


def is_health(path: bytes) -> bool:
    """Whether `path` (undecoded, without its query) is asked by health checks."""
    route = match(path.decode("latin-1"))
    return route is not None and route.endpoint.category is Action.HEALTH
