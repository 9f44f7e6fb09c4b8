"""Measures requests of many lengths to one model: apart, as ragged batches, and padded to buckets.

    python -m benchmarks.lengths                         # two minutes
    python -m benchmarks.lengths --seconds 1 --rounds 5

The model looks its tokens up in a table, multiplies each by two matrices and returns the mean over the
request. It is served three times by one server: as it is, so that only requests of one length share a batch;
with `allow_ragged_batch`; and with `tritium.pad_to`. Lengths are drawn evenly from 1 to 128. The three are
loaded in turn, round by round. Figures are medians over rounds; ratios are medians over those of neighbouring
rounds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import clients, parsers, payloads
from benchmarks.results import Load
from benchmarks.subjects import CHECKOUT, Subject, infer_path, server

LONGEST: Final = 128
WORDS: Final = 1000
WIDTH: Final = 64
REQUESTS: Final = 512
MODELS: Final = ("apart", "ragged", "padded")
_SCRIPT: Final = Path(__file__).with_name("lengths.lua")

_PORTS: Final = """
input {{ name: "TOKENS" data_type: TYPE_INT64 dims: [ -1 ] {ragged} }}
output {{ name: "MEAN" data_type: TYPE_FP32 dims: [ {width} ] }}
max_batch_size: 64
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
_COUNTED: Final = (
    'batch_input {{ kind: {} target_name: "{}" data_type: TYPE_INT32 source_input: "TOKENS" }}\n'
)
_PAD: Final = 'parameters { key: "tritium.pad_to" value { string_value: "TOKENS:1=16,32,64,96,128" } }\n'

Node = tuple[str, Sequence[str], str, dict[str, Any]]


class Weights:
    """The model's table and matrices, and what it computes."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.table, self.first, self.second = (
            (random.normal(size=(rows, WIDTH)) / 8).astype(np.float32) for rows in (WORDS, WIDTH, WIDTH)
        )

    def mean(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the output for tokens of shape [1, n]."""
        states = np.maximum(self.table[tokens[0]] @ self.first, 0) @ self.second
        result: np.ndarray[Any, Any] = states.mean(axis=0, keepdims=True)
        return result


def write(repository: Path, weights: Weights) -> None:
    """Write the three models."""
    shapes: dict[str, tuple[list[Any], dict[str, int]]] = {
        "apart": (["rows", "length"], {}),
        "ragged": (["elements"], {"ENDS": TensorProto.INT32}),
        "padded": (["rows", "length"], {"LENGTHS": TensorProto.INT32}),
    }
    more = {
        "apart": "",
        "ragged": _COUNTED.format("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "ENDS"),
        "padded": _COUNTED.format("BATCH_ELEMENT_COUNT", "LENGTHS") + _PAD,
    }
    for name, (shape, made) in shapes.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        ragged = "allow_ragged_batch: true" if name == "ragged" else ""
        (repository / name / "config.pbtxt").write_text(
            'backend: "onnxruntime"\n' + _PORTS.format(ragged=ragged, width=WIDTH) + more[name]
        )
        graph = helper.make_graph(
            [helper.make_node(kind, read, [written], **keys) for kind, read, written, keys in _nodes(name)],
            name,
            [helper.make_tensor_value_info("TOKENS", TensorProto.INT64, shape)]
            + [helper.make_tensor_value_info(each, kind, ["requests"]) for each, kind in made.items()],
            [helper.make_tensor_value_info("MEAN", TensorProto.FLOAT, ["rows", WIDTH])],
            [numpy_helper.from_array(array, each) for each, array in _constants(weights).items()],
        )
        opset = helper.make_opsetid("", 21)
        onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[opset]), version / "model.onnx")


def _constants(weights: Weights) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "table": weights.table,
        "first": weights.first,
        "second": weights.second,
        "nothing": np.zeros((1, WIDTH), np.float32),
        "0": np.array(0),
        "1": np.array(1),
        "axis 0": np.array([0]),
        "axis 1": np.array([1]),
        "axis 2": np.array([2]),
        "from 1": np.array([1]),
        "end": np.array([2**31 - 1]),
        "last": np.array([-1]),
    }


def _nodes(name: str) -> list[Node]:
    """Return the graph: the same states of each token, and a mean that knows where a request ends."""
    states: list[Node] = [
        ("Gather", ["table", "TOKENS"], "words", {"axis": 0}),
        ("MatMul", ["words", "first"], "before", {}),
        ("Relu", ["before"], "hidden", {}),
        ("MatMul", ["hidden", "second"], "states", {}),
    ]
    if name == "apart":
        return [*states, ("ReduceMean", ["states", "axis 1"], "MEAN", {"keepdims": 0})]
    if name == "padded":
        return [
            *states,
            ("Shape", ["TOKENS"], "shape", {}),
            ("Gather", ["shape", "1"], "length", {"axis": 0}),
            ("Range", ["0", "length", "1"], "places", {}),
            ("Cast", ["LENGTHS"], "own", {"to": TensorProto.INT64}),
            ("Unsqueeze", ["own", "axis 1"], "ends", {}),
            ("Less", ["places", "ends"], "inside", {}),
            ("Cast", ["inside"], "mask", {"to": TensorProto.FLOAT}),
            ("Unsqueeze", ["mask", "axis 2"], "column", {}),
            ("Mul", ["states", "column"], "kept", {}),
            ("ReduceSum", ["kept", "axis 1"], "sum", {"keepdims": 0}),
            ("Cast", ["ends"], "count", {"to": TensorProto.FLOAT}),
            ("Div", ["sum", "count"], "MEAN", {}),
        ]
    return [
        *states,
        ("CumSum", ["states", "0"], "sums", {}),
        ("Concat", ["nothing", "sums"], "from zero", {"axis": 0}),
        ("Cast", ["ENDS"], "ends", {"to": TensorProto.INT64}),
        ("Gather", ["from zero", "ends"], "up to", {"axis": 0}),
        ("Slice", ["up to", "from 1", "end", "axis 0"], "later", {}),
        ("Slice", ["up to", "axis 0", "last", "axis 0"], "sooner", {}),
        ("Sub", ["later", "sooner"], "sum", {}),
        ("Slice", ["ends", "from 1", "end"], "later ends", {}),
        ("Slice", ["ends", "axis 0", "last"], "sooner ends", {}),
        ("Sub", ["later ends", "sooner ends"], "lengths", {}),
        ("Unsqueeze", ["lengths", "axis 1"], "column", {}),
        ("Cast", ["column"], "count", {"to": TensorProto.FLOAT}),
        ("Div", ["sum", "count"], "MEAN", {}),
    ]


def write_requests(folder: Path, subject: Subject, weights: Weights) -> None:
    """Write the requests as files, and check an answer to each of the first. Raises AssertionError."""
    random = np.random.default_rng(1)
    for number in range(REQUESTS):
        tokens = random.integers(0, WORDS, (1, random.integers(1, LONGEST + 1)))
        request = payloads.encode({"TOKENS": tokens}, "binary")
        head = request.headers[payloads.HEADER_LENGTH]
        (folder / str(number)).write_bytes(f"{head}\n".encode() + request.body)
        for model in MODELS if number < 16 else ():
            outputs, _ = subject.infer(model, request)
            np.testing.assert_allclose(outputs["MEAN"], weights.mean(tokens), rtol=1e-3, atol=1e-4)


def load(subject: Subject, model: str, folder: Path, *, concurrency: int, seconds: int) -> Load:
    """Load one model. Raises ClientFailed."""
    url = f"http://{subject.host}:{subject.port}{infer_path(model)}"
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds}s", "--latency", "-s", str(_SCRIPT), url]
    child = clients.start([*command, "--", str(folder), str(REQUESTS)])
    return parsers.wrk(clients.finish(child, "wrk", seconds + 10.0))


def batches(subject: Subject) -> dict[str, tuple[int, int]]:
    """Return how many requests and batches each model has had."""
    found = {}
    for each in subject.get_json("/v2/models/stats")["model_stats"]:
        found[each["name"]] = (each["inference_count"], each["execution_count"])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lengths", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seconds", type=int, default=2, help="length of a round (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each cell (default: 5)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64])
    options = parser.parse_args(arguments)
    if shutil.which("wrk") is None:
        print(clients.missing("wrk"))
        return 1
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tritium-lengths-") as scratch:
        repository, folder = Path(scratch, "models"), Path(scratch, "requests")
        folder.mkdir()
        weights = Weights()
        write(repository, weights)
        with server("lengths", CHECKOUT, repository, Path(scratch)) as subject:
            write_requests(folder, subject, weights)
            print("| at once | model | req/s | ratio | p50 ms | p99 ms | requests a batch |")
            print("|---|---|---|---|---|---|---|")
            for concurrency in options.concurrency:
                failed += _row(subject, folder, concurrency, options.seconds, options.rounds)
    return 1 if failed else 0


def _row(subject: Subject, folder: Path, concurrency: int, seconds: int, rounds: int) -> int:
    before = batches(subject)
    loads: dict[str, list[Load]] = {model: [] for model in MODELS}
    for _ in range(rounds):
        for model, measured in loads.items():
            measured.append(load(subject, model, folder, concurrency=concurrency, seconds=seconds))
    after = batches(subject)
    apart = loads["apart"]
    for model, measured in loads.items():
        requests, executions = (now - then for now, then in zip(after[model], before[model], strict=True))
        ratio = median(one.rate / other.rate for one, other in zip(measured, apart, strict=True))
        rate, p50, p99 = (median(getattr(each, key) for each in measured) for key in ("rate", "p50", "p99"))
        print(
            f"| {concurrency} | {model} | {rate:,.0f} | {ratio:.2f} | {p50 * 1e3:.2f} | {p99 * 1e3:.2f}"
            f" | {requests / executions:.1f} |",
            flush=True,
        )
    return sum(each.errors + each.refused for measured in loads.values() for each in measured)


if __name__ == "__main__":
    sys.exit(main())
