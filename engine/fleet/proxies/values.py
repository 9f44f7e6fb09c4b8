"""What a proxy's configuration is written from: the servers behind it, and what the proxy should do.

Names are checked when a value is built, so that no writer meets one that its proxy can't take.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from engine.fleet.names import is_address, is_host, is_model_name

REPLICA: Final = "tritium-replica"
"""The header, or metadata, that names the server with which a sequence began."""
MODEL: Final = "tritium-model"
"""The header, or metadata, by which a client tells the model where no path does."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,253}")  # what `--replica-name` takes


class Unwritable(ValueError):
    """A proxy's configuration can't say this. The message names it, and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A server behind the proxy.

    `name` is its `--replica-name`. `grpc_port` is None where it has no gRPC, `models` None where it has every
    model. Raises Unwritable.
    """

    name: str
    host: str
    http_port: int
    grpc_port: int | None = None
    models: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.name):
            raise Unwritable(f"replica {self.name!r}: a name has letters, digits and !#$%&'*+-.^_`|~ only")
        if not is_host(self.host):
            raise Unwritable(f"replica '{self.name}': {self.host!r} is no address and no name of a host")
        for port in (self.http_port, self.grpc_port):
            if port is not None and not 0 < port < 65536:
                raise Unwritable(f"replica '{self.name}': {port} is no port; one is from 1 to 65535")
        for model in self.models or ():
            _check_model(model)

    def holds(self, model: str) -> bool:
        """Whether it has a model."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """What the proxy should do.

    `idempotent` has it repeat a request that a server may have run already, so that one can run twice.
    `timeout` is how many seconds a stream may be silent. A request of up to `retry_buffer` bytes, with its
    head, is kept until its answer begins; a larger one is not repeated. Raises Unwritable.
    """

    address: str = "0.0.0.0"
    http_port: int = 8000
    grpc_port: int = 8001
    idempotent: bool = False
    timeout: int = 3600
    retry_buffer: int = 131072

    def __post_init__(self) -> None:
        if not is_address(self.address):
            raise Unwritable(f"the proxy listens at an address such as 0.0.0.0, not at {self.address!r}")
        for port in (self.http_port, self.grpc_port):
            if not 0 < port < 65536:
                raise Unwritable(f"the proxy's port is from 1 to 65535, not {port}")
        if self.http_port == self.grpc_port:
            raise Unwritable(f"the proxy's ports of HTTP and gRPC are both {self.http_port}; give it two")
        if not 1 <= self.timeout <= 2_000_000:
            raise Unwritable(f"the timeout is from 1 to 2000000 seconds, not {self.timeout}")
        if not 16384 <= self.retry_buffer <= 16 * 2**20:
            raise Unwritable(f"the retry buffer is from 16384 to 16777216 bytes, not {self.retry_buffer}")


def checked(upstreams: Iterable[Upstream]) -> Sequence[Upstream]:
    """Return the servers, sorted by name. Raises Unwritable if there are none, or two of a name."""
    found = sorted(upstreams, key=lambda each: each.name)
    if not found:
        raise Unwritable("the fleet has no replicas; there is nothing to balance")
    for one, other in pairwise(found):
        if one.name == other.name:
            raise Unwritable(f"two replicas are named '{one.name}'; each needs a name of its own")
    return found


def holders(upstreams: Sequence[Upstream]) -> dict[tuple[str, ...], list[str]]:
    """Return the models, sorted, by the names of the servers that have them.

    Empty if each server has every model, so that there is nothing to tell apart.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for model in sorted({model for each in upstreams for model in each.models or ()}):
        found.setdefault(tuple(each.name for each in upstreams if each.holds(model)), []).append(model)
    return found


def _check_model(model: str) -> None:
    if not is_model_name(model):
        raise Unwritable(f"model {model!r}: a proxy takes names of up to 255 printable bytes, without '/'")
