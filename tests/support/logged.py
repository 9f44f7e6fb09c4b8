"""A log that keeps what is written, and a terminal that shows nothing."""

from __future__ import annotations


class Logged(list):
    """Keeps (event, level, keys)."""

    def __call__(self, event, *, level="info", **keys):
        self.append((str(event), level, keys))

    def of(self, event):
        """The keys of every such event, in order."""
        return [keys for name, _, keys in self if name == event]


class Silent:
    """A terminal of benchmarks."""

    def step(self, text):
        pass

    def result(self, text):
        pass
