"""The journal of one worker: what its model has begun, and what it has ended.

It is copied beside each `model.py`, since in a worker the name `chaos` means nothing. Its lines are those of
`chaos.record.records.Executed`, which a test holds it to.
"""

import json
import os
import time
from collections.abc import Iterable


class Journal:
    """`<folder>/<model>-<pid>.jsonl`.

    All requests of a batch are written at once, by one `write` to a file that is opened for appending: what
    was written is there whatever becomes of the process.
    """

    def __init__(self, folder: str, model: str) -> None:
        self._pid = os.getpid()
        self._model = model
        self._batch = 0
        path = os.path.join(folder, f"{model}-{self._pid}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def begin(self, ids: Iterable[str]) -> int:
        """Write that requests are about to be executed together. Returns the batch's number, from 1."""
        self._batch += 1
        self._write(ids, self._batch, "false")
        return self._batch

    def end(self, ids: Iterable[str], batch: int) -> None:
        """Write that requests of a batch have been executed to their end: their answers are made."""
        self._write(ids, batch, "true")

    def _write(self, ids: Iterable[str], batch: int, end: str) -> None:
        model = json.dumps(self._model)
        rest = f'"model":{model},"pid":{self._pid},"batch":{batch},"end":{end}}}\n'
        head = f'{{"kind":"executed","t":{time.monotonic():.6f},"id":'
        lines = "".join(f"{head}{json.dumps(each)},{rest}" for each in ids)
        if lines:
            os.write(self._file, lines.encode())
