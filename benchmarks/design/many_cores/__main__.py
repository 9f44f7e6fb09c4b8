"""Counts the CPU time of a request in each process, for three ways of using many cores.

    python -m benchmarks.design.many_cores                        # everything, some three minutes
    python -m benchmarks.design.many_cores --only split ceiling --seconds 1
    python -m benchmarks.design.many_cores --only threads --pythons PYTHON PYTHON-WITHOUT-LOCK

`docs/design/many-cores.md` says what the figures mean, and what is made of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.design.many_cores import arrangement, codec, routing, scaling
from benchmarks.design.many_cores.measure import Costs, costs
from benchmarks.report import Table, plain
from benchmarks.subjects import CHECKOUT, Subject, printing_port
from engine.core.choosing import PURE

_ONE: Final = "one process"
_SPREADS: Final = ((16, 4), (64, 4), (512, 4), (64, 16), (512, 16))
_HANDED: Final = 500
_RINGS: Final = (1, 2, 4, 8)
_WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, for how long, and where to."""

    only: Sequence[str]
    seconds: float
    rounds: int
    pythons: Sequence[str]
    scratch: Path
    loads: Sequence[str] = field(default=tuple(arrangement.LOADS))


def _rounded(value: float) -> str:
    return f"{value:.1f}"


def _medians(samples: Sequence[Costs]) -> Costs:
    """Return the medians of several rounds of one load."""
    return Costs(
        rate=median(each.rate for each in samples),
        failed=sum(each.failed for each in samples),
        by_kind={kind: median(each.by_kind[kind] for each in samples) for kind in samples[0].by_kind},
        client=median(each.client for each in samples),
        busiest=median(each.busiest for each in samples),
        idle=median(each.idle for each in samples),
    )


def split(options: Options) -> Table:
    """Load one process, and an owner behind one and two protocol processes, in turn."""
    rows: list[list[str]] = []
    with ExitStack() as stack:
        owner = stack.enter_context(arrangement.owner(options.scratch))
        places: dict[str, tuple[Subject, Mapping[str, Sequence[int]]]] = {
            _ONE: (owner.subject, {"protocol": [], **owner.kinds})
        }
        for count in (1, 2):
            scratch = options.scratch / f"{count}"
            scratch.mkdir()
            subject, pids = stack.enter_context(arrangement.protocols(owner, count, scratch))
            places[f"{count} protocol, 1 owner"] = subject, {"protocol": pids, **owner.kinds}
        for load in options.loads:
            loaders = {name: arrangement.LOADS[load](subject) for name, (subject, _) in places.items()}
            found: dict[str, list[Costs]] = {name: [] for name in places}
            for _ in range(options.rounds):
                for name, (_, kinds) in places.items():
                    found[name].append(costs(kinds, partial(loaders[name], options.seconds)))
            for name, samples in found.items():
                middle = _medians(samples)
                parts = [_rounded(middle.by_kind[kind]) for kind in ("protocol", "owner", "worker")]
                more = (_rounded(middle.client), f"{middle.idle:.0%}", str(middle.failed))
                rows.append([load, name, f"{middle.rate:,.0f}", *parts, _rounded(middle.total), *more])
    headings = ["load", "arrangement", "req/s", "protocol µs", "owner µs", "worker µs", "sum µs"]
    headings += ["client µs", "idle", "failed"]
    return Table("CPU of a request in each process", headings, rows, words=2)


def ceiling(options: Options) -> Table:
    """Have an owner on a core of its own answer as much as it can, over more and more rings."""
    rows = []
    with arrangement.owner(options.scratch) as owner:
        for rings in _RINGS:
            samples = [
                arrangement.flooded(owner, rings, options.seconds, window=max(8, 2 * _WINDOW // rings))
                for _ in range(options.rounds)
            ]
            middle = _medians(samples)
            figures = [_rounded(middle.by_kind[kind]) for kind in ("owner", "worker")]
            rows.append(
                [str(rings), f"{middle.rate:,.0f}", *figures, f"{middle.busiest:.0%}", str(middle.failed)]
            )
    headings = ["rings", "req/s", "owner µs", "worker µs", "busiest core", "failed"]
    return Table("The owner's ceiling: requests come encoded, over rings", headings, rows)


def frames(options: Options) -> Table:
    """Write and read frames, in one process."""
    rows = [[what, _rounded(cost)] for what, cost in codec.measured(options.seconds).items()]
    return Table("The ring and its frames alone", ["step", "CPU µs"], rows)


def route(options: Options) -> Table:
    """Bring requests to the owner of their model in other ways than by a ring."""
    rows = []
    with arrangement.owner(options.scratch) as owner:
        with printing_port(
            "proxy", [f"{routing.__name__}", "proxy", str(owner.subject.port)], options.scratch
        ) as (
            pid,
            port,
        ):
            subject = Subject(label="proxy", host="127.0.0.1", port=port)
            for load in ("HTTP 16", "HTTP 64"):
                loader = arrangement.LOADS[load](subject)
                middle = _medians(
                    [
                        costs({"proxy": [pid], **owner.kinds}, partial(loader, options.seconds))
                        for _ in range(options.rounds)
                    ]
                )
                parts = ", ".join(f"{kind} {value:.1f} µs" for kind, value in middle.by_kind.items())
                rows.append([f"proxied to the owner's port, {load}", f"{middle.rate:,.0f} req/s", parts])
    here, there = routing.handed_over(_HANDED)
    rows.append(
        ["connection handed over with its descriptor", "", f"router {here:.1f} µs, owner {there:.1f} µs"]
    )
    for connections, listeners in _SPREADS:
        even = [scaling.spread(routing.shares(listeners, connections)) for _ in range(5)]
        what = f"{connections} connections over {listeners} listeners of one port"
        rows.append([what, "", f"mean ÷ largest {median(even):.2f}"])
    return Table("Bringing requests to an owner", ["way", "rate", "cost"], rows, words=3)


def threads(options: Options) -> Table:
    """Run a loop a thread, on each interpreter that was named."""
    rows = []
    for python in options.pythons:
        for more in ([], ["--queue"]):
            command = [python, "-m", "benchmarks.design.many_cores.threads", "--without-orjson", *more]
            command += ["--seconds", str(options.seconds)]
            for _ in range(options.rounds):
                ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
                rows += [["one queue" if more else "apart", line] for line in ran.stdout.splitlines()]
    return Table("A loop a thread", ["requests", "measured"], rows, words=2)


def plans(options: Options) -> Table:
    """Work out what machines with more cores give, from the costs that `scaling` holds."""
    del options
    rows = [[row.protocol, row.way, *row.cells] for row in scaling.table()]
    headings = [f"{cores} cores, model {model:.0f} µs" for cores in scaling.CORES for model in scaling.MODELS]
    return Table(
        "Requests/s, what bounds them, and protocol processes (no measurement)",
        ["over", "arrangement", *headings],
        rows,
        words=2,
    )


PARTS: Final[Mapping[str, Callable[[Options], Table]]] = {
    "split": split,
    "ceiling": ceiling,
    "frames": frames,
    "routing": route,
    "threads": threads,
    "plans": plans,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables, and return 1 where a request failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.design.many_cores", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--loads", nargs="+", choices=arrangement.LOADS, default=list(arrangement.LOADS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="interpreters for `threads`")
    given = parser.parse_args(argv)
    failed = False
    for part in given.only:
        with tempfile.TemporaryDirectory(prefix="tritium-cores-") as directory:
            options = Options(
                given.only, given.seconds, given.rounds, given.pythons, Path(directory), given.loads
            )
            table = PARTS[part](options)
        print(plain(table), "\n", flush=True)
        if table.columns[-1] == "failed":
            failed = failed or any(row[-1] != "0" for row in table.rows)
    return int(failed)


if __name__ == "__main__":
    # The prototype's processes take parts of the server as they are in Python, so what they are compared with
    # runs those, too.
    os.environ[PURE] = "1"
    sys.exit(main())
