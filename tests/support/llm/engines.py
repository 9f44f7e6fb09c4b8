"""Engines of language models, driven as their backend does it, and the tiny model that they load."""

import fcntl
import os
from pathlib import Path

READY = "TRITIUM_TESTS_TINY_LLM"
"""Environment variable: a folder that `tiny.make` has made before."""


def tiny_folder(tmp_path_factory) -> Path:
    """Return the tiny model's folder. It is made once, by whichever of several test processes is first."""
    from tests.support.llm import tiny

    ready = os.environ.get(READY)
    if ready:
        return Path(ready)
    shared = tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else None
    root = shared or tmp_path_factory.getbasetemp()
    folder = root / "tiny-llm"
    with open(root / "tiny-llm.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            tiny.make(root / "tiny-llm.part")
            (root / "tiny-llm.part").rename(folder)
    return folder


class Story:
    """What one stream has come to."""

    def __init__(self, number):
        self.number = number
        self.ids = []
        self.chances = []
        self.facts = None
        self.finish = ""
        self.reason = None
        self.error = ""
        self.embedding = None

    def take(self, output):
        """Add what a step has made."""
        assert not self.finish, "something came behind the end"
        assert not self.error, "something came behind an error"
        self.ids += output.ids
        self.chances += output.chances or ()
        self.facts = output.facts or self.facts
        self.finish, self.reason, self.error = output.finish, output.reason, output.error
        self.embedding = output.embedding


class Driver:
    """Steps an engine until all streams have ended."""

    def __init__(self, engine):
        self.engine = engine
        self.stories = {}
        self._number = 0

    def add(self, ids, **sampling):
        """Begin a stream, as a backend does; return its story."""
        prepared = self.engine.prepare(ids, sampling)
        self._number += 1
        self.engine.add(self._number, prepared)
        story = self.stories[self._number] = Story(self._number)
        return story

    def step(self):
        """Go one step on."""
        for output in self.engine.step():
            self.stories[output.stream].take(output)

    def abort(self, *stories):
        """End streams."""
        self.engine.abort([story.number for story in stories])

    def run(self):
        """Step until there is nothing to do."""
        while self.engine.busy:
            self.step()

    def one(self, ids, **sampling):
        """Run one stream alone."""
        story = self.add(ids, **sampling)
        self.run()
        return story
