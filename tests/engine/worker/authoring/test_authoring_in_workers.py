"""What workers load of the authoring package: little, and nothing that Python 3.9 can't read."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]
FOREIGN = {"trio", "structlog", "google", "orjson", "outcome", "asyncio", "torch", "onnxruntime"}


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


@pytest.mark.parametrize(
    "file", sorted((ROOT / "engine" / "authoring").glob("*.py")), ids=lambda file: file.name
)
def test_it_is_written_in_python_3_9(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    if tree.body:
        assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
