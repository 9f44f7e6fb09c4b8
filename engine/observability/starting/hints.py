"""What to try with a server that has just started: a request to a model, and its addresses. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from actors.values.datatypes import DataType
from actors.values.specs import ModelSpec, SequenceBatching
from engine.settings.listening import host_port

_MOST_ELEMENTS: Final = 16
_ANYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # what a listener was given, not where we listen
_NO_JSON: Final = frozenset({DataType.FP16, DataType.BF16})
_KEY: Final = ' -H "Authorization: Bearer $TRITIUM_API_KEY"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a listener can be reached. `key`: it asks for an API key."""

    host: str
    port: int
    tls: bool = False
    key: bool = False

    @property
    def place(self) -> str:
        """The host and the port, as a client on this machine reaches them."""
        host = "127.0.0.1" if self.host in _ANYWHERE else self.host
        return host_port(host, self.port)

    @property
    def url(self) -> str:
        """The URL of its root."""
        return f"{'https' if self.tls else 'http'}://{self.place}"

    def curl(self, path: str, body: str = "") -> str:
        """Return a command for a shell that asks for `path`."""
        data = f" -d {quote(body)}" if body else ""
        return f"curl{_KEY if self.key else ''} {self.url}{path}{data}"


def hints(
    specs: Iterable[ModelSpec],
    *,
    http: Address | None,
    grpc: Address | None,
    metrics: Address | None,
    elsewhere: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield (what, how) of what an operator may try first. `elsewhere`: another server accepts HTTP."""
    if http is not None:
        served = list(specs)
        if served:
            yield "infer", _first(served, http)
        yield "health", http.curl("/v2/health/ready") + " -i"
    elif elsewhere:
        yield "HTTP", "at the address of the server around this one: /v2/health/ready"
    if metrics is not None:
        yield "metrics", metrics.curl("/metrics")
    if grpc is not None:
        yield "gRPC", grpc.place
    if http is not None:
        yield "watch", f"tritium tree --url {http.url} --watch"
    yield "manual", "tritium man | man -l -"


def _first(specs: Sequence[ModelSpec], http: Address) -> str:
    """Return a request to the first model that a short one suits; else one for a model's metadata."""
    for spec in specs:
        body = example(spec)
        if body is not None:
            return http.curl(f"/v2/models/{spec.name}/infer", json.dumps(body, separators=(",", ":")))
    return http.curl(f"/v2/models/{specs[0].name}")


def example(spec: ModelSpec) -> dict[str, object] | None:
    """Return a small request that has what the model declares; None if there is none.

    Sizes that are free are 1, and numbers are 0. Sequences and decoupled models ask for more.
    """
    wanted = [each for each in spec.inputs if not each.optional]
    if spec.decoupled or isinstance(spec.scheduling, SequenceBatching) or not wanted:
        return None
    batches = spec.max_batch_size > 0
    inputs = [
        made_up(each.name, each.datatype, each.dims, batches=batches, most=_MOST_ELEMENTS) for each in wanted
    ]
    return None if None in inputs else {"inputs": inputs}


def made_up(
    name: str, datatype: DataType, dims: Sequence[int], *, batches: bool, most: int
) -> dict[str, object] | None:
    """Return an input of zeros for JSON; None if it has more than `most` elements, or JSON lacks its type."""
    shape = [1] * batches + [max(1, size) for size in dims]
    if math.prod(shape) > most or datatype in _NO_JSON:
        return None
    value: object = {DataType.BYTES: "text", DataType.BOOL: False}.get(datatype, 0)
    return {
        "name": name,
        "datatype": datatype.protocol_name,
        "shape": shape,
        "data": [value] * math.prod(shape),
    }
