"""What every backend must do, whatever its framework. A new backend joins by adding a `Kit` to `KITS`."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.testing import LocalRequest, model_info, run
from tests.support.kits import Onnx, OpenVino, Python, TorchScript

ROOT = Path(__file__).parents[2]
FP32 = DataType.FP32
NUMBERS = [datatype for datatype in DataType if datatype is not DataType.BYTES]
KITS = [Onnx(), OpenVino(), TorchScript(), Python()]


@pytest.fixture(params=KITS, ids=lambda kit: type(kit).__name__)
def kit(request):
    """One backend's kit."""
    return request.param


def backend_class(kit):
    module, _, name = kit.backend.partition(":")
    return getattr(import_module(module), name)


@pytest.fixture
def load(kit, tmp_path):
    """Load one of the kit's models; it is unloaded after the test."""
    loaded = []
    directory = tmp_path / "model" / "1"
    directory.mkdir(parents=True)

    def do(save, inputs, outputs, **options):
        save(directory)
        info = model_info(
            directory,
            inputs=[TensorInfo(*tensor) for tensor in inputs],
            outputs=[TensorInfo(*tensor) for tensor in outputs],
            **options,
        )
        backend = backend_class(kit)()
        backend.load(info)
        loaded.append(backend)
        return backend, info

    yield do
    for backend in loaded:
        backend.unload()


@pytest.fixture
def add_sub(kit, load):
    """The loaded add/sub model, of batches up to 64 rows."""
    inputs = [("A", FP32, [3]), ("B", FP32, [3])]
    return load(kit.add_sub, inputs, [("SUM", FP32, [3]), ("DIFFERENCE", FP32, [3])], max_batch_size=64_000)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_every_request_of_a_batch_gets_what_it_would_get_alone(add_sub, sizes, seed):
    backend, model = add_sub
    rng = np.random.default_rng(seed)
    data = [(rng.normal(size=(n, 3)).astype("f4"), rng.normal(size=(n, 3)).astype("f4")) for n in sizes]
    answers = run(backend, model, [LocalRequest({"A": a, "B": b}) for a, b in data])
    for (a, b), answer in zip(data, answers, strict=True):
        np.testing.assert_array_equal(answer.outputs["SUM"], a + b)
        np.testing.assert_array_equal(answer.outputs["DIFFERENCE"], a - b)
        assert set(answer.datatypes.values()) == {FP32}


def test_each_request_gets_only_the_outputs_it_asked_for(add_sub):
    backend, model = add_sub
    a = np.ones((1, 3), "f4")
    wishes = [["SUM"], ["DIFFERENCE"], []]
    answers = run(backend, model, [LocalRequest({"A": a, "B": a}, requested_outputs=wish) for wish in wishes])
    assert [sorted(answer.outputs) for answer in answers] == [["SUM"], ["DIFFERENCE"], ["DIFFERENCE", "SUM"]]


def test_a_large_batch_is_answered_whole(add_sub):
    backend, model = add_sub
    a = np.arange(3 * 64 * 1000, dtype="f4").reshape(-1, 3)
    [answer] = run(backend, model, [LocalRequest({"A": a, "B": a})])
    np.testing.assert_array_equal(answer.outputs["SUM"], a + a)
    assert not answer.outputs["DIFFERENCE"].any()


def test_inputs_are_left_as_they_came(add_sub):
    backend, model = add_sub
    a = np.ones((2, 3), "f4")
    run(backend, model, [LocalRequest({"A": a, "B": a})])
    assert (a == 1).all()


@pytest.mark.parametrize("datatype", NUMBERS, ids=str)
def test_every_bit_of_every_datatype_survives(kit, load, datatype):
    backend, model = load(
        lambda directory: kit.identity(directory, datatype, rank=3),
        [("X", datatype, [-1, -1])],
        [("Y", datatype, [-1, -1])],
        max_batch_size=8,
    )
    raw = np.random.default_rng(0).bytes(24 * datatype.size)
    x = np.frombuffer(raw, datatype.numpy).reshape(2, 3, 4)
    if datatype is DataType.BOOL:
        x = np.frombuffer(raw, np.uint8).reshape(2, 3, 4) > 100
    if datatype in kit.narrowed:
        halves = {DataType.INT64: "i4", DataType.UINT64: "i4", DataType.FP64: "f4"}[datatype]
        x = np.abs(np.frombuffer(raw[:96], halves).reshape(2, 3, 4)).astype(datatype.numpy)
    first, second = run(backend, model, [LocalRequest({"X": x[:1]}), LocalRequest({"X": x[1:]})])
    assert first.outputs["Y"].tobytes() + second.outputs["Y"].tobytes() == x.tobytes()
    assert first.outputs["Y"].shape == (1, 3, 4)


@pytest.mark.parametrize("elements", [["a", "zo\u00eb \U0001f600", ""], ["nul\0inside", "x", "y" * 10_000]])
def test_text_survives(kit, load, elements):
    if not kit.has_text:
        pytest.skip("requests of this backend carry no text")
    dims = list(kit.text_dims)
    backend, model = load(
        lambda directory: kit.identity(directory, DataType.BYTES, rank=1 + len(dims)),
        [("X", DataType.BYTES, dims)],
        [("Y", DataType.BYTES, dims)],
        max_batch_size=8,
    )
    x = np.array([element.encode() for element in elements], dtype=object).reshape(3, *[1] * len(dims))
    first, second = run(backend, model, [LocalRequest({"X": x[:1]}), LocalRequest({"X": x[1:]})])
    assert [*first.outputs["Y"].ravel(), *second.outputs["Y"].ravel()] == x.ravel().tolist()


def test_a_model_without_batching_sees_its_own_shape(kit, load):
    backend, model = load(
        lambda directory: kit.identity(directory, FP32, rank=2),
        [("X", FP32, [-1, 2])],
        [("Y", FP32, [-1, 2])],
    )
    x = np.arange(6, dtype="f4").reshape(3, 2)
    [answer] = run(backend, model, [LocalRequest({"X": x})])
    np.testing.assert_array_equal(answer.outputs["Y"], x)


def test_a_tensor_without_elements_is_a_tensor(kit, load):
    backend, model = load(
        lambda directory: kit.identity(directory, FP32, rank=2),
        [("X", FP32, [-1])],
        [("Y", FP32, [-1])],
        max_batch_size=8,
    )
    [answer] = run(backend, model, [LocalRequest({"X": np.zeros((2, 0), "f4")})])
    assert answer.outputs["Y"].shape == (2, 0)


def test_one_request_at_fault_fails_alone(kit, load):
    inputs = [("A", FP32, [3]), ("I", DataType.INT64, [1])]
    backend, model = load(kit.select, inputs, [("Y", FP32, [1])], max_batch_size=8)
    a = np.array([[5, 6, 7]], "f4")
    answers = run(backend, model, [LocalRequest({"A": a, "I": np.array([[i]])}) for i in (2, 99, 0)])
    assert [answer.code for answer in answers] == [None, ErrorCode.INTERNAL, None]
    assert answers[1].message
    assert [answers[i].outputs["Y"].tolist() for i in (0, 2)] == [[[7]], [[5]]]


def test_a_batch_after_a_failed_one_is_answered(kit, load):
    inputs = [("A", FP32, [3]), ("I", DataType.INT64, [1])]
    backend, model = load(kit.select, inputs, [("Y", FP32, [1])], max_batch_size=8)
    a = np.array([[5, 6, 7]], "f4")
    for index, code in ((99, ErrorCode.INTERNAL), (1, None)):
        [answer] = run(backend, model, [LocalRequest({"A": a, "I": np.array([[index]])})])
        assert answer.code is code


def test_a_model_that_is_not_there_is_a_load_error(kit, tmp_path):
    info = model_info(tmp_path, inputs=[], outputs=[], name="absent")
    with pytest.raises(LoadError, match=r"not found|unable to find"):
        backend_class(kit)().load(info)


def test_a_loaded_model_is_ready(add_sub):
    assert add_sub[0].ready()


def test_the_entry_point_names_the_backend(kit):
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "tritium.backends"
    ]
    assert entry_points[backend_class(kit).name] == kit.backend
    assert backend_class(kit).default_artifact


IN_A_WORKER = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from actors.values.datatypes import DataType
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.testing import LocalRequest, model_info, run
from {module} import {name} as Backend

assert {framework!r} not in sys.modules, "importing the backend imports {framework}"
ours = {{"engine", "actors", "protocols", "chaos"}}
for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
    del sys.modules[name]
sys.path.remove({root!r})

tensors = [TensorInfo(name, DataType.FP32, [3]) for name in ("A", "B", "SUM", "DIFFERENCE")]
model = model_info({directory!r}, inputs=tensors[:2], outputs=tensors[2:], max_batch_size=8)
backend = Backend()
backend.load(model)
ones = np.ones((1, 3), "f4")
[answer] = run(backend, model, [LocalRequest({{"A": ones, "B": ones}})])
assert answer.outputs["SUM"].tolist() == [[2, 2, 2]], answer
backend.unload()
left = [name for name in sys.modules if name.partition(".")[0] in ours]
assert not left, left
"""


def test_a_backend_needs_none_of_our_names_once_it_is_imported(kit, tmp_path):
    kit.add_sub(tmp_path)
    module, _, name = kit.backend.partition(":")
    script = IN_A_WORKER.format(
        root=str(ROOT), module=module, name=name, framework=kit.framework, directory=str(tmp_path)
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
