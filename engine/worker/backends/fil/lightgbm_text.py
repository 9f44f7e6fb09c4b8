"""What treelite would read wrongly of LightGBM's text format, without a word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.values.tensors import Array

_END = b"end of trees"
# A literal that begins with the line's end is found far sooner than `^` is.
_TREE = re.compile(rb"\nTree=\d+(?=\r?\n)")
_TREE_SIZES = re.compile(rb"\ntree_sizes=([\d ]*)\r?\n")
_FIELD = re.compile(rb"\n(num_leaves|decision_type|left_child|right_child)=([-\d ]*)(?=\r?\n)")
_MISSING_BITS, _ZERO_IS_MISSING = 12, 4  # of `decision_type`


def fault_of(text: bytes) -> str:
    """Return what is wrong with a model; empty if treelite reads it as LightGBM would.

    A file that is cut short has fewer trees, and gives answers. Children that lead back would never end.
    """
    starts = [match.start() for match in _TREE.finditer(text)]
    sizes = _TREE_SIZES.search(text)
    if sizes is not None and len(sizes[1].split()) != len(starts):
        return f"it should have {len(sizes[1].split())} trees, and {len(starts)} are there"
    if _END not in text:
        return "it is cut short: it has no end of its trees"
    trees = []
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], len(text)])):
        try:
            trees.append(_lists({match[1]: match[2].split() for match in _FIELD.finditer(text, start, stop)}))
        except _Uneven as error:
            return f"its tree {number} has {error}"
    return _nodes_fault(trees) if trees else ""


class _Uneven(Exception):
    """A tree's lists can't be those of its nodes. The message says what they are."""


def _lists(fields: dict[bytes, Sequence[bytes]]) -> tuple[Array, ...]:
    """Return the children on the left and on the right of a tree's nodes, and their tests."""
    try:
        inner = int(fields[b"num_leaves"][0]) - 1
        if not inner:
            return (_NONE,) * 3
        found = tuple(
            np.array(fields[name], np.int64) for name in (b"left_child", b"right_child", b"decision_type")
        )
    except (KeyError, IndexError, ValueError, OverflowError):
        raise _Uneven("no sound list of its nodes") from None
    if any(each.size != inner for each in found):
        raise _Uneven("lists of its nodes that are not of one length")
    return found


_NONE = np.empty(0, np.int64)


def _nodes_fault(trees: Sequence[tuple[Array, ...]]) -> str:
    """Return what is wrong with the nodes of all trees; they are looked at together, for there are many."""
    counts = np.array([left.size for left, _, _ in trees])
    left, right, decisions = (np.concatenate(each) for each in zip(*trees))
    inner = np.repeat(counts, counts)
    parents = np.arange(inner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    # A node is made after its parent. A leaf is -1, -2, and so on.
    astray = np.zeros(inner.size, np.bool_)
    for children in (left, right):
        astray |= ((children >= 0) & (children <= parents)) | (children >= inner) | (children < -inner - 1)
    zeros = decisions & _MISSING_BITS == _ZERO_IS_MISSING
    if astray.any():
        return f"its tree {_tree_of(astray, counts)} has a node whose children are not below it"
    if zeros.any():
        return (
            f"its tree {_tree_of(zeros, counts)} was trained with zero_as_missing, which treelite does not"
            " know: its answers would not be LightGBM's. Train with NaN for missing values"
        )
    return ""


def _tree_of(faults: Array, counts: Array) -> int:
    return int(np.searchsorted(np.cumsum(counts), np.argmax(faults), side="right"))
