"""Look for bytes that break a rule: `python -m tests.fuzz --inputs 1000000 --seed 7`.

If any do, it exits with 1 and leaves a file. `python -m tests.fuzz --replay FILE --target NAME` checks one
file again.
"""

import argparse
import resource
import sys
import time
import traceback
from pathlib import Path

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from tests.fuzz.campaign import Finding, Tally, Target, campaign, corpus_of, replay
from tests.fuzz.targets import TARGETS

_GROWTH = 64 << 10  # KiB of memory by which a campaign may grow behind its first tenth


class _Progress:
    """A line every few seconds, and an eye on the process's memory."""

    def __init__(self, target: Target, inputs: int) -> None:
        self._name = target.name
        self._inputs = inputs
        self._began = self._said = time.monotonic()
        self._early = 0

    def __call__(self, tally: Tally) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if tally.inputs * 10 <= self._inputs:
            self._early = memory
        elif memory > self._early + _GROWTH:
            raise MemoryError(
                f"{self._name}: {memory - self._early} KiB more than after a tenth of the inputs"
            )
        now = time.monotonic()
        if now - self._said >= 5.0:
            self._said = now
            print(
                f"{self._name}: {tally.inputs} of {self._inputs}, {self._rate(tally, now):.0f}/s", flush=True
            )

    def report(self, tally: Tally) -> None:
        """Say what came of it all."""
        rate = self._rate(tally, time.monotonic())
        print(f"{self._name}: {tally.inputs} inputs, {tally.octets} bytes, {rate:.0f}/s")
        for outcome, count in tally.outcomes.most_common():
            print(f"  {count:9d} {outcome}")

    def _rate(self, tally: Tally, now: float) -> float:
        return tally.inputs / max(now - self._began, 1e-9)


def main() -> int:
    """Run the campaigns that the command line asks for."""
    options = _options()
    targets = [TARGETS[name] for name in options.target or TARGETS]
    try:
        if options.replay:
            for target in targets:
                print(f"{target.name}: {replay(target, options.replay.read_bytes())}")
            return 0
        for target in targets:
            _run(target, options.inputs // len(targets), options.seed)
    except Finding as finding:
        _keep(finding, options.findings)
        return 1
    return 0


def _run(target: Target, inputs: int, seed: int) -> None:
    print(f"{target.name}: {inputs} inputs, seed {seed}, {len(corpus_of(target))} in the corpus", flush=True)
    progress = _Progress(target, inputs)
    progress.report(campaign(target, inputs=inputs, seed=seed, progress=progress))


def _keep(finding: Finding, folder: Path) -> None:
    traceback.print_exception(finding)
    path = folder / f"finding-{finding.target}.bin"
    path.write_bytes(finding.octets)
    print(f"check it again with --target {finding.target} --replay {path}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="over all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="may be repeated; default: all"
    )
    parser.add_argument("--replay", type=Path, help="check one file and nothing else")
    parser.add_argument("--findings", type=Path, default=Path(), help="where a finding's file goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
