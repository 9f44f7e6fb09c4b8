"""What hardware there is, seen without a framework."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

_GPU_NODE = re.compile(r"nvidia\d+")


def gpu_count(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Return how many NVIDIA GPUs workers may use.

    These are the driver's device nodes, narrowed by `CUDA_VISIBLE_DEVICES`.
    """
    try:
        nodes = sum(1 for node in devices.iterdir() if _GPU_NODE.fullmatch(node.name))
    except OSError:
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nodes
    # As the driver does: what follows an invalid entry is not seen.
    listed = takewhile(lambda each: each and not each.startswith("-"), map(str.strip, visible.split(",")))
    return min(nodes, sum(1 for _ in listed))
