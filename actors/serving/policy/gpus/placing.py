"""Which GPU an instance goes to if its model leaves that open, and whether a GPU takes another model at all.

A group with `tritium.gpu_placement` of `free_memory` has its instances on the GPUs that have most free memory
when it is loaded: one after the other, each where most is left after those before it. Models that are being
loaded have yet to take what they will, so what is promised to them counts as taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from actors.values.hardware.gpus import Gpu
from actors.values.specs import InstanceSpec


class Room(NamedTuple):
    """A device's memory at one moment, in bytes."""

    total: int
    free: int


def place(
    instances: Sequence[InstanceSpec],
    *,
    rooms: Mapping[int, Room],
    needs: Mapping[int, int],
    before: Iterable[InstanceSpec] = (),
) -> tuple[InstanceSpec, ...]:
    """Return the instances, those with `candidates` on one of them.

    `rooms` are the devices' memory, without what is promised. `needs` is what one instance takes, by device.
    One whose name was among those `before` stays where it was, so that nothing is loaded again for a guess.
    """
    where = {each.name: each.device_id for each in before}
    free = {number: room.free for number, room in rooms.items()}
    placed: list[InstanceSpec] = []
    for instance in instances:
        if not instance.candidates:
            placed.append(instance)
            continue
        device = where.get(instance.name, -1)
        if device not in instance.candidates:
            device = max(instance.candidates, key=lambda each: free.get(each, 0))  # of equals the first
            free[device] = free.get(device, 0) - needs.get(device, 0)
        placed.append(replace(instance, device_id=device))
    return tuple(placed)


def without(rooms: Mapping[int, Room], promised: Mapping[int, int]) -> dict[int, Room]:
    """Return the devices' memory with what is promised taken as well."""
    return {
        number: Room(room.total, max(0, room.free - promised.get(number, 0)))
        for number, room in rooms.items()
    }


def devices_of(instances: Iterable[InstanceSpec]) -> dict[int, int]:
    """Return how many of the instances are on each GPU."""
    counts: dict[int, int] = {}
    for each in instances:
        if each.kind == "GPU":
            counts[each.device_id] = counts.get(each.device_id, 0) + 1
    return counts


def why_full(
    instances: Iterable[InstanceSpec], rooms: Mapping[int, Room], limits: Mapping[int, float]
) -> str:
    """Return why the operator's limits keep the instances from being loaded; empty if they don't.

    A limit is a share of a device's memory. As in Triton, what is in use before the load counts.
    """
    for number in sorted(devices_of(instances)):
        room, limit = rooms.get(number), limits.get(number)
        if room is None or limit is None or not room.total:
            continue
        used = room.total - room.free
        if used > limit * room.total:
            return (
                f"memory limit set for GPU {number} has exceeded, model loading is rejected:"
                f" {used / room.total:.1%} of its memory are in use, and --model-load-gpu-limit is"
                f" {limit:.0%}"
            )
    return ""


def seat(instances: Iterable[InstanceSpec], gpus: Sequence[Gpu], *, alone: bool) -> tuple[InstanceSpec, ...]:
    """Return the instances with their GPUs, and what their workers see of them.

    A worker sees what the server does, unless its model wants its own GPU only (`tritium.gpus_seen`), or all
    workers must be `alone`. One that has yet to be placed is left as it is.
    """
    return tuple(
        replace(
            each,
            gpu=gpus[each.device_id],
            visible=gpus[each.device_id].name if each.own_gpu or alone else "",
        )
        if each.kind == "GPU" and each.device_id < len(gpus)
        else each
        for each in instances
    )
