"""Prometheus metrics: read at each scrape, written in the text format 0.0.4, served by a small ASGI app.

Nothing is counted here. Each feature declares its families (`actors.values.families`) and tells of itself
in blocks; the composition root (`engine.server.exposing`) lists the features. The text is written by hand,
since prometheus-client cannot print a counter without the suffix `_total`, and Triton's have none. A family
is one block of text, so that a scrape of a thousand models can let the loop go on between blocks.

Reference: contract observability.md section 1, http.md section 11.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

import trio

from actors.seams import faults
from actors.values.auditing import Auditor
from actors.values.callers import Action, Caller, HeadGate, presented
from actors.values.errors import TritiumError
from actors.values.families import Block, Labels, Number, SplitFamily
from protocols.http.answers import Answer, failure
from protocols.http.fields import connecting
from protocols.http.origins import OriginPolicy, Use, page_fields
from protocols.kserve.auditing import tell_denied

T = TypeVar("T")

Telling = Callable[[], Iterable[Block | str]]
"""What a feature tells of itself at a scrape: blocks, or the text of some."""


class Exposition:
    """Writes what features tell as Prometheus text, in their order."""

    def __init__(self, *features: Telling) -> None:
        self._features = features

    def blocks(self) -> Iterator[str]:
        """Yield the text of each family that has a series."""
        for tell in self._features:
            for block in tell():
                if isinstance(block, str):
                    yield block
                elif block.series:
                    yield in_text(block)

    def text(self) -> str:
        """Return all of it."""
        return "".join(self.blocks())


# -- the text format


def head(name: str, kind: str, explanation: str) -> str:
    """Return the two lines that stand before a family's series."""
    return f"# HELP {name} {explanation}\n# TYPE {name} {kind}\n"


def in_text(block: Block) -> str:
    """Return a family as it stands in the text."""
    return head(block.name, block.kind, block.help) + _lines(block)


def in_pieces(family: SplitFamily[T], samples: Iterable[tuple[Labels, T]]) -> Iterator[str]:
    """Yield the text of a family that has many series, a sample at a time; nothing where there are none."""
    begun = False
    for sample in samples:
        block = family.block([sample])
        if block.series:
            yield _lines(block) if begun else in_text(block)
            begun = True


def _lines(block: Block) -> str:
    name = block.name
    lines = [f"{name}{suffix}{labels.text} {number(value)}\n" for labels, value, suffix in block.series]
    return "".join(lines)


def number(value: Number) -> str:
    """Return a value as Prometheus reads it."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


# -- the port

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class MetricsApp:
    """The metrics port as an ASGI app. Its listener runs on trio.

    `gate` says who may read metrics, and `pages` what web pages may ask for.
    """

    def __init__(
        self,
        exposition: Exposition,
        gate: HeadGate | None = None,
        *,
        pages: OriginPolicy | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        self._exposition = exposition
        self._gate = gate
        self._auditor = auditor
        self._pages = pages or OriginPolicy()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a GET of anything but the metrics is an empty success, as in Triton."""
        if scope["type"] != "http":
            raise ValueError(
                f"the metrics port serves HTTP only, got an ASGI scope of type {scope['type']!r}"
            )
        complaint = self._pages.complaint(Use.READ, page_fields(scope["headers"]))
        if complaint:
            await _respond(send, 403, complaint.encode(), [(b"content-type", b"text/plain; charset=utf-8")])
        elif self._gate is not None and (refusal := self._refusal(self._gate, scope)) is not None:
            body = b"".join(map(bytes, refusal.buffers))
            await _respond(send, refusal.status, body, refusal.headers)
        elif scope["method"] != "GET":
            await _respond(send, 405, b"", [(b"allow", b"GET")])
        elif scope["path"] in {"/metrics", "/metrics/"}:
            await _respond(send, 200, await self._scrape(), [(b"content-type", b"text/plain; charset=utf-8")])
        else:
            await _respond(send, 200, b"", [])

    def _refusal(self, gate: HeadGate, scope: Scope) -> Answer | None:
        peer = connecting(scope)
        caller: Caller | None = None
        try:
            caller = gate.identify(presented(scope["headers"]), peer)
            caller.admit(Action.METRICS)
        except TritiumError as error:
            if self._auditor is not None:
                tell_denied(self._auditor, Action.METRICS.value, "", caller, peer, error)
            return failure(error)
        return None

    async def _scrape(self) -> bytes:
        if faults.points is not None:
            faults.points.passing("metrics.scrape")
        parts = []
        for block in self._exposition.blocks():
            parts.append(block.encode("utf-8", "replace"))  # a model's name may come from any directory
            await trio.lowlevel.checkpoint()
        return b"".join(parts)


async def _respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
