"""The system's errors for a client that is gone: one table for listening, for HTTP and for gRPC."""

import errno
from typing import Final

_NETWORK: Final = frozenset(
    (
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
    )
)

PASSING: Final = _NETWORK | {errno.ECONNABORTED, errno.EPERM, errno.EPROTO}
"""What accept(2) reports of a client that is gone already, or of the network, not of the listening socket."""

LOST: Final = _NETWORK | {
    errno.ECONNRESET,
    errno.EPIPE,
    errno.ENOTCONN,
    errno.ETIMEDOUT,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,  # what a router said before the kernel gave up
}
"""What reading and writing report of a client that is gone."""
