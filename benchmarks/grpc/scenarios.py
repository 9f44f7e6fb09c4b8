"""What is measured over gRPC, as data.

A row is one message, sent to one model over and over, in one of three ways. Adding a row is adding a line
here. Models are those of `benchmarks.repository`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from benchmarks.scenarios import (
    MIB,
    Tensors,
    pair,
    ramp,
    same,
    sum_and_difference,
    sum_and_difference_thrice,
)


class Way(Enum):
    """How the calls of a row differ from one another."""

    UNARY = "unary"  # ModelInfer: every call has the header block of the last one
    # ModelInfer: a fresh `traceparent` on every call, as grpcio encodes it: never indexed.
    METADATA = "metadata"
    # The same, put into the HPACK table by every call, as grpc-go encodes it.
    METADATA_INDEXED = "metadata-indexed"
    STREAM = "stream"  # ModelStreamInfer: one stream a connection
    # ModelInfer: each of the calls under way goes through requests of its own, one after the other.
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Shape:
    """How much is under way: `streams` calls (or, on a stream, requests) on each of `connections`."""

    connections: int
    streams: int

    def __str__(self) -> str:
        return "1" if self.outstanding == 1 else f"{self.connections}×{self.streams}"

    @property
    def outstanding(self) -> int:
        """Requests under way at any time."""
        return self.connections * self.streams


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a script: which model, and the request's parameters."""

    model: str
    parameters: Mapping[str, bool | int | str] = field(default_factory=dict)


Script = Callable[[int], Sequence[Asked]]
"""The requests that a call under way repeats; the argument is the call's number, from 0."""


def sequences(model: str, steps: int) -> Script:
    """Return sequences of so many steps, one behind the other, each with an id of its own."""
    return lambda slot: [
        Asked(
            model,
            {"sequence_id": slot + 1, "sequence_start": step == 0, "sequence_end": step == steps - 1},
        )
        for step in range(steps)
    ]


def one_after_the_other(*models: str) -> Script:
    """Return a client that asks `models` in turn."""
    return lambda slot: [Asked(model) for model in models]


def of_tenants(model: str, count: int) -> Script:
    """Return clients that belong to `count` tenants, in turn."""
    return lambda slot: [Asked(model, {"tenant": f"tenant {slot % count}"})]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcScenario:
    """One row of the table at each of `shapes`.

    See `benchmarks.scenarios.Scenario` for what is not explained here.
    """

    name: str
    title: str
    model: str
    way: Way
    shapes: tuple[Shape, ...]
    inputs: Callable[[], Tensors]
    expected: Callable[[Tensors], Tensors]
    # The script of `Way.SCRIPT`, whose models take and give what `model` does.
    script: Script | None = None
    referenced: bool = True  # whether the references can answer it
    on_gpu: bool = False  # no reference is measured: theirs would not use it
    transfer: int = 0

    @property
    def models(self) -> Sequence[str]:
        """The models that are asked."""
        if self.script is None:
            return (self.model,)
        return list(dict.fromkeys(each.model for each in self.script(0)))

    @property
    def first(self) -> Asked:
        """The request that is sent once, to check its answer."""
        return Asked(self.model) if self.script is None else self.script(0)[0]


_add_sub = partial(GrpcScenario, inputs=pair, expected=sum_and_difference)
_scripted = partial(_add_sub, way=Way.SCRIPT, referenced=False)

GRPC_SCENARIOS: Final = (
    _add_sub(
        name="grpc-unary",
        title="ONNX add/sub, unary",
        model="onnx_add_sub",
        way=Way.UNARY,
        shapes=(Shape(1, 1), Shape(4, 8), Shape(8, 16), Shape(16, 32)),
    ),
    _add_sub(
        name="grpc-metadata",
        title="ONNX add/sub, unary, per-call metadata",
        model="onnx_add_sub",
        way=Way.METADATA,
        shapes=(Shape(8, 16),),
    ),
    _add_sub(
        name="grpc-metadata-indexed",
        title="ONNX add/sub, unary, per-call metadata, indexed",
        model="onnx_add_sub",
        way=Way.METADATA_INDEXED,
        shapes=(Shape(8, 16),),
    ),
    _add_sub(
        name="grpc-stream",
        title="ONNX add/sub, streaming",
        model="onnx_add_sub",
        way=Way.STREAM,
        shapes=(Shape(1, 1), Shape(4, 8), Shape(8, 16)),
    ),
    GrpcScenario(
        name="grpc-identity-1mib",
        title="ONNX identity, 1 MiB each way, unary",
        model="onnx_identity",
        way=Way.UNARY,
        shapes=(Shape(1, 1), Shape(4, 1)),
        inputs=ramp(MIB),
        expected=same,
        transfer=MIB,
    ),
    GrpcScenario(
        name="grpc-identity-16mib",
        title="ONNX identity, 16 MiB each way, unary",
        model="onnx_identity",
        way=Way.UNARY,
        shapes=(Shape(1, 1),),
        inputs=ramp(16 * MIB),
        expected=same,
        transfer=16 * MIB,
    ),
    GrpcScenario(
        name="grpc-gpu-identity-16mib",
        title="TorchScript identity on a GPU, 16 MiB each way, unary",
        model="torch_identity_gpu",
        way=Way.UNARY,
        shapes=(Shape(1, 1),),
        inputs=ramp(16 * MIB),
        expected=same,
        on_gpu=True,
        transfer=16 * MIB,
    ),
    _scripted(
        name="sequences-none",
        title="ONNX add/sub, dynamic batches, for comparison",
        model="onnx_add_sub",
        script=one_after_the_other("onnx_add_sub"),
        shapes=(Shape(4, 8), Shape(4, 16)),
    ),
    _scripted(
        name="sequences-direct",
        title="ONNX add/sub in sequences of 50, direct",
        model="sequence_direct",
        script=sequences("sequence_direct", 50),
        shapes=(Shape(4, 8), Shape(4, 16)),
    ),
    _scripted(
        name="sequences-oldest",
        title="ONNX add/sub in sequences of 50, oldest",
        model="sequence_oldest",
        script=sequences("sequence_oldest", 50),
        shapes=(Shape(4, 8), Shape(4, 16)),
    ),
    _scripted(
        name="chain-calls",
        title="three add/sub models, called one after the other (a third of a chain)",
        model="chain_1",
        script=one_after_the_other("chain_1", "chain_2", "chain_3"),
        shapes=(Shape(1, 1), Shape(4, 8)),
    ),
    GrpcScenario(
        name="chain-ensemble",
        title="ensemble of three add/sub steps (a whole chain)",
        model="chain",
        way=Way.SCRIPT,
        script=one_after_the_other("chain"),
        referenced=False,
        shapes=(Shape(1, 1), Shape(4, 8)),
        inputs=pair,
        expected=sum_and_difference_thrice,
    ),
    _scripted(
        name="cache-hit",
        title="ONNX add/sub, answered by the response cache",
        model="cached",
        script=one_after_the_other("cached"),
        shapes=(Shape(1, 1), Shape(4, 8)),
    ),
    _scripted(
        name="fair-queues",
        title="ONNX add/sub, four tenants with a fair queue",
        model="fair",
        script=of_tenants("fair", 4),
        shapes=(Shape(4, 8), Shape(4, 16)),
    ),
    _scripted(
        name="rate-limit",
        title="ONNX add/sub, each execution holding a resource",
        model="rate_limited",
        script=one_after_the_other("rate_limited"),
        shapes=(Shape(4, 8), Shape(4, 16)),
    ),
    _add_sub(
        name="python-unary",
        title="Python add/sub, unary",
        model="python_add_sub",
        way=Way.UNARY,
        referenced=False,
        shapes=(Shape(1, 1), Shape(4, 8), Shape(8, 16)),
    ),
    _add_sub(
        name="python-stream",
        title="Python add/sub, streaming, for comparison",
        model="python_add_sub",
        way=Way.STREAM,
        referenced=False,
        shapes=(Shape(1, 1), Shape(4, 8)),
    ),
    _add_sub(
        name="python-decoupled",
        title="Python add/sub, decoupled, streaming",
        model="python_decoupled",
        way=Way.STREAM,
        referenced=False,
        shapes=(Shape(1, 1), Shape(4, 8)),
    ),
    _add_sub(
        name="python-bls",
        title="Python model that asks the ONNX add/sub (BLS), unary",
        model="python_bls",
        way=Way.UNARY,
        referenced=False,
        shapes=(Shape(1, 1), Shape(4, 8)),
    ),
)
