"""Which devices a server has: those that NVIDIA's library tells, as `CUDA_VISIBLE_DEVICES` leaves them.

The driver's rules: an entry is a number, the beginning of a UUID, or, of a part of a GPU, `MIG-<GPU's
UUID>/<GPU instance>/<compute instance>`. What follows an entry that names nothing is not seen. One rule is
ours: a GPU that is divided (MIG) stands for all of its parts, where a process would see the first only. Each
worker gets one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.values.hardware.gpus import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPart:
    """A part of a divided GPU (a MIG device)."""

    uuid: str
    total: int = 0
    gpu_instance: int = 0
    compute_instance: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    """A GPU as NVIDIA's library tells it. `is_divided`: it is in MIG mode, and only its parts can be used."""

    uuid: str
    total: int = 0
    is_divided: bool = False
    parts: Sequence[FoundPart] = ()

    @property
    def usable(self) -> list[Gpu]:
        """The devices that it offers."""
        if self.is_divided:
            return [
                Gpu(name=each.uuid, uuid=each.uuid, total=each.total, is_part=True) for each in self.parts
            ]
        return [Gpu(name=self.uuid, uuid=self.uuid, total=self.total)]


def visible(found: Sequence[FoundGpu], wanted: str | None) -> list[Gpu]:
    """Return the devices that `CUDA_VISIBLE_DEVICES` leaves, in its order; None: all."""
    if wanted is None:
        return [device for each in found for device in each.usable]
    chosen: list[Gpu] = []
    for entry in map(str.strip, wanted.split(",")):
        named = _named(found, entry)
        if not named or any(each in chosen for each in named):
            break
        chosen += named
    return chosen


def _named(found: Sequence[FoundGpu], entry: str) -> list[Gpu]:
    if entry.isascii() and entry.isdigit():
        return found[int(entry)].usable if int(entry) < len(found) else []
    if not entry:
        return []
    gpus = [each for each in found if each.uuid.startswith(entry)]
    parts = [part for each in found for part in each.parts if part.uuid.startswith(entry)]
    parts = parts or [part for name, part in _by_place(found) if name == entry]
    if len(gpus) + len(parts) != 1:
        return []
    if gpus:
        return gpus[0].usable
    return [Gpu(name=parts[0].uuid, uuid=parts[0].uuid, total=parts[0].total, is_part=True)]


def _by_place(found: Sequence[FoundGpu]) -> Iterator[tuple[str, FoundPart]]:
    """Yield the parts by the names that older drivers give them."""
    for gpu in found:
        for part in gpu.parts:
            yield f"MIG-{gpu.uuid}/{part.gpu_instance}/{part.compute_instance}", part


def unnamed(nodes: int, wanted: str | None) -> list[Gpu]:
    """Return the devices where no library tells them: the driver has made `nodes`."""
    if wanted is None:
        return [Gpu(name=str(number)) for number in range(nodes)]
    chosen: list[Gpu] = []
    for entry in map(str.strip, wanted.split(",")):
        if not entry or entry.startswith("-"):
            break
        chosen.append(Gpu(name=entry, is_part=entry.startswith("MIG-")))
    parts = [each for each in chosen if each.is_part]
    return parts if parts and nodes else chosen[:nodes]


def needs_names(devices: Sequence[Gpu]) -> bool:
    """Whether a worker must be shown its own device only: a process that sees a part sees nothing else."""
    return any(each.is_part for each in devices)
