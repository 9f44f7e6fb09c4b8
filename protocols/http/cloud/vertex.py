"""Google's Vertex AI: a path of health, and one of predictions that a header sends on to parts of the v2 API.

Contract: http.md section 13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote

from actors.values.errors import InvalidArgument, Unavailable
from protocols.http.answers import NO_HEADERS, Answer, failure
from protocols.http.cloud.app import BAD_REQUEST, Platform, Translated, inference
from protocols.http.cloud.framing import Framing
from protocols.http.conversation import Application
from protocols.http.fields import Header
from protocols.http.routes import Endpoint, match

FRAMING: Final = Framing("vertex-ai-triton")

_REDIRECT: Final = b"x-vertex-ai-triton-redirect"
_READY: Final = b"/v2/health/ready"
_WRONG_METHOD: Final = Answer(405, NO_HEADERS)
_FORBIDDEN: Final = Answer(403, NO_HEADERS)
_STARTING: Final = "the server has just started, and its default model is not loaded yet"

_READ: Final = frozenset(
    (
        Endpoint.ALL_STATISTICS,
        Endpoint.MODEL_READY,
        Endpoint.MODEL_CONFIG,
        Endpoint.MODEL_STATISTICS,
        Endpoint.MODEL_METADATA,
        Endpoint.SERVER_METADATA,
        Endpoint.SERVER_LIVE,
        Endpoint.SERVER_READY,
        Endpoint.SYSTEM_MEMORY_STATUS,
        Endpoint.CUDA_MEMORY_STATUS,
    )
)
"""What a redirected request reads. The platform sends POST only, and the v2 API wants GET."""
_CHANGES: Final = frozenset(
    (
        Endpoint.SYSTEM_MEMORY_CHANGE,
        Endpoint.CUDA_MEMORY_CHANGE,
        Endpoint.MODEL_LOAD,
        Endpoint.MODEL_UNLOAD,
    )
)


def chosen_model(configured: str, ready: Iterable[str]) -> str:
    """Return the model that predictions ask for, of those that are ready once loading is over.

    Raises InvalidArgument where there is none.
    """
    names = set(ready)
    if configured:
        if configured not in names:
            raise InvalidArgument(f"Expect the default model '{configured}' is loaded")
        return configured
    if len(names) != 1:
        raise InvalidArgument(
            "Expect the model repository contains only a single model if default model is not specified"
        )
    return names.pop()


class DefaultModel:
    """The model that predictions ask for that name none; `name` is empty until it is chosen."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class VertexAi(Platform):
    """The paths of Vertex AI."""

    def __init__(
        self,
        *,
        health: re.Pattern[str],
        predict: re.Pattern[str],
        default: DefaultModel,
        metrics: Application | None = None,
    ) -> None:
        """`metrics` answers requests that are sent on to them."""
        self._health = health
        self._predict = predict
        self._default = default
        self._metrics = metrics

    def is_health(self, path: bytes) -> bool:
        """Whether it is the path of AIP_HEALTH_ROUTE."""
        return self._health.fullmatch(path.decode("latin-1")) is not None

    def read(self, method: str, path: bytes, headers: Sequence[Header]) -> Translated | Answer:
        """Return what a request asks for; 400 for any other path."""
        if self.is_health(path):
            return Translated(method=method, path=_READY, headers=headers)
        if self._predict.fullmatch(path.decode("latin-1")) is None:
            return BAD_REQUEST
        redirect = dict(headers).get(_REDIRECT)
        if redirect is None:
            return self._prediction(method, headers)
        return _WRONG_METHOD if method != "POST" else self._redirected(b"/" + redirect, headers)

    def _prediction(self, method: str, headers: Sequence[Header]) -> Translated | Answer:
        name = self._default.name
        if not name:
            return failure(Unavailable(_STARTING, retry_after=1.0))
        return _inference(method, f"/v2/models/{quote(name, safe='')}/infer".encode(), headers)

    def _redirected(self, path: bytes, headers: Sequence[Header]) -> Translated | Answer:
        if path == b"/metrics":
            if self._metrics is None:
                return BAD_REQUEST
            return Translated(method="GET", path=path, headers=headers, elsewhere=self._metrics)
        route = match(path.decode("latin-1"))
        if route is None:
            return BAD_REQUEST
        if route.endpoint is Endpoint.INFER:
            return _inference("POST", path, headers)
        if route.endpoint in _READ:
            return Translated(method="GET", path=path, headers=headers)
        if route.endpoint is Endpoint.REPOSITORY_INDEX:
            return Translated(method="POST", path=path, headers=headers)
        return _FORBIDDEN if route.endpoint in _CHANGES else BAD_REQUEST


def _inference(method: str, path: bytes, headers: Sequence[Header]) -> Translated:
    return inference(FRAMING, method, path, headers, _framed)


def _framed(answer: Answer) -> Answer:
    return Answer(answer.status, FRAMING.response(answer.headers), answer.buffers, answer.release)
