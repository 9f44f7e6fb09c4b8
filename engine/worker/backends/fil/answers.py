"""From the scores of a forest to what `output__0` holds (contract, backends.md section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.values.tensors import Array
    from engine.worker.backends.fil.parameters import Options


class ShapeMismatch(ValueError):
    """The configured shape of an output is not what the forest gives. The message says what is."""


def squeezed(dims: Sequence[int]) -> list[int]:
    """Return the shape of a row of a response: Triton's FIL backend drops every 1 of the configured one."""
    return [dim for dim in dims if dim != 1]


def answer_for(options: Options, classes: int, dims: Sequence[int]) -> Callable[[Array], Array]:
    """Return what makes [rows, …] FP32 of scores [rows, classes], where `dims` are configured for a row.

    `classes` is 1 for a regressor and for a binary classifier with one score. Raises ShapeMismatch.
    """
    width = int(np.prod(dims, dtype=np.int64)) if dims and min(dims) > 0 else 0
    if not options.classifier:
        return _reshaped(_plain, _fits(width, dims, (classes,)), dims)
    if not options.probabilities:
        _fits(width, dims, (1,))
        return _reshaped(_class_of(options.threshold, classes), 1, dims)
    _fits(width, dims, (1, 2) if classes <= 2 else (classes,))
    if classes == 1:
        return _reshaped(_plain if width == 1 else _both, width, dims)
    return _reshaped(_second if width == 1 else _plain, width, dims)


def _fits(width: int, dims: Sequence[int], allowed: Sequence[int]) -> int:
    if width not in allowed:
        wanted = " or ".join(f"[{each}]" for each in allowed)
        shown = ",".join(map(str, dims))
        raise ShapeMismatch(f"the model gives {wanted} but the configuration makes [{shown}]")
    return width


def _reshaped(make: Callable[[Array], Array], width: int, dims: Sequence[int]) -> Callable[[Array], Array]:
    row = squeezed(dims)

    def answer(scores: Array) -> Array:
        return np.ascontiguousarray(make(scores), dtype=np.float32).reshape(len(scores), *row)

    return answer


def _plain(scores: Array) -> Array:
    return scores


def _second(scores: Array) -> Array:
    return scores[:, 1]


def _both(scores: Array) -> Array:
    return np.concatenate([1 - scores, scores], axis=1)


def _class_of(threshold: float, classes: int) -> Callable[[Array], Array]:
    """Of more than two classes it is the one with the highest score, whatever its sign."""

    def binary(scores: Array) -> Array:
        above: Array = scores[:, -1] > scores.dtype.type(threshold)
        return above

    def highest(scores: Array) -> Array:
        place: Array = scores.argmax(axis=1)
        return place

    return binary if classes <= 2 else highest
