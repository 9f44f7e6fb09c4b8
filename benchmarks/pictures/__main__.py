"""`python -m benchmarks.pictures`: pictures of the documents, drawn from runs of a server.

Each takes some seconds. Without names, all are drawn. They are written to `docs/pictures`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.pictures import canary, crash, kill, memory, request, scheduling, supervision
from benchmarks.subjects import CHECKOUT

FOLDER: Final = CHECKOUT / "docs" / "pictures"

PICTURES: Final[Mapping[str, Callable[[Path], str]]] = {
    "kill": lambda scratch: kill.drawn(kill.recorded(scratch)),
    "tree": lambda scratch: supervision.drawn(supervision.recorded(scratch)),
    "request": lambda scratch: request.drawn(request.recorded(scratch)),
    "crash": lambda scratch: crash.drawn(crash.recorded(scratch)),
    "canary": lambda scratch: canary.drawn(canary.recorded(scratch)),
    "scheduling": lambda scratch: scheduling.drawn(scheduling.recorded(scratch)),
    "memory": lambda scratch: memory.drawn(memory.recorded(scratch)),
}
"""What draws each of them, given an empty folder for its run."""


def main() -> int:
    """Draw those that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    names = parser.parse_args().names or [*PICTURES]
    for name in names:
        if name not in PICTURES:
            parser.error(f"there is no picture {name!r}; choose from {', '.join(PICTURES)}")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="picture-") as scratch:
            (FOLDER / f"{name}.svg").write_text(PICTURES[name](Path(scratch)), encoding="utf-8")
        print(f"docs/pictures/{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
