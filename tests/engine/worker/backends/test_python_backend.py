"""Python models: the classes and functions of `triton_python_backend_utils`, and the rules of `execute`."""

import json
import sys
import threading
from typing import Any, cast

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.python import triton_python_backend_utils as pb_utils
from engine.worker.backends.python.backend import PythonBackend
from engine.worker.backends.python.host import Host, attach
from engine.worker.backends.testing import LocalRequest, model_info, run

X, Y = ("X", DataType.FP32, [2]), ("Y", DataType.FP32, [2])
ONES = np.ones((1, 2), "f4")
FAILED = "Failed to process the request(s) for model 'model_0_0', message: "


@pytest.fixture
def model(python_model):
    """Load a model with input X and output Y from the body of its class."""

    def load(body, **options):
        source = "class TritonPythonModel:\n" + body
        return python_model(source, **{"inputs": [X], "outputs": [Y], "max_batch_size": 8, **options})

    return load


@pytest.fixture
def answers(model):
    """Run one batch of `count` requests with X = 1, 2, … on a model whose `execute` has this body."""

    def answer(body, count=1, requests=None, **options):
        lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
        backend, info = model("    def execute(self, requests):\n" + lines, **options)
        return run(backend, info, requests or [LocalRequest({"X": ONES * (i + 1)}) for i in range(count)])

    return answer


RESPOND = "pb_utils.InferenceResponse([pb_utils.Tensor('Y', r.inputs()[0].as_numpy() * 2)])"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(f"return [{RESPOND} for r in requests]", id="a list"),
        pytest.param(
            f"""
for r in requests:
    r.get_response_sender().send({RESPOND}, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
return None
""",
            id="senders",
        ),
        pytest.param(
            f"""
import threading
def later(sender, r):
    sender.send({RESPOND})
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
self.threads = [threading.Thread(target=later, args=(r.get_response_sender(), r)) for r in requests]
for thread in self.threads:
    thread.start()
return [None] * len(requests)
""",
            id="senders on other threads, which are waited for",
        ),
    ],
)
def test_each_request_is_answered_with_its_own_response(answers, body):
    got = answers(body, count=3)
    assert [answer.outputs["Y"].tolist() for answer in got] == [[[2, 2]], [[4, 4]], [[6, 6]]]


def test_an_input_may_be_given_back_as_an_output(answers):
    [got] = answers(
        """
r = requests[0]
given = pb_utils.Tensor('Y', r.inputs()[0].as_numpy())
return [pb_utils.InferenceResponse([given], parameters={'p': r.parameters()})]
"""
    )
    assert got.outputs["Y"].tolist() == [[1, 1]]
    assert got.parameters == {"p": "{}"}  # a request without parameters has an empty object


def test_initialize_gets_seven_strings(model, version_directory):
    config = {"name": "model", "max_batch_size": 8, "parameters": {"k": {"string_value": "v"}}}
    backend, info = model(
        """
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        import json
        return [pb_utils.InferenceResponse([], parameters={"args": json.dumps(self.args)})]
""",
        config=config,
    )
    [got] = run(backend, info, [LocalRequest({"X": ONES})])
    args = json.loads(str(got.parameters["args"]))
    assert json.loads(args.pop("model_config")) == config
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "model_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(version_directory.parent),
        "model_version": "1",
        "model_name": "model",
    }


def test_a_backends_class_is_given_the_backends_settings(version_directory):
    code = version_directory.parent / "backend" / "model.py"
    code.parent.mkdir()
    code.write_text(
        """
import json
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters={"args": json.dumps(self.args)})]
"""
    )
    info = model_info(
        version_directory,
        inputs=[TensorInfo(*X)],
        outputs=[TensorInfo(*Y)],
        artifact=str(code),
        settings={"threads": "2"},
    )
    backend = PythonBackend()
    backend.load(info)
    [got] = run(backend, info, [LocalRequest({"X": ONES})])
    args = json.loads(str(got.parameters["args"]))
    assert json.loads(args["backend_config"]) == {"cmdline": {"threads": "2"}}
    assert args["model_repository"] == str(version_directory.parent)


def test_a_request_shows_what_the_client_sent(answers):
    request = LocalRequest(
        {"X": ONES},
        id="r1",
        correlation_id="seq",
        flags=1,
        timeout=5,
        parameters={"a": 1, "b": "x", "c": True, "d": 0.5},
        requested_outputs=["Y"],
    )
    request.is_cancelled = True
    [got] = answers(
        """
r = requests[0]
r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
facts = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.requested_output_names(),
         r.parameters(), r.is_cancelled(), r.trace().get_context(), r.inputs()[0].shape(), r.inputs()[0].triton_dtype()]
r.set_flags(2)
facts.append(r.flags())
return [pb_utils.InferenceResponse([], parameters={"facts": repr(facts)})]
""",
        requests=[request],
    )
    expected = [
        "r1",
        "seq",
        1,
        5,
        ["Y"],
        '{"a": 1, "b": "x", "c": true, "d": 0.5}',
        True,
        None,
        [1, 2],
        11,
        2,
    ]
    assert got.parameters["facts"] == repr(expected)


@pytest.mark.parametrize(
    ("response", "code", "message"),
    [
        pytest.param(
            'pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))',
            ErrorCode.NOT_FOUND,
            "no",
            id="an error",
        ),
        pytest.param(
            "None",
            ErrorCode.INTERNAL,
            f"{FAILED}Expected an 'InferenceResponse' object in the execute function return list, found type"
            " '<class 'NoneType'>'.",
            id="nothing",
        ),
        pytest.param(
            'pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([chr(0xD800)], dtype=object))])',
            ErrorCode.INTERNAL,
            "UnicodeEncodeError",
            id="an output that can't be encoded",
        ),
    ],
)
def test_a_response_that_fails_its_request_fails_no_other(answers, response, code, message):
    first, second = answers(f"return [{response}] + [{RESPOND} for r in requests[1:]]", count=2)
    assert first.code is code
    assert message in first.message
    assert second.outputs["Y"].tolist() == [[4, 4]]


def test_an_exception_fails_the_batch_with_its_trace(answers, version_directory):
    got = answers("def inner():\n    raise ValueError('bad')\ninner()", count=2)
    path = version_directory / "model.py"
    expected = f"{FAILED}ValueError: bad\n\nAt:\n  {path}(6): inner\n  {path}(7): execute\n"
    assert [(answer.code, answer.message) for answer in got] == [(ErrorCode.INTERNAL, expected)] * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects."
            " InferenceRequest(s) size is:2, and InferenceResponse(s) size is:0\n",
        ),
        ("return 1", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("return None", "Expected a list in the execute return, found type '<class 'NoneType'>'."),
        (
            "return [1, 2]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
    ],
)
def test_a_wrong_return_fails_the_batch(answers, body, message):
    assert [answer.message for answer in answers(body, count=2)] == [FAILED + message] * 2


def test_a_model_without_execute_says_so(python_model, version_directory):
    backend, info = python_model("class TritonPythonModel: pass\n", inputs=[X], outputs=[Y], max_batch_size=8)
    [got] = run(backend, info, [LocalRequest({"X": ONES})])
    assert (
        got.message
        == f"{FAILED}Python model {version_directory}/model.py does not implement `execute` method."
    )


def test_a_coroutine_execute_is_run_to_its_end(model):
    backend, info = model(f"""
    async def execute(self, requests):
        import asyncio
        await asyncio.sleep(0)
        return [{RESPOND} for r in requests]
""")
    for _ in range(2):
        [got] = run(backend, info, [LocalRequest({"X": ONES})])
        assert got.outputs["Y"].tolist() == [[2, 2]]


def test_an_exception_in_a_coroutine_is_told(model):
    backend, info = model("    async def execute(self, requests):\n        raise KeyError('k')\n")
    [got] = run(backend, info, [LocalRequest({"X": ONES})])
    assert got.message.startswith(f"{FAILED}KeyError: 'k'\n\nAt:\n")


# --- senders ------------------------------------------------------------------------------------------------


def test_a_sender_that_is_dropped_fails_its_request(answers):
    assert answers("requests[0].get_response_sender()\nreturn [None]")[0].code is ErrorCode.INTERNAL


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("s.send(ok, 7)", "Unable to send response. Unsupported flag provided."),
        ("s.send()", "Inference Response object must be provided when the response flags is set to zero."),
        ("s.send(ok, 1); s.send(ok, 1)", "Unable to send response. Response sender has been closed."),
        (
            "s.send(ok); s.send(ok)",
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        (
            "s.send(None, 1)",
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        ),
        (
            "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='m').get_response_sender().send(ok)",
            "Unable to send response. Response sender has no reference to the decoupled state of the model.",
        ),
    ],
)
def test_senders_refuse_what_breaks_their_rules(answers, calls, message):
    body = f"""
r = requests[0]
s = r.get_response_sender()
ok = {RESPOND}
try:
    {calls}
except pb_utils.TritonModelException as error:
    self.said = str(error)
    raise RuntimeError(self.said)
"""
    seen = []
    answers(body, log=lambda level, text: seen.append(text))
    assert f"RuntimeError: {message}" in seen[0]


def test_an_error_closes_the_batchs_senders(model):
    backend, info = model("""
    kept = []
    def execute(self, requests):
        self.kept.append(requests[0].get_response_sender())
        raise ValueError("x")
    def is_ready(self):
        try:
            self.kept[0].send(pb_utils.InferenceResponse([]), 1)
        except pb_utils.TritonModelException as error:
            return str(error).endswith("sender has been closed.")
""")
    run(backend, info, [LocalRequest({"X": ONES})])
    assert backend.ready()


# --- tensors and tables -------------------------------------------------------------------------------------


def test_bytes_arrive_as_bytes_and_text_leaves_as_utf8(answers):
    text = ("X", DataType.BYTES, [2]), ("Y", DataType.BYTES, [2])
    [got] = answers(
        """
x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
assert all(type(e) is bytes for e in x.ravel()) and x.shape == (1, 2)
return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[x[0, 0].decode() + "\\u00e9", x[0, 1]]], dtype=object))])]
""",
        requests=[LocalRequest({"X": np.array([[b"a", b"\xff"]], object)})],
        inputs=[text[0]],
        outputs=[text[1]],
    )
    assert got.outputs["Y"].tolist() == [["a\u00e9".encode(), b"\xff"]]


def test_named_tensors_are_found_or_none(answers):
    [got] = answers(f"""
r = requests[0]
response = {RESPOND}
assert pb_utils.get_input_tensor_by_name(r, "W") is None
assert pb_utils.get_output_tensor_by_name(response, "W") is None
assert pb_utils.get_output_tensor_by_name(response, "Y").name() == "Y"
return [response]
""")
    assert got.code is None


def test_tensors_copy_only_what_is_not_contiguous():
    array = np.arange(6, dtype="i4").reshape(2, 3)
    assert pb_utils.Tensor("T", array).as_numpy() is array
    turned = pb_utils.Tensor("T", array.T)
    assert turned.as_numpy().flags.c_contiguous
    assert turned.shape() == [3, 2]
    assert turned.is_cpu()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: pb_utils.Tensor("", np.ones(1)), "Tensor name cannot be an empty string."),
        (lambda: pb_utils.Tensor(b"", np.ones(1)), "Tensor name cannot be an empty string"),
        (lambda: pb_utils.Tensor("T", np.ones(1, complex)), "NumPy dtype is not supported."),
        (
            lambda: pb_utils.Tensor("T", np.array([b"x"], object)).to_dlpack(),
            "DLPack does not have support for string tensors.",
        ),
        (lambda: pb_utils.Tensor.from_dlpack("T", [1]), "Provided tensor is not supported."),
        (
            lambda: pb_utils.Tensor.from_dlpack("T", np.ones((2, 3)).T),
            "DLPack tensor is not contiguous.",
        ),
        (lambda: pb_utils.Tensor.from_dlpack("", np.ones(1)), "name cannot be an empty"),
        (lambda: pb_utils.Tensor.from_dlpack("T", np.ones(1, complex)), "are not supported"),
        (
            lambda: pb_utils.InferenceResponse([None]),  # type: ignore[list-item]
            "Output tensor for inference response should not be empty.",
        ),
        (
            lambda: pb_utils.InferenceResponse([], parameters={"a": 1.5}),
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        (
            lambda: pb_utils.InferenceRequest(
                inputs=[], requested_output_names=[], model_name="m"
            ).set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE),
            "only a request that execute was given",
        ),
    ],
)
def test_what_tensors_responses_and_requests_can_not_hold_is_refused(made, message):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        made()
    assert message in str(caught.value)


def test_a_tensor_takes_a_numpy_array():
    with pytest.raises(TypeError, match="takes a numpy array"):
        pb_utils.Tensor("T", [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
def test_dlpack_shares_memory_both_ways(dtype):
    tensor = pb_utils.Tensor("T", np.ones((2, 3), dtype))
    assert tensor.__dlpack_device__() == (1, 0)
    assert np.shares_memory(np.from_dlpack(cast("Any", tensor)), tensor.as_numpy())
    for exported in (tensor, tensor.to_dlpack()):
        back = pb_utils.Tensor.from_dlpack("B", exported)
        assert back.triton_dtype() == tensor.triton_dtype()
        assert np.shares_memory(back.as_numpy(), tensor.as_numpy())


def test_bfloat16_travels_by_dlpack_only():
    torch = pytest.importorskip("torch")
    source = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    for exported in (source, torch.utils.dlpack.to_dlpack(source)):
        tensor = pb_utils.Tensor.from_dlpack("T", exported)
        assert tensor.triton_dtype() == 14
        assert torch.equal(torch.from_dlpack(tensor), source)
        with pytest.raises(
            pb_utils.TritonModelException, match="Tensor dtype is BF16 and cannot be converted"
        ):
            tensor.as_numpy()


def test_a_capsule_is_used_once():
    capsule = np.ones(1).__dlpack__()
    pb_utils.Tensor.from_dlpack("T", capsule)
    with pytest.raises(ValueError, match="PyCapsule"):
        pb_utils.Tensor.from_dlpack("T", capsule)


def test_type_tables_are_tritons():
    for unknown in ("TYPE_BF16", "FP32"):
        with pytest.raises(KeyError):
            pb_utils.triton_string_to_numpy(unknown)
    assert [pb_utils.triton_to_numpy_type(n) for n in (14, 99)] == [None, None]
    assert [pb_utils.numpy_to_triton_type(t) for t in (np.bytes_, np.complex64)] == [13, None]


def test_bytes_tensors_serialise_and_back():
    elements = np.array([["a\u00e9", b"\xff"], ["", b"x"]], dtype=object)
    packed = pb_utils.serialize_byte_tensor(elements)
    assert packed.startswith(b"\x03\0\0\0a\xc3\xa9\x01\0\0\0\xff")
    assert pb_utils.deserialize_bytes_tensor(packed).tolist() == ["a\u00e9".encode(), b"\xff", b"", b"x"]
    assert pb_utils.serialize_byte_tensor(np.array([], dtype=object)) == ()
    assert pb_utils.serialize_byte_tensor(np.ones(1)) is None


def test_configurations_are_searched_by_name():
    config = {"input": [{"name": "X"}], "output": [{"name": "Y"}]}
    assert pb_utils.get_input_config_by_name(config, "X") == {"name": "X"}
    assert pb_utils.get_output_config_by_name(config, "X") is None
    assert not pb_utils.using_decoupled_model_transaction_policy(config)
    assert pb_utils.using_decoupled_model_transaction_policy(
        {"model_transaction_policy": {"decoupled": True}}
    )


# --- loading ------------------------------------------------------------------------------------------------


def test_a_model_imports_its_neighbours(python_model, version_directory):
    (version_directory / "beside_it.py").write_text("VALUE = 1\n")
    (version_directory.parent / "above_it.py").write_text("VALUE = 2\n")
    python_model("""
import beside_it, above_it
from . import beside_it as relative
assert (beside_it.VALUE, above_it.VALUE, relative.VALUE) == (1, 2, 1)
assert __name__ == "1.model"
class TritonPythonModel: pass
""")


def test_a_model_may_name_its_modules_like_the_servers(python_model, version_directory, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "protocols"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if path.endswith(("-packages", "lib-dynload", "3.11"))]
    )
    (version_directory / "protocols.py").write_text("MINE = True\n")
    try:
        python_model("import protocols\nassert protocols.MINE\nclass TritonPythonModel: pass\n")
    finally:
        sys.modules.pop("protocols", None)


def test_the_model_directory_and_log_are_the_models_own(model, version_directory):
    said = []
    model(
        """
    def initialize(self, args):
        self.directory = pb_utils.get_model_dir()
        pb_utils.Logger.log_info(self.directory)
        pb_utils.Logger.log_warn("w")
        pb_utils.Logger.log_error("e")
        pb_utils.Logger.log_verbose("v")
        pb_utils.Logger.log("plain")
        pb_utils.Logger.log("loud", pb_utils.Logger.ERROR)
""",
        log=lambda level, text: said.append((level, text)),
    )
    assert said == [
        ("info", f"model.py:7] {version_directory}"),
        ("warning", "model.py:8] w"),
        ("error", "model.py:9] e"),
        ("verbose", "model.py:10] v"),
        ("info", "model.py:11] plain"),
        ("error", "model.py:12] loud"),
    ]


def test_two_models_in_one_process_keep_their_own_directories(python_model):
    _, info = python_model(
        "class TritonPythonModel:\n    def is_ready(self): return pb_utils.get_model_dir() == ''"
    )
    seen = []

    def other():
        attach(Host("/elsewhere", info.log))
        seen.append(pb_utils.get_model_dir())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == ["/elsewhere"]
    assert pb_utils.get_model_dir() == info.version_directory


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('gone')", "OSError: gone\n\nAt:\n  {path}(3): <module>\n"),
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no')",
            "ValueError: no\n\nAt:\n  {path}(5): initialize\n",
        ),
        (
            "class TritonPythonModel:\n    def __init__(self):\n        1 / 0",
            "ZeroDivisionError: division by zero\n\nAt:\n  {path}(5): __init__\n",
        ),
        (
            "x = 1",
            "AttributeError: module '1.model' has no attribute 'TritonPythonModel', and nothing that is declared with tritium.model",
        ),
    ],
)
def test_a_model_that_fails_to_start_says_where(python_model, version_directory, source, reason):
    with pytest.raises(LoadError) as caught:
        python_model(source)
    text = "\n".join(line for line in str(caught.value).split("\n") if "importlib" not in line)
    assert text == reason.format(path=version_directory / "model.py")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"filename": "model.txt"}, "Model name must end with '.py'. Model name is \"model.txt\"."),
        (
            {"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": "maybe"}},
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'",
        ),
        ({"settings": {"shm-default-byte-size": "1"}}, "shm-default-byte-size can't be smaller than 4 MiBs"),
        (
            {"settings": {"thread-pool-size": "many"}},
            "thread-pool-size must be a whole number, got 'many' (--backend-config=python,thread-pool-size=…)",
        ),
        (
            {"settings": {"shm-growth-byte-size": "0"}},
            "shm-growth-byte-size can't be smaller than or equal to zero.",
        ),
        (
            {"settings": {"stub-timeout-seconds": "0"}},
            "stub-timeout-seconds can't be smaller than or equal to zero.",
        ),
        ({"settings": {"thread-pool-size": "0"}}, "thread-pool-size can't be less than 1."),
        (
            {"settings": {"shm-region-prefix-name": ""}},
            "shm-region-prefix-name must at least contain one character.",
        ),
    ],
)
def test_what_can_not_be_honoured_is_refused_at_load(python_model, options, reason):
    with pytest.raises(LoadError) as caught:
        python_model("class TritonPythonModel: pass\n", **options)
    assert str(caught.value) == reason


def test_a_missing_file_is_named(python_model, version_directory):
    _, info = python_model("class TritonPythonModel: pass\n")
    (version_directory / "model.py").unlink()
    with pytest.raises(LoadError) as caught:
        PythonBackend().load(info)
    assert str(caught.value) == f"Python model file not found in '{version_directory}/model.py'"


@pytest.mark.parametrize(
    ("body", "ready", "logged"),
    [
        ("def is_ready(self): return True", True, ""),
        ("def is_ready(self): return False", False, ""),
        ("async def is_ready(self): return True", True, ""),
        ("def is_ready(self): return 1", False, "is_ready() must return a boolean value"),
        ("def is_ready(self): raise ValueError('x')", False, "is_ready failed: ValueError: x"),
        ("pass", True, ""),
    ],
)
def test_is_ready_is_asked(model, body, ready, logged):
    said = []
    backend, _ = model(f"    {body}\n", log=lambda level, text: said.append(text))
    assert backend.ready() is ready
    assert "".join(said).startswith(logged)


def test_finalize_is_called_and_its_errors_only_logged(python_model, version_directory):
    said = []
    backend, _ = python_model(
        "class TritonPythonModel:\n    def finalize(self):\n        raise ValueError('late')\n",
        log=lambda level, text: said.append(text),
    )
    backend.unload()
    assert said[-1].startswith("finalize failed: ValueError: late")
    assert str(version_directory) not in sys.path


def test_a_model_that_failed_to_load_leaves_no_path_behind(python_model, version_directory):
    with pytest.raises(LoadError):
        python_model("raise OSError")
    assert str(version_directory) not in sys.path


STUB = "triton_python_backend_stub"


def test_a_stub_of_the_models_own_is_refused(python_model, version_directory):
    (version_directory.parent / STUB).write_bytes(b"")
    with pytest.raises(
        LoadError, match=f"brings a '{STUB}', which Tritium can't run: remove it, and name the"
    ):
        python_model("class TritonPythonModel: pass\n")


def test_a_stub_beside_an_environment_is_left_alone_and_said_to_be(python_model, version_directory):
    (version_directory.parent / STUB).write_bytes(b"")
    said = []
    python_model(
        "class TritonPythonModel: pass\n",
        parameters={"EXECUTION_ENV_PATH": "env.tar.gz"},
        log=lambda level, text: said.append((level, text)),
    )
    assert said == [
        ("warning", f"'{STUB}' is not used: the model runs on the interpreter of EXECUTION_ENV_PATH")
    ]


@pytest.mark.parametrize("cpu_only", ["yes", "no"])
def test_inputs_from_the_host_are_in_cpu_memory_whatever_is_preferred(model, cpu_only):
    backend, info = model(
        """
    def execute(self, requests):
        assert all(tensor.is_cpu() for tensor in requests[0].inputs())
        return [pb_utils.InferenceResponse([])]
""",
        parameters={"FORCE_CPU_ONLY_INPUT_TENSORS": cpu_only},
    )
    [got] = run(backend, info, [LocalRequest({"X": ONES})])
    assert got.code is None


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("parameters", "context"),
    [
        ({}, None),
        ({"tracestate": "a=b"}, None),
        ({"traceparent": TRACEPARENT, "k": 1}, {"traceparent": TRACEPARENT}),
        (
            {"traceparent": TRACEPARENT, "tracestate": "a=b"},
            {"traceparent": TRACEPARENT, "tracestate": "a=b"},
        ),
    ],
)
def test_a_trace_is_what_the_client_sent_along(answers, parameters, context):
    [got] = answers(
        "return [pb_utils.InferenceResponse([], parameters={'context': str(requests[0].trace().get_context())})]",
        requests=[LocalRequest({"X": ONES}, parameters=parameters)],
    )
    said = got.parameters["context"]
    assert (None if said == "None" else json.loads(said)) == context


def test_coroutines_are_waited_for_in_finalize_and_what_they_started_goes_on_between_batches(python_model):
    said = []
    backend, info = python_model(
        """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        if requests[0].request_id() == "first":
            self.gate = asyncio.Event()
            self.task = asyncio.get_running_loop().create_task(self.background())
        else:
            self.gate.set()
            await self.task
        return [pb_utils.InferenceResponse([])]
    async def background(self):
        await self.gate.wait()
    async def finalize(self):
        await asyncio.sleep(0)
        pb_utils.Logger.log_info("over")
""",
        inputs=[X],
        log=lambda level, text: said.append(text),
    )
    for name in ("first", "second"):
        [got] = run(backend, info, [LocalRequest({"X": ONES[0]}, id=name)])
        assert got.code is None
    backend.unload()
    assert said[0].endswith("] over")
