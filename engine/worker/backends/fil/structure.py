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
    """The shape of a sound model: `columns`, `targets`, `classes` of the widest target, `trees`, `nodes`.

    With what a walk needs: `tables` and `walk`, the arrays of all nodes; `classes_of_trees`, -1 where a tree
    is for all; and `averages`, `bases`, `postprocessor`, `sigmoid_alpha`, from the sums to the scores.
    """

    def __init__(self, serialised: bytes) -> None:
        """Look at a serialised model. Raises Unsound."""
        reader = _Reader(serialised)
        try:
            self._read(reader)
        except (struct.error, OverflowError):  # of a place that is not there, or that no address can name
            raise Unsound("it is cut short") from None

    def _read(self, reader: _Reader) -> None:
        major, _, _, threshold, leaf, self.trees = reader.take("<iiiBBQ")
        if major != MAJOR:
            raise Unsound(f"it is of version {major} of treelite's format")
        if threshold not in _SIZES or leaf not in _SIZES:
            raise Unsound("its numbers are of no known type")
        if not 1 <= self.trees <= reader.left // _FEWEST_BYTES:
            raise Unsound("it is cut short" if self.trees else "it has no trees")
        self.columns, _, averages, self.targets = reader.take("<iBBi")
        self.averages = bool(averages)
        classes, shape = reader.array("<i4"), reader.array("<i4")
        of_trees = reader.array("<i4"), reader.array("<i4")
        self.postprocessor = reader.array("u1").tobytes().decode("ascii", "replace")
        self.sigmoid_alpha, _ = reader.take("<ff")  # and ratio_c
        self.bases = bases = reader.array("<f8")
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
        trees = _Trees(reader.content, reader.at, self.trees, _SIZES[threshold], _SIZES[leaf])
        self.nodes = trees.nodes
        self.threshold_bytes, self.leaf_bytes = _SIZES[threshold], _SIZES[leaf]
        self.leaf_width = int(np.prod(shape))
        self.classes_of_trees = of_trees[1]
        self.tables = trees
        self.walk = _Nodes(trees)
        self.walk.check(trees, self.columns, self.leaf_width)

    def depth(self) -> int:
        """Return how many tests the longest way through a tree has."""
        return self.walk.depth()


class _Reader:
    """Takes the head of a serialised model apart. Raises struct.error where it ends too early."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.content) - self.at

    def take(self, form: str) -> tuple[Any, ...]:
        """Return the values of a form of `struct`, and pass over them."""
        values = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return values

    def skip(self, nbytes: int) -> None:
        if nbytes > self.left:
            raise struct.error
        self.at += nbytes

    def array(self, kind: str) -> Array:
        """Return an array behind its count."""
        (count,) = self.take("<Q")
        at = self.at
        self.skip(count * int(kind[-1]))
        return np.frombuffer(self.content, kind, count, at)

    def nothing(self) -> None:
        """Pass over a list of what newer versions add, which has to be empty."""
        if self.take("<i")[0]:
            raise Unsound(_NEWER)


_NEWER = "it was written by a newer treelite, and has what this one does not know"
_UNEVEN = "the arrays of a tree's nodes are not of one length"
_HEAD = 5  # bytes of a tree before its arrays: the count of its nodes, and whether it has categorical tests
_STATISTICS = (8, 1, 8, 1, 8, 1)  # bytes of an element: data_count, sum_hess and gain, each with who has it
_WORD = struct.Struct("<Q").unpack_from
_COUNT = struct.Struct("<i").unpack_from
_EXTENSIONS = struct.Struct("<ii").unpack_from


class _Trees:
    """Where the arrays of all trees lie, one tree after the other.

    Arrays that have an element for each node must be as long as the tree says. So a few lengths of a tree say
    where the next one begins, and all others are looked at in one go: a forest has thousands of trees, and
    Python takes its time.
    """

    def __init__(self, content: bytes, at: int, trees: int, threshold: int, leaf: int) -> None:
        """Find trees with thresholds and leaves of so many bytes each; they begin at a place.

        Raises struct.error, OverflowError or Unsound.
        """
        self._content = memoryview(content)
        widths = (1, 4, 4, 4, 1, leaf, threshold, 1, 1)
        fixed = len(widths) * 8, sum(widths)
        found = []
        for _ in range(trees):
            (n,) = _COUNT(content, at)
            if not 1 <= n <= len(content) - at:
                raise Unsound("it has a tree without nodes, or one that is cut short")
            behind = at + _HEAD + fixed[0] + n * fixed[1]
            (vectors,) = _WORD(content, behind)
            spans = behind + 8 + leaf * vectors
            behind = spans + 16 + 16 * n
            (categories,) = _WORD(content, behind)
            tests = behind + 8 + 4 * categories
            found.append((n, at + _HEAD, spans, tests, vectors, categories))
            at = _end(content, tests + 16 + 16 * n, n)
        if at != len(content):
            raise Unsound("it goes on after its last tree")
        self.counts, arrays, spans, tests, self.vectors, self.categories = np.array(found, np.int64).T
        self.nodes = int(self.counts.sum())
        # Where each array's length is, its elements behind it.
        before = np.concatenate([[0], np.cumsum(widths[:-1])])
        own = [arrays + 8 * place + self.counts * nbytes for place, nbytes in enumerate(before)]
        pairs = [begin + each * (8 + 8 * self.counts) for begin in (spans, tests) for each in (0, 1)]
        self._own, self._pairs = own, pairs
        places = np.stack([*own, *pairs])[..., np.newaxis] + np.arange(8)
        lengths = np.frombuffer(content, np.uint8)[places].view("<u8")[..., 0]
        if (lengths != self.counts).any():
            raise Unsound(_UNEVEN)

    def array(self, place: int, kind: str) -> Array:
        """Return one of the arrays of numbers, of all trees."""
        return self._joined(self._own[place], kind)

    def leaf_vectors(self, kind: str) -> tuple[Array, Array]:
        """Return the values of all leaves that are vectors, and where those of each tree begin among them."""
        ends = self._pairs[0]
        begins = ends - int(kind[-1]) * self.vectors
        parts = [self._content[begin:end] for begin, end in zip(begins.tolist(), ends.tolist())]
        return np.frombuffer(b"".join(parts), kind), np.cumsum(self.vectors) - self.vectors

    def spans(self, place: int) -> Array:
        """Return where leaf vectors begin (0) and end (1), or lists of categories (2, 3), of all nodes."""
        return self._joined(self._pairs[place], "<u8")

    def _joined(self, places: Array, kind: str) -> Array:
        view, begins = self._content, places + 8
        ends = begins + int(kind[-1]) * self.counts
        parts = [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist())]
        return np.frombuffer(b"".join(parts), kind)


def _end(content: bytes, at: int, nodes: int) -> int:
    """Return where a tree ends whose statistics begin at a place."""
    for width in _STATISTICS:
        (length,) = _WORD(content, at)
        if length and length != nodes:
            raise Unsound(_UNEVEN)
        at += 8 + width * length
    if any(_EXTENSIONS(content, at)):
        raise Unsound(_NEWER)
    return at + 8


class _Nodes:
    """The nodes of all trees, one tree after the other."""

    def __init__(self, trees: _Trees) -> None:
        self.roots = np.cumsum(trees.counts) - trees.counts
        self.first = np.repeat(self.roots, trees.counts)
        self.left, self.right = trees.array(1, "<i4"), trees.array(2, "<i4")

    def check(self, trees: _Trees, columns: int, leaf_width: int) -> None:
        """Raise Unsound if a walk could leave its tree, or read what is not there."""
        kinds = trees.array(0, "i1")
        tests = self.left != -1
        if (tests != (kinds != _LEAF)).any() or kinds.min() < _LEAF or kinds.max() > _CATEGORICAL:
            raise Unsound("it has a node that is neither a leaf nor a test")
        inner = np.flatnonzero(tests)
        if inner.size:
            self._check_children(trees, inner)
            tested = trees.array(3, "<i4")[inner]
            if tested.min() < 0 or tested.max() >= columns:
                raise Unsound(f"it tests a column that is not among its {columns}")
        compared = trees.array(7, "i1")[kinds == _NUMERICAL]
        if ((compared < 1) | (compared > 5)).any():
            raise Unsound("it has a test without a comparison")
        _check_spans(trees, ~tests, leaf_width)

    def _check_children(self, trees: _Trees, inner: Array) -> None:
        most, first = np.repeat(trees.counts, trees.counts)[inner], self.first[inner]
        has_parent = np.zeros(self.left.size, np.bool_)
        for children in (self.left[inner], self.right[inner]):
            if children.min() < 1 or (children >= most).any():
                raise Unsound("it has a node whose children are not in its tree")
            has_parent[children + first] = True
        if np.count_nonzero(has_parent) != 2 * inner.size:
            raise Unsound("it has a node with two parents")

    def depth(self) -> int:
        """Return how many tests the longest way down has; only after `check`."""
        level, depth = self.roots, -1
        while level.size:
            depth += 1
            inner = level[self.left[level] != -1]
            first = self.first[inner]
            level = np.concatenate([self.left[inner] + first, self.right[inner] + first])
        return depth


def _check_spans(trees: _Trees, leaves: Array, leaf_width: int) -> None:
    begin, end, first, last = (trees.spans(place) for place in range(4))
    if (begin > end).any() or (end > np.repeat(trees.vectors.astype("u8"), trees.counts)).any():
        raise Unsound("it has a leaf with values that are not there")
    if (first > last).any() or (last > np.repeat(trees.categories.astype("u8"), trees.counts)).any():
        raise Unsound("it has a test of categories that are not there")
    if leaf_width > 1 and ((end - begin)[leaves] != leaf_width).any():
        raise Unsound("it has a leaf of another width than the others")
