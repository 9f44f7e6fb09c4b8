"""What modules import, asked of fresh interpreters: the worker's closure, the pure modules, the server."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from engine.worker.__main__ import CLOSURE, OUR_NAMES, WITH_DEVICES

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]

PURE = [
    "actors.values.datatypes",
    "actors.values.errors",
    "actors.values.events",
    "actors.values.requests",
    "actors.values.tensors",
    "actors.values.specs",
    "actors.values.interfaces",
    "actors.wire.frames",
    "actors.wire.batch_frames",
    "actors.wire.arena",
    "actors.wire.call_fields",
    "actors.wire.call_frames",
    "actors.wire.call_segments",
    "actors.wire.gathering",
    "actors.wire.slots",
    "actors.serving.statistics",
    "actors.serving.validation",
    "actors.serving.policy.batching",
    "actors.traffic.policy.comparison",
    "actors.serving.policy.ordering",
    "actors.serving.policy.queueing",
    "actors.serving.policy.retries",
    "actors.traffic.policy.traffic",
    "actors.supervision.spec",
    "actors.supervision.restart",
    "engine.worker.backends.base",
    "protocols.kserve.requests",
    "protocols.kserve.responses",
    "protocols.status",
]
FRAMEWORKS = {"torch", "onnxruntime", "tensorrt", "cupy", "openvino", "tensorflow", "pandas", "sklearn"}


def fresh(code, *, cwd=ROOT):
    """Run `code` in a fresh interpreter and return what it prints, in words."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def loaded_by(*modules):
    """Names in `sys.modules` after importing `modules`."""
    imports = "\n".join(f"import {module}" for module in modules)
    return set(fresh(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{imports}\nprint(*sys.modules)"))


@pytest.mark.slow
def test_the_workers_closure_is_the_one_that_is_written_down():
    loaded = loaded_by(*CLOSURE)
    ours = {name for name in loaded if name.partition(".")[0] in OUR_NAMES}
    packages = {module.rsplit(".", depth)[0] for module in CLOSURE for depth in (1, 2)}
    assert ours - packages == set(CLOSURE)
    foreign = {name.partition(".")[0] for name in loaded} & {
        "trio",
        "structlog",
        "google",
        "orjson",
        "httptools",
        "outcome",
        "asyncio",
        *FRAMEWORKS,
    }
    assert not foreign


@pytest.mark.slow
def test_what_tensors_on_a_gpu_bring_is_written_down_and_brought_by_nothing_else():
    plain = loaded_by(*CLOSURE)
    brought = loaded_by(*CLOSURE, "engine.worker.devices.batches") - plain
    ours = {name for name in brought if name.partition(".")[0] in OUR_NAMES}
    assert ours == {*WITH_DEVICES, "engine.worker.devices"}


@pytest.mark.parametrize("module", [*CLOSURE, *WITH_DEVICES])
def test_the_workers_closure_is_written_in_python_3_9(module):
    path = ROOT / (module.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    # Annotations then cost nothing and may use newer syntax.
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Match)
        if isinstance(node, ast.Call):
            assert not {"strict", "slots", "kw_only"} & {keyword.arg for keyword in node.keywords}, (
                ast.unparse(node)
            )


@pytest.mark.slow
def test_a_server_loads_no_library_of_a_feature_before_that_is_used():
    loaded = {name.partition(".")[0] for name in loaded_by("engine.server.run", "engine.cli.serve")}
    unused = {"cryptography", "joserfc", "redis", "obstore", "boto3", "rich", "asyncio"}
    assert not loaded & (unused | FRAMEWORKS)


@pytest.mark.slow
def test_a_server_knows_its_backends_without_their_code():
    code = """
import sys
import engine.server.run
from engine.processes.backends import BUILT_IN, discover
discover()
print(*(ours.target for ours in BUILT_IN.values() if ours.target.partition(":")[0] in sys.modules))
"""
    assert fresh(code) == []


@pytest.mark.slow
def test_what_structlog_awaits_with_is_there_once_it_is_asked_for():
    code = """
import sys
from engine.observability.structured import structlog
assert "asyncio" not in sys.modules
import asyncio
async def said():
    logger = structlog.wrap_logger(structlog.PrintLogger(), processors=[structlog.processors.JSONRenderer()],
                                   wrapper_class=structlog.make_filtering_bound_logger(0))
    await logger.ainfo("heard")
asyncio.run(said())
"""
    assert fresh(code) == ['{"event":', '"heard"}']


@pytest.mark.slow
def test_our_names_are_free_for_the_users_model(tmp_path):
    for name in OUR_NAMES:
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    code = f"""
import runpy, sys
root = {str(ROOT)!r}
sys.path.insert(0, root)
entry = runpy.run_path(root + "/engine/worker/__main__.py")
import engine.worker.process as process
from actors.values.tensors import Tensor
kept = Tensor
entry["free_names"](root)
sys.path.insert(0, {str(tmp_path)!r})
import engine, actors, protocols, chaos
assert engine.mine and actors.mine and protocols.mine and chaos.mine
from actors.values.tensors import Tensor as missing
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "ModuleNotFoundError: No module named 'actors.values'" in done.stderr


@pytest.mark.slow
def test_what_the_worker_holds_goes_on_working_after_that():
    code = f"""
import runpy, sys
root = {str(ROOT)!r}
sys.path.insert(0, root)
entry = runpy.run_path(root + "/engine/worker/__main__.py")
import numpy as np
from actors.wire import batch_frames, frames
from actors.values.tensors import Tensor
from engine.worker.execution import WorkerBatch
entry["free_names"](root)
assert not [name for name in sys.modules if name.partition(".")[0] in entry["OUR_NAMES"]]
assert root not in sys.path
assert Tensor.from_numpy("x", np.zeros(3, "f4")).as_numpy().shape == (3,)
batch_frames.Result.decode(batch_frames.Result(1, 0, 0, (0, 0, 0), []).encode())
print("fine")
"""
    assert fresh(code) == ["fine"]


@pytest.mark.slow
def test_no_pure_module_loads_a_loop_or_a_log():
    loaded = loaded_by(*PURE)
    assert not {"trio", "asyncio", "structlog"} & loaded


@pytest.mark.slow
def test_the_servers_own_modules_import_no_framework():
    folders = ("actors", "protocols", "engine/config", "engine/repository", "engine/observability")
    modules = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py" and path.parts[-2:] != ("proto", "generate.py")
    ]
    modules += [
        "engine.server.tree",
        "engine.server.run",
        "engine.server.version_tree",
        "engine.processes.launch",
        "engine.server.frontends",
        "engine.__main__",
    ]
    loaded = loaded_by(*modules)
    assert "trio" in loaded
    assert not FRAMEWORKS & {name.partition(".")[0] for name in loaded}
