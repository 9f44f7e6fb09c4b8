"""What a run writes down, one JSON object a line, and what the checker reads: the checker has no other input.

A run's folder holds these files:

- `manifest.json` (see `Manifest`)
- `history.jsonl` (`Invoke`, `Ok`, `Fail`, `Unknown`)
- `faults.jsonl` (`Injected`, `Healed`, `PassedOver`)
- `samples.jsonl` (`Sample`), `tally.jsonl` (`Tally`) and `endings.jsonl` (`Ending`)
- `journal/` (`Executed`, by the models themselves)
- `server/` (the server's standard output and error, as JSON lines)
- once it has been checked, `verdict.json` and `report.md`

Times are seconds of the machine's monotonic clock, which all processes share, unless a field says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar

Wire = Literal["http", "grpc"]
Phase = Literal["calm", "standard", "overload", "recovery", "ending"]

R = TypeVar("R", bound="Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line."""

    kind: ClassVar[str]

    t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke(Record):
    """A client is about to send a request.

    Exactly one of `Ok`, `Fail` and `Unknown` follows, with the same `n`.
    """

    kind: ClassVar[str] = "invoke"

    n: int  # of the request: unique in a run
    # The request carries it as its id, and the journal and the log repeat it.
    id: str
    model: str
    protocol: Wire
    phase: Phase
    # The inputs are made of it, and the right answer follows from it, see `chaos.workload.answers`.
    value: int
    parts: int = 1  # that a decoupled model is to answer with
    deadline: float | None = None  # when the answer is of no use any more
    sequence: int = 0  # correlation id; 0 for none
    index: int = 0  # place in the sequence
    start: bool = False
    end: bool = False
    priority: int = 0
    tenant: str = ""
    # What the request makes its model do, if it is meant to do harm.
    poison: str = ""
    by: int = 0  # the fault (its `n`) that sent it; 0 for the ordinary load
    # When it was to be sent: `t` less this is how late the generator was.
    due: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ok(Record):
    """A good answer has arrived whole."""

    kind: ClassVar[str] = "ok"

    n: int
    # What its parts say, in the order in which they came: see `chaos.workload.answers`.
    values: Sequence[int]
    first: float  # when the first part was here
    attempts: int = 1  # the response parameter of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Record):
    """The server has answered with an error."""

    kind: ClassVar[str] = "fail"

    n: int
    # The code of gRPC, by its name, such as UNAVAILABLE; HTTP statuses are translated.
    code: str
    message: str
    values: Sequence[int] = ()  # parts that came before the error


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Record):
    """There was no answer, and none will come.

    The connection broke, or the client gave up or went away on purpose.
    """

    kind: ClassVar[str] = "unknown"

    n: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed(Record):
    """A model has begun (`end` false) or ended (true) with a request.

    The worker writes it at once, by one `write`.
    """

    kind: ClassVar[str] = "executed"

    id: str
    model: str
    pid: int
    batch: int  # counts the executions of that process
    end: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """Errors that a fault makes inevitable. An error that it does not cover is not excused.

    A request is excused if all of this holds:

    - it is of one of `models` (all, if empty);
    - it failed with one of `codes`, and its message contains `says`;
    - it was under way at some time from `before` seconds ahead of the injection until `after` seconds past
      the healing;
    - fewer than `most` requests have been excused by this fault already.

    `unknown` says whether requests without an answer are covered too. `own` says that only requests sent by
    the fault itself are covered.
    """

    models: Sequence[str] = ()
    codes: Sequence[str] = ("UNAVAILABLE",)
    says: str = ""
    before: float = 0.0
    after: float = 2.0
    most: int | None = None
    unknown: bool = False
    own: bool = False
    protocols: Sequence[Wire] = ("http", "grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExpected:
    """A log line that has to appear within `within` seconds after the injection.

    It has at least these keys and values. A list of values stands for any of them.
    """

    event: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    within: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected(Record):
    """A fault begins now."""

    kind: ClassVar[str] = "injected"

    n: int  # from 1, in the order of injection
    fault: str  # its name in the catalogue
    # The models that may feel it; all others are unaffected.
    models: Sequence[str]
    detail: str  # what exactly was hit, for people
    pid: int = 0  # of the worker, where one is hit
    excuses: Sequence[Excuse] = ()
    expects: Sequence[LogExpected] = ()
    # Which recovery time it counts for: "worker", "hang", "actor", "supervisor", or none.
    measures: str = ""
    model: str = ""  # on which that time is measured
    mutes: bool = False  # whether the log may lose lines until this is healed
    stops: bool = False  # whether the server reads nothing until this is healed


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed(Record):
    """The cause is gone; from here the server has to recover."""

    kind: ClassVar[str] = "healed"

    n: int
    # Why the injection itself went wrong, or what it saw that should not have been.
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver(Record):
    """A planned fault that was not injected."""

    kind: ClassVar[str] = "passed_over"

    n: int
    fault: str
    why: str
    # Whether the harness held back to be fair to the server, and not because there was nothing to hit.
    restraint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Record):
    """What was counted when the phases were over. Written once."""

    kind: ClassVar[str] = "tally"

    # Bytes over HTTP and messages over gRPC that came to clients though no request had asked for them.
    surplus: int
    # Replies that the server knows to have dropped or given twice: `tritium_reply_violations_total`.
    violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Record):
    """What the server's processes take."""

    kind: ClassVar[str] = "sample"

    rss: int  # bytes, of the server's process alone
    workers_rss: int  # bytes, of all its children
    descriptors: int
    threads: int
    children: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending(Record):
    """What a way to end the server has shown, all figures by name, seconds or counts."""

    kind: ClassVar[str] = "ending"

    how: str  # sigterm, sigterm_twice, sigterm_hung, sigkill
    figures: Mapping[str, float]
    trouble: str = ""


KINDS: Final[Mapping[str, type[Record]]] = {
    each.kind: each
    for each in (Invoke, Ok, Fail, Unknown, Executed, Injected, Healed, PassedOver, Tally, Sample, Ending)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a run was."""

    seed: int
    minutes: float
    rate: float  # requests a second of the ordinary load
    faults_per_minute: float
    began: float  # monotonic
    # Seconds since 1970 at the same moment, to compare with the log's time stamps.
    began_wall: float
    version: str  # of the server
    machine: str  # cores and memory, in words
    command: str
    phases: Sequence[tuple[Phase, float, float]]  # name, from, until: monotonic


def line_of(record: Record) -> str:
    """Return a record as a line, without its end."""
    return json.dumps({"kind": record.kind, **asdict(record)}, separators=(",", ":"))


def read_records(path: Path, *kinds: type[R]) -> Iterator[R]:
    """Yield the records of a file that are of these kinds.

    A last line without its end is skipped: its writer was killed as it wrote. Raises ValueError, with the
    line's number, for a line that is not a record.
    """
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                return
            try:
                record = _parsed(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: no record: {error}") from error
            if isinstance(record, kinds):
                yield record


def _parsed(given: dict[str, Any]) -> Record:
    kind = KINDS[given.pop("kind")]
    if kind is Injected:
        given["excuses"] = [Excuse(**each) for each in given["excuses"]]
        given["expects"] = [LogExpected(**each) for each in given["expects"]]
    unknown = given.keys() - {each.name for each in fields(kind)}
    if unknown:
        raise ValueError(f"keys that a record of kind '{kind.kind}' has not: {', '.join(sorted(unknown))}")
    return kind(**given)


def read_manifest(folder: Path) -> Manifest:
    """Return what the run in a folder was."""
    given = json.loads((folder / "manifest.json").read_text())
    given["phases"] = [(name, begin, end) for name, begin, end in given["phases"]]
    return Manifest(**given)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write what the run in a folder is."""
    (folder / "manifest.json").write_text(json.dumps(asdict(manifest), indent=2) + "\n")
