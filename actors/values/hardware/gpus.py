"""GPUs as values: what is known of a device that instances may be placed on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device: a whole GPU, or a part of one (MIG). Its number is its place among those of the server."""

    name: str
    """What `CUDA_VISIBLE_DEVICES` calls it: its UUID where that is known, else its entry there."""

    uuid: str = ""
    """As `nvidia-smi -L` tells it; empty: not known."""

    total: int = 0
    """Bytes of its memory; 0: not known."""

    is_part: bool = False
    """Whether it is a part of a GPU. A process can use one of those, and no other device beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """How much of a device's memory one instance may take (`tritium.gpu_memory`), in one of two ways."""

    nbytes: int = 0
    share: float = 0.0
    """Of all of the device's memory."""

    def __bool__(self) -> bool:
        return bool(self.nbytes or self.share)

    def of(self, total: int) -> int:
        """Return the limit in bytes on a device with `total` bytes; 0: none, or it isn't known."""
        return self.nbytes or int(self.share * total)
