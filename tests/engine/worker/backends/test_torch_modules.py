"""PyTorch's runtime in Python: a class in a file, its weights beside it, and what `torch.compile` is told."""

import json
import sys
import textwrap

import numpy as np
import pytest
import torch

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends import torch_modules
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.pytorch import PyTorchBackend
from engine.worker.backends.testing import LocalRequest, model_info, run

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

FP32 = DataType.FP32
PLAIN = {torch_modules.COMPILE: '{"disable": true}'}
CODE = """
import torch
from torch.nn import Linear
from neighbour import SCALE

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Linear(2, 3)

    def forward(self, x, bias):
        if bool((x > 100).any()):
            raise ValueError("too large")
        y = self.layer(x) * SCALE + bias
        return y, y.sum(1, keepdim=True)
"""
INPUTS = [TensorInfo("X", FP32, [2]), TensorInfo("B", FP32, [1])]
OUTPUTS = [TensorInfo("Y", FP32, [3]), TensorInfo("S__0", FP32, [1])]


@pytest.fixture
def load(version_directory, monkeypatch):
    """Write files of a model into its version's folder, and load it by the runtime."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    modules = set(sys.modules)

    def write_and_load(files, *, parameters=PLAIN, named="", log=lambda level, text: None, **options):
        for name, content in files.items():
            if isinstance(content, str):
                (version_directory / name).write_text(textwrap.dedent(content))
            else:
                torch.save(content, version_directory / name)
        config = {"backend": "pytorch", "runtime": "model.py", "default_model_filename": named}
        made = {"inputs": INPUTS, "outputs": OUTPUTS, "max_batch_size": 8, **options}
        info = model_info(version_directory, parameters=parameters, config=config, log=log, **made)
        backend = PyTorchBackend()
        backend.load(info)
        return lambda *requests: run(backend, info, requests)

    yield write_and_load
    for name in set(sys.modules) - modules:
        if name.startswith("1.") or name == "neighbour":
            del sys.modules[name]


def weights():
    return {"layer.weight": torch.arange(6.0).reshape(3, 2), "layer.bias": torch.ones(3)}


def request(*rows, bias=0.0):
    return LocalRequest({"X": np.array(rows, "f4"), "B": np.full((len(rows), 1), bias, "f4")})


FILES = {"model.py": CODE, "neighbour.py": "SCALE = 2", "model.pt": weights()}


def test_a_module_gets_its_weights_and_answers_a_batch_by_rows(load):
    first, second = load(FILES)(request([1, 1]), request([0, 1], [1, 0], bias=5))
    assert first.outputs["Y"].tolist() == [[4, 12, 20]]
    assert second.outputs["Y"].tolist() == [[9, 13, 17], [7, 11, 15]]
    # Outputs go by order, whatever they are called.
    assert second.outputs["S__0"].tolist() == [[39], [33]]


def test_a_request_that_fails_costs_only_itself(load):
    right, wrong = load(FILES)(request([1, 1]), request([101, 1]))
    assert right.outputs["Y"].tolist() == [[4, 12, 20]]
    assert (wrong.code, wrong.message) == (ErrorCode.INTERNAL, "PyTorch execute failure: too large")


def test_a_module_without_weights_runs_as_it_was_built(load):
    told = []
    files = {"model.py": CODE, "neighbour.py": "SCALE = 0"}
    [got] = load(files, log=lambda level, text: told.append(text))(request([3, 3], bias=7))
    assert got.outputs["Y"].tolist() == [[7, 7, 7]]
    assert any(text.startswith("there are no weights for") for text in told)


def test_the_weights_are_called_like_the_file(load):
    files = {
        "model.py": "raise RuntimeError",
        "net.py": CODE,
        "neighbour.py": "SCALE = 1",
        "net.pt": weights(),
    }
    [got] = load(files, named="net.py")(request([1, 1]))
    assert got.outputs["Y"].tolist() == [[2, 6, 10]]


def test_a_class_of_the_file_goes_before_those_that_it_imports(load):
    files = {
        "model.py": """
            from torch.nn import Linear, Module
            class Zero(Module):
                def forward(self, x, bias):
                    return [0 * x[:, :1].repeat(1, 3), bias]
        """
    }
    [got] = load(files)(request([1, 1], bias=2))
    assert (got.outputs["Y"].tolist(), got.outputs["S__0"].tolist()) == ([[0, 0, 0]], [[2]])


def test_a_program_of_torchscript_is_run_as_it_is(load, version_directory):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    torch.jit.script(Twice()).save(str(version_directory / "model.pt"))
    told = []
    one = {"inputs": INPUTS[:1], "outputs": [TensorInfo("Y", FP32, [2])]}
    [got] = load({}, log=lambda level, text: told.append((level, text)), **one)(
        LocalRequest({"X": np.array([[1, 2]], "f4")})
    )
    assert got.outputs["Y"].tolist() == [[2, 4]]
    [(level, text)] = told
    assert (level, "has no effect" in text) == ("warning", True)


def test_a_module_that_chooses_its_device_is_asked_for_it(load):
    [got] = load(FILES, kind="MODEL")(request([1, 1]))
    assert got.outputs["Y"].tolist() == [[4, 12, 20]]


EMPTY = "import torch\nclass Empty(torch.nn.Module):\n    def forward(self, x, bias):\n        return x\n"


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {}, r"No model found in .*/1/\['model.py', 'model.pt'\]"),
        ({}, {"named": "net.py"}, r"No model found in .*/1/\['net.py', 'model.py', 'model.pt'\]"),
        ({"model.py": "X = 1"}, {}, r"Cannot find a subclass of torch.nn.Module"),
        ({"model.py": "1 / 0"}, {}, r"unable to load model 'model', ZeroDivisionError: division by zero"),
        (
            {**FILES, "model.pt": {"layer.weight": torch.ones(1)}},
            {},
            r"unable to load model 'model', RuntimeError: Error.* in loading state_dict for Net",
        ),
        ({**FILES, "model.pt": "no weights"}, {}, r"unable to load model 'model', .*Error"),
        ({"model.py": EMPTY}, {"kind": "MODEL"}, r"Cannot determine model device"),
        (
            FILES,
            {"parameters": {torch_modules.COMPILE: '{"model": 1}'}},
            r"'model' is not an optional parameter for 'torch.compile'",
        ),
        (
            FILES,
            {"parameters": {torch_modules.COMPILE: "[1]"}},
            r"model 'model': TORCH_COMPILE_OPTIONAL_PARAMETERS must be a JSON object, got \[1\]",
        ),
        (FILES, {"parameters": {torch_modules.COMPILE: "{"}}, r"OPTIONAL_PARAMETERS is no JSON"),
        (
            FILES,
            {"parameters": {torch_modules.COMPILE: '{"colour": "blue"}'}},
            r"unable to load model 'model', TypeError: .*colour",
        ),
        (FILES, {"inputs": []}, r"must contain at least one input, none were specified."),
        (FILES, {"outputs": []}, r"must contain at least one output, none were specified."),
        (
            FILES,
            {"inputs": [TensorInfo("T", DataType.BYTES, [1])]},
            r"tensor 'T' is TYPE_STRING, which modules in Python can't take and give",
        ),
    ],
)  # fmt: skip
def test_what_can_not_be_loaded_says_why(load, files, options, message):
    with pytest.raises(LoadError, match=message):
        load(files, **options)


class Danger:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (print, ("it ran",))


def test_weights_that_would_run_code_are_not_read(load, capsys):
    with pytest.raises(LoadError, match="unable to load model 'model', UnpicklingError"):
        load({**FILES, "model.pt": {"layer.weight": Danger()}})
    assert "it ran" not in capsys.readouterr().out


def test_options_reach_torch_compile(load, monkeypatch):
    seen = []

    def compiled(module, **options):
        seen.append(options)
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    options = {"mode": "reduce-overhead", "dynamic": True, "options": {"max_autotune": False}}
    [got] = load(FILES, parameters={torch_modules.COMPILE: json.dumps(options)})(request([1, 1]))
    assert seen == [options]
    assert got.outputs["Y"].tolist() == [[4, 12, 20]]


def test_without_a_compiler_a_module_runs_as_it_is_unless_options_were_given(load, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CXX", "/nonexistent/g++ -O1")
    told = []
    [got] = load(FILES, parameters={}, log=lambda level, text: told.append((level, text)))(request([1, 1]))
    assert got.outputs["Y"].tolist() == [[4, 12, 20]]
    assert told == [
        (
            "warning",
            "torch.compile needs a C++ compiler, and there is neither /nonexistent/g++ nor clang++: the"
            " module runs as it is",
        )
    ]
    with pytest.raises(LoadError, match=r'write TORCH_COMPILE_OPTIONAL_PARAMETERS \{"disable": true\}'):
        load(FILES, parameters={torch_modules.COMPILE: "{}"})
    # Other compilers than the default one need none.
    load(FILES, parameters={torch_modules.COMPILE: '{"backend": "eager"}'})


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_a_compiled_module_computes_the_same(load, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    code = CODE.replace('        if bool((x > 100).any()):\n            raise ValueError("too large")\n', "")
    files = {**FILES, "model.py": code}
    [got] = load(files, parameters={torch_modules.COMPILE: '{"dynamic": true, "fullgraph": true}'})(
        request([1, 1])
    )
    assert got.outputs["Y"].tolist() == [[4, 12, 20]]
    assert any(tmp_path.rglob("*.so"))
