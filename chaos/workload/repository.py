"""The reference repository: what the server under test serves.

`chaos.workload.answers` says what the models compute. Each model has two instances, on the CPU, two seconds
for an execution and ten to be loaded. Python models may have 96 MiB, keep a journal in the run's folder and
take orders from there. `add_sub` is pure, so that its requests survive its workers, and keeps no journal. A
request to `pipeline` is in the journal as one of `echo`, under its own id.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from chaos.workload.answers import ADDERS, BITS, REFERENCE, kind_of
from chaos.workload.backends.kinds import BACKENDS
from chaos.workload.control import control_folder, journal_folder
from chaos.workload.onnx_model import add_sub

SOURCES: Final = Path(__file__).parent / "models"
BESIDE: Final = ("conduct.py", "deeds.py", "journal.py")
"""The files that each `model.py` needs beside it."""

INSTANCES: Final = 2
EXECUTION_TIMEOUT: Final = 2.0  # seconds
LOAD_TIMEOUT: Final = 10.0  # seconds
FRAMEWORK_TIMEOUT: Final = 60.0  # seconds, in which a framework is imported on a busy machine
# MiB; a worker takes 20, and the rest is soon filled, on a busy machine too.
MEMORY_LIMIT: Final = 96
SLOW_CAPACITY: Final = INSTANCES / 0.020  # requests a second that `slow` can answer

_WORKERS: Final = f"instance_group [ {{ kind: KIND_CPU count: {INSTANCES} }} ]"

_BATCHES: Final = """max_batch_size: 8
dynamic_batching { max_queue_delay_microseconds: 2000 }
"""

# A queue of a fifth of a second for one tenant, who gets half of it. No request waits for longer than half a
# second: under too much load, most are refused at once. Floods come at the lower priority, or as a tenant of
# their own.
_QUEUE: Final = """max_batch_size: 1
dynamic_batching {
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy {
    timeout_action: REJECT
    default_timeout_microseconds: 500000
    allow_timeout_override: true
    max_queue_size: 40
  }
}
parameters { key: "tritium.fairness" value { string_value: "{\\"tenant\\": {\\"header\\": \\"x-tenant\\"}}" } }
"""

_SEQUENCES: Final = """max_batch_size: 4
sequence_batching {
  direct { }
  max_sequence_idle_microseconds: 5000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }
  ]
}
"""

_SCHEDULES: Final[Mapping[str, str]] = {
    "echo": "max_batch_size: 0\n",
    "family": "max_batch_size: 0\n",
    "slow": _QUEUE,
    "batching": _BATCHES,
    "counter": _SEQUENCES,
    "stream": "max_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n",
}
"""The schedules of the Python models, by kind."""

_PIPELINE: Final = """platform: "ensemble"
max_batch_size: 0
input [
  { name: "VALUE" data_type: TYPE_INT32 dims: [ -1, 1 ] },
  { name: "B" data_type: TYPE_INT32 dims: [ -1, 1 ] },
  { name: "POISON" data_type: TYPE_STRING dims: [ -1, 1 ] optional: true }
]
output [
  { name: "SUM" data_type: TYPE_INT32 dims: [ -1, 1 ] },
  { name: "DIFFERENCE" data_type: TYPE_INT32 dims: [ -1, 1 ] },
  { name: "REMAINDER" data_type: TYPE_INT32 dims: [ -1, 1 ] }
]
ensemble_scheduling { step [
  {
    model_name: "echo" model_version: -1
    input_map [ { key: "VALUE" value: "VALUE" }, { key: "POISON" value: "POISON" } ]
    output_map [ { key: "ANSWER" value: "echoed" } ]
  },
  {
    model_name: "add_sub" model_version: -1
    input_map [ { key: "A" value: "echoed" }, { key: "B" value: "B" } ]
    output_map [
      { key: "SUM" value: "SUM" },
      { key: "DIFFERENCE" value: "DIFFERENCE" },
      { key: "REMAINDER" value: "REMAINDER" }
    ]
  }
] }
"""

_ADD_SUB: Final = f"""{_BATCHES}
input [
  {{ name: "A" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "B" data_type: TYPE_INT32 dims: [ 1 ] }}
]
output [
  {{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "DIFFERENCE" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "REMAINDER" data_type: TYPE_INT32 dims: [ 1 ] }}
]
{_WORKERS}
"""

_FOREST: Final = f"""{_BATCHES}
input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ {BITS} ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
parameters {{ key: "model_type" value {{ string_value: "treelite_checkpoint" }} }}
parameters {{ key: "is_classifier" value {{ string_value: "false" }} }}
parameters {{ key: "tritium.fil.compile" value {{ string_value: "off" }} }}
{_WORKERS}
"""


def write_repository(folder: Path, *, run: Path, models: Iterable[str] = REFERENCE) -> None:
    """Write these models, all unless said otherwise, and make the run's folders for them.

    `folder` may exist. Raises ValueError for a model that is not a copy of one of the reference,
    FileExistsError if there is one by its name.
    """
    for each in (folder, journal_folder(run), control_folder(run)):
        each.mkdir(parents=True, exist_ok=True)
    for model in models:
        write_model(folder, model, run=run)


def write_model(folder: Path, model: str, *, run: Path, timeout: float | None = EXECUTION_TIMEOUT) -> Path:
    """Write one model, and return its directory. `echo-churned` is a copy of `echo` by that name.

    `timeout` is how long it may execute, in seconds; None for as long as it likes. Raises as
    `write_repository` does.
    """
    kind = kind_of(model)
    directory = folder / model
    version = directory / "1"
    directory.mkdir(parents=True)
    version.mkdir()
    (directory / "config.pbtxt").write_text(configuration(model, kind, run, timeout))
    if kind == "add_sub":
        (version / "model.onnx").write_bytes(add_sub())
    elif kind in _SCHEDULES and kind not in BACKENDS:
        for name in BESIDE:
            shutil.copyfile(SOURCES / name, version / name)
        shutil.copyfile(SOURCES / f"{kind}.py", version / "model.py")
    return directory


def configuration(model: str, kind: str, run: Path, timeout: float | None) -> str:
    """Return the text of a model's `config.pbtxt`; `timeout` as `write_model` takes it."""
    head = f'name: "{model}"\n'
    limits = {"tritium.load_timeout": LOAD_TIMEOUT}
    if timeout is not None:
        limits["tritium.execution_timeout"] = timeout
    if kind == "pipeline":
        return head + _PIPELINE
    if kind == "add_sub":
        return head + 'backend: "onnxruntime"\n' + _ADD_SUB + _parameters(limits)
    if kind in BACKENDS:
        head += f'backend: "{BACKENDS[kind].backend}"\n{BACKENDS[kind].more}'
        limits["tritium.load_timeout"] = FRAMEWORK_TIMEOUT
    if kind == "fil":
        return head + _FOREST + _parameters(limits)
    if kind in ADDERS:
        return head + _ADD_SUB + _parameters({**limits, "tritium.retry": "always"})
    told = {**limits, "tritium.memory_limit_mb": MEMORY_LIMIT, "chaos.run": run.resolve()}
    if kind not in BACKENDS:
        head += 'backend: "python"\n'
    return f"{head}{_SCHEDULES[kind]}{_ports(kind)}{_WORKERS}\n{_parameters(told)}"


def _ports(kind: str) -> str:
    dims = "[ -1, 1 ]" if kind in ("echo", "family") else "[ 1 ]"
    numbers = ("VALUE", "PARTS") if kind == "stream" else ("VALUE",)
    declared = [f'{{ name: "{name}" data_type: TYPE_INT32 dims: {dims} }}' for name in numbers]
    declared.append(f'{{ name: "POISON" data_type: TYPE_STRING dims: {dims} optional: true }}')
    answer = f'output [ {{ name: "ANSWER" data_type: TYPE_INT32 dims: {dims} }} ]\n'
    return f"input [ {', '.join(declared)} ]\n{answer}"


def _parameters(given: Mapping[str, object]) -> str:
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(str(value))} }} }}\n'
        for key, value in given.items()
    ]
    return "".join(lines)
