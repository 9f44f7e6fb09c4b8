"""The JSON documents about clients' shared memory. Contract: shared_memory.md sections 2 and 4."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from actors.values.errors import Internal, InvalidArgument
from actors.values.interfaces import CudaRegion, SystemRegion
from protocols.kserve.documents import dump, missing, not_a, text

_HANDLE_SIZE: Final = 64  # bytes of a `cudaIpcMemHandle_t`


class SystemPlace(NamedTuple):
    """What a registration says of system shared memory."""

    key: str
    offset: int
    byte_size: int


class CudaPlace(NamedTuple):
    """What a registration says of CUDA shared memory."""

    raw_handle: bytes
    device_id: int
    byte_size: int


NO_PLACE: Final = CudaPlace(b"", 0, 0)


def system_status(regions: Sequence[SystemRegion]) -> bytes:
    """Return the body of a status of system shared memory."""
    return dump(
        [
            {
                "name": text(region.name),
                "key": text(region.key),
                "offset": region.offset,
                "byte_size": region.byte_size,
            }
            for region in regions
        ]
    )


def cuda_status(regions: Sequence[CudaRegion]) -> bytes:
    """Return the body of a status of CUDA shared memory."""
    return dump(
        [
            {"name": text(region.name), "device_id": region.device_id, "byte_size": region.byte_size}
            for region in regions
        ]
    )


def check_named(region: str, *, cuda: bool) -> None:
    """Raise InvalidArgument where a registration names no region."""
    if not region:
        kind = "cuda" if cuda else "system"
        raise InvalidArgument(f"'region name' is necessary to register {kind} shared memory region")


def read_system_place(document: object) -> SystemPlace:
    """Return what the body of a registration says. Raises InvalidArgument and Internal."""
    members: Mapping[str, Any] = document if isinstance(document, dict) else {}
    key = _needed(members, "key")
    if type(key) is not str:
        raise Internal(not_a("string"))
    offset = _unsigned(members["offset"]) if "offset" in members else 0
    return SystemPlace(key, offset, _unsigned(_needed(members, "byte_size")))


def read_cuda_place(document: object) -> CudaPlace:
    """Return what the body of a registration says. Raises InvalidArgument and Internal."""
    members: Mapping[str, Any] = document if isinstance(document, dict) else {}
    handle = _needed(members, "raw_handle")
    encoded = _member(handle, "b64")
    if type(encoded) is not str:
        raise Internal(not_a("string"))
    byte_size = _unsigned(_member(members, "byte_size"))
    device_id = _unsigned(_member(members, "device_id"))
    try:
        raw_handle = base64.b64decode(encoded)
    except (ValueError, binascii.Error):
        raw_handle = b""
    if len(raw_handle) != _HANDLE_SIZE:
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return CudaPlace(raw_handle, device_id, byte_size)


def _needed(members: Mapping[str, Any], key: str) -> Any:
    if key not in members:
        raise InvalidArgument(f"Shared memory register request has no '{key}' field")
    return members[key]


def _member(holder: object, key: str) -> Any:
    if not isinstance(holder, dict) or key not in holder:
        raise Internal(missing(key))
    return holder[key]


def _unsigned(value: object) -> int:
    if type(value) is not int or value < 0:
        raise Internal(not_a("unsigned-integer"))
    return value
