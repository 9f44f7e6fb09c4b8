"""A call whose requests are known beforehand, with the face that coroutine methods are given."""

from types import SimpleNamespace


class ScriptedStream:
    """Gives out `requests`, then the end of the client's side; keeps what was sent in `sent`."""

    # Threads as trio has them.
    call = SimpleNamespace(wire=SimpleNamespace(threads=None))

    def __init__(self, *requests):
        self._requests = list(requests)
        self.sent = []

    async def recv_message(self):
        return self._requests.pop(0) if self._requests else None

    async def send_message(self, message):
        self.sent.append(message)
