"""What Triton says of a configuration whose shapes a model can't have. Contract: backends.md section 1.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Shape = Sequence[int]


def spelt(shape: Shape) -> str:
    """Return a shape for a message."""
    return f"[{','.join(map(str, shape))}]"


def unbatchable(model: str, tensor: str, shape: Shape) -> str:
    """Return why a model that has such a shape can't batch."""
    return (
        f"model '{model}', tensor '{tensor}': for the model to support batching the shape should have at"
        " least 1 dimension and the first dimension must be -1; but shape expected by the model is"
        f" {spelt(shape)}"
    )


def misfit(model: str, tensor: str, shape: Shape, configured: Shape, *, batches: bool) -> str:
    """Return that the model's shape and the configured one differ.

    If the model batches, both have the batch dimension.
    """
    said = (
        f"model '{model}', tensor '{tensor}': the model expects {len(shape)} dimensions (shape"
        f" {spelt(shape)}) but the model configuration specifies {len(configured)} dimensions"
    )
    if not batches:
        return f"{said} (shape {spelt(configured)})"
    return (
        f"{said} (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor"
        f" shape, making complete shape {spelt(configured)})"
    )
