"""What is measured over gRPC, as data. A row is one message, sent to one model over and over, in one of three ways.

Adding a row is adding a line here. Models are those of `benchmarks.repository`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from benchmarks.scenarios import MIB, Tensors, pair, ramp, same, sum_and_difference


class Way(Enum):
    """How the calls of a row differ from one another."""

    UNARY = "unary"  # ModelInfer: every call has the header block of the last one
    METADATA = (
        "metadata"  # ModelInfer: a fresh `traceparent` on every call, as grpcio encodes it: never indexed
    )
    METADATA_INDEXED = (
        "metadata-indexed"  # the same, put into the HPACK table by every call, as grpc-go encodes it
    )
    STREAM = "stream"  # ModelStreamInfer: one stream a connection


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcScenario:
    """One row of the table at each of `shapes`; see `benchmarks.scenarios.Scenario` for what is not explained here."""

    name: str
    title: str
    model: str
    way: Way
    shapes: tuple[Shape, ...]
    inputs: Callable[[], Tensors]
    expected: Callable[[Tensors], Tensors]
    on_gpu: bool = False  # no reference is measured: theirs would not use it
    transfer: int = 0


GRPC_SCENARIOS: Final = (
    GrpcScenario(
        name="grpc-unary",
        title="ONNX add/sub, unary",
        model="onnx_add_sub",
        way=Way.UNARY,
        shapes=(Shape(1, 1), Shape(4, 8), Shape(8, 16), Shape(16, 32)),
        inputs=pair,
        expected=sum_and_difference,
    ),
    GrpcScenario(
        name="grpc-metadata",
        title="ONNX add/sub, unary, per-call metadata",
        model="onnx_add_sub",
        way=Way.METADATA,
        shapes=(Shape(8, 16),),
        inputs=pair,
        expected=sum_and_difference,
    ),
    GrpcScenario(
        name="grpc-metadata-indexed",
        title="ONNX add/sub, unary, per-call metadata, indexed",
        model="onnx_add_sub",
        way=Way.METADATA_INDEXED,
        shapes=(Shape(8, 16),),
        inputs=pair,
        expected=sum_and_difference,
    ),
    GrpcScenario(
        name="grpc-stream",
        title="ONNX add/sub, streaming",
        model="onnx_add_sub",
        way=Way.STREAM,
        shapes=(Shape(1, 1), Shape(4, 8), Shape(8, 16)),
        inputs=pair,
        expected=sum_and_difference,
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
)
