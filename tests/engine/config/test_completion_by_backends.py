"""`auto_complete_config` of Python models and other backends' completion, each in a disposable process."""

import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.inspection import child
from engine.config.load import load_model_config
from engine.processes.backends import BackendTraits, discover

pytestmark = pytest.mark.system

HEAD = "import triton_python_backend_utils as pb_utils\n"
COMPLETE = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        BODY
        return config
"""
FULL = """
config.set_max_batch_size(8)
config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [4]})
config.add_output({"name": "B", "data_type": "TYPE_INT64", "dims": [-1]})
config.set_dynamic_batching()
"""


def model(body):
    return HEAD + COMPLETE.replace("BODY", "\n        ".join(body.strip().split("\n")))


@pytest.fixture
def backends():
    return discover()


@pytest.fixture
def python(load):
    """Load a Python model from the body of its `auto_complete_config`, or from its whole source."""

    def run(body, config=None, **options):
        source = body if "class TritonPythonModel" in body else model(body)
        return load(config, files={"1/model.py": source}, **options)

    return run


# -- what is taken over


@pytest.mark.slow
def test_a_model_completes_its_own_configuration(python):
    loaded = python(FULL)
    assert loaded.ok, loaded.problems
    (spec,) = loaded.specs
    assert (spec.max_batch_size, spec.inputs[0].dims, spec.outputs[0].dims) == (8, (4,), (-1,))
    assert list(loaded.configs[0].config.dynamic_batching.preferred_batch_size) == [8]
    assert loaded.origins["input[0].name"] == "model.py auto_complete_config"
    assert loaded.origins["dynamic_batching.preferred_batch_size"] == "default"
    assert loaded.warnings == ()


@pytest.mark.slow
def test_it_sees_the_normalised_configuration(python):
    loaded = python(
        """
given = config.as_dict()
assert given["name"] == "m" and given["input"][0]["name"] == "A", given
assert given["instance_group"][0]["kind"] == "KIND_CPU", given
assert given["parameters"]["k"] == {"string_value": "v"}, given
assert pb_utils.get_model_dir().endswith("/m/1")
given["max_batch_size"] = 3
given["output"].append({"name": "B", "data_type": "TYPE_FP32", "dims": [1]})
""",
        'input { name: "A" data_type: TYPE_FP32 dims: 4 } parameters { key: "k" value { string_value: "v" } }',
    )
    assert loaded.ok, loaded.problems
    config = loaded.configs[0].config
    assert (config.max_batch_size, [tensor.name for tensor in config.output]) == (3, ["B"])
    assert loaded.origins["input[0].name"] == "config.pbtxt:1:9"


@pytest.mark.slow
def test_only_some_fields_are_taken_over(python):
    loaded = python(
        FULL
        + """
given = config.as_dict()
given.update(name="other", backend="onnxruntime", parameters={"k": {"string_value": "v"}}, metric_tags={"a": "b"})
given["version_policy"] = {"latest": {"num_versions": 7}}
""",
    )
    config = loaded.configs[0].config
    assert (config.name, config.backend, dict(config.parameters), dict(config.metric_tags)) == (
        "m",
        "python",
        {},
        {},
    )
    assert config.version_policy.latest.num_versions == 1


@pytest.mark.slow
def test_a_configured_scheduler_is_kept(python):
    loaded = python(
        'config.as_dict()["dynamic_batching"] = {"preserve_ordering": True}',
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 9 }",
    )
    batching = loaded.configs[0].config.dynamic_batching
    assert (batching.max_queue_delay_microseconds, batching.preserve_ordering) == (9, False)


@pytest.mark.slow
def test_decoupled_is_taken_over(python):
    loaded = python('config.set_model_transaction_policy({"decoupled": True})')
    assert loaded.configs[0].config.model_transaction_policy.decoupled
    assert loaded.specs[0].decoupled
    assert loaded.origins["model_transaction_policy.decoupled"] == "model.py auto_complete_config"


@pytest.mark.slow
def test_numbers_of_numpy_are_numbers(python):
    loaded = python(
        'import numpy as np\nconfig.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": np.array([4, -1])})\n'
        "config.set_max_batch_size(np.int64(2))"
    )
    assert loaded.ok, loaded.problems
    assert (loaded.specs[0].max_batch_size, loaded.specs[0].inputs[0].dims) == (2, (4, -1))


def test_a_python_model_may_take_and_give_nothing(python):
    loaded = python("class TritonPythonModel:\n    pass\n")
    assert loaded.ok
    assert (loaded.specs[0].inputs, loaded.specs[0].outputs) == ((), ())


def test_a_model_without_the_function_is_not_run(python, tmp_path):
    marker = tmp_path / "ran"
    assert python(f"open({str(marker)!r}, 'w')\nclass TritonPythonModel:\n    pass\n").ok
    assert not marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "size"),
    [
        pytest.param(
            {
                "1/model.py": "from base import Base\nclass TritonPythonModel(Base):\n    pass\n",
                "1/base.py": model(FULL).replace("class TritonPythonModel", "class Base"),
            },
            8,
            id="an inherited function",
        ),
        pytest.param(
            {
                "1/model.py": "import engine, actors\n"
                + model("config.set_max_batch_size(engine.SIZE + actors.SIZE)"),
                "engine.py": "SIZE = 3",
                "1/actors.py": "SIZE = 4",
            },
            7,
            id="modules by our names",
        ),
    ],
)
def test_a_model_has_the_modules_that_lie_beside_it(load, files, size):
    loaded = load(None, files=files)
    assert loaded.ok, loaded.problems
    assert loaded.specs[0].max_batch_size == size
    assert not list(loaded.path.parent.rglob("__pycache__"))  # a model's directory is only read


def test_completion_off_runs_nothing(python):
    assert python("raise RuntimeError", 'name: "m" backend: "python"', auto_complete=False).ok


def test_model_code_that_is_not_to_be_run_is_told(python):
    loaded = python("raise RuntimeError", run_model_code=False)
    assert loaded.ok
    assert [problem.message for problem in loaded.warnings] == [
        "skipped: model.py auto_complete_config was not run, and what it would fill in is missing here"
    ]


# -- what goes wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "body", "reason"),
    [
        ("max_batch_size: 8", "config.set_max_batch_size(4)",
         "ValueError: configuration specified max_batch_size 8, but in auto-complete-config function for model 'm'"
         " specified max_batch_size 4\n\nAt:\n  DIR/1/model.py(6): auto_complete_config\n"),
        ("", "return 3", "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."),
        ("", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n"
         "  DIR/1/model.py(6): auto_complete_config\n"),
        ("", "raise SystemExit(3)", "SystemExit: 3\n\nAt:\n  DIR/1/model.py(6): auto_complete_config\n"),
        ("", "import os\nos._exit(5)", "model.py auto_complete_config of model 'm': its process ended with status 5"),
        ("", "import os\nos.kill(os.getpid(), 11)", "model.py auto_complete_config of model 'm': its process ended with signal 11"),
        ("", 'config.as_dict()["input"] = {1, 2}',
         "TypeError: a value of <class 'set'> is no part of a configuration"),
        ("", 'config.as_dict()["input"] = [{"name": "A", "data_type": "TYPE_FLOAT", "dims": [1]}]', "gives no valid values: "),
        ("", 'config.as_dict()["input"] = 7', "gives no valid values: "),
        ("", 'config.as_dict()["output"] = [{"name": "A", "data_type": "TYPE_FP32", "dims": [0]}]',
         "model output 'A' dimension must be integer >= 1"),
    ],
)  # fmt: skip
def test_a_mistake_of_the_model_is_the_reason(python, config, body, reason):
    loaded = python(body, config)
    assert not loaded.ok
    assert reason.replace("DIR", str(loaded.path.parent)) in loaded.reason
    if "At:" in reason:  # nothing of ours, and nothing after the model's own frames
        assert loaded.reason.endswith(reason.replace("DIR", str(loaded.path.parent)))
        assert loaded.errors[0].path == loaded.path.parent / "1/model.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "timeout", "reason", "hint"),
    [
        ("def auto_complete_config(:\n", "30", "(model.py, line", ""),
        ("import os\nprint('waiting', flush=True)\nos._exit(5)", "30", "", "it printed: waiting"),
        (FULL, "soon", "auto-complete-timeout-seconds of backend 'python' is 'soon'", ""),
        (
            'config.as_dict()["input"] = [{"name": "x" * 20_000_000}]',
            "30",
            "it answered with more than 16777216 bytes",
            "",
        ),
    ],
    ids=["broken", "dies", "timeout", "endless"],
)
def test_what_keeps_it_from_answering_is_the_reason(python, body, timeout, reason, hint):
    loaded = python(body, backend_settings={"": {"auto-complete-timeout-seconds": timeout}})
    assert reason in loaded.reason
    assert hint in loaded.errors[0].hint


@pytest.mark.slow
def test_a_model_that_hangs_is_given_up(python):
    started = time.monotonic()
    loaded = python(
        "import subprocess, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)",
        backend_settings={"python": {"auto-complete-timeout-seconds": "0.7"}},
    )
    assert time.monotonic() - started < 20
    assert loaded.reason == (
        "Internal: model.py auto_complete_config of model 'm': it did not return within 0.7 s"
    )


@pytest.mark.slow
def test_what_it_prints_and_logs_is_a_warning(python):
    loaded = python(
        FULL
        + """
import sys
print("hello")
print("stderr", file=sys.stderr)
pb_utils.Logger.log_warn("careful")
pb_utils.Logger.log_info("not worth telling")
"""
    )
    assert loaded.ok
    assert [problem.message for problem in loaded.warnings] == [
        "model.py auto_complete_config: model.py:14] careful",
        "model.py auto_complete_config printed: hello\nstderr",
    ]


@pytest.mark.long
@pytest.mark.slow
def test_endless_output_is_bounded(python):
    loaded = python(
        "while True: print('x' * 1000)", backend_settings={"": {"auto-complete-timeout-seconds": "1"}}
    )
    assert not loaded.ok
    assert len(loaded.errors[0].hint) < 4096


@pytest.mark.slow
def test_secrets_of_the_server_are_not_there(python, monkeypatch):
    monkeypatch.setenv("TRITIUM_HTTP_RESTRICTED_API", "health:key=s3cret")
    monkeypatch.setenv("MY_MARK", "kept")
    loaded = python(
        'import os\nassert "TRITIUM_HTTP_RESTRICTED_API" not in os.environ\nassert os.environ["MY_MARK"] == "kept"'
    )
    assert loaded.ok, loaded.problems


@pytest.mark.slow
def test_processes_that_it_leaves_behind_are_ended(python, tmp_path):
    pids = tmp_path / "pid"
    loaded = python(
        f"import subprocess\nleft = subprocess.Popen(['sleep', '60'])\nopen({str(pids)!r}, 'w').write(str(left.pid))"
    )
    assert loaded.ok, loaded.problems
    assert is_gone(int(pids.read_text()))


@pytest.mark.slow
def test_a_server_without_descriptors_leaves_no_process_behind(python, tmp_path, monkeypatch):
    asked = []

    def pidfd_open(pid):
        asked.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    loaded = python("import time\ntime.sleep(60)")
    assert loaded.reason.endswith("no process could be started for it: Too many open files")
    assert is_gone(asked[0])


def is_gone(pid):
    """Whether a process has ended; a killed one may still wait for init to reap it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.slow
def test_models_are_asked_on_several_threads_at_once(tmp_path, backends):
    results = {}
    threads = []
    for number in range(1, 5):
        directory = tmp_path / f"m{number}"
        (directory / "1").mkdir(parents=True)
        (directory / "1/model.py").write_text(model(f"config.set_max_batch_size({number})"))

        def read(number=number, directory=directory):
            results[number] = load_model_config(directory, backends=backends)

        threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: loaded.specs[0].max_batch_size for number, loaded in results.items()} == {
        n: n for n in range(1, 5)
    }


@pytest.mark.slow
def test_each_version_is_asked_for_itself(load):
    files = {f"{number}/model.py": model(f"config.set_max_batch_size({number})") for number in (1, 2)}
    loaded = load("version_policy { all { } }", files=files)
    assert [(spec.version, spec.max_batch_size) for spec in loaded.specs] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "body",
    ["if True:\n", "raise KeyError\n", "config.as_dict().clear()\n", "config.as_dict()['input'] = None\n"],
)
@pytest.mark.slow
def test_no_model_raises(python, body):
    loaded = python(body)
    assert bool(loaded.specs) == loaded.ok


# -- other backends

MINE = """
import json, os
from engine.worker.backends.base import Backend, LoadError

class MyBackend(Backend):
    default_artifact = "model.mine"

    def load(self, model): ...
    def execute(self, batch): ...

    @classmethod
    def complete_config(cls, model):
        if model.settings.get("fail"):
            raise LoadError("it can't be done")
        if model.settings.get("bug"):
            raise RuntimeError("oops")
        if model.settings.get("list"):
            return [1]
        if model.settings.get("nothing"):
            return None
        with open(os.path.join(model.version_directory, model.artifact)) as file:
            model.config["input"] = json.load(file)
        model.log("error", "nearly")
        return model.config
"""


@pytest.fixture
def mine(write_model, tmp_path, monkeypatch):
    (tmp_path / "my_backend_module.py").write_text(MINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    traits = BackendTraits(
        name="mine", default_artifact="model.mine", completes=True, target="my_backend_module:MyBackend"
    )

    def run(**settings):
        content = '[{"name": "A", "data_type": "TYPE_FP32", "dims": [2]}]'
        return load_model_config(
            write_model(config='backend: "mine"', files={"1/model.mine": content}),
            backends={"mine": traits},
            backend_settings={"mine": settings},
        )

    return run


@pytest.mark.slow
def test_a_third_party_takes_part(mine):
    loaded = mine()
    assert loaded.ok, loaded.problems
    assert loaded.specs[0].inputs[0].name == "A"
    assert loaded.origins["input[0].name"] == "backend 'mine'"
    assert [problem.message for problem in loaded.warnings] == ["backend 'mine': nearly"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"fail": "1"}, "Internal: it can't be done"),
        ({"bug": "1"}, "Internal: RuntimeError: oops"),
        ({"list": "1"}, "Internal: backend 'mine' of model 'm': it answered with a list"),
    ],
)
def test_a_third_party_s_failure_is_the_reason(mine, settings, reason):
    loaded = mine(**settings)
    assert loaded.reason == reason
    if "bug" in settings:
        assert "complete_config" in loaded.errors[0].hint  # its traceback


@pytest.mark.slow
def test_a_third_party_may_have_nothing_to_add(mine):
    loaded = mine(nothing="1")
    assert loaded.ok
    assert loaded.specs[0].inputs == ()


def test_a_backend_with_nothing_to_add_to_a_complete_configuration_is_not_asked(write_model):
    traits = BackendTraits(
        name="mine", completes=True, completes_the_complete=False, target="no_such:Backend"
    )
    ports = "{ name: 'A' data_type: TYPE_FP32 dims: 1 }"
    whole = f"backend: 'mine' input {ports} output {ports}"
    loaded = load_model_config(write_model(config=whole), backends={"mine": traits})
    assert loaded.ok, loaded.problems
    part = write_model("part", f"backend: 'mine' input {ports}")
    assert "no_such" in load_model_config(part, backends={"mine": traits}).reason


@pytest.mark.slow
def test_an_openvino_model_is_complete_without_any_configuration(write_model, backends):
    openvino = pytest.importorskip("openvino")
    ops = openvino.opset13
    directory = write_model(files={"1/readme": b""})
    x = ops.parameter(openvino.PartialShape([-1, 3, -1]), openvino.Type.f16)
    y = ops.result(ops.relu(x))
    for node, name in ((x, "X"), (y, "Y")):
        node.output(0).get_tensor().set_names({name})
        node.set_layout(openvino.Layout("NC..."))
    openvino.save_model(openvino.Model([y], [x]), directory / "1/model.xml")
    loaded = load_model_config(directory, backends=backends)
    assert loaded.ok, loaded.problems
    (spec,) = loaded.specs
    assert (spec.backend, spec.max_batch_size, spec.inputs[0].dims) == ("openvino", 4, (3, -1))
    assert list(loaded.configs[0].config.dynamic_batching.preferred_batch_size) == [4]
    assert loaded.origins["input[0].name"] == "backend 'openvino'"


def test_a_backend_completes_where_its_class_says_how():
    found = discover()
    assert {
        name: traits.completes
        for name, traits in found.items()
        if name in ("python", "onnxruntime", "openvino", "pytorch")
    } == {
        "openvino": True,
        "python": True,
        "onnxruntime": False,
        "pytorch": False,
    }


def test_a_process_that_can_not_be_started_is_told(monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    answer = child.ask("a:B", {}, timeout=1, environ=os.environ)
    assert answer.broken == "no process could be started for it: No such file or directory"


@pytest.mark.slow
def test_a_process_whose_server_dies_is_killed(tmp_path):
    """What `PR_SET_PDEATHSIG` promises: an orphan would run model code without a server."""
    marker = tmp_path / "pid"
    source = f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1/model.py").write_text(model(source))
    code = (
        "from pathlib import Path; from engine.processes.backends import discover; from engine.config.load import *;"
        f"load_model_config(Path({str(directory)!r}), backends=discover())"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3]) as server:
        deadline = time.monotonic() + 20
        while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        server.kill()
    assert is_gone(int(marker.read_text()))


def test_a_backend_that_completes_nothing_is_not_asked(write_model, backends):
    backends = {**backends, "python": replace(backends["python"], completes=False)}
    directory = write_model(files={"1/model.py": model("raise RuntimeError")})
    assert load_model_config(directory, backends=backends).ok
