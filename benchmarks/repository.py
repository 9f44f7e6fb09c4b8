"""Writes the model repositories that the benchmarks serve.

Any Triton-compatible server can serve them too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from engine.processes.gpus.nvml import find_gpus

HERE: Final = Path(__file__).parent
EXAMPLES: Final = HERE.parent / "examples" / "models"

_ADD_SUB: Final = """\
backend: "{backend}"
max_batch_size: 64
input [
  {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }},
  {{ name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }}
]
output [
  {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }},
  {{ name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }}
]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

_DIRECT: Final = "sequence_batching { direct { } max_sequence_idle_microseconds: 60000000 }"
_OLDEST: Final = (
    "sequence_batching { oldest { max_candidate_sequences: 64 } max_sequence_idle_microseconds: 60000000 }"
)
_CACHED: Final = "dynamic_batching { } response_cache { enable: true }"
_FAIR: Final = """dynamic_batching { }
parameters { key: "tritium.fairness" value { string_value: '{"tenant": {"parameter": "tenant"}}' } }"""
_RATE_LIMITED: Final = """dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 rate_limiter { resources [ { name: "R" count: 1 } ] } } ]"""

_CHAIN: Final = """\
platform: "ensemble"
max_batch_size: 64
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
ensemble_scheduling { step [ %s ] }
"""

_STEP: Final = """{
  model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "%s" } input_map { key: "INPUT1" value: "%s" }
  output_map { key: "OUTPUT0" value: "%s" } output_map { key: "OUTPUT1" value: "%s" }
}"""

_IDENTITY: Final = """\
backend: "{backend}"
max_batch_size: 0
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: {kind} count: 1 }} ]
"""

NO_GPU: Final = "no GPU"


class Unavailable(Exception):
    """A model can't be written here; the message says why."""


def _save_onnx(
    path: Path, name: str, nodes: list[tuple[str, list[str], str]], shape: list[str | int]
) -> None:
    """Write a graph of `nodes` (operator, inputs, output); everything in it is FP32 of `shape`."""
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError as error:
        raise Unavailable(
            "the onnx package is needed to write this model: pip install 'tritium[test]'"
        ) from error

    def value(tensor: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)

    inputs = dict.fromkeys(tensor for _, read, _ in nodes for tensor in read)
    graph = helper.make_graph(
        [helper.make_node(operator, read, [written]) for operator, read, written in nodes],
        name,
        [value(tensor) for tensor in inputs],
        [value(written) for _, _, written in nodes],
    )
    # Versions that every onnxruntime in use can read, not the newest that onnx can write.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def _write_onnx_add_sub(model: Path, version: Path, more: str = "dynamic_batching { }") -> None:
    (model / "config.pbtxt").write_text(_ADD_SUB.format(backend="onnxruntime") + more + "\n")
    nodes = [("Add", ["INPUT0", "INPUT1"], "OUTPUT0"), ("Sub", ["INPUT0", "INPUT1"], "OUTPUT1")]
    _save_onnx(version / "model.onnx", model.name, nodes, ["rows", 16])


def _write_rate_limited(model: Path, version: Path) -> None:
    _write_onnx_add_sub(model, version)
    config = (_ADD_SUB[: _ADD_SUB.index("instance_group")]).format(backend="onnxruntime")
    (model / "config.pbtxt").write_text(config + _RATE_LIMITED + "\n")


def _write_python(model: Path, version: Path, source: str, more: str = "dynamic_batching { }") -> None:
    (model / "config.pbtxt").write_text(_ADD_SUB.format(backend="python") + more + "\n")
    shutil.copyfile(HERE / "models" / source, version / "model.py")


def _write_chain(model: Path, version: Path) -> None:
    del version  # an ensemble's is empty
    tensors = [
        ("INPUT0", "INPUT1"),
        ("sum_1", "difference_1"),
        ("sum_2", "difference_2"),
        ("OUTPUT0", "OUTPUT1"),
    ]
    steps = [
        _STEP % (f"chain_{number}", *taken, *given)
        for number, (taken, given) in enumerate(pairwise(tensors), start=1)
    ]
    (model / "config.pbtxt").write_text(_CHAIN % ", ".join(steps))


def _write_onnx_identity(model: Path, version: Path) -> None:
    (model / "config.pbtxt").write_text(_IDENTITY.format(backend="onnxruntime", kind="KIND_CPU"))
    _save_onnx(version / "model.onnx", model.name, [("Identity", ["INPUT0"], "OUTPUT0")], ["size"])


def _torch_for_gpu() -> Any:
    """Return torch. Raises Unavailable if it could not load a model onto a GPU."""
    if not find_gpus(os.environ):
        raise Unavailable(NO_GPU)
    try:
        import torch
    except ImportError as error:
        raise Unavailable("torch is needed to run this model: pip install 'tritium[torch]'") from error
    if not torch.cuda.is_available():
        raise Unavailable("the installed torch finds no CUDA device")
    return torch


def _write_torch_identity_gpu(model: Path, version: Path) -> None:
    torch = _torch_for_gpu()
    (model / "config.pbtxt").write_text(_IDENTITY.format(backend="pytorch", kind="KIND_GPU"))
    torch.jit.trace(torch.nn.Identity(), torch.zeros(1)).save(version / "model.pt")


def _write_digits_gpu(model: Path, version: Path) -> None:
    _torch_for_gpu()
    name = model.name.removesuffix("_gpu")
    _copy(name, model, version)
    config = model / "config.pbtxt"
    text = config.read_text().replace("KIND_CPU", "KIND_GPU")
    config.write_text(text.replace(f'name: "{name}"', f'name: "{model.name}"'))


def _copy_example(model: Path, version: Path) -> None:
    _copy(model.name, model, version)


def _copy(example: str, model: Path, version: Path) -> None:
    source = EXAMPLES / example
    if not any(path.is_file() for path in source.glob("[1-9]*/*")):
        raise Unavailable(f"examples/models/{example} holds no model")
    version.rmdir()
    shutil.copytree(source, model, dirs_exist_ok=True)


WRITERS: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "onnx_add_sub": _write_onnx_add_sub,
    "python_add_sub": partial(_write_python, source="add_sub.py"),
    "python_decoupled": partial(
        _write_python,
        source="decoupled_add_sub.py",
        more="dynamic_batching { } model_transaction_policy { decoupled: true }",
    ),
    "python_bls": partial(_write_python, source="bls_add_sub.py"),
    "sequence_direct": partial(_write_onnx_add_sub, more=_DIRECT),
    "sequence_oldest": partial(_write_onnx_add_sub, more=_OLDEST),
    "chain_1": _write_onnx_add_sub,
    "chain_2": _write_onnx_add_sub,
    "chain_3": _write_onnx_add_sub,
    "chain": _write_chain,
    "cached": partial(_write_onnx_add_sub, more=_CACHED),
    "fair": partial(_write_onnx_add_sub, more=_FAIR),
    "rate_limited": _write_rate_limited,
    "onnx_identity": _write_onnx_identity,
    "digits_onnx": _copy_example,
    "torch_identity_gpu": _write_torch_identity_gpu,
    "digits_torchscript_gpu": _write_digits_gpu,
}


def write(directory: Path, models: Mapping[str, str]) -> Mapping[str, str]:
    """Write `models` (name → which of `WRITERS`) under `directory`.

    Returns those left out, with the reason.
    """
    left_out = {}
    for name, kind in models.items():
        version = directory / name / "1"
        version.mkdir(parents=True)
        try:
            WRITERS[kind](version.parent, version)
        except Unavailable as error:
            shutil.rmtree(version.parent)
            left_out[name] = str(error)
    return left_out


def write_all(directory: Path) -> Mapping[str, str]:
    """Write every model that a scenario uses."""
    return write_some(directory, WRITERS)


def write_some(directory: Path, models: Iterable[str]) -> Mapping[str, str]:
    """Write these, each as the scenarios know it, and what ensembles among them are made of."""
    named = dict.fromkeys(models)
    if "chain" in named:
        named |= dict.fromkeys(("chain_1", "chain_2", "chain_3"))
    if "python_bls" in named:
        named |= {"onnx_add_sub": None}
    return write(directory, {name: name for name in named})


def write_copies(directory: Path, count: int) -> None:
    """Write `count` ONNX add/sub models of one instance each. Raises Unavailable."""
    for reason in write(directory, {f"add_sub_{index}": "onnx_add_sub" for index in range(count)}).values():
        raise Unavailable(reason)
