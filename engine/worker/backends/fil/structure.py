"""Whether the trees of a treelite model can be walked. treelite believes the checkpoints that it reads.

A count that a file is too short for, a child outside of its tree, a circle, or a column that the input does
not have would make it read memory that is not the model's, or never end. What is looked at is the
serialised form of a model: the content of a checkpoint, or what treelite makes of a model that it has read
from another format. Its layout is that of treelite's serialisation format, version 4. Newer treelites of that
version add to it in places that are empty otherwise, and that are refused here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.values.tensors import Array

MAJOR = 4
"""The version of the layout."""

_SIZES = {2: 4, 3: 8}  # bytes of an FP32 and an FP64
_LEAF, _NUMERICAL, _CATEGORICAL = 0, 1, 2
_FEWEST_BYTES = 60  # of a tree: its counts
_MOST_CLASSES = 1 << 20


class Unsound(ValueError):
    """The model can't be walked. The message says what is wrong with it."""


class Structure:
    """The shape of a sound model: `columns`, `targets`, `classes` of the widest target, `trees`, `nodes`."""

    def __init__(self, serialised: bytes) -> None:
        """Look at a serialised model. Raises Unsound."""
        reader = _Reader(serialised)
        try:
            self._read(reader)
        except struct.error:
            raise Unsound("it is cut short") from None

    def _read(self, reader: _Reader) -> None:
        major, _, _, threshold, leaf, self.trees = reader.take("<iiiBBQ")
        if major != MAJOR:
            raise Unsound(f"it is of version {major} of treelite's format")
        if threshold not in _SIZES or leaf not in _SIZES:
            raise Unsound("its numbers are of no known type")
        if not 1 <= self.trees <= reader.left // _FEWEST_BYTES:
            raise Unsound("it is cut short" if self.trees else "it has no trees")
        self.columns, _, _, self.targets = reader.take("<iBBi")
        classes, shape = reader.array("<i4"), reader.array("<i4")
        of_trees = reader.array("<i4"), reader.array("<i4")
        reader.array("u1")  # the name of the postprocessor
        reader.skip(8)  # sigmoid_alpha, ratio_c
        bases = reader.array("<f8")
        reader.array("u1")  # attributes
        reader.nothing()
        if self.columns < 1 or self.targets < 1 or classes.size != self.targets:
            raise Unsound("its counts of columns, targets and classes make no sense")
        if not 1 <= classes.min() <= classes.max() <= _MOST_CLASSES:
            raise Unsound("its counts of columns, targets and classes make no sense")
        self.classes = int(classes.max())
        for ids, most in zip(of_trees, (self.targets, self.classes)):
            if ids.size != self.trees or ids.min() < -1 or ids.max() >= most:
                raise Unsound("its trees are of targets or classes that it does not have")
        if shape.size != 2 or shape[0] not in (1, self.targets) or shape[1] not in (1, self.classes):
            raise Unsound("its leaves are of a shape that its classes do not have")
        if bases.size != self.targets * self.classes:
            raise Unsound("it has another number of base scores than of classes")
        found = [_Tree(reader, _SIZES[threshold], _SIZES[leaf]) for _ in range(self.trees)]
        if reader.left:
            raise Unsound("it goes on after its last tree")
        self.nodes = sum(tree.count for tree in found)
        self._nodes = _Nodes(found)
        self._nodes.check(self.columns, int(np.prod(shape)))

    def depth(self) -> int:
        """Return how many tests the longest way through a tree has."""
        return self._nodes.depth()


class _Reader:
    """Takes a serialised model apart, front to back. Raises struct.error where it ends too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._content) - self.at

    def take(self, form: str) -> tuple[Any, ...]:
        """Return the values of a form of `struct`, and pass over them."""
        values = struct.unpack_from(form, self._content, self.at)
        self.at += struct.calcsize(form)
        return values

    def peek(self) -> int:
        """Return the whole number that comes next."""
        (word,) = struct.unpack_from("<i", self._content, self.at)
        return int(word)

    def skip(self, nbytes: int) -> None:
        if nbytes > self.left:
            raise struct.error
        self.at += nbytes

    def look(self, kind: str, count: int, at: int) -> Array:
        """Return an array that begins at a place before this one."""
        return np.frombuffer(self._content, kind, count, at)

    def array(self, kind: str) -> Array:
        """Return an array behind its count."""
        (count,) = self.take("<Q")
        at = self.at
        self.skip(count * int(kind[-1]))
        return self.look(kind, count, at)

    def nothing(self) -> None:
        """Pass over a list of what newer versions add, which has to be empty."""
        if self.take("<i")[0]:
            raise Unsound("it was written by a newer treelite, and has what this one does not know")


class _Tree:
    """The arrays of one tree that decide where a walk leads."""

    __slots__ = ("categories", "cleft", "cmp", "count", "cright", "kinds", "spans", "split", "vectors")

    def __init__(self, reader: _Reader, threshold: int, leaf: int) -> None:
        """Read a tree with thresholds and leaves of so many bytes each.

        All arrays that have an element for each node must be as long as the tree says, so where they begin is
        known, and one look reads all their lengths.
        """
        n = self.count = reader.peek()
        if not 1 <= n <= reader.left:
            raise Unsound("it has a tree without nodes, or one that is cut short")
        at = (
            reader.at + 5 + 8
        )  # the count, whether there is a categorical test, the length of the first array
        sizes = (n, 4 * n, 4 * n, 4 * n, n, leaf * n, threshold * n, n, n)
        *lengths, self.vectors = reader.take("<5x" + "".join(f"Q{size}x" for size in sizes) + "Q")
        begins = [at + 8 * place + sum(sizes[:place]) for place in range(8)]
        self.kinds = reader.look("i1", n, begins[0])
        self.cleft, self.cright, self.split = (reader.look("<i4", n, begins[place]) for place in (1, 2, 3))
        self.cmp = reader.look("i1", n, begins[7])
        reader.skip(leaf * self.vectors)
        vectors = reader.array("<u8"), reader.array("<u8")
        (self.categories,) = reader.take("<Q")
        reader.skip(4 * self.categories)
        self.spans = (*vectors, reader.array("<u8"), reader.array("<u8"))
        lengths += [span.size for span in self.spans]
        for size in (8, 1, 8, 1, 8, 1):  # data_count, sum_hess and gain, each with which nodes have it
            (length,) = reader.take("<Q")
            reader.skip(size * length)
            lengths.append(length or n)
        if any(length != n for length in lengths):
            raise Unsound("the arrays of a tree's nodes are not of one length")
        reader.nothing()
        reader.nothing()


class _Nodes:
    """The nodes of all trees, one tree after the other."""

    def __init__(self, trees: Sequence[_Tree]) -> None:
        self._trees = trees
        counts = np.array([tree.count for tree in trees])
        self._roots = np.cumsum(counts) - counts
        self._counts = np.repeat(counts, counts)
        self._first = np.repeat(self._roots, counts)
        self._left = np.concatenate([tree.cleft for tree in trees]).astype(np.int64)
        self._right = np.concatenate([tree.cright for tree in trees]).astype(np.int64)

    def check(self, columns: int, leaf_width: int) -> None:
        """Raise Unsound if a walk could leave its tree, or read what is not there."""
        kinds = np.concatenate([tree.kinds for tree in self._trees])
        inner = self._left != -1
        if (inner != (kinds != _LEAF)).any() or kinds.min() < _LEAF or kinds.max() > _CATEGORICAL:
            raise Unsound("it has a node that is neither a leaf nor a test")
        children = np.concatenate([self._left[inner], self._right[inner]])
        counts, first = np.tile(self._counts[inner], 2), np.tile(self._first[inner], 2)
        if ((children < 1) | (children >= counts)).any():
            raise Unsound("it has a node whose children are not in its tree")
        if children.size and np.bincount(children + first).max() > 1:
            raise Unsound("it has a node with two parents")
        tested = np.concatenate([tree.split for tree in self._trees])[inner]
        if ((tested < 0) | (tested >= columns)).any():
            raise Unsound(f"it tests a column that is not among its {columns}")
        compared = np.concatenate([tree.cmp for tree in self._trees])[kinds == _NUMERICAL]
        if ((compared < 1) | (compared > 5)).any():
            raise Unsound("it has a test without a comparison")
        self._check_spans(~inner, kinds, leaf_width)

    def _check_spans(self, leaves: Array, kinds: Array, leaf_width: int) -> None:
        begin, end, first, last = (
            np.concatenate([tree.spans[at] for tree in self._trees]) for at in range(4)
        )
        vectors = np.repeat([tree.vectors for tree in self._trees], [tree.count for tree in self._trees])
        categories = np.repeat(
            [tree.categories for tree in self._trees], [tree.count for tree in self._trees]
        )
        if (begin > end).any() or (end > vectors).any():
            raise Unsound("it has a leaf with values that are not there")
        if (first > last).any() or (last > categories).any():
            raise Unsound("it has a test of categories that are not there")
        widths = (end - begin)[leaves]
        if leaf_width > 1 and (widths != leaf_width).any():
            raise Unsound("it has a leaf of another width than the others")

    def depth(self) -> int:
        """Return how many tests the longest way down has; only after `check`."""
        level, depth = self._roots, -1
        while level.size:
            depth += 1
            inner = level[self._left[level] != -1]
            first = self._first[inner]
            level = np.concatenate([self._left[inner] + first, self._right[inner] + first])
        return depth
