"""The long tier: what takes too long for every push.

    python -m tests.long [PART ...]

Parts run one after the other, each in processes of its own. The output of each goes to the terminal. At the
end a line for each part says whether it passed, how long it took, and what of it could not be installed, and
was not run. The exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.environments import HELM, IMAGES, KSERVE, RAY, TENSORFLOW, VLLM, Environment, NotMade

ROOT: Final = Path(__file__).parents[1]
PYTEST: Final = ("-m", "pytest", "--quiet")
FRAMEWORKS: Final = "tests/survival/test_survival_frameworks.py"
LANGUAGES: Final = (
    "tests/conformance/test_language_engines.py",
    "tests/examples/test_llm_examples.py",
    "tests/examples/test_gallery.py",
)
VLLM_ENGINE: Final = "tests/engine/worker/language/test_vllm_engine.py"
OF_TENSORFLOW: Final = "tests/engine/worker/backends/tensorflow"
SERVED_BY_TENSORFLOW: Final = "tests/conformance/test_tensorflow_models.py"
OF_KSERVE: Final = "tests/conformance/test_kserve_clients.py"
CHART: Final = "tests/deploy/helm"
EVERY_BACKEND: Final = (
    "tests/conformance/test_every_backend.py",
    "tests/conformance/test_damaged_models.py",
)
IMAGE: Final = ("tests/deploy/test_locks.py", "tests/deploy/test_image.py")
BEHIND_PROXIES: Final = "tests/engine/fleet/proxies/test_requests_through_proxies.py"
IN_RAY: Final = "tests/engine/fleet/launching/test_launching_in_ray.py"
_ELSEWHERE: Final = (
    *(
        FRAMEWORKS,
        *LANGUAGES,
        VLLM_ENGINE,
        OF_TENSORFLOW,
        SERVED_BY_TENSORFLOW,
        OF_KSERVE,
        CHART,
        IN_RAY,
        *IMAGE,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing to run: what it is for, and its commands."""

    help: str
    commands: tuple[tuple[str, ...], ...]
    environ: dict[str, str] = field(default_factory=dict)
    environments: tuple[Environment, ...] = ()
    """What it needs beside the tests' own packages. It is made for the part if no variable names it."""


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
        commands=((*PYTEST, "-m", "long", *(f"--ignore={each}" for each in _ELSEWHERE)),),
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
    "fleet": Part(
        help="rolls over four servers, a controller that is killed, and servers that end behind HAProxy,"
        " which has to be installed; Envoy is asked where it is",
        commands=(
            (*PYTEST, "-m", "long", "--numprocesses=0", BEHIND_PROXIES),
            ("-m", "chaos.fleet"),
            ("-m", "chaos.fleet", "--behind", "haproxy", "--seconds", "300"),
        ),
    ),
    "deaths": Part(
        help="five minutes of engines killed under streams of `openai` clients, twelve a minute, by SIGKILL"
        " and by SIGSEGV",
        commands=tuple(
            ("-m", "benchmarks.llm_deaths", "--seconds", "300", "--whole", "2", "--signal", signal)
            for signal in ("KILL", "SEGV")
        ),
    ),
    "frameworks": Part(
        help="models on Ray and vLLM, in the environments that TRITIUM_TESTS_RAY and TRITIUM_TESTS_VLLM name",
        commands=((*PYTEST, "-m", "long", FRAMEWORKS, "--numprocesses=0"),),
    ),
    "languages": Part(
        help="language models on transformers and on vLLM, which is installed for it unless"
        f" {VLLM.variable} names an environment",
        commands=(
            (*PYTEST, "-m", "long or not long", "--numprocesses=0", *LANGUAGES),
            (
                *("-m", "tests.support.elsewhere", VLLM.variable),
                *("--quiet", "-m", "long", "--numprocesses=0", VLLM_ENGINE),
            ),
        ),
        environments=(VLLM,),
    ),
    "tensorflow": Part(
        help="models on TensorFlow, which is installed for it unless"
        f" {TENSORFLOW.variable} names an environment",
        commands=(
            (
                *("-m", "tests.support.elsewhere", TENSORFLOW.variable),
                *("--quiet", "-m", "long or not long", "--numprocesses=0", OF_TENSORFLOW),
            ),
            (*PYTEST, "-m", "long", "--numprocesses=0", SERVED_BY_TENSORFLOW),
            (*PYTEST, "-m", "long or not long", "--numprocesses=0", "-k", "tensorflow", *EVERY_BACKEND),
        ),
        environments=(TENSORFLOW,),
    ),
    "kserve": Part(
        help="KServe's own client and models, which are installed for it unless"
        f" {KSERVE.variable} names an environment",
        commands=((*PYTEST, "-m", "long", "--numprocesses=0", OF_KSERVE),),
        environments=(KSERVE,),
    ),
    "chart": Part(
        help="the chart by Helm's own code and by the schemas of Kubernetes, which are installed for it"
        f" unless {HELM.variable} names an environment; TRITIUM_TESTS_CRDS may name a folder with"
        " definitions of custom resources",
        commands=(
            (
                *("-m", "tests.support.elsewhere", HELM.variable),
                *("--quiet", "-m", "long", "--numprocesses=0", CHART),
            ),
        ),
        environments=(HELM,),
    ),
    "ray": Part(
        help="servers that a cluster of Ray starts, which is installed for it unless"
        f" {RAY.variable} names an environment",
        commands=((*PYTEST, "-m", "long", "--numprocesses=0", IN_RAY),),
        environments=(RAY,),
    ),
    "image": Part(
        help="the container image in its variants, built and run without a daemon (root, buildah, runc,"
        " mmdebstrap), and wheels for arm64",
        commands=((*PYTEST, "-m", "long", "--numprocesses=0", *IMAGE),),
        environments=(IMAGES,),
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
    results: dict[str, tuple[bool, float, list[str]]] = {}
    for name in asked:
        part, began = PARTS[name], time.monotonic()
        sys.stdout.write(f"== {name}: {part.help}\n")
        sys.stdout.flush()
        with tempfile.TemporaryDirectory(prefix="tritium-long-") as folder:
            missing: list[str] = []
            environ = {**os.environ, **part.environ, **dict(_made(part, Path(folder), missing))}
            done = [
                subprocess.run([sys.executable, *command], cwd=ROOT, env=environ, check=False)
                for command in part.commands
            ]
        results[name] = not any(each.returncode for each in done), time.monotonic() - began, missing
    for name, (passed, seconds, missing) in results.items():
        sys.stdout.write(f"{name:12} {'passed' if passed else 'FAILED'} in {seconds / 60:.1f} min\n")
        sys.stdout.writelines(f"{'':12} not installed, so not run: {each}\n" for each in missing)
    return 0 if all(passed for passed, _, _ in results.values()) else 1


def _made(part: Part, folder: Path, missing: list[str]) -> Iterator[tuple[str, str]]:
    """Yield variables that name the environments that a part needs; those that are not named are made.

    What can't be made is added to `missing`.
    """
    for environment in part.environments:
        if environment.named:
            continue
        sys.stdout.write(f"making an environment with {environment.name}\n")
        sys.stdout.flush()
        try:
            yield environment.variable, environment.make(folder)
        except NotMade as error:
            sys.stdout.write(f"{error}\n")
            missing.append(str(error))


if __name__ == "__main__":
    sys.exit(main())
