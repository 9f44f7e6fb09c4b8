"""The operator tests that ship in the `onnx` package, and what a framework makes of them by itself.

A case is a model with inputs and reference outputs. Those on disk (`stored`) were exported by PyTorch; those
of each operator (`generated`) are made when they are asked for, which takes half a minute for all.

    python -m tests.support.onnx_cases FRAMEWORK FOLDER

runs the cases in `FOLDER` on a framework in that process, without a server, and leaves beside each what came
of it. It is a process of its own, since a model may be the end of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.backend.test
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper

from actors.values.datatypes import DataType

ROOT = Path(__file__).parents[2]
DATA = Path(onnx.backend.test.__file__).parent / "data"
STORED = ("pytorch-converted", "pytorch-operator", "simple")
Arrays = Mapping[str, Any]

_DATATYPES: Mapping[int, DataType] = {
    TensorProto.BOOL: DataType.BOOL,
    TensorProto.UINT8: DataType.UINT8,
    TensorProto.UINT16: DataType.UINT16,
    TensorProto.UINT32: DataType.UINT32,
    TensorProto.UINT64: DataType.UINT64,
    TensorProto.INT8: DataType.INT8,
    TensorProto.INT16: DataType.INT16,
    TensorProto.INT32: DataType.INT32,
    TensorProto.INT64: DataType.INT64,
    TensorProto.FLOAT16: DataType.FP16,
    TensorProto.FLOAT: DataType.FP32,
    TensorProto.DOUBLE: DataType.FP64,
    TensorProto.STRING: DataType.BYTES,
}
_WITHOUT_TEXT = ("openvino",)
_UNWRITTEN = {"openvino": ("test_tile",)}
"""Cases in whose answers a framework leaves memory unwritten, without a server too."""


@dataclass(frozen=True)
class Case:
    """One model, and pairs of its inputs and its reference outputs, each in the graph's order."""

    name: str
    model: ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    def inputs(self, at: int) -> Arrays:
        """Return one set's inputs by name."""
        given = [port.name for port in self.taken]
        return dict(zip(given, self.data[at][0], strict=True))

    def outputs(self, at: int) -> Arrays:
        """Return one set's reference outputs by name."""
        return dict(zip([port.name for port in self.model.graph.output], self.data[at][1], strict=True))

    @property
    def taken(self) -> list[ValueInfoProto]:
        """The graph's inputs without those that have a value of their own."""
        own = {tensor.name for tensor in self.model.graph.initializer}
        return [port for port in self.model.graph.input if port.name not in own]


def stored(kinds: Sequence[str] = STORED) -> Iterator[Case]:
    """Yield the cases on disk."""
    for kind in kinds:
        for folder in sorted(path for path in (DATA / kind).iterdir() if path.is_dir()):
            model = onnx.load(folder / "model.onnx")
            sets = sorted(folder.glob("test_data_set_*"))
            types = [port.type for port in model.graph.input], [port.type for port in model.graph.output]
            if any(not each.HasField("tensor_type") for side in types for each in side):
                continue
            data = [(_arrays(each, "input"), _arrays(each, "output")) for each in sets]
            yield Case(folder.name, model, data, 1e-3, 1e-5)


def _arrays(folder: Path, side: str) -> list[Any]:
    files = sorted(folder.glob(f"{side}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [numpy_helper.to_array(TensorProto.FromString(path.read_bytes())) for path in files]


def generated() -> list[Case]:
    """Return the cases of single operators."""
    from onnx.backend.test.loader import load_model_tests  # it makes them all, and numpy warns of some

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = load_model_tests(kind="node")
    return [
        Case(each.name, each.model, each.data_sets or [], each.rtol, max(each.atol, 1e-5))
        for each in sorted(made, key=lambda case: case.name)
        if each.model is not None
    ]


def why_not(case: Case, backend: str) -> str:
    """Return why a case can't be a request to a model of `backend`; nothing if it can."""
    ports = [*case.taken, *case.model.graph.output]
    if case.name in _UNWRITTEN.get(backend, ()):
        return "the framework answers with what it has not written"
    if not ports or not case.taken or not case.data:
        return "no inputs"
    if any(not port.type.HasField("tensor_type") for port in ports):
        return "sequences, maps and optional tensors"
    kinds = {_DATATYPES.get(port.type.tensor_type.elem_type) for port in ports}
    if None in kinds:
        return "datatypes that requests don't have (bf16 is tested elsewhere)"
    if DataType.BYTES in kinds and backend in _WITHOUT_TEXT:
        return "text"
    dims = [dim for port in ports for dim in port.type.tensor_type.shape.dim]
    if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in dims):
        return "a dimension of 0, which a configuration can't say"
    for taken, given in case.data:
        if len(taken) != len(case.taken) or len(given) != len(case.model.graph.output):
            return "optional inputs and outputs"
        if not all(isinstance(each, np.ndarray | np.generic) for each in (*taken, *given)):
            return "sequences, maps and optional tensors"
    return ""


def configuration(case: Case, backend: str) -> str:
    """Return a `config.pbtxt` that names the ports of a case, without batching."""
    lines = [f'backend: "{backend}"', 'default_model_filename: "model.onnx"', "instance_group { count: 1 }"]
    for side, ports, ranks in (
        ("input", case.taken, case.data[0][0]),
        ("output", case.model.graph.output, case.data[0][1]),
    ):
        for port, array in zip(ports, ranks, strict=True):
            datatype = _DATATYPES[port.type.tensor_type.elem_type].config_name
            dims = ", ".join(map(str, _dims(port, np.ndim(array)))) or "1"
            lines.append(f'{side} {{ name: "{port.name}" data_type: {datatype} dims: [ {dims} ] }}')
    return "\n".join(lines)


def _dims(port: ValueInfoProto, rank: int) -> list[int]:
    shape = port.type.tensor_type
    if not shape.HasField("shape") or len(shape.shape.dim) != rank:
        return [-1] * rank
    return [dim.dim_value if dim.dim_value > 0 else -1 for dim in shape.shape.dim]


# -- what comes of a case


def text_as_bytes(array: Any) -> Any:
    """Return an array as requests carry it: text as bytes in an object array, a scalar as one element."""
    array = np.atleast_1d(np.asarray(array))
    if array.dtype.kind not in "OUST":
        return array
    flat = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel()]
    out = np.empty(len(flat), object)
    out[:] = flat
    return out.reshape(array.shape)


def agree(ours: Arrays, theirs: Arrays, *, rtol: float, atol: float) -> bool:
    """Whether outputs are equal within tolerances, infinities and NaNs included."""
    return ours.keys() == theirs.keys() and all(
        _equal(text_as_bytes(ours[name]), text_as_bytes(theirs[name]), rtol, atol) for name in theirs
    )


def _equal(ours: Any, theirs: Any, rtol: float, atol: float) -> bool:
    if ours.shape != theirs.shape or (ours.dtype != theirs.dtype and object in (ours.dtype, theirs.dtype)):
        return False
    if ours.dtype == object or ours.dtype == bool:
        return bool((ours == theirs).all())
    return bool(np.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True))


# -- a framework by itself


def save(case: Case, folder: Path) -> None:
    """Write a case for `bare`."""
    folder.mkdir(parents=True)
    onnx.save(case.model, folder / "model.onnx")
    for at in range(len(case.data)):
        arrays: dict[str, Any] = {f"_{name}": np.asarray(each) for name, each in case.inputs(at).items()}
        np.savez(folder / f"in{at}.npz", **arrays)


def bare(framework: str, folder: Path) -> None:
    """Run all cases in `folder` on a framework. If a process dies, another goes on behind that case."""
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.onnx_cases", framework, str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        open_cases = [each for each in sorted(folder.iterdir()) if not (each / "told.json").exists()]
        if not open_cases:
            return
        (open_cases[0] / "told.json").write_text(json.dumps({"error": f"it ended: {done.returncode}"}))


def bare_outputs(folder: Path, at: int) -> Arrays | str:
    """Return what a framework made of one set of inputs, or the error."""
    told = json.loads((folder / "told.json").read_text())
    if told["error"]:
        return str(told["error"])
    with np.load(folder / f"out{at}.npz", allow_pickle=True) as file:
        return {name[1:]: file[name] for name in file.files}


def _run_all(framework: str, folder: Path) -> None:
    run = {"openvino": _on_openvino, "onnxruntime": _on_onnxruntime}[framework]
    for each in sorted(folder.iterdir()):
        if (each / "told.json").exists():
            continue
        error = ""
        try:
            run(each)
        except Exception as raised:  # noqa: BLE001  # what frameworks raise has no common base
            error = f"{type(raised).__name__}: {raised}"
        (each / "told.json").write_text(json.dumps({"error": error}))


def _sets(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for path in sorted(folder.glob("in*.npz")):
        with np.load(path, allow_pickle=True) as file:
            yield int(path.stem[2:]), {name[1:]: file[name] for name in file.files}


def _on_onnxruntime(folder: Path) -> None:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_outputs()]
    for at, arrays in _sets(folder):
        np.savez(
            folder / f"out{at}.npz",
            **{f"_{name}": each for name, each in zip(names, session.run(names, arrays), strict=True)},
        )


def _on_openvino(folder: Path) -> None:
    import openvino

    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(folder / "model.onnx"), "CPU", precise)
    # An input that is an output as well has only the output's name.
    places = {
        name: at for at, port in enumerate(compiled.inputs) for name in (*port.names, port.node.friendly_name)
    }
    for at, arrays in _sets(folder):
        given = compiled({places[name]: array for name, array in arrays.items()})
        np.savez(
            folder / f"out{at}.npz",
            **{f"_{name}": given[port] for port in compiled.outputs for name in port.names},
        )


if __name__ == "__main__":
    assert ml_dtypes  # numpy knows its datatypes from here on
    _run_all(sys.argv[1], Path(sys.argv[2]))
