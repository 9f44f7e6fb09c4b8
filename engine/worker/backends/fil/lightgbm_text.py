"""What treelite would read wrongly of LightGBM's text format, without a word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_END = b"end of trees"
_TREE = re.compile(rb"^Tree=\d+\r?$", re.MULTILINE)
_TREE_SIZES = re.compile(rb"^tree_sizes=([\d ]*)\r?$", re.MULTILINE)
_FIELD = re.compile(rb"^(num_leaves|decision_type|left_child|right_child)=([-\d ]*)\r?$", re.MULTILINE)
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
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], len(text)])):
        fault = _tree_fault({match[1]: match[2].split() for match in _FIELD.finditer(text, start, stop)})
        if fault:
            return f"its tree {number} {fault}"
    return ""


def _tree_fault(fields: dict[bytes, Sequence[bytes]]) -> str:
    try:
        leaves = int(fields[b"num_leaves"][0])
        if leaves == 1:
            return ""
        left, right, decisions = (
            np.array(fields[name], np.int64) for name in (b"left_child", b"right_child", b"decision_type")
        )
    except (KeyError, IndexError, ValueError, OverflowError):
        return "has no sound list of its nodes"
    inner = leaves - 1
    if not left.size == right.size == decisions.size == inner:
        return "has lists of its nodes that are not of one length"
    children, parents = np.concatenate([left, right]), np.tile(np.arange(inner), 2)
    # A node is made after its parent. A leaf is -1, -2, and so on.
    if (((children >= 0) & (children <= parents)) | (children >= inner) | (children < -leaves)).any():
        return "has a node whose children are not below it"
    if (decisions & _MISSING_BITS == _ZERO_IS_MISSING).any():
        return (
            "was trained with zero_as_missing, which treelite does not know: its answers would not be"
            " LightGBM's. Train with NaN for missing values"
        )
    return ""
