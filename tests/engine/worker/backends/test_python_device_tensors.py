"""Tensors in a GPU's memory, as Python models take and give them, with a stand-in for the driver."""

import gc
import os
import threading
from collections.abc import Callable
from textwrap import indent

import numpy as np
import pytest

from actors.values.datatypes import DataType
from engine.worker.backends.python.backend import PythonBackend
from engine.worker.backends.testing import LocalRequest, run
from engine.worker.devices import cuda
from tests.support.fake_gpu import Memory, built, in_this_process, lose

pytestmark = pytest.mark.system  # a compiler is started for the stand-in

FP32 = DataType.FP32
X = np.arange(6, dtype="f4").reshape(2, 3)
KEEP = {"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """Two devices in this process, for as long as this module runs."""
    with in_this_process(built(tmp_path_factory.mktemp("gpu"))) as environ:
        yield environ


def on_device(array=X, **options):
    return Memory(array, **options).array


@pytest.fixture
def model(environ, python_model):
    """Load a model from the body of its `execute`, with inputs X and Z and outputs Y and SAID."""

    def load(execute, *, keep=True, kind="GPU", device_id=0, **options):
        source = (
            "from engine.worker.devices import dlpack\n"
            "from tests.engine.worker.backends import test_python_device_tensors as here\n"
            "class TritonPythonModel:\n"
            "    def execute(self, requests):\n" + indent(execute.strip("\n"), " " * 8)
        )
        return python_model(
            source,
            inputs=[("X", FP32, [3]), ("Z", FP32, [3])],
            outputs=[("Y", FP32, [3]), ("SAID", DataType.INT64, [-1])],
            kind=kind,
            device_id=device_id,
            parameters=KEEP if keep else {},
            **{"max_batch_size": 8, **options},
        )

    return load


def answered(loaded, *requests):
    backend, info = loaded
    answers = run(backend, info, requests)
    assert [answer.message for answer in answers] == [""] * len(requests)
    return answers


def test_an_input_on_the_gpu_is_given_there_without_a_copy(model):
    loaded = model("""
x = pb_utils.get_input_tensor_by_name(requests[0], "X")
assert not x.is_cpu()
assert (x.name(), x.shape(), x.triton_dtype()) == ("X", [2, 3], 11)
assert x.__dlpack_device__() == (2, 0)
try:
    x.as_numpy()
except pb_utils.TritonModelException as error:
    assert str(error) == "Tensor is stored in GPU and cannot be converted to NumPy."
places = [dlpack.held(capsule).address for capsule in (x.to_dlpack(), x.__dlpack__(stream=7))]
return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([places]))])]
""")
    array = on_device()
    [answer] = answered(loaded, LocalRequest({"X": array}))
    assert answer.outputs["SAID"].tolist() == [[array.address] * 2]


def test_a_model_that_wants_cpu_memory_is_given_copies(model):
    loaded = model(
        """
x = pb_utils.get_input_tensor_by_name(requests[0], "X")
assert x.is_cpu() and x.__dlpack_device__() == (1, 0)
assert np.from_dlpack(x).tolist() == x.as_numpy().tolist()
return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy() + 1)])]
""",
        keep=False,
    )
    [answer] = answered(loaded, LocalRequest({"X": on_device()}))
    assert answer.outputs["Y"].tolist() == (X + 1).tolist()


class Watched(LocalRequest):
    """Notes which inputs are copied to the host."""

    def __init__(self, inputs, **options):
        super().__init__(inputs, **options)
        self.copied = []

    def own(self, name):
        self.copied.append(name)
        return super().own(name)


def test_an_input_that_is_not_read_is_not_copied(model):
    loaded = model(
        """
x, z = requests[0].inputs()
assert x.shape() == [2, 3] and x.triton_dtype() == 11 and x.is_cpu()
return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", z.as_numpy() + z.as_numpy())])]
""",
        keep=False,
    )
    request = Watched({"X": on_device(), "Z": on_device(X * 2)})
    [answer] = answered(loaded, request)
    assert answer.outputs["Y"].tolist() == (X * 4).tolist()
    assert request.copied == ["Z"]


@pytest.mark.parametrize("keep", [True, False])
def test_requests_of_a_batch_have_their_own_rows_of_either_memory(model, keep):
    loaded = model(
        """
responses = []
for request in requests:
    x, z = request.inputs()
    assert x.is_cpu() is not KEEP and z.is_cpu()
    x = x.as_numpy() if x.is_cpu() else dlpack.held(x.to_dlpack()).to_host()
    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + z.as_numpy())]))
return responses
""".replace("KEEP", str(keep)),
        keep=keep,
    )
    parts = [X, X[:1] * 10]
    answers = answered(loaded, *(LocalRequest({"X": on_device(part), "Z": part}) for part in parts))
    assert [answer.outputs["Y"].tolist() for answer in answers] == [(part * 2).tolist() for part in parts]


def test_a_model_without_batches_takes_them_too(model):
    loaded = model(
        """
x, z = requests[0].inputs()
assert not x.is_cpu()
x = dlpack.held(x.to_dlpack()).to_host()
return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + z.as_numpy())])]
""",
        max_batch_size=0,
    )
    [answer] = answered(loaded, LocalRequest({"X": on_device(X[0]), "Z": X[1]}))
    assert answer.outputs["Y"].tolist() == (X[0] + X[1]).tolist()


PASS = """
y = here.Memory(here.X * 2, device=GPU)
return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", y)])]
"""


@pytest.mark.parametrize(
    ("gpu", "instance", "wanted", "stays"),
    [
        pytest.param(0, {"device_id": 0}, ["Y"], True, id="on the instance's GPU"),
        pytest.param(1, {"device_id": 1}, ["Y"], True, id="on the instance's second GPU"),
        pytest.param(0, {"device_id": 0}, [], False, id="read nowhere there"),
        pytest.param(1, {"device_id": 0}, ["Y"], False, id="on another GPU"),
        pytest.param(0, {"kind": "CPU"}, ["Y"], False, id="of an instance on the CPU"),
    ],
)
def test_an_output_on_the_instances_gpu_is_given_there(model, gpu, instance, wanted, stays):
    loaded = model(PASS.replace("GPU", str(gpu)), **instance)
    [answer] = answered(loaded, LocalRequest({"X": X}, device_outputs=wanted))
    assert answer.on_device == ({"Y"} if stays else set())
    assert answer.outputs["Y"].tolist() == (X * 2).tolist()


def test_an_input_may_go_on_as_an_output(model):
    loaded = model("""
inputs = [request.inputs()[0] for request in requests]
return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", x)]) for x in inputs]
""")
    parts = [X, X[:1] * 10]
    requests = [LocalRequest({"X": on_device(part)}, device_outputs=["Y"]) for part in parts]
    for part, answer in zip(parts, answered(loaded, *requests), strict=True):
        assert answer.on_device == {"Y"}
        assert answer.outputs["Y"].tolist() == part.tolist()


def test_a_sender_gives_outputs_there_as_well(model):
    loaded = model("""
y = here.Memory(here.X)
requests[0].get_response_sender().send(
    pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", y)]),
    pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
)
return [None]
""")
    [answer] = answered(loaded, LocalRequest({"X": X}, device_outputs=["Y"]))
    assert answer.on_device == {"Y"}
    assert answer.outputs["Y"].tolist() == X.tolist()


def test_a_decoupled_model_has_everything_in_cpu_memory(model):
    loaded = model(
        """
x = requests[0].inputs()[0]
assert x.is_cpu()
sender = requests[0].get_response_sender()
sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", here.Memory(x.as_numpy()))]))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
        decoupled=True,
    )
    request = LocalRequest({"X": on_device()}, device_outputs=["Y"])
    assert run(loaded[0], loaded[1], [request]) == []
    [part] = request.parts
    assert (part.on_device, part.outputs["Y"].tolist()) == (set(), X.tolist())


def test_an_input_can_not_be_read_when_its_request_is_over(model):
    loaded = model(
        """
late = getattr(self, "late", None)
self.late = requests[0].inputs()[0]
try:
    said = "" if late is None else str(late.as_numpy())
except pb_utils.TritonModelException as error:
    said = str(error)
return [pb_utils.InferenceResponse([], parameters={"said": said})]
""",
        keep=False,
    )
    said = [answered(loaded, LocalRequest({"X": on_device()}))[0].parameters["said"] for _ in range(2)]
    assert said == ["", "tensor 'X' lies on the GPU, and can't be read after its request has been answered"]


def test_what_a_model_has_begun_is_awaited_before_its_inputs_are_given_back(model, monkeypatch):
    order = []
    synchronize = cuda.Driver.synchronize

    def noted(self, device):
        order.append(device)
        synchronize(self, device)

    monkeypatch.setattr(cuda.Driver, "synchronize", noted)
    body = "requests[0].inputs()\nreturn [pb_utils.InferenceResponse([])]"
    for keep, awaited in ((True, [1]), (False, [])):
        loaded = model(body, keep=keep, device_id=1)
        answered(loaded, LocalRequest({"X": on_device(device=1)}))
        assert order == awaited
        order.clear()


LOST: list[Callable[[], None]] = []


def lose_device():
    """Have every call of the device fail from now on, until the test has ended."""
    LOST.append(lose(os.environ))


@pytest.fixture
def lost_device():
    yield
    while LOST:
        LOST.pop()()


@pytest.mark.parametrize(
    ("keep", "body", "said"),
    [
        pytest.param(False, "x.as_numpy()", "tensor 'X': ", id="an input is copied"),
        pytest.param(True, "x.to_dlpack()", "tensor 'X': ", id="an input is shared"),
        pytest.param(
            True,
            "tensors.append(pb_utils.Tensor.from_dlpack('Y', y))",
            "tensor 'Y': ",
            id="an output is given",
        ),
    ],
)
def test_a_lost_device_is_named_with_the_tensor(model, lost_device, keep, body, said):
    loaded = model(
        f"""
x = requests[0].inputs()[0]
y, tensors = here.Memory(here.X), []
here.lose_device()
{body}
return [pb_utils.InferenceResponse(tensors)]
""",
        keep=keep,
    )
    array = on_device()
    [answer] = run(loaded[0], loaded[1], [LocalRequest({"X": array}, device_outputs=["Y"])])
    assert f"{said}the CUDA driver answers CUDA_ERROR_ILLEGAL_ADDRESS" in answer.message


def test_the_memory_lives_as_long_as_what_was_made_of_it(model):
    """A model may keep a capsule; its memory is then not freed, even if all others have let go of it."""
    loaded = model("""
self.kept = requests[0].inputs()[0].to_dlpack()
return [pb_utils.InferenceResponse([])]
""")
    freed = threading.Event()

    class Noted(Memory):
        def __del__(self):
            super().__del__()
            freed.set()

    answered(loaded, LocalRequest({"X": Noted(X).array}))
    gc.collect()
    assert not freed.is_set()
    answered(loaded, LocalRequest({"X": on_device()}))
    gc.collect()
    assert freed.is_set()


def test_the_backend_says_that_it_takes_them():
    assert PythonBackend.device_tensors
