"""Measure whether quick tests take every branch of the pure modules.

`python -m tests.house.coverage` runs the tests of the folders in `TESTS` that import
a pure module, need no loop, and are neither `system` nor `slow`. It prints what they miss: file, lines, and branches as
`from->to`. The exit status is 1 if they miss anything.

The pure modules are the sources of the `import-linter` contract in `pyproject.toml`. A line that no test can
reach is marked `# pragma: no cover: ` and a reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
CONTRACT: Final = "pure modules know no clock, loop or log"
TESTS: Final = (
    *("tests/actors", "tests/protocols", "tests/engine/audit", "tests/engine/identity"),
    "tests/engine/cli/migrate",
    "tests/engine/observability/spans",
    "tests/engine/repository/bare",
    "tests/engine/worker/backends/fil",
    "tests/engine/worker/text",
)
_LOOP: Final = re.compile(r"^import trio\b|^async def test", re.MULTILINE)
_OPTIONS: Final = (
    *("-n", "0", "-m", "not system and not slow", "-p", "no:cacheprovider", "--quiet"),
    *("-r", "fE"),
)
APART: Final = ("_pb2.py", "/proto/generate.py")
"""Generated code, and the program that generates it."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Of one file: the lines that no test executes, and the branches that none takes, as `from->to`."""

    lines: tuple[int, ...]
    branches: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many there are of both."""
        return len(self.lines) + len(self.branches)

    def __str__(self) -> str:
        return ", ".join([*map(str, self.lines), *self.branches])


def pure_files() -> list[str]:
    """Return the files of the pure modules, relative to the root."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (names,) = (each["source_modules"] for each in contracts if each["name"] == CONTRACT)
    files = {path for name in names for path in _files_of(name)}
    return sorted(str(path.relative_to(ROOT)) for path in files)


def _files_of(name: str) -> Iterator[Path]:
    place = name.removesuffix(".**").replace(".", "/")
    files = [*ROOT.glob(f"{place}.py"), *ROOT.glob(f"{place}/**/*.py")]
    return (path for path in files if path.stat().st_size and not str(path).endswith(APART))


def concerned(files: list[str]) -> list[str]:
    """Return the tests that import one of these files' modules themselves, and need no loop.

    Those of a folder that has no other modules may need one.
    """
    modules = "|".join(re.escape(each.removesuffix(".py").replace("/", ".")) for each in files)
    imports = re.compile(rf"^ *(?:from|import) (?:{modules})\b", re.MULTILINE)
    tests = (path for folder in TESTS for path in sorted((ROOT / folder).rglob("test_*.py")))
    return [
        str(path.relative_to(ROOT))
        for path in tests
        if imports.search(text := path.read_text()) and (_of_pure(path, files) or not _LOOP.search(text))
    ]


def _of_pure(test: Path, files: list[str]) -> bool:
    folder = test.relative_to(ROOT / "tests").parent
    modules = [path for path in (ROOT / folder).glob("*.py") if path.stat().st_size]
    return bool(modules) and all(str(path.relative_to(ROOT)) in files for path in modules)


def measured(files: list[str]) -> dict[str, Missed]:
    """Run the tests, and return what they miss by file. Raises CalledProcessError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        data, report = f"--data-file={folder}/data", Path(folder, "report.json")
        command = ("run", data, f"--include={','.join(files)}", "-m", "pytest", *_OPTIONS)
        tests, lanes = concerned(files), min(os.cpu_count() or 1, 8)
        with ThreadPoolExecutor(lanes) as pool:
            # What pytest's own workers do would be traced as well.
            runs = [pool.submit(_coverage, *command, *tests[lane::lanes]) for lane in range(lanes)]
        for run in runs:
            run.result()
        _coverage("combine", "--quiet", data)
        _coverage("json", "--quiet", data, f"--include={','.join(files)}", "-o", str(report))
        found = json.loads(report.read_text())["files"]
    never = {"missing_lines": [1], "missing_branches": []}
    return {file: _missed(found.get(file, never)) for file in files}


def _coverage(*arguments: str) -> None:
    # A test runs three times as long where its branches are noted.
    environ = {**os.environ, "HYPOTHESIS_PROFILE": "few"}
    command = [sys.executable, "-m", "coverage", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    sys.stdout.write(ran.stdout)
    ran.check_returncode()


def _missed(entry: Any) -> Missed:
    lines = entry["missing_lines"]
    # A branch that begins or ends in a line that is missed besides says nothing more.
    branches = [each for each in entry["missing_branches"] if not {abs(line) for line in each} & {*lines}]
    return Missed(tuple(lines), tuple(f"{begin}->{end if end > 0 else 'exit'}" for begin, end in branches))


def main() -> int:
    """Measure, print what is missed, and return the exit status."""
    missed = measured(pure_files())
    for name, each in missed.items():
        if each.count:
            sys.stdout.write(f"{name}: {each.count} missed: {each}\n")
    return 1 if any(each.count for each in missed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
