"""Behaviour of the gRPC frontend: limits, patience and settings (contract, grpc.md sections 1 and 3)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from actors.values.errors import TritiumError
from actors.values.requests import InferRequest, InferResponse
from protocols.kserve.categories import Category
from protocols.transport.room import LAST_CALL, AddressLimit

CompressionLevel = Literal["none", "low", "medium", "high"]
FinishedHook = Callable[[InferRequest, "InferResponse | TritiumError", str], None]

MAX_MESSAGE = 2**31 - 1
"""The contract's limit for a message, in bytes, in either direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """What the flags of the gRPC frontend say. Durations are seconds, sizes bytes.

    `connection_bytes` bounds what one connection may make the server hold, for its requests and again for its
    answers. `compression` is of infer RPCs' answers, in a coding that the client accepts. The keepalive
    fields are gRPC's channel arguments of the same names. `restricted` maps a category to the metadata key
    and value that open it. `header_forward_pattern` picks metadata, by a match anywhere in its key, that
    becomes parameters of an inference. `on_finished` is told every inference, its outcome and the client's
    address, before its memory is given back.

    A connection without calls for `idle_timeout` is ended by GOAWAY, whether or not its client pings: its
    next call opens another. `handshake_timeout` is the time that a client has for TLS and its first frames. A
    socket that takes nothing for `stall_timeout` is cut: HTTP/2 clients read always, whatever their windows
    say. While the server ends, a client may pause for `last_call` before its request is whole.
    """

    connection_bytes: int = 64 * 1024 * 1024
    max_connections: int = 8192
    per_address: AddressLimit | None = None
    max_receive_message: int = MAX_MESSAGE
    max_send_message: int = MAX_MESSAGE
    compression: CompressionLevel = "none"
    keepalive_time: float = 7200.0
    keepalive_timeout: float = 20.0
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_without_data: float = 300.0
    max_ping_strikes: int = 2
    max_connection_age: float = math.inf
    max_connection_age_grace: float = math.inf
    idle_timeout: float = 600.0  # as HTTP's
    handshake_timeout: float = 30.0
    stall_timeout: float = 60.0
    last_call: float = LAST_CALL
    restricted: Mapping[Category, tuple[str, str]] = field(default_factory=dict)
    header_forward_pattern: re.Pattern[str] | None = None
    on_finished: FinishedHook | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that no connection could keep."""
        for name in ("connection_bytes", "max_connections", "max_receive_message", "max_send_message"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in (
            "keepalive_time",
            "keepalive_timeout",
            "idle_timeout",
            "handshake_timeout",
            "stall_timeout",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be more than 0 seconds")
        if self.max_connection_age <= 0 or self.max_connection_age_grace < 0:
            raise ValueError("max_connection_age must be more than 0 seconds, and its grace at least 0")
