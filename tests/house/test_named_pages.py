"""The pages that code and configuration name are there, so that an error leads to a page."""

import re

import pytest

from tests.house.graph import ROOT

ROOMS = ("engine", "actors", "protocols", "chaos", "benchmarks", "deploy", "examples")
NAMED = re.compile(r"(?<![\w./-])docs/[\w/-]+\.(?:md|svg)\b")


@pytest.mark.parametrize("room", ROOMS)
def test_a_page_that_is_named_is_there(room):
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for path in (ROOT / room).rglob("*")
        if path.suffix in {".py", ".proto", ".def", ".toml", ".yml", ".json", ".md"}
        for page in NAMED.findall(path.read_text(encoding="utf-8"))
    }
    assert {(path, page) for path, page in named if not (ROOT / page).exists()} == set()
