"""Which tensors of a batch lie on a GPU, as the server tells its worker.

The spans are in the metadata of their requests, under `DEVICE`. Handles are those by which processes share
allocations (`cudaIpcMemHandle_t`), in hexadecimal digits. A worker opens each of them once, and keeps it.

    in     by the input's name: handle, device, byte in the allocation, nbytes
    from   by the input's name, where it lies in a client's region: the region's name. The others are outputs
           of other workers, in buffers that those have `EXPORTED`
    out    names of outputs that are read on the GPU next: they may stay there, in a buffer that the worker
           has `EXPORTED`. If it has none that is free, they come in the segment like any other
    to     by the output's name, where a client's region on the GPU takes it: as for inputs, then the region's
           name. A worker that has written it there says so as for regions of the host
           (`Placed.written`); one that has not gives it in the segment, and the server writes it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors.values.tensors import DevicePlace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEVICE: Final = "device"
"""The key of a request's spans in its metadata."""


def tell_devices(
    inputs: Mapping[str, DevicePlace],
    outputs: Sequence[str],
    targets: Mapping[str, tuple[DevicePlace, str]],
    regions: Mapping[str, str] | None = None,
    *,
    device: int | None = None,
) -> dict[str, object]:
    """Return the spans of one request; empty where it has nothing on a GPU.

    `targets` are places in regions by the outputs' names, each with its region's name. `regions` are the
    regions' names of inputs that lie in one. `device` is the GPU's number as the worker counts, where that
    is not the server's.
    """
    told: dict[str, object] = {}
    if inputs:
        told["in"] = {name: _told(place, device) for name, place in inputs.items()}
    if regions:
        told["from"] = dict(regions)
    if outputs:
        told["out"] = list(outputs)
    if targets:
        told["to"] = {name: (*_told(place, device), region) for name, (place, region) in targets.items()}
    return told


def _told(place: DevicePlace, device: int | None) -> tuple[str, int, int, int]:
    return place.handle.hex(), place.device if device is None else device, place.at, place.nbytes


class DeviceSpans:
    """Worker: what of one request lies on a GPU, or is to lie there."""

    __slots__ = ("inputs", "outputs", "regions", "targets")

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        told = metadata.get(DEVICE, {})
        self.inputs = {name: _place(*span) for name, span in told.get("in", {}).items()}
        self.regions: Mapping[str, str] = told.get("from", {})
        self.outputs = frozenset(told.get("out", ()))
        self.targets = {name: (_place(*span), region) for name, (*span, region) in told.get("to", {}).items()}


def _place(handle: str, device: int, at: int, nbytes: int) -> DevicePlace:
    return DevicePlace(bytes.fromhex(handle), device, at, nbytes)
