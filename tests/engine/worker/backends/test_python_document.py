"""Each rule in `docs/python_backend.md` names tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "python_backend.md").read_text()
TABLES = DOCUMENT.partition("## What proves it")[2]
ROWS = [line for line in TABLES.splitlines() if line.startswith("| ") and not line.startswith("| rule ")]
MODULES = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| ")[:60])
def test_a_rule_is_proven_by_tests_that_there_are(row):
    named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
    assert named
    for module, test in named:
        assert re.search(rf"^(async )?def {test}\(", MODULES[module].read_text(), re.MULTILINE), test


def test_no_row_was_overlooked():
    assert len(ROWS) > 80
