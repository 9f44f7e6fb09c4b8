"""Python models for the pictures, which tell a file of what they execute, and how that file is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PROGRAM: Final = """\
import json
import os
import signal
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(self, what, **more):
        line = json.dumps(dict(what=what, pid=os.getpid(), at=time.monotonic(), **more))
        os.write(self.log, line.encode() + b"\\n")

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "X").as_numpy() for each in requests]
        numbers = [int(x) for each in inputs for x in each.ravel()]
        self.tell("begin", numbers=numbers)
        answers = [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x)]) for x in inputs]
{body}
        self.tell("end")
        return answers
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What a worker executed: one batch. `end` is None if the worker died of it, or under it."""

    pid: int
    begin: float
    end: float | None
    numbers: Sequence[int]


def written(
    models: Path, name: str, log: Path, *, body: str, configuration: str, versions: Sequence[int] = (1,)
) -> None:
    """Write a model of one input and one output; `body` has the lines that its `execute` runs."""
    indented = "".join(f"        {each}\n" for each in body.splitlines()).rstrip("\n")
    for version in versions:
        folder = models / name / str(version)
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(_PROGRAM.format(log=str(log), body=indented))
    (models / name / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n' + configuration
    )


def executions(log: Path) -> Sequence[Execution]:
    """Return what was told so far, in the order in which it began."""
    found: list[Execution] = []
    begun: dict[int, dict[str, Any]] = {}

    def ends(pid: int, at: float | None) -> None:
        if (first := begun.pop(pid, None)) is not None:
            found.append(Execution(pid=pid, begin=first["at"], end=at, numbers=first["numbers"]))

    for each in map(json.loads, log.read_text().splitlines()):
        ends(each["pid"], each["at"] if each["what"] == "end" else None)
        if each["what"] == "begin":
            begun[each["pid"]] = each
    for pid in [*begun]:
        ends(pid, None)
    return sorted(found, key=lambda each: each.begin)
