"""What may be registered, and where in a region a tensor may lie.

Contract: shared_memory.md sections 4 to 6; texts and codes are exact. The checks come in Triton's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.values.errors import AlreadyExists, Internal, InvalidArgument, NotFound, Unavailable

RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
"""What the names of objects begin with that Triton's own workers use."""


_MOST: Final = 2**64 - 1
_LONGEST_NAME: Final = 255  # bytes of the name of a file
_LONGEST: Final = 1024  # characters of what a client calls a region or its object, which are kept
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLimits:
    """How much clients may register: regions, and bytes in all of them; and bytes of one request's inputs.

    A region may be much larger than the memory that there is: its object need not have pages.
    """

    regions: int = 1024
    nbytes: int = 2**40
    inputs: int = 2**40


def check_names(region: str, key: str = "") -> None:
    """Raise InvalidArgument where the name of a region, or the key of its object, is too long to keep."""
    for text, what in ((region, "the name of a shared memory region"), (key, "the key of a region")):
        if len(text) > _LONGEST:
            raise InvalidArgument(
                f"{what} has {len(text)} characters, and may have {_LONGEST} at most: '{text[:_SHOWN]}...'"
            )


def object_name(region: str, key: str) -> str:
    """Return the name below /dev/shm of the object with this key. Raises InvalidArgument."""
    name = key.lstrip("/")
    if not name:
        raise InvalidArgument(f"cannot register shared memory region '{region}' - invalid shm key '{key}'")
    if name.startswith(RESERVED_PREFIX):
        raise InvalidArgument(
            f"cannot register shared memory region '{region}' with key '{key}' as the key contains the"
            f" reserved prefix '{RESERVED_PREFIX}'"
        )
    return name


def can_be_opened(name: str) -> bool:
    """Whether an object can have this name: it lies in /dev/shm itself, as `shm_open` has it.

    One that is no UTF-8 can't: neither gRPC nor the tree could tell it.
    """
    if "/" in name or "\0" in name or name in {".", ".."}:
        return False
    try:
        return len(name.encode()) <= _LONGEST_NAME
    except UnicodeEncodeError:
        return False


def not_opened(key: str) -> Internal:
    """Return the error for an object that does not exist or that the server may not read and write."""
    return Internal(f"Unable to open shared memory region: '{key}'")


def not_memory(key: str) -> Internal:
    """Return the error for an object that is no shared memory."""
    return Internal(f"Invalid shared memory region: '{key}'")


def taken(region: str) -> AlreadyExists:
    """Return the error for a name that is registered, as either kind."""
    return AlreadyExists(f"shared memory region '{region}' already in manager")


def check_extent(region: str, offset: int, byte_size: int, *, object_size: int, page: int) -> None:
    """Raise InvalidArgument unless bytes of an object can be mapped, as Triton does.

    The server maps nothing. It refuses what a mapping would, so that clients see the same.
    """
    if offset + byte_size > object_size:
        raise InvalidArgument(f"failed to register shared memory region '{region}': invalid args")
    if not byte_size or offset % page:
        raise InvalidArgument(
            f"failed to register shared memory region '{region}': unable to process address space"
            "Invalid argument"
        )


def check_room(region: str, byte_size: int, *, count: int, held: int, limits: RegionLimits) -> None:
    """Raise Unavailable where `count` regions with `held` bytes leave no room for another."""
    if count >= limits.regions:
        raise Unavailable(
            f"cannot register shared memory region '{region}': {count} regions are registered, and the server"
            " allows no more; unregister some, or see --client-shm-regions"
        )
    if held + byte_size > limits.nbytes:
        raise Unavailable(
            f"cannot register shared memory region '{region}' of {byte_size} bytes: registered regions have"
            f" {held} bytes, and the server allows {limits.nbytes} in all; unregister some, or see"
            " --client-shm-bytes"
        )


def check_inputs(prefix: str, nbytes: int, limits: RegionLimits) -> None:
    """Raise InvalidArgument where the inputs of a request that lie in regions are too long together."""
    if nbytes > limits.inputs:
        raise InvalidArgument(
            f"{prefix}the inputs in shared memory have {nbytes} bytes, and those of one request may have"
            f" {limits.inputs}; see --receive-memory"
        )


def check_place(region: str, byte_size: int, *, offset: int, nbytes: int) -> None:
    """Raise InvalidArgument unless `nbytes` at `offset` lie in a region of `byte_size` bytes."""
    if offset >= byte_size:
        raise InvalidArgument(f"Invalid offset for shared memory region: '{region}'")
    if nbytes + offset > _MOST:
        raise InvalidArgument(
            f"Integer overflow detected: byte_size ({nbytes}) + offset ({offset}) exceeds maximum value"
            f" ({_MOST}) for region '{region}'"
        )
    if offset + nbytes > byte_size:
        raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")


def unknown(region: str, kind: str) -> NotFound:
    """Return the error for the status of a region that is not registered; `kind` is system or cuda."""
    return NotFound(f"Unable to find {kind} shared memory region: '{region}'")


def other_kind(region: str, *, asked_for_cuda: bool) -> NotFound:
    """Return the error for the status of a region that is of the other kind."""
    is_now, asked = ("system", "CUDA") if asked_for_cuda else ("CUDA", "system")
    return NotFound(
        f"The region named '{region}' is registered as {is_now} shared memory, not {asked} shared memory"
    )
