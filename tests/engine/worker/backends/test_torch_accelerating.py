"""PyTorch models through TensorRT, with a stand-in for Torch-TensorRT that compiles nothing."""

import sys
import zipfile
from types import SimpleNamespace

import pytest
import torch

from actors.values.datatypes import DataType
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.testing import model_info
from engine.worker.backends.torch_loading import load_program

FP32, INT32 = DataType.FP32, DataType.INT32
A, B = TensorInfo("A", FP32, [4]), TensorInfo("B", INT32, [2, 3])
Y = [TensorInfo("Y", FP32, [4])]
CPU = torch.device("cpu")


class Sum(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor):
        return a + b.sum()


class Package:
    """What is asked of the package, and what of it was asked."""

    def __init__(self):
        self.asked = {}
        self.dynamo = SimpleNamespace(compile=self.compile)

    def compile(self, module, **options):
        self.asked = options
        return module if isinstance(module, torch.jit.ScriptModule) else module.module()

    @staticmethod
    def Input(**options):  # its name in the package
        return options

    @staticmethod
    def Device(**options):
        return options


@pytest.fixture
def package(monkeypatch):
    found = Package()
    monkeypatch.setitem(sys.modules, "torch_tensorrt", found)
    return found


def accelerated(directory, inputs=(A, B), *, name="tensorrt", kind="GPU", logged=None, **parameters):
    written = [{"name": name, "parameters": parameters}]
    config = {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": written}}}
    model = model_info(
        directory, inputs=inputs, outputs=Y, max_batch_size=8, kind=kind, device_id=3, config=config
    )
    if logged is not None:
        model.log = lambda level, message: logged.append(message)
    return load_program(torch, model, CPU)


@pytest.fixture
def script(version_directory):
    torch.jit.save(torch.jit.script(Sum()), version_directory / "model.pt")
    return version_directory


@pytest.fixture
def export(version_directory):
    example = torch.ones(2, 4), torch.ones(2, 2, 3, dtype=torch.int32)
    torch.export.save(torch.export.export(Sum(), example), version_directory / "model.pt2")
    return version_directory


def ranges(*dims):
    return {"min_shape": (1, *dims), "opt_shape": (8, *dims), "max_shape": (8, *dims)}


SHAPES = [{**ranges(4), "dtype": torch.float32}, {**ranges(2, 3), "dtype": torch.int32}]


def test_a_script_is_compiled_for_the_batches_that_it_may_get(script, package):
    program = accelerated(script)
    assert package.asked == {
        "ir": "ts",
        "inputs": SHAPES,
        "device": {"gpu_id": 3},
        "enabled_precisions": {torch.float32},
        "workspace_size": 2**30,
        "min_block_size": 3,
    }
    a, b = torch.ones(2, 4), torch.ones(2, 2, 3, dtype=torch.int32)
    assert program.call([a, b]).tolist() == [[13] * 4] * 2


def test_inputs_go_in_the_arguments_order(script, package):
    program = accelerated(script, [TensorInfo("b", INT32, [2, 3]), TensorInfo("a", FP32, [4])])
    assert package.asked["inputs"] == SHAPES
    a, b = torch.ones(2, 4), torch.ones(2, 2, 3, dtype=torch.int32)
    assert program.call([b, a]).tolist() == [[13] * 4] * 2


def test_an_exported_program_is_compiled(export, package):
    program = accelerated(export, [TensorInfo("ARGS[1]", INT32, [2, 3]), TensorInfo("ARGS[0]", FP32, [4])])
    assert package.asked["arg_inputs"] == tuple(SHAPES)
    assert (package.asked["kwarg_inputs"], package.asked["device"]) == ({}, torch.device("cuda:3"))
    a, b = torch.ones(2, 4), torch.ones(2, 2, 3, dtype=torch.int32)
    assert program.call([b, a]).tolist() == [[13] * 4] * 2


def test_parameters_are_those_of_the_compiler(script, package):
    accelerated(script, precision_mode="FP16", max_workspace_size_bytes="77", minimum_segment_size="5")
    assert package.asked["enabled_precisions"] == {torch.float32, torch.float16}
    assert (package.asked["workspace_size"], package.asked["min_block_size"]) == (77, 5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "cuda"}, "unknown Execution Accelerator 'cuda' is requested"),
        ({"fast": "1"}, "unknown parameter 'fast' is provided for TensorRT Execution Accelerator"),
        ({"precision_mode": "FP8"}, "unsupported precision mode 'FP8' is requested"),
        ({"minimum_segment_size": "x"}, "failed to convert 'x' to integral number"),
        (
            {"inputs": [TensorInfo("A", FP32, [-1]), B]},
            r"needs sizes for all .* input 'A' is TYPE_FP32 \[-1\]",
        ),
    ],
)
def test_what_can_not_be_compiled_is_refused(script, package, options, reason):
    with pytest.raises(LoadError, match=reason):
        accelerated(script, **options)


def test_the_accelerator_is_not_read_for_a_cpu(script, package):
    logged: list[str] = []
    accelerated(script, kind="CPU", logged=logged)
    assert package.asked == {}
    assert "'gpu_execution_accelerator' has no effect for instance 'model_0_0' of kind KIND_CPU" in logged[0]


def test_a_missing_package_is_named(script, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(LoadError, match="it needs Torch-TensorRT, which can't be imported"):
        accelerated(script)


def test_a_file_with_engines_needs_the_package(script, monkeypatch):
    with zipfile.ZipFile(script / "model.pt", "a") as archive:
        archive.writestr("model/code/__torch__/engine.py", "__torch__.torch.classes.tensorrt.Engine")
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(LoadError, match="it needs Torch-TensorRT, which can't be imported"):
        load_program(torch, model_info(script, inputs=[A, B], outputs=Y, max_batch_size=8), CPU)
