"""One `model.py` for a family of models: what such a backend can do, by Triton's clients."""

import json
import queue
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.support.flavours import process
from tests.support.triton_inputs import inputs

pytestmark = pytest.mark.system

FAMILY = '''
"""What a model of the family does, its file `does` says."""
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils
import beside

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "SEEN", "data_type": "TYPE_STRING", "dims": [1]})
        if open(os.path.join(pb_utils.get_model_dir(), "does")).read() == "repeat":
            config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.args = args
        with open(os.path.join(args["model_repository"], args["model_version"], "does")) as file:
            self.does = file.read()

    def seen(self):
        told = {name: self.args[name] for name in self.args if name != "model_config"}
        told["runtime"] = json.loads(self.args["model_config"])["runtime"]
        told["beside"] = beside.VALUE
        told["folder"] = os.listdir(os.path.dirname(os.path.abspath(__file__)))
        return pb_utils.Tensor("SEEN", np.array([json.dumps(told).encode()], dtype=object))

    def answer(self, value):
        out = pb_utils.Tensor("OUT", np.array([value], np.int32))
        return pb_utils.InferenceResponse([out, self.seen()])

    def execute(self, requests):
        return getattr(self, self.does)(requests)

    def double(self, requests):
        return [self.answer(2 * self.value(each)) for each in requests]

    def value(self, request):
        return int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])

    def repeat(self, requests):
        for each in requests:
            sender = each.get_response_sender()
            for at in range(self.value(each)):
                sender.send(self.answer(at))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def ask(self, requests):
        responses = []
        for each in requests:
            call = pb_utils.InferenceRequest(
                model_name="double", requested_output_names=["OUT"], inputs=[each.inputs()[0]]
            )
            out = pb_utils.get_output_tensor_by_name(call.exec(), "OUT").as_numpy()
            responses.append(self.answer(int(out[0]) + 1))
        return responses

    def refuse(self, requests):
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))
            for each in requests
        ]
'''
VARIANT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        seven = pb_utils.Tensor("OUT", np.array([7], np.int32))
        return [pb_utils.InferenceResponse([seven]) for _ in requests]
"""
MODULE = """
import torch

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.by = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x * self.by, x.sum(1, keepdim=True)
"""
MODULE_CONFIG = """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
dynamic_batching {}
input { name: "X" data_type: TYPE_FP32 dims: 2 }
output { name: "SCALED" data_type: TYPE_FP32 dims: 2 }
output { name: "SUM" data_type: TYPE_FP32 dims: 1 }
parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"disable\\": true}" } }
"""
STRICT = 'parameters { key: "tritium.sandbox" value { string_value: "strict" } }\n'
PORTS = """
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""


@dataclass(frozen=True)
class Family:
    """A server of the family, and where its code and its models lie. Models are loaded when they are used."""

    client: grpc_client.InferenceServerClient
    backends: Path
    models: Path
    loaded: set[str]

    def load(self, *models: str) -> None:
        for model in models:
            if model not in self.loaded:
                self.client.load_model(model)
                self.loaded.add(model)

    def infer(self, model: str, value: int):
        self.load(model)
        return self.client.infer(model, inputs(grpc_client, IN=np.array([value], np.int32)))

    def seen(self, model: str) -> dict:
        return json.loads(self.infer(model, 1).as_numpy("SEEN").item())


def write(models: Path, name: str, does: str, config: str) -> None:
    (models / name / "1").mkdir(parents=True)
    (models / name / "1" / "does").write_text(does)
    (models / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Models of a backend in Python, of a variant of an installed one, and of a backend in a link."""
    folder = tmp_path_factory.mktemp("family")
    backends, models = folder / "backends", folder / "models"
    for name, code in (("family", FAMILY), ("onnxruntime", VARIANT)):
        (backends / name).mkdir(parents=True)
        (backends / name / "model.py").write_text(code)
    (backends / "family" / "beside.py").write_text("VALUE = 1\n")
    (backends / "linked").symlink_to(backends / "family", target_is_directory=True)
    for name in ("double", "repeat", "ask", "refuse"):
        write(models, name, name, 'backend: "family"\n')
    write(models, "strict", "double", f'backend: "family"\n{STRICT}')
    write(models, "of_a_link", "double", f'backend: "linked"\n{STRICT}')
    kinds = "instance_group { kind: KIND_MODEL count: 2 }\n"
    write(models, "kinds", "double", f'backend: "family"\n{kinds}')
    write(models, "variant", "", f'backend: "onnxruntime" runtime: "model.py"\n{PORTS}')
    write(models, "no_variant", "", f'backend: "pytorch" runtime: "other.so"\n{PORTS}')
    write(models, "module", "", MODULE_CONFIG)
    (models / "module" / "1" / "model.py").write_text(MODULE)
    torch.save({"by": torch.tensor([2.0, 3.0])}, models / "module" / "1" / "model.pt")
    serve = process(
        "engine",
        "serve",
        "--backend-config=family,colour=blue",
        "--backend-config=for-all=1",
        TRITIUM_BACKEND_DIRECTORY=str(backends),
        TRITIUM_MODEL_CONTROL_MODE="explicit",
    )
    with serve(models) as addresses, grpc_client.InferenceServerClient(addresses.grpc) as client:
        yield Family(client, backends, models, set())


def test_a_model_of_the_family_knows_its_own_files_and_the_backends_settings(family):
    seen = family.seen("double")
    assert seen["model_repository"] == str(family.models / "double")
    assert (seen["model_name"], seen["model_version"], seen["model_instance_kind"]) == ("double", "1", "CPU")
    assert (seen["runtime"], seen["beside"]) == ("model.py", 1)
    assert json.loads(seen["backend_config"]) == {"cmdline": {"colour": "blue", "for-all": "1"}}


def test_the_configuration_is_completed_by_the_backend(family):
    family.load("repeat")
    config = family.client.get_model_config("repeat").config
    assert (config.backend, config.runtime, config.default_model_filename) == ("family", "model.py", "")
    assert [each.name for each in config.output] == ["OUT", "SEEN"]
    assert config.model_transaction_policy.decoupled


def test_its_models_answer_call_others_and_fail_as_python_models_do(family):
    assert family.infer("double", 21).as_numpy("OUT").tolist() == [42]
    family.load("double")
    assert family.infer("ask", 4).as_numpy("OUT").tolist() == [9]
    with pytest.raises(InferenceServerException, match="no") as failed:
        family.infer("refuse", 1)
    assert failed.value.status() == "StatusCode.NOT_FOUND"


def test_a_decoupled_model_streams(family):
    family.load("repeat")
    got: queue.Queue = queue.Queue()
    family.client.start_stream(lambda result, error: got.put((result, error)))
    family.client.async_stream_infer("repeat", inputs(grpc_client, IN=np.array([3], np.int32)))
    values = []
    for _ in range(3):
        result, error = got.get(timeout=30)
        assert error is None
        values.append(result.as_numpy("OUT").item())
    family.client.stop_stream()
    assert values == [0, 1, 2]


def test_instances_have_the_kinds_that_the_configuration_gives(family):
    assert family.seen("kinds")["model_instance_kind"] == "MODEL"
    assert family.infer("kinds", 2).as_numpy("OUT").tolist() == [4]


@pytest.mark.parametrize("model", ["strict", "of_a_link"])
def test_the_backends_folder_can_be_read_in_a_strict_sandbox(family, model):
    assert {"model.py", "beside.py"} <= set(family.seen(model)["folder"])


def test_the_runtime_chooses_the_variant_of_an_installed_backend(family):
    assert family.infer("variant", 1).as_numpy("OUT").tolist() == [7]
    assert family.client.get_model_config("variant").config.platform == "onnxruntime_onnx"


@pytest.mark.long
def test_pytorchs_runtime_in_python_serves_a_class_and_its_weights(family):
    family.load("module")
    x = np.array([[1, 1], [2, 3]], np.float32)
    found = family.client.infer("module", inputs(grpc_client, X=x))
    assert found.as_numpy("SCALED").tolist() == [[2, 3], [4, 9]]
    assert found.as_numpy("SUM").tolist() == [[2], [5]]
    config = family.client.get_model_config("module").config
    assert (config.platform, config.runtime) == ("pytorch_libtorch", "model.py")
    assert not config.default_model_filename  # the weights' file is not the model


def test_a_runtime_that_is_not_there_is_the_reason_of_its_model(family):
    with pytest.raises(InferenceServerException, match="unable to find backend library"):
        family.client.load_model("no_variant")
    [state] = [
        each for each in family.client.get_model_repository_index().models if each.name == "no_variant"
    ]
    assert (state.state, state.reason) == (
        "UNAVAILABLE",
        "Invalid argument: unable to find backend library 'other.so' for model 'no_variant', searched:"
        f" {family.models}/no_variant/1, {family.models}/no_variant",
    )


def test_a_load_takes_up_a_change_of_the_backends_code_and_else_starts_nothing_anew(family, tmp_path):
    def started() -> int:
        return family.client.get_inference_statistics("double").model_stats[0].inference_count

    family.infer("double", 1)
    before = started()
    assert before
    family.client.load_model("double")
    assert started() == before
    beside = family.backends / "family" / "beside.py"
    shutil.copy(beside, tmp_path)
    beside.write_text("VALUE = 'another'\n")
    try:
        family.client.load_model("double")
        assert family.seen("double")["beside"] == "another"
    finally:
        shutil.copy(tmp_path / "beside.py", beside)
        family.client.load_model("double")
    assert family.seen("double")["beside"] == 1
    assert "__pycache__" not in family.seen("double")["folder"], sys.dont_write_bytecode
