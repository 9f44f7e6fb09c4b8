"""The regions that are registered, of both kinds, by their names. Passive; for the loop's thread alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.regions.devices import DeviceError, DeviceRegion
from actors.regions.policy import RegionLimits, check_room, other_kind, taken, unknown
from actors.values.errors import Internal
from actors.values.regions import Region, RegionCounts, no_region

CLOSED_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes that an object has in memory, up to which its descriptor is closed on the loop."""

_BLOCK: Final = 512  # bytes that `st_blocks` counts


@dataclass(frozen=True, slots=True)
class Entry:
    """A region and when it was registered, on trio's clock."""

    region: Region
    since: float

    @property
    def leaving(self) -> bool:
        """Whether it is unregistered and waits for its last user."""
        return self.region.on_idle is not None


class RegionTable:
    """Names, and what they stand for. System and CUDA regions share the names."""

    def __init__(self, limits: RegionLimits, close_later: Callable[[int], bool] = lambda _: False) -> None:
        """`close_later` closes a descriptor on a thread; False where it can't, and does nothing then."""
        self.limits = limits
        self._close_later = close_later
        self.counts = RegionCounts()
        self.refused = 0  # registrations
        self._entries: dict[str, Entry] = {}
        self._held = 0  # bytes of all regions
        # Another object after each region that has ended: what was found before may not hold any more.
        self.standing = object()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def check_free(self, name: str) -> None:
        """Raise AlreadyExists where the name is registered."""
        if name in self._entries:
            raise taken(name)

    def check_room(self, name: str, byte_size: int) -> None:
        """Raise Unavailable where there is no room for another region of this size."""
        check_room(name, byte_size, count=len(self._entries), held=self._held, limits=self.limits)

    def add(self, region: Region, now: float) -> None:
        """Register a region under its name, which is free."""
        region.counts = self.counts
        self._entries[region.name] = Entry(region, now)
        self._held += region.byte_size

    def find(self, name: str) -> Region:
        """Return the region of this name. Raises NotFound."""
        entry = self._entries.get(name)
        if entry is None:
            raise no_region(name)
        return entry.region

    def listed(self, name: str, *, cuda: bool) -> list[Region]:
        """Return the region of this name, or all of one kind by their names. Raises NotFound."""
        if not name:
            found = [entry.region for entry in self if _is_cuda(entry.region) is cuda]
            return sorted(found, key=lambda region: region.name)
        entry = self._entries.get(name)
        if entry is None:
            raise unknown(name, "cuda" if cuda else "system")
        if _is_cuda(entry.region) is not cuda:
            raise other_kind(name, asked_for_cuda=cuda)
        return [entry.region]

    def unregister(self, name: str, *, cuda: bool) -> None:
        """Unregister the region of this name, if it is of this kind. Raises Internal where that fails."""
        entry = self._entries.get(name)
        if entry is None or _is_cuda(entry.region) is not cuda:
            return
        region = entry.region
        if region.users:
            region.on_idle = partial(self._end_unheard, region)
        else:
            self._end(region)

    def unregister_all(self, *, cuda: bool) -> None:
        """Unregister all of one kind. Raises Internal, naming those that could not be closed."""
        failed = []
        for region in self.listed("", cuda=cuda):
            try:
                self.unregister(region.name, cuda=cuda)
            except Internal:
                failed.append(region.name)
        if failed:
            kind = "cuda" if cuda else "system"
            names = "".join(f"{name} ," for name in failed)
            raise Internal(f"Failed to unregister the following {kind} shared memory regions: {names}")

    def close(self) -> None:
        """Close all regions: the server ends."""
        for entry in list(self):
            self._end_unheard(entry.region)

    def _end_unheard(self, region: Region) -> None:
        # No client waits to hear of a failure.
        with suppress(Internal):
            self._end(region)

    def _end(self, region: Region) -> None:
        del self._entries[region.name]
        self.standing = object()
        self._held -= region.byte_size
        region.on_idle = None
        if isinstance(region, DeviceRegion):
            for told in list(region.on_end.values()):  # who is told takes itself out
                told(region.handle)
            region.on_end.clear()
            try:
                region.memory.close()
            except DeviceError as error:
                raise Internal(f"failed to close CUDA IPC handle: {error}") from error
            return
        fileno, region.fileno = region.fileno, -1
        try:
            if not (_frees_much(fileno) and self._close_later(fileno)):
                os.close(fileno)
        except OSError as error:
            text = f"unable to munmap shared memory region, errno: {error.strerror}"
            raise Internal(text) from error


def _frees_much(fileno: int) -> bool:
    """Whether to close a descriptor may take milliseconds.

    The last one of an object that its client has unlinked frees its pages: 0.13 s of processor time a GiB.
    """
    return os.fstat(fileno).st_blocks * _BLOCK > CLOSED_AT_ONCE


def _is_cuda(region: Region) -> bool:
    return isinstance(region, DeviceRegion)
