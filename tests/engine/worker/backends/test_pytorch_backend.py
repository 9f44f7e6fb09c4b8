"""PyTorch models: what is computed equals the module called directly, and what can't be loaded says why."""

import json
import os
import platform
import shutil
import threading
import warnings
import zipfile
from typing import Dict, List, Optional, Tuple  # noqa: UP035  # TorchScript's own spelling

import ml_dtypes
import numpy as np
import pytest
import torch

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.pytorch import PyTorchBackend
from engine.worker.backends.testing import LocalRequest, model_info, run
from engine.worker.backends.torch_loading import check_device, device_of
from engine.worker.backends.torch_names import output_paths, package_inputs, script_inputs

FP32 = DataType.FP32
RNG = np.random.default_rng(0)


class Network(torch.nn.Module):
    """Two results of two arguments."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, image, bias):
        hidden = self.layer(image) + bias
        return torch.relu(hidden), hidden.sum(1, keepdim=True)


class Select(torch.nn.Module):
    """Fails where an index is out of range."""

    def forward(self, data: torch.Tensor, index: torch.Tensor):
        return torch.gather(data, 1, index)


class InPlace(torch.nn.Module):
    """Writes into its argument, then fails on a value of 9."""

    def forward(self, x: torch.Tensor):
        x.add_(1)
        if bool((x == 10).any()):
            raise ValueError("ten")
        return x


class Shout(torch.nn.Module):
    """Text in, text out."""

    def forward(self, text: List[str]) -> List[str]:  # noqa: UP006
        return [each + "!" for each in text]


class OfDict(torch.nn.Module):
    """One dictionary of tensors."""

    def forward(self, tensors: Dict[str, torch.Tensor]):  # noqa: UP006
        return {"sum": tensors["a"] + tensors["b"], "a": tensors["a"]}


class WithOptions(torch.nn.Module):
    """An optional argument and one with a default."""

    def forward(self, x: torch.Tensor, y: Optional[torch.Tensor] = None, k: int = 2):  # noqa: UP045
        return x * k if y is None else x + y


class Twice(torch.nn.Module):
    """Gives back its argument's dtype."""

    def forward(self, x):
        return x + x


class Nested(torch.nn.Module):
    """Results within results."""

    def forward(self, x, *, scale):
        return {"first": x * scale, "rest": (x, [x + 1])}


class NestedArguments(torch.nn.Module):
    """Tensors within arguments."""

    def forward(self, plain, pair, *, named):
        return plain + pair[0] * named["x"] + pair[1] * named["y"][0]


def load(directory, inputs, outputs, **options):
    info = model_info(
        directory,
        inputs=[TensorInfo(*tensor) if isinstance(tensor, tuple) else tensor for tensor in inputs],
        outputs=[TensorInfo(*tensor) if isinstance(tensor, tuple) else tensor for tensor in outputs],
        **options,
    )
    backend = PyTorchBackend()
    backend.load(info)
    return backend, info


@pytest.fixture
def script(version_directory):
    """Save a module as TorchScript: scripted, or traced where examples are given."""

    def save(module, *examples):
        module = module.eval()
        scripted = torch.jit.trace(module, examples) if examples else torch.jit.script(module)
        scripted.save(version_directory / "model.pt")
        return version_directory

    return save


@pytest.fixture
def export(version_directory):
    """Save a module by torch.export with a dynamic first dimension."""

    def save(module, *args, **kwargs):
        batch = torch.export.Dim("batch", min=1)
        shapes = {name: {0: batch} for name in kwargs}
        program = torch.export.export(
            module.eval(),
            args,
            kwargs,
            dynamic_shapes=[*({0: batch} for _ in args), *shapes.values()] if not kwargs else None,
        )
        torch.export.save(program, version_directory / "model.pt2")
        return version_directory

    return save


INPUTS = [("image", FP32, [4]), ("bias", FP32, [3])]
INDEXED = [("INPUT__0", FP32, [4]), ("INPUT__1", FP32, [3])]
OUTPUTS = [("OUTPUT__0", FP32, [3]), ("OUTPUT__1", FP32, [1])]
EXAMPLES = (torch.zeros(2, 4), torch.zeros(2, 3))


def check_network(directory, inputs, outputs, **options):
    """Three requests of different sizes equal three direct calls."""
    backend, model = load(directory, inputs, outputs, max_batch_size=16, **options)
    data = [(RNG.normal(size=(n, 4)).astype("f4"), RNG.normal(size=(n, 3)).astype("f4")) for n in (1, 3, 2)]
    names = [model.inputs[0].name, model.inputs[1].name]
    answers = run(backend, model, [LocalRequest(dict(zip(names, pair, strict=True))) for pair in data])
    network = Network().eval()
    for pair, answer in zip(data, answers, strict=True):
        expected = network(*map(torch.from_numpy, pair))
        for tensor, output in zip(expected, model.outputs, strict=True):
            np.testing.assert_allclose(
                answer.outputs[output.name], tensor.detach().numpy(), rtol=1e-5, atol=1e-6
            )
    backend.unload()


@pytest.mark.parametrize(
    ("saved", "inputs", "outputs", "options"),
    [
        pytest.param("script", INPUTS, OUTPUTS, {}, id="TorchScript"),
        pytest.param(
            "script",
            INDEXED,
            [("x", FP32, [3]), ("y", FP32, [1])],
            {},
            id="TorchScript, whose inputs are named by index",
        ),
        *(
            pytest.param(
                "script", INPUTS, OUTPUTS, {"parameters": parameters}, id=f"parameters: {parameters}"
            )
            for parameters in (
                {"INFERENCE_MODE": "false", "DISABLE_OPTIMIZED_EXECUTION": "true"},
                {"ENABLE_JIT_EXECUTOR": "true", "ENABLE_JIT_PROFILING": "true", "DISABLE_CUDNN": "false"},
                {
                    "INTRA_OP_THREAD_COUNT": "1",
                    "ENABLE_WEIGHT_SHARING": "true",
                    "ENABLE_CACHE_CLEANING": "true",
                },
            )
        ),
        pytest.param("export", INDEXED, OUTPUTS, {}, id="an exported program"),
        pytest.param(
            "export", INPUTS, OUTPUTS, {"artifact": "model.pt"}, id="a program beside an unset filename"
        ),
        pytest.param(
            "export",
            [("ARGS[0]", FP32, [4]), ("ARGS[1]", FP32, [3])],
            [("RESULT[0]", FP32, [3]), ("RESULT[1]", FP32, [1])],
            {},
            id="a program whose tensors are named by place",
        ),
    ],
)
def test_a_model_equals_its_module(request, saved, inputs, outputs, options):
    directory = request.getfixturevalue(saved)(Network(), *EXAMPLES)
    check_network(directory, inputs, outputs, **options)


def test_nested_results_and_keywords_have_places(export):
    directory = export(Nested(), torch.ones(2), scale=torch.ones(2))
    outputs = [("RESULT[first]", FP32, [2]), ("RESULT['rest'][1][0]", FP32, [2])]
    backend, model = load(directory, [("KWARGS[scale]", FP32, [2]), ("ARGS[0]", FP32, [2])], outputs)
    x, scale = np.array([1, 2], "f4"), np.array([3, 4], "f4")
    [answer] = run(backend, model, [LocalRequest({"ARGS[0]": x, "KWARGS[scale]": scale})])
    assert [array.tolist() for array in answer.outputs.values()] == [[3, 8], [2, 3]]


NESTED = {
    "ARGS[0]": 1,
    "ARGS[1][0]": 10,
    "ARGS[1][1]": 100,
    "KWARGS[named]['x']": 2,
    "KWARGS[named][y][0]": 3,
}


@pytest.mark.parametrize("names", [list(NESTED), list(NESTED)[::-1], [f"INPUT__{at}" for at in range(5)]])
def test_nested_arguments_have_places(version_directory, names):
    a, b, c, x, y = (torch.ones(2) for _ in range(5))
    program = torch.export.export(NestedArguments(), (a, [b, c]), {"named": {"x": x, "y": (y,)}})
    torch.export.save(program, version_directory / "model.pt2")
    backend, model = load(version_directory, [(name, FP32, [2]) for name in names], [("SUM", FP32, [2])])
    sent = NESTED if set(names) == set(NESTED) else dict(zip(names, NESTED.values(), strict=True))
    [answer] = run(
        backend, model, [LocalRequest({name: np.full(2, value, "f4") for name, value in sent.items()})]
    )
    assert answer.outputs["SUM"].tolist() == [1 + 10 * 2 + 100 * 3] * 2


def test_threads_are_the_models(script):
    directory = script(Network(), *EXAMPLES)
    load(directory, INPUTS, OUTPUTS, max_batch_size=4, threads=2)
    assert torch.get_num_threads() == 2
    load(directory, INPUTS, OUTPUTS, max_batch_size=4, threads=2, parameters={"NUM_THREADS": "1"})
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("amp", "tolerance"), [("bf16", 5e-2), ("fp16", 5e-3)])
def test_autocast_computes_in_less_and_answers_in_the_configured_type(script, amp, tolerance):
    directory = script(Network(), *EXAMPLES)
    backend, model = load(directory, INPUTS, OUTPUTS, max_batch_size=4, parameters={"tritium.amp": amp})
    x, bias = RNG.normal(size=(4, 4)).astype("f4"), np.zeros((4, 3), "f4")
    [answer] = run(backend, model, [LocalRequest({"image": x, "bias": bias})])
    exact = Network()(torch.from_numpy(x), torch.from_numpy(bias))[0].detach().numpy()
    got = answer.outputs["OUTPUT__0"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, atol=tolerance, rtol=tolerance)
    assert not np.array_equal(got, exact)


def test_outputs_nobody_wants_are_left_out(script):
    backend, model = load(script(Network(), *EXAMPLES), INPUTS, OUTPUTS, max_batch_size=4)
    request = LocalRequest(
        {"image": np.zeros((1, 4), "f4"), "bias": np.zeros((1, 3), "f4")}, requested_outputs=["OUTPUT__1"]
    )
    [answer] = run(backend, model, [request])
    assert list(answer.outputs) == ["OUTPUT__1"]


@pytest.mark.parametrize(
    "datatype",
    [
        d
        for d in DataType
        if d not in (DataType.BYTES, DataType.BF16, DataType.BOOL) and not d.name.startswith("UINT")
    ]
    + [DataType.UINT8],
)
def test_every_datatype_goes_through(script, datatype):
    backend, model = load(script(Twice(), torch.ones(2)), [("x", datatype, [2])], [("y", datatype, [2])])
    [answer] = run(backend, model, [LocalRequest({"x": np.array([1, 3], datatype.numpy)})])
    assert answer.outputs["y"].dtype == datatype.numpy
    assert answer.outputs["y"].tolist() == [2, 6]


def test_bfloat16_keeps_its_bits(script):
    backend, model = load(
        script(Twice(), torch.ones(2)), [("x", DataType.BF16, [2])], [("y", DataType.BF16, [2])]
    )
    x = np.array([1.5, -0.25], ml_dtypes.bfloat16)
    [answer] = run(backend, model, [LocalRequest({"x": x.view(np.uint16)})])
    assert answer.outputs["y"].view(ml_dtypes.bfloat16).tolist() == [3, -0.5]


def test_read_only_inputs_are_copied(script):
    backend, model = load(script(InPlace()), [("x", FP32, [2])], [("y", FP32, [2])])
    x = np.array([1, 2], "f4")
    x.setflags(write=False)
    [answer] = run(backend, model, [LocalRequest({"x": x})])
    assert answer.outputs["y"].tolist() == [2, 3]
    assert x.tolist() == [1, 2]


def test_one_request_at_fault_fails_alone(script):
    inputs = [("data", FP32, [3]), ("index", DataType.INT64, [1])]
    backend, model = load(script(Select()), inputs, [("y", FP32, [1])], max_batch_size=8)
    data = np.array([[5, 6, 7]], "f4")
    good, bad, last = run(
        backend, model, [LocalRequest({"data": data, "index": np.array([[i]])}) for i in (2, 99, 0)]
    )
    assert (good.outputs["y"].tolist(), last.outputs["y"].tolist()) == ([[7]], [[5]])
    assert bad.code is ErrorCode.INTERNAL
    assert bad.message.startswith("PyTorch execute failure: ")
    assert "out of bounds" in bad.message


def test_a_program_that_changed_its_inputs_is_not_run_again(script):
    backend, model = load(script(InPlace()), [("x", FP32, [1])], [("y", FP32, [1])], max_batch_size=8)
    answers = run(backend, model, [LocalRequest({"x": np.array([[value]], "f4")}) for value in (1, 9)])
    assert [answer.code for answer in answers] == [ErrorCode.INTERNAL] * 2


TEXT = (
    TensorInfo("text", DataType.BYTES, [1], reshape=[]),
    TensorInfo("loud", DataType.BYTES, [1], reshape=[]),
)


def test_text_goes_through_as_a_list(script):
    backend, model = load(script(Shout()), TEXT[:1], TEXT[1:], max_batch_size=8)
    texts = [
        np.array(["zo\u00eb".encode(), b"b"], object),
        np.array([b"\xff"], object),
        np.array([b""], object),
    ]
    first, bad, last = run(backend, model, [LocalRequest({"text": text}) for text in texts])
    assert first.outputs["loud"].tolist() == ["zo\u00eb!".encode(), b"b!"]
    assert last.outputs["loud"].tolist() == [b"!"]
    assert bad.code is ErrorCode.INVALID_ARG


def test_a_dictionary_is_filled_and_read_by_name(script):
    tensors = [(name, FP32, [2]) for name in ("b", "a")], [(name, FP32, [2]) for name in ("a", "sum")]
    backend, model = load(script(OfDict()), *tensors)
    [answer] = run(backend, model, [LocalRequest({"a": np.ones(2, "f4"), "b": np.full(2, 2, "f4")})])
    assert {name: array.tolist() for name, array in answer.outputs.items()} == {"a": [1, 1], "sum": [3, 3]}


def test_an_optional_argument_may_be_left_out(script):
    inputs = [("x", FP32, [2]), TensorInfo("y", FP32, [2], optional=True)]
    backend, model = load(script(WithOptions()), inputs, [("OUT", FP32, [2])])
    ones = np.ones(2, "f4")
    assert run(backend, model, [LocalRequest({"x": ones})])[0].outputs["OUT"].tolist() == [2, 2]
    assert run(backend, model, [LocalRequest({"x": ones, "y": ones * 4})])[0].outputs["OUT"].tolist() == [
        5,
        5,
    ]


def test_lanes_share_one_model(script):
    backend, model = load(script(Network(), *EXAMPLES), INPUTS, OUTPUTS, max_batch_size=4, lanes=2)
    request = {"image": np.ones((1, 4), "f4"), "bias": np.zeros((1, 3), "f4")}
    got = []
    threads = [
        threading.Thread(target=lambda: got.extend(run(backend, model, [LocalRequest(request)])))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.outputs["OUTPUT__0"].tobytes() for answer in got}) == 1


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            ("sum", DataType.FP64, [2]),
            "unexpected datatype torch.float32 for inference output 'sum', expecting TYPE_FP64",
        ),
        (("OUT__5", FP32, [2]), "the model returned nothing for output 'OUT__5'"),
    ],
)
def test_an_output_that_the_model_does_not_give_is_an_error(script, output, message):
    backend, model = load(script(OfDict()), [("a", FP32, [2]), ("b", FP32, [2])], [output])
    [answer] = run(backend, model, [LocalRequest(dict.fromkeys("ab", np.ones(2, "f4")))])
    assert answer.message == message


class Pair(torch.nn.Module):
    """Declares what it returns."""

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        return x, x


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "reason"),
    [
        (
            [("x", FP32, [2]), ("z", FP32, [2])],
            [("y", FP32, [2])],
            {},
            "unable to load model 'model', configuration expects 2 inputs, model provides 1",
        ),
        (
            [],
            [("y", FP32, [2])],
            {},
            "unable to load model 'model', configuration expects 0 inputs, model provides 1",
        ),
        (
            [("x", FP32, [2])],
            [("y__2", FP32, [2])],
            {},
            "unable to load model 'model', output 'y__2' stands for result 2, model provides 2",
        ),
        (
            [("x", DataType.BYTES, [1, 2])],
            [("y", FP32, [2])],
            {},
            "unable to load model 'model', input 'x' must be 1-dimensional, batch dimension included: TorchScript has"
            " lists of str and no tensors of them",
        ),
        (
            [("x", DataType.BYTES, [2])],
            [("y", FP32, [2])],
            {},
            "unable to load model 'model', configuration expects datatype TYPE_STRING for input 'x', model provides Tensor",
        ),
        (
            [("x", FP32, [2])],
            [("y", DataType.BYTES, [2])],
            {},
            "unable to load model 'model', configuration expects datatype TYPE_STRING for output 'y', model provides Tensor",
        ),
        (
            [("x", FP32, [2])],
            [("y", FP32, [2])],
            {"parameters": {"INFERENCE_MODE": "maybe"}},
            "model 'model': parameter 'INFERENCE_MODE' must be true or false, got 'maybe'",
        ),
        (
            [("x", FP32, [2])],
            [("y", FP32, [2])],
            {"parameters": {"INTRA_OP_THREAD_COUNT": "-1"}},
            "model 'model': parameter 'INTRA_OP_THREAD_COUNT' must be a number, got '-1'",
        ),
        (
            [("x", FP32, [2])],
            [("y", FP32, [2])],
            {"parameters": {"tritium.amp": "fp8"}},
            "model 'model': parameter 'tritium.amp' must be bf16 or fp16, got 'fp8'",
        ),
        (
            [("x", FP32, [2])],
            [("y", FP32, [2])],
            {"parameters": {"TORCH_COMPILE_OPTIONAL_PARAMETERS": "{}"}},
            "model 'model': TORCH_COMPILE_OPTIONAL_PARAMETERS is for modules in Python: write runtime:"
            ' "model.py"',
        ),
        (
            [("x", FP32, [2])],
            [("y", FP32, [2])],
            {"kind": "GPU"},
            "unable to load model 'model', instance 'model_0_0' has kind KIND_GPU but the installed torch finds no CUDA"
            " device; use KIND_CPU",
        ),
    ],
)
def test_what_can_not_be_loaded_says_why(script, inputs, outputs, options, reason):
    with pytest.raises(LoadError) as caught:
        load(script(Pair()), inputs, outputs, **options)
    assert str(caught.value) == reason


class FakeCuda:
    """Stands for `torch` and `torch.cuda` with one device, which may be lost."""

    def __init__(self, *, lost=False):
        self.cuda = self
        self.device = torch.device
        self._lost = lost

    def is_available(self):
        return True

    def device_count(self):
        return 1

    def synchronize(self, device):
        if self._lost:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_an_instance_has_the_gpu_of_its_group():
    info = model_info(inputs=[], outputs=[], kind="GPU", device_id=0)
    assert device_of(FakeCuda(), info) == torch.device("cuda:0")


def test_a_gpu_that_torch_does_not_see_is_refused():
    info = model_info(inputs=[], outputs=[], kind="GPU", device_id=1)
    with pytest.raises(LoadError) as caught:
        device_of(FakeCuda(), info)
    assert str(caught.value) == (
        "unable to load model 'model', instance 'model_0_0' is for GPU 1 but the installed torch sees 1"
    )


def test_a_failure_that_costs_the_device_ends_the_worker():
    logged = []
    with pytest.raises(SystemExit):
        check_device(
            FakeCuda(lost=True),
            torch.device("cuda:0"),
            RuntimeError("out of range"),
            lambda *line: logged.append(line),
        )
    assert logged == [("error", "cuda:0 is lost to this process: out of range")]


@pytest.mark.parametrize(("lost", "device"), [(False, "cuda:0"), (True, "cpu")])
def test_any_other_failure_does_not(lost, device):
    failure = RuntimeError("out of range")
    check_device(FakeCuda(lost=lost), torch.device(device), failure, lambda *line: pytest.fail(str(line)))


def test_a_missing_or_broken_file_is_refused(version_directory):
    tensors = [("x", FP32, [2])], [("y", FP32, [2])]
    with pytest.raises(LoadError) as caught:
        load(version_directory, *tensors)
    assert str(caught.value) == f"unable to find '{version_directory}/model.pt' for model 'model'"
    (version_directory / "model.pt").write_bytes(b"no model")
    with pytest.raises(LoadError, match="unable to load model 'model', RuntimeError: "):
        load(version_directory, *tensors)


def test_text_in_an_exported_program_is_refused(export):
    with pytest.raises(
        LoadError, match="tensor 'x' is TYPE_STRING, which only TorchScript models can take and give"
    ):
        load(export(Twice(), torch.ones(2)), [("x", DataType.BYTES, [2])], [("y", FP32, [2])])


def test_loading_torchscript_warns_nobody(script):
    directory = script(Network(), *EXAMPLES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(directory, INPUTS, OUTPUTS, max_batch_size=4)


def foreign_package(path, metadata):
    """Write what looks like an AOTInductor package made elsewhere."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p/data/aotinductor/model/x_metadata.json", json.dumps(metadata))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"AOTI_DEVICE_KEY": "cuda"}, "the package is compiled for cuda, the instance runs on cpu"),
        (
            {"AOTI_MACHINE": "z80"},
            "the package is compiled for a CPU with z80, which this machine does not have",
        ),
    ],
)
def test_a_package_for_another_machine_is_refused_before_it_runs(version_directory, metadata, reason):
    foreign_package(version_directory / "model.pt2", metadata)
    with pytest.raises(LoadError) as caught:
        load(version_directory, [("x", FP32, [2])], [("y", FP32, [2])])
    assert str(caught.value) == f"unable to load model 'model', {reason}"


def test_autocast_of_a_compiled_package_is_refused(version_directory):
    foreign_package(version_directory / "model.pt2", {})
    with pytest.raises(LoadError, match="whose precision is compiled in"):
        load(version_directory, [("x", FP32, [2])], [("y", FP32, [2])], parameters={"tritium.amp": "bf16"})


@pytest.fixture
def compiled(version_directory, request):
    """A compiled package of `Network`. Compiling takes long, so that one is kept for the next run."""
    cache = getattr(request.config, "cache", None)  # `-p no:cacheprovider` leaves it out
    folder = version_directory if cache is None else cache.mkdir("compiled")
    kept = folder / f"{torch.__version__}-{platform.node()}-{os.stat(__file__).st_mtime_ns}.pt2"
    if not kept.exists() or "TRITIUM_TESTS_FRESH" in os.environ:
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(Network().eval(), EXAMPLES, dynamic_shapes=({0: batch}, {0: batch}))
        made = version_directory / "model.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(made))
        shutil.copy(made, kept)
    shutil.copy(kept, version_directory / "model.pt2")
    return version_directory


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling a package needs g++")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_package_equals_the_module_and_checks_its_shapes(compiled):
    check_network(compiled, INDEXED, OUTPUTS)
    backend, model = load(compiled, INDEXED, OUTPUTS, max_batch_size=4)
    wrong = {"INPUT__0": np.zeros((1, 2), "f4"), "INPUT__1": np.zeros((1, 3), "f4")}
    [answer] = run(backend, model, [LocalRequest(wrong)])
    assert answer.code is ErrorCode.INTERNAL


# -- which configured tensor is which argument or result: decisions over names


@pytest.mark.parametrize(
    ("names", "arguments", "positions"),
    [
        (["b", "a"], ["a", "b"], [1, 0]),  # all are arguments
        (["INPUT__1", "INPUT__0"], ["a", "b"], [1, 0]),  # all have an index
        (["X__1", "Y"], ["a", "b"], [0, 1]),  # not all: in order
        (["a", "other"], ["b", "a"], [0, 1]),
        (["X"], ["a", "b"], [0]),
        ([], ["a"], []),
    ],
)
def test_script_inputs_go_by_argument_name_then_index_then_order(names, arguments, positions):
    assert script_inputs(names, arguments, "m") == positions


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "b", "c"], "configuration expects 3 inputs, model provides 2"),
        (["X__0", "Y__2"], "input 'Y__2' stands for argument 2, model provides 2"),
        (["X__1", "Y__1"], "several inputs stand for argument 1"),
    ],
)
def test_script_inputs_without_a_place_are_refused(names, reason):
    with pytest.raises(LoadError, match=f"unable to load model 'm', {reason}"):
        script_inputs(names, ["a", "b"], "m")


TWO = [("ARGS", 0), ("ARGS", 1)]
SCALED = [("ARGS", 0), ("KWARGS", "scale")]


@pytest.mark.parametrize(
    ("names", "leaves", "places"),
    [
        (["ARGS[1]", "ARGS[0]"], TWO, [1, 0]),
        (["KWARGS[scale]", "ARGS[0]"], SCALED, [1, 0]),
        (["KWARGS['scale']", "ARGS[ 0 ]"], SCALED, [1, 0]),
        (["IN__1", "IN__0"], SCALED, [1, 0]),
        (["x", "y"], SCALED, [0, 1]),
        (["KWARGS[pair][1]", "ARGS[0][x]"], [("ARGS", 0, "x"), ("KWARGS", "pair", 1)], [1, 0]),
    ],
)
def test_package_inputs_go_by_place_then_index_then_order(names, leaves, places):
    assert package_inputs(names, leaves, "m") == places


@pytest.mark.parametrize(
    "names", [["ARGS[0]", "ARGS[0]"], ["ARGS[0]", "ARGS[7]"], ["ARGS[0]", "KWARGS[scale]"]]
)
def test_package_inputs_must_name_every_argument(names):
    with pytest.raises(LoadError, match=r"do not name its arguments: ARGS\[0\], ARGS\[1\]"):
        package_inputs(names, TWO, "m")


def test_package_inputs_must_be_as_many_as_the_arguments():
    with pytest.raises(LoadError, match="configuration expects 1 inputs, model provides 2"):
        package_inputs(["x"], TWO, "m")


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["RESULT"], [()]),
        (["RESULT[1]", "RESULT[0]['k']", "RESULT[key][2]"], [(1,), (0, "k"), ("key", 2)]),
        (["OUT__1", "OUT__0"], [1, 0]),
        (["scores", "labels"], [0, 1]),
        (["scores__0", "labels"], [0, 1]),
    ],
)
def test_outputs_go_by_path_then_index_then_order(names, paths):
    assert output_paths(names) == paths
