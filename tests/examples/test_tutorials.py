"""Each tutorial, followed from top to bottom as its page has it."""

import shutil

import pytest

from tests.support.operators import ROOT
from tests.support.tutorials import blocks, matches, reader

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_can_be_followed(page, tmp_path):
    with reader(tmp_path) as someone:
        someone.follow(page)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_is_short(page):
    assert blocks(page)
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc\n", False),
        ("a\n…", "a\nb\nc\n", True),
        ("…\nc", "a\nb\nc\n", True),
        ("took … s", "took 0.3 s", True),
        ("took … s", "took 0.3 s\nand more", False),
    ],
)
def test_what_is_shown_is_compared_with_what_was_printed(shown, printed, alike):
    assert matches(shown, printed) == alike


def test_numbers_may_be_the_readers_own():
    shown = "2  READY  0.0%   32 (50.0%)  0.489 ms"
    assert matches(shown, "2  READY  0.0%  1234 (50.0%)  12 ms", own_numbers=True)
    assert not matches(shown, "2  LOADING  0.0%  32 (50.0%)  0.489 ms", own_numbers=True)
