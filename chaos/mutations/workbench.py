"""A copy of the project with one bug in it, and the detectors that are to find it.

The copy is what gets imported: detectors run in it as processes of their own, with its root ahead of
everything else.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.mutations.operators import Mutant

ROOT: Final = Path(__file__).parents[2]
_COPIED: Final = ("actors", "protocols", "engine", "chaos", "tests", "benchmarks", "examples")
_FILES: Final = ("pyproject.toml", "README.md")
_LAST_WORDS: Final = 4000  # characters of a detector's output that are looked through


@dataclass(frozen=True, slots=True)
class Detector:
    """Something that ought to notice a bug: a command that succeeds if there is none.

    `names_itself` finds in the command's output which test or seed has noticed the bug.
    """

    name: str
    command: Sequence[str]
    # Seconds; a command that takes longer has noticed the bug, because without a bug it does not.
    patience: float
    names_itself: str


@dataclass(frozen=True, slots=True)
class Caught:
    """What has noticed a mutant, if anything has, and after how many seconds from the detector's start."""

    mutant: Mutant
    detector: str = ""
    by: str = ""
    seconds: float = 0.0


@contextmanager
def workbench(folder: Path, mutant: Mutant | None) -> Iterator[Path]:
    """Copy the project to `folder` and put a bug in."""
    for name in _COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in _FILES:
        shutil.copy(ROOT / name, folder / name)
    if mutant is not None:
        file = folder / mutant.file
        file.write_text(mutant.applied(file.read_text()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def set_on(detectors: Sequence[Detector], mutant: Mutant, root: Path) -> Caught:
    """Run the detectors, one after the other, in the copy at `root` until one notices."""
    for detector in detectors:
        began = time.monotonic()
        noticed = notices(detector, root)
        if noticed is not None:
            return Caught(mutant, detector.name, noticed, time.monotonic() - began)
    return Caught(mutant)


def notices(detector: Detector, root: Path) -> str | None:
    """Run a detector in the copy at `root`.

    Returns what has noticed something there, None if nothing has.
    """
    environ = {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'engine/worker/authoring/public'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "unshrunk",
    }
    with (root / "detector.out").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *detector.command],
            cwd=root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(detector.patience)
        except subprocess.TimeoutExpired:
            return f"not done within {detector.patience:g} s"
        finally:
            _end(process)
        if status == 0:
            return None
        output.seek(0)
        text = output.read()
    found = re.search(detector.names_itself, text)
    return found[1] if found else f"exit status {status}: {text[-_LAST_WORDS:].strip().splitlines()[-1]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a detector and all that it has started: they are one session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
