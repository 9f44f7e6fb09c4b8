"""`python -m chaos.simulation --seeds 100`: simulate a whole server, as often as there are seeds, and tell which went wrong."""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from chaos.simulation.scenario import scenario
from chaos.simulation.simulate import Verdict, simulate
from chaos.simulation.tally import met
from chaos.simulation.world import virtual

PROGRAM = "python -m chaos.simulation"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit status: 1 where a seed went wrong."""
    arguments = _parser().parse_args(argv)
    seeds = (
        [arguments.seed]
        if arguments.seed is not None
        else range(arguments.first, arguments.first + arguments.seeds)
    )
    failed: list[int] = []
    crashed: Counter[str] = Counter()
    come_by: Counter[str] = Counter()
    requests = 0
    gc.collect()
    # The collector does not look again, after each seed, at what was imported.
    gc.freeze()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tritium-simulation-") as scratch:
        for done, seed in enumerate(seeds, start=1):
            verdict = simulate(scenario(seed), Path(scratch))
            crashed.update(verdict.crashed)
            come_by.update(met(verdict))
            requests += len(verdict.outcomes)
            if arguments.digest:
                sys.stdout.write(f"{seed} {verdict.trace.digest()}\n")
            if not verdict.passed:
                failed.append(seed)
                _tell(verdict)
            if arguments.trace:
                sys.stdout.write(verdict.trace.text())
            elif done % 25 == 0:
                sys.stderr.write(
                    f"{done} of {len(seeds)} seeds, {len(failed)} failed, {time.perf_counter() - began:.1f} s\n"
                )
    sys.stderr.write(
        f"{len(seeds)} seeds, {requests} requests, {crashed.total()} crashes at {len(crashed)} fault points, {len(failed)} failed:"
        f" {failed}\ncrashed: {', '.join(sorted(crashed))}\n"
        f"met: {', '.join(f'{count} {what}' for what, count in sorted(come_by.items()))}\n"
    )
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=100, metavar="N", help="how many scenarios to run (default: 100)"
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    parser.add_argument("--digest", action="store_true", help="print a digest of each trace")
    return parser


def _tell(verdict: Verdict) -> None:
    lines = [verdict.scenario.describe(), *(f"  complaint: {each}" for each in verdict.complaints)]
    lines += [f"  reproduce: {PROGRAM} --seed {verdict.scenario.seed} --trace", ""]
    sys.stdout.write("\n".join(lines))
    sys.stdout.flush()


if __name__ == "__main__":
    virtual.fixed_hash_seed(["-m", "chaos.simulation", *sys.argv[1:]])
    sys.exit(main())
