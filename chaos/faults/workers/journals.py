"""What a worker of the workload is doing now, as its journal shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from chaos.faults.targets import Instance
from chaos.workload.control import journal_folder

_TAIL: Final = 4096  # bytes, in which the last line is


def at_work(run: Path, instance: Instance) -> bool:
    """Whether a worker has begun with something and not ended it: the last line that it wrote is a beginning.

    A worker without a journal has not.
    """
    try:
        with (journal_folder(run) / f"{instance.model}-{instance.pid}.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return False
    return bool(lines) and not json.loads(lines[-1])["end"]
