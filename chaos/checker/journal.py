"""The journals of all workers of a run, as one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

from chaos.record.records import Executed, read_records


def journal(folder: Path) -> Iterator[Executed]:
    """Yield what the models have written into the files of a folder, by time.

    Each file is in the order of time. A file is opened when its first line is due and closed after its last.
    So no more files are open than workers have lived at once, however many workers the run had. Raises
    ValueError for a line that is not a record.
    """
    waiting = sorted(
        ((record.t, str(path)) for path in folder.glob("*") if (record := _first(path))), reverse=True
    )
    current: list[tuple[float, str, Executed, Iterator[Executed]]] = []
    while waiting or current:
        while waiting and (not current or waiting[-1][0] <= current[0][0]):
            _, path = waiting.pop()
            _push(current, path, read_records(Path(path), Executed))
        _, path, record, rest = heapq.heappop(current)
        yield record
        _push(current, path, rest)


def _first(path: Path) -> Executed | None:
    return next(read_records(path, Executed), None)


def _push(
    heap: list[tuple[float, str, Executed, Iterator[Executed]]], path: str, rest: Iterator[Executed]
) -> None:
    record = next(rest, None)
    if record is not None:
        heapq.heappush(heap, (record.t, path, record, rest))
