"""Behaviour of the v2 API over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from actors.values.auditing import Auditor
from actors.values.callers import Action, HeadGate
from actors.values.errors import TritiumError
from actors.values.requests import Endings, InferResponse
from actors.values.tracing.spans import NO_TRACER, Tracer
from protocols.http.origins import OriginPolicy
from protocols.kserve.apart import Elsewhere
from protocols.kserve.requests import DEFAULT_MAX_INPUT_SIZE
from protocols.transport.receiving import ReceivingRoom

Outcome = InferResponse | TritiumError

_MAX_BODY: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class V2Options:
    """How the v2 API behaves.

    `restricted` maps a category to the header that opens it. `header_forward_pattern` picks request headers,
    by a match anywhere in their names, that become parameters of an inference. `gate` says who may do what;
    None: all may do everything. `pages` says what web pages may ask for. `elsewhere`: management is refused
    here, and is served there. `outlives_draining`: this is a port for management, which stays open and
    answers for the server while it drains. `replica` is the server's name among several. `auditor` is told of
    changes and denials. `endings` are told every inference. What compressed bodies unfold to has its place in
    `room`. `tracer` says which inferences are traced.
    """

    max_input_size: int = DEFAULT_MAX_INPUT_SIZE
    max_body_size: int = _MAX_BODY
    restricted: Mapping[Action, tuple[str, str]] = field(default_factory=dict)
    header_forward_pattern: re.Pattern[str] | None = None
    server_timing: bool = False
    gate: HeadGate | None = None
    pages: OriginPolicy = field(default_factory=OriginPolicy)
    elsewhere: Elsewhere | None = None
    outlives_draining: bool = False
    replica: str = ""
    auditor: Auditor | None = None
    endings: Endings = field(default_factory=Endings)
    room: ReceivingRoom = field(default_factory=ReceivingRoom)
    tracer: Tracer = NO_TRACER
