"""`tritium.testing`: models of either style, run without a server, with faults on the way."""

from textwrap import dedent, indent

import numpy as np
import pytest

import tritium
from tritium.testing import (
    Fault,
    InferenceFailed,
    ModelHung,
    ModelNotLoaded,
    NotAModelFile,
    Request,
    open_model,
)

pytestmark = [pytest.mark.slow, pytest.mark.system]

HEAD = """\
import json, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config
"""


@pytest.fixture
def triton_model(tmp_path):
    """Write a model in Triton's style, with an input X and an output Y; its methods are given."""

    def write(methods, name="model.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEAD + indent(methods, "    "))
        return file

    return write


DOUBLE = """
def execute(self, requests):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value(r, "X") * 2)]) for r in requests]
"""


def test_a_model_of_tritons_style_answers(triton_model):
    with open_model(triton_model(DOUBLE)) as model:
        assert model.infer({"X": [1, 2]})["Y"].tolist() == [2, 4]
        assert model.config["input"][0]["name"] == "X"


def test_a_request_that_a_server_would_refuse_is_refused_with_its_text(triton_model):
    with open_model(triton_model(DOUBLE)) as model:
        with pytest.raises(InferenceFailed, match="expected 1 inputs but got 0 inputs for model"):
            model.infer({})
        with pytest.raises(InferenceFailed, match=r"data-type is 'FP64', but model '.*' expects 'FP32'"):
            model.infer({"X": np.zeros(2, np.float64)})
        with pytest.raises(InferenceFailed, match=r"unexpected inference input 'Z' for model '.*': it has X"):
            model.infer({"Z": [1.0]})
        with pytest.raises(InferenceFailed, match="can't be made FP32"):
            model.infer({"X": ["text"]})


def test_the_configuration_is_that_of_the_file_with_what_the_test_replaces(triton_model):
    file = triton_model(DOUBLE)
    (file.parent / "config.pbtxt").write_text(
        'max_batch_size: 4 parameters { key: "a" value { string_value: "1" } } response_cache { enable: true }'
    )
    with open_model(file, config={"max_batch_size": 2}, parameters={"b": "2"}) as model:
        assert model.config["max_batch_size"] == 2
        assert model.config["parameters"] == {"a": {"string_value": "1"}, "b": {"string_value": "2"}}
        assert model.infer({"X": [[1]]})["Y"].tolist() == [[2]]
        with pytest.raises(InferenceFailed, match="batch-size must be <= 2"):
            model.infer({"X": [[1]] * 3})


def test_a_file_in_a_repository_is_the_version_that_it_stands_in(triton_model):
    file = triton_model(DOUBLE, "adder/7/model.py")
    (file.parent.parent / "config.pbtxt").write_text('name: "adder" backend: "python"')
    with open_model(file) as model:
        assert model.config["name"] == "adder"
        assert model.infer({"X": [1]})["Y"].tolist() == [2]


@pytest.mark.parametrize(
    ("methods", "options", "reason"),
    [
        (
            DOUBLE,
            {"config": {"max_batch_size": -3}, "parameters": {"tritium.retry": "nonsense"}},
            r"(?s)max_batch_size.*'nonsense'",
        ),
        (DOUBLE, {"config": {"max_batch": 3}}, "no ModelConfig"),
        (
            DOUBLE + 'def initialize(self, args):\n    raise RuntimeError("no weights")\n',
            {},
            "RuntimeError: no weights",
        ),
    ],
)
def test_everything_that_keeps_a_server_from_loading_the_model_is_told(
    triton_model, methods, options, reason
):
    with pytest.raises(ModelNotLoaded, match=reason), open_model(triton_model(methods), **options):
        pass


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(NotAModelFile, match="there is no such file"), open_model(tmp_path / "missing.py"):
        pass


# -- faults

STREAM = """
def execute(self, requests):
    for r in requests:
        threading.Thread(target=self.answer, args=(r, r.get_response_sender(), value(r, "X"))).start()

def answer(self, request, sender, x):
    try:
        for each in x:
            while each < 0 and not sender.is_cancelled():
                time.sleep(0.001)
            if sender.is_cancelled():
                pb_utils.Logger.log_warn("nobody listens")
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([each]))]))
        if not (len(x) and x[-1] == 99):
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            self.kept = sender
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_error(str(error))
"""
DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


def test_all_responses_of_a_decoupled_model_are_waited_for(triton_model):
    with open_model(triton_model(STREAM), config=DECOUPLED) as model:
        assert [each["Y"].tolist() for each in model.responses({"X": [1, 2, 3]})] == [[1], [2], [3]]
        with pytest.raises(AssertionError, match="gave 2 responses and no error; `responses` returns"):
            model.infer({"X": [1, 2]})


@pytest.mark.parametrize(
    ("fault", "given"),
    [
        (Fault(cancelled=True), []),
        (Fault(cancelled_after=0), []),
        (Fault(cancelled_after=1), [1]),
        (Fault(cancelled_in=0.05), [1, 2]),
    ],
    ids=["from the beginning", "after none", "after one", "while it computes"],
)
def test_a_client_can_leave(triton_model, fault, given):
    with open_model(triton_model(STREAM), config=DECOUPLED) as model:
        responses = model.responses(Request({"X": [1, 2, -1, 3]}, fault=fault))
        assert [each["Y"].tolist() for each in responses] == [[value] for value in given]
        assert model.wait_logged("nobody listens").level == "warning"


def test_a_sender_can_fail(triton_model):
    with open_model(triton_model(STREAM), config=DECOUPLED) as model:
        request = Request({"X": [1, 2, 3]}, fault=Fault(cut_off_after=1))
        assert [each["Y"].tolist() for each in model.responses(request)] == [[1]]
        assert model.wait_logged("Response sender has been closed").level == "error"


def test_a_model_that_hangs_is_shown_where_it_stands(triton_model):
    hanging = "def execute(self, requests):\n    threading.Event().wait()  # for ever\n"
    with pytest.raises(
        ModelHung, match=r"(?s)execute has not returned within 0.2 s.*threading.Event\(\).wait\(\)"
    ):
        with open_model(triton_model(hanging), within=0.2) as model:
            model.infer({"X": [1]})


def test_a_request_without_its_final_response_is_told(triton_model):
    with open_model(triton_model(STREAM), config=DECOUPLED, within=0.2) as model:
        with pytest.raises(ModelHung, match=r"not had its final response within 0\.2 s, but 2 others"):
            model.responses({"X": [1, 99]})
        with pytest.raises(ModelHung):
            model.responses({"X": [99]})


def test_a_line_that_is_never_logged_is_not_waited_for_for_ever(triton_model):
    with open_model(triton_model(DOUBLE), within=0.1) as model:
        with pytest.raises(ModelHung, match="nothing with 'done' in it was logged"):
            model.wait_logged("done")


def test_readiness_is_the_models(triton_model):
    with open_model(triton_model(DOUBLE)) as model:
        assert model.ready()
    with open_model(triton_model(DOUBLE + "def is_ready(self):\n    return False\n")) as model:
        assert not model.ready()


# -- what a model asks of a server

CALLING = """
def execute(self, requests):
    return [self.answer(r) for r in requests]

def answer(self, request):
    call = pb_utils.InferenceRequest(
        model_name="other", requested_output_names=["B"], parameters={"k": 1}, request_id="call",
        inputs=[pb_utils.Tensor("A", value(request, "X"))], timeout=1500000,
    )
    response = call.exec()
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", response.output_tensors()[0].as_numpy())])
"""


def test_a_call_to_another_model_is_answered_by_the_tests_function(triton_model):
    def other(call):
        return {"B": call.inputs["A"] + np.float32(1), "C": ["not asked for"]}

    with open_model(triton_model(CALLING), models={"other": other}) as model:
        assert model.infer({"X": [1, 2]})["Y"].tolist() == [2, 3]
        [call] = model.calls
        assert (call.model, call.requested_outputs, call.id, call.timeout) == ("other", ("B",), "call", 1.5)
        assert call.parameters == {"k": 1}
        assert call.inputs["A"].tolist() == [1, 2]


def refusing(call):
    raise tritium.RequestError("too busy", "UNAVAILABLE")


def breaking(call):
    raise ValueError("wrong shape")


@pytest.mark.parametrize(
    ("models", "code", "text"),
    [
        ({"other": refusing}, "UNAVAILABLE", "too busy"),
        ({"other": breaking}, "INTERNAL", "message: ValueError: wrong shape"),
        ({"other": lambda call: iter([])}, "UNSUPPORTED", "Model other is using the decoupled"),
        ({}, "NOT_FOUND", "Request for unknown model: 'other' is not found"),
    ],
    ids=["refused", "failed", "decoupled", "unknown"],
)
def test_a_call_can_fail(triton_model, models, code, text):
    with open_model(triton_model(CALLING), models=models) as model:
        with pytest.raises(InferenceFailed, match=text) as caught:
            model.infer({"X": [1]})
        assert caught.value.code == code


def test_a_fake_of_a_decoupled_model_yields(triton_model):
    file = triton_model("""
def execute(self, requests):
    call = pb_utils.InferenceRequest(
        model_name="other", requested_output_names=["B"], inputs=requests[0].inputs())
    parts = [t.as_numpy() for r in call.exec(decoupled=True) for t in r.output_tensors()]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.concatenate(parts))])]
""")

    def other(call):
        for value in call.inputs["X"]:
            yield {"B": np.array([value, value])}

    with open_model(file, models={"other": other}) as model:
        assert model.infer({"X": [1, 2]})["Y"].tolist() == [1, 1, 2, 2]


def test_what_a_model_counts_can_be_read(triton_model):
    file = triton_model("""
def initialize(self, args):
    self.family = pb_utils.MetricFamily("rows_seen", "Rows", pb_utils.MetricFamily.COUNTER)
    self.rows = self.family.Metric(labels={"kind": "a b"})

def execute(self, requests):
    for r in requests:
        self.rows.increment(len(value(r, "X")))
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value(r, "X"))]) for r in requests]
""")
    with open_model(file) as model:
        model.infer({"X": [1, 2, 3]})
        assert model.metrics == {'rows_seen{kind="a b"}': 3.0}


def test_what_a_model_asks_of_others_is_answered_by_the_fakes(triton_model):
    file = triton_model("""
def execute(self, requests):
    pb_utils.unload_model("other")
    before = pb_utils.is_model_ready("other")
    pb_utils.load_model("other", config="{}", files={"file:1/a": b"x"})
    after = pb_utils.is_model_ready("other")
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([before, after], np.float32))])]
""")
    with open_model(file, models={"other": lambda call: {}}) as model:
        assert model.infer({"X": [1]})["Y"].tolist() == [0, 1]
        assert [subject for subject, _ in model.asked] == [
            "model.unload",
            "model.ready",
            "model.load",
            "model.ready",
        ]
        assert model.asked[2][1]["files"] == {"file:1/a": b"x"}


RAGGED = {"data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}


def test_requests_of_different_shapes_share_a_batch_if_the_model_says_so(triton_model):
    config = {"max_batch_size": 4, "input": [{"name": "X", **RAGGED}]}
    with open_model(triton_model(DOUBLE), config=config) as model:
        answers = model.batch([{"X": [[1, 2]]}, {"X": [[3]]}])
        assert [answer["Y"].tolist() for [answer] in answers] == [[[2, 4]], [[6]]]


def test_padded_inputs_are_padded_and_outputs_cut(triton_model):
    sizes = """
    def execute(self, requests):
        assert all(value(r, "X").shape[1] == 4 for r in requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value(r, "X") * 2)]) for r in requests]
    """
    parameters = {"tritium.pad_to": "X:1=4", "tritium.pad_outputs": "Y:1=X:1"}
    with open_model(
        triton_model(dedent(sizes)), config={"max_batch_size": 4}, parameters=parameters
    ) as model:
        answers = model.batch([{"X": [[1, 2]]}, {"X": [[3]]}])
        assert [answer["Y"].tolist() for [answer] in answers] == [[[2, 4]], [[6]]]
        with pytest.raises(InferenceFailed, match="more than the 4 that it is padded to"):
            model.infer({"X": [[1] * 5]})
