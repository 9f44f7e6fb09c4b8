"""The classification extension: an output replaced by its best classes (contract, http.md section 8.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor, element_count, pack_bytes

if TYPE_CHECKING:
    from actors.values.tensors import Array

MAX_ELEMENTS: Final = 1_000_000

_CLASSIFIED: Final = frozenset(
    (
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
        DataType.FP32,
        DataType.FP64,
    )
)


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """An output that is to be put in order.

    Of each of its `rows`, `kept` elements stay; they become texts with `labels`. `shape` is the answer's:
    [kept], with the batch dimension in front where the model batches.
    """

    rows: Array
    kept: int
    labels: Sequence[str]
    floats: bool
    shape: tuple[int, ...]

    def best(self, row: Array) -> list[int]:
        """Return the indices of the greatest elements of `row`."""
        best: list[int] = _greatest(row, self.kept).tolist()
        return best

    def describe(self, row: Array, indices: Sequence[int]) -> list[bytes]:
        """Return `<value>:<index>` for each of `indices`, with `:<label>` behind it where `labels` has it."""
        described: list[bytes] = []
        for index in indices:
            value = f"{float(row[index]):.6f}" if self.floats else str(int(row[index]))
            label = f":{self.labels[index]}" if index < len(self.labels) else ""
            described.append(f"{value}:{index}{label}".encode())
        return described


def classified(output: Tensor, classes: int, spec: ModelSpec) -> Tensor:
    """Return a BYTES tensor of the `classes` greatest elements of each item of a model's `output`.

    Each element reads as `Ranking.describe` says. The greatest comes first, the lower index first among
    equals, NaN last. The result is [min(classes, elements)], with the batch dimension in front where the
    model batches. Raises as `ranking_of` does.
    """
    ranking = ranking_of(output, classes, spec)
    elements = [each for row in ranking.rows for each in ranking.describe(row, ranking.best(row))]
    return Tensor(output.name, DataType.BYTES, ranking.shape, pack_bytes(elements))


def ranking_of(output: Tensor, classes: int, spec: ModelSpec) -> Ranking:
    """Return how `output` of a model is put in order, with the labels that `spec` declares for it.

    Raises InvalidArgument for datatypes that have no order and for too many elements.
    """
    if output.datatype not in _CLASSIFIED:
        raise InvalidArgument(
            f"class result not available for output due to unsupported type '{output.datatype}'"
        )
    batched = spec.batches and len(output.shape) > 0
    leading = output.shape[0] if batched else 1
    per_item = element_count(output.shape[1:] if batched else output.shape)
    if per_item > MAX_ELEMENTS:
        raise InvalidArgument("classification output tensor too large")
    if leading * per_item * output.datatype.size != output.nbytes:
        raise Internal(f"output tensor shape does not match size of output for '{output.name}'")
    rows = np.frombuffer(output.data, dtype=output.datatype.numpy).reshape(leading, per_item)
    declared = spec.outputs_by_name.get(output.name)
    labels = declared.labels if declared is not None else ()
    kept = min(classes, per_item)
    floats = output.datatype is DataType.FP32 or output.datatype is DataType.FP64
    return Ranking(rows, kept, labels, floats, (leading, kept) if batched else (kept,))


def _greatest(row: Array, count: int) -> Array:
    """Return the indices of the `count` greatest elements, greatest first.

    Among equals the lower index is first.
    """
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    # Most elements are far from the greatest: leave them out of the sort.
    if count * 8 < len(row):
        least = np.partition(row, len(row) - count)[len(row) - count] if count else np.inf
        candidates = np.flatnonzero(row >= least)
    else:
        candidates = np.arange(len(row))
    # The mirrored row is sorted in ascending order and read backwards. That keeps equal elements in their
    # order, without negating (which would overflow for the least signed integers and wrap for unsigned ones).
    mirrored = candidates[::-1]
    return mirrored[np.argsort(row[mirrored], kind="stable")][::-1][:count]
