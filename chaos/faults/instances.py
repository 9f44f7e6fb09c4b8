"""The faults of instances: signals from outside, deeds of the models themselves, and starts that fail."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.faults import deeds, signals, starts
from chaos.faults.base import Fault

FAULTS: Sequence[Fault] = (*signals.FAULTS, *deeds.FAULTS, *starts.FAULTS)
"""Every fault of the family."""
