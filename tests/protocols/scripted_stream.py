"""A call whose requests are known beforehand, with the face that coroutine methods are given."""

from types import SimpleNamespace
from typing import Any, cast

from actors.values.callers import Peer
from protocols.grpc.call import Call, ServerStream


class ScriptedStream(ServerStream[Any, Any]):
    """Gives out `requests`, then the end of the client's side; keeps what was sent in `sent`."""

    def __init__(self, *requests: Any) -> None:
        # Threads as trio has them.
        wire = SimpleNamespace(threads=None)
        self.call = cast("Call", SimpleNamespace(caller=None, client=Peer("192.0.2.7"), wire=wire))
        self._requests = list(requests)
        self.sent: list[Any] = []

    async def recv_message(self):
        return self._requests.pop(0) if self._requests else None

    async def send_message(self, message):
        self.sent.append(message)
