"""A call whose requests are known beforehand, with the face that coroutine methods are given."""

from typing import Any

from actors.values.callers import Peer
from protocols.grpc.call import ServerStream
from tests.protocols.grpc_calls import KeptWire, make_call


class ScriptedStream(ServerStream[Any, Any]):
    """Gives out `requests`, then the end of the client's side; keeps what was sent in `sent`."""

    def __init__(self, *requests: Any) -> None:
        wire = KeptWire()
        wire.client = Peer("192.0.2.7")
        self.call = make_call(wire)
        self._requests = list(requests)
        self.sent: list[Any] = []

    async def recv_message(self):
        return self._requests.pop(0) if self._requests else None

    async def send_message(self, message):
        self.sent.append(message)
