"""The rounds: a load on a server, the same load on the engine alone, and what open streams weigh."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import processes
from benchmarks.llm_stream.alone import run_alone
from benchmarks.llm_stream.model_folder import write_model
from benchmarks.llm_stream.timing import Timing
from benchmarks.subjects import CHECKOUT, Subject, running, wait_ready
from chaos.subject.ports import free_ports

PACE: Final = 0.02


# Of what open streams weigh: so many, that have had so many tokens at one look and at the next.
WEIGHED: Final = 512
_BULK_PACE: Final = 0.5
_BULK: Final = 64  # tokens of a step
_LOOKS: Final = (256, 2048)

_TEXT_PROGRAM: Final = "engine/worker/text/__main__.py"
_PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """How many streams are read at a time, and how many tokens each of them has."""

    streams: int
    tokens: int


FIRST: Final = Load(1, 3)
"""Short answers, one at a time: for the time to the first token."""

MANY: Final = Load(32, 200)


class Failed(Exception):
    """The load met errors, or a server's processes are not what they should be."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that was started here."""

    subject: Subject
    openai_port: int

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self.subject.pid is not None
        return self.subject.pid

    @property
    def text_pid(self) -> int:
        """The text worker. Its helpers are its children."""
        members = processes.family(self.pid)
        ours = {each.pid for each in members if _TEXT_PROGRAM in _command(each.pid)}
        found = [each.pid for each in members if each.pid in ours and each.parent not in ours]
        if len(found) != 1:
            raise Failed(f"the server has {len(found)} text workers")
        return found[0]


@dataclass(slots=True)
class Round:
    """What one round has shown of a load."""

    load: Load
    alone: Timing
    timing: Timing
    server_cpu: float  # seconds of the server's process
    text_cpu: float

    @property
    def event_cpu(self) -> float:
        """Seconds of the server's CPU time for an event."""
        return self.server_cpu / self.timing.events

    @property
    def first_over(self) -> float:
        """How much later than in the engine alone the first token comes, in seconds; the medians."""
        return self.timing.first_p50 - self.alone.first_p50

    @property
    def gaps_over(self) -> float:
        """The 99th percentile of times between tokens, as a multiple of that of the engine alone."""
        return self.timing.gap_p99 / self.alone.gap_p99


@dataclass(slots=True)
class Weight:
    """What open streams weigh, in bytes: growth of the resident memory of server and text worker."""

    stream: float
    token: float


@dataclass(slots=True)
class Found:
    """All rounds of one server."""

    label: str
    rounds: list[Round] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)

    def of(self, asked: Load) -> list[Round]:
        """Return the rounds of one load."""
        return [each for each in self.rounds if each.load == asked]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of one process, in seconds, as exact as the scheduler knows it."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / 1e9


@contextmanager
def served(label: str, checkout: Path, scratch: Path, model: str) -> Iterator[Served]:
    """Serve `model` from the repository in `scratch`. Raises NotStarted."""
    http, openai = free_ports(2)
    command = [sys.executable, "-m", "benchmarks.llm_stream.serving"]
    command += [f"--model-repository={scratch / 'models'}", "--http-address=127.0.0.1"]
    command += [f"--http-port={http}", f"--openai-port={openai}", "--allow-grpc=false"]
    command += ["--allow-metrics=false", "--model-control-mode=explicit", f"--load-model={model}"]
    log = scratch / f"{label.replace('/', '-')}-{model}.log"
    with running(command, cwd=checkout, log=log) as child:
        subject = Subject(label=label, host="127.0.0.1", port=http, pid=child.pid)
        wait_ready(subject, child, log)
        yield Served(subject, openai)


@contextmanager
def loading(served_by: Served, model: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the client beside this process."""
    command = [sys.executable, "-m", "benchmarks.llm_stream.client"]
    command += [f"--port={served_by.openai_port}", f"--model={model}", *options]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def load(served_by: Served, model: str, asked: Load, seconds: float) -> Timing:
    """Have streams read, one after the other on each connection. Raises Failed."""
    options = [f"--streams={asked.streams}", f"--tokens={asked.tokens}", f"--seconds={seconds}"]
    with loading(served_by, model, *options) as child:
        said, _ = child.communicate()
    timing = Timing(**json.loads(said)) if said else Timing(failures=["the client said nothing"])
    if timing.failures:
        raise Failed("; ".join(timing.failures[:3]))
    return timing


def take_round(served_by: Served, asked: Load, seconds: float) -> Round:
    """Measure the engine alone, and then the server, under the same load."""
    alone = run_alone(pace=PACE, streams=asked.streams, tokens=asked.tokens, seconds=seconds)
    text_pid = served_by.text_pid
    before = cpu_seconds(served_by.pid), cpu_seconds(text_pid)
    timing = load(served_by, "paced", asked, seconds)
    after = cpu_seconds(served_by.pid), cpu_seconds(text_pid)
    return Round(asked, alone, timing, after[0] - before[0], after[1] - before[1])


def weigh(served_by: Served) -> Weight:
    """Open `WEIGHED` streams on a server that has just been started, and look at its memory, twice."""
    text_pid = served_by.text_pid
    pids = served_by.pid, text_pid
    load(served_by, "bulk", Load(4, _BULK), 2 * _BULK_PACE)  # what the first requests load stays
    before = _resident(pids)
    options = [f"--streams={WEIGHED}", f"--tokens={1 << 19}", f"--seconds={_PATIENCE}", "--once"]
    with loading(served_by, "bulk", *options):
        looks = []
        began = time.monotonic()
        for tokens in _LOOKS:
            # Streams begin within the first two steps.
            time.sleep(max(0.0, began + (tokens / _BULK + 2) * _BULK_PACE - time.monotonic()))
            looks.append(_resident(pids))
    token = (looks[1] - looks[0]) / (_LOOKS[1] - _LOOKS[0]) / WEIGHED
    return Weight((looks[0] - before) / WEIGHED - token * _LOOKS[0], token)


def _resident(pids: Sequence[int]) -> int:
    return sum(map(processes.resident, pids))


def write_models(scratch: Path) -> None:
    """Write what is served."""
    write_model(scratch / "models", "paced", pace=PACE, tokens=1)
    write_model(scratch / "models", "bulk", pace=_BULK_PACE, tokens=_BULK)


def medians(found: Found) -> Sequence[tuple[str, float]]:
    """Return the medians of all rounds, in the units of the goals."""
    first, many = found.of(FIRST), found.of(MANY)
    told = [
        ("first token over the engine alone, ms", median(each.first_over for each in first) * 1e3),
        ("p99 between tokens, ÷ the engine alone", median(each.gaps_over for each in many)),
        ("server CPU an event, µs", median(each.event_cpu for each in many) * 1e6),
        ("text worker CPU an event, µs", median(each.text_cpu / each.timing.events for each in many) * 1e6),
        ("tokens a second", median(each.timing.rate for each in many)),
        (
            "server CPU a short answer, µs",
            median(each.server_cpu / each.timing.streams for each in first) * 1e6,
        ),
    ]
    if found.weights:
        told.append(("KiB an open stream", median(each.stream for each in found.weights) / 1024))
        told.append(("bytes a token of an open stream", median(each.token for each in found.weights)))
    return told
