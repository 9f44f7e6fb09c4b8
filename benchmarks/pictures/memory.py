"""What the memory of workers is made of: Python, the framework, the model, and shared regions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import parsers, processes
from benchmarks.payloads import encode
from benchmarks.pictures import ink
from benchmarks.subjects import CHECKOUT, READY_TIMEOUT, Subject, server, tree

_SIDE: Final = 4096  # of a square matrix of FP32: 64 MiB
_ROWS: Final = 512  # of a request: 8 MiB in, and 8 MiB out
_MODELS: Final = {"python": "Python (numpy)", "onnx": "ONNX Runtime", "torch": "PyTorch"}
_BACKENDS: Final = {"python": "python", "onnx": "onnxruntime", "torch": "pytorch"}
_CONFIGURATION: Final = """\
{kind}
max_batch_size: {rows}
input [ {{ name: "{x}" data_type: TYPE_FP32 dims: [ {side} ] }} ]
output [ {{ name: "{y}" data_type: TYPE_FP32 dims: [ {side} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
_PROGRAM: Final = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.ones(({side}, {side}), np.float32)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "X").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x @ self.weights)]) for x in inputs]
"""
_KINDS: Final = ("Python", "framework", "model", "shared regions")
_COLOURS: Final = (ink.GREY, ink.BLUE, ink.AMBER, ink.GREEN)
_LEFT, _RIGHT = ink.MARGIN, ink.WIDTH - 30.0
_TOP, _ROW, _TALL = 134.0, 84.0, 34.0
_LEAST: Final = 0.5  # MiB that are worth a word
_FACTS: Final = "one worker each, the same model: a matrix of 64 MiB, requests of 8 MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Resident bytes of a process, without and with shared regions."""

    own: int
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The worker of each model, and the spare of its backend, which has no model."""

    workers: Mapping[str, Resident]
    spares: Mapping[str, Resident]

    def split(self, model: str) -> Sequence[float]:
        """Return MiB of each of `_KINDS`."""
        python, spare, worker = self.spares["python"].own, self.spares[model].own, self.workers[model]
        framework = max(0, spare - python)
        return [each / 2**20 for each in (python, framework, worker.own - python - framework, worker.shared)]


def recorded(scratch: Path) -> Run:
    """Serve one model by three backends, use them, and measure workers and spares."""
    models = scratch / "models"
    _write_models(models)
    with server("tritium", CHECKOUT, models, scratch) as subject:
        for name in _MODELS:
            x = "INPUT__0" if name == "torch" else "X"
            for _ in range(2):
                subject.infer(name, encode({x: np.ones((_ROWS, _SIDE), np.float32)}, "binary"))
        snapshot = tree(subject)
        workers = {name: parsers.worker_pids(snapshot, name)[0] for name in _MODELS}
        spares = _spares(subject, {*workers.values()})
        return Run(
            workers={name: measured(pid) for name, pid in workers.items()},
            spares={name: measured(spares[name]) for name in _MODELS},
        )


def _write_models(models: Path) -> None:
    # Frameworks are imported where they are used: drawing needs none.
    import onnx
    import torch
    from onnx import TensorProto, helper, numpy_helper

    kinds = {
        "python": 'backend: "python"',
        "onnx": 'backend: "onnxruntime"',
        "torch": 'platform: "pytorch_libtorch"',
    }
    for name, kind in kinds.items():
        x, y = ("INPUT__0", "OUTPUT__0") if name == "torch" else ("X", "Y")
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text(
            _CONFIGURATION.format(kind=kind, rows=_ROWS, x=x, y=y, side=_SIDE)
        )
    (models / "python" / "1" / "model.py").write_text(_PROGRAM.format(side=_SIDE))
    weights = np.ones((_SIDE, _SIDE), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["X", "W"], ["Y"])],
        "matrix",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["rows", _SIDE])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["rows", _SIDE])],
        [numpy_helper.from_array(weights, "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, models / "onnx" / "1" / "model.onnx")
    layer = torch.nn.Linear(_SIDE, _SIDE, bias=False)
    torch.jit.trace(layer, torch.ones(1, _SIDE)).save(models / "torch" / "1" / "model.pt")


def _spares(subject: Subject, workers: set[int]) -> Mapping[str, int]:
    """Wait for the spare of each backend; return their processes."""
    deadline = time.monotonic() + READY_TIMEOUT
    found: dict[str, int] = {}
    while len(found) < len(_BACKENDS) and time.monotonic() < deadline:
        time.sleep(0.5)
        for each in processes.family(subject.pid or 0):
            command = Path(f"/proc/{each.pid}/cmdline").read_text()
            for name, backend in _BACKENDS.items():
                if each.pid not in workers and f".backends.{backend}" in command:
                    found[name] = each.pid
    time.sleep(2.0)  # they import their frameworks
    return found


def measured(pid: int) -> Resident:
    """Return what a process has in memory."""
    return resident(Path(f"/proc/{pid}/smaps").read_text())


def resident(smaps: str) -> Resident:
    """Read the kernel's list of mappings. Shared regions are files that lie in memory alone."""
    own = shared = 0
    is_shared = False
    for row in smaps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", row):
            is_shared = "/memfd:" in row or "/dev/shm/" in row
        elif row.startswith("Rss:"):
            amount = int(row.split()[1]) * 1024
            own, shared = (own, shared + amount) if is_shared else (own + amount, shared)
    return Resident(own=own, shared=shared)


def drawn(run: Run) -> str:
    """Return the picture as SVG."""
    told = (
        "Resident memory. Python and the framework are there before a model is: they are measured in a spare"
        " worker. The model is its weights and what it works with. Shared regions hold inputs and outputs;"
        " the server has the same pages."
    )
    splits = {name: run.split(name) for name in _MODELS}
    most = max(sum(split) for split in splits.values())
    parts = [ink.text(ink.MARGIN, 58, _FACTS, fill=ink.GREY), *_legend(88)]
    for place, (name, split) in enumerate(splits.items()):
        parts += _bar(_TOP + _ROW * place, _MODELS[name], split, most)
    bottom = _TOP + _ROW * len(splits)
    parts.append(ink.paragraph(ink.MARGIN, bottom + 6, told))
    height = bottom + 6 + ink.LEADING * (len(ink.broken(told)) - 1) + 16
    numbers = " ".join(f"{_MODELS[name]}: {_told(split)}." for name, split in splits.items())
    title = "What a worker's memory is made of"
    return ink.picture(
        height, title, f"{_FACTS}. {numbers} {told}", "python -m benchmarks.pictures memory", parts
    )


def _told(split: Sequence[float]) -> str:
    return ", ".join(f"{kind} {amount:.0f} MiB" for kind, amount in zip(_KINDS, split, strict=True))


def _bar(top: float, name: str, split: Sequence[float], most: float) -> Iterator[str]:
    yield ink.text(_LEFT, top, name, size=ink.BODY, bold=True)
    yield ink.text(_RIGHT, top, f"{sum(split):.0f} MiB", size=ink.BODY, bold=True, anchor="end")
    x = _LEFT
    for colour, amount in zip(_COLOURS, split, strict=True):
        wide = amount / most * (_RIGHT - _LEFT)
        told = f"{amount:.0f}"
        if amount >= _LEAST:
            yield ink.box(x, top + 10, wide - 1.5, _TALL, fill=colour, radius=2)
        if _has_room(amount, most):
            yield ink.text(
                x + wide / 2, top + 10 + _TALL / 2 + 5.5, told, bold=True, fill=ink.PAPER, anchor="middle"
            )
        x += wide
    rest = [
        f"{kind} {amount:.0f}"
        for kind, amount in zip(_KINDS, split, strict=True)
        if amount >= _LEAST and not _has_room(amount, most)
    ]
    if rest:
        yield ink.text(_LEFT, top + 10 + _TALL + 19, ", ".join(rest), fill=ink.GREY)


def _has_room(amount: float, most: float) -> bool:
    """Whether an amount can be written in its part of a bar."""
    return amount / most * (_RIGHT - _LEFT) > ink.measure(f"{amount:.0f}", ink.SMALL, bold=True) + 6


def _legend(y: float) -> Iterator[str]:
    x = ink.MARGIN
    for kind, colour in zip(_KINDS, _COLOURS, strict=True):
        yield ink.box(x, y - 12, 16, 13, fill=colour)
        yield ink.text(x + 22, y, kind)
        x += 22 + ink.measure(kind, ink.SMALL) + 18
