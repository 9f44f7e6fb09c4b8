"""Marks of tests that hold for one core."""

import pytest

from engine.core.chosen import CORE

python_only = pytest.mark.skipif(
    CORE.name != "python", reason="it looks into, or replaces, what only the core's Python source has"
)
