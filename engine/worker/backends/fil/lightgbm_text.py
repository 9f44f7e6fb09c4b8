"""What treelite would read wrongly of LightGBM's text format, without a word."""

from __future__ import annotations

import re
import warnings
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
    for start, stop in zip(starts, [*starts[1:], len(text)]):
        trees.append({match[1]: match[2] for match in _FIELD.finditer(text, start, stop)})
    if not trees:
        return ""
    lists = _lists_of_all(trees)
    if lists is None:
        for number, fields in enumerate(trees):
            try:
                _check_lists(fields)
            except _Uneven as error:
                return f"its tree {number} has {error}"
        return "it has a list of nodes that is no list of numbers"
    return _nodes_fault(*lists)


class _Uneven(Exception):
    """A tree's lists can't be those of its nodes. The message says what they are."""


_LISTS = (b"left_child", b"right_child", b"decision_type")


def _lists_of_all(trees: Sequence[dict[bytes, bytes]]) -> tuple[Array, ...] | None:
    """Return how many nodes the trees have, their children left and right, and their tests.

    All trees are read together, because there are thousands. None if one of them is not as it should be.
    """
    try:
        counts = np.array([int(fields[b"num_leaves"]) - 1 for fields in trees])
        # A tree that is one leaf has lists without meaning, or none.
        grown = [fields for fields, count in zip(trees, counts.tolist()) if count]
        texts = [[fields[name] for fields in grown] for name in _LISTS]
    except (KeyError, ValueError, OverflowError):
        return None
    sizes = counts[counts != 0].tolist()
    if any([text.count(b" ") + 1 for text in texts_of_one] != sizes for texts_of_one in texts):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy stops at what is no number
        lists = [np.fromstring(b" ".join(each), np.int64, sep=" ") for each in texts]
    return None if any(each.size != sum(sizes) for each in lists) else (counts, *lists)


def _check_lists(fields: dict[bytes, bytes]) -> None:
    """Raise _Uneven where a tree's lists of nodes are not what they should be."""
    try:
        inner = int(fields[b"num_leaves"]) - 1
        if not inner:
            return
        sizes = [np.array(fields[name].split(), np.int64).size for name in _LISTS]
    except (KeyError, ValueError, OverflowError):
        raise _Uneven("no sound list of its nodes") from None
    if any(size != inner for size in sizes):
        raise _Uneven("lists of its nodes that are not of one length")


def _nodes_fault(counts: Array, left: Array, right: Array, decisions: Array) -> str:
    """Return what is wrong with the nodes of all trees."""
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
