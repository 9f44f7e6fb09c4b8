"""Tests on the Python of another environment, whose packages come before those of the tests.

    python -m tests.support.elsewhere VARIABLE [ARGUMENT OF PYTEST ...]

The variable names the environment's directory; without it nothing is run. Its Python must be of the same
minor version as this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_CODE: Final = (
    "import sys; sys.path.extend({paths!r}); import pytest; raise SystemExit(pytest.main(sys.argv[1:]))"
)


def main() -> int:
    """Run the tests; return pytest's exit status."""
    variable, *arguments = sys.argv[1:]
    named = os.environ.get(variable, "")
    if not named:
        sys.stdout.write(f"not run, as {variable} names no environment: {' '.join(arguments)}\n")
        return 0
    paths = [path for path in sys.path if path.endswith("-packages")]
    command = [str(Path(named) / "bin" / "python"), "-c", _CODE.format(paths=paths), *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
