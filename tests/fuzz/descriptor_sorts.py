"""Descriptors that a worker may send instead of a sealed memory file: one real one, and many others."""

import fcntl
import os
import socket
from collections.abc import Callable, Sequence

from actors.wire.call_segments import write_segment

_F_ADD_SEALS = 1033
_SEAL, _SHRINK, _GROW, _WRITE, _FUTURE_WRITE = 0x1, 0x2, 0x4, 0x8, 0x10
_ALL = _SEAL | _SHRINK | _GROW | _WRITE


def _content(size: int) -> bytes:
    """JSON, and elements of a tensor as well."""
    return b"{}".ljust(size)[:size]


def _sealed(size: int) -> list[int]:
    return [write_segment([_content(size)])]


def _longer(size: int) -> list[int]:
    return [write_segment([_content(size + 1)])]


def _shorter(size: int) -> list[int]:
    return [write_segment([_content(size // 2)])]


def _empty(_size: int) -> list[int]:
    return [write_segment([])]


def _with_seals(seals: int) -> Callable[[int], list[int]]:
    def make(size: int) -> list[int]:
        descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        os.write(descriptor, _content(size))
        fcntl.fcntl(descriptor, _F_ADD_SEALS, seals)
        return [descriptor]

    return make


def _sparse(size: int) -> list[int]:
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _ALL)
    return [descriptor]


def _read_only(size: int) -> list[int]:
    descriptor = write_segment([_content(size)])
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.close(descriptor)
    return [again]


def _without_rights(size: int) -> list[int]:
    descriptor = write_segment([_content(size)])
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_PATH)
    os.close(descriptor)
    return [again]


def _of_path(path: str, flags: int = os.O_RDONLY) -> Callable[[int], list[int]]:
    return lambda _size: [os.open(path, flags)]


def _pipe(_size: int) -> list[int]:
    return list(os.pipe())[::-1]


def _sockets(_size: int) -> list[int]:
    return [each.detach() for each in socket.socketpair()]


def _two(size: int) -> list[int]:
    return _sealed(size) + _sealed(size)


def _many(size: int) -> list[int]:
    return _sealed(size) + [os.memfd_create("hostile") for _ in range(20)]


_SORTS: Sequence[Callable[[int], list[int]]] = (
    *(_sealed, _longer, _shorter, _empty, _sparse, _read_only, _without_rights, _two, _many),
    *map(_with_seals, (0, _SEAL, _ALL & ~_WRITE, _ALL & ~_SHRINK, _ALL & ~_GROW, _ALL & ~_SEAL)),
    *(_with_seals(_ALL | _FUTURE_WRITE), _with_seals(_ALL & ~_WRITE | _FUTURE_WRITE)),
    *(_of_path(__file__), _of_path("/dev/zero"), _of_path("/dev/null"), _of_path("/", os.O_DIRECTORY)),
    *(_pipe, _sockets),
)

SORTS = len(_SORTS)
"""How many there are; the first is what an honest worker sends."""


def descriptors(sort: int, size: int) -> list[int]:
    """Return new descriptors for a reader that expects `size` bytes. The caller closes them."""
    return _SORTS[sort % SORTS](size)
