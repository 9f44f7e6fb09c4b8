"""`tritium serve` with the engine of `language_backends`, which needs no framework."""

import os
import sys

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from engine.processes.backends import BackendTraits, traits_of
from engine.server.machine import ThisMachine
from engine.server.run import run
from engine.settings.settings import Settings
from tests.support.language_backends import BackwardsBackend


class MachineWithLanguages(ThisMachine):
    """It has one more backend."""

    def backends(self, directory):
        target = "tests.support.language_backends:BackwardsBackend"
        more: BackendTraits = traits_of(BackwardsBackend, name="backwards", target=target)
        return {**super().backends(directory), "backwards": more}


if __name__ == "__main__":
    sys.exit(run(Settings.from_argv(sys.argv[1:], os.environ), machine=MachineWithLanguages()))
