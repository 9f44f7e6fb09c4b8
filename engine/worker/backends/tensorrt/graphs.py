"""Which executions are captured as CUDA graphs, and which of them serves a batch. No CUDA here.

Contract: backends.md section 7, `optimization.cuda` in model_config.md section 4.10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo
    from engine.worker.backends.tensorrt.ports import Port

    Shapes = Mapping[str, tuple[int, ...]]

_WITHOUT_BATCHER = (1, 2, 3, 4, 6, 8, 12, 16)


class Spec:
    """An execution to capture: rows, from how many rows on it serves, and inputs' shapes without the rows.

    Inputs that are not named have the best shape of the profile. Without batching `rows` is 0.
    """

    __slots__ = ("inputs", "least", "rows")

    def __init__(self, rows: int, inputs: Shapes, least: int | None = None) -> None:
        self.rows = rows
        self.inputs = inputs
        self.least = rows if least is None else least

    def shapes(self, ports: Sequence[Port], profile: int) -> Shapes | None:
        """Return the inputs' shapes, rows included; None if the profile does not take them."""
        found = {}
        for port in ports:
            best = tuple(port.bounds[profile][1])
            if self.rows:
                shape = (self.rows, *self.inputs.get(port.name, best[1:]))
            else:
                shape = self.inputs.get(port.name, best)
            if port.misfit(profile, shape):
                return None
            found[port.name] = shape
        return found


def wanted(model: ModelInfo, written: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Spec]:
    """Return what is to be captured, the largest first: memory then need not grow.

    Raises LoadError for a `graph_spec` that can't be had.
    """
    specs = [_spec(model, each, names) for each in written] or _usual(model)
    return sorted(specs, key=lambda spec: -spec.rows)


def _usual(model: ModelInfo) -> list[Spec]:
    most = model.max_batch_size
    if not most:
        return [Spec(0, {})]
    batcher = model.config.get("dynamic_batching")
    if batcher is None:
        batcher = (model.config.get("sequence_batching") or {}).get("oldest")
    sizes = {1, most}
    if batcher is None:
        sizes.update(size for size in _WITHOUT_BATCHER if size <= most)
    else:
        sizes.update(int(size) for size in batcher.get("preferred_batch_size", ()))
    return [Spec(size, {}) for size in sizes]


def _spec(model: ModelInfo, written: Mapping[str, Any], names: Sequence[str]) -> Spec:
    rows = int(written.get("batch_size", 0))
    who = f"unable to load model '{model.name}', graph_spec of batch_size {rows}"
    if bool(rows) != bool(model.max_batch_size) or rows > model.max_batch_size:
        raise LoadError(f"{who} does not go with max_batch_size {model.max_batch_size}")
    inputs = _inputs(written)
    unknown = sorted(set(inputs) - set(names))
    if unknown:
        raise LoadError(f"{who} names input '{unknown[0]}', and the engine has: {', '.join(names)}")
    lower: Mapping[str, Any] | None = written.get("graph_lower_bound")
    if not lower:
        return Spec(rows, inputs)
    if any(shape != inputs.get(name) for name, shape in _inputs(lower).items()):
        raise LoadError(
            f"{who} has a graph_lower_bound with other inputs: smaller batches can be filled up, smaller"
            " inputs can't"
        )
    least = int(lower.get("batch_size", 0))
    if not 0 < least <= rows:
        raise LoadError(f"{who} has a graph_lower_bound of batch_size {least}; it must be from 1 to {rows}")
    return Spec(rows, inputs, least)


def _inputs(written: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(map(int, shape.get("dim", ()))) for name, shape in written.get("input", {}).items()}
