"""Large tensors of calls: each message's bytes are in a memory file of its own, which is sealed.

The sender of a large message writes it into a memfd, and seals that against writing, shrinking and growing.
It sends the descriptor ahead of the frame that it belongs to. The reader checks the seals, maps the file, and
closes the descriptor. Then a worker's memfd is as good as the server's. It can't be truncated while the
server reads it (which would be a SIGBUS), and its bytes are the same at every look. It is gone with the last
mapping, so no memory has to be given back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import sys
from typing import TYPE_CHECKING, Final

from actors.wire.frames import FrameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.wire.frames import Buffer

WORTH_A_SEGMENT: Final = 128 * 1024
"""Bytes from which on a descriptor is faster than frames.

The socket's buffer takes a smaller message at once.
"""

_F_ADD_SEALS: Final = 1033
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x0001 | 0x0002 | 0x0004 | 0x0008  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE
_BLOCK: Final = 512  # bytes: the unit of `st_blocks`
_UNTRACKED: Final = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def write_segment(pieces: Iterable[Buffer]) -> int:
    """Return the descriptor of a sealed memfd that holds `pieces`, one after the other.

    Raises OSError out of memory.
    """
    descriptor = os.memfd_create("tritium-call", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_segment(descriptor: int, size: int, *, writable: bool) -> memoryview:
    """Map a descriptor that the other side sent, and close it.

    Writes to the mapping are not visible to the other side.

    Raises FrameError if it is no sealed memfd of `size` bytes. Pages of another size are refused, and so are
    pages that were never written. Such pages may be missing when they are needed, which is a SIGBUS, and the
    reader would have to pay for them.
    """
    try:
        about = os.fstat(descriptor)
        seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
        if (
            not stat.S_ISREG(about.st_mode)
            or about.st_size != size
            or about.st_blksize != mmap.PAGESIZE
            or about.st_blocks * _BLOCK < size
            or seals & _SEALS != _SEALS
        ):
            raise FrameError(
                f"a descriptor of {about.st_size} bytes, with seals {seals}, is no segment of {size}"
            )
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=prot, **_UNTRACKED))
    except (OSError, ValueError, OverflowError) as error:
        raise FrameError(f"a segment of {size} bytes can't be mapped: {error}") from error
    finally:
        os.close(descriptor)
