"""The audit log in the server: what is to be recorded waits here, and threads write it, one at a time.

A change waits until its record is on the disk. Everything else (outcomes, denials, notes of the server) is
left here, and an actor has it written. If the disk is full, outcomes and notes wait, denials are counted, and
each change is refused. The actor tries again, and so does the next change.

The trail is passive and outlives its actor.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import trio

from actors.seams.bell import Bell
from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.values.auditing import DENIALS, Asked, Auditor, AuditUnwritable, ManagedChange, Requester
from actors.values.errors import TritiumError
from actors.values.events import Event, Log
from actors.values.families import Block, Families, Family, once
from actors.values.tensors import Buffer
from engine.audit.denials import Counted, Denial, Denials
from engine.audit.file import AuditFile
from engine.audit.records import ABANDONED, ASKED, DENIED, DONE, FAILED, LONGEST, Record, cut
from engine.settings.management import AuditSettings

AGAIN: Final = 1.0
"""Seconds until a log that could not be written is tried again."""

MOST_NOTES: Final = 1000
"""Notes and outcomes that wait for a log that can't be written. Those beyond are counted as lost."""

_INTENSITY: Final = Intensity(3, 60.0)


class Trail:
    """Records what is asked for, what came of it, and what was denied."""

    def __init__(
        self,
        file: AuditFile,
        *,
        wall_clock: Callable[[], int],
        boot: int,
        log: Log,
    ) -> None:
        """`wall_clock` returns milliseconds since the epoch.

        `boot` is a number of this run of the server alone; ids of changes begin with it.
        """
        self.records = 0  # that were written
        self.failures = 0  # writes that failed
        self.denials = 0
        self.trouble = ""  # why it can't be written now
        self._file = file
        self._wall_clock = wall_clock
        self._boot = boot
        self._log = log
        self._lock = trio.Lock()
        self._bell = Bell()
        self._serial = 0
        self._open = 0  # changes whose outcome is not written
        self._lost = 0
        self._outcomes: deque[Record] = deque()
        self._notes: deque[Record] = deque()
        self._counted = Denials()
        self._last: Record | None = None  # what is written when the server stops

    def at(self, via: str) -> Auditor:
        """Return the trail as a listener, or another source of changes, knows it."""
        return _Source(self, via)

    @property
    def path(self) -> str:
        """Where it is."""
        return self._file.path

    # Told

    def note(
        self, action: str, facts: Mapping[str, object], *, outcome: str = DONE, reason: str = ""
    ) -> None:
        """Record what the server did by itself, as soon as that can be done. Neither waits nor raises."""
        self._keep(
            self._notes,
            Record(
                time=self._wall(), action=action, outcome=outcome, via="server", reason=reason, facts=facts
            ),
        )

    def note_reload(self, facts: Mapping[str, object], failure: str) -> None:
        """Record that files were read again; `failure` is why they could not be used, if so."""
        self.note("files_reloaded", facts, outcome=FAILED if failure else DONE, reason=failure)

    def ends_with(self, action: str, facts: Mapping[str, object]) -> None:
        """Have this be the last record of the server."""
        self._last = Record(time=0.0, action=action, via="server", facts=facts)

    async def ask(self, via: str, change: ManagedChange, origin: Requester) -> Asked:
        """Record that a change is asked for (`Auditor.ask`)."""
        self._serial += 1
        record = Record(
            time=self._wall(),
            action=change.action,
            outcome=ASKED,
            id=f"{self._boot:08x}-{self._serial}",
            identity=origin.identity,
            address=origin.address,
            via=via,
            model=change.model,
            facts=change.facts,
        )
        self._open += 1
        try:
            if change.files:
                files = await in_thread(_described, change.files)
                record = replace(record, facts={**change.facts, "files": files})
            await self._write(record)
        except OSError as error:
            self._open -= 1
            refusal = AuditUnwritable(
                f"nothing was changed, since the audit log can't be written: {_why(error)}. The server's"
                " operator has to mend that (--audit-log); inference goes on, and changes do as soon as it is"
                " mended"
            )
            self.denied(via, change.action, change.model, origin, refusal)
            raise refusal from error
        except BaseException:
            self._open -= 1
            raise
        return _AskedChange(self, record)

    def denied(self, via: str, action: str, model: str, origin: Requester, error: TritiumError) -> None:
        """Count a denial, which is recorded in its turn (`Auditor.denied`)."""
        self.denials += 1
        denial = Denial(
            action=action,
            code=error.code.name,
            reason=cut(error.message),
            model=cut(model),
            identity=origin.identity,
            address=origin.address,
            via=via,
        )
        if self._counted.add(denial, trio.current_time()):
            self._bell.ring()

    def ended(self, asked: Record, failure: BaseException | None) -> None:
        """Take the outcome of a change, which the actor writes unless `flush` is quicker."""
        outcome, code, reason = _outcome(failure)
        self._open -= 1
        told = replace(asked, time=self._wall(), outcome=outcome, code=code, reason=reason, facts={})
        self._keep(self._outcomes, told)

    async def flush(self) -> None:
        """Write what waits. What can't be written waits on."""
        try:
            await self._write(None)
        except OSError:
            return

    def _keep(self, line: deque[Record], record: Record) -> None:
        if len(line) < MOST_NOTES:
            line.append(record)
        else:
            self._lost += 1
        self._bell.ring()

    def _wall(self) -> float:
        return self._wall_clock() / 1000

    # Writing

    async def _write(self, asked: Record | None) -> None:
        """Write what waits and, behind it, that a change is asked for. Raises OSError."""
        async with self._lock:
            try:
                await self._put(self._outcomes, [*self._outcomes], None)
                self._collect()
                notes = [*self._notes]
                room = (self._open + len(self._outcomes)) * LONGEST
                await self._put(self._notes, notes if asked is None else [*notes, asked], room)
            except OSError as error:
                self._failed(error)
                raise

    async def _put(self, line: deque[Record], records: list[Record], room: int | None) -> None:
        """Write `records`, the first of which wait in `line`. Raises OSError."""
        if not records:
            return
        waiting = len(line)
        await in_thread(lambda: self._file.append(records, room=room))
        for _ in range(waiting):
            line.popleft()
        self.records += len(records)
        if self.trouble:
            self.trouble = ""
            self._log(Event.AUDIT_AVAILABLE, file=self.path)

    def _collect(self, *, everything: bool = False) -> None:
        """Put the denials that are due among the notes. While others wait there, they are counted."""
        if not self._notes or everything:
            self._notes.extend(
                map(self._of_denial, self._counted.due(trio.current_time(), everything=everything))
            )
        if self._lost and len(self._notes) < MOST_NOTES:
            lost = {"count": self._lost}
            self._notes.append(
                Record(time=self._wall(), action="audit_records_lost", via="server", facts=lost)
            )
            self._lost = 0

    def _of_denial(self, counted: Counted) -> Record:
        denial = counted.denial
        many = {"count": counted.count, "seconds": round(counted.seconds, 1)} if counted.seconds else {}
        return Record(
            time=self._wall(),
            action=denial.action,
            outcome=DENIED,
            identity=denial.identity,
            address=denial.address,
            via=denial.via,
            model=denial.model,
            code=denial.code,
            reason=denial.reason,
            facts=many,
        )

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        trouble = _why(error)
        if trouble != self.trouble:
            self.trouble = trouble
            self._log(Event.AUDIT_UNAVAILABLE, level="error", file=self.path, error=trouble)

    # The actor

    def spec(self) -> ChildSpec:
        """Return the child spec of the actor. Its restarts are its own: no trouble of it ends the server."""
        return ChildSpec("audit", self.run, intensity=_INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)

    async def run(self, ctx: ChildContext) -> None:
        """Write what waits, for ever. The start function of a permanent child."""
        stopping = ctx.stopping
        stopping.then(self._bell.ring)
        ctx.started()
        heard = 0
        while not stopping.is_set():
            ctx.publish(file=self.path, written=self.records, trouble=self.trouble or None)
            with trio.move_on_at(self._next()):
                heard = await self._bell.wait(heard)
            await self.flush()
        await self._finish()

    def _next(self) -> float:
        """Return the time on trio's clock at which there is something to do, if the bell does not ring."""
        if self.trouble:
            return trio.current_time() + AGAIN
        return self._counted.next_due()

    async def _finish(self) -> None:
        self._collect(everything=True)
        if self._last is not None:
            self._notes.append(replace(self._last, time=self._wall()))
            self._last = None
        await self.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class _Source(Auditor):
    """The trail of one listener."""

    __slots__ = ("_trail", "_via")

    def __init__(self, trail: Trail, via: str) -> None:
        self._trail = trail
        self._via = via

    async def ask(self, change: ManagedChange, origin: Requester) -> Asked:
        return await self._trail.ask(self._via, change, origin)

    def denied(self, action: str, model: str, origin: Requester, error: TritiumError) -> None:
        self._trail.denied(self._via, action, model, origin, error)


class _AskedChange(Asked):
    """A change between its two records."""

    __slots__ = ("_record", "_trail")

    def __init__(self, trail: Trail, record: Record) -> None:
        self._trail = trail
        self._record = record

    def ended(self, failure: BaseException | None) -> None:
        self._trail.ended(self._record, failure)

    async def written(self) -> None:
        await self._trail.flush()


def open_trail(
    settings: AuditSettings,
    *,
    wall_clock: Callable[[], int],
    boot: int,
    log: Log,
) -> Trail:
    """Return the trail that the settings ask for. Raises AuditUnusable. For the clock see `Trail`."""
    file = AuditFile(settings.file, size=settings.size, keep=settings.keep)
    file.check()
    return Trail(file, wall_clock=wall_clock, boot=boot, log=log)


def _outcome(failure: BaseException | None) -> tuple[str, str, str]:
    """Return what a record says of the end of a change: its outcome, code and reason."""
    if failure is None:
        return DONE, "", ""
    if isinstance(failure, TritiumError):
        outcome = DENIED if isinstance(failure, DENIALS) else FAILED
        return outcome, failure.code.name, failure.message
    if isinstance(failure, trio.Cancelled):
        return ABANDONED, "", "the client left before the outcome; the server's log tells it"
    return FAILED, "", f"{type(failure).__name__}: {failure}"


def _described(files: Mapping[str, Buffer | str]) -> Mapping[str, object]:
    """Return what is told of files, by name: their sizes and SHA-256 digests. Runs in a thread."""
    told: dict[str, object] = {}
    for name, content in files.items():
        given = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        told[name] = {"bytes": len(given), "sha256": hashlib.sha256(given).hexdigest()}
    return told


def _why(error: OSError) -> str:
    return error.strerror or os.strerror(error.errno or 0)


# -- metrics

FAMILIES: Final[Families[Trail]] = (
    Family(
        "tritium_audit_records_total", "counter", "Records written to the audit log", lambda it: it.records
    ),
    Family(
        "tritium_audit_write_failures_total",
        "counter",
        "Times that the audit log could not be written",
        lambda it: it.failures,
    ),
    Family(
        "tritium_audit_denials_total",
        "counter",
        "Denials that the audit log tells of, each or as a count",
        lambda it: it.denials,
    ),
    Family(
        "tritium_audit_writable",
        "gauge",
        "Whether the audit log can be written: 0 where changes are refused, since it can't",
        lambda it: 0 if it.trouble else 1,
    ),
)


def audit_blocks(trail: Trail) -> Iterator[Block]:
    """Yield what is told of the audit log."""
    return once(FAMILIES, trail)
