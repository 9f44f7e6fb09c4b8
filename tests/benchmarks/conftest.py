"""What the tests of the benchmarks share: captured output of the load clients."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def captured() -> Callable[[str], str]:
    """Reads a file of captured output by its name."""
    return lambda name: (Path(__file__).parent / "captured" / name).read_text()
