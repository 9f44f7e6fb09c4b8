"""What is printed in `docs/authoring.md`, `docs/testing_models.md` and the README does what they say."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from engine.worker.authoring.declaring import declared_in
from tritium.testing import open_model

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(document):
    return PYTHON.findall((ROOT / "docs" / document).read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", blocks("authoring.md"), ids=lambda source: re.findall(r"(?:def|class) (\w+)", source)[-1]
)
def test_each_printed_model_loads(source, tmp_path):
    (tmp_path / "printed.py").write_text(source)
    with open_model(tmp_path / "printed.py") as model:
        assert model.ready()


def printed_tests():
    for at, source in enumerate(blocks("testing_models.md")):
        for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE):
            yield pytest.param(at, name, id=name)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "name"), list(printed_tests()))
def test_each_printed_test_passes(at, name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = ModuleType("printed")
    exec(blocks("testing_models.md")[at], module.__dict__)
    test = vars(module)[name]
    test(*([tmp_path] if test.__code__.co_argcount else []))


def test_the_first_model_is_the_example():
    example = (ROOT / "examples" / "softmax.py").read_text()
    assert example.endswith("\n\n" + blocks("authoring.md")[0])
    module = ModuleType("example")
    exec(example, module.__dict__)
    assert declared_in(module) is not None
