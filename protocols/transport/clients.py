"""The clients of one connection. There is one, but for a trusted proxy's connection, which brings many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from actors.values.callers import Peer
from protocols.memo import Memo
from protocols.transport.proxies import TrustedProxies, forwarding

# Clients of one connection that are remembered, with what the gate noted of each.
_KEPT: Final = 64
_KEPT_BYTES: Final = 64 * 1024
_PEER_SIZE: Final = 512


class Clients:
    """Tells whose each request is, on the connection of `peer`."""

    def __init__(self, peer: Peer, proxies: TrustedProxies) -> None:
        self._peer = peer
        self._proxies = proxies
        self._trusted: bool | None = None  # not asked yet: the address may still be told
        self._known: Memo[tuple[tuple[bytes, ...], tuple[bytes, ...]], Peer] = Memo(_KEPT, _KEPT_BYTES)

    def of(self, fields: Iterable[tuple[bytes, bytes]]) -> Peer:
        """Return whose request it is whose head has these `fields`, their names in lower case.

        What is no trusted proxy can't speak for others, whatever its fields say.
        """
        if self._trusted is None:
            self._trusted = self._proxies.trusts(self._peer.address)
        if not self._trusted:
            return self._peer
        told = forwarding(fields)
        client = self._known.get(told)
        if client is None:
            node = self._proxies.client(*told)
            if node is None:
                return self._peer
            client = Peer(str(node.address), self._peer.names, port=node.port)
            self._known.remember(told, client, sum(map(len, (*told[0], *told[1]))) + _PEER_SIZE)
        return client
