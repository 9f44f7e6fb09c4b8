"""`tritium.testing` with tensors on a GPU, for which there is a stand-in."""

import numpy as np
import pytest

from actors.values.datatypes import DataType
from tests.support.fake_gpu import Memory, built, in_this_process
from tritium.testing import InferenceFailed, ModelNotLoaded, Request, open_model

pytestmark = pytest.mark.system

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def initialize(self, args):
        self.on = args["model_instance_kind"] + args["model_instance_device_id"]

    def execute(self, requests):
        outputs = [self.answer(request.inputs()[0]) for request in requests]
        return [pb_utils.InferenceResponse([each], parameters={"on": self.on}) for each in outputs]
"""
PASS = """
    def answer(self, x):
        assert not x.is_cpu()
        return pb_utils.Tensor.from_dlpack("Y", x)
"""
DOUBLE = """
    def answer(self, x):
        return pb_utils.Tensor("Y", x.as_numpy() * 2)
"""
CALL = """
    def answer(self, x):
        assert not x.is_cpu()
        call = pb_utils.InferenceRequest(model_name="other", inputs=[x], requested_output_names=["Y"])
        return call.exec().output_tensors()[0]
"""
X = np.arange(3, dtype="f4")
KEEP = {"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}


@pytest.fixture(scope="module", autouse=True)
def gpus(tmp_path_factory):
    with in_this_process(built(tmp_path_factory.mktemp("gpu"))):
        yield


@pytest.fixture
def file(tmp_path):
    def write(answer):
        (tmp_path / "model.py").write_text(MODEL + answer)
        return tmp_path / "model.py"

    return write


def test_what_lies_on_a_gpu_is_given_there_and_may_stay(file):
    with open_model(file(PASS), parameters=KEEP, gpu=1) as model:
        for wanted in (["Y"], []):
            answer = model.infer(Request({"X": Memory(X, device=1)}, device_outputs=wanted))
            assert (answer["Y"].tolist(), answer.on_device) == (X.tolist(), set(wanted))
            assert answer.parameters == {"on": "GPU1"}


def test_a_model_that_wants_cpu_memory_has_it_of_either(file):
    with open_model(file(DOUBLE), gpu=0) as model:
        for x in (X, Memory(X), Memory(X).array):
            assert model.infer({"X": x})["Y"].tolist() == [0, 2, 4]


def test_a_model_on_the_cpu_has_copies_whatever_it_wants(file):
    with open_model(file(DOUBLE), parameters=KEEP) as model:
        answer = model.infer({"X": Memory(X)})
        assert (answer["Y"].tolist(), answer.parameters) == ([0, 2, 4], {"on": "CPU0"})


def test_a_function_is_given_arrays(tmp_path):
    (tmp_path / "double.py").write_text("""
import tritium
from tritium import FP32, Array

@tritium.model(max_batch_size=4)
def double(x: FP32[Array, -1]) -> FP32[Array, -1]:
    return x * 2
""")
    with open_model(tmp_path / "double.py", parameters=KEEP, gpu=0) as model:
        answers = model.batch([{"x": Memory(X[None])}, {"x": Memory(X[None] + 1)}])
        assert [answer["output"].tolist() for [answer] in answers] == [[[0, 2, 4]], [[2, 4, 6]]]


def test_another_model_is_called_with_copies(file):
    with open_model(
        file(CALL), parameters=KEEP, gpu=0, models={"other": lambda call: {"Y": call.inputs["X"] + 1}}
    ) as model:
        assert model.infer({"X": Memory(X)})["Y"].tolist() == [1, 2, 3]
        assert model.calls[0].inputs["X"].tolist() == X.tolist()


def test_what_a_server_refuses_is_refused_there_too(file):
    with open_model(file(PASS), parameters=KEEP, gpu=0) as model:
        with pytest.raises(InferenceFailed, match="data-type is 'INT32', but model"):
            model.infer({"X": Memory(np.ones(3, "i4"), DataType.INT32)})
        with pytest.raises(InferenceFailed, match="unexpected shape for input 'X'"):
            model.infer({"X": Memory(X.reshape(1, 3))})
        with pytest.raises(InferenceFailed, match="can't be made FP32: it is not contiguous"):
            model.infer({"X": Turned()})


class Turned:
    """Memory whose elements do not lie one after the other."""

    def __dlpack__(self):
        return np.ones((2, 3), "f4").T.__dlpack__()

    def __dlpack_device__(self):
        return 2, 0


def test_a_gpu_of_the_configuration_must_be_one_of_the_tests(file):
    config = {"instance_group": [{"kind": "KIND_GPU"}]}
    with pytest.raises(ModelNotLoaded, match="GPU"):
        with open_model(file(PASS), config=config):
            pass
    with open_model(file(PASS), config=config, parameters=KEEP, gpu=0) as model:
        assert model.infer({"X": Memory(X)}).parameters == {"on": "GPU0"}
