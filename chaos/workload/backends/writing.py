"""Writes one model of each backend, each with its own framework."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from chaos.workload.answers import BITS
from chaos.workload.onnx_model import add_sub
from chaos.workload.repository import BESIDE, SOURCES, write_model
from engine.worker.compilers import c_compiler

_HERE: Final = Path(__file__).parent


def write_backends(folder: Path, kinds: Iterable[str], *, run: Path, backends: Path, tensorflow: str) -> None:
    """Write the models of these kinds, and into `backends` what serves those that bring a backend along.

    `tensorflow` is the directory of an environment that has TensorFlow. Raises OSError, and what the
    frameworks raise.
    """
    backends.mkdir(parents=True, exist_ok=True)
    writers: Mapping[str, Callable[[Path], None]] = {
        "exported": _exported,
        "torchscript": _torchscript,
        "openvino": _onnx,
        "fil": _forest,
        "tensorflow": partial(_saved_model, tensorflow),
        "library": lambda _: _library(backends / "adder"),
        "family": lambda _: _family(backends / "family"),
    }
    for kind in kinds:
        directory = write_model(folder, kind, run=run)
        writers[kind](directory / "1")
        if kind == "tensorflow":
            with (directory / "config.pbtxt").open("a") as config:
                config.write(
                    f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{tensorflow}" }} }}\n'
                )


def _onnx(version: Path) -> None:
    (version / "model.onnx").write_bytes(add_sub())


def _library(folder: Path) -> None:
    folder.mkdir()
    command = (c_compiler(os.environ), "-std=gnu11", "-O2", "-fPIC", "-shared", str(_HERE / "adder.c"))
    subprocess.run([*command, "-o", str(folder / "libtriton_adder.so")], check=True, timeout=120)


def _family(folder: Path) -> None:
    folder.mkdir()
    for name in BESIDE:
        shutil.copyfile(SOURCES / name, folder / name)
    shutil.copyfile(SOURCES / "echo.py", folder / "model.py")


def _saved_model(environment: str, version: Path) -> None:
    command = (f"{environment}/bin/python", str(_HERE / "tensorflow_adder.py"))
    subprocess.run([*command, str(version / "model.savedmodel")], check=True, capture_output=True)


def _forest(version: Path) -> None:
    """A tree for each bit of the number, which adds its worth."""
    build: Any = importlib.import_module("treelite.model_builder")
    builder = build.ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=build.Metadata(
            num_feature=BITS,
            task_type="kRegressor",
            average_tree_output=False,
            num_target=1,
            num_class=[1],
            leaf_vector_shape=(1, 1),
        ),
        tree_annotation=build.TreeAnnotation(num_tree=BITS, target_id=[0] * BITS, class_id=[0] * BITS),
        postprocessor=build.PostProcessorFunc(name="identity"),
        base_scores=[0.0],
    )
    for bit in range(BITS):
        builder.start_tree()
        builder.start_node(0)
        builder.numerical_test(
            feature_id=bit, threshold=0.5, default_left=True, opname="<", left_child_key=1, right_child_key=2
        )
        builder.end_node()
        for key, worth in ((1, 0.0), (2, float(1 << bit))):
            builder.start_node(key)
            builder.leaf(worth)
            builder.end_node()
        builder.end_tree()
    builder.commit().serialize(str(version / "checkpoint.tl"))


def _exported(version: Path) -> None:
    torch: Any = importlib.import_module("torch")
    adders: Any = importlib.import_module("chaos.workload.backends.torch_adders")
    examples = torch.full((2, 1), 9, dtype=torch.int32), torch.full((2, 1), 7, dtype=torch.int32)
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(adders.Adder(), examples, dynamic_shapes=({0: rows}, {0: rows}))
    torch.export.save(program, version / "model.pt2")


def _torchscript(version: Path) -> None:
    torch: Any = importlib.import_module("torch")
    adders: Any = importlib.import_module("chaos.workload.backends.torch_adders")
    torch.jit.script(adders.LoopingAdder()).save(version / "model.pt")
