"""GPUs by NVIDIA's management library: `pynvml` of the package nvidia-ml-py (extra `gpu`).

It tells which there are, and which are divided (MIG). It is only ever asked: nothing is set by it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.serving.policy.gpus.placing import Room
from actors.serving.policy.gpus.visible import FoundGpu, FoundPart, unnamed, visible
from actors.values.hardware.gpus import Gpu
from engine.processes.placement import DEVICES, gpu_nodes
from engine.settings.extras import how_to_install

Load = Callable[[str], Any]

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_NONE_HERE: Final = "there is no NVIDIA GPU here"


class NoGpus(Exception):
    """There is nothing to read. The message is for the operator: why."""


class Unasked(NoGpus):
    """The library could not be asked, so there may be GPUs all the same."""


@dataclass(frozen=True, slots=True)
class OpenLibrary:
    """The library, with a handle for each device that this server has."""

    library: Any
    devices: Sequence[Gpu]
    handles: Mapping[str, Any]
    """By the devices' UUIDs."""

    def close(self) -> None:
        """Close it. It may block."""
        with suppress(self.library.NVMLError):
            self.library.nvmlShutdown()


def open_library(environ: Mapping[str, str], load: Load = importlib.import_module) -> OpenLibrary:
    """Return the devices that `CUDA_VISIBLE_DEVICES` leaves to this server. Blocks. Raises NoGpus.

    `load` imports the library.
    """
    try:
        library = load("pynvml")
    except ImportError:
        raise Unasked(
            f"nvidia-ml-py is not installed: {how_to_install('gpu')}" if gpu_nodes() else _NONE_HERE
        ) from None
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise Unasked(f"NVIDIA's driver can't be asked: {error}" if gpu_nodes() else _NONE_HERE) from error
    handles: dict[str, Any] = {}
    opened = OpenLibrary(library, (), {})
    try:
        gpus = [_gpu(library, index, handles) for index in range(library.nvmlDeviceGetCount())]
    except library.NVMLError as error:
        opened.close()
        raise Unasked(f"NVIDIA's driver does not tell its GPUs: {error}") from error
    chosen = visible(gpus, environ.get(VISIBLE))
    if not chosen:
        opened.close()
        raise NoGpus(_NONE_HERE if not gpus else _why_none(gpus, environ))
    return OpenLibrary(library, chosen, {each.uuid: handles[each.uuid] for each in chosen})


def _why_none(gpus: Sequence[FoundGpu], environ: Mapping[str, str]) -> str:
    if any(each.usable for each in gpus) or VISIBLE in environ:
        return "CUDA_VISIBLE_DEVICES leaves no GPU"
    return "every GPU here is in MIG mode, and none has a MIG device: nvidia-smi mig -cgi … -C makes them"


def _gpu(library: Any, index: int, handles: dict[str, Any]) -> FoundGpu:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(library.nvmlDeviceGetUUID(handle))
    handles[uuid] = handle
    divided = _is_divided(library, handle)
    parts = tuple(_parts(library, handle, handles)) if divided else ()
    return FoundGpu(uuid=uuid, total=_total(library, handle), is_divided=divided, parts=parts)


def _is_divided(library: Any, handle: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    except (library.NVMLError, AttributeError):
        return False  # a GPU that has no such mode, or a library of before it


def _parts(library: Any, handle: Any, handles: dict[str, Any]) -> Iterator[FoundPart]:
    for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except library.NVMLError:
            continue  # there is none by that number, or it is another container's
        uuid = _text(library.nvmlDeviceGetUUID(part))
        handles[uuid] = part
        yield FoundPart(
            uuid=uuid,
            total=_total(library, part),
            gpu_instance=library.nvmlDeviceGetGpuInstanceId(part),
            compute_instance=library.nvmlDeviceGetComputeInstanceId(part),
        )


def _total(library: Any, handle: Any) -> int:
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total)
    except library.NVMLError:
        return 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes in older versions


def read_room(environ: Mapping[str, str], load: Load = importlib.import_module) -> dict[str, Room]:
    """Return the memory of this server's devices now, by their UUIDs. Blocks. Raises NoGpus.

    A device that can't be read is left out.
    """
    opened = open_library(environ, load)
    found: dict[str, Room] = {}
    for uuid, handle in opened.handles.items():
        with suppress(opened.library.NVMLError):
            memory = opened.library.nvmlDeviceGetMemoryInfo(handle)
            found[uuid] = Room(int(memory.total), int(memory.free))
    opened.close()
    return found


def read_use(environ: Mapping[str, str], load: Load = importlib.import_module) -> dict[str, dict[int, int]]:
    """Return the bytes that processes take on devices, by UUID and process. Blocks. Raises NoGpus.

    The driver numbers processes as the machine does, not as a container: there, none of ours may be found. Of
    a process whose memory it can't tell nothing is said.
    """
    opened = open_library(environ, load)
    library = opened.library
    found: dict[str, dict[int, int]] = {}
    for uuid, handle in opened.handles.items():
        of_device = found.setdefault(uuid, {})
        for ask in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
            with suppress(library.NVMLError, AttributeError):
                for process in getattr(library, ask)(handle):
                    if process.usedGpuMemory is not None:
                        of_device[int(process.pid)] = int(process.usedGpuMemory)
    opened.close()
    return found


def find_gpus(
    environ: Mapping[str, str], devices: Path = DEVICES, *, load: Load = importlib.import_module
) -> tuple[Gpu, ...]:
    """Return the devices that models may be placed on; see `actors.serving.policy.gpus.visible`.

    The library is asked only where the driver has made device nodes. Without the library, the nodes are
    counted, and a divided GPU's parts are known if `CUDA_VISIBLE_DEVICES` names them.
    """
    nodes = gpu_nodes(devices)
    if not nodes:
        return ()
    try:
        opened = open_library(environ, load)
    except Unasked:
        return tuple(unnamed(nodes, environ.get(VISIBLE)))
    except NoGpus:
        return ()
    opened.close()
    return tuple(opened.devices)
