"""Listening sockets on which accept(2) fails on cue."""


class Flaky:
    """A listening socket whose accept first fails with each of `failures`, which may be added to."""

    def __init__(self, sock, failures):
        self.failures = failures
        self._sock = sock

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def accept(self):
        if self.failures:
            raise self.failures.pop(0)
        return self._sock.accept()
