"""`tritium serve` with the backend of `benchmarks.llm_stream.paced`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from benchmarks.llm_stream.paced import PacedBackend
from engine.processes.backends import BackendTraits, traits_of
from engine.server.machine import ThisMachine
from engine.server.run import run
from engine.settings.settings import Settings


class MachineWithPaced(ThisMachine):
    """It has one more backend."""

    def backends(self, directory: Path | None) -> Mapping[str, BackendTraits]:
        """See `ThisMachine`."""
        name = PacedBackend.name
        target = f"{PacedBackend.__module__}:{PacedBackend.__name__}"
        return {**super().backends(directory), name: traits_of(PacedBackend, name=name, target=target)}


if __name__ == "__main__":
    sys.exit(run(Settings.from_argv(sys.argv[1:], os.environ), machine=MachineWithPaced()))
