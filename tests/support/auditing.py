"""An audit log without a disk, and one whose records are to be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from actors.values.auditing import Asked, Auditor, AuditUnwritable, ManagedChange, Requester
from actors.values.errors import TritiumError
from engine.audit.file import AuditFile
from engine.audit.reading import Census, read, with_older
from engine.audit.records import Entry, Record
from engine.audit.selecting import Chain
from engine.observability.reading.reading import open_log


class MemoryFile(AuditFile):
    """Keeps what is appended; `full` refuses all, `roomless` what asks for room."""

    def __init__(self, path: str = "/audit.jsonl") -> None:
        super().__init__(path, size=2**20, keep=1)
        self.written: list[Record] = []
        self.rooms: list[int | None] = []
        self.full = False
        self.roomless = False
        self.closed = False

    def append(self, records: Sequence[Record], *, room: int | None = None) -> None:
        if self.full or (self.roomless and room is not None):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written += records
        self.rooms.append(room)

    def close(self, *, trim: bool = True) -> None:
        del trim
        self.closed = True


class KeptAuditor(Auditor):
    """Keeps what a frontend tells; `unwritable` is why no change may begin."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, str]] = []  # outcome, action, model, identity
        self.changes: list[ManagedChange] = []
        self.addresses: list[str] = []
        self.reasons: list[str] = []
        self.unwritable = ""

    async def ask(self, change: ManagedChange, origin: Requester) -> Asked:
        if self.unwritable:
            raise AuditUnwritable(self.unwritable)
        self.changes.append(change)
        self.tell("asked", change.action, change.model, origin)
        return _KeptChange(self, change, origin)

    def denied(self, action: str, model: str, origin: Requester, error: TritiumError) -> None:
        self.reasons.append(error.message)
        self.tell("denied", action, model, origin)

    def tell(self, outcome: str, action: str, model: str, origin: Requester) -> None:
        """Keep one thing."""
        self.told.append((outcome, action, model, origin.identity))
        self.addresses.append(origin.address)


class _KeptChange(Asked):
    def __init__(self, auditor: KeptAuditor, change: ManagedChange, origin: Requester) -> None:
        self._auditor, self._change, self._origin = auditor, change, origin

    def ended(self, failure: BaseException | None) -> None:
        outcome = "done" if failure is None else type(failure).__name__
        self._auditor.tell(outcome, self._change.action, self._change.model, self._origin)

    async def written(self) -> None:
        return


def entries_in(path: object) -> list[Entry]:
    """Return the records in an audit log and the older files beside it; all of it must be whole."""
    census, chain = Census(), Chain()
    found = []
    for entry, place in read(with_older(str(path)), census, open_log):
        chain.add(entry, place)
        found.append(entry)
    assert not census.damaged
    assert not chain.breaks
    return found


def records_in(path: object) -> list[Record]:
    """Return the same without how they are chained."""
    return [entry.record for entry in entries_in(path)]
