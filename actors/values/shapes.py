"""Shapes of a tensor as its client, its model and the steps of an ensemble see it."""

from __future__ import annotations

from collections.abc import Sequence

from actors.values.specs import OutputSpec
from actors.values.tensors import element_count


def reshaped(
    shape: Sequence[int], dims: Sequence[int], target: Sequence[int], *, batches: bool
) -> tuple[int, ...]:
    """Return `shape`, which fits `dims`, as `target` describes it (contract, model_config.md section 4.1).

    Variable dimensions of `target` take the sizes of those of `dims`, in order; the batch dimension stays.
    """
    lead = 1 if batches else 0
    variable = iter([size for size, dim in zip(shape[lead:], dims, strict=True) if dim == -1])
    return (*shape[:lead], *(next(variable) if dim == -1 else dim for dim in target))


def client_shape(shape: Sequence[int], declared: OutputSpec, *, batches: bool) -> Sequence[int]:
    """Return the shape under which clients see an output of `shape`, as its `reshape` says.

    An output whose rank or size differs from its configuration keeps its shape, so that the difference shows.
    """
    target = declared.reshape
    if target is None or len(shape) - batches != len(target):
        return shape
    client = reshaped(shape, target, declared.dims, batches=batches)
    return client if element_count(client) == element_count(shape) else shape


def fitted(shape: Sequence[int], rank: int, *, batches: bool) -> Sequence[int]:
    """Return a tensor's full shape as it is for a model whose tensor has `rank` dimensions besides the batch.

    A tensor keeps its full shape between models, whether or not they batch (contract, section 7). If it has
    one dimension too few for a batching model, it is a batch of one to that model. If it has one too many for
    a model without batches, a leading 1 is dropped.
    """
    if batches:
        return (1, *shape) if len(shape) == rank else shape
    if len(shape) == rank + 1 and shape[0] == 1:
        return tuple(shape[1:])
    return shape
