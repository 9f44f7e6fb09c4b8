"""A framework without a server, in a process of its own.

    python -m benchmarks.backends.bare BACKEND VERSION-DIRECTORY THREADS

It loads the model, prints a line of JSON with what that took, then answers each line `COUNT ROWS` with the
CPU time of so many inferences of so many rows, until its input ends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.backends.frameworks import FRAMEWORKS, WIDTH


def main(backend: str, version: str, threads: str) -> None:
    """Load and run one model."""
    started = time.perf_counter(), time.process_time()
    infer = FRAMEWORKS[backend].load(Path(version), int(threads))
    told = {"wall": time.perf_counter() - started[0], "cpu": time.process_time() - started[1]}
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        count, rows = map(int, line.split())
        x = np.random.default_rng(0).normal(size=(rows, WIDTH)).astype(np.float32)
        begun = time.process_time()
        for _ in range(count):
            infer(x)
        print(json.dumps({"cpu": time.process_time() - begun}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
