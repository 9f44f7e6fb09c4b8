"""Parameters of which some run at every push, and all in the long tier."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_long(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return the cases as parameters: those that `quick` names as they are, the others marked `long`."""
    chosen = list(cases)
    assert all(case in chosen for case in quick), f"{quick} are not all among {chosen}"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.long) for case in chosen]
