"""Text workers with a true tokenizer (`chaos.languages.texts`), one after the other."""

import tempfile
from functools import cache
from pathlib import Path

from actors.generation.texts import TextWorkers
from chaos.languages.texts import SteppedTextWorker
from engine.worker.text.loading import load
from tests.support.llm import spelt


@cache
def loaded():
    """Return a tokenizer of bytes with some merges, loaded as a model's folder."""
    with tempfile.TemporaryDirectory() as folder:
        return load(str(spelt.write(Path(folder), spelt.byte_level())))


class TrueTextWorkers(TextWorkers):
    """Gives one after the other. A test says when they `works`."""

    def __init__(self):
        self.made = []

    async def launch(self):
        """See `TextWorkers`."""
        self.made.append(SteppedTextWorker(loaded()))
        self.made[-1].readies()
        return self.made[-1]

    @property
    def busy(self):
        """Whether the present worker has something to do."""
        return bool(self.made) and self.made[-1].busy
