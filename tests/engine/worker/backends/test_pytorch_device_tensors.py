"""PyTorch models whose inputs lie on the device already, and whose outputs stay there.

The device is the CPU here: tensors are wrapped, joined and given as on a GPU, by DLPack with the CPU's
number. Streams are not proved by this; `test_gpu.py` has them, on a device.
"""

import ml_dtypes
import numpy as np
import pytest
import torch

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.pytorch import PyTorchBackend
from engine.worker.backends.testing import LocalRequest, model_info, run
from engine.worker.devices.arrays import DeviceArray

FP32 = DataType.FP32
X, Y = [("x", FP32, [2])], [("y", FP32, [2])]


class OnItsDevice(PyTorchBackend):
    """Takes the CPU for a device on which tensors can lie."""

    def load(self, model):
        super().load(model)
        self._by_device = True


class Watched(LocalRequest):
    """Notes which inputs are copied to the host."""

    def __init__(self, inputs, **options):
        super().__init__(inputs, **options)
        self.copied = []

    def own(self, name):
        if self.device_input(name) is not None:
            self.copied.append(name)
        return super().own(name)


class Given(LocalRequest):
    """Notes where its outputs lie that it is given."""

    def __init__(self, inputs, **options):
        super().__init__(inputs, **options)
        self.given = {}

    def settle(self, outputs, parameters=None):
        self.given.update({name: array for name, _, array in outputs})
        super().settle(outputs, parameters)


class Add(torch.nn.Module):
    """Fails on a sum of 9."""

    def forward(self, x: torch.Tensor, z: torch.Tensor):
        y = x + z
        if bool((y == 9).any()):
            raise ValueError("nine")
        return y


class InPlace(torch.nn.Module):
    """Writes into its argument, then fails on a value of 9."""

    def forward(self, x: torch.Tensor):
        x.add_(1)
        if bool((x == 10).any()):
            raise ValueError("ten")
        return x


class Split(torch.nn.Module):
    """Results that are not contiguous, and share memory."""

    def forward(self, x: torch.Tensor):
        both = torch.stack([x, x * 2], dim=-1)
        return both[..., 0], both[..., 1]


class Half(torch.nn.Module):
    """A result of less than the configured type, as under autocast."""

    def forward(self, x: torch.Tensor):
        return x.to(torch.bfloat16) * 2


def on_device(array, datatype=FP32):
    return DeviceArray(array, array.ctypes.data, array.shape, datatype, device=1, device_id=0)


def row(*values):
    return on_device(np.array([values], "f4"))


@pytest.fixture
def load(version_directory):
    def load(module, inputs=X, outputs=Y, **options):
        torch.jit.script(module).save(version_directory / "model.pt")
        info = model_info(
            version_directory,
            inputs=[TensorInfo(*tensor) if isinstance(tensor, tuple) else tensor for tensor in inputs],
            outputs=[TensorInfo(*tensor) for tensor in outputs],
            **{"max_batch_size": 8, **options},
        )
        backend = OnItsDevice()
        backend.load(info)
        return backend, info

    return load


def answered(loaded, *requests):
    backend, model = loaded
    answers = run(backend, model, requests)
    assert [answer.message for answer in answers] == [""] * len(requests)
    return answers


@pytest.mark.parametrize("wanted", [["y"], []])
def test_inputs_on_the_device_are_joined_there_beside_those_of_the_host(load, wanted):
    loaded = load(Add(), [*X, ("z", FP32, [2])])
    requests = [
        Watched({"x": row(1, 2), "z": np.ones((1, 2), "f4")}, device_outputs=wanted),
        Watched({"x": row(3, 4), "z": np.zeros((1, 2), "f4")}, device_outputs=wanted),
    ]
    answers = answered(loaded, *requests)
    assert [answer.outputs["y"].tolist() for answer in answers] == [[[2, 3]], [[3, 4]]]
    assert [answer.on_device for answer in answers] == [set(wanted)] * 2
    assert [request.copied for request in requests] == [[], []]


@pytest.mark.parametrize("datatype", [d for d in DataType if d not in (DataType.BYTES, DataType.BOOL)])
def test_every_datatype_is_taken_and_given_there(load, datatype):
    loaded = load(torch.nn.Identity(), [("x", datatype, [2])], [("y", datatype, [2])])
    values = np.array([[1, 3]], ml_dtypes.bfloat16 if datatype is DataType.BF16 else datatype.numpy)
    request = Given({"x": on_device(values.view(datatype.numpy), datatype)}, device_outputs=["y"])
    [answer] = answered(loaded, request)
    assert answer.on_device == {"y"}
    assert answer.outputs["y"].view(values.dtype).tolist() == [[1, 3]]
    assert (request.given["y"].datatype, request.given["y"].shape) == (datatype, (1, 2))


def test_a_model_that_writes_into_its_inputs_writes_into_its_own(load):
    loaded = load(InPlace())
    shared = np.array([[1, 2]], "f4")
    for _ in range(2):
        [answer] = answered(loaded, LocalRequest({"x": on_device(shared)}, device_outputs=["y"]))
        assert answer.outputs["y"].tolist() == [[2, 3]]
    assert shared.tolist() == [[1, 2]]


def test_a_model_that_wrote_into_its_inputs_can_be_given_them_again(load):
    loaded = load(InPlace())
    good, bad = run(loaded[0], loaded[1], [LocalRequest({"x": row(value, value)}) for value in (1, 9)])
    assert good.outputs["y"].tolist() == [[2, 2]]
    assert "ten" in bad.message


def test_results_are_given_contiguous_and_by_their_own_request(load):
    loaded = load(Split(), outputs=[("y", FP32, [2]), ("z", FP32, [2])])
    requests = [
        LocalRequest({"x": row(1, 2)}, device_outputs=["y", "z"]),
        LocalRequest({"x": row(3, 4)}, device_outputs=["y"]),  # so that only y stays
    ]
    first, second = answered(loaded, *requests)
    assert (first.on_device, second.on_device) == ({"y"}, {"y"})
    assert (first.outputs["y"].tolist(), first.outputs["z"].tolist()) == ([[1, 2]], [[2, 4]])
    assert (second.outputs["y"].tolist(), second.outputs["z"].tolist()) == ([[3, 4]], [[6, 8]])


def test_autocasts_results_stay_in_the_configured_type(load):
    loaded = load(Half(), parameters={"tritium.amp": "bf16"})
    [answer] = answered(loaded, LocalRequest({"x": row(1, 2)}, device_outputs=["y"]))
    assert answer.on_device == {"y"}
    assert (answer.outputs["y"].dtype, answer.outputs["y"].tolist()) == (np.float32, [[2, 4]])


def test_one_request_at_fault_fails_alone_and_the_others_stay_there(load):
    loaded = load(Add(), [*X, ("z", FP32, [2])])
    z = np.zeros((1, 2), "f4")
    requests = [Watched({"x": row(at, at), "z": z}, device_outputs=["y"]) for at in (1, 9, 3)]
    first, bad, last = run(loaded[0], loaded[1], requests)
    assert bad.code is ErrorCode.INTERNAL
    assert "nine" in bad.message
    for answer, value in ((first, 1), (last, 3)):
        assert (answer.on_device, answer.outputs["y"].tolist()) == ({"y"}, [[value, value]])
    assert [request.copied for request in requests] == [[], [], []]


def test_an_optional_input_may_be_left_out_or_lie_there(load):
    class Optionally(torch.nn.Module):
        def forward(self, x: torch.Tensor, z: torch.Tensor | None = None):
            return x * 2 if z is None else x + z

    loaded = load(Optionally(), [*X, TensorInfo("z", FP32, [2], optional=True)])
    [alone] = answered(loaded, LocalRequest({"x": row(1, 2)}))
    [both] = answered(loaded, LocalRequest({"x": row(1, 2), "z": row(5, 5)}))
    assert (alone.outputs["y"].tolist(), both.outputs["y"].tolist()) == ([[2, 4]], [[6, 7]])


def test_without_a_batch_dimension_and_without_elements(load):
    loaded = load(torch.nn.Identity(), [("x", FP32, [-1])], [("y", FP32, [-1])], max_batch_size=0)
    for values in ([], [1, 2, 3]):
        array = np.array(values, "f4")
        address = array.ctypes.data if values else 0
        given = DeviceArray(array, address, array.shape, FP32, device=1, device_id=0)
        [answer] = answered(loaded, LocalRequest({"x": given}, device_outputs=["y"]))
        assert (answer.on_device, answer.outputs["y"].tolist()) == ({"y"}, values)


def test_text_goes_by_the_host_in_any_case(load):
    class Shout(torch.nn.Module):
        def forward(self, text: list[str]) -> list[str]:
            return [each + "!" for each in text]

    text = TensorInfo("text", DataType.BYTES, [1], reshape=[])
    backend, model = load(Shout(), [text], [("loud", DataType.BYTES, [1])])
    request = LocalRequest({"text": np.array([b"a", b"b"], object)}, device_outputs=["loud"])
    [answer] = run(backend, model, [request])
    assert (answer.on_device, answer.outputs["loud"].tolist()) == (set(), [b"a!", b"b!"])


def test_a_result_lives_until_its_answer_has_been_given(load):
    """The answer is a copy; the memory of the result is not read any more."""
    loaded = load(torch.nn.Identity())
    request = Given({"x": row(1, 2)}, device_outputs=["y"])
    answered(loaded, request)
    owner = request.given["y"].owner
    assert isinstance(owner, torch.Tensor)
    assert owner.data_ptr() == request.given["y"].address


def test_on_the_cpu_nothing_lies_on_a_device(version_directory):
    """A worker never gives such inputs there; if one came, it would be copied, as for every backend."""
    assert PyTorchBackend.device_tensors
    torch.jit.script(torch.nn.Identity()).save(version_directory / "model.pt")
    info = model_info(
        version_directory,
        inputs=[TensorInfo(*X[0])],
        outputs=[TensorInfo(*Y[0])],
        max_batch_size=8,
    )
    backend = PyTorchBackend()
    backend.load(info)
    request = Watched({"x": row(1, 2)}, device_outputs=["y"])
    [answer] = answered((backend, info), request)
    assert (answer.on_device, answer.outputs["y"].tolist(), request.copied) == (set(), [[1, 2]], ["x"])
