"""Forests walked by a small C function over tables: any size, without compiling the forest itself.

Theory of operation. All nodes lie in one table of 16 bytes each. A leaf leads to itself, so eight walks go on
in step until none moves: their reads of memory overlap. Many rows walk one tree at a time, and a few rows
eight trees at a time. A row's leaves are summed in the order of the trees and in the model's own precision,
as treelite does. What follows (average, base scores, sigmoid) is numpy's.

Inputs are FP32, so every threshold becomes one: `x < t` is `x < u` for the least FP32 `u` that is not below
`t`, and `x <= t` is `x < t'` for the number `t'` after `t`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.worker.backends.fil.compiled import CannotCompile, agree, kept, run_compiler
from engine.worker.backends.fil.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.values.tensors import Array
    from engine.worker.backends.fil.forest import Forest

_NODE = np.dtype([("threshold", "<f4"), ("column", "<i4"), ("left", "<i4"), ("right", "<i4")])
_LESS, _NOT_ABOVE = 2, 3  # treelite's comparisons
_NUMERICAL, _CATEGORICAL = 1, 2
_MOST_COLUMNS = 1 << 30
_FLAG = np.int32(-(2**31))  # in a column: a missing value goes to the first side
_SOURCE = """
#include <stdint.h>
#define TOGETHER 8
struct node { float threshold; int32_t column; int32_t kids[2]; };

/* The highest bit of a column: a missing value goes to the first side. */
static inline int32_t step(const struct node *nodes, int32_t at, const float *x) {
  const struct node *n = nodes + at;
  float value = x[n->column & 0x7fffffff];
  return n->kids[!((value < n->threshold) | ((n->column < 0) & (value != value)))];
}

#define WALKS(NAME, KIND)                                                                     \\
void NAME(const float *x, long rows, long columns, const struct node *nodes,                  \\
          const int32_t *roots, const int32_t *classes, long trees, const int32_t *places,    \\
          const KIND *leaves, long width, long outputs, KIND *scores) {                       \\
  long whole = rows - rows % TOGETHER;                                                        \\
  int32_t at[TOGETHER], moved;                                                                \\
  for (long i = 0; i < rows * outputs; ++i) scores[i] = 0;                                    \\
  for (long tree = 0; tree < trees; ++tree)                                                   \\
    for (long row = 0; row < whole; row += TOGETHER) {                                        \\
      for (int k = 0; k < TOGETHER; ++k) at[k] = roots[tree];                                 \\
      do {                                                                                    \\
        moved = 0;                                                                            \\
        for (int k = 0; k < TOGETHER; ++k) {                                                  \\
          int32_t next = step(nodes, at[k], x + (row + k) * columns);                         \\
          moved |= next ^ at[k];                                                              \\
          at[k] = next;                                                                       \\
        }                                                                                     \\
      } while (moved);                                                                        \\
      for (int k = 0; k < TOGETHER; ++k) {                                                    \\
        KIND *out = scores + (row + k) * outputs + classes[tree];                             \\
        for (long w = 0; w < width; ++w) out[w] += leaves[places[at[k]] + w];                 \\
      }                                                                                       \\
    }                                                                                         \\
  for (long row = whole; row < rows; ++row)                                                   \\
    for (long tree = 0; tree < trees; tree += TOGETHER) {                                     \\
      int many = trees - tree < TOGETHER ? (int)(trees - tree) : TOGETHER;                    \\
      for (int k = 0; k < many; ++k) at[k] = roots[tree + k];                                 \\
      do {                                                                                    \\
        moved = 0;                                                                            \\
        for (int k = 0; k < many; ++k) {                                                      \\
          int32_t next = step(nodes, at[k], x + row * columns);                               \\
          moved |= next ^ at[k];                                                              \\
          at[k] = next;                                                                       \\
        }                                                                                     \\
      } while (moved);                                                                        \\
      for (int k = 0; k < many; ++k) {                                                        \\
        KIND *out = scores + row * outputs + classes[tree + k];                               \\
        for (long w = 0; w < width; ++w) out[w] += leaves[places[at[k]] + w];                 \\
      }                                                                                       \\
    }                                                                                         \\
}
WALKS(tritium_walk_float, float)
WALKS(tritium_walk_double, double)
"""


class WalkedForest:
    """The scores of a forest by the C function. Raises CannotCompile for a forest that it is not for."""

    def __init__(self, forest: Forest, library: str) -> None:
        structure = Structure(forest.model.serialize_bytes())
        self._finish = _finish(structure, forest.kind)
        # What the function's arguments point into.
        self._tables = _tables(structure)
        self._kind = forest.kind
        self._classes = forest.classes
        try:
            function = getattr(ctypes.CDLL(library), f"tritium_walk_{'double' if forest.wide else 'float'}")
        except (OSError, AttributeError) as error:
            raise CannotCompile(f"the library can't be loaded: {error}") from error
        pointer, number = ctypes.c_void_p, ctypes.c_long
        function.restype = None
        function.argtypes = [
            pointer,
            number,
            number,
            *[pointer] * 3,
            number,
            *[pointer] * 2,
            number,
            number,
            pointer,
        ]
        self._function = function
        nodes, roots, of_trees, places, leaves = (each.ctypes.data for each in self._tables)
        trees = structure.trees
        self._arguments = nodes, roots, of_trees, trees, places, leaves, structure.leaf_width, forest.classes
        agree(self, forest)

    def scores(self, x: Array, threads: int = 1) -> Array:
        """Return the scores [rows, classes] of `x`, FP32 [rows, columns], on the calling thread."""
        del threads
        x = np.ascontiguousarray(x, np.float32)
        sums = np.empty((len(x), self._classes), self._kind)
        self._function(x.ctypes.data, *x.shape, *self._arguments, sums.ctypes.data)
        return self._finish(sums)


def walked(forest: Forest) -> WalkedForest:
    """Return the walk of a forest; its C function is compiled once for each user. Raises CannotCompile."""
    name = f"walk-{hashlib.sha256(f'{os.uname().machine}{_SOURCE}'.encode()).hexdigest()}"

    def build(library: str) -> None:
        source = f"{library}.{os.getpid()}.c"
        made = f"{source}.so"
        try:
            with open(source, "w") as file:
                file.write(_SOURCE)
            run_compiler(["-std=c99", "-O3", "-fPIC", "-shared", source, "-o", made])
            os.replace(made, library)
        finally:
            for path in (source, made):
                if os.path.exists(path):
                    os.unlink(path)

    return WalkedForest(forest, kept(name, build))


def _tables(structure: Structure) -> list[Array]:
    """Return the nodes, the trees' roots and classes, the place of each node's leaf, and the leaves."""
    trees, nodes = structure.tables, structure.walk
    kinds, compared = trees.array(0, "i1"), trees.array(7, "i1")
    tests = kinds == _NUMERICAL
    if (kinds == _CATEGORICAL).any():
        raise CannotCompile("it has tests of categories")
    if not np.isin(compared[tests], (_LESS, _NOT_ABOVE)).all() or structure.columns > _MOST_COLUMNS:
        raise CannotCompile("it has tests other than < and <=")
    table = np.zeros(structure.nodes, _NODE)
    here = np.arange(structure.nodes, dtype=np.int32)
    thresholds = trees.array(6, f"<f{structure.threshold_bytes}")
    inclusive = compared == _NOT_ABOVE
    # `x <= inf` holds for every number. No `x < u` does, but `x < -inf` for none: so the sides change places.
    turned = tests & inclusive & (thresholds == np.inf)
    left, right = nodes.left + nodes.first, nodes.right + nodes.first
    table["left"] = np.where(tests, np.where(turned, right, left), here)
    table["right"] = np.where(tests, np.where(turned, left, right), here)
    flagged = (trees.array(4, "i1") != 0) ^ turned
    columns = trees.array(3, "<i4") | np.where(flagged, _FLAG, np.int32(0))
    table["column"] = np.where(tests, columns, 0)
    below = np.where(turned, np.float32(-np.inf), _below(thresholds, inclusive, tests))
    table["threshold"] = np.where(tests, below, 0)
    leaf = f"<f{structure.leaf_bytes}"
    if structure.leaf_width == 1:
        leaves, places = trees.array(5, leaf), here
        of_trees = np.maximum(structure.classes_of_trees, 0)
    else:
        leaves, vectors = trees.leaf_vectors(leaf)
        places = (trees.spans(0) + np.repeat(vectors, trees.counts).astype("u8")).astype(np.int32)
        places[tests] = 0
        of_trees = np.zeros(structure.trees)
    rest = [nodes.roots, of_trees, places]
    return [table, *(each.astype(np.int32) for each in rest), np.ascontiguousarray(leaves)]


def _below(thresholds: Array, inclusive: Array, tests: Array) -> Array:
    """Return FP32 `u` such that `x < u` is what each test says of every FP32 `x`."""
    if np.isnan(thresholds[tests]).any():
        raise CannotCompile("it has a test without a threshold")
    exact = np.where(inclusive, np.nextafter(thresholds, thresholds.dtype.type(np.inf)), thresholds)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = exact.astype(np.float32)
        return np.where(narrow < exact, np.nextafter(narrow, np.float32(np.inf)), narrow)


def _finish(structure: Structure, kind: Any) -> Callable[[Array], Array]:
    """Return what makes scores of sums [rows, classes]."""
    factor = np.ones(structure.classes, kind)
    if structure.averages:
        of_trees = structure.classes_of_trees
        counted = np.bincount(of_trees[of_trees >= 0], minlength=structure.classes)
        factor = (counted + np.count_nonzero(of_trees < 0)).astype(kind)
    bases = structure.bases.astype(kind)
    last = _LAST.get(structure.postprocessor)
    if last is None:
        raise CannotCompile(f"its last step is {structure.postprocessor}")
    alpha = kind(structure.sigmoid_alpha)
    return lambda sums: last(sums / factor + bases, alpha)


def _softmax(scores: Array, alpha: Any) -> Array:
    del alpha
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _sigmoid(scores: Array, alpha: Any) -> Array:
    with np.errstate(over="ignore"):
        shares: Array = 1 / (1 + np.exp(-alpha * scores))
    return shares


def _exponential(scores: Array, alpha: Any) -> Array:
    del alpha
    with np.errstate(over="ignore"):
        return np.exp(scores)


def _as_they_are(scores: Array, alpha: Any) -> Array:
    del alpha
    return scores


_LAST: dict[str, Callable[[Array, Any], Array]] = {
    "identity": _as_they_are,
    "identity_multiclass": _as_they_are,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "exponential": _exponential,
}
