"""The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B), decoded a byte at a time.

The code is canonical: codes of one length follow each other in the order of their symbols, and longer codes
follow shorter ones. So the lengths are the whole table.

Decoding walks a tree. A *node* is how far the walk has come within a symbol. A row of `_ROWS` holds, for each
next byte, the symbols that it completes and the node where it leaves the walk. Rows are made when they are
first needed, and stay: text needs a hundred of the 256, which take 2 MB, and all of them take 6 MB.
"""

from __future__ import annotations

from typing import Final

_Step = tuple[int, bytes]

# The lengths of the codes of symbols 0 to 255 and of EOS, in bits. They are a text, since a C compiler takes
# a minute over a tuple of numbers.
_BITS: Final = """
    13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28
    28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28
    06 10 10 12 13 06 08 11 10 10 08 11 08 06 06 06
    05 05 05 06 06 06 06 06 06 06 07 08 15 06 12 10
    13 06 07 07 07 07 07 07 07 07 07 07 07 07 07 07
    07 07 07 07 07 07 07 07 08 07 08 13 19 13 14 06
    15 05 06 05 06 05 06 06 06 05 07 07 06 06 06 05
    06 07 06 05 05 06 07 07 07 07 07 15 11 14 13 28
    20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23
    24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24
    22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23
    21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23
    26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25
    19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27
    20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23
    26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26
    30
"""
_LENGTHS: Final = tuple(map(int, _BITS.split()))
_EOS: Final = 256
_ROOT: Final = 0
_LONGEST_PADDING: Final = 7  # bits


def _tree() -> tuple[list[list[int]], set[int]]:
    """Return the tree's nodes, and those where a string may end.

    A node is what a 0 and a 1 lead to: another node, or `-1 - symbol`. A string ends at the root, or in
    padding: up to seven bits of EOS, which are ones.
    """
    nodes = [[0, 0]]
    code = before = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_LENGTHS)):
        code <<= length - before
        before = length
        node = _ROOT
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes[node][bit] = len(nodes)
                nodes.append([0, 0])
            node = nodes[node][bit]
        nodes[node][code & 1] = -1 - symbol
        code += 1
    ends = {_ROOT}
    node = _ROOT
    for _ in range(_LONGEST_PADDING):
        node = nodes[node][1]
        ends.add(node)
    return nodes, ends


_NODES, _ENDS = _tree()
_FAILED: Final = len(_NODES)  # the node after EOS, which a string must not hold


def _one_bit(start: int) -> list[_Step]:
    """Return where a 0 and a 1 lead to from the node `start`."""
    steps: list[_Step] = []
    for node in _NODES[start]:
        if node >= 0:
            steps.append((node, b""))
        elif node == -1 - _EOS:
            steps.append((_FAILED, b""))
        else:
            steps.append((_ROOT, bytes((-1 - node,))))
    return steps


def _two_in_a_row(steps: list[list[_Step]], start: int) -> list[_Step]:
    """Return where each row of two steps leads to from the node `start`."""
    return [(end, first + second) for middle, first in steps[start] for end, second in steps[middle]]


_FOUR_BITS: Final[list[list[_Step]]] = []  # filled with the first row
_ROWS: Final[list[list[_Step]]] = [[] for _ in range(_FAILED + 1)]


def _four_bits() -> list[list[_Step]]:
    """Return where four bits lead to from each node."""
    steps = [*map(_one_bit, range(_FAILED)), [(_FAILED, b"")] * 2]
    for _ in range(2):
        steps = [_two_in_a_row(steps, node) for node in range(_FAILED + 1)]
    return steps


def _row(node: int) -> list[_Step]:
    """Make the row of a node."""
    if not _FOUR_BITS:
        _FOUR_BITS.extend(_four_bits())
    row = _ROWS[node] = _two_in_a_row(_FOUR_BITS, node)
    return row


def huffman_decoded(coded: bytes) -> bytes:
    """Return the string that `coded` stands for. Raises ValueError where it is no string's code."""
    rows = _ROWS
    node = _ROOT
    texts: list[bytes] = []
    for octet in coded:
        node, text = (rows[node] or _row(node))[octet]
        texts.append(text)
    if node not in _ENDS:
        raise ValueError("a Huffman-coded string ends within a symbol, or holds the end-of-string symbol")
    return b"".join(texts)
