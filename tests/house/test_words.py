"""Vague words and long lines grow fewer, never more."""

import pytest

from tests.house.words import COLUMNS, Count, counted, limits

pytestmark = pytest.mark.system


def test_vague_words_and_long_lines_only_become_fewer():
    allowed = limits()
    too_many = {
        package: (count, allowed.get(package, Count(0, 0)))
        for package, count in counted().items()
        if count.words > allowed.get(package, Count(0, 0)).words
        or count.lines > allowed.get(package, Count(0, 0)).lines
    }
    assert not too_many, (
        f"name the one who acts in place of a vague word, and end lines at {COLUMNS} columns: "
        "(found, allowed) above. `python -m tests.house.words` shows the counts"
    )
