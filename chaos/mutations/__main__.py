"""`python -m chaos.mutations`: are the tests any good?

Puts bugs into copies of the project and sees which tests notice them.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from chaos.mutations.operators import Mutant, NoSuchFunction, mutants_of
from chaos.mutations.targets import TARGETS
from chaos.mutations.workbench import ROOT, Caught, Detector, notices, set_on, workbench

_PYTEST: Final = ("-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider")

# Faults for what happens in workers. The other two detectors notice the rest, and sooner.
_FAULTS: Final = (
    *("model_raise", "member_raise", "slow_twentyfold", "hang_in_python", "poison_request", "garbage_frames"),
    *("worker_sigkill", "all_workers_sigkill", "worker_segv", "worker_exits", "worker_sigstop_too_long"),
    *("instance_actor_crash", "scheduler_crash", "client_disconnects", "client_resets"),
)

DETECTORS: Final = (
    Detector(
        "state machines",
        (*_PYTEST, "tests/actors", "-k", "machine or TestCase or runTest or final_answer"),
        300.0,
        r"(?m)^FAILED (\S+)",
    ),
    Detector("simulation", ("-m", "chaos.simulation", "--seeds=100"), 300.0, r"(--seed[ =]\d+)"),
    Detector(
        "chaos",
        ("-m", "chaos", "--minutes=2", "--seed=1", "--judge=answers", "--quiet", "--only", *_FAULTS),
        420.0,
        r"(?m)^MISSED\s+(\S.*?)\s{2,}",
    ),
)


def main() -> int:
    """Return 0 if every bug has been caught."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not before what runs has been ended
    options = _options()
    try:
        mutants = list(_drawn(options.only or TARGETS, options.each, Random(options.seed)))
    except NoSuchFunction as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if options.list:
        for each in mutants:
            print(f"{each!s:45} {each.file}:{each.line}")
        return 0
    detectors = [each for each in DETECTORS if not options.by or each.name in options.by]
    results: list[Caught] = []
    with tempfile.TemporaryDirectory(prefix="tritium-mutations-") as folder:
        if not options.only and not _sound(detectors, Path(folder)):
            return 1
        for number, each in enumerate(mutants, 1):
            print(f"[{number}/{len(mutants)}] {each} ({each.file}:{each.line})", flush=True)
            results.append(_tried(each, detectors, Path(folder) / str(number)))
            if options.report is not None:
                options.report.write_text(table(results))
    missed = [str(each.mutant) for each in results if not each.by]
    print(
        f"{len(results) - len(missed)} of {len(results)} caught"
        + "".join(f"\nnot caught: {name}" for name in missed)
    )
    return 1 if missed else 0


def table(results: Sequence[Caught]) -> str:
    """Return the results as a page of Markdown."""
    by = Counter(each.detector for each in results if each.by)
    caught = ", ".join(f"{count} by the {name}" for name, count in by.most_common())
    rows = [
        f"| `{each.mutant.function}` | {TARGETS.get(each.mutant.function, '')} | {each.mutant.operator} {each.mutant.place}"
        f" | {each.mutant.line} | {each.detector} | {_escaped(each.by) or '**nothing**'} | {each.seconds:.0f} |\n"
        for each in results
    ]
    return (
        f"{by.total()} of {len(results)} are noticed: {caught or 'none'}.\n\n"
        "| function | what it promises | bug | in line | noticed by | which | s |\n"
        f"|---|---|---|---:|---|---|---:|\n{''.join(rows)}"
    )


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _drawn(functions: Iterable[str], each: int, random: Random) -> Iterator[Mutant]:
    """Yield so many bugs of each function. Raises NoSuchFunction."""
    for function in functions:
        mutants = mutants_of(ROOT, function)
        yield from random.sample(mutants, min(each, len(mutants)))


def _sound(detectors: Sequence[Detector], folder: Path) -> bool:
    """Whether the detectors are silent without a bug: otherwise they prove nothing."""
    with workbench(folder / "sound", None) as root:
        for detector in detectors:
            began = time.monotonic()
            noticed = notices(detector, root)
            if noticed is not None:
                sys.stderr.write(f"error: without any bug the {detector.name} fail: {noticed}\n")
                return False
            print(f"without a bug: {detector.name} pass, {time.monotonic() - began:.0f} s", flush=True)
    return True


def _tried(mutant: Mutant, detectors: Sequence[Detector], folder: Path) -> Caught:
    with workbench(folder, mutant) as root:
        caught = set_on(detectors, mutant, root)
    print(
        f"    {f'{caught.detector}, {caught.seconds:.0f} s: {caught.by}' if caught.by else 'NOT CAUGHT'}",
        flush=True,
    )
    return caught


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.mutations",
        description="Puts deliberate bugs into copies of the project, one at a time, and tells which of state machines, simulation"
        " and chaos runs notices each. Exit status 0 if all are noticed.",
        epilog="example: python -m chaos.mutations --only Slot.release --each 5 --by simulation",
    )
    parser.add_argument("--list", action="store_true", help="only list the bugs")
    parser.add_argument("--only", nargs="+", metavar="FUNCTION", help="bugs of these functions and no others")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="so many bugs of each function (1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which of them (0)")
    parser.add_argument(
        "--by",
        nargs="+",
        metavar="DETECTOR",
        choices=[each.name for each in DETECTORS],
        help="these detectors, in their usual order: " + ", ".join(repr(each.name) for each in DETECTORS),
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write the table of results there, as Markdown, anew after each bug",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
