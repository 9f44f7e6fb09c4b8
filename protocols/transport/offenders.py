"""Addresses that flooded the server lately: a new connection from such an address is read a while later.

Every connection begins with budgets for frames that cost its client nothing (`protocols.http2.streams`). A
client that connects again each time it is sent away would get them as often as it likes. So each flood makes
the next connections from its address wait for longer. Other clients at the address, behind the same proxy,
wait too. So the wait is seconds at the most, and soon forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from protocols.transport.room import address_of, origin_of

FIRST_WAIT: Final = 0.1  # seconds, doubled by each further flood
LONGEST_WAIT: Final = 5.0
FORGOTTEN_AFTER: Final = 60.0  # seconds without a flood
# Beyond this number, the address whose last flood is the oldest is forgotten.
MAX_ADDRESSES: Final = 4096


class Offenders:
    """The addresses that flooded, how often each did, and how long its next connections have to wait.

    Times are seconds on the caller's clock.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()  # floods, and when the last one was

    def flooded(self, peer: str, now: float) -> None:
        """Note that a connection of `peer` was ended for a flood.

        `peer` is an address as gRPC writes it: `ipv4:192.0.2.1:1234`.
        """
        origin = _origin(peer)
        if origin is None:
            return
        floods, last = self._known.pop(origin, (0, now))
        if now - last >= FORGOTTEN_AFTER:
            floods = 0
        self._known[origin] = (floods + 1, now)
        if len(self._known) > MAX_ADDRESSES:
            self._known.popitem(last=False)

    def wait(self, peer: str, now: float) -> float:
        """Return for how many more seconds not to read from a new connection of `peer`; 0.0 for none."""
        if not self._known:
            return 0.0
        floods, last = self._known.get(_origin(peer) or "", (0, now))
        if not floods:
            return 0.0
        return max(0.0, last + min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (floods - 1)) - now)


def _origin(peer: str) -> str | None:
    """Return what connections of one client have in common; None if that is unknown, as on a Unix socket."""
    address = address_of(peer.partition(":")[2].rpartition(":")[0].strip("[]"))
    return None if address is None else origin_of(address)
