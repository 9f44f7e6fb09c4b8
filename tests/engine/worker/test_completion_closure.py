"""The imports of a completing process: model code meets as little of our code as in a worker."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from engine.worker.__main__ import OUR_NAMES
from engine.worker.completion import CLOSURE

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[3]
FOREIGN = {"trio", "structlog", "google", "orjson", "outcome", "asyncio", "torch", "onnxruntime"}


@pytest.mark.slow
def test_the_closure_is_the_one_that_is_written_down():
    imports = "".join(f"import {module}\n" for module in (*CLOSURE, "engine.worker.completion"))
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{imports}print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.partition(".")[0] in OUR_NAMES}
    packages = {module.rsplit(".", depth)[0] for module in CLOSURE for depth in (1, 2)}
    assert ours - packages == {*CLOSURE, "engine.worker.completion"}
    assert not FOREIGN & {name.partition(".")[0] for name in loaded}


WORKER = ROOT / "engine" / "worker"
OF_WORKERS = [
    WORKER / "completion.py",
    WORKER / "backends" / "python" / "completion.py",
    *sorted((WORKER / "authoring").rglob("*.py")),
]


@pytest.mark.parametrize("file", OF_WORKERS, ids=lambda file: str(file.relative_to(WORKER)))
def test_it_is_written_in_python_3_9(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    assert future or not tree.body
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))


# -- what workers load of the authoring package: little, and nothing that Python 3.9 can't read


@pytest.mark.slow
def test_the_name_tritium_costs_a_worker_no_foreign_package():
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from engine.worker.authoring.offering import offer
offer()
import tritium
print(tritium.model.__module__, *sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    module, *loaded = done.stdout.split()
    assert module == "engine.worker.authoring.declaring"
    assert not FOREIGN & {name.partition(".")[0] for name in loaded}
    assert not any(name.startswith("engine.testing") for name in loaded)
