"""`tritium serve` on a machine whose driver is the stand-in of `fake_gpu`."""

import os
import sys

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from engine.processes.devices.memory import GpuDevices
from engine.server.machine import ThisMachine
from engine.server.run import run
from engine.settings.settings import Settings


class MachineWithGpus(ThisMachine):
    """The stand-in has no device nodes, by which GPUs are counted."""

    def gpu_count(self, environ):
        return int(environ["FAKE_CUDA_DEVICES"])

    def devices(self, environ):
        return GpuDevices(int(os.environ["FAKE_CUDA_DEVICES"]), environ=environ)


if __name__ == "__main__":
    sys.exit(run(Settings.from_argv(sys.argv[1:], os.environ), machine=MachineWithGpus()))
