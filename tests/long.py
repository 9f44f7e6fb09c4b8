"""The long tier: what takes too long for every push.

    python -m tests.long [PART ...]

Parts run one after the other, each in processes of its own. The output of each goes to the terminal. At the end
a line for each part says whether it passed and how long it took. The exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTEST: Final = ("-m", "pytest", "--quiet")
FRAMEWORKS: Final = "tests/survival/test_survival_frameworks.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing to run: what it is for, and its commands."""

    help: str
    commands: tuple[tuple[str, ...], ...]
    environ: dict[str, str] = field(default_factory=dict)


PARTS: Final = {
    "compiled": Part(
        help="the whole suite on the compiled core, from `TRITIUM_COMPILE=1 pip install -v -e .`",
        commands=(PYTEST,),
        environ={"TRITIUM_TESTS_CORE": "compiled"},
    ),
    "python": Part(
        help="the whole suite on the core's Python source",
        commands=(PYTEST,),
        environ={"TRITIUM_TESTS_CORE": "python", "TRITIUM_PURE": "1"},
    ),
    "storms": Part(
        help="storms, leaks and campaigns at full length (tests marked `long`)",
        commands=((*PYTEST, "-m", "long", f"--ignore={FRAMEWORKS}"),),
        environ={"TRITIUM_TESTS_FRESH": "1"},
    ),
    "examples": Part(
        help="state machines and properties with all their Hypothesis examples, others each time",
        commands=((*PYTEST, "-m", "not system"),),
        environ={"HYPOTHESIS_PROFILE": "explore"},
    ),
    "fuzz": Part(
        help="random bytes at every parser, from the corpora of earlier findings",
        commands=(("-m", "tests.fuzz", "--inputs", "1000000"),),
    ),
    "simulation": Part(
        help="1,000 seeds of a whole server in virtual time",
        commands=(("-m", "chaos.simulation", "--seeds", "1000"),),
    ),
    "chaos": Part(
        help="ten minutes of faults under load, for seeds 1, 2 and 3",
        commands=tuple(
            ("-m", "chaos", "--minutes", "10", "--seed", str(seed), "--quiet") for seed in (1, 2, 3)
        ),
    ),
    "frameworks": Part(
        help="models on Ray and vLLM, in the environments that TRITIUM_TESTS_RAY and TRITIUM_TESTS_VLLM name",
        commands=((*PYTEST, "-m", "long", FRAMEWORKS, "--numprocesses=0"),),
    ),
    "mutations": Part(
        help="whether state machines and simulation notice faults put into the code",
        commands=(("-m", "chaos.mutations"),),
    ),
}


def main() -> int:
    """Run the parts that the command line names, or all, and return the exit status."""
    listed = "\n".join(f"  {name:12}{part.help}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.long",
        description="Run the long tier of tests.",
        epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
    asked = parser.parse_args().parts or list(PARTS)
    if unknown := [name for name in asked if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    results: dict[str, tuple[bool, float]] = {}
    for name in asked:
        part, began = PARTS[name], time.monotonic()
        sys.stdout.write(f"== {name}: {part.help}\n")
        sys.stdout.flush()
        done = [
            subprocess.run(
                [sys.executable, *command], cwd=ROOT, env={**os.environ, **part.environ}, check=False
            )
            for command in part.commands
        ]
        results[name] = not any(each.returncode for each in done), time.monotonic() - began
    for name, (passed, seconds) in results.items():
        sys.stdout.write(f"{name:12} {'passed' if passed else 'FAILED'} in {seconds / 60:.1f} min\n")
    return 0 if all(passed for passed, _ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
