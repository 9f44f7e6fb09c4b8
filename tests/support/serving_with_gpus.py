"""`tritium serve` on a machine whose driver is the stand-in of `fake_gpu`."""

import os
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from engine.observability.gpus import open_nvml
from engine.processes.gpus.nvml import find_gpus, read_room, read_use
from engine.server.machine import ThisMachine
from engine.server.residency import Memory
from engine.server.run import run
from engine.settings.settings import Settings
from tests.support.nvml import loaded_from


class MachineWithGpus(ThisMachine):
    """The stand-in has no device nodes, by which GPUs are looked for."""

    def gpu_table(self, environ):
        with TemporaryDirectory() as nodes:
            for number in range(int(environ["FAKE_CUDA_DEVICES"])):
                (Path(nodes) / f"nvidia{number}").touch()
            return find_gpus(environ, Path(nodes), load=loaded_from(environ))

    def gpu_room(self, environ):
        return read_room(environ, loaded_from(environ))

    def memory(self, environ, gpus):
        return Memory(gpus=gpus, read_use=partial(read_use, environ, loaded_from(environ)))

    def gpus(self, environ):
        return open_nvml(environ, loaded_from(environ))


if __name__ == "__main__":
    sys.exit(run(Settings.from_argv(sys.argv[1:], os.environ), machine=MachineWithGpus()))
