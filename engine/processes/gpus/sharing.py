"""What a worker on a GPU is started with, so that it shares the GPU: its view of it, and limits under MPS.

MPS is NVIDIA's Multi-Process Service: where its control daemon runs, the kernels of several processes run on
a GPU at once, and the driver holds each process to limits. It is found here, and never started, told anything
or ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from actors.values.confinement import Sandbox
from actors.values.specs import InstanceSpec, ModelSpec
from engine.processes.gpus.nvml import VISIBLE

PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_USUAL: Final = Path("/tmp/nvidia-mps")  # the driver's own default
_PID: Final = "nvidia-cuda-mps-control.pid"
_MIB: Final = 1024 * 1024


def mps_pipes(environ: Mapping[str, str], usual: Path = _USUAL) -> Path | None:
    """Return the folder by which programs with this environment reach MPS; None where it does not run.

    A folder that the environment names is believed if it has the daemon's pipe: the daemon may be another
    container's. In the usual folder a dead daemon may have left its pipe, so its process must live as well.
    """
    named = environ.get(PIPES)
    folder = Path(named) if named else usual
    if not (folder / "control").exists():
        return None
    return folder if named or _lives(folder / _PID) else None


def _lives(pid_file: Path) -> bool:
    try:
        number = int(pid_file.read_text())
    except (OSError, ValueError):
        return True  # it can't be told
    return Path(f"/proc/{number}").exists()


class CannotShare(OSError):
    """An instance asks for a limit that nothing here would keep."""


def variables(
    spec: ModelSpec,
    instance: InstanceSpec,
    environ: Mapping[str, str],
    *,
    keeps_limit: bool,
    usual: Path = _USUAL,
) -> dict[str, str]:
    """Return the environment variables of a worker's share of its GPU, beside those of `environ`.

    `keeps_limit` is whether the backend keeps a limit of memory by its framework's means. Raises CannotShare
    if a limit would have no effect.
    """
    if instance.kind != "GPU":
        return {}
    found = {VISIBLE: instance.visible} if instance.visible else {}
    if not (spec.gpu_memory or spec.gpu_compute):
        return found
    strict = spec.confinement.sandbox is Sandbox.STRICT
    # A strict sandbox keeps its worker from files and sockets that are not its own.
    pipes = None if strict else mps_pipes(environ, usual)
    if pipes is None:
        if spec.gpu_compute:
            raise CannotShare(
                f"'tritium.gpu_compute' is {spec.gpu_compute}, which only MPS keeps, and no MPS is in reach:"
                " start nvidia-cuda-mps-control, or leave it out"
            )
        if not keeps_limit:
            raise CannotShare(
                f"'tritium.gpu_memory' is set, which backend '{spec.backend}' has no means to keep, and no"
                " MPS is in reach: start nvidia-cuda-mps-control, or leave it out and limit memory in the"
                " model's code"
            )
        return found
    if spec.gpu_compute:
        found[THREADS] = str(spec.gpu_compute)
    total = instance.gpu.total if instance.gpu is not None else 0
    limit = spec.gpu_memory.of(total)
    if limit:
        found[MEMORY] = f"{instance.ordinal}={max(1, limit // _MIB)}M"
    elif spec.gpu_memory and not keeps_limit:
        raise CannotShare(
            "'tritium.gpu_memory' is a share of a GPU whose memory is not known here: install nvidia-ml-py,"
            " or write a size such as '4GiB'"
        )
    return found
