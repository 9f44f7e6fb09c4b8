"""Ensembles in a real server, over HTTP and gRPC, as Triton's own clients see them."""

import io
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from tests.support.flavours import process, write_onnx_model
from tests.support.triton_inputs import inputs

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}

PREPROCESS = """
import io

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            files = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy()
            try:
                rows = [np.load(io.BytesIO(each), allow_pickle=False) for each in files.ravel()]
            except ValueError as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"no image: {error}")))
                continue
            pixels = np.stack(rows).astype(np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)]))
        return responses
"""

COUNTDOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            for number in range(int(values.ravel()[0]), 0, -1):
                tensor = pb_utils.Tensor("Y", np.full_like(values, number))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

MEMO = """
import pathlib

import numpy as np
import triton_python_backend_utils as pb_utils

MEMO = pathlib.Path(@MEMO@)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            with MEMO.open("a") as memo:
                memo.write(f"{request.request_id()} {request.correlation_id()} {request.parameters()}\\n")
            values = pb_utils.get_input_tensor_by_name(request, "X")
            outputs = [pb_utils.Tensor("Y", values.as_numpy())]
            if request.request_id() == "stingy":
                outputs = []
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""


def ensemble(folder: Path, name: str, tensors: str, *steps: str, batch: int = 4, more: str = "") -> None:
    """Write an ensemble; a step reads `model in=tensor, ... -> out=tensor, ...`."""
    written = []
    for step in steps:
        model, _, maps = step.partition(" ")
        ins, outs = (
            " ".join(
                '{}_map {{ key: "{}" value: "{}" }}'.format(side, *pair.split("="))
                for pair in part.split(", ")
            )
            for side, part in zip(("input", "output"), maps.split(" -> "), strict=True)
        )
        model, _, version = model.partition(":")
        written.append(f'step {{ model_name: "{model}" model_version: {version or -1} {ins} {outs} }}')
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: {batch}\n{tensors}\n'
        f"ensemble_scheduling {{ {' '.join(written)} {more} }}\n"
    )


def tensor(side: str, name: str, kind: str = "FP32", dims: str = "[ 16 ]") -> str:
    """Return a declared tensor."""
    return f'{side} {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }}'


TWO = "\n".join([tensor("input", "A"), tensor("input", "B"), tensor("output", "S"), tensor("output", "D")])
CHAIN = (
    "add A=A, B=B -> S=s1, D=d1",
    "add A=s1, B=d1 -> S=s2, D=d2",
    "add A=s2, B=d2 -> S=S, D=D",
)


def python_model(folder: Path, name: str, code: str, ports: str, *, batch: int = 8, more: str = "") -> None:
    """Write a model of the python backend."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(code)
    (folder / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\n{ports}\ninstance_group {{ kind: KIND_CPU }}\n{more}'
    )


@pytest.fixture(scope="module")
def memo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which the model `memo` records what it learns of each request."""
    return tmp_path_factory.mktemp("memo") / "memo"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, memo: Path) -> Path:
    """Models, and ensembles of them."""
    folder = tmp_path_factory.mktemp("repository")
    write_onnx_model(
        folder,
        "add",
        nodes=[("Add", ["A", "B"], "S"), ("Sub", ["A", "B"], "D")],
        inputs=[("A", TensorProto.FLOAT, [16]), ("B", TensorProto.FLOAT, [16])],
        outputs=[("S", TensorProto.FLOAT, [16]), ("D", TensorProto.FLOAT, [16])],
    )
    write_onnx_model(
        folder,
        "scores",
        nodes=[("Identity", ["X"], "Y")],
        inputs=[("X", TensorProto.FLOAT, [-1])],
        outputs=[("Y", TensorProto.FLOAT, [-1])],
        labels="cat\ndog\nhorse\n",
    )
    python_model(
        folder,
        "decode",
        PREPROCESS,
        tensor("input", "FILE", "STRING", "[ 1 ]") + "\n" + tensor("output", "PIXELS", dims="[ -1 ]"),
    )
    python_model(
        folder,
        "memo",
        MEMO.replace("@MEMO@", repr(str(memo))),
        tensor("input", "X") + "\n" + tensor("output", "Y"),
    )
    python_model(
        folder,
        "countdown",
        COUNTDOWN,
        tensor("input", "X") + "\n" + tensor("output", "Y"),
        more="model_transaction_policy { decoupled: true }",
    )
    ensemble(
        folder,
        "streamed",
        "\n".join([tensor("input", "X"), tensor("output", "Y")]),
        "scores X=X -> Y=start",
        "countdown X=start -> Y=number",
        "scores X=number -> Y=Y",
        more="max_inflight_requests: 3",
    )
    ensemble(folder, "chain", TWO, *CHAIN)
    port = tensor("input", "X", dims="[ -1 ]"), tensor("output", "Y", dims="[ -1 ]")
    ensemble(
        folder,
        "wide",
        "\n".join(port),
        "scores X=X -> Y=one",
        "scores X=one -> Y=two",
        "scores X=two -> Y=Y",
    )
    ensemble(folder, "outer", TWO, "chain A=A, B=B -> S=s, D=d", "add A=s, B=d -> S=S, D=D")
    ensemble(
        folder,
        "classify",
        tensor("input", "FILE", "STRING", "[ 1 ]") + "\n" + tensor("output", "CLASSES", dims="[ -1 ]"),
        "decode FILE=FILE -> PIXELS=pixels",
        "scores X=pixels -> Y=CLASSES",
    )
    ensemble(
        folder,
        "nested_classify",
        tensor("input", "FILE", "STRING", "[ 1 ]") + "\n" + tensor("output", "CLASSES", dims="[ -1 ]"),
        "classify FILE=FILE -> CLASSES=CLASSES",
    )
    ensemble(
        folder,
        "branches",
        "\n".join([tensor("input", "X"), tensor("output", "LEFT"), tensor("output", "RIGHT")]),
        "memo X=X -> Y=LEFT",
        "scores X=X -> Y=RIGHT",
    )
    return folder


@pytest.fixture(scope="module")
def addresses(repository: Path) -> Iterator[dict[str, str]]:
    """`host:port` by protocol."""
    with process("engine", "serve")(repository) as opened:
        yield {"http": opened.http, "grpc": opened.grpc}


class Client:
    """What the cases need of either client."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.library = CLIENTS[kind]
        self.triton = self.library.InferenceServerClient(address)

    def infer(
        self,
        model: str,
        arrays: dict[str, np.ndarray],
        *,
        outputs: list[str] | None = None,
        classes: int = 0,
        **options,
    ):
        """Return the answer's arrays by name."""
        asked = inputs(self.library, **arrays)
        wanted = None
        if outputs is not None:
            wanted = [self.library.InferRequestedOutput(name, class_count=classes) for name in outputs]
        result = self.triton.infer(model, asked, outputs=wanted, **options)
        names = (
            [each["name"] for each in result.get_response()["outputs"]]
            if self.kind == "http"
            else [each.name for each in result.get_response().outputs]
        )
        return {name: result.as_numpy(name) for name in names}

    def refused(self, *arguments, **options) -> tuple[str, str]:
        """Return the status and the message of the error that `infer` must give."""
        with pytest.raises(InferenceServerException) as caught:
            self.infer(*arguments, **options)
        return caught.value.status(), caught.value.message()


@pytest.fixture(params=CLIENTS)
def client(request, addresses) -> Iterator[Client]:
    """A client of each protocol."""
    opened = Client(request.param, addresses[request.param])
    yield opened
    opened.triton.close()


@pytest.fixture
def http(addresses) -> Iterator[tritonclient.http.InferenceServerClient]:
    """A client over HTTP."""
    opened = tritonclient.http.InferenceServerClient(addresses["http"])
    yield opened
    opened.close()


def numbers(rows: int = 2, seed: int = 1) -> np.ndarray:
    """Return rows of numbers whose sums are exact."""
    return np.random.default_rng(seed).integers(-99, 99, (rows, 16)).astype(np.float32)


def images(*rows: list[float]) -> np.ndarray:
    """Return rows as files, each an element of its own."""
    files = []
    for row in rows:
        file = io.BytesIO()
        np.save(file, np.array(row, np.float32))
        files.append([file.getvalue()])
    return np.array(files, dtype=object)


def test_a_chain_of_three_steps_gives_what_its_models_give_one_after_the_other(client):
    a, b = numbers(), numbers(seed=2)
    found = client.infer("chain", {"A": a, "B": b})
    s, d = a, b
    for _ in range(3):
        answer = client.infer("add", {"A": s, "B": d})
        s, d = answer["S"], answer["D"]
    np.testing.assert_array_equal(found["S"], s)
    np.testing.assert_array_equal(found["D"], d)


def test_many_requests_at_once_each_get_their_own_answer(addresses):
    def ask(number: int) -> None:
        client = Client("grpc", addresses["grpc"])
        for turn in range(10):
            a, b = numbers(seed=10 * number + turn), numbers(seed=7)
            right.append(np.array_equal(client.infer("chain", {"A": a, "B": b})["S"], 2 * (a + b)))
        client.triton.close()

    right: list[bool] = []
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert right == [True] * 80


def test_an_ensemble_can_be_a_step_of_another(client):
    a, b = numbers(), numbers(seed=2)
    found = client.infer("outer", {"A": a, "B": b})
    np.testing.assert_array_equal(found["S"], 4 * a)
    np.testing.assert_array_equal(found["D"], 4 * b)


@pytest.mark.parametrize("model", ["classify", "nested_classify"])
def test_files_go_in_and_labels_of_the_last_model_come_out(client, model):
    found = client.infer(model, {"FILE": images([0.1, 0.7, 0.2], [5, 1, 9])}, outputs=["CLASSES"], classes=2)
    texts = [[each.decode() for each in row] for row in found["CLASSES"]]
    assert [[text.split(":", 1)[1] for text in row] for row in texts] == [
        ["1:dog", "2:horse"],
        ["2:horse", "0:cat"],
    ]


def test_a_step_is_told_id_and_parameters_and_is_not_run_where_nobody_asks_for_its_output(client, memo):
    identity = f"with-{client.kind}"
    client.infer("branches", {"X": numbers()}, outputs=["RIGHT"], request_id=f"without-{client.kind}")
    client.infer("branches", {"X": numbers()}, request_id=identity, parameters={"colour": "blue"})
    told = [line for line in memo.read_text().splitlines() if f"-{client.kind} " in line]
    assert len(told) == 1
    assert told[0].startswith(f"{identity} 0 ")
    assert "blue" in told[0]


def test_what_contradicts_the_ensemble_is_refused_in_its_own_name(client):
    _, message = client.refused("chain", {"A": numbers(rows=5), "B": numbers(rows=5)})
    assert "inference request batch-size must be <= 4 for 'chain'" in message
    _, message = client.refused("chain", {"A": numbers(), "C": numbers()})
    assert "unexpected inference input 'C' for model 'chain'" in message


def test_an_ensemble_is_described_counted_and_ready_like_any_model(http, addresses):
    assert http.is_model_ready("chain")
    metadata = http.get_model_metadata("chain")
    assert (metadata["platform"], metadata["versions"]) == ("ensemble", ["1"])
    assert [each["shape"] for each in metadata["inputs"]] == [[-1, 16], [-1, 16]]
    config = http.get_model_config("chain")
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert [step["model_name"] for step in config["ensemble_scheduling"]["step"]] == ["add"] * 3
    before = {name: _counts(http, name) for name in ("chain", "add")}
    client = Client("http", addresses["http"])
    client.infer("chain", {"A": numbers(), "B": numbers()})
    client.triton.close()
    after = {name: _counts(http, name) for name in ("chain", "add")}
    assert [new - old for old, new in zip(before["chain"], after["chain"], strict=True)] == [1, 2, 1]
    assert [new - old for old, new in zip(before["add"], after["add"], strict=True)] == [3, 6, 3]


def _counts(http, name: str) -> tuple[int, int, int]:
    (found,) = http.get_inference_statistics(name)["model_stats"]
    return found["inference_stats"]["success"]["count"], found["inference_count"], found["execution_count"]


def test_large_tensors_go_through_a_chain_of_one_model_while_many_want_its_slots(addresses):
    # More than is copied at once.
    values = np.random.default_rng(3).normal(size=(1, 200_000)).astype(np.float32)
    wrong: list[object] = []

    def ask(number: int) -> None:
        client = Client("grpc", addresses["grpc"])
        for _ in range(4):
            given = values + np.float32(number)
            if not np.array_equal(client.infer("wide", {"X": given}, client_timeout=60)["Y"], given):
                wrong.append(number)
        client.triton.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(100)
    assert not any(each.is_alive() for each in threads)
    assert not wrong


def test_deep_readiness_makes_an_inference_through_the_ensemble(addresses):
    connection = HTTPConnection(addresses["http"], timeout=20)
    connection.request("GET", "/v2/health/ready?deep=true")
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert answer.status == 200
    parts = {part["part"]: part for part in document["parts"]}
    assert parts["model chain version 1"]["seconds"] > 0


def test_an_ensemble_with_a_decoupled_step_streams_one_answer_for_each_response(addresses, http):
    assert http.get_model_config("streamed")["model_transaction_policy"] == {"decoupled": True}
    arrived: Queue[Any] = Queue()
    client = tritonclient.grpc.InferenceServerClient(addresses["grpc"])
    client.start_stream(lambda result, error: arrived.put(error or result))
    asked = inputs(tritonclient.grpc, X=np.full((1, 16), 40, np.float32))
    client.async_stream_infer("streamed", asked, request_id="s", enable_empty_final_response=True)
    parts = []
    while True:
        part = arrived.get(timeout=30)
        assert not isinstance(part, InferenceServerException), part
        if part.get_response().outputs:  # the last answer may be the final part, or an empty one after it
            parts.append(part.as_numpy("Y")[0, 0])
        if part.get_response().parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()
    client.close()
    assert parts == list(range(40, 0, -1))
